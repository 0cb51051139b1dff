"""Modules: plain classes whose attributes are parameters, other modules, and lists, tuples or dicts of these.

A module is made without a program. ``net = model.declare(prog)`` declares its parameters there, and gives a copy of
the model whose parameters are that program's tensors; the model itself stays as it is, for other programs.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping
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

        def declared(value: Any, name: str) -> Any:
            if not isinstance(value, Parameter):
                return value
            wanted = dtype if value.dtype is None else value.dtype
            return prog.param(name, value.shape, wanted, value.init if init else None)

        return _copied(self, prefix, declared)

    def with_parameters(self: ModuleT, values: Mapping[str, tp.RecurrentTensor]) -> ModuleT:
        """This module with other tensors in place of its parameters, by name: what it computes with weights that were
        adapted, averaged, disturbed or cast. Parameters that are not named stay as they are."""
        own = self.parameters()
        for name, value in values.items():
            if name not in own:
                likely = difflib.get_close_matches(name, own, n=1) or list(own)[:1]
                raise tp.errors.ProgramError(
                    f"{type(self).__name__} has no parameter {name!r}",
                    places=[("here", tp.errors.user_line())],
                    hint=f"names are those of .parameters(), such as {likely[0]!r}" if likely else "",
                )
            if value.shape != own[name].shape:
                raise tp.errors.ShapeError(
                    f"{type(self).__name__}: {name} has shape {own[name].shape}, not {value.shape}",
                    places=[("here", tp.errors.user_line())],
                )
        others = {id(own[name]): value for name, value in values.items()}
        given = tuple(values.get(name, value) for name, value in own.items())
        return _copied(self, "", lambda value, name: others.get(id(value), value), _given=given)

    def parameters(self) -> dict[str, Any]:
        """The parameters by name: tensors of the program that the module is declared in, else ``Parameter`` objects,
        whose initialisers can be changed."""
        given = {id(tensor) for tensor in getattr(self, "_given", ())}
        found: dict[int, tuple[str, Any]] = {}
        seen: set[int] = set()
        declared: dict[tp.Program, set[int]] = {}

        def is_parameter(value: Any) -> bool:
            if not isinstance(value, tp.RecurrentTensor):
                return isinstance(value, Parameter)
            if id(value) in given:
                return True
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


def _copied(root: ModuleT, prefix: str, replaced: Callable[[Any, str], Any], **attributes: Any) -> ModuleT:
    """A copy of a module with ``replaced(part, name)`` for every part that holds no others. All modules in it get these
    attributes, too. What occurs twice is replaced once, by its first name."""
    copies: dict[int, Any] = {}

    def copied(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: copied(part, _join(name, key)) for key, part in _parts(value)}
        if isinstance(value, list | tuple):
            return _sequence_of(value, [copied(part, _join(name, key)) for key, part in _parts(value)])
        if id(value) not in copies:
            if isinstance(value, Module):
                copies[id(value)] = module = copy.copy(value)
                parts = {key: copied(part, _join(name, key)) for key, part in _parts(value)}
                vars(module).update(parts, **attributes)
            else:
                copies[id(value)] = replaced(value, name)
        return copies[id(value)]

    whole: ModuleT = copied(root, prefix)
    return whole


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a module, a dict, a list or a tuple holds, by name."""
    if isinstance(value, Module):
        yield from ((name, part) for name, part in vars(value).items() if name != "_given")
    elif isinstance(value, dict):
        yield from value.items()
    else:
        yield from enumerate(value)


def _sequence_of(like: Any, parts: list[Any]) -> Any:
    """A list, a tuple or a named tuple as ``like`` is, of other parts. Named tuples take them one by one."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def _join(prefix: str, name: Any) -> str:
    return f"{prefix}.{name}" if prefix else str(name)
