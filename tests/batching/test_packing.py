"""Levels of a recursion that have as many calls as launches have lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.batching.packing import packed

ANY = float("inf")


def columns(*children: tuple[int, int]) -> list[Any]:
    return [np.array(column) for column in zip(*children, strict=True)]


def test_what_is_not_needed_yet_is_made_later() -> None:
    """Call 6 needs 4 and 5, 4 needs 0 and 1, 5 needs 2; nothing needs 3, which is a root, too."""
    heights = np.array([0, 0, 0, 0, 1, 1, 2])
    children = columns(*[(-1, -1)] * 4, (0, 1), (2, -1), (4, 5))
    found = packed(heights, children, (2,), 0.0, ANY)
    assert found is not None
    levels, width = found
    assert (levels.tolist(), width) == ([0, 1, 1, 3, 2, 2, 3], 2)


def test_where_nothing_is_gained_levels_are_heights() -> None:
    heights, children = np.array([0, 0, 1, 1]), columns((-1, -1), (-1, -1), (0, -1), (1, -1))
    assert packed(heights, children, (2, 4), 1.0, most=6.0) is None
    assert packed(heights, children, (2, 4), 1.0, most=6.1) is not None


def test_a_width_that_is_known_may_cost_a_tenth_more() -> None:
    heights, children = np.array([0] * 8 + [1]), columns(*[(-1, -1)] * 8, (0, 1))
    by_cost = packed(heights, children, (6, 8), 100.0, ANY)
    by_name = packed(heights, children, (6, 8), 100.0, ANY, known=[8])
    assert by_cost is not None and by_name is not None
    assert (by_cost[1], by_name[1]) == (6, 8)


def test_results_that_several_calls_need_are_no_forest() -> None:
    heights = np.array([0, 1, 1])
    assert packed(heights, columns((-1, -1), (0, -1), (0, -1)), (1, 2), 1.0, ANY) is None
    # Two results of one call, both for another one, are two columns that are the same.
    twice = packed(heights[:2], columns((-1, -1), (0, 0)), (1, 2), 1.0, ANY)
    assert twice is not None and twice[0].tolist() == [0, 1]


@pytest.mark.parametrize("width", [1, 3, 4, 16])
@pytest.mark.parametrize("seed", range(6))
def test_as_few_levels_as_there_can_be(seed: int, width: int) -> None:
    """Of calls that are n away from a root, none is made on the last n levels."""
    rng = np.random.default_rng(seed)
    count, roots = 120, int(rng.integers(1, 10))
    # Every call is needed by a later one with a free place, but for the roots.
    parents, places = np.full(count, -1), [2] * count
    for call in range(count - roots - 1, -1, -1):
        free = [later for later in range(call + 1, count) if places[later]]
        parents[call] = rng.choice(free)
        places[parents[call]] -= 1
    children = np.full((2, count), -1)
    heights, depths = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for call in range(count):
        if parents[call] >= 0:
            children[int(children[0, parents[call]] >= 0), parents[call]] = call
            heights[parents[call]] = max(heights[parents[call]], heights[call] + 1)
    for call in range(count - 1, -1, -1):
        depths[call] = 0 if parents[call] < 0 else depths[parents[call]] + 1
    found = packed(heights, list(children), (width,), 1.0, ANY)
    assert found is not None
    levels = found[0]
    assert all(levels[call] < levels[parents[call]] for call in range(count) if parents[call] >= 0)
    assert np.bincount(levels).max() <= width
    assert levels.max() + 1 == max(n - (-int(np.sum(depths >= n)) // width) for n in range(depths.max() + 1))


def test_trees_in_one_loop() -> None:
    rng = np.random.default_rng(0)

    def tree(words: int) -> Any:
        if words == 1:
            return rng.normal(size=4).astype(np.float32)
        left = int(rng.integers(1, words))
        return tree(left), tree(words - left)

    weight = tp.nn.Linear(8, 4)

    class Join(tp.nn.Module):
        def __init__(self) -> None:
            self.weight = weight

        def __call__(self, left: Any, right: Any) -> Any:
            return tp.tanh(self.weight(tp.concatenate([left, right])))

    join = tp.cell(Join(), name="join")

    def model(node: Any) -> Any:
        return join(model(node[0]), model(node[1])) if isinstance(node, tuple) else node

    trees = [tree(int(words)) for words in rng.integers(2, 18, size=8)]
    batched = tp.batch(model, cells={"join": join})
    found, expected = batched(trees), batched.one_by_one(trees)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-5, atol=1e-6)
    # The leaves, which are data, and one loop over all levels.
    assert batched.statistics.dispatches == 2
