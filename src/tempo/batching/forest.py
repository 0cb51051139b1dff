"""Trees given as arrays: levels are found with NumPy, and all of them are one XLA program.

Nodes are ordered by height. The nodes of one height are cut into chunks of one of a few widths; a program has one loop
over chunks for each of these widths, from the widest (there are never more nodes of a height than of the one below) to
the narrowest. On a CPU, where lanes of padding take their time, nodes may be on other levels than their heights, so
that each fills a chunk (``packing.py``). How many chunks there are is only known at run time, so that one program does
for all forests up to some size; on a GPU, they are filled up to a number that is known before (``fold.py``). A chunk
gathers the states of its children from an arena, and writes its own as consecutive rows; the first row is zeros, for
children that are not there. The backward pass makes the same loops, backwards.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from tempo.batching.columns import fitted, integers
from tempo.batching.packing import packed
from tempo.batching.trace import can_be_data, narrowed
from tempo.errors import DtypeError, InputError, ShapeError

Array = np.ndarray[Any, Any]

GIVEN = ("children", "present", "state")
"""What cells are given beside a forest's arrays, by these names."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees as arrays: ``children`` (nodes, arity) has the numbers of every node's children, -1 where there is none;
    ``data`` has arrays with one row per node; ``roots`` are the nodes that are nobody's children.

    Its arrays are its own, and cannot be written to: whoever folds a forest again finds what was planned for it."""

    children: Array
    data: Mapping[str, Array]
    roots: Array = field(init=False)
    heights: Array = field(init=False)
    order: Array = field(init=False)
    """All nodes, by height, and by number where that is the same."""
    sizes: Array = field(init=False)
    """How many nodes there are of every height."""

    def __post_init__(self) -> None:
        children = self.children
        inner = children[children >= 0]
        for name, rows in self.data.items():
            if name in GIVEN:
                raise InputError(
                    f"forest: no array can be named {name}", hint="that is what cells are given of their own nodes"
                )
            if len(rows) != len(children):
                raise ShapeError(f"{name} has {len(rows)} rows, and there are {len(children)} nodes")
        is_root = np.ones(len(children), bool)
        is_root[inner] = False
        object.__setattr__(self, "roots", np.flatnonzero(is_root))
        levels = _levels(children)
        order, sizes = np.concatenate(levels), np.array([len(nodes) for nodes in levels])
        heights = np.empty(len(children), np.int32)
        heights[order] = np.repeat(np.arange(len(levels)), sizes)
        object.__setattr__(self, "heights", heights)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "children", _fixed(children))
        object.__setattr__(self, "data", MappingProxyType({name: _fixed(rows) for name, rows in self.data.items()}))

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
    return Forest(_rows(children, arity), {name: _column(name, rows) for name, rows in data.items()})


def _from_nested(
    trees: Iterable[Any],
    children: Callable[[Any], Sequence[Any]],
    arity: int | None,
    data: Mapping[str, Callable[[Any], Any]],
) -> Forest:
    for name, of in data.items():
        if not callable(of):
            raise InputError(
                f"forest: {name} is {reprlib.repr(of)}, not a function of a node",
                hint="where trees are given, every array is: word=lambda node: node.word",
            )
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
            own = children(node)
            if not isinstance(own, Iterable):
                raise InputError(
                    f"forest: the children of {reprlib.repr(node)} are {own!r}", hint="a list of nodes: of leaves, []"
                )
            stack.extend((child, len(nodes) - 1) for child in reversed(list(own)))
    rows = {name: _column(name, [of(node) for node in nodes]) for name, of in data.items()}
    return Forest(_rows(found, arity), rows)


def _rows(children: Any, arity: int | None) -> Array:
    """Lists of children, or rows of an array, as rows of ``arity`` numbers."""
    if arity is not None and (not isinstance(arity, int | np.integer) or arity < 0):
        raise InputError(f"forest: the arity is {arity!r}", hint="how many children there is room for: a number")
    if isinstance(children, np.ndarray):
        if children.ndim != 2 or (children.size and children.dtype.kind not in "iu"):
            raise InputError(
                f"forest: children is an array of shape {children.shape}, {children.dtype}",
                hint="a row of numbers for every node, (nodes, arity), filled up with -1; or a list of lists",
            )
        numbers, lengths = children.reshape(-1), np.full(len(children), children.shape[1])
    else:
        rows = [_numbers(node, row) for node, row in enumerate(_listed(children))]
        numbers = integers([number for row in rows for number in row])
        lengths = np.array([len(row) for row in rows], np.int64)
    most = int(lengths.max(initial=0))
    width = max(most, 1) if arity is None else int(arity)
    if width < most:
        raise InputError(f"there are nodes with {most} children, and the forest's arity is {arity}")
    if numbers.size and numbers.max() >= len(lengths):
        node = int(np.repeat(np.arange(len(lengths)), lengths)[np.argmax(numbers)])
        raise InputError(f"node {node} has a child {numbers.max()}, and there are {len(lengths)} nodes")
    array = np.full((len(lengths), width), -1, np.int32)
    array[np.arange(width) < lengths[:, None]] = numbers  # what is no number of a node is negative
    return np.maximum(array, -1)


def _listed(children: Any) -> list[Any]:
    if not isinstance(children, Iterable):
        raise InputError(
            f"forest: children is {children!r}", hint="a list of lists: for every node the numbers of its children"
        )
    return list(children)


def _numbers(node: int, row: Any) -> list[int]:
    """The children of a node."""
    try:
        return [operator.index(number) for number in row]
    except TypeError:
        raise InputError(
            f"forest: the children of node {node} are {reprlib.repr(row)}",
            hint="a list of the numbers of nodes: of a leaf, []",
        ) from None


def _fixed(array: Array) -> Array:
    found = array.copy()
    found.flags.writeable = False
    return found


def _column(name: str, rows: Any) -> Array:
    """An array of a forest, of the types that cells compute with and in this machine's order of bytes."""
    try:
        array = np.asarray(rows)
    except ValueError:
        raise ShapeError(
            f"forest: the rows of {name} have different shapes", hint="fill them up, or give several arrays"
        ) from None
    if not array.ndim:
        raise ShapeError(f"forest: {name} is {reprlib.repr(rows)}", hint="an array has a row for every node")
    if not can_be_data(array.dtype):
        raise DtypeError(f"forest: {name} has dtype {array.dtype}", hint="arrays have numbers, or truth values")
    return fitted(array, narrowed(array.dtype))


