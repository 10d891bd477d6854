"""Captions of the pictures: what a step kept, what a method costs and predicts."""

from __future__ import annotations

from sta.explain.inspect import Inspection, MethodResult, StepResult

_SEMANTIC = {
    "norm": "How much a token carries: the sum of its absolute activations (its L1 norm), scaled "
    "to 0 to 1 in each frame.",
    "deviation": "How much a token stands out: the sum of the absolute differences between its "
    "activations and the mean token of its frame, scaled to 0 to 1 in each frame.",
}
_SCORE = {
    "sta": "A (1 \N{MINUS SIGN} F): high for tokens that repeat earlier frames and stand for "
    "little. The highest of each frame are not kept.",
    "temporal": "A alone: high for tokens that repeat earlier frames. The highest of each frame "
    "are not kept.",
    "semantic": "1 \N{MINUS SIGN} F alone: high for tokens that stand for little. The highest of "
    "each frame are not kept.",
}


def percent(share: float) -> str:
    """A probability or a share, e.g. "93 %"."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def prediction(method: MethodResult) -> str:
    """The best class, e.g. "red left (93 %)"."""
    label, score = method.predictions[0]
    return f"{label} ({percent(score)})"


def kept_per_frame(step: StepResult) -> str:
    """E.g. "49 of 64 tokens" or, where frames differ, "41 to 52 of 64 tokens"."""
    counts = step.kept.sum(axis=(1, 2))
    low, high = int(counts.min()), int(counts.max())
    return f"{low if low == high else f'{low} to {high}'} of {step.kept[0].size} tokens"


def first_tokens(inspection: Inspection) -> str:
    """What the first step starts from, e.g. "64 tokens a frame"; empty if nothing is pruned."""
    step = next((s for m in inspection.methods for s in m.steps), None)
    if step is None:
        return ""
    return f"{step.kept[0].size} tokens a frame{' at step 1' if staged(inspection) else ''}"


def staged(inspection: Inspection) -> bool:
    """Whether steps choose from grids of different size."""
    return any(step.after.startswith("stage") for m in inspection.methods for step in m.steps)


def position(step: StepResult) -> str:
    """E.g. "after block 5"."""
    return "at the input" if step.after == "input" else f"after {step.after}"


def duration(seconds: float | None) -> str:
    """E.g. "9.1 ms" or, where it is long, "2.4 s"; "-" if it was not measured."""
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def amount(gflops: float) -> str:
    """E.g. "2.1" or "0.35", in GFLOPs."""
    return f"{gflops:.3g}" if gflops < 100 else f"{gflops:.0f}"


def cost(inspection: Inspection, method: MethodResult) -> str:
    """What a method saves, e.g. "180 → 96 GFLOPs (-47 %), 2.4 s → 1.3 s (1.85x as fast)"."""
    stock = inspection.stock
    if not inspection.compared:
        return f"{amount(method.gflops)} GFLOPs, {duration(method.seconds)}"
    text = (
        f"{amount(stock.gflops)} → {amount(method.gflops)} GFLOPs "
        f"({less(method.gflops / stock.gflops)})"
    )
    if stock.seconds is not None and method.seconds is not None:
        text += (
            f", {duration(stock.seconds)} → {duration(method.seconds)} "
            f"({faster(stock.seconds / method.seconds)})"
        )
    return text


def less(share: float) -> str:
    """A change to this share, e.g. "-47 %" with a true minus sign."""
    sign = "\N{MINUS SIGN}" if share <= 1 else "+"
    return f"{sign}{100 * abs(1 - share):.0f} %"


def faster(times: float) -> str:
    """E.g. "1.87x as fast" with a true multiplication sign."""
    return f"{times:.2f}\N{MULTIPLICATION SIGN} as fast"


def predictions(inspection: Inspection, method: MethodResult) -> str:
    """What the model predicts before and after."""
    if not inspection.compared:
        return f"The model says {prediction(method)}."
    return f"Unpruned, the model says {prediction(inspection.stock)}; pruned, {prediction(method)}."


def white(inspection: Inspection) -> str:
    """What white patches are."""
    what = gone(*inspection.methods)
    if staged(inspection):
        return f"White patches are {what}; each stage fills its grid again and prunes afresh."
    unseen = ": the blocks after a step never see them" if what == "dropped" else ""
    return f"White patches are {what}{unseen}."


def gone(*methods: MethodResult) -> str:
    """What becomes of tokens that are not kept: they are "dropped" or "merged into others"."""
    configs = [method.config for method in methods if method.config is not None]
    found = {"merged into others" if config.merging else "dropped" for config in configs}
    return " or ".join(sorted(found)) or "dropped"


def semantic_score(inspection: Inspection) -> str:
    """What F is for the settings at hand; of each method, where they differ."""
    return _of_settings(inspection, "semantic", _SEMANTIC)


def combined_score(inspection: Inspection) -> str:
    """What tokens are ranked by for the settings at hand; of each method, where they differ."""
    return _of_settings(inspection, "score", _SCORE)


def _of_settings(inspection: Inspection, setting: str, texts: dict[str, str]) -> str:
    chosen = {
        method.title: texts[value]
        for method in inspection.methods
        if any(step.scores for step in method.steps)
        and (value := getattr(method.config, setting, None)) in texts
    }
    if len(set(chosen.values())) > 1:
        return " ".join(f"{title}: {text}" for title, text in chosen.items())
    return "".join(set(chosen.values()))


def headline(inspection: Inspection) -> str:
    """The method or methods, the model and the clip."""
    first = inspection.methods[0].title if len(inspection.methods) == 1 else "What is kept"
    return f"{first} · {inspection.model} · {inspection.clip}"


def frame_numbers(first: int, count: int) -> str:
    """Frames that a token covers, counted from 1: "frame 3" or "frames 3-4"."""
    return f"frame {first + 1}" if count == 1 else f"frames {first + 1}\N{EN DASH}{first + count}"


def spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` positions, evenly spread from the first to the last."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return [(2 * i * (count - 1) + most - 1) // (2 * (most - 1)) for i in range(most)]
