"""Instances that wait for values: each runs on a stack of its own, one at a time.

An instance runs until it reads a value that is not computed; then the next one runs. When all that are not done wait,
all values that they wait for are computed together, and they go on. As only one runs at any time, and always in the
same order, results do not depend on it.

A model is an ordinary function, so it can only be left in the middle if it has a stack of its own: a greenlet. (Threads
can do the same; with them, 64 DRNNs took a second to change from one to the next.) All are changed to and from in one
place, the greenlet that runs the mini-batch, so that none has another's stack below its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import greenlet
import numpy as np

from tempo.batching.draws import Draws, of_instance
from tempo.batching.recording import Recorder, current, use
from tempo.batching.value import Value
from tempo.errors import InputError, ProgramError, user_line

if TYPE_CHECKING:
    from tempo.batching.batched import Errors


class _Cancelled(BaseException):
    """Ends a waiting instance after an error in another."""


class _Stack(greenlet.greenlet):  # type: ignore[misc, unused-ignore]
    """A stack for one fiber after another: most of what one costs is its making, 11 us, against 0.6 us for a function
    on one that is there."""

    fiber: _Fiber | None = None
    """Whose turn it is next: nothing of a fiber may stay with a stack that waits for another."""

    def run(self, _: None) -> None:
        while True:
            fiber, self.fiber = self.fiber, None
            assert fiber is not None
            try:
                fiber.result = fiber.function()
            except BaseException as error:
                fiber.error = error
            hub, fiber = fiber.fibers.hub, None
            hub.switch(True)

    def finish(self) -> None:
        """End it, while it waits for another fiber. It goes on with its parent, by default the one that made it."""
        self.parent = greenlet.getcurrent()
        self.throw()


MOST_IDLE = 1024
"""How many stacks are kept: each has a piece of memory for Python's frames, 16 KB."""


class _Idle(threading.local):
    def __init__(self) -> None:
        self.stacks: list[_Stack] = []


_idle = _Idle()
"""This thread's stacks that nothing runs on."""


def _leave_none_behind() -> None:
    """The stacks of a thread cannot be ended by others: those of one that may end are, with every mini-batch."""
    if threading.current_thread() is not threading.main_thread():
        while _idle.stacks:
            _idle.stacks.pop().finish()


class _Join:
    """Where a fiber runs functions side by side."""

    __slots__ = ("draws", "fiber", "fork", "found", "functions", "left", "started", "waiting")

    def __init__(self, fiber: _Fiber, functions: Sequence[Callable[[], Any]], draws: Draws | None) -> None:
        self.fiber = fiber
        self.functions = functions
        self.draws = draws
        self.fork = 0 if draws is None else draws.fork()
        self.started = 0
        """How many of them."""
        self.found: list[Any] = [None] * len(functions)
        """The results, or fibers that have them."""
        self.left = 0
        """How many fibers of it are not done."""
        self.waiting = False


