"""Gradients through definitions by cases: recurrences of every direction, and the points at their ends."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import tempo as tp
from tests.gradients.common import F64, Array, Tensor, check, numbers


def check_definition(
    write: Callable[..., Tensor], reference: Callable[[Array], Array], steps: tuple[int, ...] = (1, 2, 5)
) -> None:
    """``write(h, x, t, T)`` defines h by cases and returns a loss; it is differentiated with respect to x."""
    for number in steps:
        with tp.Program() as prog:
            t, T = prog.dim("t")
            x = prog.input("x", domain=(t,), dtype=F64)
            h = prog.recurrent("h", domain=(t,), dtype=F64)
            loss = write(h, x, t, T)
        check(prog, {T: number}, loss, {"x": x}, reference, x=numbers(number))


def test_a_value_after_the_last_step() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[0] = 0.5
        h[t + 1] = tp.sin(h[t]) + x[t]
        return h[T] * tp.sum(h[0 : T + 1] ** 2)

    def reference(x: Array) -> Array:
        h = [0.5]
        for value in x:
            h.append(jnp.sin(h[-1]) + value)
        return h[-1] * sum(value**2 for value in h)

    check_definition(write, reference)


def test_a_value_before_the_first_step() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[-1] = x[T - 1]
        h[t] = tp.sin(h[t - 1]) * x[t]
        return h[T - 1] * h[-1]

    def reference(x: Array) -> Array:
        h = x[-1]
        for value in x:
            h = jnp.sin(h) * value
        return h * x[-1]

    check_definition(write, reference)


def test_two_values_on_either_side() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[-2] = x[0] ** 2
        h[-1] = x[0] ** 3
        h[T + 1] = tp.sin(h[T])
        h[T] = h[T - 1] * h[-2]
        h[t] = h[t - 1] * tp.cos(h[t - 2]) + x[t]
        return h[T + 1] * h[T] + tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h = [x[0] ** 2, x[0] ** 3]
        for value in x:
            h.append(h[-1] * jnp.cos(h[-2]) + value)
        after = h[-1] * h[0]
        return jnp.sin(after) * after + sum(value**2 for value in h[2:])

    check_definition(write, reference)


def test_against_time() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[T - 1] = x[T - 1]
        h[t] = tp.sin(h[t + 1]) * x[t]
        return tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h = [x[-1]]
        for value in x[-2::-1]:
            h.append(jnp.sin(h[-1]) * value)
        return sum(value**2 for value in h)

    check_definition(write, reference)


def test_a_reversed_target() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[T] = 0.3
        h[T - 1 - t] = tp.sin(h[T - t]) + x[t]
        return tp.sum(((t + 1) * h**2)[0:T]) * h[T]

    def reference(x: Array) -> Array:
        steps = len(x)
        h = {steps: 0.3}
        for t in range(steps):
            h[steps - 1 - t] = jnp.sin(h[steps - t]) + x[t]
        return sum((t + 1) * h[t] ** 2 for t in range(steps)) * 0.3

    check_definition(write, reference)


def test_the_first_case_that_matches_wins() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[2] = 10 * x[0]
        h[t < 3] = x[t] ** 2
        h[t >= T - 1] = tp.sin(x[t])
        h[t] = h[t - 1] * x[t] + x[t - 3]
        return tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for t in range(len(x)):
            if t == 2:
                h.append(10 * x[0])
            elif t < 3:
                h.append(x[t] ** 2)
            elif t >= len(x) - 1:
                h.append(jnp.sin(x[t]))
            else:
                h.append(h[t - 1] * x[t] + x[t - 3])
        return sum(value**2 for value in h)

    check_definition(write, reference, steps=(1, 2, 3, 4, 7))


def test_known_then_generated() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[t < 3] = x
        h[t] = tp.sin(h[t - 1] + 2 * h[t - 3])
        return tp.sum(((t + 1) * h)[0:T])

    def reference(x: Array) -> Array:
        h = list(x[:3])
        for t in range(3, len(x)):
            h.append(jnp.sin(h[t - 1] + 2 * h[t - 3]))
        return sum((t + 1) * value for t, value in enumerate(h))

    check_definition(write, reference, steps=(1, 2, 3, 7))


def test_cases_by_remainder() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[tp.equal(t % 3, 0)] = x[t // 3] * x[t]
        h[(t % 3 >= 2) | (t >= 4)] = h[t - 1] ** 2
        h[t] = h[3 * (t // 3)] + x[t]
        return tp.sum(tp.sin(h)[0:T])

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for t in range(len(x)):
            if t % 3 == 0:
                h.append(x[t // 3] * x[t])
            elif t % 3 == 2 or t >= 4:
                h.append(h[t - 1] ** 2)
            else:
                h.append(h[3 * (t // 3)] + x[t])
        return sum(jnp.sin(value) for value in h)

    check_definition(write, reference, steps=(1, 2, 3, 7))


def test_a_tree_of_halves() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[0] = x[0]
        h[t] = tp.sin(h[(t - 1) // 2]) * x[t]
        return tp.sum((h**2)[0:T])

    def reference(x: Array) -> Array:
        h = [x[0]]
        for t in range(1, len(x)):
            h.append(jnp.sin(h[(t - 1) // 2]) * x[t])
        return sum(value**2 for value in h)

    check_definition(write, reference, steps=(1, 2, 7))


def test_a_recurrence_over_its_whole_past() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[t] = x[t] * tp.cos(tp.sum(h[0:t]))
        return tp.sum(h[0:T])

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for value in x:
            h.append(value * jnp.cos(sum(h, start=0.0)))
        return sum(h)

    check_definition(write, reference)


def test_a_recurrence_over_its_whole_future() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[t] = x[t] * tp.cos(tp.sum(tp.sin(h[t + 1 : T])))
        return h[0]

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for value in x[::-1]:
            h.append(value * jnp.cos(sum((jnp.sin(later) for later in h), start=0.0)))
        return h[-1]

    check_definition(write, reference)


def test_a_recurrence_over_a_window_of_its_past() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[t] = x[t] * tp.cos(tp.sum(h[tp.max(0, t - 2) : t]))
        return tp.sum((h**2)[0:T])

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for t, value in enumerate(x):
            h.append(value * jnp.cos(sum(h[max(0, t - 2) : t], start=0.0)))
        return sum(value**2 for value in h)

    check_definition(write, reference)


def test_two_recurrences_through_each_other() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        other = h.program.recurrent("other", domain=(t,), dtype=F64)
        h[0] = x[0]
        h[t] = tp.sin(other[t - 1]) + x[t]
        other[t] = h[t] * tp.cos(h[tp.max(t - 2, 0)])
        return other[T - 1] * h[T - 1]

    def reference(x: Array) -> Array:
        h, other = [], []
        for t, value in enumerate(x):
            h.append(jnp.sin(other[-1]) + value if t else value)
            other.append(h[t] * jnp.cos(h[max(t - 2, 0)]))
        return other[-1] * h[-1]

    check_definition(write, reference)


def test_forth_and_back() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        back = h.program.recurrent("back", domain=(t,), dtype=F64)
        h[-1] = 0.1
        h[t] = tp.sin(h[t - 1]) + x[t]
        back[T] = h[T - 1]
        back[t] = tp.sin(back[t + 1]) * h[t]
        return tp.sum((back * h[T - 1 - t])[0:T])

    def reference(x: Array) -> Array:
        h, last = [], 0.1
        for value in x:
            last = jnp.sin(last) + value
            h.append(last)
        back = [last]
        for value in h[::-1]:
            back.append(jnp.sin(back[-1]) * value)
        return sum(a * b for a, b in zip(back[1:], h, strict=True))

    check_definition(write, reference)


def test_points_where_an_operation_has_no_value_are_not_asked_for() -> None:
    """x[0] * h[t - 1] exists from t = 1, x[0] * x[t + 1] ** 3 up to T - 2: gradients must look no further."""

    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        step = x[0] * h[t - 1]
        ahead = x[0] * x[t + 1] ** 3
        h[0] = x[0]
        h[t < T - 1] = tp.sin(step) * ahead
        h[t] = step
        return tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h = [x[0]]
        for t in range(1, len(x)):
            step = x[0] * h[-1]
            h.append(jnp.sin(step) * x[0] * x[t + 1] ** 3 if t < len(x) - 1 else step)
        return sum(value**2 for value in h)

    check_definition(write, reference)


def test_a_recurrence_over_two_dims() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j), dtype=F64)
        w = prog.param("w", dtype=F64)
        D = prog.recurrent("D", domain=(i, j), dtype=F64)
        D[0, 0] = 1.0
        D[0, j + 1] = w * D[0, j]
        D[i + 1, 0] = tp.sin(D[i, 0]) + w
        D[i + 1, j + 1] = tp.cos(D[i, j] * x[i, j]) + w * D[i, j + 1] * D[i + 1, j]
        loss = D[I, J] + tp.sum(D[0, 0 : J + 1])

    def reference(x: Array, w: Array) -> Array:
        D = {(0, 0): 1.0}
        for j in range(4):
            D[0, j + 1] = w * D[0, j]
        for i in range(3):
            D[i + 1, 0] = jnp.sin(D[i, 0]) + w
            for j in range(4):
                D[i + 1, j + 1] = jnp.cos(D[i, j] * x[i, j]) + w * D[i, j + 1] * D[i + 1, j]
        return D[3, 4] + sum(D[0, j] for j in range(5))

    check(prog, {I: 3, J: 4}, loss, {"x": x, "w": w}, reference, x=numbers(3, 4), w=np.array(0.7))


def test_both_targets_reversed() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j), dtype=F64)
        D = prog.recurrent("D", domain=(i, j), dtype=F64)
        D[I, j] = 1.0
        D[I - 1 - i, J - 1 - j] = tp.sin(D[I - i, J - 1 - j]) * x[i, j]
        loss = tp.sum(((i + 1) * (2 * j + 1) * D**2)[0:I, 0:J])

    def reference(x: Array) -> Array:
        D = {(3, j): 1.0 for j in range(4)}
        for i in range(3):
            for j in range(4):
                D[2 - i, 3 - j] = jnp.sin(D[3 - i, 3 - j]) * x[i, j]
        return sum((i + 1) * (2 * j + 1) * D[i, j] ** 2 for i in range(3) for j in range(4))

    check(prog, {I: 3, J: 4}, loss, {"x": x}, reference, x=numbers(3, 4))


def test_state_in_lexicographic_order() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j), dtype=F64)
        w0 = prog.input("w0", dtype=F64)
        w = prog.state("w", w0, over=(i, j))
        w.next = tp.sin(w) * x + w
        loss = w.final * w[1, 2]

    def reference(x: Array, w0: Array) -> Array:
        w, middle = w0, None
        for i in range(3):
            for j in range(4):
                middle = w if (i, j) == (1, 2) else middle
                w = jnp.sin(w) * x[i, j] + w
        return w * middle

    check(prog, {I: 3, J: 4}, loss, {"x": x, "w0": w0}, reference, x=numbers(3, 4), w0=np.array(0.7))


def test_stacks_of_a_tensor_with_a_value_after_its_first_dim() -> None:
    """The adjoint has one step more over i; the axes of its stacks must stay in the order i, j."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j), dtype=F64)
        o = prog.recurrent("o", domain=(i, j), dtype=F64)
        o[I, j] = 0.0
        o[i, j] = tp.sin(x)
        weights = numbers(3, 3, seed=1)
        loss = tp.sum(o[0:3, 0:3] * weights) + tp.sum(o[1:4, 1:3])

    def reference(x: Array) -> Array:
        return jnp.sum(jnp.sin(x) * weights) + jnp.sum(jnp.sin(x)[1:, 1:])

    check(prog, {I: 3, J: 3}, loss, {"x": x}, reference, x=numbers(3, 3))


