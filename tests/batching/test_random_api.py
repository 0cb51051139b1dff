"""Random models with what users hand over, in all its forms: the same with and without batches, and with JAX alone."""

from __future__ import annotations

import collections
import copy
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tests.batching import interpreted
from tests.batching.interpreted import READING, SIZE, STEPS, Box, Decisions, FailedError, Instance, Machine, directly

FEW, MANY = range(4), range(4, 100)
PLATFORMS = ["cpu", pytest.param("gpu", marks=pytest.mark.slow)]
"""For a GPU there are other kernels, which this machine's processor can run as well."""
SEEDS = [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)]

machine = Machine(interpreted.CELLS, lambda decide: decide())


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found: str = request.param
    monkeypatch.setattr(jax, "default_backend", lambda: found)
    return found


@cache
def batched(reads: bool, platform: str, loss: bool = False) -> tp.batching.Batched:
    """One for all mini-batches: kernels are few, and what is kept between mini-batches is looked at. Once a model has
    read a value it is run in another way, so that there is one for those that never do."""
    return tp.batch(machine.loss if loss else machine, cells={"mix": interpreted.CELLS["mix"]})


def weight(rng: random.Random) -> Any:
    return np.array([[rng.randint(-1, 1) for _ in range(SIZE)] for _ in range(SIZE)], np.float32)


def some(rng: random.Random, steps: tuple[str, ...], most: int = 5) -> list[Instance]:
    shared = [interpreted.vector(rng) for _ in range(2)]
    return [interpreted.instance(rng, steps, shared) for _ in range(rng.randint(1, most))]


