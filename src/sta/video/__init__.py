"""Video files to clips: which frames and crops make a view, and how they are decoded.

Nothing in this package but `gpu_decode`, an option, needs torch, so the processes that decode start
fast and stay small.
"""

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
