"""What methods keep and why: pictures of a clip, redundancy and GradNorm over many.

`show` and `analyze` are `sta.show` and `sta.analyze`. `inspect_clip` runs a clip through a model
under some methods and collects what they did; `strip`, `animation` and `page` draw that. `draw`
holds the pure functions: frames and a mask in, frames out.
"""

from sta.explain.draw import heat, whiten
from sta.explain.inspect import Inspection, MethodResult, StepResult, inspect_clip

__all__ = ["Inspection", "MethodResult", "StepResult", "heat", "inspect_clip", "whiten"]
