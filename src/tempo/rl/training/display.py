"""What a person sees of a training: a live line in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Where nothing can be overwritten, lines come this many seconds apart.
LINES_APART = 10.0


class Display(Protocol):
    """Shows the newest row of the log."""

    def show(self, row: Mapping[str, float]) -> None: ...

    def stop(self) -> None: ...


def display(name: str, iterations: int, done: int) -> Display:
    """What suits the place where messages go."""
    console = Console(stderr=True)
    return LiveLine(console, name, iterations, done) if console.is_terminal else Lines(console, iterations)


class LiveLine:
    """A bar with the latest numbers."""

    def __init__(self, console: Console, name: str, iterations: int, done: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, TextColumn("{task.fields[latest]}"), console=console)
        self.task = self.progress.add_task(name, total=iterations, completed=done, latest="compiling")
        self.recent = Recent()
        self.progress.start()

    def show(self, row: Mapping[str, float]) -> None:
        self.progress.update(self.task, completed=row["iteration"] + 1, latest=self.recent.text(row))

    def stop(self) -> None:
        self.progress.stop()


class Lines:
    """A line every few seconds, and the last one."""

    def __init__(self, console: Console, iterations: int) -> None:
        self.console = console
        self.iterations = iterations
        self.recent = Recent()
        self.last = 0.0
        self.unseen = ""

    def show(self, row: Mapping[str, float]) -> None:
        self.unseen = f"iteration {row['iteration'] + 1:.0f} of {self.iterations}: {self.recent.text(row)}"
        if time.monotonic() - self.last >= LINES_APART:
            self.stop()

    def stop(self) -> None:
        if self.unseen:
            self.console.print(self.unseen, highlight=False, soft_wrap=True)
            self.last, self.unseen = time.monotonic(), ""


class Recent:
    """The latest numbers as text. Iterations in which no episode ends show the return of those before."""

    def __init__(self) -> None:
        self.episode_return: float | None = None

    def text(self, row: Mapping[str, float]) -> str:
        value = row.get("episode_return", float("nan"))
        if value == value:
            self.episode_return = value
        shown = "-" if self.episode_return is None else f"{self.episode_return:.1f}"
        loss = f", loss {row['loss']:.4g}" if "loss" in row else ""
        return f"return {shown}{loss}, {row['steps_per_second']:,.0f} steps/s"
