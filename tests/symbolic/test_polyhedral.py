import re
from collections.abc import Sequence
from typing import Any

import islpy as isl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempo.errors import IndexExpressionError
from tempo.symbolic import (
    FALSE,
    TRUE,
    Bound,
    Condition,
    Dim,
    Expr,
    ExprLike,
    Slice,
    Symbol,
    as_expr,
    box_of,
    constant,
    equal,
    maximum,
    minimum,
)
from tempo.symbolic.index import Index
from tempo.symbolic.polyhedral import access, deltas_sign, isl_name, span, to_set
from tests.symbolic.strategies import (
    DIMS,
    Meant,
    MeantCondition,
    conditions,
    indices,
    non_empty_indices,
    points,
    quasi_affine,
)
from tests.symbolic.strategies import t as small_t
from tests.symbolic.strategies import u as small_u

T, B = Bound("T"), Bound("B")
t, b, s = Dim("t", T), Dim("b", B), Dim("s", 4)


def written(kind: type, text: str) -> Any:
    """What is written out, with the names that isl knows the bounds by."""
    return kind(re.sub(r"\b[TB]\b", lambda bound: isl_name({"T": T, "B": B}[bound[0]]), text))


def names(dims: Sequence[Symbol]) -> list[str]:
    return [isl_name(d) for d in dims]


def function(expr: ExprLike, dims: Sequence[Dim]) -> isl.Map:
    """The relation from the points of some dims to the value of an expression there."""
    return access((as_expr(expr),), dims, [Dim("value", 1)])


def box(dims: Sequence[Dim]) -> isl.Set:
    return to_set(box_of(tuple(dims)), dims)


def is_set(found: isl.Set, text: str) -> bool:
    return bool(found == written(isl.Set, text))


def is_map(found: isl.Map, text: str) -> bool:
    return bool(found == written(isl.Map, text))


# -- functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (constant(3), "{ [t, b] -> [3] }"),
        (t - 1, "{ [t, b] -> [t - 1] }"),
        (2 * t - 3 * b + 4, "{ [t, b] -> [2t - 3b + 4] }"),
        (T - t - 1, "[T] -> { [t, b] -> [T - t - 1] }"),
        ((t - 1) // 4, "{ [t, b] -> [floor((t - 1)/4)] }"),
        ((t + b) % 3, "{ [t, b] -> [(t + b) mod 3] }"),
        (minimum(t, 3), "{ [t, b] -> [t] : t <= 3; [t, b] -> [3] : t > 3 }"),
        (2 * maximum(t, b) + 1, "{ [t, b] -> [2t + 1] : t >= b; [t, b] -> [2b + 1] : t < b }"),
        (minimum(t, T) // 2, "[T] -> { [t, b] -> [floor(t/2)] : t <= T; "
                             "[t, b] -> [floor(T/2)] : t > T }"),
    ],
)  # fmt: skip
def test_functions(expr: Expr, text: str) -> None:
    assert is_map(function(expr, [t, b]), text)


def test_a_number_without_dims() -> None:
    assert is_map(function(3, []), "{ [] -> [3] }")


def test_large_numbers_stay_exact() -> None:
    assert is_map(function(2**40 * t + 2**60, [t]), "{ [t] -> [1099511627776t + 1152921504606846976] }")


# -- sets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (TRUE, "{ [t, b] }"),
        (FALSE, "{ [t, b] : false }"),
        ((t >= 1) & (t < T), "[T] -> { [t, b] : 1 <= t < T }"),
        (equal(t, b + 1), "{ [t, b] : t = b + 1 }"),
        (~equal(t, 2), "{ [t, b] : t != 2 }"),
        (equal(t % 4, 0) | (b < 2), "{ [t, b] : t mod 4 = 0 or b < 2 }"),
        (equal(minimum(t, b), 2), "{ [t, b] : (t = 2 and b >= 2) or (b = 2 and t >= 2) }"),
        (maximum(t, b) // 2 >= 3, "{ [t, b] : t >= 6 or b >= 6 }"),
    ],
)
def test_to_set(condition: Condition, text: str) -> None:
    found = to_set(condition, [t, b])
    assert is_set(found, text)
    assert found.get_var_names(isl.dim_type.set) == names([t, b])


