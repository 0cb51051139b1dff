"""Loops over the tiles of a range end with the last tile that has elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.looptree import Loop, Tree
from tempo.schedule.skips import Share, shares

PLAN = tp.Plan({"t": 4}, tiles={"t": 3})


def tile_loops(run: Executable, trees: Sequence[Tree] | None = None) -> Iterator[list[Share] | None]:
    """What is found for the loops over tiles of a program."""
    for tree in run.schedule.trees if trees is None else trees:
        if isinstance(tree, Loop):
            if tree.dim in run.schedule.tiles:
                yield shares(tree, run.schedule, run.storage)
            yield from tile_loops(run, tree.body)


def decayed(gradient: bool) -> tuple[tp.Program, Any]:
    with tp.Program("decayed") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = tp.exp(-tp.abs(x[0 : t + 1] - x)).sum()
        prog.output("y", tp.grad(y[0:T].sum(), x) if gradient else y)
    return prog, T


def test_sums_of_tiles_have_sizes_that_say_which_add_nothing() -> None:
    prog, T = decayed(gradient=False)
    ((share,),) = (found or [] for found in tile_loops(prog.compile({T: 16}, "numpy", plan=PLAN)))
    assert str(share.size) == "min(3, max(0, t - 3*tile(t) + 1))"
    assert share.folds == ()


def test_gradients_of_a_range_begin_with_the_first_block() -> None:
    prog, T = decayed(gradient=True)
    found = [share for loop in tile_loops(prog.compile({T: 16}, "numpy", plan=PLAN)) for share in loop or []]
    assert [fold.family.name for share in found for fold in share.folds] == ["t"]


def test_what_is_kept_for_all_tiles_is_computed_for_all() -> None:
    """Without blocks of t, the tiles of the gradient are not added up."""
    prog, T = decayed(gradient=True)
    assert None in [*tile_loops(prog.compile({T: 16}, "numpy", plan=tp.Plan(tiles={"t": 3})))]


def test_loops_that_no_plan_has_put_into_tiles_stay() -> None:
    prog, T = decayed(gradient=False)
    run = prog.compile({T: 16}, "numpy", plan=tp.Plan({"t": 4}))
    assert not run.schedule.tiles
    assert not [*tile_loops(run)]


def test_all_tiles_of_a_range_that_is_the_same_at_all_steps() -> None:
    with tp.Program("sums") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("y", tp.exp(x[0:T] * x).sum())
    assert [*tile_loops(prog.compile({T: 16}, "numpy", plan=PLAN))] == [None]


def test_every_iteration_of_a_loop_around_begins_anew() -> None:
    """What was added up in the iteration before is in the stores when the next one begins."""
    with tp.Program("training") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=3, domain=t)
        w = prog.state("w", np.eye(3), over=i)
        h = x @ w
        scores = tp.einsum("d,kd->k", h, h[i, 0 : t + 1])
        y = tp.einsum("k,kd->d", tp.softmax(scores), h[i, 0 : t + 1])
        loss = tp.square(y - x).sum()[i, 0:T].mean()
        w.next = w - 0.1 * tp.grad(loss, w)
        prog.output("loss", loss)
        prog.output("w", w[I])
    data = np.random.default_rng(0).normal(size=(13, 3)).astype(np.float32)
    expected = prog.evaluate({I: 3, T: 13}, x=data)
    run = prog.compile({I: 3, T: 13}, plan=PLAN)
    assert any(share.folds for loop in tile_loops(run) for share in loop or [])
    found = run(x=data)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-4)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-4, atol=1e-5)
