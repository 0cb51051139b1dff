"""Keys of what cells draw: another one for every call, and the same whenever a model is run with the same seed.

A key depends on the seed, on the instance, and on how many calls that draw it has made before. Where functions run side
by side (``tp.parallel``), each counts its own: in which order they are run is not for the model to say.
"""

from __future__ import annotations

Key = tuple[int, int]
"""The two words that key a generator."""

_WORD, _DOUBLE = 2**32 - 1, 2**64 - 1
_STEP = 0x9E3779B97F4A7C15


class Draws:
    """The keys of one instance, or of one of some functions side by side."""

    # No __init__, and nothing computed before a cell draws: most models have none that does, but many functions.
    outer: Draws | None = None
    place: tuple[int, int]
    """In ``outer``, which functions it is one of, and which one; or the seed, and the number of the instance."""
    forks = 0
    calls = 0
    root: int | None = None

    def fork(self) -> int:
        """That functions begin here which run side by side: their number."""
        self.forks += 1
        return self.forks

    def inside(self, fork: int, n: int) -> Draws:
        """The keys of the nth of some functions."""
        found = Draws()
        found.outer, found.place = self, (fork, n)
        return found

    def next(self) -> Key:
        """The key of the next call."""
        self.calls += 1
        found = _mixed(self._root(), self.calls)
        return found & _WORD, found >> 32

    def _root(self) -> int:
        if self.root is None:
            start = 0 if self.outer is None else self.outer._root()
            self.root = _mixed(_mixed(start, self.place[0]), self.place[1])
        return self.root


def of_instance(seed: int, instance: int) -> Draws:
    found = Draws()
    found.place = int(seed), instance  # NumPy's integers would overflow
    return found


def _mixed(key: int, number: int) -> int:
    """Bits that look like those of no other pair of numbers (the finaliser of SplitMix64)."""
    x = (key + (number + 1) * _STEP) & _DOUBLE
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _DOUBLE
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _DOUBLE
    return x ^ (x >> 31)
