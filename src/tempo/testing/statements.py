"""Drawing statements: inputs, named values, random numbers, gradients, results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tempo.testing.choices import Choices
from tempo.testing.expressions import FLOATS, is_float, is_symbolic
from tempo.testing.reading import Height, Place, Scope, Tensor, Value
from tempo.testing.recipe import Dim, depends, places
from tempo.testing.sequences import Sequences
from tempo.testing.syntax import (
    Draw,
    Expression,
    Gradients,
    Host,
    Input,
    Let,
    Names,
    Output,
    Read,
    Shape,
    Statement,
    Steps,
    Type,
    symbols,
)
from tempo.testing.terms import Item, Number, Point, Span, Symbol, Term

SHAPES: tuple[Shape, ...] = ((), (), (2,), (3, 2))
# Nothing is known about the size of gradients: whoever reads one makes it small first.
UNKNOWN = 1e6
# Every order multiplies the size of the graph: one of the third is only drawn of a loss that needs few tensors.
MOST_ORDERS = 3
FEW_TENSORS = 8


class Statements(Sequences):
    """Draws statements one after the other; each may read what was drawn before."""

    def __init__(self, choices: Choices, dims: tuple[Dim, ...], smooth: bool) -> None:
        super().__init__(choices, dims, smooth)
        self.all = tuple(d.name for d in dims)
        self.statements: list[Statement] = []
        self.numbers = itertools.count()
        self.orders: dict[str, int] = {}

    def name(self, letter: str) -> str:
        return f"{letter}{next(self.numbers)}"

    def domain(self) -> Names:
        """Some dims, in order; all of them more often than not."""
        if self.choices.boolean(0.4):
            return tuple(d for d in self.all if self.choices.boolean())
        return self.all

    def dtype(self) -> str:
        if self.choices.boolean(0.2):
            return self.choices.choice(("int32", "bool"))
        return "float64" if self.smooth else self.choices.choice(("float32", "float32", *FLOATS))

    def places(self, dims: Names) -> list[dict[str, int]]:
        """Every point over some dims, with the bounds."""
        return places(tuple(self.dims.values()), dims)

    def box(self, domain: Names) -> frozenset[Place]:
        return frozenset(itertools.product(*(range(self.number(d)) for d in domain)))

    def add(self, statement: Statement, *tensors: Tensor) -> None:
        self.statements.append(statement)
        self.tensors.extend(tensors)

    # -- values -------------------------------------------------------------------------------------------

    def draw_input(self) -> None:
        type = Type(self.domain(), self.choices.choice(SHAPES), self.dtype())
        name = self.name("x")
        bound = 3.0 if type.dtype == "int32" else 1.0
        tensor = Tensor(name, type, self.box(type.domain), bound, "input")
        self.add(Input(name, type, self.choices.integer(0, 99)), tensor)

    def draw_let(self) -> None:
        """``a = ...``; possibly undefined at some points, and then only read elsewhere."""
        scope = self.open_scope()
        shape, dtype = self.choices.choice(SHAPES), self.dtype()
        self.bind(scope, self.value(scope, shape, dtype, self.choices.integer(1, 2)))

    def draw_table(self) -> None:
        """``a = ...`` to be selected from."""
        scope = self.open_scope()
        dtype = self.choices.choice(("int32", self._float()))
        self.bind(scope, self.table(scope, dtype, self.choices.integer(0, 1)))

    def draw_view(self) -> None:
        """``a = x[...]``: another name for a part of a tensor, to be indexed again."""
        scope = self.open_scope()
        tensor = self.choices.choice([x for x in self.tensors if x.type.domain] or self.tensors)
        sliced = 1 if tensor.type.domain and self.choices.boolean(0.3) else 0
        found = self.read(scope, tensor, sliced)
        if found is not None and str(found.expression) != tensor.name:
            self.bind(scope, found)

    def draw_sequence(self) -> None:
        """``a = ...`` with an axis of symbolic size."""
        scope = self.open_scope()
        x = self.sequence(scope, self._float() if self.choices.boolean(0.8) else "int32")
        if x is not None:
            self.bind(scope, self.worked(scope, x))

    def open_scope(self) -> Scope:
        dims = self.domain()
        return Scope(dims, self.places(dims), partial=self.choices.boolean(0.4))

    def bind(self, scope: Scope, value: Value, letter: str = "a") -> Tensor:
        """Name a value."""
        found = symbols(value.expression)
        domain = tuple(d for d in self.all if d in found)
        heights: dict[Place, Height] = {}
        for place, height in zip(scope.places, scope.heights, strict=True):
            point = tuple(place[d] for d in domain)
            heights[point] = max(heights.get(point, height), height)
        if str(value.expression) in {x.name for x in self.tensors}:
            # Another name for the same tensor would be defined wherever the tensor is, not only here.
            value = self.apply("copy", [value], value.shape, value.dtype, value.bound)
        name = self.name(letter)
        kind = "view" if isinstance(value.expression, Read) else "let"
        type = Type(domain, value.shape, value.dtype)
        known = heights if any(heights.values()) else None
        tensor = Tensor(name, type, frozenset(heights), value.bound, kind, known)
        self.add(Let(name, type, value.expression), tensor)
        return tensor

    def draw_random(self) -> None:
        """Random numbers."""
        domain = self.domain()
        kinds = ["normal", "uniform", "randint", "bernoulli"]
        if not self.smooth:
            kinds += ["categorical", "permutation"]
        kind = self.choices.choice(kinds)
        shape = self.choices.choice(SHAPES)
        dtype, bound = "int32", 4.0
        attributes: tuple[tuple[str, object], ...] = ()
        arguments: tuple[object, ...]
        match kind:
            case "normal" | "uniform":
                dtype, bound = self._float(), 9.0
                arguments, attributes = (shape,), (("dtype", dtype),)
            case "randint":
                arguments = (-2, 4, shape)
            case "bernoulli":
                dtype, bound, arguments = "bool", 1.0, (0.5, shape)
            case "permutation":
                shape, arguments = (3,), (3,)
            case _:
                scope = Scope(domain, self.places(domain))
                logits = self.value(scope, (3,), "float32", 1)
                shape, arguments = (), (logits.expression,)
        name = self.name("r")
        type = Type(domain, shape, dtype)
        tensor = Tensor(name, type, self.box(domain), bound, "random")
        self.add(Let(name, type, Draw(kind, arguments, domain, dtype, attributes)), tensor)
        # What is drawn cannot be computed twice, only looked at.
        self.output(tensor)

    def draw_host(self) -> None:
        """Results of a host function: one call per step of some dims, for all steps of the others at once."""
        domain = self.domain() or self.all[:1]
        batch = tuple(d for d in domain if self.choices.boolean(0.3))
        sequence = tuple(d for d in domain if d not in batch)
        scope = Scope(domain, self.places(domain))
        number: Term = Number(0)
        for d in domain:
            number = Symbol(d) if number == Number(0) else number * 10 + Symbol(d)
        arguments: list[Expression] = [Steps(number)]
        for _ in range(self.choices.integer(0, 2)):
            # No gradient flows through a call.
            dtype = self.choices.choice(("int32", "bool")) if self.smooth else self.dtype()
            shape = self.choices.choice(SHAPES)
            arguments.append(self.value(scope, shape, dtype, self.choices.integer(0, 1)).expression)
        name, shape, dtype = self.name("h"), self.choices.choice(SHAPES), self.dtype()
        sizes = tuple(size for size in shape if isinstance(size, int))
        type = Type(domain, shape, dtype)
        # A call comes after all calls before it, and after what is needed for any point of its batch.
        heights: dict[Place, Height] = {}
        highest: Height = ()
        for step in self.places(sequence):
            together = [n for n, p in enumerate(scope.places) if all(p[d] == step[d] for d in sequence)]
            highest = max(highest, *(scope.heights[n] for n in together))
            heights.update({tuple(scope.places[n][d] for d in domain): highest for n in together})
        known = heights if highest else None
        bound = {"int32": 4.0}.get(dtype, 1.0)
        tensor = Tensor(name, type, self.box(domain), bound, "host", known)
        self.add(Let(name, type, Host(name, tuple(arguments), sequence, batch, sizes, dtype)), tensor)

    # -- gradients ----------------------------------------------------------------------------------------

    def draw_gradient(self) -> None:
        """A scalar loss from some tensors, and its gradient with respect to some of what it depends on."""
        sources = [x for x in self.tensors if is_float(x.type.dtype) and not is_symbolic(x.type.shape)]
        if not sources:
            return
        dims = self.domain() if self.choices.boolean(0.4) else ()
        scope = Scope(dims, self.places(dims))
        source = self.choices.choice(sources[-3:] if self.choices.boolean(0.7) else sources)
        total = self.collapsed(scope, source)
        if total is None:
            return
        other = self.value(scope, (), total.dtype, self.choices.integer(0, 2))
        sign = self.choices.choice(("+", "*"))
        loss = self.bind(scope, self.apply(sign, [total, other], (), total.dtype, UNKNOWN), "l")
        possible = self.differentiable(loss)
        order = self.order(loss)
        if not possible or order > MOST_ORDERS:
            return
        if order == MOST_ORDERS and len(depends(self.statements, [loss.name])) > FEW_TENSORS:
            return
        count = min(len(possible), self.choices.integer(1, 2))
        wrt = [possible.pop(self.choices.integer(0, len(possible) - 1)) for _ in range(count)]
        self.gradients(loss, wrt)
        self.output(loss)

    def gradients(self, loss: Tensor, wrt: Sequence[Tensor]) -> list[Tensor]:
        names = tuple(self.name("g") for _ in wrt)
        self.orders.update(dict.fromkeys(names, self.order(loss)))
        found = []
        for name, x in zip(names, wrt, strict=True):
            defined = self.handed_out(x) if x.kind in ("recurrent", "state") else self.box(x.type.domain)
            found.append(Tensor(name, x.type, defined, UNKNOWN, "gradient"))
        self.add(Gradients(names, loss.name, tuple(x.name for x in wrt)))
        for tensor in found:
            self.output(tensor)
        # Two ways of adding up a gradient differ by rounding, which discontinuous functions would blow up.
        self.tensors.extend(found if self.smooth else ())
        return found

    def handed_out(self, tensor: Tensor) -> frozenset[Place]:
        """The points of a tensor defined by cases that an output has: all, if they are a box, else all steps."""
        ranges = [{p[n] for p in tensor.defined} for n in range(len(tensor.type.domain))]
        is_box = all(p in tensor.defined for p in itertools.product(*ranges))
        return tensor.defined if is_box else tensor.defined & self.box(tensor.type.domain)

    def collapsed(self, scope: Scope, tensor: Tensor) -> Value | None:
        """A scalar of a tensor: at this point over the scope's dims, all of it over the others."""
        items: list[Item] = []
        for n, d in enumerate(tensor.type.domain):
            if d in scope.dims:
                items.append(Point(Symbol(d), "here"))
                continue
            steps = sorted({p[n] for p in tensor.defined})
            if not steps:
                return None
            start, stop = Number(steps[0]), steps[-1] + 1
            offset = stop - self.number(d)
            end: Term = self.limit(d) + offset if offset else self.limit(d)
            items.append(Span(start, end if stop > 0 else Number(stop), "all"))
        if not self.accept(scope, tensor, tuple(items)):
            found = self.read(scope, tensor)
        else:
            found = self.through(tensor, tuple(items))
        if found is None:
            return None
        x = found
        if self.choices.boolean(0.6):
            x = self.apply("*", [x, x], x.shape, x.dtype, x.bound**2)
        if x.shape:
            x = self.apply("sum", [x], (), x.dtype, UNKNOWN)
        return x

    def order(self, loss: Tensor) -> int:
        """The order of a gradient of this loss: one more than those of the gradients that it depends on."""
        needed = depends(self.statements, [loss.name])
        return 1 + max((self.orders[name] for name in needed if name in self.orders), default=0)

    def differentiable(self, loss: Tensor) -> list[Tensor]:
        """The tensors that the loss depends on (and a few others), of which there are gradients."""
        needed = depends(self.statements, [loss.name])
        kinds = ["input", "recurrent", "state"]
        # A gradient may be computed from the result of an operation (that of tanh is) or from its operands: how it
        # depends on the result, as if that were a variable of its own, is not defined.
        if self.order(loss) == 1:
            kinds.append("let")
        return [
            x
            for x in self.tensors
            if (x.name in needed or self.choices.boolean(0.03))
            and x.name != loss.name
            and x.kind in kinds
            and is_float(x.type.dtype)
            and not is_symbolic(x.type.shape)
        ]

    # -- results ------------------------------------------------------------------------------------------

    def output(self, tensor: Tensor, emit: bool = False) -> None:
        if any(isinstance(s, Output) and s.name == tensor.name for s in self.statements):
            return
        domain = tensor.type.domain
        here = Read(tensor.name, domain, tuple(Point(Symbol(d), "here") for d in domain))
        self.add(Output(tensor.name, here, emit))

    def draw_outputs(self) -> None:
        """The last tensor and some of the others; one of them read through an index."""
        possible = [x for x in self.tensors if self.may_be_output(x)]
        for n, tensor in enumerate(reversed(possible)):
            if n == 0 or self.choices.boolean(0.4):
                self.output(tensor, emit=self.choices.boolean(0.1))
        if self.choices.boolean(0.3):
            dims = self.domain()
            scope = Scope(dims, self.places(dims))
            usable = [x for x in self.tensors if not is_symbolic(x.type.shape)]
            value = self.read(scope, self.choices.choice(usable), self.choices.boolean(0.2))
            if value is not None and not self.varies(value.shape):
                self.add(Output(self.name("y"), value.expression))

    def may_be_output(self, tensor: Tensor) -> bool:
        return self.box(tensor.type.domain) <= tensor.defined and not self.varies(tensor.type.shape)

    def varies(self, shape: Shape) -> bool:
        """Whether a shape differs from point to point."""
        return any(isinstance(size, Term) and size.symbols() & set(self.all) for size in shape)
