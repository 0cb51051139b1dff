"""A model that acts with what it knew when an iteration began, while it learns in several updates."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import tempo as tp
from tempo import nn, optim

Tensor = tp.RecurrentTensor
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Learner(Generic[ModuleT]):
    """The parameters of a model over (i, *inner): iterations, and the updates within one (epochs, minibatches).

    ``net`` is the model at every update, ``acting`` the model at the beginning of every iteration, over i alone.
    ``parameters`` are its values, to take gradients by; ``update`` says what they become, and ``final`` are the last
    ones. With ``init=False`` first values are inputs, named ``initial.`` and the
    parameter's name.
    """

    def __init__(
        self, model: ModuleT, prog: tp.Program, i: tp.Dim, inner: tuple[tp.Dim, ...], init: bool = True
    ) -> None:
        first = model.declare(prog, "initial", init)
        named = first.parameters()
        self._states = {name: prog.state(name, value, over=(i, *inner)) for name, value in named.items()}
        # A loss depends on a state also through what it becomes; of a copy there are no such paths to be followed.
        self.parameters = {name: tp.copy(state) for name, state in self._states.items()}
        # acting[i] is parameters[i, 0, 0], but computed without them: what acts does not wait for what is learned then.
        self._acting = {name: prog.state(f"acting.{name}", value, over=i) for name, value in named.items()}
        self._last = (i, *(d.bound - 1 for d in inner))
        self.net = _with(first, {id(named[name]): value for name, value in self.parameters.items()})
        self.acting = _with(first, {id(named[name]): state for name, state in self._acting.items()})

    def update(self, optimiser: optim.Optimiser, gradients: Mapping[str, Tensor]) -> None:
        """Make a step with gradients by ``parameters``."""
        optimiser.update(self._states, gradients)
        for name, state in self._acting.items():
            state.next = self._states[name].next[self._last]

    @property
    def final(self) -> dict[str, Tensor]:
        """The parameters after the last update."""
        return {name: state.final for name, state in self._states.items()}


def _with(module: ModuleT, values: Mapping[int, Any]) -> ModuleT:
    """A copy of a module with other tensors in place of those with these ids."""

    def replaced(value: Any) -> Any:
        if id(value) in values:
            return values[id(value)]
        if isinstance(value, nn.Module):
            other = copy.copy(value)
            vars(other).update({name: replaced(part) for name, part in vars(value).items()})
            return other
        if isinstance(value, dict):
            return {name: replaced(part) for name, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(replaced, value))
        return type(value)(map(replaced, value)) if isinstance(value, list | tuple) else value

    whole: ModuleT = replaced(module)
    return whole
