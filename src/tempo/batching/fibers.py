"""Instances that wait for values: each runs in a thread of its own, one at a time.

An instance runs until it reads a value that is not computed; then the next one runs. When all that are not done wait,
everything they have recorded is computed together, and they go on. (Threads, since a model is an ordinary function: it
cannot be left in the middle in any other way that Python has. As only one runs at any time, and always in the same
order, results do not depend on them.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo.batching.recording import Recorder, Value, current, use

if TYPE_CHECKING:
    from tempo.batching.batched import Errors


class _Cancelled(BaseException):
    """Ends a waiting instance after an error in another."""


class _Fiber:
    """One function that runs, or waits: for a value, or for other fibers."""

    def __init__(self, fibers: Fibers, function: Callable[[], Any], parent: _Fiber | None = None) -> None:
        self.fibers = fibers
        self.function = function
        self.parent = parent
        self.waits_for: Value | None = None
        self.found: np.ndarray[Any, Any] | None = None
        self.children = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.go = threading.Lock()
        self.go.acquire()
        self.thread = threading.Thread(target=self._body, daemon=True)

    def _body(self) -> None:
        self.go.acquire()
        use(self.fibers.recorder)
        try:
            if not self.fibers.cancelled:
                self.result = self.function()
        except BaseException as error:
            self.error = error
        finally:
            self.done = True
            use(None)
            self.fibers.back.release()

    def pause(self) -> None:
        """Let others run, until it is this one's turn again."""
        self.fibers.back.release()
        self.go.acquire()
        if self.fibers.cancelled:
            raise _Cancelled


class Fibers:
    """The instances of one mini-batch; ``flush`` computes everything that is recorded, ``fetch`` gives values then."""

    def __init__(
        self,
        recorder: Recorder,
        flush: Callable[[], None],
        fetch: Callable[[Sequence[Value]], list[np.ndarray[Any, Any]]],
    ) -> None:
        self.recorder = recorder
        self.flush = flush
        self.fetch = fetch
        self.back = threading.Lock()
        self.back.acquire()
        self.cancelled = False
        self.all: list[_Fiber] = []
        self.ready: deque[_Fiber] = deque()
        self.running: _Fiber | None = None

    def run(self, model: Callable[[Any], Any], instances: Sequence[Any], errors: Errors) -> list[Any]:
        """The model's results for all instances."""
        from tempo.batching.batched import run_one

        self.recorder.fibers = self
        fibers = [self._start(partial(run_one, model, instance, n, errors)) for n, instance in enumerate(instances)]
        try:
            self._rounds()
        finally:
            self._end()
        return [fiber.result for fiber in fibers]

    def read(self, value: Value) -> np.ndarray[Any, Any]:
        """A value, which the running fiber waits for."""
        fiber = self.running
        assert fiber is not None
        fiber.waits_for = value
        fiber.pause()
        assert fiber.found is not None
        return fiber.found

    def parallel(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of some functions, which run side by side: where all wait, they wait for the same launch."""
        parent = self.running
        assert parent is not None
        children = [self._start(function, parent) for function in functions]
        parent.children = len(children)
        if children:
            parent.pause()
        for child in children:
            if child.error is not None:
                raise child.error
        return [child.result for child in children]

    def _start(self, function: Callable[[], Any], parent: _Fiber | None = None) -> _Fiber:
        fiber = _Fiber(self, function, parent)
        fiber.thread.start()
        self.all.append(fiber)
        self.ready.append(fiber)
        return fiber

    def _rounds(self) -> None:
        while True:
            waiting: list[_Fiber] = []
            while self.ready:
                fiber = self.ready.popleft()
                self._switch(fiber)
                if fiber.error is not None and fiber.parent is None:
                    raise fiber.error
                if fiber.done and fiber.parent is not None:
                    fiber.parent.children -= 1
                    if not fiber.parent.children:
                        self.ready.append(fiber.parent)
                elif fiber.waits_for is not None:
                    waiting.append(fiber)
            if not waiting:
                return
            self.flush()
            values = [fiber.waits_for for fiber in waiting if fiber.waits_for is not None]
            for fiber, found in zip(waiting, self.fetch(values), strict=True):
                fiber.waits_for, fiber.found = None, found
            self.ready.extend(waiting)

    def _switch(self, fiber: _Fiber) -> None:
        self.running = fiber
        fiber.go.release()
        self.back.acquire()
        self.running = None

    def _end(self) -> None:
        """Let no thread stay behind."""
        self.cancelled = True
        for fiber in self.all:
            while not fiber.done:
                self._switch(fiber)
            fiber.thread.join()
        self.recorder.fibers = None


def parallel(*functions: Callable[[], Any]) -> list[Any]:
    """The results of functions that do not need each other's: ``a, b = tp.parallel(lambda: f(x), lambda: f(y))``.

    Calls of cells need no declaration, since who needs whom is seen from their arguments. But where a model reads
    values, an instance waits; its parallel functions then wait together.
    """
    recorder = current()
    fibers = getattr(recorder, "fibers", None)
    if fibers is None:
        return [function() for function in functions]
    found: list[Any] = fibers.parallel(functions)
    return found
