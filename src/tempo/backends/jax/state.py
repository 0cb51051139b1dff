"""What a program has computed so far, while it is traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tempo.graph.node import Node
from tempo.schedule.looptree import BlockSteps
from tempo.schedule.storage import Store
from tempo.symbolic import Dim

Array = Any

State = dict[Any, Any]
"""Stores by node, the latest values beside them, and how many steps dims make that stop on data, by bound."""

UNSTORED = "unstored"
"""The key under which a state has the nodes that the innermost loop around does not store."""


@dataclass(frozen=True)
class Fresh:
    """The key under which a state has what an iteration has just put into a node's store."""

    node: Node


@dataclass(frozen=True)
class Previous:
    """The key under which a state has what earlier iterations computed of a node: a list of values."""

    node: Node


@dataclass(frozen=True)
class Elsewhere:
    """The key under which a state has what a node's store has at other steps of loops around than those they are at: by
    the node's dim and how many steps back, arrays without that dim. The innermost loop around does not change them."""

    node: Node


@dataclass(frozen=True)
class Recent:
    """The key under which a state has a block that was just put into a short circle, behind the steps before it."""

    node: Node


@dataclass(frozen=True)
class Beside:
    """A block of a node behind the steps before it, laid out like a ``store`` of them, at some steps of the loop over a
    ``family`` of dims."""

    array: Array
    store: Store
    family: Dim
    at: BlockSteps
    level: bool
    """Whether its steps have the same numbers as those of the loop."""


@dataclass(frozen=True)
class Computed:
    """A value without the axes of loops, and the steps at which it was computed: those given, or ``back`` steps of
    ``family`` before."""

    array: Array
    at: Mapping[Dim, Any]
    family: Dim | None = None
    back: int = 0
