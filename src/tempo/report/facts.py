"""What there is to tell about a compiled program. Text and page are two ways to tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tempo.backends.programs import Programs
from tempo.graph.node import Graph
from tempo.schedule.loops import Schedule
from tempo.schedule.plan import Plan
from tempo.schedule.storage import Storage


@dataclass(frozen=True)
class Facts:
    """A program as it was written, and all that was decided about it."""

    source: Graph
    graph: Graph
    """The program as it was simplified."""
    bounds: Mapping[str, int]
    backend: str
    device: str
    plan: Plan
    schedule: Schedule
    storage: Storage
    programs: Programs | None
    """XLA's, if there are any."""
    kernels: tuple[str, ...]
    """Which loops became kernels of their own, and why others did not."""
    seconds: Mapping[str, float]
    """The time that phases of the compilation took."""
