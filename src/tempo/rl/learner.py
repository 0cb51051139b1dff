"""A model that acts with what it knew when an iteration began, while it learns in several updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

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
        self.net = first.with_parameters(self.parameters)
        self.acting = first.with_parameters(self._acting)

    def update(self, optimiser: optim.Optimiser, gradients: Mapping[str, Tensor]) -> None:
        """Make a step with gradients by ``parameters``."""
        optimiser.update(self._states, gradients)
        for name, state in self._acting.items():
            state.next = self._states[name].next[self._last]

    @property
    def final(self) -> dict[str, Tensor]:
        """The parameters after the last update."""
        return {name: state.final for name, state in self._states.items()}
