"""The part of torchcodec's documented interface that `sta` uses."""

from __future__ import annotations

import io
import json
import os
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch


class VideoDecoder:
    """Marks its pictures: the corner is white. `FAKE_TORCHCODEC` says what goes wrong."""

    def __init__(self, source: Any, *, dimension_order: str, device: str, **options: Any) -> None:
        assert (dimension_order, device) == ("NHWC", "cpu")
        self.metadata = SimpleNamespace(rotation=None)
        self.fault = os.environ.get("FAKE_TORCHCODEC", "")
        if self.fault == "libraries":
            raise RuntimeError("Could not load libtorchcodec. Likely causes:\n  1. FFmpeg ...")
        if self.fault == "old":
            del self.metadata.rotation
        self.probe = isinstance(source, bytes)
        data = source if self.probe else b"".join(iter(lambda: source.read(1000), b""))
        with av.open(io.BytesIO(data)) as container:
            self.frames = list(container.decode(video=0))
        if not self.probe:
            mappings = json.loads(options["custom_frame_mappings"])["frames"]
            assert [frame.pts for frame in self.frames] == [row["pts"] for row in mappings]
            assert mappings[0]["key_frame"] == 1

    def get_frames_at(self, indices: list[int]) -> SimpleNamespace:
        if not self.probe and self.fault == "fails":
            raise RuntimeError("Could not push packet to decoder")
        if not self.probe and self.fault == "gpu":
            raise torch.OutOfMemoryError("CUDA out of memory\nand so on")
        late = int(not self.probe and self.fault == "other frames")
        frames = [self.frames[min(number + late, len(self.frames) - 1)] for number in indices]
        pictures = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
        pictures[:, :4, :4] = 255
        times = torch.tensor([frame.time for frame in frames], dtype=torch.float64)
        return SimpleNamespace(data=torch.from_numpy(pictures), pts_seconds=times)
