"""Pixels between processes, each byte copied once on either side.

`Connection.recv_bytes` would gather them in a buffer and copy them out of it again: 0.9 instead of
0.4 ms of processor time for a clip of 16 x 224 x 224 pixels.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray


def send_pixels(connection: Connection[Any, Any], pixels: NDArray[np.uint8]) -> None:
    """Send an array whose shape the other side knows."""
    left = np.ascontiguousarray(pixels).reshape(-1).data
    while left:
        left = left[os.write(connection.fileno(), left) :]


def receive_pixels(connection: Connection[Any, Any], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array that the other side sends.

    Raises:
        EOFError: It ended before all of it came.
    """
    pixels = np.empty(shape, dtype=np.uint8)
    left = pixels.reshape(-1).data
    while left:
        count = os.readv(connection.fileno(), [left])
        if not count:
            raise EOFError
        left = left[count:]
    return pixels
