"""Why a schedule is as it is, in rows that a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tempo.graph.node import Node
from tempo.graph.structural import INPUT
from tempo.passes.rolling import Rolled
from tempo.schedule.loops import Schedule
from tempo.schedule.planning import Planned, show_bytes
from tempo.schedule.storage import Storage
from tempo.symbolic import Dim

# Of tensors without names this many are listed in a row.
MOST_NAMES = 4


@dataclass(frozen=True)
class Decision:
    """How many steps of each dim some tensors are computed for at once, and why."""

    tensors: tuple[str, ...]
    at_once: Mapping[str, str]
    reason: str

    @property
    def few(self) -> str:
        """Some of the tensors."""
        return _few(self.tensors)

    @property
    def steps(self) -> str:
        return ", ".join(f"{dim} {size}" for dim, size in self.at_once.items())

    def __str__(self) -> str:
        return f"{self.few}: {self.steps}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Placement:
    """Which tensors are in host memory, and why."""

    tensors: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{_few(self.tensors)}: on the host ({self.reason})"


@dataclass(frozen=True)
class Tiles:
    """How many steps of the ranges of a dim are there at once, and why."""

    dim: str
    steps: int
    reason: str

    def __str__(self) -> str:
        return f"ranges of {self.dim}: {self.steps} steps at once ({self.reason})"


@dataclass(frozen=True)
class Rolls:
    """How many copies of some nodes became one, in a loop over a dim, and the bytes that their operands take a second
    time."""

    dim: str
    copies: int
    nodes: int
    copied: int

    def __str__(self) -> str:
        head = f"{self.dim}: {self.copies} copies of {self.nodes} nodes in a loop"
        return f"{head} (the plan wants it; their operands are copied, {show_bytes(self.copied)})"


@dataclass(frozen=True)
class NotRolled:
    """Why nothing is rolled, although a plan wants it."""

    reason: str

    def __str__(self) -> str:
        return f"nothing is rolled ({self.reason})"


def rolls(found: Sequence[Rolled] | None, storage: Storage) -> tuple[Rolls | NotRolled, ...]:
    """What was rolled; None if there are no loops for it."""
    if not found:
        return (NotRolled("Tempo finds no loops for it" if found is None else "no copy of anything reads another one"),)
    rows = []
    for rolled in found:
        copied = sum(storage.stores[node].bytes for node in rolled.stacked if node in storage.stores)
        rows.append(Rolls(rolled.dim.name, rolled.copies, rolled.nodes, copied))
    return tuple(rows)


def decisions(planned: Planned) -> tuple[Decision | Placement | Tiles, ...]:
    """What was decided, with reasons: how much is computed at once, and what is in host memory. What has no reason of
    its own is there because a plan says so."""
    why = planned.tiled_because or "the plan wants it"
    tiles = (Tiles(name, steps, why) for name, steps in planned.plan.tiles.items())
    return (*_blocks(planned.schedule), *tiles, *_placements(planned.storage, planned.reasons))


def _blocks(schedule: Schedule) -> tuple[Decision, ...]:
    """One row for all tensors with the same blocks for the same reason."""
    rows: dict[tuple[tuple[tuple[str, str], ...], str], list[Node]] = {}
    for node in schedule.places:
        if node.domain and node.op is not INPUT:
            at_once = {d.origin.name: _at_once(node, d, schedule) for d in node.domain}
            reasons = [schedule.reasons.get((node, d.origin), "") for d in node.domain]
            key = tuple(at_once.items()), "; ".join(dict.fromkeys(filter(None, reasons)))
            rows.setdefault(key, []).append(node)
    return tuple(Decision(_names(nodes), dict(at_once), reason) for (at_once, reason), nodes in rows.items())


def _at_once(node: Node, dim: Dim, schedule: Schedule) -> str:
    """How many steps of a dim are computed at once; several numbers where parts of a loop differ."""
    found = []
    for place in schedule.places[node]:
        loops = [number for family, number in place if family is dim.origin]
        if not loops:
            found.append("all")
        elif len(loops) == 1:
            found.append(str(schedule.blocks.get(loops[0], 1)))
        else:
            found.append("1")
    return " or ".join(sorted(set(found)))


def _placements(storage: Storage, reasons: Mapping[str, str]) -> tuple[Placement, ...]:
    """One row for all tensors that are in host memory for the same reason."""
    rows: dict[str, list[str]] = {}
    for node, store in storage.stores.items():
        if store.host:
            home = storage.homes.get(node)
            written = "an input" if home is None else f"written in blocks of {home[0].name}"
            why = reasons.get(store.host, "the plan wants it there")
            rows.setdefault(f"{written}; {why}", []).append(store.host)
    return tuple(Placement(tuple(names), reason) for reason, names in rows.items())


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _names(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Those with names first."""
    return tuple(node.label for node in sorted(nodes, key=lambda node: not node.name))
