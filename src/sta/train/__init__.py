"""Training: any backbone by the paper's recipe, dense or pruned.

`sta.train.loop.train` is the recipe as a function; it is not imported here because accelerate
takes its time.
"""

from sta.train.recipe import TrainConfig

__all__ = ["TrainConfig"]
