"""Which loops a program gets: the loop tree as text, and that it computes what the program says."""

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.looptree import Loop, computes
from tests.schedule.common import outline, text


def compiled(prog: tp.Program, bounds: dict[Any, int], **inputs: Any) -> Executable:
    """The program compiled for NumPy, after a look at whether it computes the right numbers."""
    run = prog.compile(bounds, backend="numpy")
    found, expected = run(**inputs), prog.evaluate(bounds, **inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5)
    return run


def lines(expected: str) -> str:
    """The lines of an indented string."""
    rows = expected.strip("\n").rstrip().splitlines()
    margin = len(rows[0]) - len(rows[0].lstrip())
    return "\n".join(row[margin:] for row in rows)


def test_without_recurrence_there_is_no_loop() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("y", tp.tanh(x) * x[T - 1 - t])
    assert text(compiled(prog, {T: 3}, x=[1, 2, 3]).schedule.trees) == lines("""
        x = input()
        tanh_1 = tanh(x)
        multiply_1 = multiply(tanh_1, x[T - t - 1])
    """)


def test_a_recurrence_is_a_loop_after_its_first_step() -> None:
    with tp.Program("ema") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = prog.recurrent("y", domain=(t,))
        y[0] = x[0]
        y[t] = 0.5 * y[t - 1] + 0.5 * x
        prog.output("y", y)
    run = compiled(prog, {T: 4}, x=[8, 4, 2, 0])
    assert run(x=[8, 4, 2, 0]).y.tolist() == [8, 6, 4, 2]
    assert text(run.schedule.trees) == lines("""
        x = input()
        constant_1 = constant()
        at t = 0:
            y = recurrent() (case 1)
        for t in 1 .. 3:
            multiply_1 = multiply(constant_1, x)
            multiply_2 = multiply(constant_1, y[t - 1])
            add_1 = add(multiply_2, multiply_1)
            y = recurrent() (case 2)
    """)
    # A single step is the first one: no loop at all.
    assert outline(prog.compile({T: 1}, backend="numpy").schedule.trees, "y") == "y = recurrent() (case 1)"


def test_a_return_is_a_loop_backwards() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        r = prog.input("r", domain=(t,))
        G = prog.recurrent("G", domain=(t,))
        G[T] = 0
        G[t] = r + 0.5 * G[t + 1]
        prog.output("G", G)
    run = compiled(prog, {T: 3}, r=[1, 2, 4])
    assert run(r=[1, 2, 4]).G.tolist() == [3, 4, 4, 0]
    assert text(run.schedule.trees) == lines("""
        r = input()
        constant_1 = constant()
        constant_2 = constant()
        at t = 3:
            G = recurrent() (case 1)
        for t in 2 .. 0, backwards:
            multiply_1 = multiply(constant_2, G[t + 1])
            add_1 = add(r, multiply_1)
            G = recurrent() (case 2)
    """)


def test_two_recurrences_share_a_loop() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        a = prog.recurrent("a", domain=(t,))
        b = prog.recurrent("b", domain=(t,))
        a[-1] = 0
        a[t] = a[t - 1] + x
        b[-1] = 0
        b[t] = b[t - 1] + a
        prog.output("b", b)
    run = compiled(prog, {T: 3}, x=[1, 2, 3])
    assert run(x=[1, 2, 3]).b.tolist() == [0, 1, 4, 10]
    assert text(run.schedule.trees) == lines("""
        x = input()
        constant_1 = constant()
        at t = -1:
            a = recurrent() (case 1)
            b = recurrent() (case 1)
        for t in 0 .. 2:
            add_1 = add(a[t - 1], x)
            a = recurrent() (case 2)
            add_2 = add(b[t - 1], a)
            b = recurrent() (case 2)
    """)