@pytest.mark.parametrize(
    ("condition", "pieces"),
    [
        (t >= maximum(b - 3, 0), 1),
        (t < minimum(b + 3, T), 1),
        (t >= minimum(b, 3), 2),
    ],
)
def test_a_minimum_that_must_hold_throughout_stays_convex(condition: Condition, pieces: int) -> None:
    assert to_set(condition, [t, b]).n_basic_set() == pieces


def test_box() -> None:
    assert is_set(box([t, b]), "[T, B] -> { [t, b] : 0 <= t < T and 0 <= b < B }")
    assert is_set(box([Dim("t", 5)]), "{ [t] : 0 <= t < 5 }")
    assert is_set(box([]), "{ [] }")
    assert is_set(box([Dim("t", T // 2 + 1)]), "[T] -> { [t] : 0 <= t <= floor(T/2) }")


def test_a_bound_may_depend_on_another_dim() -> None:
    inner = Dim("s", t + 1)
    assert is_set(box([t, inner]), "[T] -> { [t, s] : 0 <= s <= t < T }")


def test_parameters_of_two_objects_meet() -> None:
    one, other = to_set(t < T, [t]), to_set((t >= B) & (t < T), [t])
    assert other.is_subset(one)
    assert is_set(one.subtract(other), "[T, B] -> { [t] : t < T and t < B }")


# -- accesses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "condition", "text"),
    [
        ((b, t - 1), TRUE, "{ [b, t] -> [b, t - 1] }"),
        ((b, t - 1), t >= 1, "{ [b, t] -> [b, t - 1] : t >= 1 }"),
        ((b, constant(0)), TRUE, "{ [b, t] -> [b, 0] }"),
        ((b, Slice(t, T)), TRUE, "[T] -> { [b, t] -> [b, s] : t <= s < T }"),
        (
            (b, Slice(maximum(t - 3, 0), minimum(t + 5, T))),
            TRUE,
            "[T] -> { [b, t] -> [b, s] : t - 3 <= s < t + 5 and 0 <= s < T }",
        ),
        (
            (b, minimum(t + 5, T - 1)),
            TRUE,
            "[T] -> { [b, t] -> [b, s] : (s = t + 5 and s < T) or (s = T - 1 and t + 5 > s) }",
        ),
        ((b // 2, t % 4), b < 8, "{ [b, t] -> [floor(b/2), t mod 4] : b < 8 }"),
        ((b, t), FALSE, "{ [b, t] -> [b, t] : false }"),
        ((b, Slice(t, t)), TRUE, "{ [b, t] -> [b, s] : false }"),
    ],
)
def test_access(index: Index, condition: Condition, text: str) -> None:
    found = access(index, [b, t], [b, t], condition)
    assert is_map(found, text)
    assert found.get_var_names(isl.dim_type.in_) == names([b, t])
    assert found.get_var_names(isl.dim_type.out) == names([b, t])


def test_access_between_different_dims() -> None:
    assert is_map(access((), [t], [], t < 3), "{ [t] -> [] : t < 3 }")
    assert is_map(access((constant(2),), [], [t]), "{ [] -> [2] }")
    found = access((Slice(as_expr(0), T),), [b], [t])
    assert is_map(found, "[T] -> { [b] -> [t] : 0 <= t < T }")
    assert is_map(found.reverse(), "[T] -> { [t] -> [b] : 0 <= t < T }")


def test_symbols_of_one_name_are_told_apart() -> None:
    other = Dim("t", 3)
    assert is_set(box([Dim("t", 2), other]), "{ [t, u] : 0 <= t < 2 and 0 <= u < 3 }")
    assert is_map(access((T - t,), [t], [Dim("T", 5)]), "[T] -> { [t] -> [T - t] }")
    assert not to_set(t < Bound("t"), [t]).is_equal(to_set(t < Bound("t"), [t]))
    assert deltas_sign(access((t - 1, constant(0)), [t], [t, other]), t, t) == (1, 1)


@pytest.mark.parametrize("name", ["2d", "-1", " 0x1", "", "a b", "t\0", "min", "mod", "and", "exists", "\ud800"])
def test_names_that_isl_would_not_take(name: str) -> None:
    odd = Dim(name, Bound(name))
    assert span(to_set((odd >= 2) & (odd < 5), [odd]), odd) == (2, 4)
    assert deltas_sign(access((odd - 1,), [odd], [odd]), odd, odd) == (1, 1)


# -- points ---------------------------------------------------------------------------------------


def test_an_empty_piece_has_no_values() -> None:
    # isl's own minimum of this set is t = 0.
    nowhere = (t >= 0) & (b >= t) & (b < 0)
    assert span(to_set(nowhere | (equal(t, 3) & equal(b, 4)), [t, b]), t) == (3, 3)
    relation = access((Slice(minimum(t, -1), as_expr(0)),), [t, b], [s], (t >= 0) & (t < 3))
    assert deltas_sign(relation, t, s) == (1, 3)


@pytest.mark.parametrize(
    ("index", "condition", "ends"),
    [
        ((t - 1,), TRUE, (1, 1)),
        ((t + 2,), TRUE, (-2, -2)),
        ((Slice(t - 3, t + 2),), TRUE, (-1, 3)),
        ((Slice(t, T),), TRUE, (None, 0)),
        ((Slice(as_expr(0), t + 1),), TRUE, (0, None)),
        ((constant(0),), (t >= 0) & (t < 5), (0, 4)),
        ((2 * t,), (t >= 0) & (t < 5), (-4, 0)),
        ((T - t,), TRUE, (None, None)),
        ((t // 4 * 4,), TRUE, (0, 3)),
    ],
)
def test_deltas(index: Index, condition: Condition, ends: tuple[int | None, int | None]) -> None:
    assert deltas_sign(access(index, [t], [t], condition), t, t) == ends


def test_deltas_of_an_empty_relation() -> None:
    assert deltas_sign(access((t,), [t], [t], (t >= 3) & (t < 3)), t, t) is None


def test_deltas_of_several_dims() -> None:
    relation = access((b - 7, t + 2), [t, b], [b, s])
    assert deltas_sign(relation, t, s) == (-2, -2)
    assert deltas_sign(relation, b, b) == (7, 7)
    assert deltas_sign(relation, t, b) == (None, None)


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: function(t * b, [t, b]), "t*b"),
        (lambda: to_set(T * t + 1 >= b, [t, b]), "T*t"),
        (lambda: access((t, B * (t // 2)), [t], [t, b]), "B*(t//2)"),
    ],
)
def test_an_index_may_only_multiply_by_a_number(build: object, text: str) -> None:
    with pytest.raises(IndexExpressionError) as error:
        build()  # type: ignore[operator]
    assert str(error.value) == (
        f"{text}: an index may only multiply by a number\n"
        "  hint: all factors but one must be integers once the bounds are known"
    )


def test_a_bound_that_is_a_number_may_multiply() -> None:
    assert is_map(function((T * t).substitute({T: 4}), [t]), "{ [t] -> [4t] }")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: box([t, b, t]), "t occurs twice among the dims t, b, t"),
        (lambda: access((t, b), [t, b], [s, s]), "s occurs twice among the dims s, s"),
        (lambda: access((t,), [t], [t, b]), "an index of 1 items reads a tensor of 2 dims"),
        (
            lambda: deltas_sign(access((t,), [t], [s]), s, s),
            "the consumer side of { [TT] -> [SS = TT] } has no dim s (SS)",
        ),
        (
            lambda: deltas_sign(access((t,), [t], [s]), t, t),
            "the producer side of { [TT] -> [SS = TT] } has no dim t (TT)",
        ),
    ],
)
def test_misuse(build: object, message: str) -> None:
    with pytest.raises(ValueError) as error:
        build()  # type: ignore[operator]
    assert str(error.value) == message.replace("TT", isl_name(t)).replace("SS", isl_name(s))


# -- properties -----------------------------------------------------------------------------------

Pair = tuple[int, ...]

quasi_affine_condition = conditions(quasi_affine)


def enumerated(found: isl.Set) -> set[Pair]:
    """The points of a bounded set without parameters, by position."""
    count = found.dim(isl.dim_type.set)
    collected: list[Pair] = []

    def collect(point: isl.Point) -> None:
        collected.append(tuple(point.get_coordinate_val(isl.dim_type.set, i).to_python() for i in range(count)))

    found.foreach_point(collect)
    assert len(set(collected)) == len(collected)
    return set(collected)


@given(quasi_affine)
def test_functions_have_the_right_values(meant: Meant) -> None:
    graph = function(meant.built, DIMS).intersect_domain(box(DIMS))
    assert enumerated(graph.wrap().flatten()) == {(p[small_t], p[small_u], meant.meaning(p)) for p in points()}


@given(quasi_affine_condition)
def test_sets_have_the_right_points(meant: MeantCondition) -> None:
    found = to_set(meant.built, DIMS).intersect(box(DIMS))
    assert enumerated(found) == {(p[small_t], p[small_u]) for p in points() if meant.meaning(p)}


def reads(index: Index, condition: MeantCondition) -> set[Pair]:
    """Every pair (consumer point, producer point) of an access, by brute force."""
    pairs: set[Pair] = set()
    for p in points():
        if condition.meaning(p):
            read: list[Pair] = [(p[small_t], p[small_u])]
            for item in index:
                value = item.evaluate(p)
                options = value if isinstance(value, range) else [value]
                read = [r + (o,) for r in read for o in options]
            pairs.update(read)
    return pairs


@given(indices, quasi_affine_condition)
def test_accesses_relate_the_right_points(index: Index, condition: MeantCondition) -> None:
    producer = [Dim("p", 4), Dim("q", 4)][: len(index)]
    relation = access(index, DIMS, producer, condition.built).intersect_domain(box(DIMS))
    expected = reads(index, condition)
    assert enumerated(relation.wrap().flatten()) == expected
    # Forward from all consumer points, and which consumers read anything at all.
    assert enumerated(relation.range()) == {pair[2:] for pair in expected}
    assert enumerated(relation.domain()) == {pair[:2] for pair in expected}


@given(non_empty_indices, quasi_affine_condition)
def test_deltas_are_attained(index: Index, condition: MeantCondition) -> None:
    producer = [Dim("p", 4), Dim("q", 4)][: len(index)]
    relation = access(index, DIMS, producer, condition.built).intersect_domain(box(DIMS))
    differences = [pair[1] - pair[2] for pair in reads(index, condition)]
    expected = (min(differences), max(differences)) if differences else None
    assert deltas_sign(relation, small_u, producer[0]) == expected


@given(quasi_affine_condition, st.integers(-3, 6), st.integers(-3, 6))
def test_a_parameter_is_a_number_given_late(meant: MeantCondition, n: int, m: int) -> None:
    parametric = to_set(meant.built, [small_t])
    kind = isl.dim_type.param
    position = parametric.find_dim_by_name(kind, isl_name(small_u))
    if position >= 0:
        parametric = parametric.fix_val(kind, position, n).project_out(kind, position, 1)
    assert parametric == to_set(meant.built.substitute({small_u: n}), [small_t])
    at_m = to_set(equal(small_t, m), [small_t])
    assert at_m.is_subset(parametric) == meant.meaning({small_t: m, small_u: n})
