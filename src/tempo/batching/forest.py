"""Trees given as arrays: levels are found with NumPy, and all of them are one XLA program.

Nodes are ordered by height. The nodes of one height are cut into chunks of one of a few widths; a program has one loop
over chunks for each of these widths, from the widest (there are never more nodes of a height than of the one below) to
the narrowest. How many chunks there are is only known at run time, so that one program does for all forests up to some
size. A chunk gathers the states of its children from an arena, and writes its own as consecutive rows; the first row is
zeros, for children that are not there. The backward pass makes the same loops, backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tempo.errors import InputError, ShapeError

Array = np.ndarray[Any, Any]

WIDTHS = (256, 64, 16, 4)
OVERHEAD = 16
"""What a chunk costs beside its lanes, in lanes."""


@dataclass(frozen=True)
class Forest:
    """Trees as arrays: ``children`` (nodes, arity) has the numbers of every node's children, -1 where there is none;
    ``data`` has arrays with one row per node; ``roots`` are the nodes that are nobody's children."""

    children: Array
    data: Mapping[str, Array]
    roots: Array = field(init=False)
    heights: Array = field(init=False)

    def __post_init__(self) -> None:
        children = self.children
        inner = children[children >= 0]
        if inner.size and inner.max() >= len(children):
            node = int(np.argwhere(children >= len(children))[0, 0])
            raise InputError(f"node {node} has a child {inner.max()}, and there are {len(children)} nodes")
        for name, rows in self.data.items():
            if len(rows) != len(children):
                raise ShapeError(f"{name} has {len(rows)} rows, and there are {len(children)} nodes")
        is_root = np.ones(len(children), bool)
        is_root[inner] = False
        object.__setattr__(self, "roots", np.flatnonzero(is_root))
        object.__setattr__(self, "heights", _heights(children))

    def __len__(self) -> int:
        return len(self.children)

    def __repr__(self) -> str:
        levels = int(self.heights.max()) + 1 if len(self) else 0
        return f"<Forest of {len(self.roots)} trees, {len(self)} nodes on {levels} levels>"


def forest(trees: Iterable[Any] | None = None, *, children: Any, arity: int | None = None, **data: Any) -> Forest:
    """Trees as arrays, from arrays or from data of any kind.

    From arrays: ``tp.forest(children=[[1, 2], [], []], word=[0, 5, 7])`` has, per node, the numbers of its children
    (or an array with a row of them, filled up with -1), and any number of arrays with one row per node.

    From data of any kind: ``tp.forest(trees, children=f, word=g)`` with a function that gives a node's children, and
    one for each array that gives its row. A tree's root comes before its other nodes.

    ``arity`` is how many children there is room for: by default the most that any node has.
    """
    if callable(children):
        if trees is None:
            raise InputError("forest: children is a function, but there are no trees", hint="tp.forest(trees, ...)")
        return _from_nested(trees, children, arity, data)
    if trees is not None:
        raise InputError("forest: trees are given, but children is not a function of a node")
    return Forest(_rows(children, arity), {name: _narrow(np.asarray(rows)) for name, rows in data.items()})


def _from_nested(
    trees: Iterable[Any],
    children: Callable[[Any], Sequence[Any]],
    arity: int | None,
    data: Mapping[str, Callable[[Any], Any]],
) -> Forest:
    nodes: list[Any] = []
    found: list[list[int]] = []
    for tree in trees:
        stack = [(tree, -1)]
        while stack:
            node, parent = stack.pop()
            if parent >= 0:
                found[parent].append(len(nodes))
            nodes.append(node)
            found.append([])
            stack.extend((child, len(nodes) - 1) for child in reversed(children(node)))
    rows = {name: _narrow(np.asarray([of(node) for node in nodes])) for name, of in data.items()}
    return Forest(_rows(found, arity), rows)


def _rows(children: Any, arity: int | None) -> Array:
    """Lists of children, or rows of an array, as rows of ``arity`` numbers."""
    is_array = isinstance(children, np.ndarray)
    most = children.shape[1] if is_array else max((len(row) for row in children), default=0)
    width = max(most, 1) if arity is None else arity
    if width < most:
        raise InputError(f"there are nodes with {most} children, and the forest's arity is {arity}")
    array = np.full((len(children), width), -1, np.int32)
    if is_array:
        array[:, :most] = np.maximum(children, -1)
    else:
        for n, row in enumerate(children):
            array[n, : len(row)] = row
    return array


