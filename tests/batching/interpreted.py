"""Random models for the random tests of what users hand over: an instance is data and a list of steps, so that one
batched model, with a few cells, does for all of them.

All numbers are small integers, so that results are exact, and decisions by values never close."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

import tempo as tp
from tempo import nn

SIZE = 3


def bodies(xp: Any) -> dict[str, Callable[..., Any]]:
    """What cells compute, with the functions of ``tp`` or of ``jax.numpy``."""
    return {
        "scale": lambda x, factor=2.0: x * factor,
        "join": lambda a, b: {"sum": a + b, "parts": (a * b, [xp.sum(a)])},
        "pick": lambda x, n: xp.take(x, n, axis=0),
        "twice": lambda x: (x, x),
        "largest": lambda x: xp.argmax(x, axis=0),
        "total": lambda x: xp.sum(x),
        "word": lambda n: n * 2.0 - 1.0,
    }


class Mix(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Parameter((SIZE, SIZE), nn.init.constant(1.0))

    def __call__(self, x: Any) -> Any:
        return self.weight @ x


CELLS = {name: tp.cell(body, name=name) for name, body in bodies(tp).items()}
CELLS["mix"] = tp.cell(Mix(), name="mix")
inner = tp.batch(lambda x: CELLS["total"](CELLS["scale"](x, 3.0)))
"""Another model with the same cells, which is called by the first."""


@dataclasses.dataclass
class Box:
    content: Any
    label: str = "box"


@dataclasses.dataclass
class Instance:
    data: list[Any]
    """Vectors first, then numbers."""
    steps: list[Any]
    result: Any


class FailedError(Exception):
    pass


class Machine:
    """Runs an instance: vectors and numbers are data, or results of cells."""

    def __init__(self, cells: dict[str, Any], read: Callable[[Callable[[], Any]], Any]) -> None:
        self.cells = cells
        self.read = read

    def __call__(self, instance: Instance) -> Any:
        vectors = [one for one in instance.data if np.shape(one)]
        numbers = [one for one in instance.data if not np.shape(one)]
        self.run(instance.steps, vectors, numbers)
        places = {"vector": vectors, "number": numbers, "data": instance.data}
        return _built(instance.result, lambda what, n: places[what][n % len(places[what])])

    def loss(self, instance: Instance) -> Any:
        """The sum of all that is computed, each part being given to a cell."""
        vectors = [one for one in instance.data if np.shape(one)]
        numbers = [one for one in instance.data if not np.shape(one)]
        self.run(instance.steps, vectors, numbers)
        total = self.cells["total"]
        return {"vectors": [total(one) for one in vectors], "last": (total(numbers[-1]),)}

    def run(self, steps: list[Any], vectors: list[Any], numbers: list[Any]) -> None:
        for what, i, j, form in steps:
            x, y, s = vectors[i % len(vectors)], vectors[j % len(vectors)], numbers[j % len(numbers)]
            getattr(self, what)(x, y, s, form, vectors, numbers)

    def scale(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        scale = self.cells["scale"]
        ways = (lambda: scale(x), lambda: scale(x, s), lambda: scale(x, factor=s), lambda: scale(factor=s, x=x))
        vectors.append(ways[form % 4]())

    def join(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        found = self.cells["join"](x, b=y) if form % 2 else self.cells["join"](x, y)
        vectors += [found["sum"], found["parts"][0]]
        numbers.append(found["parts"][1][0])

    def mix(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        vectors.append(self.cells["mix"](x))

    def twice(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        vectors += self.cells["twice"](x)

    def pick(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        n = form % SIZE
        ways = (n, np.int64(n), np.array(n, np.uint8), jnp.int32(n), self.cells["largest"](x), np.array(n, ">i4"))
        numbers.append(self.cells["pick"](x, ways[form % len(ways)]))

    def words(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        """Calls with integers alone, of which some are the same."""
        numbers += [self.cells["word"](n) for n in (form % 4, np.int32(form % 3), 1, np.array(form % 3, ">i8"))]

    def operate(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        own = self.cells["scale"](x)
        ways = (lambda: own + s, lambda: 2 - own, lambda: own * own, lambda: -own, lambda: np.ones(SIZE) * own)
        vectors.append(ways[form % len(ways)]())
        numbers.append(own[form % SIZE])

    def elements(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        a, b, c = self.cells["scale"](x, 1.0)
        numbers.append(sum([a, b]) - c)

    def decide(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        total = self.cells["total"]
        ways = (
            lambda: float(total(x)) > 0.5,
            lambda: bool(total(x) > 0.5),
            lambda: np.asarray(self.cells["scale"](x)).sum() > 1,
            lambda: int(total(x)) % 2 == 0,
            lambda: [True, False, True][self.cells["largest"](x)],
            lambda: max(total(x), total(y)) > 0.5,
            lambda: f"{total(x):.1f}".startswith("-"),
        )
        if self.read(ways[form % len(ways)]):
            vectors.append(self.cells["mix"](y))

    def loop(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        found = x
        for _ in range(int(self.read(lambda: int(self.cells["largest"](x))))):
            found = self.cells["scale"](found, -1)
        vectors.append(found)

    def side_by_side(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        def part(start: Any, n: int) -> Any:
            value = self.cells["scale"](start, float(n))
            if self.read(lambda: float(self.cells["total"](value)) > 0.5):
                value = self.cells["scale"](value, -1.0)
            return value

        vectors += tp.parallel(lambda: part(x, form % 3), lambda: part(y, 2), lambda: x)

    def ask(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        """A model inside of this one is given values of this one, or arrays."""
        asked = self.cells["scale"](x)
        ways = (lambda: inner([asked, asked])[1], lambda: inner([np.asarray(asked)])[0])
        numbers.append(self.read(ways[form % 2]))

    def fail(self, x: Any, y: Any, s: Any, form: int, vectors: list[Any], numbers: list[Any]) -> None:
        if form % 2 or self.read(lambda: float(self.cells["total"](x)) > 1.5):
            raise FailedError(f"form {form}")


def _built(spec: Any, of: Callable[[str, int], Any]) -> Any:
    what, *rest = spec
    if what in ("vector", "number", "data"):
        return of(what, *rest)
    parts = [_built(one, of) for one in rest]
    made = {
        "list": list,
        "tuple": tuple,
        "dict": lambda some: {f"{n} of": one for n, one in enumerate(some)},
        "ordered": lambda some: collections.OrderedDict((-n, one) for n, one in enumerate(some)),
        "queue": collections.deque,
        "box": Box,
        "again": lambda some: [some, some, None, "text", 7],
    }
    return made[what](parts)


# -- making them --------------------------------------------------------------------------------------------------


def vector(rng: random.Random) -> Any:
    numbers = [rng.randint(-2, 2) for _ in range(SIZE)]
    form = rng.randrange(8)
    if form == 0:
        return jnp.array(numbers, jnp.float32)
    if form == 1:
        return np.repeat(np.array(numbers, np.float32), 2)[::2]
    if form == 2:
        return np.array(numbers[::-1], np.float64)[::-1]
    if form == 3:
        fixed = np.array(numbers, np.float32)
        fixed.flags.writeable = False
        return fixed
    if form == 4:
        return np.broadcast_to(np.float32(numbers[0]), (SIZE,))
    return np.array(numbers, ["<f4", "<f8", ">f4"][form - 5])


def number(rng: random.Random) -> Any:
    value = rng.randint(-2, 2)
    forms = (float, np.float32, np.float64, jnp.float32, np.array)
    return rng.choice(forms)(float(value))


STEPS = ("scale", "join", "mix", "twice", "pick", "words", "operate", "elements")
READING = (*STEPS, "decide", "loop", "side_by_side", "ask")


def instance(rng: random.Random, steps: tuple[str, ...], shared: list[Any]) -> Instance:
    """One with up to six steps. Some data are shared with others."""
    data = [rng.choice(shared) if rng.random() < 0.3 else vector(rng) for _ in range(rng.randint(1, 3))]
    data += [number(rng) for _ in range(rng.randint(1, 2))]
    chosen = [
        (rng.choice(steps), rng.randrange(9), rng.randrange(9), rng.randrange(60)) for _ in range(rng.randint(0, 6))
    ]
    return Instance(data, chosen, structure(rng, 3))


def structure(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(("vector", "number", "data")), rng.randrange(9)
    what = rng.choice(("list", "tuple", "dict", "ordered", "queue", "box", "again"))
    return (what, *(structure(rng, depth - 1) for _ in range(rng.randint(1, 3))))


# -- another way to compute them ----------------------------------------------------------------------------------


def _array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf
    array = np.asarray(leaf)
    return jnp.asarray(array, jnp.float32 if array.dtype.kind == "f" else jnp.int32)


def directly(read: Callable[[Callable[[], Any]], Any], weight: Any) -> Machine:
    """A machine that computes with JAX, without cells."""

    def converted(body: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = tree_util.tree_map(_array, (args, kwargs))
            return body(*given[0], **given[1])

        return call

    cells = {name: converted(body) for name, body in bodies(jnp).items()}
    cells["mix"] = converted(lambda x: weight @ x)
    return Machine(cells, read)


class Decisions:
    """What was decided in one run, and is decided again in another, where values are not known."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.next = 0

    def record(self, decide: Callable[[], Any]) -> Any:
        self.made.append(decide())
        return self.made[-1]

    def repeat(self, _: Callable[[], Any]) -> Any:
        self.next += 1
        return self.made[self.next - 1]
