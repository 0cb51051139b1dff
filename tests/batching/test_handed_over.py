"""What is handed from a user to a model and back: values where they are read, arguments, structures, parameters.
Whatever works is the same with and without batches; what does not says so in the same words."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import random
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.batching import phases
from tempo.batching.recording import Recorder
from tempo.errors import ProgramError, ShapeError, TempoError

half = tp.cell(lambda x: x / 2, name="half")
same = tp.cell(lambda x: x * 1, name="same")
total = tp.cell(lambda x: tp.sum(x), name="total")


def both(model: Any, instances: list[Any]) -> Any:
    """What a model gives, which is the same in either way: types, dtypes and numbers."""
    batched = tp.batch(model)
    found, alone = batched(instances), batched.one_by_one(instances)
    assert repr(found) == repr(alone)
    return found


def message(run: Any) -> str:
    """What an error says, but for the line where it happened."""
    with pytest.raises(TempoError) as error:
        run()
    return "\n".join(line for line in str(error.value).splitlines() if not line.startswith("  here: "))


# -- reading ------------------------------------------------------------------------------------------------------


def test_a_number_is_an_array() -> None:
    assert both(lambda x: np.asarray(half(x)).shape, [3.0, 4.0]) == [(), ()]
    assert both(lambda x: np.asarray(half(x), np.float64).dtype.name, [3.0]) == ["float64"]
    assert both(lambda x: np.stack([half(x), half(x)]).tolist(), [3.0]) == [[1.5, 1.5]]


def test_what_is_read_is_the_readers() -> None:
    def model(x: Any) -> Any:
        value = half(x)
        own = np.asarray(value)
        own += 10
        return own.tolist(), np.asarray(value).tolist()

    assert both(model, [np.ones(2)]) == [([10.5, 10.5], [0.5, 0.5])]


def test_results_may_be_written_to() -> None:
    batched = tp.batch(half)
    for run in (batched, batched.one_by_one):
        (found,) = run([np.ones(2)])
        assert type(found) is np.ndarray
        found += 1
        assert found.tolist() == [1.5, 1.5]


def test_numbers_as_text_and_rounded() -> None:
    assert both(lambda x: (f"{half(x):.2f}", round(half(x)), float(round(half(x), 1))), [2.25]) == [
        ("1.12", 1, 1.100000023841858)
    ]


def test_a_float_is_no_index() -> None:
    batched = tp.batch(lambda x: [1, 2][half(x)])
    for run in (batched, batched.one_by_one):
        with pytest.raises(TypeError, match="int"):
            run([2.0])
    assert both(lambda x: [10, 20, 30][same(x)], [2]) == [30]


def test_truth_values_have_operators() -> None:
    above = tp.cell(lambda x: (x > 1, x > 2), name="above")

    def model(x: float) -> Any:
        a, b = above(x)
        return [a & b, a | b, a ^ b, ~a, a & True, False | b, +a]

    found = both(model, [0.0, 1.5, 3.0])
    for x, own in zip([0.0, 1.5, 3.0], found, strict=True):
        a, b = x > 1, x > 2
        assert own == [a & b, a | b, a ^ b, not a, a, b, a]


def test_lists_and_text_are_no_operands() -> None:
    assert both(lambda x: ["a"] * same(x) + [0] * same(x), [2]) == [["a", "a", 0, 0]]
    for other in ([1.0], (1.0,), "a", None):
        for run in (tp.batch(lambda x, other=other: same(x) + other), tp.batch(lambda x, other=other: other - same(x))):
            for way in (run, run.one_by_one):
                with pytest.raises(TypeError):
                    way([1.0])


def test_all_elements_of_a_value_are_one_launch() -> None:
    """And one kernel: an index is data."""
    batched = tp.batch(lambda x: list(same(x)))
    data = [np.arange(30, dtype=np.float32), np.arange(30, dtype=np.float32) ** 2]
    assert np.array_equal(batched(data), data)
    assert (batched.statistics.launches, batched.programs) == (2, 2)


def test_indices_are_those_of_numpy() -> None:
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    indices = [
        -1,
        (1, -1, 0),
        (..., 1),
        (0, ..., -2),
        (1, None, slice(1, 3)),
        slice(None, None, 2),
        (),
        (None, -1, ...),
    ]
    indices += [(np.int64(1), np.uint8(2)), (slice(0, 2), None, -1, ...)]
    (found,) = both(lambda x: [same(x)[index] for index in indices], [data])
    for index, part in zip(indices, found, strict=True):
        assert np.array_equal(part, data[index])
    loss = tp.batch(lambda x: [total(same(x)[index] * 2) for index in indices[:4]])
    _, _, (gradient,) = loss.value_and_grad([data], inputs=lambda x: x)
    expected = np.zeros_like(data)
    for index in indices[:4]:
        expected[index] += 2
    assert np.array_equal(gradient, expected)


def test_indices_out_of_range() -> None:
    batched = tp.batch(lambda pair: same(pair[0])[pair[1]])
    data = np.ones((3, 2), np.float32)
    assert message(lambda: batched([(data, (0, 7))])) == (
        "<float32[3, 2] of cell same> is indexed with 7, which is out of range for axis 1\n"
        "  hint: indices go from -2 to 1"
    )
    assert message(lambda: batched([(data, (0, 0, slice(3)))])) == (
        "<float32[3, 2] of cell same> is indexed with (0, 0, slice(3, None, None)): 3 indices for 2 axes"
    ).replace("slice(3, None, None)", repr(slice(3)))
    with pytest.raises(ShapeError):
        batched.one_by_one([(data, 3)])


def test_indices_out_of_range_without_batches() -> None:
    """They used to be moved to the last row."""
    embed = tp.cell(nn.Embedding(5, 2), name="embed")
    batched = tp.batch(embed, cells={"embed": embed})
    expected = (
        "an index is out of range in cell embed, called for instance 1\n"
        "  hint: indices of tp.take and nn.Embedding go from 0 to the number of rows, less one"
    )
    assert message(lambda: batched([1, 7])) == message(lambda: batched.one_by_one([1, 7])) == expected


def test_functions_of_tensors_belong_into_cells() -> None:
    assert message(lambda: tp.batch(lambda x: tp.exp(same(x)))([1.0])) == (
        "no program is being written here\n"
        "  hint: write this inside 'with tp.Program(\"name\") as prog:', or in a cell of a batched model, tp.cell"
    )


# -- structures ---------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    a: Any
    b: Any


class Checked(Pair):
    def __new__(cls, both: Any) -> Checked:
        return super().__new__(cls, *both)


class Stack(list[Any]):
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    h: Any
    name: str = "state"


def test_structures_stay_what_they_are() -> None:
    def model(x: float) -> Any:
        v = half(x)
        filled: Any = collections.defaultdict(list, one=v)
        return {
            "ordered": collections.OrderedDict(b=v, a=1),
            "default": filled,
            "queue": collections.deque([v, "text"], maxlen=4),
            "stack": Stack([v, Stack([v])]),
            "named": Pair(v, [v]),
            "checked": Checked((v, 1)),
            "state": State((v, v)),
            "counted": collections.Counter("aab"),
        }

    (found,) = both(model, [3.0])
    assert [type(part) for part in found.values()] == [
        collections.OrderedDict, collections.defaultdict, collections.deque, Stack, Pair, Checked, State,
        collections.Counter,
    ]  # fmt: skip
    assert list(found["ordered"].items()) == [("b", 1.5), ("a", 1)]
    assert found["default"]["other"] == []
    assert found["queue"].maxlen == 4
    assert found["stack"] == [1.5, [1.5]]
    assert type(found["stack"][1]) is Stack
    assert found["checked"] == (1.5, 1)
    assert found["state"] == State((1.5, 1.5))


@dataclasses.dataclass(eq=False)
class Node:
    h: Any
    children: list[Any] = dataclasses.field(default_factory=list)
    parent: Any = None


def test_what_is_in_a_result_twice_is_one_thing() -> None:
    def model(x: float) -> Any:
        v = half(x)
        node, row = Node(v), [v, 1]
        queue = collections.deque([row])
        return {"nodes": [node, (node, row)], "named": Pair(row, queue), "again": queue, "values": [v, v], "text": "a"}

    batched = tp.batch(model)
    for run in (batched, batched.one_by_one):
        (found,) = run([3.0])
        node, (again, row) = found["nodes"]
        assert node is again
        assert node.h == 1.5
        assert row is found["named"].a is found["again"][0]
        assert found["named"].b is found["again"]
        assert found["values"] == [1.5, 1.5]

    def shared(depth: int) -> Any:
        found: Any = half(4.0)
        for n in range(depth):
            found = (found, found) if n % 2 else [found, found]
        return found

    (found,) = tp.batch(shared)([200])  # as a tree, it would have 2^200 leaves
    for _ in range(200):
        assert found[0] is found[1] or isinstance(found[0], np.floating)
        found = found[0]
    assert found == 2


def test_results_that_contain_themselves() -> None:
    def model(tree: Any, parent: Node | None = None) -> Node:
        node = Node(None, [], parent)
        node.children = [model(child, node) for child in tree] if isinstance(tree, tuple) else []
        node.h = sum([child.h for child in node.children], half(0.0)) if node.children else half(tree)
        return node

    batched = tp.batch(model)
    for run in (batched, batched.one_by_one):
        root, leaf = run([((1.0, 2.0), 3.0), 4.0])
        assert [float(node.h) for node in (root, *root.children, *root.children[0].children, leaf)] == [
            3, 1.5, 1.5, 0.5, 1, 2
        ]  # fmt: skip
        assert all(child.parent is root for child in root.children)
        assert all(child.parent is root.children[0] for child in root.children[0].children)
        assert (root.parent, leaf.parent, leaf.children) == (None, None, [])

    def circle(x: float) -> Any:
        ordered: Any = collections.OrderedDict(v=half(x))
        row: list[Any] = [ordered]
        ordered["pair"] = (row, ordered)
        return row

    for run in (tp.batch(circle), tp.batch(circle).one_by_one):
        ((ordered,),) = run([3.0])
        row, again = ordered["pair"]
        assert ordered["v"] == 1.5
        assert again is ordered
        assert row[0] is ordered


def test_copies_of_values_are_they_themselves() -> None:
    """A deep copy used to be one of the whole mini-batch."""

    def model(x: float) -> Any:
        state = State(half(x))
        return copy.deepcopy(state), dataclasses.asdict(state), copy.copy(state.h) + 1

    assert both(model, [3.0]) == [(State(1.5), {"h": 1.5, "name": "state"}, 2.5)]


def test_results_that_are_nested_too_deep() -> None:
    def model(depth: int) -> Any:
        found: Any = ()
        for _ in range(depth):
            found = (half(1.0), found)
        return found

    expected = (
        "the model's result for instance 1 is nested deeper than Python allows, 1000 calls\n"
        "  hint: let it return a list in place of nested pairs, or raise the limit: sys.setrecursionlimit"
    )
    batched = tp.batch(model)
    assert message(lambda: batched([3, 3000])) == expected
    assert message(lambda: batched.one_by_one([3, 3000])) == expected
    assert message(lambda: batched.value_and_grad([3, 3000])) == expected


def test_keys_without_an_order() -> None:
    first, made = tp.cell(lambda d: d[1], name="first"), tp.cell(lambda x: {1: x, "b": x}, name="made")
    for name, batched in (("first", tp.batch(lambda x: first({1: x, "b": x}))), ("made", tp.batch(made))):
        for run in (batched, batched.one_by_one):
            assert message(lambda run=run: run([1.0])) == (
                f"cell {name}: there is a dict whose keys have no order among them\n"
                "  hint: let all keys of a dict be strings, or all be numbers"
            )


# -- what models, cells and mini-batches are given ----------------------------------------------------------------


@pytest.mark.parametrize("numbers", ([3, 2**63], [-1, 2**63], [2**63, 3], [3, 2**70], [2**70], [2**31, 3, 3, 3]))
def test_integers_of_any_size_do_not_fit(numbers: list[int]) -> None:
    """Next to small ones, NumPy makes floats of them, or objects."""
    expected = (
        f"cell same is given {max(numbers)}, which does not fit into int32\n  hint: cells compute with 32 bits at most"
    )
    batched = tp.batch(same)
    assert message(lambda: batched(numbers)) == message(lambda: batched.one_by_one(numbers)) == expected


def test_a_cell_that_is_not_named() -> None:
    linear = tp.cell(nn.Linear(2, 2), name="linear")
    batched = tp.batch(linear)
    for run in (batched, batched.one_by_one):
        assert message(lambda run=run: run([np.ones(2)])) == (
            "cell linear has parameters, and is not among the cells of this model\n"
            '  hint: name it: tp.batch(model, cells={"linear": ...})'
        )


def test_what_is_no_model_no_cell_and_no_list() -> None:
    assert message(lambda: tp.batch(3)) == (  # type: ignore[arg-type]
        "the model is 3, not a function\n  hint: tp.batch takes a function of one instance"
    )
    assert message(lambda: tp.cell(3)) == (  # type: ignore[arg-type]
        "a cell is made of 3\n"
        "  hint: tp.cell takes a function of tensors, an nn.Module with a __call__, or a tp.Program"
    )
    assert message(lambda: tp.batch(half, cells=[same])) == (  # type: ignore[arg-type]
        f'cells is {[same]!r}, without names\n  hint: give them by name: cells={{"leaf": leaf, ...}}'
    )
    assert message(lambda: tp.batch(total).value_and_grad([np.ones(2)], inputs="x")) == (  # type: ignore[arg-type]
        "inputs is 'x', not a function\n"
        "  hint: it gives the arrays of an instance that gradients are wanted for: inputs=lambda instance: ..."
    )
    for run in (tp.batch(half), tp.batch(half).one_by_one, tp.batch(half).value_and_grad):
        assert message(lambda run=run: run(5)) == (
            "the instances are 5\n  hint: give a list of them: batched([instance]) for one"
        )


def test_methods_of_results() -> None:
    expected = (
        "a result of a cell has no attribute 'item' outside of cells\n"
        "  hint: float(v), int(v) and np.asarray(v) read it; functions of tensors belong into a cell, tp.cell"
    )
    batched = tp.batch(lambda x: half(x).item())
    for run in (batched, batched.one_by_one):
        with pytest.raises(AttributeError) as error:
            run([1.0])
        assert str(error.value) == expected
    assert both(lambda x: hasattr(half(x), "sum"), [1.0]) == [False]


def test_models_that_run_nothing() -> None:
    def yielding(x: float) -> Any:
        yield half(x)

    async def waiting(x: float) -> Any:
        return half(x)

    class Model(nn.Module):
        def __call__(self, x: float) -> Any:
            yield half(x)

    for model in (yielding, waiting, Model()):
        assert message(lambda model=model: tp.batch(model)) == (
            f"the model is {model!r}, which runs nothing when it is called\n"
            "  hint: let it return its result, without yield and async: where it reads a value it waits by itself"
        )


def test_cells_that_are_made_in_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "MANY", 10)

    def model(x: float) -> Any:
        @tp.cell
        def step(y: Any) -> Any:
            return y / 2

        return step(step(x))

    batched = tp.batch(model)
    batched([1.0] * 9)
    with pytest.warns(UserWarning, match=r"the model has called 10 different cells, one of them step: make cells once"):
        assert batched([1.0]) == [0.25]
    batched([1.0])


def test_all_forms_of_calls_are_recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with a tuple of results took 0.7 us, and one with a list 7."""
    slow = []
    one_of: Any = Recorder._stream

    def counted(self: Any, cell: Any, *args: Any) -> Any:
        slow.append(cell.name)
        return one_of(self, cell, *args)

    monkeypatch.setattr(Recorder, "_stream", counted)
    add = tp.cell(lambda a, b, *, c=0.0, d=None: a + b + c, name="add")
    first = tp.cell(lambda parts: parts[0] + sum(parts[1:]), name="first")
    states = tp.cell(lambda s, x: {"h": s["h"] + x, "c": [s["c"][0] * 2], "n": None}, name="states")

    def model(x: float) -> Any:
        v, s = half(x), {"c": [half(x)], "h": half(x)}
        for _ in range(30):
            v = add(v, 1.0, c=2.0)
            v = add(v, b=np.float32(1), c=v, d=None) / 2
            v = add(True, v, d=None)
            v = first([v, 1, (1, 2.0)[0]]) - first((v, np.int8(1)))
            v = first([half(x)] * 3) + first([v] * 2)
            s = states(s, x=np.float64(x))
        return v, s, s["n"]

    (_, s, _), _ = both(model, [1.0, 2.0])
    assert (float(s["h"]), float(s["c"][0])) == (30.5, 2**29)
    assert len(slow) < 80
    names = set(slow)
    slow.clear()
    tp.batch(model)([1.0] * 10)
    assert len(slow) < 80
    assert set(slow) == names


