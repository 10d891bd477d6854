"""PyTorch itself, as it is and compiled."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sta.backbones.copies import shared_copy
from sta.backbones.hooks import StepHook, hooks_in
from sta.backbones.outputs import logits_of
from sta.backbones.patch import kept
from sta.runtime.sessions import Prepared

#: What is in a .pt2 file that `sta.export` wrote.
_PT2_PARTS = (
    r"data/(weights|constants)/((weight|tensor)_\d+|model_\w+_config\.json)|models/model\.json"
    r"|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder|\.data/\w+|extra/sta"
)
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def run_eager(model: nn.Module, clip: Tensor, precision: str, threads: int | None) -> Prepared:
    """The model itself, whatever is applied to it when it is called."""
    return _prepared(model, model, clip, precision, threads)


def run_compiled(model: nn.Module, clip: Tensor, precision: str, threads: int | None) -> Prepared:
    """`torch.compile` without graph breaks, compiled for clips of this shape."""
    copy = shared_copy(model)
    compiled: Any = torch.compile(copy, fullgraph=True, dynamic=False)
    run = _prepared(compiled, copy, clip, precision, threads)
    run(clip)  # the compiler runs now, so that what goes wrong goes wrong here
    return run


def _prepared(
    run: nn.Module, model: nn.Module, clip: Tensor, precision: str, threads: int | None
) -> Prepared:
    device = clip.device.type

    def forward(pixels: Tensor) -> Tensor:
        cast = (
            nullcontext() if precision == "float32" else torch.autocast(device, _DTYPES[precision])
        )
        # Always the same mode, whatever the caller's: a compiled graph is made for one of them.
        with torch.inference_mode(False), torch.no_grad(), cast, limited(threads):
            return logits_of(run(pixels)).float()

    return Prepared(
        forward, lambda: kept(model) if any(True for _ in hooks_in(model, StepHook)) else []
    )


@contextmanager
def limited(count: int | None) -> Iterator[None]:
    """A number of threads inside; PyTorch has one for the process."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_pt2(path: Path) -> None:
    """Refuse a .pt2 file that could run code when it is loaded.

    PyTorch reads pickles and expressions out of such files without asking. What `sta.export` writes
    has neither: tensors are raw bytes, shapes are numbers.

    Raises:
        ValueError: It has something else in it, or is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            inside = [name.partition("/")[2] for name in names]
            odd = [
                name
                for name in inside
                if not re.fullmatch(_PT2_PARTS, name) or inside.count(name) > 1
            ]
            contents = {n: archive.read(n) for n in names if n.endswith((".json", ".pt"))}
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise ValueError(
            f"{path}: damaged or incomplete; copy it again, or export it again ({error})"
        ) from None
    for name, content in contents.items():
        if name.endswith(".pt"):
            try:
                torch.load(io.BytesIO(content), weights_only=True)
            except Exception:  # of any kind: it is no plain tensor
                odd.append(name)
        elif re.search(rb'"use_pickle": *true|"as_expr"', content):
            odd.append(name)
    if odd:
        raise ValueError(
            f"{path}: {odd[0]} could run code, and is not loaded; sta export writes files without"
        )
