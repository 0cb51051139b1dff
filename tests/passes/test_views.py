"""Reshapes of what a recurrence computes, for those who read it afterwards."""

import numpy as np

import tempo as tp
from tempo.passes.views import split_views


def test_a_loop_does_not_keep_the_same_numbers_in_two_shapes() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", (2, 3), domain=(t,))
        flat = x.reshape((6,))
        x[0] = tp.ones((2, 3))
        x[t] = 0.5 * tp.flip(flat[t - 1], 0).reshape((2, 3)) + 1
        prog.output("y", tp.sum(tp.tanh(flat)[0:T], 0))
        prog.output("x", x)
    graph = split_views(prog.graph)
    assert sum(node.op.name == "reshape" for node in graph.nodes) == 3
    run = prog.compile({T: 50})
    kept = [store for store in run.storage.stores.values() if store.shape == (50, 6) and store.node.op.name != "tanh"]
    views = {store.node.op.name for store in kept}
    assert views <= {"reshape"} and len(kept) == 1  # the one that is computed behind the loop
    expected = prog.evaluate({T: 50})
    np.testing.assert_allclose(run().y, expected.y, rtol=1e-6)
    np.testing.assert_allclose(run().x, expected.x, rtol=1e-6)