def leaves(found: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """What is in something; with ``seen``, what holds several things is looked into once, wherever it is."""
    if isinstance(found, list | tuple | collections.deque | dict | Box):
        if seen is not None:
            if id(found) in seen:
                return
            seen.add(id(found))
        inside = found.values() if isinstance(found, dict) else [found.content] if isinstance(found, Box) else found
        for one in inside:
            yield from leaves(one, seen)
    else:
        yield found


def same(found: Any, expected: Any) -> None:
    """Of the same types, all the way down."""
    assert type(found) is type(expected)
    if isinstance(found, list | tuple | collections.deque):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(found, dict):
        assert list(found) == list(expected)
        same(list(found.values()), list(expected.values()))
    elif isinstance(found, Box):
        same(found.content, expected.content)
    elif isinstance(found, np.ndarray | np.generic | jax.Array):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


def numbers(found: Any) -> list[Any]:
    return [np.asarray(one).astype(np.float32) for one in leaves(found) if not isinstance(one, str | int | type(None))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reads", [False, True])
def test_results(seed: int, reads: bool, platform: str) -> None:
    rng = random.Random(seed)
    instances = some(rng, READING if reads else STEPS)
    values = {"mix.weight": weight(rng)}
    run = batched(reads, platform)
    if rng.random() < 0.5:
        run.parameters = values
    else:
        run.parameters["mix.weight"] = values["mix.weight"]
    together, alone = run(instances), run.one_by_one(instances)
    same(together, alone)
    direct = directly(lambda decide: decide(), jnp.asarray(values["mix.weight"]))
    for one, found in zip(instances, together, strict=True):
        for a, b in zip(numbers(found), numbers(direct(one)), strict=True):
            np.testing.assert_array_equal(a, b)

    # Nobody else's: whoever writes to one result changes no other, nor what the model was given. What is a piece of
    # data is that piece.
    given = {id(piece) for one in instances for piece in one.data}
    own = [one for one in leaves(together, set()) if isinstance(one, np.ndarray) and id(one) not in given]
    before = copy.deepcopy([one.data for one in instances])
    for n, array in enumerate(own):
        array[...] = 100 + n
    for n, array in enumerate(own):
        assert np.all(array == 100 + n)
    same([one.data for one in instances], before)

    # And the other way round; the next mini-batch is given what is there then.
    again = run(instances)
    kept = copy.deepcopy(alone)
    for piece in {id(piece): piece for one in instances for piece in one.data}.values():
        if isinstance(piece, np.ndarray) and piece.flags.writeable:
            piece[...] = -piece
    values["mix.weight"][...] = 1
    for one, other in zip(leaves(again), leaves(kept), strict=True):
        if id(one) not in given:
            same(one, other)
    same(run(instances), run.one_by_one(instances))


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients(seed: int, platform: str) -> None:
    """With respect to parameters and to all arrays, of which some are those of several instances."""
    rng = random.Random(seed)
    instances = some(rng, READING, most=4)
    values = weight(rng)
    run = batched(True, platform, loss=True)

    def arrays(one: Instance) -> list[Any]:
        return [piece for piece in one.data if isinstance(piece, np.ndarray)]

    wanted = {id(piece): piece for one in instances for piece in arrays(one)}
    found = run.value_and_grad(instances, {"mix.weight": values}, inputs=arrays)
    decided = [Decisions() for _ in instances]
    for one, decisions in zip(instances, decided, strict=True):
        directly(decisions.record, jnp.asarray(values)).loss(one)

    def loss(weight: Any, given: dict[int, Any]) -> Any:
        total = 0.0
        for one, decisions in zip(instances, decided, strict=True):
            data = [given.get(id(piece), piece) for piece in one.data]
            total += sum(leaves(directly(decisions.repeat, weight).loss(Instance(data, one.steps, None))))
        return total / len(instances)

    given = {key: jnp.asarray(np.asarray(piece, np.float32)) for key, piece in wanted.items()}
    value, (of_weight, of_data) = jax.value_and_grad(loss, (0, 1))(jnp.asarray(values), given)
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    np.testing.assert_allclose(found[1]["mix.weight"], of_weight, rtol=1e-5, atol=1e-5)
    for one, own in zip(instances, found[2], strict=True):
        for piece, gradient in zip(arrays(one), own, strict=True):
            assert gradient.dtype == np.float32
            np.testing.assert_allclose(gradient, of_data[id(piece)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_instances_that_fail(seed: int, platform: str) -> None:
    rng = random.Random(seed)
    instances = some(rng, (*READING, "fail"))
    run = batched(True, platform)
    for one, found in zip(instances, run(instances, errors="return"), strict=True):
        try:
            (expected,) = run.one_by_one([one])
        except FailedError as error:
            assert (type(found), str(found)) == (FailedError, str(error))
        else:
            same(found, expected)


@cache
def weighted(platform: str) -> tp.batching.Fold:
    """Sums of what children have, of which the place counts, and of what nodes have themselves."""

    def inner(children: Any, present: Any, value: Any, flag: Any) -> Any:
        kept, places = children["sum"], tp.constant(np.array([[1.0], [2.0], [-1.0]], np.float32))
        return {"sum": tp.sum(kept * places, axis=0) + value, "number": tp.sum(present) * 1.0 + flag}

    def leaf(value: Any, count: Any, flag: Any) -> Any:
        return {"sum": tp.where(flag, value, value * count), "number": count * 1.0}

    return tp.fold(leaf, inner, loss=lambda state, count: tp.sum(state["sum"]) * count)


@pytest.mark.parametrize("seed", SEEDS)
def test_forests(seed: int, platform: str) -> None:
    """Of nodes with several parents, with arrays in all forms, and losses of any nodes."""
    rng, folded = random.Random(seed), weighted(platform)
    size = rng.randint(1, 30)
    inner = rng.randint(0, size - 1)
    children = [[rng.randint(n + 1, size - 1) for _ in range(rng.randint(1, 3))] for n in range(inner)]
    children += [[] for _ in range(size - inner)]
    rows = np.array([[rng.randint(-2, 2) for _ in range(2)] for _ in range(size)], rng.choice(("<f4", "<f8", ">f4")))
    value = rng.choice((lambda: rows, lambda: np.asfortranarray(rows), lambda: rows[::-1].copy()[::-1], rows.tolist))()
    numbers = [rng.randint(0, 3) for _ in range(size)]
    count = rng.choice((lambda: numbers, lambda: np.array(numbers, ">i8"), lambda: jnp.array(numbers)))()
    flag = np.array([rng.random() < 0.5 for _ in range(size)])
    given: Any = children
    if rng.random() < 0.5:
        given = np.full((size, 3), -1, rng.choice((np.int8, np.int64)))
        for n, own in enumerate(children):
            given[n, : len(own)] = own
    forest = tp.forest(children=given, arity=3, value=value, count=count, flag=flag)
    expected = rows.astype(np.float64)

    def states(rows: Any) -> tuple[Any, Any]:
        found, sizes = [rows[n] for n in range(size)], [float(n) for n in numbers]
        for n in reversed(range(size)):
            if children[n]:
                found[n] = sum(found[child] * (1, 2, -1)[k] for k, child in enumerate(children[n])) + rows[n]
                sizes[n] = len(children[n]) + float(flag[n])
            elif not flag[n]:
                found[n] = rows[n] * numbers[n]
        return found, sizes

    if isinstance(value, np.ndarray):
        value[...] = 77  # a forest has its own
    if isinstance(given, np.ndarray):
        given[...] = 0
    chosen = [rng.randrange(size) for _ in range(rng.randint(1, 5))]
    nodes = rng.choice((None, chosen, np.array(chosen, np.uint8)))
    found, numbers_found = states(expected)
    result = folded(forest, nodes=nodes)
    wanted = range(size) if nodes is None else chosen
    np.testing.assert_allclose(result["sum"], [found[n] for n in wanted], rtol=1e-6)
    np.testing.assert_array_equal(result["number"], [numbers_found[n] for n in wanted])
    result["sum"][...] = 5
    np.testing.assert_allclose(folded(forest, nodes=[0])["sum"], [found[0]], rtol=1e-6)

    losses = forest.roots.tolist() if nodes is None else chosen

    def loss(rows: Any) -> Any:
        return sum(states(rows)[0][n].sum() * numbers[n] for n in losses) / len(losses)

    mean, _, of_data = folded.value_and_grad(forest, nodes=nodes, inputs=("value",))
    np.testing.assert_allclose(mean, loss(expected), rtol=1e-5)
    # What is linear is known from one row after another.
    for n in rng.sample(range(size), min(size, 3)):
        changed = expected.copy()
        changed[n] += [1, 0]
        np.testing.assert_allclose(of_data["value"][n, 0], loss(changed) - loss(expected), rtol=1e-4, atol=1e-4)


def test_mini_batches_in_threads() -> None:
    """Of one model, at the same time."""
    run = batched(True, "cpu")
    sets = [some(random.Random(seed), READING) for seed in FEW]
    expected = [run.one_by_one(instances) for instances in sets]
    with ThreadPoolExecutor(4) as pool:
        for found, alone in zip(pool.map(run, sets * 3), expected * 3, strict=True):
            same(found, alone)