def test_many_forms_of_calls() -> None:
    total = tp.cell(lambda *parts, **named: sum(parts) + sum(named.values()), name="total")

    def model(counts: list[int]) -> Any:
        v = half(2.0)
        for count in counts:
            v = total(*[v] * (count % 4), **{f"x{n}": half(float(n)) for n in range(count % 3)}, y=1.0)
        return v

    rng = random.Random(0)
    data = [[rng.randrange(12) for _ in range(30)] for _ in range(5)]

    def alone(counts: list[int]) -> float:
        v = 1.0
        for count in counts:
            v = v * (count % 4) + (count % 3 == 2) * 0.5 + 1
        return v

    found = tp.batch(model)(data)
    np.testing.assert_allclose(found, list(map(alone, data)), rtol=1e-5)


def test_a_compiled_program_is_no_cell() -> None:
    with tp.Program("double") as prog:
        prog.output("y", prog.input("x") * 2)
    with pytest.raises(ProgramError, match=r"a cell is made of .*, which is compiled for certain bounds"):
        tp.cell(prog.compile())
    assert tp.batch(tp.cell(prog))([1.0, 2.0]) == [2.0, 4.0]


def test_values_of_a_mini_batch_outside_are_data_of_one_inside() -> None:
    inner = tp.batch(lambda pair: half(pair[0]) + pair[1])

    def model(x: float) -> Any:
        v = half(x)
        return inner([(v, 1.0), (2.0, v)])[0], v

    assert both(model, [4.0, 8.0]) == [(2.0, 2.0), (3.0, 4.0)]


