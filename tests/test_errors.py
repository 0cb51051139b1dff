"""Every mistake a user can make, and the whole message that it gets.

A message says in the user's names what is wrong, quotes the lines of the program that matter, and gives the likely fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import tempo as tp
from tempo import errors


@contextmanager
def fails(kind: type[Exception], *lines: str) -> Iterator[None]:
    """Expect an error of this kind with exactly this message; FILE stands for this file and a line number."""
    with pytest.raises(kind) as error:
        yield
    assert type(error.value) is kind
    assert message(error.value).split("\n") == list(lines)


def message(error: Exception) -> str:
    return re.sub(r"test_errors\.py:\d+", "FILE", str(error))


def doubled() -> tuple[tp.Program, tp.Dim, tp.program.Bound]:
    """A correct program."""
    with tp.Program("double") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("y", 2 * x)
    return prog, t, T


# -- values that nothing defines --------------------------------------------------------------------------------------


def test_a_recurrent_tensor_without_cases() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        prog.output("z", y + 1)
    with fails(
        errors.ProgramError,
        "y is used but nothing defines it",
        '  y: FILE: y = prog.recurrent("y", domain=(t,))',
        "  hint: define it: y[t] = ...",
    ):
        prog.evaluate({T: 3})


def test_no_first_step() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        y[t] = 0.5 * y[t - 1] + 1
        prog.output("y", y)
    with fails(
        errors.DefinitionError,
        "y[-1] is needed by y[0], but y is only defined for t = 0 ... T - 1 (T = 3)",
        "  here: FILE: y[t] = 0.5 * y[t - 1] + 1",
        '  y: FILE: y = prog.recurrent("y", domain=(t,))',
        "  hint: before the general case write one for the first step: y[0] = ...",
    ):
        prog.evaluate({T: 3})


def test_no_first_step_of_a_definition_ahead() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        y[t + 1] = 0.5 * y[t] + 1
        prog.output("y", y)
    with fails(
        errors.DefinitionError,
        "y[0] is needed by y[1], but y is only defined for t = 1 ... T (T = 3)",
        "  here: FILE: y[t + 1] = 0.5 * y[t] + 1",
        '  y: FILE: y = prog.recurrent("y", domain=(t,))',
        "  hint: before the general case write one for the first step: y[0] = ...",
    ):
        prog.evaluate({T: 3})


def test_no_first_step_in_two_dims() -> None:
    with tp.Program("p") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(b, t))
        y[b, t] = 0.5 * y[b, t - 1] + 1
        prog.output("y", y)
    with fails(
        errors.DefinitionError,
        "y[0, -1] is needed by y[0, 0], but y is only defined for b = 0 ... B - 1 and t = 0 ... T - 1 (B = 2, T = 3)",
        "  here: FILE: y[b, t] = 0.5 * y[b, t - 1] + 1",
        '  y: FILE: y = prog.recurrent("y", domain=(b, t))',
        "  hint: before the general case write one for the first step: y[b, 0] = ...",
    ):
        prog.evaluate({B: 2, T: 3})


def test_no_last_step() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        r = prog.input("r", domain=(t,))
        g = prog.recurrent("g", domain=(t,))
        g[t] = r[t] + 0.9 * g[t + 1]
        prog.output("g", g)
    with fails(
        errors.DefinitionError,
        "g[3] is needed by g[2], but g is only defined for t = 0 ... T - 1 (T = 3)",
        "  here: FILE: g[t] = r[t] + 0.9 * g[t + 1]",
        '  g: FILE: g = prog.recurrent("g", domain=(t,))',
        "  hint: before the general case write one for the last step: g[T - 1] = ...",
    ):
        prog.evaluate({T: 3}, r=[1, 2, 3])


def test_a_fixed_step_behind_a_stop() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        y[0] = 1.0
        y[t] = 2 * y[t - 1]
        prog.stop(t, when=y > 1)
        prog.output("third", y[3])
    with fails(
        errors.DefinitionError,
        "y[3] is needed by output 'third', but y is only defined for t = 0 ... T - 1 (T = 2)",
        '  y: FILE: y = prog.recurrent("y", domain=(t,))',
        "  case: FILE: y[0] = 1.0",
        "  case: FILE: y[t] = 2 * y[t - 1]",
        "  hint: there may be fewer steps: read y[tp.min(3, T - 1)]",
    ):
        prog.evaluate({T: 10})


def test_a_hole_between_conditions() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        y[t < 2] = 0.0
        y[t > 2] = 1.0
        prog.output("y", y)
    with fails(
        errors.DefinitionError,
        "y[2] is needed by output 'y', but no case of y defines it",
        '  y: FILE: y = prog.recurrent("y", domain=(t,))',
        "  case: FILE: y[t < 2] = 0.0",
        "  case: FILE: y[t > 2] = 1.0",
        "  hint: add a case for it, or a general one after the others: y[t] = ...",
    ):
        prog.evaluate({T: 5})


def test_a_hole_that_an_operation_reads() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        y[t < 2] = 0.0
        y[t > 2] = 1.0
        total = y[0:T].sum(0)
        prog.output("total", total)
    with fails(
        errors.DefinitionError,
        "y[2] is needed by 'total = y[0:T].sum(0)', but no case of y defines it",
        "  here: FILE: total = y[0:T].sum(0)",
        '  y: FILE: y = prog.recurrent("y", domain=(t,))',
        "  case: FILE: y[t < 2] = 0.0",
        "  case: FILE: y[t > 2] = 1.0",
        "  hint: add a case for it, or a general one after the others: y[t] = ...",
    ):
        prog.evaluate({T: 5})


def test_past_the_end() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        change = x[t + 1] - x
        prog.output("change", change)
    with fails(
        errors.DefinitionError,
        "x[3] is needed by 'change = x[t + 1] - x' at t=2, but x is only defined for t = 0 ... T - 1 (T = 3)",
        "  here: FILE: change = x[t + 1] - x",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: read x[tp.min(t + 1, T - 1)], or define the last step by a case of its own",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3])


def test_before_the_start() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        change = x - x[t - 1]
        prog.output("change", change)
    with fails(
        errors.DefinitionError,
        "x[-1] is needed by 'change = x - x[t - 1]' at t=0, but x is only defined for t = 0 ... T - 1 (T = 3)",
        "  here: FILE: change = x - x[t - 1]",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: read x[tp.max(t - 1, 0)], or define the first step by a case of its own",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3])


def test_the_reader_is_the_line_that_reads_not_what_uses_it() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        change = x[t + 1] - x
        y = prog.recurrent("y", domain=(t,))
        y[0] = change[0]
        y[t] = y[t - 1] + change
        prog.output("y", y)
    with fails(
        errors.DefinitionError,
        "x[3] is needed by 'change = x[t + 1] - x' at t=2, but x is only defined for t = 0 ... T - 1 (T = 3)",
        "  here: FILE: change = x[t + 1] - x",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: read x[tp.min(t + 1, T - 1)], or define the last step by a case of its own",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3])


def test_minus_one_is_not_the_last_step() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("last", x[-1])
        prog.output("twice", 2 * x[-1])
    with fails(
        errors.DefinitionError,
        "x[-1] is needed by output 'last', but x is only defined for t = 0 ... T - 1 (T = 3)",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: negative steps do not count from the end: write x[T - 1]",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3])
    with fails(
        errors.DefinitionError,
        (
            "x[-1] is needed by '(2 * x[-1]).at({T: 3}, {\"x\": [1, 2, 3]})', but x is only defined for t = 0 "
            "... T - 1 (T = 3)"
        ),
        '  here: FILE: (2 * x[-1]).at({T: 3}, {"x": [1, 2, 3]})',
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: negative steps do not count from the end: write x[T - 1]",
    ):
        (2 * x[-1]).at({T: 3}, {"x": [1, 2, 3]})


def test_a_step_before_the_first_that_is_defined() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = prog.recurrent("y", domain=(t,))
        y[t + 1] = 2 * x
        start = y[0] + 1
        prog.output("start", start)
    with fails(
        errors.DefinitionError,
        "y[0] is needed by 'start = y[0] + 1', but y is only defined for t = 1 ... T (T = 3)",
        "  here: FILE: start = y[0] + 1",
        '  y: FILE: y = prog.recurrent("y", domain=(t,))',
        "  case: FILE: y[t + 1] = 2 * x",
        "  hint: before the general case write one for the first step: y[0] = ...",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3])


def test_a_slice_past_the_end() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        ahead = x[t : t + 3].sum(0)
        prog.output("ahead", ahead)
    with fails(
        errors.DefinitionError,
        "x[4] is needed by 'ahead = x[t : t + 3].sum(0)' at t=2, but x is only defined for t = 0 ... T - 1 (T = 4)",
        "  here: FILE: ahead = x[t : t + 3].sum(0)",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: keep the slice in range: end it at tp.min(t + 3, T)",
    ):
        prog.evaluate({T: 4}, x=np.zeros(4))


def test_a_slice_before_the_start() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        recent = x[t - 2 : t + 1].mean(0)
        prog.output("recent", recent)
    with fails(
        errors.DefinitionError,
        (
            "x[-2] is needed by 'recent = x[t - 2 : t + 1].mean(0)' at t=0, but x is only defined for t = 0 "
            "... T - 1 (T = 4)"
        ),
        "  here: FILE: recent = x[t - 2 : t + 1].mean(0)",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: keep the slice in range: start it at tp.max(t - 2, 0)",
    ):
        prog.evaluate({T: 4}, x=np.zeros(4))


def test_a_slice_of_negative_length() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        late = x[2 : t + 1].sum(0)
        prog.output("late", late)
    with fails(
        errors.DefinitionError,
        "x[2:t + 1] has a negative length: t from 2 to 1 at t=0",
        "  here: FILE: late = x[2 : t + 1].sum(0)",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: keep the stop above the start: 2:tp.max(2, t + 1) over t",
    ):
        prog.evaluate({T: 4}, x=np.zeros(4))


def test_a_slice_that_counts_from_the_end() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("inner", x[1:-1])
    with fails(
        errors.DefinitionError,
        "x[1:-1] has a negative length: t from 1 to -1",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: negative steps do not count from the end: write 1:T - 1 over t",
    ):
        prog.evaluate({T: 4}, x=np.zeros(4))


def test_an_emitted_value_and_a_host_call_and_a_stop_past_the_ends() -> None:
    with tp.Program("emit") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.emit("next", x[t + 1])
    with fails(
        errors.DefinitionError,
        "x[3] is needed by emit 'next', but x is only defined for t = 0 ... T - 1 (T = 3)",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: read x[tp.min(t + 1, T - 1)], or define the last step by a case of its own",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3])

    with tp.Program("host") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        tp.host(print, x[t + 1], sequence=t)
    with fails(
        errors.DefinitionError,
        "x[3] is needed by host print at t=2, but x is only defined for t = 0 ... T - 1 (T = 3)",
        "  here: FILE: tp.host(print, x[t + 1], sequence=t)",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        "  hint: read x[tp.min(t + 1, T - 1)], or define the last step by a case of its own",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3])

    with tp.Program("stop") as prog:
        t, T = prog.dim("t")
        done = prog.input("done", domain=(t,), dtype="bool")
        prog.stop(t, when=done[t - 1])
        prog.output("done", done)
    with fails(
        errors.DefinitionError,
        "done[-1] is needed by the stop of t, but done is only defined for t = 0 ... T - 1 (T = 3)",
        '  done: FILE: done = prog.input("done", domain=(t,), dtype="bool")',
        "  hint: read done[tp.max(t - 1, 0)], or define the first step by a case of its own",
    ):
        prog.evaluate({T: 3}, done=[False, False, True])


# -- values that depend on themselves ---------------------------------------------------------------------------------


def test_a_recurrence_in_both_directions() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[0] = 1.0
        x[T - 1] = 2.0
        x[t] = x[t + 1] + x[t - 1]
        prog.output("x", x)
    with fails(
        errors.CausalityError,
        "x[2] depends on itself: x[2] needs x[3] needs x[2]",
        "  x: FILE: x[t] = x[t + 1] + x[t - 1]",
        "  hint: a value may only use values that can be computed before it: earlier steps or later ones, not both",
    ):
        prog.evaluate({T: 5})


def test_a_value_that_is_itself() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[t] = x[t]
        prog.output("x", x)
    with fails(
        errors.CausalityError,
        "x[0] depends on itself: x[0] needs x[0]",
        "  x: FILE: x[t] = x[t]",
        "  hint: a value may only use values that can be computed before it, such as x[t - 1]",
    ):
        prog.evaluate({T: 5})


def test_a_value_without_steps_that_is_itself() -> None:
    with tp.Program("p") as prog:
        x = prog.recurrent("x")
        x[...] = x + 1
        prog.output("x", x)
    with fails(
        errors.CausalityError,
        "x depends on itself: x needs x",
        "  x: FILE: x[...] = x + 1",
        "  hint: a value may only use values that can be computed before it",
    ):
        prog.evaluate()


def test_two_tensors_that_need_each_other() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        a = prog.recurrent("a", domain=(t,))
        b = prog.recurrent("b", domain=(t,))
        a[t] = 2 * b[t]
        b[t] = tp.exp(a[t]) + 1
        prog.output("a", a)
    with fails(
        errors.CausalityError,
        "a[0] depends on itself: a[0] needs b[0] needs a[0]",
        "  a: FILE: a[t] = 2 * b[t]",
        "  b: FILE: b[t] = tp.exp(a[t]) + 1",
        "  hint: a value may only use values that can be computed before it",
    ):
        prog.evaluate({T: 5})


def test_a_cycle_through_all_steps() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        mean = x[0:T].mean(0)
        x[0] = 1.0
        x[t] = x[t - 1] - mean
        prog.output("x", x)
    with fails(
        errors.CausalityError,
        "x[1] depends on itself: x[1] needs 'mean = x[0:T].mean(0)' needs x[1]",
        "  x: FILE: x[t] = x[t - 1] - mean",
        "  through: FILE: mean = x[0:T].mean(0)",
        "  hint: a value may only use values that can be computed before it, such as x[t - 1]",
    ):
        prog.evaluate({T: 5})


def test_a_long_cycle_is_abridged() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[T - 1] = x[0]
        x[t] = x[t + 1]
        prog.output("x", x)
    with fails(
        errors.CausalityError,
        "x[0] depends on itself: x[0] needs x[1] needs x[2] needs x[3] needs ... needs x[49] needs x[0]",
        "  x: FILE: x[t] = x[t + 1]",
        "  x: FILE: x[T - 1] = x[0]",
        "  hint: a value may only use values that can be computed before it: earlier steps or later ones, not both",
    ):
        prog.evaluate({T: 50})


def test_a_stop_that_depends_on_the_bound_it_decides() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        mean = x[0:T].mean(0)
        high = x > mean
        prog.stop(t, when=high)
        prog.output("x", x)
    with fails(
        errors.CausalityError,
        "the stop condition of t depends on T, the number of steps that it decides",
        "  stop condition: FILE: high = x > mean",
        "  uses T: FILE: mean = x[0:T].mean(0)",
        "  hint: let it depend on steps up to the present one only, not on T",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3])


# -- definition by cases ----------------------------------------------------------------------------------------------


def test_a_case_of_another_shape() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=(t,))
        y = prog.recurrent("y", shape=(4,), domain=(t,))
        with fails(
            errors.ShapeError,
            "y[t] = ...: the right side has shape (3,), the left (4,)",
            "  here: FILE: y[t] = x[t]",
            '  y: FILE: y = prog.recurrent("y", shape=(4,), domain=(t,))',
            '  x: FILE: x = prog.input("x", shape=(3,), domain=(t,))',
            "  hint: a value may be broadcast to the left side's shape, as in NumPy, but not reshaped",
        ):
            y[t] = x[t]


def test_a_case_of_another_dtype() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        n = prog.input("n", domain=(t,), dtype="int32")
        y = prog.recurrent("y", domain=(t,))
        with fails(
            errors.DtypeError,
            "y[t] = ...: the right side is int32, y is float32",
            "  here: FILE: y[t] = n[t]",
            '  y: FILE: y = prog.recurrent("y", domain=(t,))',
            '  n: FILE: n = prog.input("n", domain=(t,), dtype="int32")',
            "  hint: cast with .astype(tp.float32), or declare y as int32",
        ):
            y[t] = n[t]


def test_a_case_that_varies_over_too_much() -> None:
    with tp.Program("p") as prog:
        b, _ = prog.dim("b")
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(b, t))
        y = prog.recurrent("y", domain=(t,))
        with fails(
            errors.DomainError,
            "y[t] = ...: the right side varies over b, the left does not",
            "  here: FILE: y[t] = x[b, t]",
            '  y: FILE: y = prog.recurrent("y", domain=(t,))',
            '  x: FILE: x = prog.input("x", domain=(b, t))',
            (
                "  hint: index the right side at one step of b, or stack the steps and reduce them, e.g. "
                "value[0:B].sum(0) over b"
            ),
        ):
            y[t] = x[b, t]
        with fails(
            errors.DomainError,
            "y[0] = ...: the right side varies over t, the left does not",
            "  here: FILE: y[0] = x[0, t]",
            '  y: FILE: y = prog.recurrent("y", domain=(t,))',
            '  x[0, t]: FILE: x = prog.input("x", domain=(b, t))',
            (
                "  hint: index the right side at one step of t, or stack the steps and reduce them, e.g. "
                "value[0:T].sum(0) over t"
            ),
        ):
            y[0] = x[0, t]


def test_a_number_that_does_not_fit() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        small = prog.recurrent("small", domain=(t,), dtype="int8")
        flag = prog.recurrent("flag", domain=(t,), dtype="bool")
        with fails(
            errors.DtypeError,
            "small[0] = ...: the value 1000 does not fit into int8",
            "  here: FILE: small[0] = 1000",
            '  small: FILE: small = prog.recurrent("small", domain=(t,), dtype="int8")',
            "  hint: choose a dtype that holds it, e.g. tp.int64",
        ):
            small[0] = 1000
        with fails(
            errors.DtypeError,
            "small[0] = ...: the value 0.5 does not fit into int8",
            "  here: FILE: small[0] = 0.5",
            '  small: FILE: small = prog.recurrent("small", domain=(t,), dtype="int8")',
            "  hint: choose a dtype that holds it, e.g. tp.float32",
        ):
            small[0] = 0.5
        with fails(
            errors.DtypeError,
            "flag[0] = ...: the value 7 does not fit into bool",
            "  here: FILE: flag[0] = 7",
            '  flag: FILE: flag = prog.recurrent("flag", domain=(t,), dtype="bool")',
            "  hint: choose a dtype that holds it, e.g. tp.int64",
        ):
            flag[0] = 7


def test_left_sides_that_are_no_cases() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        s, _ = prog.dim("s")
        y = prog.recurrent("y", domain=(t,))
        with fails(
            errors.IndexExpressionError,
            "y indexed over t by 2*t: on the left of = stands t, t plus or minus something fixed, or something fixed",
            "  here: FILE: y[2 * t] = 1.0",
            '  y: FILE: y = prog.recurrent("y", domain=(t,))',
            (
                "  hint: define every point through its own index, e.g. y[t] = ..., with conditions such as "
                "y[tp.equal(t % 2, 0)] = ..."
            ),
        ):
            y[2 * t] = 1.0
        with fails(
            errors.IndexExpressionError,
            "y indexed over t by s: on the left of = stands t, t plus or minus something fixed, or something fixed",
            "  here: FILE: y[s] = 1.0",
            '  y: FILE: y = prog.recurrent("y", domain=(t,))',
            (
                "  hint: define every point through its own index, e.g. y[t] = ..., with conditions such as "
                "y[tp.equal(t % 2, 0)] = ..."
            ),
        ):
            y[s] = 1.0
        with fails(
            errors.IndexExpressionError,
            "y indexed over t by 0:3: a case defines points, not slices",
            "  here: FILE: y[0:3] = 1.0",
            '  y: FILE: y = prog.recurrent("y", domain=(t,))',
            "  hint: write a condition: y[(t >= 0) & (t < 3)] = ...",
        ):
            y[0:3] = 1.0


def test_conditions_on_the_left() -> None:
    with tp.Program("p") as prog:
        b, _ = prog.dim("b")
        t, _ = prog.dim("t")
        s, _ = prog.dim("s")
        x = prog.input("x", domain=(b, t))
        y = prog.recurrent("y", domain=(b, t))
        with fails(
            errors.IndexExpressionError,
            "y[...] = ...: the condition t < 3 stands among other indices",
            "  here: FILE: y[b, t < 3] = 1.0",
            '  y: FILE: y = prog.recurrent("y", domain=(b, t))',
            "  hint: a condition stands alone, for all dims: y[t < 3] = ..., y[(t < 3) & ...] = ...",
        ):
            y[b, t < 3] = 1.0
        with fails(
            errors.DomainError,
            "y[s < 3]: the condition uses s, over which y does not vary",
            "  here: FILE: y[s < 3] = 1.0",
            '  y: FILE: y = prog.recurrent("y", domain=(b, t))',
            "  hint: y has the domain (b, t)",
        ):
            y[s < 3] = 1.0
        with fails(
            errors.IndexExpressionError,
            "y indexed over t by 0.0 < x: an index cannot be a tensor",
            "  here: FILE: y[b, x > 0] = 1.0",
            '  y: FILE: y = prog.recurrent("y", domain=(b, t))',
            "  hint: to choose by a condition on data write tp.where(0.0 < x, a, b)",
        ):
            y[b, x > 0] = 1.0


def test_an_equality_of_python_on_the_left() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        with fails(
            errors.IndexExpressionError,
            "y indexed over t by False: False is a plain bool, not an index",
            "  here: FILE: y[t == 0] = 1.0",
            '  y: FILE: y = prog.recurrent("y", domain=(t,))',
            "  hint: t == 0 compares expressions as Python objects; write y[0], or the condition tp.equal(t, 0)",
        ):
            y[t == 0] = 1.0


def test_a_case_after_the_general_one() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        y[t] = y[t - 1] + 1
        with fails(
            errors.ProgramError,
            "y[0] = ... can never apply: an earlier case has all of its points",
            "  here: FILE: y[0] = 0.0",
            "  earlier: FILE: y[t] = y[t - 1] + 1",
            "  hint: the first case that matches wins; write special cases before the general one",
        ):
            y[0] = 0.0


def test_a_case_written_twice() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        y[t < 4] = 0.0
        y[T - 1] = 0.0
        with fails(
            errors.ProgramError,
            "y[T - 1] = ... can never apply: an earlier case has all of its points",
            "  here: FILE: y[T - 1] = 1.0",
            "  earlier: FILE: y[T - 1] = 0.0",
            "  hint: the first case that matches wins; write special cases before the general one",
        ):
            y[T - 1] = 1.0
        with fails(
            errors.ProgramError,
            "y[t < 4] = ... can never apply: an earlier case has all of its points",
            "  here: FILE: y[t < 4] = 1.0",
            "  earlier: FILE: y[t < 4] = 0.0",
            "  hint: the first case that matches wins; write special cases before the general one",
        ):
            y[t < 4] = 1.0


def test_defining_what_is_not_recurrent() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = prog.recurrent("y", shape=(3,), domain=(t,))
        z = 2 * x
        with fails(
            errors.ProgramError,
            "x cannot be defined by cases: it is an input",
            "  here: FILE: x[0] = 1.0",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            '  hint: cases define what prog.recurrent("x", shape=..., domain=...) declares',
        ):
            x[0] = 1.0
        with fails(
            errors.ProgramError,
            "2.0 * x cannot be defined by cases: it is made by an operation",
            "  here: FILE: z[0] = 1.0",
            "  2.0 * x: FILE: z = 2 * x",
            '  hint: cases define what prog.recurrent("name", shape=..., domain=...) declares',
        ):
            z[0] = 1.0
        with fails(
            errors.ProgramError,
            "y[t - 1] cannot be defined by cases: it is a part of another tensor",
            "  here: FILE: y[t - 1][0] = 1.0",
            '  y: FILE: y = prog.recurrent("y", shape=(3,), domain=(t,))',
            "  hint: define y itself: y[...] = ...",
        ):
            y[t - 1][0] = 1.0
        with fails(
            errors.ProgramError,
            "y.space[...] = ...: a part of a value cannot be assigned",
            "  here: FILE: y.space[0] = 1.0",
            '  y: FILE: y = prog.recurrent("y", shape=(3,), domain=(t,))',
            "  hint: define the whole value in one case, e.g. with tp.where, tp.concatenate or tp.scatter_add",
        ):
            y.space[0] = 1.0


# -- indices ----------------------------------------------------------------------------------------------------------


def test_a_dim_of_another_program() -> None:
    with tp.Program("other") as other:
        s, _ = other.dim("s")
        u, _ = other.dim("t")
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        with fails(
            errors.ProgramError,
            "dim s belongs to program 'other', not to 'p'",
            "  here: FILE: x[s]",
            '  hint: declare dims with prog.dim("name")',
        ):
            x[s]
        with fails(
            errors.ProgramError,
            "dim t belongs to program 'other', not to 'p'",
            "  here: FILE: x[u - 1]",
            "  t of 'p': FILE: t, _ = prog.dim(\"t\")",
            "  hint: use the t of 'p'",
        ):
            x[u - 1]
        with fails(
            errors.ProgramError,
            "dim free belongs to no program",
            '  here: FILE: x[tp.program.SymbolicDim("free", 5)]',
            '  hint: declare dims with prog.dim("name")',
        ):
            x[tp.program.SymbolicDim("free", 5)]


def test_a_tensor_as_an_index() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        i = prog.input("i", domain=(t,), dtype="int32")
        with fails(
            errors.IndexExpressionError,
            "x indexed over t by i: an index cannot be a tensor",
            "  here: FILE: x[i]",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: to index by values stack the steps and take some of them: x[0:T].take(i)",
        ):
            x[i]


def test_more_indices_than_dims() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=(t,))
        w = prog.input("w", shape=(3,))
        with fails(
            errors.IndexExpressionError,
            "x[...]: 2 indices for the domain (t,)",
            "  here: FILE: x[t, 0]",
            '  x: FILE: x = prog.input("x", shape=(3,), domain=(t,))',
            "  hint: x[...] indexes time, one index per dim of the domain; x.space[...] indexes inside a value",
        ):
            x[t, 0]
        with fails(
            errors.IndexExpressionError,
            "w[...]: 1 index for the domain ()",
            "  here: FILE: w[0]",
            '  w: FILE: w = prog.input("w", shape=(3,))',
            "  hint: x[...] indexes time, one index per dim of the domain; x.space[...] indexes inside a value",
        ):
            w[0]
        with fails(
            errors.IndexExpressionError,
            "(x + w)[...]: 0 indices and more than one ... for the domain (t,)",
            "  here: FILE: (x + w)[..., ...]",
            "  hint: x[...] indexes time, one index per dim of the domain; x.space[...] indexes inside a value",
        ):
            (x + w)[..., ...]


def test_reading_by_a_bool_or_a_condition() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        with fails(
            errors.IndexExpressionError,
            "x indexed over t by False: False is a plain bool, not an index",
            "  here: FILE: x[t == 0]",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: t == 0 compares expressions as Python objects; write x[0], or the condition tp.equal(t, 0)",
        ):
            x[t == 0]
        with fails(
            errors.IndexExpressionError,
            (
                "x indexed over t by t < 3: a condition selects the points that a case defines, not the points "
                "that are read"
            ),
            "  here: FILE: x[t < 3]",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: to choose between values write tp.where(t < 3, x, other)",
        ):
            x[t < 3]


def test_a_slice_with_a_step() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        with fails(
            errors.IndexExpressionError,
            "x indexed over t by 0:T:2: a temporal slice has no step",
            "  here: FILE: x[0:T:2]",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: stack the steps, then take some of them: x[0:T].space[::2]",
        ):
            x[0:T:2]


def test_an_index_that_is_no_integer() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        with fails(
            errors.IndexExpressionError,
            "x indexed over t by 't': not an index expression: 't' of type str",
            '  here: FILE: x["t"]',
            '  x: FILE: x = prog.input("x", domain=(t,))',
            (
                "  hint: index expressions are made of dims, bounds and integers with +, -, *, //, %, tp.min and "
                "tp.max; to use an index as a number in a tensor write t.value, to index by a tensor use "
                "x[0:T].take(idx)"
            ),
        ):
            x["t"]
        with fails(
            errors.IndexExpressionError,
            "t / 2: an index must be an integer",
            "  hint: use // (floor division)",
        ):
            x[t / 2]
        with fails(
            errors.IndexExpressionError,
            "T // t: the divisor must be a positive integer constant",
            "  hint: index expressions are quasi-affine; only constants can divide",
        ):
            x[T // t]


def test_steps_of_different_sizes_do_not_stack() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        past = x[0 : t + 1]
        with fails(
            errors.ShapeError,
            (
                "x[0:t + 1] has shape (t + 1,), which differs from step to step of t: its steps cannot be "
                "stacked by a slice over t"
            ),
            "  here: FILE: past[0:T]",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: reduce or pad the axis to a size that does not depend on t",
        ):
            past[0:T]
        with fails(
            errors.ShapeError,
            "output 'past' has shape (t + 1,), which differs from step to step",
            '  here: FILE: prog.output("past", past)',
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: reduce or pad the axis of varying size",
        ):
            prog.output("past", past)


def test_an_index_inside_a_value_out_of_range() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=(t,))
        with fails(
            errors.ShapeError,
            "x.space[...]: index 5 is out of range for axis 0 of shape (3,)",
            "  here: FILE: x.space[5]",
            '  x: FILE: x = prog.input("x", shape=(3,), domain=(t,))',
            "  hint: indices go from -3 to 2",
        ):
            x.space[5]
        y = x.space[t + 1]
        prog.output("y", y)
    with fails(
        errors.InputError,
        "slice failed at t=2: element 3 of axis 0 asked for, whose size is 3",
        "  here: FILE: y = x.space[t + 1]",
    ):
        prog.evaluate({T: 3}, x=np.zeros((3, 3)))


def test_take_out_of_range() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        i = prog.input("i", domain=(t,), dtype="int32")
        y = x[0:T].take(i)
        prog.output("y", y)
    with fails(
        errors.InputError,
        "take failed at t=2: index 7 is out of range for axis 0 of size 3",
        "  here: FILE: y = x[0:T].take(i)",
    ):
        prog.evaluate({T: 3}, x=[1, 2, 3], i=[0, 1, 7])


# -- Python's and NumPy's ways ----------------------------------------------------------------------------------------


def test_if_and_or_max() -> None:
    with tp.Program("p") as prog:
        x = prog.input("x")
        with fails(
            errors.ProgramError,
            "the truth value of tensor x < 0.0 is not known while the program is written",
            "  here: FILE: -x if x < 0 else x",
            (
                "  hint: use tp.where(condition, a, b) instead of if, & | ~ instead of and, or, not, tp.maximum "
                "and tp.minimum instead of max and min"
            ),
        ):
            -x if x < 0 else x
        with fails(
            errors.ProgramError,
            "the truth value of tensor 0.0 < x is not known while the program is written",
            "  here: FILE: x > 0 and x < 1",
            (
                "  hint: use tp.where(condition, a, b) instead of if, & | ~ instead of and, or, not, tp.maximum "
                "and tp.minimum instead of max and min"
            ),
        ):
            x > 0 and x < 1
        with fails(
            errors.ProgramError,
            "the truth value of tensor x < ... is not known while the program is written",
            "  here: FILE: max(x, x * x)",
            (
                "  hint: use tp.where(condition, a, b) instead of if, & | ~ instead of and, or, not, tp.maximum "
                "and tp.minimum instead of max and min"
            ),
        ):
            max(x, x * x)


def test_for_and_len() -> None:
    with tp.Program("p") as prog:
        x = prog.input("x", shape=(3,))
        with fails(
            errors.ProgramError,
            "tensor x cannot be iterated over",
            "  here: FILE: for _ in x:",
            "  hint: time: x[0:T] stacks all steps; inside a value: x.space[i] for each i",
        ):
            for _ in x:
                pass
        with fails(
            errors.ProgramError,
            "tensor x has no len()",
            "  here: FILE: len(x)",
            "  hint: use x.shape[0] for the value's first axis, the dim's bound for the number of steps",
        ):
            len(x)


def test_the_values_of_a_tensor() -> None:
    with tp.Program("p") as prog:
        x = prog.input("x")
        with fails(
            errors.ProgramError,
            "tensor x has no values while the program is written",
            "  here: FILE: float(x)",
            (
                "  hint: compute with tp functions (tp.stack makes one tensor of several); x.at(t=3) evaluates "
                "one point for debugging"
            ),
        ):
            float(x)
        with pytest.raises(errors.ProgramError, match="tensor x has no values while the program is written"):
            f"{x:.3f}"
        assert f"{x + 1:>9}|" == "  x + 1.0|"
        with fails(
            errors.ProgramError,
            "tensor 2.0 * x has no values while the program is written",
            "  here: FILE: np.asarray(2 * x)",
            (
                "  hint: compute with tp functions (tp.stack makes one tensor of several); x.at(t=3) evaluates "
                "one point for debugging"
            ),
        ):
            np.asarray(2 * x)
        with fails(
            errors.ProgramError,
            "tensor x has no values while the program is written",
            "  here: FILE: tp.sum([x, x])",
            (
                "  hint: compute with tp functions (tp.stack makes one tensor of several); x.at(t=3) evaluates "
                "one point for debugging"
            ),
        ):
            tp.sum([x, x])


def test_functions_of_numpy() -> None:
    with tp.Program("p") as prog:
        x = prog.input("x", shape=(3,))
        with fails(
            errors.ProgramError,
            "np.exp does not work on the tensors of a program",
            "  here: FILE: np.exp(x)",
            "  hint: use tp.exp",
        ):
            np.exp(x)
        with fails(
            errors.ProgramError,
            "np.concatenate does not work on the tensors of a program",
            "  here: FILE: np.concatenate([x, x])",
            "  hint: use tp.concatenate",
        ):
            np.concatenate([x, x])
        array = np.ones(3)
        with fails(
            errors.ProgramError,
            "np.add does not work on the tensors of a program",
            "  here: FILE: array += x",
            "  hint: use tp.add",
        ):
            array += x
        assert str(array - x) == "array[3] - x"


def test_the_truth_of_a_condition_on_dims() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        with fails(
            errors.IndexExpressionError,
            "the condition t >= 0 has no truth value while the program is written",
            (
                "  hint: combine conditions with &, | and ~ (a chained 0 <= t < 5 is (t >= 0) & (t < 5)); a "
                "tensor defined by cases takes the place of if"
            ),
        ):
            y[0 <= t < 5] = 1.0


def test_an_equality_of_python_in_an_operation() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        with fails(
            errors.DtypeError,
            "where: False is a plain bool, the same at every step",
            "  here: FILE: tp.where(t == 0, x, 0.0)",
            (
                "  hint: t == 0 compares index expressions as Python objects: write tp.equal(t, 0); to choose "
                "once, while the program is written, use Python's if"
            ),
        ):
            tp.where(t == 0, x, 0.0)
        with fails(
            errors.DtypeError,
            "logical_and: False is a plain bool, the same at every step",
            "  here: FILE: (x > 0) & (t == 0)",
            (
                "  hint: t == 0 compares index expressions as Python objects: write tp.equal(t, 0); to choose "
                "once, while the program is written, use Python's if"
            ),
        ):
            (x > 0) & (t == 0)
        with fails(
            errors.DtypeError,
            "multiply: False is a plain bool, the same at every step",
            "  here: FILE: x * (t == 0)",
            (
                "  hint: t == 0 compares index expressions as Python objects: write tp.equal(t, 0); to choose "
                "once, while the program is written, use Python's if"
            ),
        ):
            x * (t == 0)


def test_what_cannot_become_a_tensor() -> None:
    with tp.Program("p") as prog:
        x = prog.input("x")
        with fails(
            errors.DtypeError,
            "'1' of type str cannot become a tensor",
            '  here: FILE: x + "1"',
            (
                "  hint: tensors come from numbers of at most 64 bits, arrays of numbers with rows of one "
                "length, index expressions and other tensors"
            ),
        ):
            x + "1"
        with fails(
            errors.DtypeError,
            "[[1], [2, 3]] of type list cannot become a tensor",
            "  here: FILE: x + [[1], [2, 3]]",
            (
                "  hint: tensors come from numbers of at most 64 bits, arrays of numbers with rows of one "
                "length, index expressions and other tensors"
            ),
        ):
            x + [[1], [2, 3]]


# -- operations -------------------------------------------------------------------------------------------------------


def test_shapes_that_do_not_broadcast() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=(t,))
        y = prog.input("y", shape=(4,), domain=(t,))
        u = 2 * x
        with fails(
            errors.ShapeError,
            "add: shapes (3,) and (4,) do not broadcast: axis -1 has sizes 3 and 4",
            "  here: FILE: u + y[t - 1]",
            "  2.0 * x: FILE: u = 2 * x",
            '  y[t - 1]: FILE: y = prog.input("y", shape=(4,), domain=(t,))',
            "  hint: sizes must be equal or 1; expressions such as t + 1 are equal only to themselves",
        ):
            u + y[t - 1]
        with fails(
            errors.ShapeError,
            "multiply: shapes (t, 4) and (t + 1, 4) do not broadcast: axis -2 has sizes t and t + 1",
            "  here: FILE: y[0:t] * y[0 : t + 1]",
            '  y[0:t]: FILE: y = prog.input("y", shape=(4,), domain=(t,))',
            "  hint: sizes must be equal or 1; expressions such as t + 1 are equal only to themselves",
        ):
            y[0:t] * y[0 : t + 1]


def test_an_axis_that_is_not_there() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        w = prog.input("w", shape=(3,))
        with fails(
            errors.ShapeError,
            "sum: axis 1 is out of range for shape (3,)",
            "  here: FILE: w.sum(1)",
            '  w: FILE: w = prog.input("w", shape=(3,))',
            "  hint: axes are integers from -1 to 0",
        ):
            w.sum(1)
        with fails(
            errors.ShapeError,
            "sum: axis 0 is out of range for shape ()",
            "  here: FILE: x.sum(0)",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: a scalar has no axes; to go over the steps of t, stack them first: x[0:T] has them as axis 0",
        ):
            x.sum(0)
        with fails(
            errors.ShapeError,
            "sum: axis t is out of range for shape ()",
            "  here: FILE: tp.sum(x, axis=t)",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: a scalar has no axes; to go over the steps of t, stack them first: x[0:T] has them as axis 0",
        ):
            tp.sum(x, axis=t)


def test_arithmetic_on_bools() -> None:
    with tp.Program("p") as prog:
        a = prog.input("a", dtype="bool")
        b = prog.input("b", dtype="bool")
        with fails(
            errors.DtypeError,
            "add: bool tensors have no arithmetic",
            "  here: FILE: a + b",
            '  a: FILE: a = prog.input("a", dtype="bool")',
            '  b: FILE: b = prog.input("b", dtype="bool")',
            "  hint: use &, |, ~ for logic, or cast with .astype(tp.int32)",
        ):
            a + b
        with fails(
            errors.DtypeError,
            "negative: bool tensors have no arithmetic",
            "  here: FILE: -a",
            '  a: FILE: a = prog.input("a", dtype="bool")',
            "  hint: use ~ for logic, or cast with .astype(tp.int32)",
        ):
            -a


def test_logic_on_floats() -> None:
    with tp.Program("p") as prog:
        x = prog.input("x")
        y = prog.input("y")
        with fails(
            errors.DtypeError,
            "logical_and: needs bool, found float32 and float32",
            "  here: FILE: x & y",
            '  x: FILE: x = prog.input("x")',
            '  y: FILE: y = prog.input("y")',
            "  hint: compare first, e.g. x != 0, in parentheses: & and | bind tighter than comparisons",
        ):
            x & y
        with fails(
            errors.DtypeError,
            "logical_and: needs bool, found bool and int32",
            "  here: FILE: tp.where(x > 0 & (y < 1), x, y)",
            "  hint: compare first, e.g. x != 0, in parentheses: & and | bind tighter than comparisons",
        ):
            tp.where(x > 0 & (y < 1), x, y)
        with fails(
            errors.DtypeError,
            "where: the condition must be bool, found float32",
            "  here: FILE: tp.where(x, 1.0, 2.0)",
            '  x: FILE: x = prog.input("x")',
            "  hint: compare first, e.g. x != 0",
        ):
            tp.where(x, 1.0, 2.0)


def test_integers_without_a_common_type() -> None:
    with tp.Program("p") as prog:
        a = prog.input("a", dtype="uint64")
        b = prog.input("b", dtype="int64")
        with fails(
            errors.DtypeError,
            "uint64 and int64 have no common integer type",
            "  here: FILE: a + b",
            '  a: FILE: a = prog.input("a", dtype="uint64")',
            '  b: FILE: b = prog.input("b", dtype="int64")',
            "  hint: cast one of them with .astype(...)",
        ):
            a + b


def test_an_integer_too_large() -> None:
    with tp.Program("p") as prog:
        n = prog.input("n", dtype="int8")
        with fails(
            errors.DtypeError,
            "the value 1000 does not fit into int8",
            "  here: FILE: n + 1000",
            "  hint: choose a dtype that holds it, e.g. tp.int64",
        ):
            n + 1000
        with fails(
            errors.DtypeError,
            "1180591620717411303424 of type int cannot become a tensor",
            "  here: FILE: n + 2**70",
            (
                "  hint: tensors come from numbers of at most 64 bits, arrays of numbers with rows of one "
                "length, index expressions and other tensors"
            ),
        ):
            n + 2**70
        with fails(
            errors.DtypeError,
            "the value -1 does not fit into uint8",
            '  here: FILE: tp.full((3,), -1, dtype="uint8")',
            "  hint: choose a dtype that holds it, e.g. tp.int64",
        ):
            tp.full((3,), -1, dtype="uint8")


def test_a_tensor_of_another_program() -> None:
    with tp.Program("other") as other:
        y = other.input("y")
    with tp.Program("p") as prog:
        x = prog.input("x")
        with fails(
            errors.ProgramError,
            "tensor y belongs to program 'other', not to 'p'",
            "  here: FILE: x + y",
            '  y: FILE: y = other.input("y")',
            "  hint: declare an input in this program and give it the other program's output",
        ):
            x + y
        with fails(
            errors.ProgramError,
            "tensor y belongs to program 'other', not to 'p'",
            '  here: FILE: prog.output("y", y)',
            '  y: FILE: y = other.input("y")',
            "  hint: declare an input in this program and give it the other program's output",
        ):
            prog.output("y", y)


def test_outside_any_program() -> None:
    with fails(
        errors.ProgramError,
        "no program is being written here",
        "  here: FILE: tp.zeros((3,))",
        "  hint: write this inside 'with tp.Program(\"name\") as prog:', or in a cell of a batched model, tp.cell",
    ):
        tp.zeros((3,))


def test_random_numbers() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        with fails(
            errors.DomainError,
            "the shape of random numbers varies over t",
            "  here: FILE: tp.random.normal((t + 1,), domain=t)",
            "  hint: draw a fixed number per step and use part of it: x.space[0:t + 1]",
        ):
            tp.random.normal((t + 1,), domain=t)
        with fails(
            errors.DtypeError,
            "random real numbers need a floating-point dtype, not int32",
            '  here: FILE: tp.random.uniform((3,), dtype="int32")',
            "  hint: use tp.random.randint for integers",
        ):
            tp.random.uniform((3,), dtype="int32")
        with fails(
            errors.DtypeError,
            "randint(5, 5): needs integers low < high, less than 2**32 apart",
            "  here: FILE: tp.random.randint(5, 5)",
        ):
            tp.random.randint(5, 5)
        with fails(
            errors.DtypeError,
            "randint(0, 2.5): needs integers low < high, less than 2**32 apart",
            "  here: FILE: tp.random.randint(0, 2.5)",
        ):
            tp.random.randint(0, 2.5)
        with fails(
            errors.DtypeError,
            "the value 299 does not fit into uint8",
            '  here: FILE: tp.random.randint(0, 300, dtype="uint8")',
            "  hint: choose a dtype that holds it, e.g. tp.int64",
        ):
            tp.random.randint(0, 300, dtype="uint8")


# -- declarations -----------------------------------------------------------------------------------------------------


def test_names_twice() -> None:
    with tp.Program("p") as prog:
        prog.dim("t")
        x = prog.input("x")
        prog.output("y", x)
        with fails(
            errors.ProgramError,
            "program 'p' already has a dim or bound named 't'",
            '  here: FILE: prog.dim("t")',
            '  first: FILE: prog.dim("t")',
            '  hint: dims and bounds need different names; prog.dim("t", bound="Steps") names the bound',
        ):
            prog.dim("t")
        with fails(
            errors.ProgramError,
            "program 'p' already has a dim or bound named 'T'",
            '  here: FILE: prog.dim("T")',
            '  first: FILE: prog.dim("t")',
            '  hint: dims and bounds need different names; prog.dim("t", bound="Steps") names the bound',
        ):
            prog.dim("T")
        with fails(
            errors.ProgramError,
            "program 'p' already has a tensor named 'x'",
            '  here: FILE: prog.recurrent("x")',
            '  first: FILE: x = prog.input("x")',
            "  hint: give every input, parameter, state and recurrent tensor its own name",
        ):
            prog.recurrent("x")
        with fails(
            errors.ProgramError,
            "program 'p' already has a result named 'y'",
            '  here: FILE: prog.emit("y", 2 * x)',
            '  first: FILE: prog.output("y", x)',
            "  hint: outputs and emits need different names",
        ):
            prog.emit("y", 2 * x)


def test_names_that_cannot_be() -> None:
    with tp.Program("p") as prog:
        x = prog.input("x")
        with fails(
            errors.ProgramError,
            "input 'seed': this cannot be a name",
            '  here: FILE: prog.input("seed")',
            "  hint: names come first and are non-empty strings other than 'bounds', 'progress' and 'seed'",
        ):
            prog.input("seed")
        with fails(
            errors.ProgramError,
            "recurrent tensor '': this cannot be a name",
            '  here: FILE: prog.recurrent("")',
            "  hint: names come first and are non-empty strings other than 'bounds', 'progress' and 'seed'",
        ):
            prog.recurrent("")
        with fails(
            errors.ProgramError,
            "result <x over (), shape (), float32>: this cannot be a name",
            '  here: FILE: prog.output(x, "x")',
            "  hint: names come first and are non-empty strings other than 'outputs' and 'emits'",
        ):
            prog.output(x, "x")
        with fails(
            errors.ProgramError,
            "result 'emits': this cannot be a name",
            '  here: FILE: prog.output("emits", x)',
            "  hint: names come first and are non-empty strings other than 'outputs' and 'emits'",
        ):
            prog.output("emits", x)
        with fails(
            errors.ProgramError,
            r"bound '\ud800': this cannot be a name",
            r"""  here: FILE: prog.dim("t", bound="\ud800")""",
            "  hint: names are strings, without halves of characters (surrogates), which files cannot hold",
        ):
            prog.dim("t", bound="\ud800")
        with fails(
            errors.ProgramError,
            "program 3: this cannot be a name",
            "  here: FILE: tp.Program(3)  # type: ignore[arg-type]",
            "  hint: names are strings, without halves of characters (surrogates), which files cannot hold",
        ):
            tp.Program(3)  # type: ignore[arg-type]


def test_domains() -> None:
    with tp.Program("p") as prog:
        b, _ = prog.dim("b")
        t, T = prog.dim("t")
        with fails(
            errors.DomainError,
            "the domain (t, b) is not in the order in which the dims were declared",
            '  here: FILE: prog.input("x", domain=(t, b))',
            "  hint: write (b, t): indices x[...] follow that order everywhere",
        ):
            prog.input("x", domain=(t, b))
        with fails(
            errors.DomainError,
            "the domain (t, t) has a dim twice",
            '  here: FILE: prog.input("x", domain=(t, t))',
            "  hint: for two independent steps declare two dims",
        ):
            prog.input("x", domain=(t, t))
        with fails(
            errors.DomainError,
            "expected a dim, found T, which is a bound",
            '  here: FILE: prog.input("x", domain=T)',
            '  hint: t, T = prog.dim("t") gives the dim t and its bound T',
        ):
            prog.input("x", domain=T)
        with fails(
            errors.DomainError,
            "expected a dim, found 't', which is of type str",
            '  here: FILE: prog.input("x", domain="t")',
            '  hint: t, T = prog.dim("t") gives the dim t and its bound T',
        ):
            prog.input("x", domain="t")


def test_shapes() -> None:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        with fails(
            errors.ShapeError,
            "the shape of input x: 2.5 is not a size",
            '  here: FILE: prog.input("x", shape=(2.5,))',
            "  hint: sizes are non-negative integers or expressions of bounds",
        ):
            prog.input("x", shape=(2.5,))
        with fails(
            errors.ShapeError,
            "the shape of input x: the size -1 is negative",
            '  here: FILE: prog.input("x", shape=(3, -1))',
            "  hint: sizes are non-negative integers or expressions of bounds",
        ):
            prog.input("x", shape=(3, -1))
        with fails(
            errors.ShapeError,
            "the shape of input x: None is not a size",
            '  here: FILE: prog.input("x", shape=None)',
            "  hint: sizes are non-negative integers or expressions of bounds",
        ):
            prog.input("x", shape=None)
        with fails(
            errors.ShapeError,
            "the shape of recurrent tensor x: the size t + 1 varies over dims that are not in its domain",
            '  here: FILE: prog.recurrent("x", shape=(t + 1,))',
            "  hint: sizes are non-negative integers or expressions of bounds",
        ):
            prog.recurrent("x", shape=(t + 1,))
        with fails(
            errors.ShapeError,
            "-1 is not a size",
            "  here: FILE: tp.zeros((3, -1))",
            "  hint: sizes are non-negative integers or index expressions",
        ):
            tp.zeros((3, -1))


def test_sizes_that_turn_out_negative() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(T - 5,))
        prog.output("x", x)
    with fails(
        errors.InputError,
        "input 'x' is declared with a negative size: shape (T - 5,) = (-2,)",
        '  x: FILE: x = prog.input("x", shape=(T - 5,))',
        "  hint: give bounds that make all sizes positive",
    ):
        prog.evaluate({T: 3}, x=np.zeros(3))

    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        ones = tp.ones((t - 1,))
        prog.output("count", ones.sum())
    with fails(
        errors.InputError,
        "full failed at t=0: a negative size in its shape (t - 1,) = (-1,)",
        "  here: FILE: ones = tp.ones((t - 1,))",
    ):
        prog.evaluate({T: 3})


def test_an_empty_program() -> None:
    with tp.Program("p") as prog:
        _, T = prog.dim("t")
    with fails(
        errors.ProgramError,
        "program 'p' has no outputs, so there is nothing to compute",
        '  hint: name a result: prog.output("y", y)',
    ):
        prog.evaluate({T: 3})


def test_parameters() -> None:
    with tp.Program("p") as prog:
        with fails(
            errors.ShapeError,
            "parameter w has shape (3,), its initial value (4,)",
            '  here: FILE: prog.param("w", shape=(3,), init=np.zeros(4))',
            "  hint: initialisers are called as init(shape, dtype)",
        ):
            prog.param("w", shape=(3,), init=np.zeros(4))
        w = prog.param("w", shape=(3,))
        with fails(
            errors.ProgramError,
            "w is not a state: it has no next value",
            "  here: FILE: w.next = 0.9 * w",
            '  w: FILE: w = prog.param("w", shape=(3,))',
            (
                "  hint: declare it with prog.state(name, init, over=...); parameters are states where they are "
                "declared within 'with prog.training(over=...):'"
            ),
        ):
            w.next = 0.9 * w


# -- states and stops -------------------------------------------------------------------------------------------------


def test_a_state_without_next() -> None:
    with tp.Program("p") as prog:
        i, I = prog.dim("i")
        w = prog.state("w", 1.0, over=i)
        with fails(
            errors.ProgramError,
            "state w has no next value yet",
            "  here: FILE: w.next + 1",
            '  w: FILE: w = prog.state("w", 1.0, over=i)',
            "  hint: assign it first: w.next = ...",
        ):
            w.next + 1
        prog.output("w", w)
    with fails(
        errors.ProgramError,
        "state w has an initial value but no next one",
        '  w: FILE: w = prog.state("w", 1.0, over=i)',
        "  hint: say what it becomes: w.next = ... (w.next = w keeps it)",
    ):
        prog.evaluate({I: 3})


def test_a_state_with_two_nexts() -> None:
    with tp.Program("p") as prog:
        i, _ = prog.dim("i")
        w = prog.state("w", 1.0, over=i)
        w.next = w + 1
        with fails(
            errors.ProgramError,
            "state w has two next values",
            "  here: FILE: w.next = w + 2",
            "  earlier: FILE: w.next = w + 1",
            "  hint: assign .next once; a choice between values is tp.where(...)",
        ):
            w.next = w + 2
        with fails(
            errors.ProgramError,
            "state w is defined by its next value, not by cases",
            "  here: FILE: w[i + 1] = w + 3",
            '  w: FILE: w = prog.state("w", 1.0, over=i)',
            "  hint: write w.next = ..., in terms of w at this point",
        ):
            w[i + 1] = w + 3


def test_a_state_that_starts_wrong() -> None:
    with tp.Program("p") as prog:
        i, _ = prog.dim("i")
        x = prog.input("x", domain=(i,))
        with fails(
            errors.DomainError,
            "the initial value of state w varies over (i,), which the state itself goes over",
            '  here: FILE: prog.state("w", x, over=i)',
            '  x: FILE: x = prog.input("x", domain=(i,))',
            "  hint: index the initial value at one point, e.g. init[0]",
        ):
            prog.state("w", x, over=i)
        with fails(
            errors.DomainError,
            "state w needs at least one dim to go over",
            '  here: FILE: prog.state("w", 1.0, over=())',
            '  hint: say which: prog.state("w", init, over=(i,))',
        ):
            prog.state("w", 1.0, over=())


def test_a_next_that_does_not_fit() -> None:
    with tp.Program("p") as prog:
        i, _ = prog.dim("i")
        j, _ = prog.dim("j")
        w = prog.state("w", np.zeros(3), over=(i, j))
        n = prog.state("n", 0, over=i)
        x = prog.input("x", domain=(j,))
        with fails(
            errors.ShapeError,
            "w.next = ...: the right side has shape (2,), the left (3,)",
            "  here: FILE: w.next = w.space[0:2]",
            '  w: FILE: w = prog.state("w", np.zeros(3), over=(i, j))',
            "  hint: a value may be broadcast to the left side's shape, as in NumPy, but not reshaped",
        ):
            w.next = w.space[0:2]
        with fails(
            errors.DtypeError,
            "n.next = ...: the right side is float32, n is int32",
            "  here: FILE: n.next = n + 0.5",
            '  n: FILE: n = prog.state("n", 0, over=i)',
            "  hint: cast with .astype(tp.int32), or declare n as float32",
        ):
            n.next = n + 0.5
        with fails(
            errors.DomainError,
            "n.next = ...: the right side varies over j, the left does not",
            "  here: FILE: n.next = n + x.astype(tp.int32)",
            '  n: FILE: n = prog.state("n", 0, over=i)',
            (
                "  hint: index the right side at one step of j, or stack the steps and reduce them, e.g. "
                "value[0:J].sum(0) over j"
            ),
        ):
            n.next = n + x.astype(tp.int32)


def test_stops_that_say_nothing() -> None:
    with tp.Program("p") as prog:
        b, _ = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", domain=(b, t))
        v = prog.input("v", shape=(4,), domain=(t,))
        with fails(
            errors.DtypeError,
            "the stop condition of t must be one bool per step, found shape (), float32",
            "  here: FILE: prog.stop(t, when=x)",
            '  x: FILE: x = prog.input("x", domain=(b, t))',
            "  hint: compare it with something, e.g. token[t] == end",
        ):
            prog.stop(t, when=x)
        with fails(
            errors.DtypeError,
            "the stop condition of t must be one bool per step, found shape (4,), bool",
            "  here: FILE: prog.stop(t, when=v > 0)",
            "  hint: reduce it with tp.all(...) or tp.any(...)",
        ):
            prog.stop(t, when=v > 0)
        with fails(
            errors.DomainError,
            "the stop condition of t must vary over t alone, found the domain (b, t)",
            "  here: FILE: prog.stop(t, when=x > 0)",
            "  hint: to stop when all of a batch are done: tp.all(done[0:B]) over the batch dim",
        ):
            prog.stop(t, when=x > 0)
        with fails(
            errors.DtypeError,
            "the stop condition of t is False, a plain bool",
            "  here: FILE: prog.stop(t, when=t == 5)",
            "  hint: t == 5 compares expressions as Python objects: write tp.equal(t, 5)",
        ):
            prog.stop(t, when=t == 5)
        with fails(
            errors.DomainError,
            "expected a dim, found T, which is a bound",
            "  here: FILE: prog.stop(T, when=v.sum() > 0)",
            '  hint: t, T = prog.dim("t") gives the dim t and its bound T',
        ):
            prog.stop(T, when=v.sum() > 0)
        prog.stop(t, when=v.sum() > 0)
        with fails(
            errors.ProgramError,
            "dim t already has a stop condition",
            "  here: FILE: prog.stop(t, when=v.sum() > 1)",
            "  first: FILE: prog.stop(t, when=v.sum() > 0)",
            "  hint: combine conditions with |",
        ):
            prog.stop(t, when=v.sum() > 1)


# -- gradients --------------------------------------------------------------------------------------------------------


def test_gradients_of_what_has_none() -> None:
    with tp.Program("p") as prog:
        w = prog.input("w", shape=(3,))
        n = prog.input("n", dtype="int32")
        with fails(
            errors.ShapeError,
            "tp.grad: the loss must be a scalar at each point, w * w has shape (3,)",
            "  here: FILE: tp.grad(w * w, w)",
            "  hint: sum or average it first, e.g. tp.sum(loss)",
        ):
            tp.grad(w * w, w)
        with fails(
            errors.DtypeError,
            "tp.grad: n * n is int32, which has no gradient",
            "  here: FILE: tp.grad(n * n, w)",
            "  hint: only floating-point tensors can be differentiated",
        ):
            tp.grad(n * n, w)
        with fails(
            errors.GradientError,
            "tp.grad: the loss must be a tensor of a program, found a function",
            "  here: FILE: tp.grad(lambda w: w * w, w)",
            "  hint: tp.grad(loss, wrt) takes the loss itself, not a function that computes it",
        ):
            tp.grad(lambda w: w * w, w)


def test_gradients_with_respect_to_what_has_none() -> None:
    with tp.Program("other") as other:
        y = other.input("y")
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        n = prog.input("n", dtype="int32")
        with fails(
            errors.DtypeError,
            "tp.grad: cannot differentiate with respect to n, which is int32",
            "  here: FILE: tp.grad(2.0 * n, n)",
            '  n: FILE: n = prog.input("n", dtype="int32")',
            "  hint: only floating-point tensors can be differentiated",
        ):
            tp.grad(2.0 * n, n)
        with fails(
            errors.GradientError,
            "tp.grad: differentiate with respect to the tensor x, not to its part x[0]",
            "  here: FILE: tp.grad(x[0] * x[0], x[0])",
            '  x: FILE: x = prog.input("x", domain=(t,))',
            "  hint: take the gradient with respect to x and index that: tp.grad(loss, x)[0]",
        ):
            tp.grad(x[0] * x[0], x[0])
        with fails(
            errors.GradientError,
            "tp.grad: cannot differentiate with respect to a str, only to tensors of a program",
            '  here: FILE: tp.grad(x[0] * x[0], "x")',
            "  hint: wrt is a tensor, or one list, tuple or dict of tensors",
        ):
            tp.grad(x[0] * x[0], "x")
        with fails(
            errors.ProgramError,
            "tensor y belongs to program 'other', not to 'p'",
            "  here: FILE: tp.grad(x[0] * x[0], [x, y])",
            '  y: FILE: y = other.input("y")',
            "  hint: declare an input in this program and give it the other program's output",
        ):
            tp.grad(x[0] * x[0], [x, y])


def test_a_loss_that_depends_on_its_own_gradient() -> None:
    with tp.Program("p") as prog:
        i, I = prog.dim("i")
        x = prog.input("x", domain=(i,))
        loss = prog.recurrent("loss", domain=(i,))
        g = tp.grad(loss, x)
        loss[i] = x * x + g
        prog.output("g", g)
    with fails(
        errors.GradientError,
        "the gradient of loss depends on itself",
        "  here: FILE: g = tp.grad(loss, x)",
        "  hint: a loss cannot depend, at the same point, on its own gradient",
    ):
        prog.evaluate({I: 2}, x=[1, 2])


# -- host functions ---------------------------------------------------------------------------------------------------


def calls(function: object, out: object) -> tp.Program:
    with tp.Program("p") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = tp.host(function, x, out=out, sequence=(t,))
        prog.output("y", y[0] if isinstance(y, tuple) else y)
    return prog


def test_a_host_function_that_raises() -> None:
    def step(x: float) -> float:
        return {}["door"]

    with fails(
        errors.HostError,
        "host function step raised KeyError at t=0: 'door'",
        "  called by: FILE: y = tp.host(function, x, out=out, sequence=(t,))",
    ):
        calls(step, tp.spec()).evaluate({"T": 3}, x=[1, 2, 3])
    with pytest.raises(errors.HostError) as error:
        calls(step, tp.spec()).evaluate({"T": 3}, x=[1, 2, 3])
    assert isinstance(error.value.__cause__, KeyError)


def test_a_host_function_that_returns_something_else() -> None:
    one, two, whole = tp.spec(), [tp.spec(), tp.spec()], tp.spec(dtype="int8")
    with fails(
        errors.HostError,
        "host function <lambda> returned one value at t=0, 2 values were declared",
        "  declared: FILE: y = tp.host(function, x, out=out, sequence=(t,))",
        "  hint: return a tuple with one array per entry of out=[...]",
    ):
        calls(lambda x: x, two).evaluate({"T": 3}, x=[1, 2, 3])
    with fails(
        errors.HostError,
        "host function <lambda> returned 3 values at t=0, 2 values were declared",
        "  declared: FILE: y = tp.host(function, x, out=out, sequence=(t,))",
        "  hint: return a tuple with one array per entry of out=[...]",
    ):
        calls(lambda x: (x, x, x), two).evaluate({"T": 3}, x=[1, 2, 3])
    with fails(
        errors.HostError,
        "host function <lambda> returned shape (3,) as result 1 at t=0, declared is ()",
        "  declared: FILE: y = tp.host(function, x, out=out, sequence=(t,))",
        "  hint: results have one leading axis per batch dim, then the declared shape",
    ):
        calls(lambda x: (x, np.zeros(3)), two).evaluate({"T": 3}, x=[1, 2, 3])
    with fails(
        errors.HostError,
        "host function <lambda> returned float64 at t=0, declared is int8",
        "  declared: FILE: y = tp.host(function, x, out=out, sequence=(t,))",
        "  hint: convert it in the function, or declare its dtype",
    ):
        calls(lambda x: 1.5, whole).evaluate({"T": 3}, x=[1, 2, 3])
    with fails(
        errors.HostError,
        "host function <lambda> returned the value 1000 at t=0, declared is int8",
        "  declared: FILE: y = tp.host(function, x, out=out, sequence=(t,))",
        "  hint: convert it in the function, or declare its dtype",
    ):
        calls(lambda x: 1000, whole).evaluate({"T": 3}, x=[1, 2, 3])
    with fails(
        errors.HostError,
        "host function <lambda> returned None at t=0, declared is float32",
        "  declared: FILE: y = tp.host(function, x, out=out, sequence=(t,))",
        "  hint: convert it in the function, or declare its dtype",
    ):
        calls(lambda x: None, one).evaluate({"T": 3}, x=[1, 2, 3])
    with fails(
        errors.HostError,
        "host function <lambda> returned a list at t=0, declared is float32",
        "  declared: FILE: y = tp.host(function, x, out=out, sequence=(t,))",
        "  hint: convert it in the function, or declare its dtype",
    ):
        calls(lambda x: [[1], [2, 3]], one).evaluate({"T": 3}, x=[1, 2, 3])


def test_a_host_call_declared_wrongly() -> None:
    with tp.Program("p") as prog:
        b, _ = prog.dim("b")
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(b, t))
        with fails(
            errors.DomainError,
            "host: the argument x varies over b, which is neither in sequence nor in batch",
            "  here: FILE: tp.host(print, x, sequence=(t,))",
            '  x: FILE: x = prog.input("x", domain=(b, t))',
            "  hint: add it to sequence=(...) for one call per step, or to batch=(...) for one call for all steps",
        ):
            tp.host(print, x, sequence=(t,))
        with fails(
            errors.DomainError,
            "host: a dim is both in sequence and in batch",
            "  here: FILE: tp.host(print, x, sequence=(b, t), batch=(b,))",
            "  hint: a dim either orders the calls or is handed over as an axis",
        ):
            tp.host(print, x, sequence=(b, t), batch=(b,))
        with fails(
            errors.DomainError,
            "host: the shape of the argument x[b, 0:t] varies over a batch dim",
            "  here: FILE: tp.host(print, x[b, 0:t], sequence=(b,), batch=(t,))",
            '  x: FILE: x = prog.input("x", domain=(b, t))',
            "  hint: values of different shapes cannot be handed over in one array",
        ):
            tp.host(print, x[b, 0:t], sequence=(b,), batch=(t,))
        with fails(
            errors.ProgramError,
            "host: <x over (b, t), shape (), float32> cannot be called",
            "  here: FILE: tp.host(x, print)",
            "  hint: the first argument of tp.host is the function, the tensors come after it",
        ):
            tp.host(x, print)
        with fails(
            errors.ProgramError,
            "host: <class 'numpy.float32'> in out does not say what the function returns",
            "  here: FILE: tp.host(print, x, out=np.float32, sequence=(b, t))",
            "  hint: declare results as out=tp.spec(shape, dtype), or a list of those",
        ):
            tp.host(print, x, out=np.float32, sequence=(b, t))
        with fails(
            errors.DomainError,
            "host: the shape of a result varies over t, which is not in sequence",
            "  here: FILE: tp.host(print, out=tp.spec((t + 1,)), batch=t)",
            "  hint: only results of calls that are made one by one may differ in shape: add it to sequence=(...)",
        ):
            tp.host(print, out=tp.spec((t + 1,)), batch=t)


# -- running ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -3, 2.5, 3.0, float("nan"), True, "5", None])
def test_bounds_that_are_no_numbers_of_steps(number: object) -> None:
    prog, _, T = doubled()
    with fails(
        errors.BoundError,
        f"bound T = {number!r}: a bound is a positive integer",
        "  hint: the number of steps of its dim, at least 1",
    ):
        prog.evaluate({T: number}, x=[1])


def test_bounds_of_something_else() -> None:
    prog, t, T = doubled()
    _, _, U = doubled()
    with fails(
        errors.BoundError,
        "program 'double' needs a number for the bound T",
        "  hint: give {T: ...}",
    ):
        prog.evaluate(x=[1, 2, 3])
    with fails(
        errors.BoundError,
        "S = 4: program 'double' has no such bound",
        "  hint: give {T: ...}",
    ):
        prog.evaluate({T: 3, "S": 4}, x=[1, 2, 3])
    with fails(
        errors.BoundError,
        "t = 3: program 'double' has no such bound",
        "  hint: t is a dim; its bound is T",
    ):
        prog.evaluate({t: 3}, x=[1, 2, 3])
    with fails(
        errors.BoundError,
        "T = 3: program 'double' has a bound of its own named T, this is another one",
        "  hint: give {T: ...}",
    ):
        prog.evaluate({U: 3}, x=[1, 2, 3])
    with fails(
        errors.BoundError,
        "bounds = 3: expected a number for each bound",
        "  hint: give {T: ...}",
    ):
        prog.evaluate(3, x=[1, 2, 3])


def test_inputs() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=(t,))
        n = prog.input("n", dtype="int8")
        prog.output("y", n * x)
    x, n = np.zeros((3, 2)), 5
    with fails(
        errors.InputError,
        "input 'x' was not given",
        '  x: FILE: x = prog.input("x", shape=(2,), domain=(t,))',
        "  hint: give an array of shape (T, 2) = (3, 2), float32",
    ):
        prog.evaluate({T: 3}, n=n)
    with fails(
        errors.InputError,
        "program 'p' has no input 'z'",
        "  hint: its inputs are: x, n",
    ):
        prog.evaluate({T: 3}, x=x, n=n, z=1)
    with fails(
        errors.InputError,
        "program 'p' has no input 'T'",
        "  hint: T is a bound: give it as {T: ...}",
    ):
        prog.evaluate({T: 3}, x=x, n=n, T=3)
    with fails(
        errors.InputError,
        "input 'x' has shape (2, 3), expected (3, 2)",
        '  x: FILE: x = prog.input("x", shape=(2,), domain=(t,))',
        "  hint: give an array of shape (T, 2) = (3, 2), float32: one leading axis per dim, then the shape",
    ):
        prog.evaluate({T: 3}, x=x.T, n=n)
    with fails(
        errors.InputError,
        "input 'n' has dtype float64, which does not convert to int8",
        '  n: FILE: n = prog.input("n", dtype="int8")',
        "  hint: give an array of shape (), int8: one leading axis per dim, then the shape",
    ):
        prog.evaluate({T: 3}, x=x, n=0.5)
    with fails(
        errors.InputError,
        "input 'n' has the value 1000, which does not fit into int8",
        '  n: FILE: n = prog.input("n", dtype="int8")',
        "  hint: give an array of shape (), int8: one leading axis per dim, then the shape",
    ):
        prog.evaluate({T: 3}, x=x, n=1000)
    ragged = [[1], [2, 3]]
    with pytest.raises(ValueError) as numpys:
        np.asarray(ragged)
    with fails(
        errors.InputError,
        "input 'x' has type list, which does not convert to float32",
        '  x: FILE: x = prog.input("x", shape=(2,), domain=(t,))',
        "  hint: give an array of shape (T, 2) = (3, 2), float32: one leading axis per dim, then the shape. "
        f"This is none: {numpys.value}",
    ):
        prog.evaluate({T: 3}, x=ragged, n=n)
    with fails(
        errors.InputError,
        "seed = 0.5: a seed is an integer",
    ):
        prog.evaluate({T: 3}, seed=0.5, x=x, n=n)
    for seed in (2**64, -(2**63) - 1):
        with fails(
            errors.InputError,
            f"seed = {seed}: a seed has 64 bits at most",
        ):
            prog.evaluate({T: 3}, seed=seed, x=x, n=n)


def test_one_value_at_the_wrong_point() -> None:
    with tp.Program("p") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = 2 * x
    with fails(
        errors.InputError,
        "2.0 * x varies over (t,); the point given is (s=1)",
        '  here: FILE: y.at({T: 3}, {"x": [1, 2, 3]}, s=1)',
        "  2.0 * x: FILE: y = 2 * x",
        "  hint: give each of its dims a step: .at(t=0)",
    ):
        y.at({T: 3}, {"x": [1, 2, 3]}, s=1)
    with fails(
        errors.InputError,
        "t=0.5: a step is an integer",
        '  here: FILE: y.at({T: 3}, {"x": [1, 2, 3]}, t=0.5)',
    ):
        y.at({T: 3}, {"x": [1, 2, 3]}, t=0.5)
    with fails(
        errors.DefinitionError,
        "(2.0 * x)[3] is needed by .at(t=3), but 2.0 * x is only defined for t = 0 ... T - 1 (T = 3)",
        "  2.0 * x: FILE: y = 2 * x",
    ):
        y.at({T: 3}, {"x": [1, 2, 3]}, t=3)
    with fails(
        errors.BoundError,
        "bound T is needed and was not given",
        "  hint: give it a number: {T: 10}",
    ):
        y.at(t=1)
    with fails(
        errors.InputError,
        "input 'x' is needed and was not given",
        '  x: FILE: x = prog.input("x", domain=(t,))',
        '  hint: .at(..., inputs={"x": array}) gives it',
    ):
        y.at({T: 3}, t=1)


def test_a_result_that_is_not_there() -> None:
    prog, _, T = doubled()
    result = prog.evaluate({T: 1}, x=[1])
    with fails(
        AttributeError,
        "no output named 'z'; the outputs are: y",
    ):
        result.z
    with fails(
        KeyError,
        "\"no output named 'z'; the outputs are: y\"",
    ):
        result["z"]