def _levels(children: Array) -> list[Array]:
    """The nodes of every height: one more than the highest of a node's children. Of no nodes there is one height."""
    parents, slots = np.nonzero(children >= 0)
    own = children[parents, slots]
    parents = parents[np.argsort(own, kind="stable")]
    first = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=len(children)))])
    missing = np.bincount(parents, minlength=len(children))
    levels = [np.flatnonzero(missing == 0)]
    while len(ready := levels[-1]):
        lengths = first[ready + 1] - first[ready]
        # The positions first[r], first[r] + 1, ... of every node r that is ready.
        starts = np.repeat(first[ready] - np.cumsum(lengths) + lengths, lengths)
        above = parents[starts + np.arange(lengths.sum())]
        np.subtract.at(missing, above, 1)
        levels.append(np.unique(above[missing[above] == 0]))
    if sum(map(len, levels)) < len(children):
        raise InputError(
            f"the children of node {int(np.flatnonzero(missing)[0])} lead in a circle",
            hint="every node must come to an end at leaves",
        )
    return levels[: max(len(levels) - 1, 1)]


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


def layout(
    forest: Forest,
    same: Array | None,
    room: Callable[[int], int],
    allowed: tuple[int, ...],
    beside: float,
    known: Container[int] = (),
) -> Layout:
    """Cut a forest into chunks of the widths that are ``allowed``, widest first; a chunk costs as much as so many
    lanes ``beside`` its own, and some widths are ``known`` to a program already. ``same`` says for every leaf, in their
    order, the first one that has the same state, if some have; ``room`` how many rows there are for so many leaves."""
    leaves, order = forest.order[: forest.sizes[0]], forest.order[forest.sizes[0] :]
    rows = np.zeros(len(forest) + 1, np.int32)  # the last for no child, which is node -1
    if same is None:
        rows[leaves] = np.arange(1, len(leaves) + 1)
    else:
        made = same == np.arange(len(same))
        rows[leaves] = np.cumsum(made)[same]
        leaves = leaves[made]
    first = 1 + room(len(leaves))

    counts = forest.sizes[1:]
    widths = np.array([_width(count, allowed, beside) for count in counts.tolist()], np.int64)
    packing = _packed(forest, order, widths, allowed, beside, known)
    if packing is not None:
        levels, width = packing
        order, counts = order[np.argsort(levels, kind="stable")], np.bincount(levels)
        widths = np.full(len(counts), width)
    widths = np.maximum.accumulate(widths[::-1])[::-1]  # where a node may have many parents, levels can grow
    lanes = -(-counts // widths) * widths
    times = np.ones(len(order), np.int32)
    times[np.cumsum(counts) - 1] += lanes - counts  # a level's last node is its padding, too
    ends = np.cumsum(times)
    rows[order] = ends + (first - times)
    nodes = np.repeat(order, times)
    children = rows.take(forest.children.take(nodes, 0))
    sizes = dict.fromkeys(allowed, 0)
    for width, size in zip(widths.tolist(), lanes.tolist(), strict=True):
        sizes[width] += size
    segments, start = [], 0
    for width, size in sizes.items():
        end = start + size
        own = nodes[start:end].reshape(-1, width)
        segments.append(Segment(width, own, children[start:end].reshape(*own.shape, forest.children.shape[1])))
        start = end
    return Layout(leaves, tuple(segments), rows[:-1], first + len(nodes))


def _packed(
    forest: Forest, order: Array, widths: Array, allowed: tuple[int, ...], beside: float, known: Container[int]
) -> tuple[Array, int] | None:
    """Other levels for nodes that are ordered by height, and the width of all chunks; None if to have one of these
    ``widths`` for each height is best, as on a GPU, where it is the number of levels that counts."""
    if jax.default_backend() != "cpu" or not len(order):
        return None
    number = np.full(len(forest) + 1, -1, np.int32)  # the last for no child
    number[order] = np.arange(len(order))
    counts = forest.sizes[1:]
    heights = np.repeat(np.arange(len(counts)), counts)
    by_height = float(np.sum(-(-counts // widths) * (widths + beside)))
    return packed(heights, list(number[forest.children[order]].T), allowed, beside, by_height, known)


@cache
def _width(count: int, allowed: tuple[int, ...], beside: float) -> int:
    """The width of chunks with which so many nodes cost the least."""
    return min(allowed, key=lambda width: (-(-count // width) * (width + beside), -width))