def test_parameters_that_are_put_into_their_dict() -> None:
    """They are looked at as those are that are assigned, and copied."""
    linear = tp.cell(nn.Linear(2, 2, bias=False), name="linear")
    batched = tp.batch(linear, cells={"linear": linear})
    data = [np.ones(2, np.float32)] * 5
    batched(data)
    weight = np.eye(2)
    batched.parameters["linear.weight"] = 3 * weight
    assert np.array_equal(batched(data), [[3, 3]] * 5)
    batched.parameters["linear.weight"] = weight
    assert np.array_equal(batched(data[:1]), [[1, 1]])
    weight *= 7
    assert np.array_equal(batched(data), [[1, 1]] * 5)
    assert np.array_equal(batched.one_by_one(data), [[1, 1]] * 5)
    batched.parameters["linear.weight"] = np.ones((2, 3))
    for run in (batched, batched.one_by_one, batched.value_and_grad):
        assert message(lambda run=run: run(data)) == "parameter linear.weight has shape (2, 2), found (2, 3)"
    batched.parameters["linear.weight"] = weight
    batched.parameters["linear.other"] = weight
    assert message(lambda: batched(data)) == "there is no parameter linear.other\n  hint: there are: linear.weight"


def test_values_that_no_parameter_has() -> None:
    linear = tp.cell(nn.Linear(2, 2, bias=False), name="linear")
    batched = tp.batch(linear, cells={"linear": linear})
    given = jnp.eye(2)
    batched.parameters = {"linear.weight": given}
    jax.jit(lambda x: x + 1, donate_argnums=0)(given)
    deleted = (
        "parameter linear.weight is an array that JAX has deleted\n"
        "  hint: arrays of JAX's are not copied: do not donate them, or give a copy"
    )
    assert message(lambda: batched([np.ones(2)])) == deleted
    for value, expected in (
        (given, deleted),
        ([[1, 2], [3]], "parameter linear.weight has shape (2, 2), found rows of different lengths"),
        (
            1j * np.eye(2),
            "parameter linear.weight is given values of dtype complex128\n  hint: parameters are real numbers",
        ),
    ):
        assert message(lambda value=value: batched([np.ones(2)], {"linear.weight": value})) == expected


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64, ">f4"))
def test_gradients_of_inputs_have_one_dtype(dtype: Any) -> None:
    """Whether cells were given them or not."""
    square = tp.cell(lambda x: tp.sum(x * x), name="square")
    pair = np.ones(2, dtype), np.ones(2, dtype)
    _, _, ((used, unused),) = tp.batch(lambda pair: square(pair[0])).value_and_grad([pair], inputs=lambda pair: pair)
    assert used.dtype == unused.dtype == (np.float16 if dtype is np.float16 else np.float32)
    assert (used.tolist(), unused.tolist()) == ([2, 2], [0, 0])


