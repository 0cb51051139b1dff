"""A progress bar for a run: iterations of the outermost loops, how fast they go, and the latest numbers emitted."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from tempo.given import Record


class ProgressBar:
    """Shown from the first ``with`` block until ``stop``, or until an exception leaves such a block."""

    def __init__(self, name: str, total: int) -> None:
        self.latest: dict[str, str] = {}
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[latest]}"),
            console=Console(),
        )
        self.task = self.progress.add_task(escape(name), total=total, latest="")

    def __enter__(self) -> None:
        self.progress.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.stop()

    def update(self, done: int, records: Iterable[tuple[str, Record]]) -> None:
        """Show how many iterations are over, and the last single number of every name."""
        for name, record in dict(records).items():
            if record.value.size == 1:
                value = record.value.item()
                self.latest[name] = f"{value:.4g}" if isinstance(value, float) else str(value)
        shown = " ".join(f"{name}={value}" for name, value in self.latest.items())
        self.progress.update(self.task, completed=done, latest=escape(shown))

    def stop(self) -> None:
        self.progress.stop()


class _Rate(ProgressColumn):
    """Iterations per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        shown = "" if not speed else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"
        return Text(shown, style="progress.data.speed")
