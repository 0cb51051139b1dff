"""Numbers that say how many."""

from __future__ import annotations

from typing import Any

import numpy as np

import tempo as tp


def expect_counts(**counts: Any) -> None:
    """Raise an error unless there is at least one of each."""
    for name, count in counts.items():
        if not isinstance(count, int | np.integer) or count < 1:
            raise tp.errors.ProgramError(
                f"{name} is {count!r}",
                places=[("here", tp.errors.user_line())],
                hint=f"{name} is an integer, 1 or more",
            )
