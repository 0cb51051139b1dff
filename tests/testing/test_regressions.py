"""Bugs that random programs found, each reduced to a few lines."""

from __future__ import annotations

import numpy as np

import tempo as tp


def test_gradient_of_a_slice_over_a_dim_that_reaches_past_its_steps_and_another() -> None:
    """The adjoint of w had its dims in another order than w, and the axes of the slice were mixed up: an error, or,
    where T + 1 == S as here, a wrong gradient."""
    with tp.Program("slices") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=s)
        w = prog.state("w", x, over=t)
        w.next = w + 1.0
        loss = tp.sum(w[0 : T + 1, 0:S] * w[0 : T + 1, 0:S])
        prog.output("of_w", tp.grad(loss, w))
        prog.output("of_x", tp.grad(loss, x))
    result = prog.evaluate({T: 2, S: 3}, x=[1, 2, 3])
    # What is added to w at a step is also added to it at all later ones.
    np.testing.assert_array_equal(result.of_w, [[12, 18, 24], [10, 14, 18], [6, 8, 10]])
    np.testing.assert_array_equal(result.of_x, [12, 18, 24])


def test_gradient_with_a_held_dim_at_a_point_past_the_last_step() -> None:
    """Where values may leave the step of the loss and come back, the gradient was only defined at the steps of the
    held dim, and not where the tensor reaches further. No loss is there: it is zero."""
    with tp.Program("past") as prog:
        t, T = prog.dim("t")
        o = prog.recurrent("o", domain=t)
        o[0] = 1.0
        o[t + 1] = 2.0 * o[t]
        prog.output("g", tp.grad(o[T] * t.value, o))
    np.testing.assert_array_equal(prog.evaluate({T: 3}).g, [0, 4, 4, 0])


def test_gradient_through_a_case_that_applies_nowhere() -> None:
    """With T = 1 the second case has no points, and what it would read there does not exist."""
    with tp.Program("nowhere") as prog:
        t, T = prog.dim("t")
        w = prog.input("w")
        y = prog.recurrent("y", domain=t)
        y[T - 1] = w
        y[t] = y[T] * w
        prog.output("g", tp.grad(y[0], w))
    assert prog.evaluate({T: 1}, w=2).g == 1


def test_gradient_of_nothing_is_not_nan() -> None:
    """The mean of no elements is nan, but the case that takes it applies nowhere."""
    with tp.Program("mean") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=(t, s))
        w = prog.input("w")
        y = prog.recurrent("y", domain=(t, s))
        y[T - 1, s] = 1.0
        y[t, s] = tp.mean(x[0, s + 1 : S]) * w
        prog.output("g", tp.grad(tp.sum(y[0:T, 0:S]), w))
    assert prog.evaluate({T: 1, S: 1}, x=[[1]], w=2).g == 0


def test_gradient_through_a_tensor_that_is_only_defined_where_it_is_read() -> None:
    with tp.Program("partly") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        a = tp.tanh(x[t - 2])  # at steps 0 and 1 there is no such step
        y = prog.recurrent("y", domain=t)
        y[0] = 1.0
        y[t] = a[tp.min(2 * t, T - 1)]
        prog.output("g", tp.grad(tp.sum(y[0:T]), x))
    np.testing.assert_array_equal(prog.evaluate({T: 4}, x=[0, 0, 0, 0]).g, [1, 2, 0, 0])


def test_inputs_that_no_result_needs_may_be_given() -> None:
    with tp.Program("unneeded") as prog:
        x = prog.input("x")
        prog.input("unneeded")
        prog.output("x", x)
    assert prog.evaluate(x=1, unneeded=2).x == 1


def test_states_over_two_dims_are_handed_out_where_they_are_defined() -> None:
    """With one inner step these points are a box, the value after the last step included."""
    with tp.Program("states") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        w = prog.state("w", 0, over=(t, s))
        w.next = w + 1
        prog.output("w", w)
    np.testing.assert_array_equal(prog.evaluate({T: 3, S: 1}).w, [[0], [1], [2], [3]])
    np.testing.assert_array_equal(prog.evaluate({T: 2, S: 2}).w, [[0, 1], [2, 3]])


def test_gradient_needs_no_more_of_a_recurrence_than_its_cases_read() -> None:
    """a is read at min(2 t, T - 1) for t >= 1 only, so never at 0, where it would read y[-2]."""
    with tp.Program("ahead") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="float64")
        y = prog.recurrent("y", domain=t, dtype="float64")
        a = tp.cos(y[t - 2] + x)
        y[0] = 1.0
        y[t] = a[tp.min(t * 2, T - 1)]
        prog.output("g", tp.grad(y, x))
    np.testing.assert_allclose(prog.evaluate({T: 3}, x=[1, 2, 3]).g, [0, 0, -np.sin(4)])


def test_second_order_gradient_through_a_tensor_that_is_defined_at_more_steps_than_are_read() -> None:
    with tp.Program("second") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="float64")
        a = prog.recurrent("a", domain=t, dtype="float64")
        a[t] = x[t - 2] * x[t]
        g = tp.grad(tp.sum(a[2:T] * a[2:T]), a)
        prog.output("h", tp.grad(g * g, x))
    np.testing.assert_allclose(prog.evaluate({T: 4}, x=[1, 2, 3, 4]).h, [0, 0, 24, 128])


def test_gradient_whose_steps_begin_where_a_stopped_dim_ends() -> None:
    """The adjoint of y[t] starts at a step that depends on T, which is only known when the program has run."""
    with tp.Program("stopped") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[T - 1] = x[0]
        y[T - 2] = x[0]
        y[t] = tp.sum(y[t + 1 : tp.min(t + 4, T)])
        prog.output("g", tp.grad(tp.sum(y[0:T]), y))
        prog.stop(t, when=t >= 0)
    np.testing.assert_array_equal(prog.evaluate({T: 4}, x=[1, 2, 3, 4]).g, [0, 1])  # y[-1] and y[0]


def test_gradient_through_a_case_that_begins_after_two_others_and_applies_nowhere() -> None:
    """With T = 2 there is no t >= 2, so a is never read at 0, where it would read y[-1]."""
    with tp.Program("third") as prog:
        t, T = prog.dim("t")
        y = prog.input("y", domain=t, dtype="float64")
        a = y[t - 1] * y
        z = prog.recurrent("z", domain=t, dtype="float64")
        z[0] = 1.0
        z[1] = z[0]
        z[t] = z[t - 2] * tp.sum(a[tp.max(t - 3, 0) : T])
        prog.output("g", tp.grad(z[T - 1] + a[T - 1], y))
    np.testing.assert_array_equal(prog.evaluate({T: 2}, y=[2, 3]).g, [3, 2])
