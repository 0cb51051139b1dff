"""Drawing definitions that read themselves: recurrent tensors, states, and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tempo.testing.expressions import LARGEST, is_symbolic
from tempo.testing.reading import Height, Place, Scope, Tensor, Value
from tempo.testing.recipe import Assignment, assignment, free_dims
from tempo.testing.statements import SHAPES, Statements
from tempo.testing.syntax import Case, Key, Literal, Names, Next, Read, Recurrent, State, Type
from tempo.testing.terms import Comparison, Number, Point, Symbol, Term

# The values of a tensor defined by cases stay below this, so that reading it again does not make it grow.
SMALL = {"bool": 1.0, "int32": 20.0}
# A state that is trained goes up from 2 by less than 0.1 a step.
TRAINED = 4.5


class Recurrences(Statements):
    """Draws groups of tensors that are defined in terms of each other."""

    # -- recurrent tensors --------------------------------------------------------------------------------

    def draw_recurrent(self) -> None:
        self._group(1)

    def draw_mutual(self) -> None:
        self._group(2)

    def _group(self, count: int) -> None:
        domain = self.domain() or self.all[:1]
        order = self._permutation(domain)
        self.directions = {d: self.choices.choice((1, 1, -1)) for d in order}
        plans: list[tuple[Tensor, list[Key], Assignment]] = []
        first = len(self.tensors)
        for position in range(count):
            keys = self._possible(domain, self._keys(domain, order))
            where = assignment(tuple(self.dims.values()), domain, keys)
            heights = {p: self._member_height(domain, order, p, position) for p in where}
            # Members of one dtype read each other more often.
            same = plans[0][0].type.dtype if plans and self.choices.boolean(0.7) else self.dtype()
            type = Type(domain, self.choices.choice(SHAPES), same)
            tensor = Tensor(self.name("y"), type, frozenset(where), SMALL.get(type.dtype, 2.0), "recurrent", heights)
            plans.append((tensor, keys, where))
            self.add(Recurrent(tensor.name, type), tensor)
        for _ in range(self.choices.integer(0, 2) if self.choices.boolean(0.4) else 0):
            self.choices.choice((self.draw_let, self.draw_let, self.draw_let, self.draw_host))()
        for tensor, keys, where in plans:
            self._define(tensor, keys, where)
        self._close(first)

    def _close(self, first: int) -> None:
        """Everything that was being defined is now there."""
        self.tensors[first:] = [replace(x, heights=None) for x in self.tensors[first:]]
        self.directions = {}

    def _permutation(self, domain: Names) -> Names:
        left = list(domain)
        return tuple(left.pop(self.choices.integer(0, len(left) - 1)) for _ in domain)

    def _member_height(self, domain: Names, order: Names, point: Place, position: int) -> Height:
        at = dict(zip(domain, point, strict=True))
        return (*(self.directions[d] * at[d] for d in order), position)

    def _keys(self, domain: Names, order: Names) -> list[Key]:
        """The cases of a definition: what stands between the brackets on the left."""
        carrier = order[0]
        forward = self.directions[carrier] > 0
        here, limit = Symbol(carrier), self.limit(carrier)
        first: Term = Number(0) if forward else limit - 1
        general = tuple(Symbol(d) for d in domain)

        def with_carrier(term: Term) -> Key:
            return tuple(term if d == carrier else Symbol(d) for d in domain)

        plan = self.choices.choice(
            ("base", "base", "base", "two", "condition", "ahead", "ends", "mixed", "other", "reversed", "plain")
        )
        keys: list[Key] = []
        match plan:
            case "base":
                keys = [with_carrier(first)]
            case "two":
                keys = [with_carrier(first), with_carrier(Number(1) if forward else limit - 2)]
            case "condition":
                c = self.choices.integer(1, 2)
                keys = [Comparison("<", here, Number(c)) if forward else Comparison(">=", here, limit - c)]
            case "ahead":
                return [with_carrier(first), with_carrier(here + 1 if forward else here - 1)]
            case "ends":
                keys = [with_carrier(Number(0)), with_carrier(limit - 1)]
            case "mixed":
                condition = self.condition(Scope(domain, []))
                assert condition is not None
                keys = [with_carrier(first), condition]
            case "other":
                # A border along another dim too, as dynamic programs have.
                keys = [with_carrier(first)]
                for d in order[1:]:
                    pinned = tuple(Number(0) if e == d else Symbol(e) for e in domain)
                    keys.append(pinned)
            case "reversed":
                return [with_carrier(limit - 1 - here)]
        return [*keys, general]

    def _possible(self, domain: Names, keys: list[Key]) -> list[Key]:
        """Without cases that never apply, which Tempo rejects: those that do not for these bounds, nor for larger."""
        larger = tuple(replace(d, bound=6) for d in self.dims.values() if d.name in domain)
        applying = {
            n for dims in (tuple(self.dims.values()), larger) for n, _ in assignment(dims, domain, keys).values()
        }
        return [key for n, key in enumerate(keys) if n in applying]

    def _define(self, tensor: Tensor, keys: Sequence[Key], where: Assignment) -> None:
        assert tensor.heights is not None
        for n, key in enumerate(keys):
            mine = [(place, tensor.heights[p]) for p, (case, place) in where.items() if case == n]
            scope = Scope(free_dims(tensor.type.domain, key), [place for place, _ in mine], limits=[h for _, h in mine])
            depth = self.choices.integer(0, 1) if n < len(keys) - 1 else self.choices.integer(1, 2)
            value = self.value(scope, tensor.type.shape, tensor.type.dtype, depth)
            if n == len(keys) - 1 and not self.choices.boolean(0.15):
                value = self._with_member(scope, value)
            self.add(Case(tensor.name, key, self.bounded(value, tensor.bound).expression))

    def _with_member(self, scope: Scope, value: Value) -> Value:
        """The value joined with one of the tensors that are being defined, if one can be read."""
        members = [x for x in self.candidates(value.dtype) if x.heights is not None and not is_symbolic(x.type.shape)]
        found = self.read(scope, self.choices.choice(members)) if members else None
        if found is None:
            return value
        member = self.cast(self.fit(found, value.shape), value.dtype)
        if value.dtype == "bool":
            return self.apply("^", [member, value], value.shape, "bool", 1.0)
        sign = self.choices.choice(("+", "-", "*"))
        bound = member.bound * value.bound if sign == "*" else member.bound + value.bound
        return self.apply(sign, [member, value], value.shape, value.dtype, bound)

    def draw_growing(self) -> None:
        """A tensor that gets longer with every step."""
        d = self.choices.choice(self.all)
        here, dtype = Symbol(d), self._float()
        type = Type((d,), (here + 1,), dtype)
        points = self.box((d,))
        tensor = Tensor(self.name("y"), type, points, 2.0, "recurrent", {p: p for p in points})
        first = len(self.tensors)
        self.add(Recurrent(tensor.name, type))
        start = self.bounded(self.value(Scope((), self.places(())), (1,), dtype, 1), 2.0)
        self.add(Case(tensor.name, (Number(0),), start.expression))
        scope = Scope((d,), [p for p in self.places((d,)) if p[d] > 0])
        more = self.bounded(self.value(scope, (1,), dtype, 1), 2.0)
        before = self.through(tensor, (Point(here - 1, "shift"),))
        joined = self.apply("concatenate", [before, more], type.shape, dtype, 2.0, axis=0)
        self.add(Case(tensor.name, (here,), joined.expression), tensor)
        self._close(first)

    # -- states -------------------------------------------------------------------------------------------

    def _state(self, dtype: str, bound: float) -> Tensor:
        """A state over one or two dims, with parallel copies over some of the others."""
        over = (self.domain() or self.all[:1])[:2]
        beside = tuple(d for d in self.all if d not in over and self.choices.boolean(0.3))
        domain = tuple(d for d in self.all if d in over or d in beside)
        scope = Scope(beside, self.places(beside))
        init = self.bounded(self.value(scope, self.choices.choice(SHAPES), dtype, 1), bound)
        defined = dict.fromkeys(sorted(self.box(domain)))
        for place in self.places(beside):
            end = {over[0]: self.number(over[0]), **{d: 0 for d in over[1:]}, **{d: place[d] for d in beside}}
            defined[tuple(end[d] for d in domain)] = None
        heights = {p: tuple(p[domain.index(d)] for d in over) for p in defined}
        type = Type(domain, init.shape, init.dtype)
        tensor = Tensor(self.name("w"), type, frozenset(defined), bound, "state", heights)
        self.directions = {d: 1 for d in over}
        self.over = over
        self.add(State(tensor.name, type, init.expression, over), tensor)
        return tensor

    def _next_height(self, over: Names, place: dict[str, int]) -> Height:
        for n in reversed(range(len(over))):
            if n == 0 or place[over[n]] + 1 < self.number(over[n]):
                step = [place[d] for d in over[:n]] + [place[over[n]] + 1] + [0] * (len(over) - n - 1)
                return tuple(step)
        raise AssertionError("over is empty")

    def draw_state(self) -> None:
        first = len(self.tensors)
        dtype = self.dtype()
        tensor = self._state(dtype, SMALL.get(dtype, 2.0))
        places = self.places(tensor.type.domain)
        limits = [self._next_height(self.over, place) for place in places]
        scope = Scope(tensor.type.domain, places, limits=limits)
        value = self.value(scope, tensor.type.shape, dtype, self.choices.integer(1, 2))
        self.add(Next(tensor.name, self.bounded(value, tensor.bound).expression))
        self._close(first)

    def draw_training(self) -> None:
        """A state that follows the gradient of a loss at its own point."""
        first = len(self.tensors)
        others = list(self.tensors)
        dtype = self._float()
        weights = self._state(dtype, 2.0)
        domain = weights.type.domain
        here = self.through(weights, tuple(Point(Symbol(d), "here") for d in domain))
        # The loss sees the state at its own point only; it may vary over further dims, which are summed over.
        self.tensors = others
        dims = tuple(d for d in self.all if d in domain or self.choices.boolean(0.4))
        scope = Scope(dims, self.places(dims))
        target = self.value(scope, here.shape, dtype, 1)
        error = self.apply("-", [here, target], here.shape, dtype, LARGEST)
        error = self.apply("*", [error, error], here.shape, dtype, LARGEST)
        if error.shape:
            error = self.apply("sum", [error], (), dtype, LARGEST)
        loss = self.bind(scope, error, "l")
        (slope,) = self.gradients(loss, [weights])
        self.tensors = [*others, replace(weights, bound=TRAINED), loss]
        step = Read(slope.name, domain, here.expression.items)  # type: ignore[attr-defined]
        small = self.apply("tanh", [step], here.shape, dtype, 1.0)
        small = self.apply("*", [Literal(0.1), small], here.shape, dtype, 0.1)
        self.add(Next(weights.name, self.apply("-", [here, small], here.shape, dtype, TRAINED).expression))
        self._close(first)
