"""Gradients: reverse accumulation over the graph, as more graph.

``tp.grad(loss, wrt)`` only notes the request and gives a recurrent node; the definitions are written out when the
graph is built, because what a tensor depends on may still be added after the request.

For every node n between ``wrt`` and ``loss`` there is an adjoint A(n), defined at n's points: the sum, over all
consumers, of the consumer's contribution at the points that read it. An edge ``x[e(t)]`` becomes a ``Scatter`` into
``e(t)``, which is right for every e, injective or not. Adjoints of recurrent nodes are recurrent nodes again, so
that back-propagation through time is just what the definitions say.

Dims that loss and wrt share are *held* at the same point. Where the only ways from wrt to loss that return to the same
point of a held dim never leave it, its edges to other points are left out (a weight's effect on later iterations);
otherwise the adjoints get one dim more, the point of the loss.
"""

from tempo.autodiff.adjoints import expand
from tempo.autodiff.requests import Request, grad, value_and_grad

__all__ = ["Request", "expand", "grad", "value_and_grad"]
