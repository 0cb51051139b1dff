"""Loops as kernels of their own.

A loop of a few small products and sums takes a GPU as long as starting their kernels does, about 2 us for each, however
little they compute. Where the rows of a batch do not need each other, as those of independent environments, a single
kernel can run the whole loop: each of its programs takes some rows through all iterations, and what iterations hand on
to each other never leaves the multiprocessor.

    steps      the body of a loop as a list of primitives
    axes       which axis of every array has the rows
    blocks     what a primitive does with the rows of one program, in arrays whose sizes are powers of two
    streams    products with matrices that are too large for registers
    kernel     the loop
"""

from tempo.backends.jax.rows.kernel import MOST_MATRIX, Kernels, iterate
from tempo.backends.jax.rows.steps import NotRowsError

__all__ = ["MOST_MATRIX", "Kernels", "NotRowsError", "iterate"]