def test_kernels_are_those_of_the_widths() -> None:
    """Mini-batches of sizes that were there before compile nothing, in whatever order they come."""
    sizes = list(range(1, 8))
    batched = tp.batch(lambda x: half(x) + sum(half(x)) if float(total(x)) > 2 else same(x))
    data = [np.full(3, n % 3, np.float32) for n in range(8)]
    for size in sizes:
        batched(data[:size])
    programs = batched.programs
    random.Random(0).shuffle(sizes)
    for size in sizes:
        batched(data[:size])
        assert batched.statistics.compiled == 0
    assert batched.programs == programs


def test_nothing_keeps_models_and_cells() -> None:
    """What is found again by a cell used to be kept forever, the cell with it."""

    def made() -> list[Any]:
        linear = tp.cell(nn.Linear(2, 1), name="linear")
        batched = tp.batch(lambda x: total(linear(x)) if float(total(x)) > 0 else total(x), cells={"linear": linear})
        batched.value_and_grad([np.ones(2), -np.ones(2)])
        batched.one_by_one([np.ones(2)])
        folded = sums()
        folded.value_and_grad(tp.forest(children=[[1], []], v=[1.0, 2.0]))
        return [weakref.ref(one) for one in (linear, batched, folded, *folded.cells.values())]

    references = made()
    gc.collect()
    assert [one() for one in references] == [None] * 6


