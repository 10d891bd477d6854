"""Pictures of what is kept: a strip, a film, a page.

`look` runs a clip through a model under some methods and collects what they did; everything else
here draws it. `draw` holds the pure functions: frames and a mask in, frames out.
"""

from sta.explain.draw import heat, whiten
from sta.explain.look import ClipLook, MethodLook, StepLook, look

__all__ = ["ClipLook", "MethodLook", "StepLook", "heat", "look", "whiten"]
