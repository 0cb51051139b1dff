"""Numbers that are the same for a tensor of the program and for the statements that compute it.

Passes make new nodes. What a user has named keeps its name; of the rest, what is the same operation on the same line of
the user's program is taken to be the same.
"""

from __future__ import annotations

from tempo.graph.node import Node


class Marks:
    """Numbers by name, or by line and operation."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def of(self, node: Node) -> int:
        return self._numbers.setdefault(node.name or (node.source, node.op.name), len(self._numbers))