# -- forests ------------------------------------------------------------------------------------------------------


def sums() -> Any:
    return tp.fold(lambda v: v * 1.0, lambda children: tp.sum(children, axis=0), loss=lambda state: tp.sum(state))


@pytest.mark.parametrize(
    ("children", "expected"),
    (
        ([[.5], []], "forest: the children of node 0 are [0.5]\n  hint: a list of the numbers of nodes: of a leaf, []"),
        ([[1], None], "forest: the children of node 1 are None\n  hint: a list of the numbers of nodes: of a leaf, []"),
        ([1, 2], "forest: the children of node 0 are 1\n  hint: a list of the numbers of nodes: of a leaf, []"),
        ([[2**40], []], "node 0 has a child 1099511627776, and there are 2 nodes"),
        ([[], [1, 2**70]], "node 1 has a child 1180591620717411303424, and there are 2 nodes"),
        (3, "forest: children is 3\n  hint: a list of lists: for every node the numbers of its children"),
        (np.array([[1], [2]], np.uint8), "node 1 has a child 2, and there are 2 nodes"),
        (np.array([[1], [0]], np.uint64), "the children of node 0 lead in a circle\n"
            "  hint: every node must come to an end at leaves"),
    ),
)  # fmt: skip
def test_children_that_are_no_nodes(children: Any, expected: str) -> None:
    assert message(lambda: tp.forest(children=children, v=[1.0, 2.0])) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    (
        (3.0, "forest: v is 3.0\n  hint: an array has a row for every node"),
        ([[1], [1, 2]], "forest: the rows of v have different shapes\n  hint: fill them up, or give several arrays"),
        ([None, 1.0], "forest: v has dtype object\n  hint: arrays have numbers, or truth values"),
        ([1j, 1], "forest: v has dtype complex128\n  hint: arrays have numbers, or truth values"),
    ),
)
def test_arrays_that_have_no_rows_of_numbers(rows: Any, expected: str) -> None:
    assert message(lambda: tp.forest(children=[[1], []], v=rows)) == expected