def test_a_recurrence_that_needs_the_end_of_another_has_its_own_loop() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        a = prog.recurrent("a", domain=(t,))
        b = prog.recurrent("b", domain=(t,))
        a[0] = x[0]
        a[t] = a[t - 1] + x
        b[0] = a[T - 1]
        b[t] = b[t - 1] / 2
        prog.output("b", b)
    run = compiled(prog, {T: 3}, x=[1, 3, 4])
    assert run(x=[1, 3, 4]).b.tolist() == [8, 4, 2]
    assert outline(run.schedule.trees, "a", "b") == lines("""
        at t = 0:
            a = recurrent() (case 1)
        for t in 1 .. 2:
            a = recurrent() (case 2)
        at t = 0:
            b = recurrent() (case 1)
        for t in 1 .. 2:
            b = recurrent() (case 2)
    """)


def test_backpropagation_is_a_second_loop_and_one_product() -> None:
    with tp.Program("rnn") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 2, domain=(t,))
        W = prog.param("W", (2, 2))
        h = prog.recurrent("h", 2, domain=(t,))
        h[0] = x[0]
        h[t] = tp.tanh(W @ h[t - 1] + x)
        prog.output("dW", tp.grad(tp.sum(h[T - 1]), W))
    run = compiled(prog, {T: 4}, x=np.arange(8).reshape(4, 2) / 8, W=[[0.5, -1], [1, 0.5]])
    assert outline(run.schedule.trees, "h", "adjoint(h)", "einsum") == lines("""
        at t = 0:
            h = recurrent() (case 1)
        for t in 1 .. 3:
            einsum_1 = einsum(W, h[t - 1])
            h = recurrent() (case 2)
        for t in 3 .. 1, backwards:
            adjoint(h) = recurrent() (case 1)
            einsum_2 = einsum(W, recurrent_1)
        at t = 0:
            adjoint(h) = recurrent() (case 1)
        einsum_3 = einsum(recurrent_1[1:T], h[0:T - 1])
    """)


def test_products_of_inputs_are_computed_for_all_steps_at_once() -> None:
    with tp.Program("rnn") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 2, domain=(t,))
        U = prog.param("U", (3, 2))
        h = prog.recurrent("h", 3, domain=(t,))
        h[-1] = 0
        h[t] = 0.5 * h[t - 1] + U @ x
        prog.output("h", h)
    run = compiled(prog, {T: 3}, x=np.ones((3, 2)), U=np.ones((3, 2)))
    assert outline(run.schedule.trees, "h", "einsum") == lines("""
        einsum_1 = einsum(U, x)
        at t = -1:
            h = recurrent() (case 1)
        for t in 0 .. 2:
            h = recurrent() (case 2)
    """)


