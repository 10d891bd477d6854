"""Gathering tokens and filling grids."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sta.core.fill import fill_source, fill_source_clip, fill_source_similar
from sta.core.tokens import nearest_kept, slot_of, take


@st.composite
def kept_sets(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    height, width = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    places = draw(st.sets(st.integers(0, height * width - 1), min_size=1))
    return height, width, sorted(places)


def brute_nearest(place: int, kept: list[int], width: int) -> int:
    def distance(other: int) -> tuple[int, int]:
        dy, dx = place // width - other // width, place % width - other % width
        return dy * dy + dx * dx, other

    return min(kept, key=distance)


@given(kept_sets())
def test_holes_take_the_nearest_kept_token(case: tuple[int, int, list[int]]) -> None:
    height, width, kept = case
    expected = [brute_nearest(p, kept, width) for p in range(height * width)]
    index = torch.tensor([kept])
    assert nearest_kept(index, (height, width)).tolist() == [expected]
    assert index.gather(1, fill_source(index, (height, width))).tolist() == [expected]


@given(kept_sets(), st.integers(1, 4), st.data())
def test_an_empty_frame_is_filled_from_the_nearest_other(
    case: tuple[int, int, list[int]], frames: int, data: st.DataObject
) -> None:
    height, width, kept = case
    size = height * width
    held = data.draw(st.sets(st.integers(0, frames - 1), min_size=1))
    flat = [t * size + p for t in sorted(held) for p in kept]
    shuffled = data.draw(st.permutations(flat))
    index = torch.tensor([shuffled])
    filled = index.gather(1, fill_source_clip(index, frames, (height, width)))[0].tolist()
    for t in range(frames):
        source = min(held, key=lambda other: (abs(other - t), other))
        for p in range(size):
            assert filled[t * size + p] == source * size + brute_nearest(p, kept, width)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.data())
def test_holes_are_filled_from_the_frame_that_has_the_most_similar_token(
    frames: int, height: int, width: int, data: st.DataObject
) -> None:
    size = height * width
    count = data.draw(st.integers(1, size))
    places = st.permutations(range(size)).map(lambda order: sorted(order[:count]))
    kept = data.draw(st.lists(places, min_size=frames, max_size=frames))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    tokens = torch.randn(frames * size, 3, generator=draw).double()
    flat = [t * size + place for t, frame in enumerate(kept) for place in frame]

    def filled_by(place: int) -> int:
        if place in flat:
            return place
        y, x = divmod(place % size, width)
        nearest = [
            min(frame, key=lambda p: ((p // width - y) ** 2 + (p % width - x) ** 2, p))
            for frame in kept
        ]
        mean = tokens.mean(0)
        similar = [
            torch.cosine_similarity(tokens[place] - mean, tokens[t * size + p] - mean, dim=0)
            for t, p in enumerate(nearest)
        ]
        best = max(range(frames), key=lambda t: float(similar[t]))
        return best * size + nearest[best]

    source = fill_source_similar(tokens.unsqueeze(0).float(), torch.tensor([kept]), (height, width))
    assert [flat[slot] for slot in source[0]] == [filled_by(p) for p in range(frames * size)]


def test_take_and_slot_of() -> None:
    x = torch.arange(24.0).view(2, 4, 3)
    index = torch.tensor([[3, 0], [1, 1]])
    assert torch.equal(take(x, index), torch.stack([x[0, [3, 0]], x[1, [1, 1]]]))
    kept = torch.tensor([[1, 4, 6]])
    assert slot_of(kept, 7).gather(1, kept).tolist() == [[0, 1, 2]]