def test_a_value_that_grows() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        grown = h.program.recurrent("grown", t, domain=(t,), dtype=F64)
        grown[0] = tp.zeros(0, F64)
        grown[t + 1] = tp.concatenate([tp.sin(grown[t]), tp.reshape(x, 1)])
        h[t] = tp.sum(grown * tp.arange(t, dtype=F64))
        return tp.sum(grown[T] ** 2) + tp.sum(h[0:T])

    def reference(x: Array) -> Array:
        grown, total = jnp.zeros(0), 0.0
        for t, value in enumerate(x):
            total = total + jnp.sum(grown * jnp.arange(t))
            grown = jnp.concatenate([jnp.sin(grown), value[None]])
        return jnp.sum(grown**2) + total

    check_definition(write, reference)


def test_gradient_with_respect_to_values_outside_the_steps() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=F64)
        h = prog.recurrent("h", domain=(t,), dtype=F64)
        h[-1] = 1.0
        h[T] = 2 * h[T - 1]
        h[t] = h[t - 1] * x[t]
        g = tp.grad(h[T], h)
        prog.output("g", g)
        prog.output("first", g[-1])
        prog.output("last", g[T])
    result = prog.evaluate({T: 3}, x=[2.0, 3.0, 5.0])
    assert result.g.tolist() == [60, 30, 10, 2, 1]
    assert (result.first, result.last) == (60, 1)


def test_a_dim_that_stops_on_data() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=F64)
        h = prog.recurrent("h", domain=(t,), dtype=F64)
        h[0] = x[0]
        h[t] = h[t - 1] * x[t]
        prog.stop(t, when=h > 20)
        prog.output("h", h)
        prog.output("g", tp.grad(h[T - 1] + tp.sum(x[0:T]), x))
    result = prog.evaluate({T: 6}, x=[2.0, 3.0, 5.0, 7.0, 11.0, 13.0])
    assert result.h.tolist() == [2, 6, 30]
    assert result.g.tolist() == [16, 11, 7]