def test_outer_products_are_made_where_they_are_added_up() -> None:
    """Nothing is summed in them: of all steps they would only take more memory than what they are made of."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        k, v, q = (prog.input(name, (4,), t) for name in "kvq")
        memory = prog.recurrent("memory", (4, 4), t)
        memory[-1] = 0.0
        memory[t] = 0.5 * memory[t - 1] + tp.outer(v, k)
        read = memory @ q
        prog.output("slope", tp.grad(tp.square(read).sum()[0:T].sum(), k))
    data = np.arange(12, dtype="float32").reshape(3, 4)
    run = compiled(prog, {T: 3}, k=data, v=data + 1, q=data - 2)
    assert outline(run.schedule.trees, "einsum", "memory", "adjoint(memory)") == lines("""
        at t = -1:
            memory = recurrent() (case 1)
        for t in 0 .. 2:
            einsum_1 = einsum(v, k)
            memory = recurrent() (case 2)
        einsum_2 = einsum(memory, q)
        for t in 2 .. 0, backwards:
            einsum_3 = einsum(add_1, q)
            adjoint(memory) = recurrent() (case 1)
        at t = -1:
            adjoint(memory) = recurrent() (case 1)
        einsum_4 = einsum(v, adjoint(memory)[t + 1])
    """)


def test_training_is_a_loop_around_the_loops_over_time() -> None:
    with tp.Program("training") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", prog.input("w0"), over=i)
        h = prog.recurrent("h", domain=(i, t))
        h[i, 0] = 1
        h[i, t] = w * h[i, t - 1]
        w.next = w - 0.01 * tp.grad((h[i, T - 1] - 8) ** 2, w)
        prog.output("w", w.final)
    run = compiled(prog, {I: 3, T: 4}, w0=1.5)
    tree = outline(run.schedule.trees, "w", "h", "adjoint(h)", "sum")
    assert tree.startswith(
        lines("""
        for i in 0 .. 2:
            w = recurrent() (case 1, 2)
            at t = 0:
                h = recurrent() (case 1)
            for t in 1 .. 3:
                h = recurrent() (case 2)
            for t in 3 .. 1, backwards:
                adjoint(h) = recurrent() (case 1)
            at t = 0:
                adjoint(h) = recurrent() (case 1)
            sum_1 = sum(multiply_1[i'1, 1:T])
        at i = 3:
            w = recurrent() (case 2)
    """)
    )


def alignment() -> tuple[tp.Program, Any, Any]:
    """An edit distance, with the cost of every pair of letters given."""
    with tp.Program("alignment") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        cost = prog.input("cost", domain=(i, j))
        D = prog.recurrent("D", domain=(i, j))
        D[-1, -1] = 0
        D[-1, j] = (j.value + 1).astype("float32")
        D[i, -1] = (i.value + 1).astype("float32")
        D[i, j] = tp.minimum(D[i - 1, j - 1] + cost, tp.minimum(D[i, j - 1], D[i - 1, j]) + 1)
        prog.output("D", D)
    return prog, I, J


def test_an_edit_distance_one_point_at_a_time_is_two_nested_loops() -> None:
    prog, I, J = alignment()
    cost = [[1, 1], [0, 1], [1, 0]]  # "cab" and "ab"
    compiled(prog, {I: 3, J: 2}, cost=cost)
    run = Executable(prog.graph, {I: 3, J: 2}, "numpy", skip=("skew",))
    assert run(cost=cost).D.tolist() == [[0, 1, 2], [1, 1, 2], [2, 1, 2], [3, 2, 1]]
    assert outline(run.schedule.trees, "D") == lines("""
        at i = -1:
            D = recurrent() (case 1, 2)
        for i in 0 .. 2:
            at j = -1:
                D = recurrent() (case 3)
            for j in 0 .. 1:
                D = recurrent() (case 4)
    """)


def steps_from_both_ends() -> tuple[tp.Program, Any]:
    """Each step reads one from the other end: 0, 5, 1, 4, 2, 3 is the only order."""
    with tp.Program("tangled") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = prog.recurrent("y", domain=(t,))
        y[0] = x[0]
        y[t >= T // 2] = y[T - 1 - t] + x
        y[t] = y[T - t] + x
        prog.output("y", y)
    return prog, T


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_definition_that_no_dim_carries_runs_point_by_point(backend: str) -> None:
    prog, T = steps_from_both_ends()
    x = [1, 2, 4, 8, 16, 32]
    assert prog.evaluate({T: 6}, x=x).y.tolist() == [1, 35, 55, 63, 51, 33]
    run = prog.compile({T: 6}, backend)
    assert run(x=x).y.tolist() == [1, 35, 55, 63, 51, 33]
    assert outline(run.schedule.trees, "y") == lines("""
        at t = 0:
            y = recurrent() (case 1)
        at t = 5:
        at t = 5:
            y = recurrent() (case 2)
        at t = 1:
        at t = 1:
            y = recurrent() (case 3)
        at t = 4:
        at t = 4:
            y = recurrent() (case 2)
        at t = 2:
        at t = 2:
            y = recurrent() (case 3)
        at t = 3:
        at t = 3:
            y = recurrent() (case 2)
    """)


# -- known gaps: definitions written one step ahead ---------------------------------------------------------


def cell() -> tuple[tp.Program, Any]:
    with tp.Program("cell") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        c = prog.recurrent("c", domain=(t,))
        h = prog.recurrent("h", domain=(t,))
        c[0] = 0
        h[0] = 0
        c[t + 1] = c[t] + h[t] + x
        h[t + 1] = 2 * c[t + 1]
        prog.output("h", h)
    return prog, T


def test_two_states_defined_one_step_ahead_are_right() -> None:
    prog, T = cell()
    assert compiled(prog, {T: 3}, x=[1, 1, 1])(x=[1, 1, 1]).h.tolist() == [0, 2, 8, 26]


def test_two_states_defined_one_step_ahead_are_one_loop() -> None:
    prog, T = cell()
    run = prog.compile({T: 1000}, backend="numpy")
    assert outline(run.schedule.trees).count("for t in") == 1


def test_an_edit_distance_whose_borders_are_recurrences_is_two_loops_and_one_along_diagonals() -> None:
    with tp.Program("alignment") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        cost = prog.input("cost", domain=(i, j))
        D = prog.recurrent("D", domain=(i, j))
        D[-1, -1] = 0
        D[-1, j] = D[-1, j - 1] + 1
        D[i, -1] = D[i - 1, -1] + 1
        D[i, j] = tp.minimum(D[i - 1, j - 1] + cost, tp.minimum(D[i, j - 1], D[i - 1, j]) + 1)
        prog.output("D", D)
    run = prog.compile({I: 60, J: 60}, backend="numpy")
    assert outline(run.schedule.trees).splitlines() == [
        "at j = -1:",
        "for j in 0 .. 59:",
        "at i = -1:",
        "for i in 0 .. 59:",
        "for (i+j) in -2 .. -1:",
        "for (i+j) in 0 .. 118:",
    ]


def test_what_is_emitted_per_iteration_does_not_pull_all_it_needs_into_inner_loops() -> None:
    """Only the recurrence needs the loop over t: products with all of its steps are made at once, behind it."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", np.eye(3, dtype=np.float32), over=i)
        x = prog.recurrent("x", 3, (i, t))
        x[i, 0] = 1.0
        x[i, t + 1] = tp.tanh(x @ w)
        values = x @ w.T
        mean = tp.mean(values[i, 0:T])
        w.next = w * mean
        prog.emit("mean", mean)
    # Also where all iterations together would be too much to keep.
    for iterations in (3, 10**6):
        run = prog.compile({I: iterations, T: 64}, backend="numpy")
        tree = outline(run.schedule.trees, "einsum").splitlines()
        assert tree[1:5] == [
            "    for t in 0 .. 63:",
            "        einsum_1 = einsum(x, w)",
            "    at t = 64:",
            "    einsum_2 = einsum(x, transpose_1)",
        ]


def test_what_a_loop_reads_is_computed_before_it_if_that_keeps_no_more() -> None:
    """A normal draw takes two uniform ones: kept are the draws, not what they are made of. But what is made of an
    input, which is there anyway, is computed where it is read."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (8,), domain=(t,))
        h = prog.state("h", np.zeros(8), over=t)
        h.next = tp.tanh(h + tp.random.normal((8,), domain=(t,)) + tp.exp(x))
        prog.output("last", h[T - 1])
    run = compiled(prog, {T: 100}, x=np.zeros((100, 8)))
    (loop,) = [tree for tree in run.schedule.trees if isinstance(tree, Loop) and len(tree.steps) > 1]
    inside = {statement.node.op.name for statement in computes(loop.body)}
    assert "exp" in inside and not inside & {"random_bits", "log", "cos"}


@pytest.mark.parametrize("read_later", [False, True])
def test_what_is_smaller_is_kept_in_place_of_what_it_is_made_of(read_later: bool) -> None:
    """But where the larger one is kept anyway, the loop would only write more."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        h = prog.recurrent("h", (8,), t)
        h[-1] = tp.ones(8)
        steps = tp.sin(h[t - 1] * 2)
        h[t] = steps
        prog.output("positive", steps > 0)
        if read_later:
            prog.output("exponentials", tp.exp(steps))
    run = prog.compile({T: 5}, backend="numpy")
    assert run.loop_tree("less").startswith("for t") is not read_later
    np.testing.assert_array_equal(run().positive, prog.evaluate({T: 5}).positive)
