"""The parameters of models that are made of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tempo as tp
from tempo.batching.cell import Cell
from tempo.batching.trace import Trace, can_be_data
from tempo.errors import DtypeError, InputError, ShapeError

Array = Any


class Parametrised:
    """A model with named cells and the values of their parameters, at first made of ``seed``."""

    def __init__(self, cells: Mapping[str, Cell], seed: int) -> None:
        self.cells = dict(cells)
        self.seed = seed
        self._module = _together(self.cells)
        self._names = _names(self.cells, self._module)
        self._parameters: dict[str, Array] | None = None
        self._seen: dict[str, Array] = {}
        """The values that are known to be such."""

    @property
    def parameters(self) -> dict[str, Array]:
        if self._parameters is None:
            self._parameters = _initial(self._module, self.seed)
        return self._parameters

    @parameters.setter
    def parameters(self, values: Mapping[str, Array]) -> None:
        self._parameters = _checked(self._module, values)

    def given(self, values: Mapping[str, Array] | None) -> dict[str, Array]:
        """The values to be used: the model's own if there are no others."""
        if values is not None:
            return _checked(self._module, values)
        own = self.parameters
        # Who has that dict may have put something else into it, or donated what is there.
        if own.keys() != self._seen.keys() or any(own[n] is not a or a.is_deleted() for n, a in self._seen.items()):
            own.update(_checked(self._module, own))
            self._seen = dict(own)
        return own

    def own(self, trace: Trace) -> list[str]:
        """The model's names of the parameters that a cell reads."""
        return [self._names[trace.cell, name] for name in trace.parameters]

    def own_values(self, cell: Cell, values: Mapping[str, Array]) -> dict[str, Array]:
        """The values of a cell's parameters by their names in the cell."""
        return {name: values[here] for (one, name), here in self._names.items() if one is cell}


def _together(cells: Mapping[str, Cell]) -> tp.nn.Module:
    """The cells' modules as one, under the cells' names: what occurs in two of them is one parameter."""
    together = tp.nn.Module()
    vars(together).update({name: one.module for name, one in cells.items() if one.module is not None})
    return together


def _names(cells: Mapping[str, Cell], module: tp.nn.Module) -> dict[tuple[Cell, str], str]:
    """The model's name of every cell's parameter: what is shared has the first of its names."""
    names = {id(parameter): name for name, parameter in module.parameters().items()}
    return {
        (one, name): names[id(parameter)]
        for one in cells.values()
        if one.module is not None
        for name, parameter in one.module.parameters().items()
    }


def _initial(module: tp.nn.Module, seed: int) -> dict[str, Array]:
    """The values that a module's initialisers give its parameters."""
    if not module.parameters():
        return {}
    with tp.Program("parameters") as prog:
        declared = module.declare(prog)
        for name, tensor in declared.parameters().items():
            prog.output(name, tensor)
    made = prog.compile(seed=seed)()
    return {name: jnp.asarray(made[name]) for name in module.parameters()}


def _checked(module: tp.nn.Module, values: Mapping[str, Array]) -> dict[str, Array]:
    """Values for a module's parameters, on the device."""
    wanted = module.parameters()
    for name in wanted:
        if name not in values:
            raise InputError(f"there is no value for parameter {name}", hint=f"needed: {', '.join(wanted)}")
    for name, value in values.items():
        if name not in wanted:
            raise InputError(f"there is no parameter {name}", hint=f"there are: {', '.join(wanted) or 'none'}")
        _check_value(name, value, tuple(wanted[name].shape))
    dtypes = {name: np.dtype(wanted[name].dtype or np.float32) for name in wanted}
    return {name: _own(values[name], dtypes[name]) for name in wanted}


def _check_value(name: str, value: Any, expected: Sequence[Any]) -> None:
    if not isinstance(value, jax.Array):
        try:
            value = np.asarray(value)
        except ValueError:
            raise ShapeError(f"parameter {name} has shape {expected}, found rows of different lengths") from None
    elif value.is_deleted():
        raise InputError(
            f"parameter {name} is an array that JAX has deleted",
            hint="arrays of JAX's are not copied: do not donate them, or give a copy",
        )
    if value.shape != expected:
        raise ShapeError(f"parameter {name} has shape {expected}, found {value.shape}")
    if not can_be_data(value.dtype):
        raise DtypeError(f"parameter {name} is given values of dtype {value.dtype}", hint="parameters are real numbers")


def _own(value: Array, dtype: np.dtype[Any]) -> Array:
    """An array of JAX's, which nobody writes to: of NumPy's it would have the memory, where there is but one."""
    return jnp.asarray(value, dtype) if isinstance(value, jax.Array) else jnp.array(value, dtype)
