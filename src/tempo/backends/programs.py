"""What XLA made of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Programs:
    """How many XLA programs there are, and what XLA says they take: bytes of inputs, outputs and temporaries."""

    count: int = 0
    """Zero where nobody knows: they are compiled when they run."""
    memory: Mapping[str, int] = field(default_factory=dict)
    by_python: bool = False
    """Whether Python runs one after the other."""

    def __str__(self) -> str:
        if not self.count:
            return "one for every part between host calls and values that are handed out or fetched, compiled when run"
        count = "1 program" if self.count == 1 else f"{self.count} programs"
        in_parts = ", run one after the other" if self.by_python and self.count > 1 else ""
        return f"{count}{in_parts}, bytes: {', '.join(f'{name} {size:,}' for name, size in self.memory.items())}"
