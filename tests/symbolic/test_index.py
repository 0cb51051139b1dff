from hypothesis import given

from tempo.symbolic import Bound, Dim, Slice, Symbol, as_expr, index, minimum
from tempo.symbolic.index import Index
from tests.symbolic.strategies import Meant, indices, quasi_affine, wide_points
from tests.symbolic.strategies import t as wide_t

T, B = Bound("T"), Bound("B")
t, b = Dim("t", T), Dim("b", B)

window = Slice(t, minimum(t + 5, T))


def test_slice() -> None:
    assert str(window) == "t:min(T, t + 5)"
    assert window.symbols() == {t, T}
    assert window.evaluate({t: 2, T: 20}) == range(2, 7)
    assert window.evaluate({t: 18, T: 20}) == range(18, 20)
    assert list(Slice(t, as_expr(3)).evaluate({t: 5})) == []
    assert window.substitute({T: 3, t: 1}) == Slice(as_expr(1), as_expr(3))


def test_length_of_a_slice() -> None:
    assert Slice(t - 2, t + 1).length == 3
    assert Slice(t, T).length == T - t


def test_slices_are_values() -> None:
    assert Slice(t + 1, T) == Slice(1 + t, T)
    assert hash(Slice(t + 1, T)) == hash(Slice(1 + t, T))
    assert Slice(t, T) != Slice(t, T - 1)


def test_index_of_points_and_slices() -> None:
    read: Index = (b, window, t - 1)
    assert index.show(read) == "b, t:min(T, t + 5), t - 1"
    assert index.symbols(read) == {b, t, T}
    assert list(index.slices(read)) == [window]
    assert index.substitute(read, {t: 2, T: 5}) == (b, Slice(as_expr(2), as_expr(5)), 1)


def test_empty_index() -> None:
    assert index.show(()) == ""
    assert index.symbols(()) == frozenset()
    assert index.substitute((), {t: 1}) == ()


@given(indices, quasi_affine, wide_points)
def test_substitution_commutes_with_evaluation(read: Index, new_t: Meant, point: dict[Symbol, int]) -> None:
    moved = {**point, wide_t: new_t.meaning(point)}
    substituted = index.substitute(read, {wide_t: new_t.built})
    assert [i.evaluate(point) for i in substituted] == [i.evaluate(moved) for i in read]
