"""Automatic batching of recursive models.

A *cell* is a function of one instance's tensors, written with ``tp`` functions, or an ``nn.Module``. A *model* is an
ordinary recursive function over the user's own data for one instance, which calls cells; ``batched = tp.batch(model)``
runs it for a list of instances. Calls of cells are only recorded then; what can be computed together is one kernel.

Parameters belong to cells: ``tp.cell(module)`` has those of the module. A model says in one of two ways which cells it
has:

    tp.batch(function, cells={"leaf": leaf, "inner": inner})   parameters are called leaf.weight, inner.gate.bias, ...
    tp.batch(module)   the modules that the model, an nn.Module itself, holds are its cells; names as in parameters()

``batched.parameters`` are their values by name. Neither cells nor models have values of their own, so a module may be
used in many models, and in programs. A parameter that occurs in two cells is one, under its first name. Parameters are
shared by all calls and have no batch axis in any kernel; everything else is an argument.

How a cell becomes a kernel: its body is traced into a small program, whose primitives' JAX forms are ``vmap``ped over
the calls, the arguments being gathered from arenas inside. (``Program.compile`` for each width was measured, too:
285 us for a call of an LSTM cell for 8 instances, which takes its arguments from the host and gives its results to it,
against 47 us for a jitted function with donated arenas.) Gradients are JAX's, of the same function.

Trees can also be given as arrays, ``tp.forest``, and a model over them as cells for leaves and for inner nodes,
``tp.fold``: no call is recorded then, and a whole mini-batch is one program.
"""

from tempo.batching.batched import Batched, Statistics, batch
from tempo.batching.cell import Cell, cell
from tempo.batching.fibers import parallel
from tempo.batching.fold import Fold, fold
from tempo.batching.forest import Forest, forest
from tempo.batching.value import Value

__all__ = ["Batched", "Cell", "Fold", "Forest", "Statistics", "Value", "batch", "cell", "fold", "forest", "parallel"]
