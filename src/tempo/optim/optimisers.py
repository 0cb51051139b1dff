"""What parameters become at the next step.

An optimiser's own values are states over the dims that the parameters go over. Those of small parameters are one vector
together, so that a model with hundreds of biases does not take hundreds of kernels for each of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tempo as tp
from tempo.nn.precision import wide
from tempo.optim.clipping import by_name
from tempo.optim.schedules import Schedule

Tensor = tp.RecurrentTensor
Number: TypeAlias = float | tp.RecurrentTensor

# Parameters with at most so many elements share a vector.
SMALL = 2**16


class Optimiser(ABC):
    """The base of optimisers: ``step`` says how far to go, from a gradient.

    ``rate`` is the learning rate: a number, a tensor, or a function of how many steps have been made, a tensor as well
    (``optim.linear`` and others make such functions). ``weight_decay`` adds that much of a parameter to its gradient.
    It and other settings are numbers or tensors: an input that is one changes without compiling again.
    """

    def __init__(self, rate: Number | Schedule, weight_decay: Number = 0.0) -> None:
        self.rate = rate
        self.weight_decay = weight_decay

    def update(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Say what parameters, which are states, become: sets ``.next`` of each."""
        gradients = _checked(parameters, gradients)
        for group in _groups(parameters):
            with_decay = [self._decayed(parameters[name], gradients[name]) for name in group.names]
            count = _count(group.over).astype(tp.int64 if group.dtype == tp.float64 else tp.int32)
            rate = self.rate(count) if callable(self.rate) else self.rate
            change = self.step(group.joined(with_decay), _Moments(group, type(self).__name__.lower()), count)
            for name, part in zip(group.names, group.parts(rate * change), strict=True):
                self.apply(parameters[name], part, rate)

    @abstractmethod
    def step(self, gradient: Tensor, moments: _Moments, count: Tensor) -> Tensor:
        """How far to go, at a learning rate of 1, after ``count`` steps."""

    def apply(self, parameter: Any, change: Tensor, rate: Any) -> None:
        """Give a parameter its next value."""
        parameter.next = (wide(parameter) - change).astype(parameter.dtype)

    def _decayed(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        gradient = wide(gradient)
        return gradient if _is_zero(self.weight_decay) else gradient + self.weight_decay * wide(parameter)


class SGD(Optimiser):
    """Along the gradient, or along an average of it and those before: with ``momentum``, looking ahead if
    ``nesterov``."""

    def __init__(
        self,
        rate: Number | Schedule,
        momentum: Number = 0.0,
        nesterov: bool = False,
        weight_decay: Number = 0.0,
    ) -> None:
        super().__init__(rate, weight_decay)
        if nesterov and _is_zero(momentum):
            raise tp.errors.ProgramError(
                "SGD: nesterov looks ahead along the momentum, which is 0",
                places=[("here", tp.errors.user_line())],
                hint="optim.SGD(rate, momentum=0.9, nesterov=True)",
            )
        self.momentum = momentum
        self.nesterov = nesterov

    def step(self, gradient: Tensor, moments: _Moments, count: Tensor) -> Tensor:
        if _is_zero(self.momentum):
            return gradient
        velocity = moments("velocity", lambda before: self.momentum * before + gradient)
        return gradient + self.momentum * velocity if self.nesterov else velocity


class RMSProp(Optimiser):
    """The gradient relative to the root of its mean square of late."""

    def __init__(
        self,
        rate: Number | Schedule,
        decay: Number = 0.99,
        epsilon: Number = 1e-8,
        momentum: Number = 0.0,
        weight_decay: Number = 0.0,
    ) -> None:
        super().__init__(rate, weight_decay)
        self.decay = decay
        self.epsilon = epsilon
        self.momentum = momentum

    def step(self, gradient: Tensor, moments: _Moments, count: Tensor) -> Tensor:
        square = moments("square", lambda before: self.decay * before + (1 - self.decay) * tp.square(gradient))
        scaled = gradient / (tp.sqrt(square) + self.epsilon)
        if _is_zero(self.momentum):
            return scaled
        return moments("velocity", lambda before: self.momentum * before + scaled)


class Adam(Optimiser):
    """The mean gradient of late relative to the root of its mean square."""

    def __init__(
        self,
        rate: Number | Schedule = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        epsilon: Number = 1e-8,
        weight_decay: Number = 0.0,
    ) -> None:
        super().__init__(rate, weight_decay)
        # An average that keeps all of what was before, 1, never gets anything new: 0 / 0.
        pair = isinstance(betas, Sequence) and len(betas) == 2
        if not pair or not all(isinstance(beta, Tensor) or 0 <= beta < 1 for beta in betas):
            raise tp.errors.ProgramError(
                f"{type(self).__name__}: betas are {betas}, not two numbers from 0 to below 1",
                places=[("here", tp.errors.user_line())],
                hint=f"optim.{type(self).__name__}(rate, betas=(0.9, 0.999))",
            )
        self.betas = betas
        self.epsilon = epsilon

    def step(self, gradient: Tensor, moments: _Moments, count: Tensor) -> Tensor:
        first, second = self.betas
        mean = moments("mean", lambda before: first * before + (1 - first) * gradient)
        square = moments("square", lambda before: second * before + (1 - second) * tp.square(gradient))
        made = (count + 1).astype(gradient.dtype)

        def unbiased(average: Tensor, beta: Number) -> Tensor:
            """Averages begin at zero, which must not hold them back: divided by ``1 - beta ** made``."""
            if _is_zero(beta):
                return average
            log = tp.log(beta) if isinstance(beta, Tensor) else math.log(beta)
            return average / -tp.expm1(log * made)

        return unbiased(mean, first) / (tp.sqrt(unbiased(square, second)) + self.epsilon)


class AdamW(Adam):
    """Adam whose weight decay shortens parameters, whatever their gradients."""

    def __init__(
        self,
        rate: Number | Schedule = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        epsilon: Number = 1e-8,
        weight_decay: Number = 1e-2,
    ) -> None:
        super().__init__(rate, betas, epsilon)
        self.shortening = weight_decay

    def apply(self, parameter: Any, change: Tensor, rate: Any) -> None:
        parameter.next = (wide(parameter) * (1 - rate * self.shortening) - change).astype(parameter.dtype)


@dataclass(frozen=True)
class _Group:
    """Parameters that are updated as one vector, or a single one as it is."""

    names: tuple[str, ...]
    tensor_name: str
    """Of the first parameter in its program. Two modules have names in common; their tensors do not."""
    shapes: tuple[tuple[int, ...], ...]
    over: tuple[tp.Dim, ...]
    domain: tuple[tp.Dim, ...]
    dtype: Any
    """That of the optimiser's own values: at least single precision."""
    program: tp.Program

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[0] if len(self.names) == 1 else (sum(map(math.prod, self.shapes)),)

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        flat = [value.reshape(math.prod(shape)) for value, shape in zip(values, self.shapes, strict=True)]
        return tp.concatenate(flat)

    def parts(self, whole: Tensor) -> list[Tensor]:
        if len(self.names) == 1:
            return [whole]
        found, start = [], 0
        for shape in self.shapes:
            found.append(whole.space[start : start + math.prod(shape)].reshape(shape))
            start += math.prod(shape)
        return found


class _Moments:
    """The values that an optimiser keeps of a group: ``moments(name, next)`` is what ``next`` makes of the one before,
    zero at first."""

    def __init__(self, group: _Group, prefix: str) -> None:
        self.group = group
        self.prefix = prefix

    def __call__(self, name: str, after: Callable[[Tensor], Tensor]) -> Tensor:
        group = self.group
        kept = group.program.state(
            f"{self.prefix}.{name}.{group.tensor_name}",
            tp.zeros(group.shape, dtype=group.dtype),
            over=group.over,
            domain=group.domain,
        )
        kept.next = after(kept)
        return kept.next


def _groups(parameters: Mapping[str, Any]) -> list[_Group]:
    """Small parameters together, if they go over the same dims; others alone."""
    together: dict[Any, list[str]] = {}
    for name, parameter in parameters.items():
        domain = tuple(d for d in parameter.domain if d not in parameter.over)
        key = (parameter.over, domain, tp.float64 if parameter.dtype == tp.float64 else tp.float32)
        together.setdefault(key if math.prod(parameter.shape) <= SMALL else (*key, name), []).append(name)
    groups = []
    for (over, domain, dtype, *_), names in together.items():
        shapes = tuple(parameters[name].shape for name in names)
        first = parameters[names[0]]
        groups.append(_Group(tuple(names), first.name, shapes, over, domain, dtype, first.program))
    return groups


def _count(over: Sequence[tp.Dim]) -> Tensor:
    """How many steps have been made: points are in lexicographic order."""
    count: Tensor = over[0].value
    for dim in over[1:]:
        count = count * tp.index_value(dim.bound) + dim.value
    return count


def _is_updated(parameter: tp.State) -> bool:
    try:
        return parameter.next is not None
    except tp.errors.ProgramError:
        return False


def _is_zero(setting: Number) -> bool:
    """Whether it is known to be zero: of a tensor nothing is known while the program is written."""
    return not isinstance(setting, Tensor) and not setting


def _checked(parameters: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Tensor]:
    """The gradients of the parameters, as tensors."""
    for what, given in (("parameters", parameters), ("gradients", gradients)):
        by_name(what, given)
    found = {}
    for name, parameter in parameters.items():
        if not isinstance(parameter, tp.State):
            raise tp.errors.ProgramError(
                f"{name} is no state: it has no next value",
                places=[("here", tp.errors.user_line())],
                hint="declare parameters within prog.training(over=...)",
            )
        if _is_updated(parameter):
            raise tp.errors.ProgramError(
                f"{name} has a next value already: it is updated twice",
                places=[("here", tp.errors.user_line()), (parameter.name, parameter.edge.node.source)],
                hint="give every parameter to one optimiser, once; of several losses, add the gradients",
            )
        if name not in gradients:
            raise tp.errors.ProgramError(
                f"there is no gradient for {name}",
                places=[("here", tp.errors.user_line())],
                hint="gradients = tp.grad(loss, parameters), with the same names",
            )
        gradient = gradients[name]
        found[name] = gradient if isinstance(gradient, Tensor) else tp.constant(gradient, dtype=parameter.dtype)
        if found[name].shape != parameter.shape:
            raise tp.errors.ShapeError(
                f"the gradient for {name} has the shape {found[name].shape}, {name} has {parameter.shape}",
                places=[("here", tp.errors.user_line()), (parameter.name, parameter.edge.node.source)],
                hint="gradients = tp.grad(loss, parameters), with the same names",
            )
    return found
