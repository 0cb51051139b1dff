"""The syntax of recipes: expressions and statements of a Tempo program, as data.

Everything prints as the Python that writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tempo.testing.terms import Condition, Item, Point, Symbol, Term

Size = int | Term
Shape = tuple[Size, ...]
Names = tuple[str, ...]
# What stands between the brackets on the left of a case.
Key = Condition | tuple[Term, ...]


@dataclass(frozen=True)
class Type:
    """What a tensor is: the dims it varies over, its shape at a point (sizes may be terms), its dtype."""

    domain: Names
    shape: Shape
    dtype: str


# -- expressions ------------------------------------------------------------------------------------------


class Expression:
    """A tensor-valued expression."""


@dataclass(frozen=True)
class Literal(Expression):
    """A Python number."""

    value: bool | int | float

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Steps(Expression):
    """An index term as a tensor: ``t.value``, ``tp.index_value(T - 1 - t)``; bare beside a tensor: ``x * (t + 1)``."""

    term: Term
    bare: bool = False

    def __str__(self) -> str:
        if self.bare:
            return f"({self.term})"
        return f"{self.term}.value" if isinstance(self.term, Symbol) else f"tp.index_value({self.term})"


@dataclass(frozen=True)
class Holds(Expression):
    """A condition on dims as a bool tensor."""

    condition: Condition

    def __str__(self) -> str:
        return f"({self.condition})"


@dataclass(frozen=True)
class Read(Expression):
    """A named tensor through a temporal index, one item per dim of its domain."""

    name: str
    over: Names
    items: tuple[Item, ...]

    def __str__(self) -> str:
        here = [item == Point(Symbol(d), item.kind) for d, item in zip(self.over, self.items, strict=True)]
        if all(here):
            return self.name
        texts = [str(item) for item in self.items]
        # Trailing dims may be left out, leading ones stand for "...": use both spellings.
        while here[-1]:
            here.pop()
            texts.pop()
        leading = here.index(False)
        if leading and len(texts) == len(self.items):
            texts = ["...", *texts[leading:]]
        return f"{self.name}[{', '.join(texts)}]"


@dataclass(frozen=True)
class Apply(Expression):
    """A function of tensors. ``dtype`` is the dtype of the result."""

    function: str
    arguments: tuple[Expression, ...]
    dtype: str
    attributes: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        from tempo.testing.functions import show_application

        return show_application(self)


@dataclass(frozen=True)
class Draw(Expression):
    """Random numbers: ``tp.random.normal((2,), domain=(t,))``."""

    kind: str
    arguments: tuple[Any, ...]
    domain: Names
    dtype: str
    attributes: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        shown = [show(a) for a in self.arguments]
        shown.append(f"domain={show_names(self.domain)}")
        shown += [f"{key}={show(value)}" for key, value in self.attributes]
        return f"tp.random.{self.kind}({', '.join(shown)})"


@dataclass(frozen=True)
class Host(Expression):
    """A call of Python. The first argument is a number for the point at which it is made."""

    name: str
    arguments: tuple[Expression, ...]
    sequence: Names
    batch: Names
    shape: tuple[int, ...]
    dtype: str

    @property
    def domain(self) -> Names:
        return (*self.sequence, *self.batch)

    def __str__(self) -> str:
        shape = show(self.shape)
        shown = [f'host_function("{self.name}", {shape}, "{self.dtype}")', *map(str, self.arguments)]
        shown.append(f'out=tp.spec({shape}, "{self.dtype}")')
        shown += [f"sequence={show_names(self.sequence)}", f"batch={show_names(self.batch)}"]
        return f"tp.host({', '.join(shown)})"


def show(value: Any) -> str:
    """An attribute as source."""
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    return str(value) if isinstance(value, Term | Expression) else repr(value)


def show_names(names: Names) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def operands(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Apply() | Host():
            return expression.arguments
        case Draw():
            return tuple(a for a in expression.arguments if isinstance(a, Expression))
    return ()


def parts(expression: Expression) -> Iterator[Expression]:
    """An expression and everything inside it."""
    yield expression
    for operand in operands(expression):
        yield from parts(operand)


def rebuild(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with ``change`` applied to every part, innermost first."""
    if isinstance(expression, Apply | Host):
        inner = tuple(rebuild(a, change) for a in expression.arguments)
        expression = replace(expression, arguments=inner)
    elif isinstance(expression, Draw):
        changed = tuple(rebuild(a, change) if isinstance(a, Expression) else a for a in expression.arguments)
        expression = replace(expression, arguments=changed)
    return change(expression)


