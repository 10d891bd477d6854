"""Labelled video that anyone can make again: digit actions, in memory or as files."""

from sta.data.digits import DigitActions
from sta.data.files import write_videos

__all__ = ["DigitActions", "write_videos"]
