"""Training: the embedded models, and any backbone by the paper's recipe, dense or pruned."""

from sta.train.loop import train
from sta.train.recipe import TrainConfig

__all__ = ["TrainConfig", "train"]