def symbols(expression: Expression) -> frozenset[str]:
    """Every dim and bound that an expression mentions."""
    found: set[str] = set()
    for part in parts(expression):
        match part:
            case Steps():
                found |= part.term.symbols()
            case Holds():
                found |= part.condition.symbols()
            case Read():
                found.update(*(item.symbols() for item in part.items))
            case Apply():
                found |= _attribute_symbols(tuple(value for _, value in part.attributes))
            case Draw() | Host():
                found.update(part.domain)
    return frozenset(found)


def _attribute_symbols(value: Any) -> frozenset[str]:
    if isinstance(value, Term):
        return value.symbols()
    if isinstance(value, tuple):
        return frozenset().union(*map(_attribute_symbols, value))
    return frozenset()


# -- statements -------------------------------------------------------------------------------------------


class Statement:
    """One line of a program."""


@dataclass(frozen=True)
class Input(Statement):
    """``x = prog.input(...)``, and the seed of the numbers given for it."""

    name: str
    type: Type
    seed: int

    def __str__(self) -> str:
        return f"{self.name} = prog.input({_declaration(self.name, self.type)})"


@dataclass(frozen=True)
class Recurrent(Statement):
    name: str
    type: Type

    def __str__(self) -> str:
        return f"{self.name} = prog.recurrent({_declaration(self.name, self.type)})"


@dataclass(frozen=True)
class State(Statement):
    name: str
    type: Type
    init: Expression
    over: Names

    def __str__(self) -> str:
        given = f"over={show_names(self.over)}, domain={show_names(self.type.domain)}"
        return f'{self.name} = prog.state("{self.name}", {self.init}, {given})'


@dataclass(frozen=True)
class Let(Statement):
    """``a = ...``"""

    name: str
    type: Type
    value: Expression

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


@dataclass(frozen=True)
class Case(Statement):
    """``x[key] = value``: the key is a condition, or a target per dim."""

    name: str
    key: Key
    value: Expression

    def __str__(self) -> str:
        key = ", ".join(map(str, self.key)) if isinstance(self.key, tuple) else str(self.key)
        return f"{self.name}[{key or '...'}] = {self.value}"


@dataclass(frozen=True)
class Next(Statement):
    """``w.next = value``"""

    name: str
    value: Expression

    def __str__(self) -> str:
        return f"{self.name}.next = {self.value}"


@dataclass(frozen=True)
class Gradients(Statement):
    """``g, h = tp.grad(loss, (x, y))``"""

    names: Names
    loss: str
    wrt: Names

    def __str__(self) -> str:
        wrt = self.wrt[0] if len(self.wrt) == 1 else show_names(self.wrt)
        return f"{', '.join(self.names)} = tp.grad({self.loss}, {wrt})"


@dataclass(frozen=True)
class Stop(Statement):
    """``prog.stop(t, when=...)``"""

    dim: str
    when: Expression

    def __str__(self) -> str:
        return f"prog.stop({self.dim}, when={self.when})"


@dataclass(frozen=True)
class Output(Statement):
    """``prog.output("y", y)``, or ``prog.emit``."""

    name: str
    value: Expression
    emit: bool = False

    def __str__(self) -> str:
        return f'prog.{"emit" if self.emit else "output"}("{self.name}", {self.value})'


def _declaration(name: str, type: Type) -> str:
    return f'"{name}", shape={show(type.shape)}, domain={show_names(type.domain)}, dtype="{type.dtype}"'


# -- looking at statements ---------------------------------------------------------------------------------


def expressions(statement: Statement) -> tuple[Expression, ...]:
    """The expressions of a statement."""
    match statement:
        case Let() | Case() | Next() | Output():
            return (statement.value,)
        case State():
            return (statement.init,)
        case Stop():
            return (statement.when,)
    return ()


def changed(statement: Statement, change: Callable[[Expression], Expression]) -> Statement:
    """The statement with ``change`` applied to every part of its expressions."""
    match statement:
        case Let() | Case() | Next() | Output():
            return replace(statement, value=rebuild(statement.value, change))
        case State():
            return replace(statement, init=rebuild(statement.init, change))
        case Stop():
            return replace(statement, when=rebuild(statement.when, change))
    return statement


def used(statement: Statement) -> set[str]:
    """The tensors that a statement reads."""
    names = {p.name for e in expressions(statement) for p in parts(e) if isinstance(p, Read)}
    if isinstance(statement, Gradients):
        names |= {statement.loss, *statement.wrt}
    return names


def defines(statement: Statement) -> Names:
    """The tensors that a statement declares or says something about."""
    match statement:
        case Input() | Recurrent() | State() | Let() | Case() | Next():
            return (statement.name,)
        case Gradients():
            return statement.names
    return ()
