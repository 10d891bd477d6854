"""Options that `sta.predict`, `sta.evaluate` and `sta.features` share, each said once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from sta.inference.run import Engine, check_timeout
from sta.measure.auto import AUTO
from sta.video.clips import Videos
from sta.video.gpu_decode import check_torchcodec
from sta.video.views import Decoder, ViewSpec


class ModelOptions(TypedDict, total=False):
    """How the model is loaded and run.

    Attributes:
        frames: Frames per clip.
        stride: Distance between the frames of a clip.
        size: Side of a clip in pixels.
        decoder: What decodes: "pyav", the default; or "torchcodec", where it is installed, on a GPU
            if there is one, for videos that you trust (see the page on security).
        device: "cpu", "cuda", "cuda:1" ...; "auto", the default, is where a given model is, or a
            GPU.
        runtime: What runs the model: "torch", "compile", "onnxruntime", "openvino"; or "auto", the
            default, which takes what finishes the run first on this machine.
        precision: What it computes in: "float32", the default; "float16" and "bfloat16" where the
            device has them; "int8" in OpenVINO on a CPU. Tokens are always chosen in float32.
        calibrate: Videos that int8 takes its ranges from; default: the first of the run.
        overrides: Fields of the backbone's config that a checkpoint cannot tell.
        random_weights: Do not load weights: to measure speed only.
    """

    frames: int | None
    stride: int | None
    size: int | None
    decoder: Decoder
    device: str
    runtime: str
    precision: str
    calibrate: Videos | None
    overrides: Mapping[str, Any] | None
    random_weights: bool


class EngineOptions(TypedDict, total=False):
    """How videos are decoded, and where.

    Attributes:
        batch_size: Clips per forward, 8 by default.
        timeout: Seconds without a sign of life after which a video is given up, 60 by default.
        workers: Decoding processes.
        engine: "local" or "ray".
        address: Of a Ray cluster: "auto" or host:port; default: a local one is started.
        actors: Model replicas on Ray.
    """

    batch_size: int
    timeout: float
    workers: int | None
    engine: Engine
    address: str | None
    actors: int | None


class RowOptions(TypedDict, total=False):
    """What becomes of the file of rows.

    Attributes:
        resume: Go on with `out`: only what is missing, changed or failed for a passing reason.
        overwrite: Start `out` anew if it is there.
        retry_failed: When resuming, try every failed video again.
    """

    resume: bool
    overwrite: bool
    retry_failed: bool


class RunOptions(ModelOptions, EngineOptions, RowOptions, total=False):
    """All of them."""


def split(options: RunOptions) -> tuple[ModelOptions, EngineOptions, RowOptions]:
    """The options by whom they are for; refuses unknown ones, and what cannot decode here."""
    parts: list[dict[str, Any]] = []
    given: dict[str, Any] = dict(options)
    for kind in (ModelOptions, EngineOptions, RowOptions):
        names = kind.__annotations__.keys() & given.keys()
        parts.append({name: given.pop(name) for name in sorted(names)})
    if given:
        known = ", ".join(sorted(RunOptions.__annotations__))
        raise TypeError(f"{next(iter(given))!r} is no argument of this function; there are {known}")
    if "timeout" in parts[1]:
        check_timeout(parts[1]["timeout"])
    model, engine, rows = parts
    if (decoder := model.get("decoder", "pyav")) != "pyav":
        ViewSpec(decoder=decoder)  # which knows them
        if engine.get("engine") == "ray":
            raise ValueError('decoder="torchcodec" is for engine="local": Ray decodes without GPUs')
        check_torchcodec()
    model.setdefault("runtime", AUTO)
    return cast(ModelOptions, model), cast(EngineOptions, engine), cast(RowOptions, rows)
