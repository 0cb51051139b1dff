"""The body of a loop as a list of primitives, with the bodies of the functions that it calls in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

# What is called is in a parameter of this name.
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}


@dataclass(frozen=True, eq=False)
class Var:
    """What a step computes, or the body is given."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Number(Var):
    """A number that is written in the body."""

    value: Any


@dataclass(frozen=True, eq=False)
class Step:
    """A primitive with what it is given and what it computes."""

    primitive: Any
    inputs: tuple[Var, ...]
    output: Var
    params: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.primitive.name)


@dataclass
class Body:
    """``number`` is that of the iteration, ``carried`` becomes ``results``."""

    number: Var
    carried: list[Var]
    results: list[Var]
    constants: dict[Var, Any]
    """Arrays that are the same in all iterations."""
    steps: list[Step]

    @property
    def vars(self) -> list[Var]:
        given = [self.number, *self.carried, *self.constants]
        return given + [step.output for step in self.steps]


@dataclass
class _Flat:
    steps: list[Step] = field(default_factory=list)
    constants: dict[int, tuple[Var, Any]] = field(default_factory=dict)

    def run(self, jaxpr: Any, constants: Sequence[Any], given: Sequence[Var]) -> list[Var]:
        known: dict[Any, Var] = dict(zip(jaxpr.invars, given, strict=True))
        for var, value in zip(jaxpr.constvars, constants, strict=True):
            known[var] = self.constants.setdefault(id(value), (_var(var.aval), value))[0]

        def found(atom: Any) -> Var:
            return known[atom] if not hasattr(atom, "val") else Number(atom.aval.shape, atom.aval.dtype, atom.val)

        for equation in jaxpr.eqns:
            inputs = tuple(found(atom) for atom in equation.invars)
            called = equation.params.get(CALLS.get(equation.primitive.name))
            if called is not None:
                results = self.run(called.jaxpr, called.consts, inputs)
            elif equation.primitive.name == "optimization_barrier":
                results = list(inputs)
            elif len(equation.outvars) == 1:
                step = Step(equation.primitive, inputs, _var(equation.outvars[0].aval), equation.params)
                self.steps.append(step)
                results = [step.output]
            else:
                raise NotRowsError(f"{equation.primitive.name} has several results")
            known |= dict(zip(equation.outvars, results, strict=True))
        return [found(atom) for atom in jaxpr.outvars]


class NotRowsError(Exception):
    """Why a loop is not made a kernel of its own."""


def flattened(body: Any, start: Any) -> Body:
    """The body ``(number, carried) -> carried`` of a loop; what nobody needs of it is left out."""
    leaves, form = jax.tree.flatten(start)

    def on_leaves(number: Any, given: list[Any]) -> list[Any]:
        return jax.tree.leaves(body(number, jax.tree.unflatten(form, given)))

    closed = jax.make_jaxpr(on_leaves)(np.int32(0), leaves)
    number, *carried = (_var(var.aval) for var in closed.jaxpr.invars)
    flat = _Flat()
    results = flat.run(closed.jaxpr, closed.consts, [number, *carried])
    needed = set(results)
    steps = []
    for step in reversed(flat.steps):
        if step.output in needed:
            needed |= set(step.inputs)
            steps.append(step)
    constants = {var: value for var, value in flat.constants.values() if var in needed}
    return Body(number, carried, results, constants, steps[::-1])


def _var(aval: Any) -> Var:
    return Var(tuple(aval.shape), np.dtype(aval.dtype))
