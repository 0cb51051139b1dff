"""What the tests of schedules share: text that does not depend on how many nodes other tests have made."""

import re
from collections.abc import Sequence

from tempo.schedule.looptree import Tree, show


def renumbered(text: str) -> str:
    """Nodes without a name are numbered per operation, in the order in which they appear."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}

    def name(match: re.Match[str]) -> str:
        if match[0] not in names:
            counts[match[1]] = counts.get(match[1], 0) + 1
            names[match[0]] = f"{match[1]}_{counts[match[1]]}"
        return names[match[0]]

    return re.sub(r"\b([a-z_]+)_\d+\b", name, text)


def text(trees: Sequence[Tree]) -> str:
    return renumbered(show(trees))


def outline(trees: Sequence[Tree], *labels: str) -> str:
    """The loops of a tree, and of what they hold the nodes with these labels or operations."""
    lines = show(trees).splitlines()
    heads = ("for ", "at ", *(f"{label} =" for label in labels), *(f"{label}_" for label in labels))
    return renumbered("\n".join(line for line in lines if line.lstrip().startswith(heads)))
