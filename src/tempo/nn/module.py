"""Modules: plain classes whose attributes are parameters, other modules, and lists, tuples or dicts of these.

A module is made without a program. ``net = model.declare(prog)`` declares its parameters there, and gives a copy of
the model whose parameters are that program's tensors; the model itself stays as it is, for other programs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import tempo as tp

ModuleT = TypeVar("ModuleT", bound="Module")


@dataclass(eq=False)
class Parameter:
    """A parameter that is not declared yet: its shape, its initialiser ``init(shape, dtype)``, and its dtype if it
    is not to be the one that ``declare`` gives."""

    shape: tuple[int, ...]
    init: Callable[..., Any] | None = None
    dtype: Any = None

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise tp.errors.ProgramError(
            f"a parameter of shape {self.shape} has no value: its module was not declared in a program",
            places=[("here", tp.errors.user_line())],
            hint="net = model.declare(prog), then call net in place of model",
        )


class Module:
    """The base of all layers and models.

    ``__init__`` makes parameters, ``__call__`` computes with them as with tensors:

        class Scale(nn.Module):
            def __init__(self, size):
                self.weight = nn.Parameter((size,), nn.init.ones)

            def __call__(self, x):
                return self.weight * x
    """

    def declare(
        self: ModuleT, prog: tp.Program, prefix: str = "", init: bool = True, dtype: Any = tp.float32
    ) -> ModuleT:
        """This module with its parameters declared by ``prog.param``: the one to call in this program.

        Parameters are named by their attributes, ``layers.0.weight``, behind ``prefix`` if there is one. With
        ``init=False`` they have no initialisers: their values are inputs of the program, given by name. A parameter
        or a module that occurs twice is shared, under the first of its names.
        """
        copies: dict[int, Any] = {}

        def declared(value: Any, name: str) -> Any:
            if id(value) in copies:
                return copies[id(value)]
            if isinstance(value, Parameter):
                wanted = dtype if value.dtype is None else value.dtype
                copies[id(value)] = prog.param(name, value.shape, wanted, value.init if init else None)
                return copies[id(value)]
            if isinstance(value, Module):
                copies[id(value)] = module = copy.copy(value)
                vars(module).update({key: declared(part, _join(name, key)) for key, part in _parts(value)})
                return module
            if isinstance(value, dict):
                return {key: declared(part, _join(name, key)) for key, part in _parts(value)}
            if isinstance(value, list | tuple):
                return _sequence_of(value, [declared(part, _join(name, key)) for key, part in _parts(value)])
            return value

        net: ModuleT = declared(self, prefix)
        return net

    def parameters(self) -> dict[str, Any]:
        """The parameters by name: tensors of the program that the module is declared in, else ``Parameter`` objects,
        whose initialisers can be changed."""
        found: dict[int, tuple[str, Any]] = {}
        seen: set[int] = set()
        declared: dict[tp.Program, set[int]] = {}

        def is_parameter(value: Any) -> bool:
            if not isinstance(value, tp.RecurrentTensor):
                return isinstance(value, Parameter)
            if value.program not in declared:
                declared[value.program] = {id(tensor) for tensor in value.program.params.values()}
            return id(value) in declared[value.program]

        def walk(value: Any, name: str) -> None:
            if is_parameter(value):
                found.setdefault(id(value), (name, value))
            elif isinstance(value, Module | list | tuple | dict) and id(value) not in seen:
                seen.add(id(value))
                for key, part in _parts(value):
                    walk(part, _join(name, key))

        walk(self, "")
        return dict(found.values())


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a module, a dict, a list or a tuple holds, by name."""
    if isinstance(value, Module | dict):
        yield from (vars(value) if isinstance(value, Module) else value).items()
    else:
        yield from enumerate(value)


def _sequence_of(like: Any, parts: list[Any]) -> Any:
    """A list, a tuple or a named tuple as ``like`` is, of other parts. Named tuples take them one by one."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def _join(prefix: str, name: Any) -> str:
    return f"{prefix}.{name}" if prefix else str(name)
