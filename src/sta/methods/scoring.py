"""How STA scores the tokens of a site: frame by frame, or at their places over the clip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from sta.core.score import ScoredStep
    from sta.methods.base import Choice, Site
    from sta.methods.sta import STAConfig


def choose(config: STAConfig, site: Site) -> Choice:
    """What a step keeps: a number, or what scores above the threshold."""
    from sta.methods.base import Choice

    if config.threshold is not None:
        return choose_above(config, site)
    return Choice(explain(config, site).kept)


def explain(config: STAConfig, site: Site) -> ScoredStep:
    """The choice of a step with the scores behind it."""
    from sta.core.noise import derive
    from sta.core.schedule import directions
    from sta.core.step import explain_step

    how: dict[str, Any] = {
        "order": directions(config.order, site.steps)[site.step],
        "score": config.score,
        "semantic": config.semantic,
        "combine": config.combine,
        "temperature": config.temperature,
    }
    if config.budget == "auto":
        kept, scores = choose_above(config, site).kept, scores_above(config, site)
        return scores._replace(kept=kept)
    if config.temporal != "chain" or config.budget == "clip":
        return _explain_ragged(config, site, how)
    tokens = site.frames(site.tokens)  # (B, T, N, D)
    whole = tokens.shape[2] == site.grid.tokens
    return explain_step(
        tokens,
        site.frames(site.features(config.similarity)),
        site.drop,
        first_frame=config.first_frame,
        grid=site.grid.frame if whole else None,
        seed=derive(config.seed, site.step),
        **how,
    )


def _explain_ragged(config: STAConfig, site: Site, how: dict[str, Any]) -> ScoredStep:
    """The same where tokens compete over the clip, or are compared by their place."""
    from sta.core.difference import tubelet_change
    from sta.core.ragged import explain_ragged, place_change

    positions, grid, metric, change = site.positions(), site.grid, None, None
    if config.temporal == "pixels":
        change = tubelet_change(*site.pixels(), how["order"])
    else:
        metric = site.features(config.similarity)
        if config.temporal == "place":
            change = place_change(metric, positions, grid, how["order"])
    return explain_ragged(
        site.tokens,
        positions,
        grid,
        site.drop,
        metric=metric,
        change=change,
        budget=config.budget,
        **how,
    )


def choose_above(config: STAConfig, site: Site) -> Choice:
    """The tokens that score above the threshold, and those of the first frame."""
    from sta.methods.budget import above

    assert config.threshold is not None
    return above(values_above(config, site), config.threshold, config.buckets)


def values_above(config: STAConfig, site: Site) -> Tensor:
    """What the threshold is compared with, (B, T, N); infinite in the first frame."""
    from sta.core.schedule import directions
    from sta.core.threshold import begin_runs

    order: Any = directions(config.order, site.steps)[site.step]
    return begin_runs(-scores_above(config, site).score, order)


def scores_above(config: STAConfig, site: Site) -> ScoredStep:
    """Scores that are comparable across clips: the lower, the more of the clip is kept by it."""
    import torch

    from sta.core.difference import tubelet_change
    from sta.core.ragged import min_max_of, place_change
    from sta.core.schedule import directions
    from sta.core.score import FLOOR, ScoredStep, token_weight

    # At the input, what the patches look like, without their positions.
    at_input = not any(config.blocks or ())
    x = (site.embeddings() if at_input else site.tokens).detach()
    order: Any = directions(config.order, site.steps)[site.step]
    if config.temporal == "pixels":
        change = tubelet_change(*site.pixels(), order)
    else:
        metric = x if at_input else site.features(config.similarity)
        change = place_change(metric, site.positions(), site.grid, order)
    weight = token_weight(site.frames(x), config.semantic)
    everywhere = torch.ones_like(weight, dtype=torch.bool)
    significance = min_max_of(weight, everywhere, "clip")
    value = change if config.score == "temporal" else change * (significance + FLOOR)
    return ScoredStep(change.new_empty(0), significance, -change, -value)
