"""PyTorch itself, as it is and compiled."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
#: Expressions in it: sums and products of a batch's size and numbers.
_SIZES = r"(Add|Mul|Integer|Symbol|[(), ]|-?\d+|'s\d+'|(positive|integer)=True)*"
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def run_eager(model: nn.Module, clip: Tensor, precision: str, threads: int | None) -> Prepared:
    """The model itself, whatever is applied to it when it is called."""
    return _prepared(model, model, clip, precision, threads)


def run_compiled(model: nn.Module, clip: Tensor, precision: str, threads: int | None) -> Prepared:
    """`torch.compile` without graph breaks, compiled for clips of this shape.

    On a GPU it is one CUDA graph: a launch for all of its kernels.
    """
    copy = shared_copy(model)
    graphs = clip.device.type == "cuda"
    mode = "reduce-overhead" if graphs else None
    compiled: Any = torch.compile(copy, fullgraph=True, dynamic=False, mode=mode)
    run = _prepared(compiled, copy, clip, precision, threads)
    if graphs:
        run = _replayed(run)
    run(clip)  # the compiler runs now, so that what goes wrong goes wrong here
    return run


def _prepared(
    run: nn.Module, model: nn.Module, clip: Tensor, precision: str, threads: int | None
) -> Prepared:
    device = clip.device.type

    def forward(pixels: Tensor) -> Tensor:
        cast = in_precision(precision, device)
        # Always the same mode, whatever the caller's: a compiled graph is made for one of them.
        with torch.inference_mode(False), torch.no_grad(), cast, limited(threads):
            return logits_of(run(pixels)).float()

    return Prepared(
        forward, lambda: kept(model) if any(True for _ in hooks_in(model, StepHook)) else []
    )


def _replayed(run: Prepared) -> Prepared:
    """A CUDA graph, whose every run writes its results to the same memory: they are copied."""

    def forward(pixels: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return run.forward(pixels).clone()

    return Prepared(forward, lambda: [step.clone() for step in run.kept()])


def in_precision(precision: str, device: str) -> AbstractContextManager[object]:
    """Inside, PyTorch computes in float32, float16 or bfloat16; tokens are chosen in float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.partition(":")[0], _DTYPES[precision])


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
    has tensors as raw bytes, and of expressions only products and sums of sizes.
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
        elif not all(map(_harmless, _pairs(content))):
            odd.append(name)
    if odd:
        raise ValueError(
            f"{path}: {odd[0]} could run code, and is not loaded; sta export writes files without"
        )


def _pairs(content: bytes) -> Iterator[tuple[str, Any]]:
    try:
        waiting = [json.loads(content)]
    except ValueError:
        yield "damaged", True
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value


def _harmless(pair: tuple[str, Any]) -> bool:
    """Whether what PyTorch would do with a value is no more than to take it."""
    name, value = pair
    if name == "expr_str":
        return re.fullmatch(_SIZES, str(value)) is not None
    return not (value and name in ("use_pickle", "guards_code", "damaged"))
