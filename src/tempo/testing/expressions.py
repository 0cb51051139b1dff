"""Drawing expressions of a given shape and dtype.

Every value carries a bound on its magnitude, so that nothing grows however often a recurrence is gone through. In a
smooth program floats are float64, everything is differentiable, and integers and bools never come from floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tempo
from tempo import symbolic
from tempo.testing.choices import Choices
from tempo.testing.functions import promote
from tempo.testing.reading import Reader, Scope, Tensor, Value
from tempo.testing.recipe import Dim
from tempo.testing.syntax import Apply, Expression, Holds, Literal, Shape, Steps
from tempo.testing.terms import Combination, Comparison, Condition, Negation, Number, Symbol, Term

FLOATS = ("float32", "float64", "bfloat16")
# Values stay below this: an exp of it is still a number in every dtype.
LARGEST = 50.0

# name: (largest magnitude for arguments up to b, whether it is smooth)
UNARY: dict[str, tuple[Any, bool]] = {
    "tanh": (lambda b: 1.0, True),
    "sin": (lambda b: 1.0, True),
    "negative": (lambda b: b, True),
    "square": (lambda b: b * b, True),
    "sigmoid": (lambda b: 1.0, True),
    "cos": (lambda b: 1.0, True),
    "erf": (lambda b: 1.0, True),
    "softplus": (lambda b: b + 1, True),
    "silu": (lambda b: b, True),
    "gelu": (lambda b: b, True),
    "copy": (lambda b: b, True),
    "relu": (lambda b: b, False),
    "abs": (lambda b: b, False),
    "sign": (lambda b: 1.0, False),
    "floor": (lambda b: b + 1, False),
    "ceil": (lambda b: b + 1, False),
    "round": (lambda b: b + 1, False),
    "stop_gradient": (lambda b: b, False),
}
# Functions whose argument is kept away from where they are not defined, or grow.
ON_POSITIVE = {"sqrt": 1.0, "log": 1.0, "rsqrt": 1.0, "reciprocal": 1.0, "log1p": 0.0}


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


class Expressions(Reader):
    """Draws expressions over the tensors that are there."""

    def __init__(self, choices: Choices, dims: tuple[Dim, ...], smooth: bool) -> None:
        super().__init__(choices, dims)
        self.smooth = smooth
        self.tensors: list[Tensor] = []

    # -- any dtype --------------------------------------------------------------------------------------

    def value(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        """An expression of exactly this shape and dtype."""
        options = self._options(dtype) if depth > 0 else ["leaf"]
        kind = self.choices.choice(options)
        result = getattr(self, f"_{kind}")(scope, shape, dtype, depth - 1)
        return self.bounded(result, LARGEST)

    def _options(self, dtype: str) -> list[str]:
        if is_float(dtype):
            return [
                "leaf",
                "unary",
                "unary",
                "binary",
                "binary",
                "binary",
                "scaled",
                "reduced",
                "reduced",
                "reduced",
            ] + [
                "chosen",
                "contracted",
                "taken",
                "converted",
                "rearranged",
                "attended",
                "positive",
                "convolved",
                "selected",
            ]
        if dtype == "int32":
            return ["leaf", "steps", "whole", "whole", "reduced", "taken", "selected", "chosen", "rearranged"] + (
                ["steps"] if self.smooth else ["converted", "position", "position", "position"]
            )
        return ["leaf", "condition", "compared", "compared", "logic", "reduced", "chosen"]

    def bounded(self, value: Value, bound: float) -> Value:
        """The value, made smaller if it may exceed the bound."""
        if value.bound <= bound:
            return value
        if is_float(value.dtype):
            return self.apply("tanh", [value], value.shape, value.dtype, 1.0)
        return self.apply("%", [value, Literal(5)], value.shape, value.dtype, 4.0)

    def apply(
        self,
        function: str,
        arguments: Sequence[Value | Expression],
        shape: Shape,
        dtype: str,
        bound: float,
        /,
        **attributes: Any,
    ) -> Value:
        expressions = tuple(a.expression if isinstance(a, Value) else a for a in arguments)
        expression = Apply(function, expressions, dtype, tuple(attributes.items()))
        return Value(expression, shape, dtype, bound)

    def constant(self, shape: Shape, dtype: str) -> Value:
        number: bool | int | float
        if dtype == "bool":
            number = self.choices.boolean()
        elif dtype == "int32":
            number = self.choices.integer(0, 3)
        else:
            number = self.choices.choice((0.5, 1.0, -0.25))
        return self.apply("full", [], shape, dtype, abs(float(number)), shape=shape, value=number)

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        return self.apply("astype", [value], value.shape, dtype, max(value.bound, 1.0))

    def fit(self, value: Value, shape: Shape) -> Value:
        """The value brought to a shape of at most two axes, by reduction, indexing or broadcasting."""
        have = value.shape
        if have == shape:
            return value
        if len(have) < len(shape) and have == shape[len(shape) - len(have) :]:
            return self.apply("broadcast_to", [value], shape, value.dtype, value.bound, shape=shape)
        if not have:
            return self.apply("broadcast_to", [value], shape, value.dtype, value.bound, shape=shape)
        size = have[0]
        rest = have[1:]
        smaller = ["space", "sum"] if value.dtype != "bool" else ["space", "any"]
        kind = self.choices.choice(smaller) if isinstance(size, int) and size else smaller[1]
        if kind == "space":
            assert isinstance(size, int)
            key = (self.choices.integer(0, size - 1),)
            return self.fit(self.apply("space", [value], rest, value.dtype, value.bound, key=key), shape)
        bound = 1.0 if kind == "any" else value.bound * (size if isinstance(size, int) else 6)
        reduced = self.apply(kind, [value], rest, value.dtype, bound, axis=0)
        return self.fit(self.bounded(reduced, LARGEST), shape)

    # -- leaves -----------------------------------------------------------------------------------------

    def candidates(self, dtype: str) -> list[Tensor]:
        """Tensors whose values become this dtype without loss of kind; those being defined more often."""

        def fits(other: str) -> bool:
            if is_float(dtype):
                return is_float(other) or (other == "int32" and not self.smooth)
            return other == dtype or (dtype == "int32" and other == "bool")

        found = [x for x in self.tensors if fits(x.type.dtype)]
        exact = [x for x in found if x.type.dtype == dtype]
        members = [x for x in found if x.heights is not None]
        return exact + found + members * 3

    def _leaf(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        usable = [x for x in self.candidates(dtype) if not is_symbolic(x.type.shape)]
        if usable and not self.choices.boolean(0.05):
            tensor = self.choices.choice(usable)
            found = self.read(scope, tensor)
            if found is not None:
                return self.cast(self.fit(found, shape), dtype)
        if dtype == "bool":
            return self._condition(scope, shape, dtype, depth)
        return self.constant(shape, dtype)

    def _steps(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        if not scope.dims:
            return self._leaf(scope, shape, dtype, depth)
        d = self.choices.choice(scope.dims)
        term: Term = Symbol(d)
        if self.choices.boolean(0.3):
            term = self.limit(d) - 1 - term
        return self.fit(Value(Steps(term), (), "int32", self.number(d)), shape)

    def _condition(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        condition = self.condition(scope)
        if condition is None:
            return self.constant(shape, dtype)
        held = Value(Holds(condition), (), "bool", 1.0)
        # Alone it is a condition, not a tensor: make it one.
        held = self.apply("where", [held, Literal(True), Literal(False)], (), "bool", 1.0)
        return self.fit(held, shape)

    def condition(self, scope: Scope, depth: int = 1) -> Condition | None:
        """A condition on the dims of the scope."""
        drawn = self._drawn_condition(scope, depth) if scope.dims else None
        if drawn is None or self._keeps_its_symbols(drawn):
            return drawn
        d = scope.dims[0]
        return Comparison("<", Symbol(d), Number(self.choices.integer(1, self.number(d))))

    def _keeps_its_symbols(self, condition: Condition) -> bool:
        """Whether Tempo does not see that some of it does not matter: (t < 1) & (t >= 1) does not vary over t."""
        names = {n: symbolic.Bound(n) for d in self.dims.values() for n in (d.name, d.limit)}
        built = eval(str(condition), {"tp": tempo}, names)
        return {s.name for s in built.symbols()} == condition.symbols()

    def _drawn_condition(self, scope: Scope, depth: int) -> Condition:
        d = self.choices.choice(scope.dims)
        here, limit = Symbol(d), self.limit(d)
        others = [Symbol(o) for o in scope.dims if o != d]
        kinds = ["below", "above", "last", "equal", "even"] + ["compared"] * bool(others) * 2
        kind = self.choices.choice(kinds + ["both", "either", "not"] * (depth > 0))
        c = self.choices.integer(0, self.number(d))
        match kind:
            case "below":
                return Comparison("<", here, Number(c))
            case "above":
                return Comparison(">=", here, Number(c))
            case "last":
                return Comparison("<", here, limit - self.choices.integer(1, 2))
            case "equal":
                return Comparison(self.choices.choice(("==", "!=")), here, Number(c))
            case "even":
                return Comparison("==", here % 2, Number(self.choices.integer(0, 1)))
            case "compared":
                sign = self.choices.choice(("<", "<=", ">", ">=", "==", "!="))
                return Comparison(sign, here, self.choices.choice(others))
        first = self._drawn_condition(scope, depth - 1)
        if kind == "not":
            return Negation(first)
        second = self._drawn_condition(scope, depth - 1)
        return Combination("&" if kind == "both" else "|", first, second)

    # -- element by element -------------------------------------------------------------------------------

    def _unary(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        x = self.value(scope, shape, dtype, depth)
        names = [name for name, (_, smooth) in UNARY.items() if smooth or not self.smooth]
        name = self.choices.choice(names)
        return self.apply(name, [x], shape, dtype, UNARY[name][0](x.bound))

    def _positive(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        x = self.value(scope, shape, dtype, depth)
        name = self.choices.choice((*ON_POSITIVE, "exp", "expm1", "power", "clip"))
        if name == "clip":
            if self.smooth:
                return x
            return self.apply("clip", [x], shape, dtype, 0.5, a_min=-0.5, a_max=0.5)
        if name in ("exp", "expm1"):
            small = self.apply("tanh", [x], shape, dtype, 1.0)
            return self.apply(name, [small], shape, dtype, math.e)
        squared = self.apply("*", [x, x], shape, dtype, x.bound**2)
        above = self.apply("+", [squared, Literal(1.0)], shape, dtype, squared.bound + 1)
        if name == "power":
            return self.apply("power", [above, Literal(1.5)], shape, dtype, above.bound**1.5)
        if name == "log1p":
            return self.apply(name, [squared], shape, dtype, squared.bound)
        return self.apply(name, [above], shape, dtype, above.bound)

    def _scaled(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        x = self.value(scope, shape, dtype, depth)
        factor = self.choices.choice((0.5, 2.0, -0.3))
        if self.choices.boolean(0.3):
            return self.apply("+", [x, Literal(factor)], shape, dtype, x.bound + 2)
        return self.apply("*", [Literal(factor), x], shape, dtype, abs(factor) * x.bound)

    def _binary(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        a = self.value(scope, shape, dtype, depth)
        b = self.value(scope, self._smaller(shape), self._joining(dtype), depth)
        if self.choices.boolean(0.3):
            a, b = b, a
        names = ["+", "*", "-", "/", "logaddexp"] + ([] if self.smooth else ["minimum", "maximum"])
        name = self.choices.choice(names)
        if name == "/":
            squared = self.apply("*", [b, b], b.shape, b.dtype, b.bound**2)
            b = self.apply("+", [squared, Literal(1)], b.shape, b.dtype, squared.bound + 1)
        bounds = {"*": a.bound * b.bound, "/": a.bound, "minimum": max(a.bound, b.bound)}
        bound = bounds.get(name, max(a.bound, b.bound) if name == "maximum" else a.bound + b.bound + 1)
        return self.apply(name, [a, b], shape, dtype, bound)

    def _smaller(self, shape: Shape) -> Shape:
        """The shape, or one that broadcasts to it."""
        return shape[self.choices.integer(0, len(shape)) :] if self.choices.boolean(0.3) else shape

    def _joining(self, dtype: str) -> str:
        """A dtype that gives this one when it meets it."""
        joining = ["int32"] if self.smooth else [d for d in ("int32", *FLOATS) if promote(d, dtype) == dtype]
        return self.choices.choice(joining) if self.choices.boolean(0.15) else dtype

    def _whole(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        a = self.value(scope, shape, dtype, depth)
        name = self.choices.choice(("+", "-", "*", "%", "//", "minimum", "maximum", "abs", "negative", "sign"))
        if name in ("%", "//"):
            c = self.choices.integer(2, 4)
            return self.apply(name, [a, Literal(c)], shape, dtype, c - 1 if name == "%" else a.bound)
        if name in ("abs", "negative", "sign"):
            return self.apply(name, [a], shape, dtype, a.bound)
        b = self.value(scope, self._smaller(shape), dtype, depth)
        bound = a.bound * b.bound if name == "*" else a.bound + b.bound
        return self.apply(name, [a, b], shape, dtype, bound)

    def _compared(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        kind = "int32" if self.smooth or self.choices.boolean() else self.choices.choice(FLOATS)
        a = self.value(scope, shape, kind, depth)
        b: Value | Expression = Literal(0) if self.choices.boolean() else self.value(scope, shape, kind, depth)
        return self.apply(self.choices.choice(("<", "<=", ">", ">=", "==", "!=")), [a, b], shape, "bool", 1.0)

    def _logic(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        a = self.value(scope, shape, dtype, depth)
        name = self.choices.choice(("&", "|", "^", "invert"))
        if name == "invert":
            return self.apply(name, [a], shape, dtype, 1.0)
        return self.apply(name, [a, self.value(scope, self._smaller(shape), dtype, depth)], shape, dtype, 1.0)

    def _chosen(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        condition = self.condition(scope) if self.choices.boolean(0.6) else None
        if condition is None:
            chosen: Value | Expression = self.value(scope, self._smaller(shape), "bool", min(depth, 1))
        else:
            chosen = Holds(condition)
        a, b = self.value(scope, shape, dtype, depth), self.value(scope, shape, dtype, depth)
        return self.apply("where", [chosen, a, b], shape, dtype, max(a.bound, b.bound))

    def _converted(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        if dtype == "int32":
            return self.cast(self.bounded(self.value(scope, shape, self._float(), depth), 20.0), dtype)
        others = ("int32", "bool") if self.smooth else ("int32", "bool", *FLOATS)
        source = self.choices.choice([d for d in others if d != dtype])
        return self.cast(self.value(scope, shape, source, depth), dtype)

    def _float(self) -> str:
        return "float64" if self.smooth else self.choices.choice(FLOATS)

    # -- inside values ------------------------------------------------------------------------------------

    def _rearranged(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        """Spatial indexing, joining and turning round."""
        if not shape:
            length = self.choices.integer(2, 3)
            x = self.value(scope, (length,), dtype, depth)
            return self.apply("space", [x], (), dtype, x.bound, key=(self._place_in(scope, length),))
        size, *others = shape
        rest = tuple(others)
        assert isinstance(size, int)
        names = ["flip", "roll", "stack", "concatenate", "pad", "space", "window", "repeat", "tile"]
        # One axis reshaped to one is the tensor itself, of which there may be no gradient.
        names += ["transpose", "transpose", "transpose", "reshape"] * (len(shape) == 2) + (
            [] if self.smooth or dtype == "bool" else ["top_k"]
        )
        name = self.choices.choice(names)
        match name:
            case "transpose":
                x = self.value(scope, (shape[1], size), dtype, depth)
                return self.apply(name, [x], shape, dtype, x.bound)
            case "stack" | "concatenate":
                row = rest if name == "stack" else (1, *rest)
                rows = [self.value(scope, row, dtype, 0) for _ in range(size)]
                return self.apply(name, rows, shape, dtype, max(r.bound for r in rows), axis=0)
            case "pad":
                x = self.value(scope, (size - 1, *rest), dtype, depth)
                return self.apply(name, [x], shape, dtype, x.bound, pad_width=((1, 0), *((0, 0) for _ in rest)))
            case "space" | "window":
                x = self.value(scope, (size + 1, *rest), dtype, depth)
                key: Any = (1, None)
                if name == "window" and scope.dims:
                    start = Symbol(self.choices.choice(scope.dims)) % 2
                    key = (start, start + size)
                return self.apply("space", [x], shape, dtype, x.bound, key=(key,))
            case "repeat" | "tile":
                x = self.value(scope, (1, *rest), dtype, depth)
                how: dict[str, Any] = {"repeats": size, "axis": 0}
                if name == "tile":
                    how = {"reps": (size, *(1 for _ in rest))}
                return self.apply(name, [x], shape, dtype, x.bound, **how)
            case "top_k":
                x = self.value(scope, (size + 1, *rest), dtype, depth)
                return self.apply(name, [x], shape, dtype, x.bound, k=size, axis=0)
            case "reshape":
                flat = math.prod(s for s in shape if isinstance(s, int))
                x = self.value(scope, (flat,), dtype, depth)
                return self.apply(name, [x], shape, dtype, x.bound, shape=shape)
        x = self.value(scope, shape, dtype, depth)
        shift = {"shift": 1} if name == "roll" else {}
        return self.apply(name, [x], shape, dtype, x.bound, **shift, axis=0)

    def _place_in(self, scope: Scope, size: int) -> int | Term:
        """A place along an axis: a number, from either end, or a term of the dims."""
        if scope.dims and self.choices.boolean(0.3):
            return Symbol(self.choices.choice(scope.dims)) % size
        return self.choices.integer(-size, size - 1)

    def _contracted(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        """A matrix product, or an einsum."""
        k = self.choices.integer(2, 3)
        left: Shape = (*shape[:1], k) if len(shape) == 2 else (k,)
        right: Shape = (k, *shape[1:]) if len(shape) == 2 else (k, *shape)
        if len(shape) == 1 and self.choices.boolean():
            left, right = (*shape, k), (k,)
        a, b = self.value(scope, left, dtype, depth), self.value(scope, right, dtype, depth)
        bound = k * a.bound * b.bound
        if self.choices.boolean(0.3):
            letters = "ij"[: len(shape)]
            split = len(left) - 1
            subscripts = f"{letters[:split]}k,k{letters[split:]}->{letters}"
            return self.apply("einsum", [a, b], shape, dtype, bound, subscripts=subscripts)
        return self.apply("@", [a, b], shape, dtype, bound)

    def _convolved(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        """A window that moves over a sequence, or over an image."""
        flat = math.prod(size for size in shape if isinstance(size, int))
        rank = self.choices.integer(1, 2) if len(shape) == 2 else 1
        # With two axes, the first one may be the outputs.
        outputs = shape[0] if rank == 1 and len(shape) == 2 else 1
        assert isinstance(outputs, int)
        places = shape if rank == 2 else (flat // outputs,)
        channels, width = self.choices.integer(1, 2), self.choices.integer(1, 2)
        stride, dilation = self.choices.integer(1, 2), self.choices.integer(1, 2)
        groups = channels if outputs % channels == 0 and self.choices.boolean(0.3) else 1
        lengths = [(n - 1) * stride + dilation * (width - 1) + 1 for n in places if isinstance(n, int)]
        padding = int(min(lengths) > 2 and self.choices.boolean(0.3))
        x_shape = (1, channels, *(n - 2 * padding for n in lengths))
        w_shape = (outputs, channels // groups, *(width for _ in places))
        operands = []
        for wanted in (x_shape, w_shape):
            row = self.value(scope, (math.prod(wanted),), dtype, depth)
            operands.append(self.apply("reshape", [row], wanted, dtype, row.bound, shape=wanted))
        x, w = operands
        bound = channels * width**rank * x.bound * w.bound
        how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        found = self.apply(f"conv{rank}d", [x, w], (1, outputs, *places), dtype, bound, **how)
        return self.apply("reshape", [found], shape, dtype, bound, shape=shape)


def is_symbolic(shape: Shape) -> bool:
    return any(isinstance(size, Term) for size in shape)
