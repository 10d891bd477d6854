"""Video files to clips: which frames and crops make a view, and how they are decoded.

Nothing in this package but `gpu_decode`, an option, needs torch, so the processes that decode start
fast and stay small. The names below are imported when they are first used, so that one can be
started before anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sta.video.decode import read_views
    from sta.video.errors import ErrorKind, VideoError
    from sta.video.views import PROTOCOLS, Views, ViewSpec, protocol

__all__ = [
    "PROTOCOLS",
    "ErrorKind",
    "VideoError",
    "ViewSpec",
    "Views",
    "protocol",
    "read_views",
]

_HOME = {"read_views": "decode", "ErrorKind": "errors", "VideoError": "errors"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sta.video' has no attribute {name!r}")
    return getattr(import_module(f"sta.video.{_HOME.get(name, 'views')}"), name)
