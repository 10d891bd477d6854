"""Files that a run writes: checked before the work, locked during it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TextIO

from sta.video.lists import is_remote


class OutputError(OSError):
    """A result that could not be written: a full disk, a file system that went away."""


class OutputLockedError(OSError):
    """Another run writes the same file."""


def check_writable(path: str | Path) -> None:
    """Refuse a file that cannot be written, and make its folder."""
    name = str(path)
    if is_remote(name):
        import fsspec

        try:
            fsspec.get_filesystem_class(name.split("://")[0])
        except (ImportError, ValueError) as error:
            raise ValueError(f"{name}: cannot be written here ({error})") from None
        return
    file = Path(name)
    if file.is_dir():
        raise IsADirectoryError(f"{name}: is a folder; give the name of a file in it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionError(
            f"{name}: its folder cannot be made ({error.strerror}); choose another"
        ) from None
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise PermissionError(f"{name}: may not be written; choose another, or change its mode")


@contextmanager
def writing(path: str | Path, hint: str = "") -> Iterator[None]:
    """Turn a failed write into an `OutputError` that names the file."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{path}: cannot be written ({reason}){hint}") from error


@contextmanager
def locked(out: str) -> Iterator[None]:
    """Keep other runs from writing `out` as well.

    The lock is the operating system's, on a file beside `out`: it ends with the process, however
    that ends. The file says who holds it.

    Raises:
        OutputLockedError: Another run holds it.
    """
    path = Path(f"{PurePosixPath(out).name if is_remote(out) else out}.lock")
    file = _lock(path, out)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # before the lock goes: nobody else can hold this very file
        file.close()


def _lock(path: Path, out: str) -> TextIO:
    here = socket.gethostname()
    while True:
        with writing(path):
            file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            file.close()
            raise OutputLockedError(
                f"{out}: another run writes it ({_name(holder)}); wait for it, or use another file"
            ) from None
        except OSError:
            pass  # the file system has no locks: go on without
        try:
            same = path.stat().st_ino == os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            same = False
        if same:
            break
        file.close()  # its holder ended, and took the file away, between the two calls
    holder = _holder(file)
    if holder.get("host", here) != here:  # locks may not reach from machine to machine
        file.close()
        raise OutputLockedError(
            f"{out}: a run on another machine writes it ({_name(holder)}); if that run is dead, "
            f"remove {path}"
        )
    with writing(path):
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": here}) + "\n")
        file.flush()
    return file


def _holder(file: TextIO) -> dict[str, object]:
    file.seek(0)
    try:
        holder = json.loads(file.read())
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _name(holder: dict[str, object]) -> str:
    return f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'this machine')}"