def _narrow(array: Array) -> Array:
    narrow = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
    return array.astype(narrow.get(array.dtype, array.dtype), copy=False)


def _heights(children: Array) -> Array:
    """How far every node is from the leaves: one more than the highest of its children."""
    heights = np.zeros(len(children), np.int32)
    parents, slots = np.nonzero(children >= 0)
    own = children[parents, slots]
    order = np.argsort(own, kind="stable")
    parents = parents[order]
    first = np.searchsorted(own[order], np.arange(len(children) + 1))
    missing = np.bincount(parents, minlength=len(children))
    ready = np.flatnonzero(missing == 0)
    done, level = len(ready), 0
    while len(ready):
        level += 1
        lengths = first[ready + 1] - first[ready]
        # The positions first[r], first[r] + 1, ... of every node r that is ready.
        starts = np.repeat(first[ready] - np.cumsum(lengths) + lengths, lengths)
        above = parents[starts + np.arange(lengths.sum())]
        np.subtract.at(missing, above, 1)
        ready = np.unique(above[missing[above] == 0])
        heights[ready] = level
        done += len(ready)
    if done < len(children):
        raise InputError(
            f"the children of node {int(np.flatnonzero(missing)[0])} lead in a circle",
            hint="every node must come to an end at leaves",
        )
    return heights


@dataclass(frozen=True)
class Segment:
    """The chunks of one width, in the order in which they are computed."""

    width: int
    nodes: Array
    """(chunks, width): the last of a level's nodes stands for the padding, too."""
    children: Array
    """(chunks, width, arity): rows of the arena."""


@dataclass(frozen=True)
class Layout:
    """A forest in the order of computing: where every node is in the arena."""

    leaves: Array
    segments: tuple[Segment, ...]
    rows: Array
    """Per node its row."""
    size: int
    """How many rows there are."""


def layout(forest: Forest, same: Array | None, room: Callable[[int], int], widest: int = WIDTHS[0]) -> Layout:
    """Cut a forest into chunks, which are not wider than ``widest``. ``same`` says for every leaf, in their order, the
    first one that has the same state, if some have; ``room`` how many rows there are for so many leaves."""
    order = np.argsort(forest.heights, kind="stable").astype(np.int32)
    counts = np.bincount(forest.heights) if len(forest) else np.zeros(1, np.int64)
    ends = np.cumsum(counts)
    rows = np.zeros(len(forest), np.int32)
    all_leaves = order[: ends[0]]
    made = np.ones(len(all_leaves), bool) if same is None else same == np.arange(len(same))
    positions = np.cumsum(made)
    rows[all_leaves] = positions if same is None else positions[same]
    leaves = room(int(np.count_nonzero(made)))
    widths = [_width(int(count), widest) for count in counts[1:]]
    for n in range(len(widths) - 2, -1, -1):  # where a node may have many parents, levels can grow
        widths[n] = max(widths[n], widths[n + 1])
    chunks: dict[int, list[Array]] = {width: [] for width in WIDTHS}
    position = 1 + leaves
    for count, end, width in zip(counts[1:], ends[1:], widths, strict=True):
        nodes = order[end - count : end]
        rows[nodes] = position + np.arange(count)
        whole = -(-int(count) // width) * width
        chunks[width].append(np.concatenate([nodes, np.full(whole - count, nodes[-1], np.int32)]))
        position += whole
    segments = []
    for width, found in chunks.items():
        nodes = np.concatenate(found).reshape(-1, width) if found else np.zeros((0, width), np.int32)
        children = forest.children[nodes] if len(forest) else np.zeros((0, width, 1), np.int32)
        segments.append(Segment(width, nodes, np.where(children >= 0, rows[children] if len(rows) else 0, 0)))
    return Layout(all_leaves[made], tuple(segments), rows, position)


def _width(count: int, widest: int) -> int:
    """The width of chunks with which so many nodes cost the least."""
    fits = [width for width in WIDTHS if width <= widest] or WIDTHS[-1:]
    return min(fits, key=lambda width: (-(-count // width) * (width + OVERHEAD), -width))
