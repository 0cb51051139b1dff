"""Observations that are put together of several: as one vector, and as pieces by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Piece(NamedTuple):
    """One array of an observation."""

    name: str
    """Its keys, with dots between them; positions for tuples."""
    keys: tuple[Any, ...]
    shape: tuple[int, ...]
    one_hot: tuple[int, int] | None
    """For a number that counts: the first one, and how many there are. It becomes a vector with a single 1."""

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


def pieces_of(space: Any, keys: tuple[Any, ...] = ()) -> Iterator[Piece]:
    """The arrays of a space of Gymnasium, dictionaries and tuples of spaces taken apart. (A space that has no arrays
    gives a piece whose shape is None.)"""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from pieces_of(part, (*keys, key))
    elif isinstance(space, spaces.Tuple):
        for n, part in enumerate(space.spaces):
            yield from pieces_of(part, (*keys, n))
    elif isinstance(space, spaces.Discrete):
        count = int(space.n)
        yield Piece(".".join(map(str, keys)), keys, (count,), (int(space.start), count))
    else:
        yield Piece(".".join(map(str, keys)), keys, space.shape, None)


def flattened(observations: Any, pieces: Sequence[Piece]) -> Array:
    """Observations of several environments as vectors: (environments, sizes of all pieces together), float32."""
    columns = []
    for piece in pieces:
        found = observations
        for key in piece.keys:
            found = found[key]
        array = np.asarray(found)
        if piece.one_hot is not None:
            first, count = piece.one_hot
            array = np.eye(count, dtype=np.float32)[array - first]
        columns.append(array.reshape(-1, piece.size).astype(np.float32))
    return np.concatenate(columns, axis=1)
