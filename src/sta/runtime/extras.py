"""Optional packages: what each runtime needs beside PyTorch, and how to install what is missing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from typing import Any

RUNTIMES = ("torch", "compile", "onnxruntime", "openvino")

_PACKAGES: dict[str, tuple[str, ...]] = {
    "torch": (),
    "compile": (),
    "onnxruntime": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino",),
}


def available() -> dict[str, str | None]:
    """Every runtime: None if it can be used here, else what is missing and what to do."""
    return {runtime: _missing(runtime) for runtime in RUNTIMES}


def _missing(runtime: str) -> str | None:
    for package in _PACKAGES[runtime]:
        if not _installed(package):
            return f"{package} is not installed: {install_line('export')}"
    if runtime == "compile" and not _compiler():
        return "torch.compile needs a C++ compiler: install g++ or clang++, or set CXX"
    return None


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _compiler() -> bool:
    names = (os.environ.get("CXX"), "g++", "clang++", "cl")
    return any(shutil.which(name) for name in names if name)


def install_line(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f'pip install "sta-video[{extra}]"'


def require(package: str, what: str, extra: str = "export") -> Any:
    """Import an optional package, or name the line that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise ImportError(f"{what} needs {name}: {install_line(extra)}") from None
