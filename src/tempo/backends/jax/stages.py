"""A whole program as several XLA programs, one after the other: a loop that is cut has one for each of its pieces.

What is done with them is a ``Recipe``: plain data, in which nodes and bounds are numbers, so that it can be kept on
disk beside the programs and followed without the graph that it was made for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tempo.backends.jax.padded import outline
from tempo.backends.jax.parts import given
from tempo.backends.jax.prepared import grown, zeros
from tempo.schedule.looptree import Loop, Tree, computes
from tempo.schedule.script import Part

Array = Any
Key = int
Arrays = dict[Key, Any]
"""What there is of stores, and how many steps dims make that stop on data, by the numbers of a recipe."""

LARGE = 512
"""So many statements take XLA seconds. Before a loop of as many, they are a program of their own, and both are compiled
at the same time."""
FIRST = 2
"""So many stages are compiled before the others: mostly a prompt, and the first piece of the loop behind it."""


def stages(trees: Sequence[Tree]) -> list[Part]:
    """The trees in parts: every piece of a loop that lets stores grow on its own, with what comes before it, if that
    is not large."""
    parts: list[Part] = []
    together: list[Tree] = []

    def close() -> None:
        if together:
            parts.append(Part(tuple(together), ()))
            together.clear()

    for tree in trees:
        loop = tree if isinstance(tree, Loop) and len(tree.steps) > 1 else None
        if loop and is_large([loop]) and is_large(together):
            close()
        together.append(tree)
        if loop and loop.grows:
            close()
    close()
    return parts


def has_loop(trees: Sequence[Tree]) -> bool:
    """Whether anything is done several times."""
    loops = [tree for tree in trees if isinstance(tree, Loop)]
    return any(len(loop.steps) > 1 or has_loop(loop.body) for loop in loops)


def is_large(trees: Sequence[Tree]) -> bool:
    """Whether it takes seconds to compile them."""
    return next(itertools.islice(computes(trees), LARGE - 1, None), None) is not None


@dataclass(frozen=True)
class End:
    """A loop that begins at the step ``start`` makes none if the dim with this bound stops ``beyond`` steps before."""

    bound: Key
    start: int
    beyond: int


@dataclass(frozen=True)
class Stage:
    """An XLA program: it is given what it ``reads``, in two lists, the second with what it ``writes`` as well; and
    gives what it writes."""

    reads: tuple[Key, ...]
    writes: tuple[Key, ...]
    rooms: Mapping[Key, tuple[int, ...]]
    """The shapes of the stores that change."""
    later: frozenset[Key]
    """What is needed after it."""
    end: End | None
    """What makes it superfluous, if anything can."""


@dataclass(frozen=True)
class Recipe:
    """What is done with the programs of a whole program: one that puts inputs into stores, if any needs it, the stages,
    and one that makes outputs of the results."""

    as_given: Mapping[str, Key]
    """The inputs that are their own stores."""
    loaded: tuple[Key, ...]
    """The stores of the other inputs, as the first program gives them."""
    initial: Mapping[Key, Any]
    """What there is before anything is computed: numbers, or the outlines of zeros."""
    stages: tuple[Stage, ...]
    results: tuple[Key, ...]
    """What the last program is given."""

    @property
    def rooms(self) -> dict[Key, tuple[int, ...]]:
        """How long stores are in the end."""
        return {key: room for stage in self.stages for key, room in stage.rooms.items()}

    def initially(self, key: Key, room: tuple[int, ...] | None) -> Any:
        return self.initial[key] if room is None else outline(room, self.initial[key].dtype)

    def load(self, inputs: Mapping[str, Array], program: Callable[[Any], Sequence[Array]]) -> Arrays:
        """The stores of the inputs."""
        state = {key: inputs[name] for name, key in self.as_given.items()}
        if self.loaded:
            others = {name: array for name, array in inputs.items() if name not in self.as_given}
            state |= zip(self.loaded, program(others), strict=True)
        return state

    def given(self, stage: Stage, state: Arrays, fill: Any, fit: Any) -> tuple[list[Any], list[Any]]:
        """What the program of a stage is given, out of a state in which the second part of it is no more."""
        kept, changed = given(stage, state, self.initially, fill, fit)
        return [*kept.values()], [*changed.values()]


@dataclass(frozen=True)
class Taken:
    """The bytes of ``inputs``; those that lie there during each stage without being a part of it; and the most that are
    there while a store is made longer."""

    inputs: int
    beside: Sequence[int]
    growing: int


class NotKeptError(Exception):
    """A stage is not on disk: the process that wrote the others ended before it was compiled."""


class Stages:
    """A recipe with its XLA programs, which may still be compiled when the first of them runs."""

    def __init__(self, recipe: Recipe, programs: Sequence[Future[Any]], taken: Callable[[], Taken]) -> None:
        self.recipe = recipe
        self.programs = programs
        self.taken = taken

    @property
    def first(self) -> list[Future[Any]]:
        """What a run needs that ends soon."""
        return [*self.programs[: bool(self.recipe.loaded) + FIRST], self.programs[-1]]

    @property
    def staged(self) -> Sequence[Future[Any]]:
        """The programs of the stages."""
        return self.programs[bool(self.recipe.loaded) : -1]

    def load(self, inputs: Mapping[str, Array]) -> Arrays:
        """The stores of the inputs."""
        return self.recipe.load(inputs, lambda others: self.programs[0].result()(others))

    def __call__(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Outputs, and the steps made of dims that stop on data."""
        recipe = self.recipe
        state = self.load(inputs)
        rooms: dict[Key, tuple[int, ...]] = {}
        for stage, program in zip(recipe.stages, self.staged, strict=True):
            rooms |= stage.rooms
            end = stage.end
            if end is not None and end.start >= int(state.get(end.bound, end.start + 1)) + end.beyond:
                continue  # the dim has stopped; what this stage makes longer may be needed by others
            for key in stage.reads:
                if key in state and key in rooms:  # one by one: all the old are not kept beside all the new
                    state[key] = grown(state[key], rooms[key])
            arrays = recipe.given(stage, state, zeros, grown)
            state |= zip(stage.writes, program.result()(*arrays), strict=True)
            state = {key: value for key, value in state.items() if key in stage.later}
        state |= zeros({key: recipe.initial[key] for key in recipe.results if key not in state})
        longest = recipe.rooms
        found = [grown(state[key], longest[key]) if key in longest else state[key] for key in recipe.results]
        outputs, made = self.programs[-1].result()(found)
        return outputs, made

    def memory(self) -> dict[str, int]:
        """What XLA says the programs take, in bytes: beside inputs and outputs, at the worst moment."""
        *programs, finish = (future.result().memory_analysis() for future in (*self.staged, self.programs[-1]))
        taken = self.taken()
        inputs, outputs = taken.inputs, finish.output_size_in_bytes
        each = [
            beside + p.argument_size_in_bytes + p.output_size_in_bytes - p.alias_size_in_bytes + p.temp_size_in_bytes
            for beside, p in zip(taken.beside, programs, strict=True)
        ]
        most = max(*each, taken.growing, inputs + outputs)
        return {"inputs": inputs, "outputs": outputs, "temporaries": most - inputs - outputs}
