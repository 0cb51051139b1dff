"""Drawing what is done with slices: work along an axis of symbolic size, then a reduction to a static shape."""

from __future__ import annotations

from dataclasses import replace

from tempo.testing.expressions import LARGEST, UNARY, Expressions, is_float, is_symbolic
from tempo.testing.reading import Scope, Value
from tempo.testing.syntax import Expression, Literal, Read, Shape, Size, Steps

# How many elements there are to select from: enough for it to pay to compute only what is selected.
TABLE = 5
# No slice of a recipe is longer: bounds go up to 5, states and x[t + 1] reach one step further.
LONGEST = 6


class Sequences(Expressions):
    """Draws expressions, those over slices included."""

    def sequence(self, scope: Scope, dtype: str, sliced: int = 1) -> Value | None:
        """A tensor read with ``sliced`` slices, or one whose value itself has an axis of symbolic size."""
        usable = [x for x in self.candidates(dtype) if x.type.domain or is_symbolic(x.type.shape)]
        if not usable:
            return None
        tensor = self.choices.choice(usable)
        if is_symbolic(tensor.type.shape):
            found = self.read(scope, tensor) if sliced == 1 else None
        else:
            found = self.read(scope, tensor, min(sliced, len(tensor.type.domain)))
            if found is not None and len(found.shape) - len(tensor.type.shape) != sliced:
                return None
        return None if found is None else self.cast(found, dtype)

    def nonempty(self, scope: Scope, value: Value, axes: int = 1) -> bool:
        """Whether the leading axes have at least one element at every place."""
        return all(
            size > 0 if isinstance(size, int) else all(size.evaluate(v) > 0 for v in scope.places)
            for size in value.shape[:axes]
        )

    def length(self, size: Size) -> Expression:
        """A size as a number that meets integers."""
        return Literal(size) if isinstance(size, int) else Steps(size, bare=True)

    # -- work along the axis ------------------------------------------------------------------------------

    def worked(self, scope: Scope, x: Value) -> Value:
        """The sequence after some function that keeps its length."""
        names = ["as it is", "flip", "cumsum", "multiplied", "sort", "cummax", "cummin", "reverse cumsum", "stepped"]
        if is_float(x.dtype):
            names += ["unary", "softmax", "cumprod", "linear_scan", "log_softmax", "shifted", "stepped"]
        elif x.dtype == "bool":
            names = ["as it is", "flip"]
        if self.smooth:
            names = [n for n in names if n not in ("sort", "cummax", "cummin")]
        name = self.choices.choice(names)
        shape, dtype = x.shape, x.dtype
        match name:
            case "flip":
                return self.apply(name, [x], shape, dtype, x.bound, axis=0)
            case "cumsum" | "reverse cumsum":
                reverse = {"reverse": True} if name != "cumsum" else {}
                total = self.apply("cumsum", [x], shape, dtype, x.bound * LONGEST, axis=0, **reverse)
                return self.bounded(total, LARGEST)
            case "cummax" | "cummin":
                return self.apply(name, [x], shape, dtype, x.bound, axis=0)
            case "sort":
                descending = {"descending": True} if self.choices.boolean(0.3) else {}
                return self.apply(name, [x], shape, dtype, x.bound, axis=0, **descending)
            case "cumprod":
                small = self.bounded(x, 1.0)
                return self.apply(name, [small], shape, dtype, 1.0, axis=0)
            case "linear_scan":
                factor = self.bounded(x, 1.0)
                total = self.apply(name, [factor, x], shape, dtype, x.bound * LONGEST, axis=0)
                return self.bounded(total, LARGEST)
            case "softmax":
                return self.apply(name, [x], shape, dtype, 1.0, axis=0)
            case "log_softmax":
                return self.bounded(self.apply(name, [x], shape, dtype, 2 * x.bound + 2, axis=0), LARGEST)
            case "unary":
                smooth = [n for n, (_, fine) in UNARY.items() if fine or not self.smooth]
                function = self.choices.choice(smooth)
                result = self.apply(function, [x], shape, dtype, UNARY[function][0](x.bound))
                return self.bounded(result, LARGEST)
            case "multiplied":
                return self.bounded(self._multiplied(scope, x), LARGEST)
            case "shifted":
                other = self.value(scope, (), dtype, 0)
                return self.bounded(self.apply("-", [x, other], shape, dtype, x.bound + other.bound), LARGEST)
            case "stepped":
                return self.bounded(self._stepped(x), LARGEST)
        return x

    def _multiplied(self, scope: Scope, x: Value) -> Value:
        """The sequence times another tensor, read through the same index."""
        other = self._alongside(scope, x)
        if other is None:
            return self.apply("*", [x, x], x.shape, x.dtype, x.bound**2)
        other = self.cast(other, x.dtype)
        return self.apply("*", [x, other], x.shape, x.dtype, x.bound * other.bound)

    def _alongside(self, scope: Scope, x: Value) -> Value | None:
        if not isinstance(x.expression, Read):
            return None
        read = x.expression
        like = [
            y
            for y in self.candidates(x.dtype)
            if y.type.domain == read.over and y.name != read.name and self.through(y, read.items).shape == x.shape
        ]
        if not like:
            return None
        other = self.choices.choice(like)
        return self.through(other, read.items) if self.accept(scope, other, read.items) else None

    def _stepped(self, x: Value) -> Value:
        """The sequence times the position in it."""
        size = x.shape[0]
        positions = self.apply("arange", [], (size,), x.dtype, LONGEST, size=size)
        if len(x.shape) > 1:
            key = ((None, None), *(None,) * (len(x.shape) - 1))
            column = (size, *(1,) * (len(x.shape) - 1))
            positions = self.apply("space", [positions], column, x.dtype, LONGEST, key=key)
        return self.apply("*", [x, positions], x.shape, x.dtype, x.bound * LONGEST)

    # -- reductions ---------------------------------------------------------------------------------------

    def _reduced(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        sliced = 2 if self.choices.boolean(0.2) else 1
        x = self.sequence(scope, dtype, sliced)
        if x is None:
            return self._leaf(scope, shape, dtype, depth)
        if sliced == 2 and self.choices.boolean():
            return self.fit(self._reduce(scope, x, (0, 1)), shape)
        if sliced == 2:
            x = self._reduce(scope, x, 1)
        for _ in range(self.choices.integer(0, 2)):
            x = self.worked(scope, x)
        return self.fit(self._reduce(scope, x, 0), shape)

    def _reduce(self, scope: Scope, x: Value, axis: int | tuple[int, ...]) -> Value:
        count = 1 if isinstance(axis, int) else len(axis)
        if isinstance(axis, int):
            rest = (*x.shape[:axis], *x.shape[axis + 1 :])
            fine = self.nonempty(scope, replace(x, shape=x.shape[axis:]))
        else:
            rest = x.shape[count:]
            fine = self.nonempty(scope, x, count)
        longest = LONGEST**count
        if x.dtype == "bool":
            return self.apply(self.choices.choice(("any", "all")), [x], rest, "bool", 1.0, axis=axis)
        names = ["sum"] + (["mean"] if fine and is_float(x.dtype) else []) + (["prod"] if x.bound <= 3 else [])
        if not self.smooth:
            names += ["max", "min"]
        if is_float(x.dtype) and fine:
            names += ["logsumexp", "var"] if count == 1 else []
        if fine and count == 1 and axis == 0:
            names += ["first", "last", "scattered"] if is_float(x.dtype) else ["first", "last"]
        name = self.choices.choice(names)
        match name:
            case "first" | "last":
                key = (0 if name == "first" else -1,)
                return self.apply("space", [x], rest, x.dtype, x.bound, key=key)
            case "scattered" if len(x.shape) == 1:
                return self._scattered(x)
            case "max" | "min":
                start = {} if fine else {"initial": 0.5 if is_float(x.dtype) else 0}
                return self.apply(name, [x], rest, x.dtype, max(x.bound, 0.5), axis=axis, **start)
            case "prod":
                result = self.apply(name, [x], rest, x.dtype, max(x.bound, 1.0) ** longest, axis=axis)
            case "mean":
                result = self.apply(name, [x], rest, x.dtype, x.bound, axis=axis)
            case "logsumexp":
                result = self.apply(name, [x], rest, x.dtype, x.bound + 2, axis=axis)
            case "var":
                result = self.apply(name, [x], rest, x.dtype, x.bound**2, axis=axis)
            case _:
                result = self.apply("sum", [x], rest, x.dtype, x.bound * longest, axis=axis)
        return self.bounded(result, LARGEST)

    def _scattered(self, x: Value) -> Value:
        """The elements added up at their positions modulo 3."""
        size = x.shape[0]
        base = self.apply("full", [], (3,), x.dtype, 0.5, shape=(3,), value=0.5)
        positions = self.apply("arange", [], (size,), "int32", LONGEST, size=size)
        positions = self.apply("%", [positions, Literal(3)], (size,), "int32", 2.0)
        result = self.apply("scatter_add", [base, positions, x], (3,), x.dtype, x.bound * LONGEST + 1, axis=0)
        return self.bounded(result, LARGEST)

    # -- reading by tensors -------------------------------------------------------------------------------

    def _taken(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        x = self.sequence(scope, dtype)
        if x is None or not self.nonempty(scope, x):
            return self._leaf(scope, shape, dtype, depth)
        size, rest = x.shape[0], x.shape[1:]
        indices: Shape = () if self.choices.boolean(0.7) else (2,)
        chosen = self.value(scope, indices, "int32", min(depth, 1))
        chosen = self.apply("%", [chosen, self.length(size)], indices, "int32", LONGEST)
        if is_float(dtype) and not indices and len(rest) < 2 and self.choices.boolean(0.3):
            weights = self.apply("one_hot", [chosen], (size,), dtype, 1.0, size=size)
            return self.fit(self.apply("@", [weights, x], rest, dtype, x.bound), shape)
        return self.fit(self.apply("take", [x, chosen], (*indices, *rest), dtype, x.bound, axis=0), shape)

    def table(self, scope: Scope, dtype: str, depth: int) -> Value:
        """Something to select from: a value with an axis of some length in front."""
        kind = self.choices.choice(("as it is", "as it is", "reduced", "reduced", "position", "along the other axis"))
        if kind == "reduced" and dtype != "bool":
            return self._reduce(scope, self.value(scope, (3, TABLE), dtype, depth), 0)
        if kind == "position" and dtype == "int32" and not self.smooth:
            x = self.value(scope, (3, TABLE), self._float(), depth)
            return self.apply(self.choices.choice(("argmax", "argmin")), [x], (TABLE,), dtype, 2.0, axis=0)
        rest = self.choices.choice(((), (2,)))
        x = self.value(scope, (TABLE, *rest), dtype, depth)
        if kind == "along the other axis" and rest and dtype != "bool":
            name = self.choices.choice(("cumsum", "flip") if self.smooth else ("cumsum", "flip", "sort", "argsort"))
            result = "int32" if name == "argsort" else dtype
            found = self.apply(name, [x], x.shape, result, max(2 * x.bound, 1.0), axis=1)
            return self.cast(found, dtype)
        return x

    def _selected(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        """Elements of something computed, here or at another step, at places that are computed."""
        tables = [x for x in self.candidates(dtype) if x.type.shape[:1] == (TABLE,)]
        x = self.read(scope, self.choices.choice(tables)) if tables and self.choices.boolean(0.7) else None
        x = self.table(scope, dtype, depth) if x is None else self.cast(x, dtype)
        rest = x.shape[1:]
        along = self.choices.boolean(0.3)
        indices = (self.choices.integer(1, 2), *rest) if along else self.choices.choice(((), (), (2,), (1, 2)))
        chosen = self.value(scope, indices, "int32", min(depth, 1))
        chosen = self.apply("%", [chosen, Literal(TABLE)], indices, "int32", TABLE)
        if self.choices.boolean(0.2):  # counted from the end
            chosen = self.apply("-", [chosen, Literal(TABLE)], indices, "int32", TABLE)
        if along:
            return self.fit(self.apply("take_along_axis", [x, chosen], indices, dtype, x.bound, axis=0), shape)
        return self.fit(self.apply("take", [x, chosen], (*indices, *rest), dtype, x.bound, axis=0), shape)

    def _position(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        """Where something is along an axis."""
        x = self.sequence(scope, self._float() if self.choices.boolean() else "int32")
        if x is None or not self.nonempty(scope, x):
            return self._leaf(scope, shape, dtype, depth)
        name = self.choices.choice(("argmax", "argmin", "argsort"))
        if name == "argsort":
            order = self.apply(name, [x], x.shape, "int32", LONGEST, axis=0)
            return self.fit(self._reduce(scope, order, 0), shape)
        return self.fit(self.apply(name, [x], x.shape[1:], "int32", LONGEST, axis=0), shape)

    def _attended(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> Value:
        """Attention: keys read through a slice, a query, a softmax over the slice."""
        keys = self.sequence(scope, dtype)
        if keys is None or len(keys.shape) > 2:
            return self._leaf(scope, shape, dtype, depth)
        size, rest = keys.shape[0], keys.shape[1:]
        query = self.value(scope, rest, dtype, min(depth, 1))
        scores = self.apply("@" if rest else "*", [keys, query], (size,), dtype, LARGEST)
        weights = self.apply("softmax", [scores], (size,), dtype, 1.0, axis=0)
        other = self._alongside(scope, keys) if isinstance(keys.expression, Read) else None
        values = keys if other is None else self.cast(other, dtype)
        return self.fit(self.apply("@", [weights, values], rest, dtype, values.bound), shape)