def test_forests_from_functions() -> None:
    def forest(children: Any, **data: Any) -> Any:
        return tp.forest([(1.0, (2.0, 3.0))], children=children, **data)

    def value(node: Any) -> float:
        return 0.0 if isinstance(node, tuple) else node

    iterated = forest(lambda node: (part for part in node) if isinstance(node, tuple) else iter(()), v=value)
    assert sums()(iterated).tolist() == [6, 1, 5, 2, 3]
    assert message(lambda: forest(lambda node: node if isinstance(node, tuple) else None, v=value)) == (
        "forest: the children of 1.0 are None\n  hint: a list of nodes: of leaves, []"
    )
    assert message(lambda: forest(lambda node: (), v=[1.0])) == (
        "forest: v is [1.0], not a function of a node\n"
        "  hint: where trees are given, every array is: word=lambda node: node.word"
    )
    assert message(lambda: forest(lambda node: (), arity=2.5)) == (
        "forest: the arity is 2.5\n  hint: how many children there is room for: a number"
    )


def test_what_is_folded_is_a_forest() -> None:
    for run in (sums(), sums().value_and_grad):
        assert message(lambda run=run: run([1, 2])) == (
            "[1, 2] is folded, which is no forest\n  hint: make it one: tp.forest(...)"
        )


def test_one_name_of_inputs() -> None:
    forest = tp.forest(children=[[1], []], v=[1.0, 2.0], word=[1.0, 2.0])
    _, _, gradients = sums().value_and_grad(forest, inputs="word")
    assert {name: array.tolist() for name, array in gradients.items()} == {"word": [0, 0]}
