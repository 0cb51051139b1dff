"""Calls in processes of their own, which may crash or hang without taking the others along."""

from __future__ import annotations

import faulthandler
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

SHOWING_SECONDS = 5.0


@dataclass(frozen=True)
class Lost:
    """Why a call gave no result: its process died, or it took too long."""

    reason: str


def calls(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    jobs: int,
    seconds: float,
    settings: Mapping[str, str] | None = None,
) -> Iterator[tuple[Task, Result | Lost]]:
    """``function(task)`` for all tasks, several at the same time, as they are done; each may take so many ``seconds``.

    ``settings`` are environment variables that the processes get, where they are not set already.
    """
    waiting = iter(tasks)
    busy: list[_Worker[Task, Result]] = []
    idle: list[_Worker[Task, Result]] = []
    try:
        while True:
            for task in itertools.islice(waiting, jobs - len(busy)):
                worker = idle.pop() if idle else _Worker(function, settings or {})
                worker.start(task, seconds)
                busy.append(worker)
            if not busy:
                return
            earliest = min(worker.deadline for worker in busy)
            ready = wait([worker.connection for worker in busy], max(0.0, earliest - time.monotonic()))
            for worker in list(busy):
                if worker.connection in ready:
                    result = worker.result()
                elif time.monotonic() > worker.deadline:
                    worker.show()
                    result = Lost(f"it took more than {seconds:g} seconds")
                else:
                    continue
                busy.remove(worker)
                if isinstance(result, Lost):
                    worker.end()
                else:
                    idle.append(worker)
                yield worker.task, result
    finally:
        for worker in (*busy, *idle):
            worker.end()


class _Worker(Generic[Task, Result]):
    """A process that makes one call after the other."""

    task: Task
    deadline: float

    def __init__(self, function: Callable[[Task], Result], settings: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(function, theirs, dict(settings)), daemon=True)
        self.process.start()
        # With no other copy of it, the connection ends when the process does.
        theirs.close()

    def start(self, task: Task, seconds: float) -> None:
        self.task = task
        self.deadline = time.monotonic() + seconds
        self.connection.send(task)

    def result(self) -> Result | Lost:
        try:
            result: Result = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Lost(f"its process died ({_exit(self.process.exitcode)})")
        return result

    def show(self) -> None:
        """Let the process end with a traceback of all its threads: what does it hang in?"""
        os.kill(self.process.pid or 0, signal.SIGABRT)
        self.process.join(SHOWING_SECONDS)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(function: Callable[[Any], Any], connection: Connection, settings: dict[str, str]) -> None:
    faulthandler.enable()
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(function(task))


def _exit(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
