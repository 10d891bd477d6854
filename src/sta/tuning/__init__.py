"""Finding score, r, schedule and blocks for a speed-up, GFLOPs, or agreement with the model."""

from sta.tuning.search import Point, Tuned, Tuner

__all__ = ["Point", "Tuned", "Tuner"]