class _Fiber:
    """One function that runs, or waits: for a value, or for other fibers."""

    __slots__ = ("context", "draws", "error", "fibers", "function", "instance", "join", "joins", "result", "stack")

    def __init__(
        self,
        fibers: Fibers,
        function: Callable[[], Any],
        instance: int,
        draws: Draws | None,
        join: _Join | None = None,
    ) -> None:
        self.fibers = fibers
        self.function = function
        self.instance = instance
        self.context = copy_context()
        """The values of context variables: those that whoever starts it has."""
        self.draws = draws
        """The keys of what it draws next."""
        self.join = join
        self.joins: list[_Join] = []
        """Those that it is inside of, and that have functions that are not started."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.stack: _Stack | None = None


class Fibers:
    """The instances of one mini-batch; ``flush`` computes values, ``fetch`` gives them then. What is
    computed for the instances in ``faults`` means nothing: whoever reads it gets an error instead."""

    def __init__(
        self,
        recorder: Recorder,
        flush: Callable[[Sequence[Value]], None],
        fetch: Callable[[Sequence[Value]], list[np.ndarray[Any, Any]]],
        faults: Mapping[int, InputError],
    ) -> None:
        self.recorder = recorder
        self.flush = flush
        self.fetch = fetch
        self.faults = faults
        self.hub = greenlet.getcurrent()
        self.cancelled = False
        self.ready: deque[tuple[_Fiber, Any]] = deque()
        """Those that can go on, each with the value that it has waited for, or the error that it gets in its place."""
        self.waiting: list[_Fiber] = []
        self.values: list[Value] = []
        """What they wait for."""
        self.running: _Fiber | None = None
        self.begun: dict[_Fiber, None] = {}
        """Those that have a stack."""

    def run(self, model: Callable[[Any], Any], instances: Sequence[Any], errors: Errors) -> list[Any]:
        """The model's results for all instances."""
        from tempo.batching.batched import run_one

        outer = current()
        use(self.recorder)
        self.recorder.fibers = self
        seed = self.recorder.seed
        fibers = []
        for n, instance in enumerate(instances):
            draws = None if seed is None else of_instance(seed, n)
            fibers.append(_Fiber(self, partial(run_one, model, instance, n, errors), n, draws))
        self.ready.extend([(fiber, None) for fiber in fibers])
        try:
            self._go_on()
            while self.waiting:
                waiting, values = self.waiting, self.values
                self.waiting, self.values = [], []
                self.flush(values)
                found: list[Any] = self.fetch(values)
                if self.faults:
                    found = [self.faults.get(f.instance, array) for f, array in zip(waiting, found, strict=True)]
                self.ready.extend(zip(waiting, found, strict=True))
                self._go_on()
        finally:
            self._end()
            _leave_none_behind()
            self.recorder.close()
            use(outer)
        return [fiber.result for fiber in fibers]

    def read(self, value: Value) -> np.ndarray[Any, Any]:
        """A value, which the running fiber waits for."""
        fiber = self.running
        assert fiber is not None
        self.waiting.append(fiber)
        self.values.append(value)
        fiber.draws = self.recorder.draws
        if fiber.joins:
            self._start_others(fiber)
        inner = current()
        if inner is not self.recorder:
            return self._read_inside(fiber, inner)
        found: np.ndarray[Any, Any] = self.hub.switch()
        return found

    def _read_inside(self, fiber: _Fiber, inner: Any) -> np.ndarray[Any, Any]:
        """The same from a mini-batch that is computed inside of this one."""
        if greenlet.getcurrent() is not fiber.stack:
            # One of its own fibers, and the other ones would not know that this one waits for somebody else.
            self.waiting.pop()
            raise ProgramError(
                f"{self.values.pop()!r}, of another mini-batch, is read in one inside of it that waits for values, too",
                places=[("here", user_line())],
                hint="read it before: value = float(value)",
            )
        use(self.recorder)
        try:
            found: np.ndarray[Any, Any] = self.hub.switch()
        finally:
            use(inner)
        return found

    def _start_others(self, fiber: _Fiber) -> None:
        """What could have run behind a fiber has to wait no longer than it."""
        for join in fiber.joins:
            for n in range(join.started, len(join.functions)):
                draws = None if join.draws is None else join.draws.inside(join.fork, n)
                join.found[n] = other = _Fiber(self, join.functions[n], fiber.instance, draws, join)
                self.ready.append((other, None))
            join.left += len(join.functions) - join.started
            join.started = len(join.functions)
        fiber.joins.clear()

    def parallel(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of some functions, which run side by side: where all wait, they wait for the same launch.

        They run one after another as long as none waits; when one does, those behind it are started, each on a stack
        of its own. Most need none: 64 DRNNs with 4,886 pairs make 1,064 stacks."""
        own, recorder = self.running, self.recorder
        assert own is not None
        draws = recorder.draws
        join = _Join(own, functions, draws)
        joins = own.joins
        joins.append(join)
        errors: list[tuple[int, BaseException]] = []
        # Here and not all at once: it may be that others have started those behind.
        while (n := join.started) < len(functions):
            join.started = n + 1
            if draws is not None:
                recorder.draws = draws.inside(join.fork, n)
            try:
                join.found[n] = functions[n]()
            except Exception as raised:
                errors.append((n, raised))
        recorder.draws = own.draws = draws
        if joins and joins[-1] is join:
            joins.pop()
        if join.left:
            join.waiting = True
            self.hub.switch()
        found = join.found
        for n, one in enumerate(found):
            if type(one) is _Fiber:
                found[n] = one.result
                if one.error is not None:
                    errors.append((n, one.error))
        if errors:
            raise min(errors, key=lambda pair: pair[0])[1]
        return found

    def _go_on(self) -> None:
        """Let all fibers that can run do so, until they wait or are done."""
        ready, idle, recorder = self.ready, _idle.stacks, self.recorder
        while ready:
            fiber, found = ready.popleft()
            stack = fiber.stack
            if stack is None:
                fiber.stack = stack = idle.pop() if idle else _Stack()
                stack.fiber = fiber
                stack.gr_context = fiber.context
                self.begun[fiber] = None
            self.running = fiber
            recorder.draws = fiber.draws
            recorder.starts.append(recorder.count)
            recorder.whose.append(fiber.instance)
            if stack.throw(found) if type(found) is InputError else stack.switch(found):
                self._done(fiber)

    def _done(self, fiber: _Fiber) -> None:
        stack = fiber.stack
        assert stack is not None
        del self.begun[fiber]
        if len(_idle.stacks) < MOST_IDLE:
            _idle.stacks.append(stack)
        else:
            stack.finish()
        join = fiber.join
        # What refers to itself is freed only by a search for garbage: 110 ms for 4,886 fibers.
        fiber.stack = fiber.join = None
        if join is not None:
            join.left -= 1
            if join.waiting and not join.left:
                self.ready.append((join.fiber, None))
        elif fiber.error is not None and not self.cancelled:
            raise fiber.error

    def _end(self) -> None:
        """Let nothing stay behind that has begun."""
        self.cancelled = True
        for fiber in list(self.begun):
            assert fiber.stack is not None
            self.running = fiber
            # A model may catch that, too, and wait for something else.
            while not fiber.stack.throw(_Cancelled):
                pass
            self._done(fiber)
        self.ready.clear()
        self.running = None
        self.recorder.fibers = None


def parallel(*functions: Callable[[], Any]) -> list[Any]:
    """The results of functions that do not need each other's: ``a, b = tp.parallel(lambda: f(x), lambda: f(y))``.

    Calls of cells need no declaration, since who needs whom is seen from their arguments. But where a model reads
    values, an instance waits; its parallel functions then wait together.
    """
    recorder: Any = current()
    if recorder is None or len(functions) < 2:
        return [function() for function in functions]
    fibers = getattr(recorder, "fibers", None)
    if fibers is not None:
        together: list[Any] = fibers.parallel(functions)
        return together
    draws: Draws | None = recorder.draws
    if draws is None:
        return [function() for function in functions]
    fork, found = draws.fork(), []
    try:
        for n, function in enumerate(functions):
            recorder.draws = draws.inside(fork, n)
            found.append(function())
    finally:
        recorder.draws = draws
    return found
