"""The words on the pictures: what a step kept, what a method costs and says."""

from __future__ import annotations

from sta.explain.look import ClipLook, MethodLook, StepLook


def percent(share: float) -> str:
    """A probability or a share, e.g. "93 %"."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def answer(method: MethodLook) -> str:
    """The best class, e.g. "red left (93 %)"."""
    label, score = method.top[0]
    return f"{label} ({percent(score)})"


def kept_per_frame(step: StepLook) -> str:
    """E.g. "49 of 64 tokens" or, where frames differ, "41 to 52 of 64 tokens"."""
    counts = step.kept.sum(axis=(1, 2))
    low, high = int(counts.min()), int(counts.max())
    places = step.kept[0].size
    return f"{low if low == high else f'{low} to {high}'} of {places} tokens"


def first_tokens(look: ClipLook) -> str:
    """What the first step starts from, e.g. "64 tokens a frame"; empty if nothing is pruned."""
    step = next((s for m in look.methods for s in m.steps), None)
    if step is None:
        return ""
    return f"{step.kept[0].size} tokens a frame{' at step 1' if staged(look) else ''}"


def staged(look: ClipLook) -> bool:
    """Whether steps choose from grids of different size."""
    return any(step.after.startswith("stage") for m in look.methods for step in m.steps)


def place(step: StepLook) -> str:
    """E.g. "after block 5"."""
    return "at the input" if step.after == "input" else f"after {step.after}"


def duration(seconds: float) -> str:
    """E.g. "9.1 ms" or, where it is long, "2.4 s"."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def amount(gflops: float) -> str:
    """E.g. "2.1" or "0.35", in GFLOPs."""
    return f"{gflops:.3g}" if gflops < 100 else f"{gflops:.0f}"


def cost(look: ClipLook, method: MethodLook) -> str:
    """What a method saves, e.g. "180 → 96 GFLOPs (-47 %), ..."."""
    stock = look.stock
    return (
        f"{amount(stock.gflops)} → {amount(method.gflops)} GFLOPs "
        f"({less(method.gflops / stock.gflops)}), "
        f"{duration(stock.seconds)} → {duration(method.seconds)} "
        f"({faster(look, method)})"
    )


def less(share: float) -> str:
    """A change to this share, e.g. "-47 %" with a true minus sign."""
    sign = "\N{MINUS SIGN}" if share <= 1 else "+"
    return f"{sign}{100 * abs(1 - share):.0f} %"


def faster(look: ClipLook, method: MethodLook) -> str:
    """E.g. "1.87x as fast" with a true multiplication sign."""
    times = look.stock.seconds / method.seconds
    return f"{times:.2f}\N{MULTIPLICATION SIGN} as fast"


def verdict(look: ClipLook, method: MethodLook) -> str:
    """What the model says before and after."""
    return f"Unpruned, the model says {answer(look.stock)}; pruned, {answer(method)}."


def note(look: ClipLook) -> str:
    """What white means."""
    if staged(look):
        return "White patches are dropped; each stage fills its grid again and prunes afresh."
    return "White patches are dropped: the blocks after a step never see them."


def headline(look: ClipLook) -> str:
    """The method or methods, the model and the clip."""
    first = look.methods[0].title if len(look.methods) == 1 else "What is kept"
    return f"{first} · {look.model} · {look.clip}"


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
