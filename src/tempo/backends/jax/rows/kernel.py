"""A loop as one kernel."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.backends.jax.padded import outline
from tempo.backends.jax.pallas import THREE_PRODUCTS, pl, triton
from tempo.backends.jax.rows.axes import REDUCTIONS, rows_of
from tempo.backends.jax.rows.blocks import (
    LEAST,
    Block,
    Blocks,
    Rows,
    is_in_parts,
    is_matrices,
    keeps_rest_behind,
    padded,
    products_of,
)
from tempo.backends.jax.rows.steps import Body, NotRowsError, Number, Step, Var, flattened
from tempo.backends.jax.rows.streams import streams

Array = Any

MOST_VALUES = 2**13
"""More of them do not fit into the registers of a program."""
MOST_KEPT, MOST_FETCHED = 2**14, 2**13
"""As many are kept there from iteration to iteration, and read for the next one; others are read when needed."""
MOST_BYTES = 2**20
"""What every program reads in every iteration, from a cache that all of them share."""
MOST_MATRIX = MOST_BYTES // 4
"""So a larger array of numbers is for no kernel."""
WARPS = 4
PROGRAMS = 132
"""As many as an H200 has multiprocessors."""
FEWEST_ROWS = 4
"""Each of which multiplies at least so many rows with a matrix that it reads."""
AHEAD = 3
"""How many parts of a matrix are on their way."""

# Microseconds, measured on an H200: in kernels of their own, and in that of a loop.
OWN_PRODUCT, OWN_PRODUCTS, OWN_REDUCTION, OWN_REST = 2.4, 7.8e-8, 1.0, 1.5
STREAM_ROW, STREAM_BYTE, STREAM_BYTE_ROW = 0.05, 9e-6, 1.5e-6
ITERATION, REDUCTION, FUNCTION, PRODUCTS, SMALL_PRODUCTS, BYTE = 1.5, 0.2, 2e-4, 1.2e-5, 3e-4, 8.5e-5
_SLOW = "tanh exp exp2 expm1 log log1p logistic pow sin cos tan rsqrt sqrt div rem cbrt"
FUNCTIONS = frozenset(_SLOW.split())


@dataclass(frozen=True)
class Kernels:
    """Which loops are made kernels: those that are faster then, or ``all`` that can be. Without a GPU they are
    ``interpreted``, which is for tests."""

    all: bool = False
    interpreted: bool = False


def iterate(body: Any, start: Any, count: Any, kernels: Kernels) -> Any:
    """What ``count`` iterations of ``body``, from ``(number, carried)`` to ``carried``, make of ``start``.

    Raises ``NotRowsError`` if that is not for a kernel of its own.
    """
    flat = flattened(body, start)
    loop = min(_loops(flat), key=lambda loop: loop.time)
    if not kernels.all and loop.time >= loop.own_time:
        raise NotRowsError(f"it would take {loop.time:.1f} us an iteration, not {loop.own_time:.1f}")
    leaves, form = jax.tree.flatten(start)
    return jax.tree.unflatten(form, loop.run(leaves, count, kernels.interpreted))


def _loops(body: Body) -> list[_Loop]:
    """The ways in which a loop can be a kernel."""
    count, axes = rows_of(body)
    found, reasons = [], []
    for streaming in (False, True):
        loop = _Loop(body, count, axes, streaming)
        if streaming and not loop.streams:  # the same again
            continue
        try:
            loop.check()
        except NotRowsError as reason:
            reasons.append(reason)
        else:
            found.append(loop)
    if not found:
        raise reasons[-1]
    return found


class _Loop:
    def __init__(self, body: Body, count: int, axes: Mapping[Var, int], streaming: bool) -> None:
        """Products with matrices in memory are made of as many rows as matrix units want, or, ``streaming``, of few."""
        self.body = body
        steps = {step.output: step for step in body.steps}
        pairs = list(zip(body.carried, body.results, strict=True))
        self.written = [n for n, (var, result) in enumerate(pairs) if _is_written(var, steps.get(result))]
        """What is written into, one part in each iteration; everything else goes from iteration to iteration."""
        self.handed_on = [n for n in range(len(pairs)) if n not in self.written]
        self.products = [step for step in body.steps if step.name == "dot_general"]
        self.streams = streams(self.products, axes, body.constants) if streaming else {}
        whole = Rows(axes, max(count, LEAST), max(count, LEAST))
        # Many programs with few rows each, but enough for matrix units, or for the threads of a program.
        few = min(32, 1 << (count // PROGRAMS).bit_length())
        large = any(is_matrices(step, *map(whole.shape, step.inputs)) for step in self.products)
        self.rows = Rows(axes, count, max(few, FEWEST_ROWS) if self.streams else LEAST if large else few)
        self.arrange()

    def arrange(self) -> None:
        """Find out what is read when: arrays that are the same in all iterations before the first one, parts of others
        an iteration before they are needed."""
        body = self.body
        self.in_memory = {var for var in body.constants if var.shape}
        early = {body.number, *body.constants}
        self.addresses: list[Step] = []
        for step in body.steps:
            if step.name in ("dynamic_slice", "squeeze") and step.inputs[0] in self.in_memory:
                self.in_memory.add(step.output)
            elif step.output.shape:
                continue
            if all(var in early or isinstance(var, Number) for var in step.inputs):
                early.add(step.output)
                self.addresses.append(step)
        computing = [step for step in body.steps if step.output not in self.in_memory]
        results = [body.results[n] for n in self.handed_on]
        given = [*results, *(var for step in computing for var in self.inputs(step))]
        self.read = [var for var in dict.fromkeys(given) if var in self.in_memory]
        self.kept = self.fitting((var for var in self.read if var in body.constants), MOST_KEPT)
        parts = (var for var in self.read if var not in body.constants and var in early)
        self.fetched = self.fitting(parts, MOST_FETCHED)

    def inputs(self, step: Step) -> tuple[Var, ...]:
        """What a step is given as a whole."""
        return (self.streams[step.output].rows,) if step.output in self.streams else step.inputs

    def fitting(self, arrays: Iterable[Var], room: int) -> list[Var]:
        """The first of some arrays that there is room for."""
        found = []
        for var in arrays:
            size = math.prod(padded(self.rows.shape(var)))
            if size <= room:
                found.append(var)
                room -= size
        return found

    # -- what is refused -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise unless all steps are among what a kernel does well."""
        body = self.body
        stores = {body.carried[n] for n in self.written} | {body.results[n] for n in self.written}
        for step in body.steps:
            if step.output in self.in_memory:
                continue
            if step.name == "dynamic_slice":
                raise NotRowsError("a part of something that is not in memory is taken")
            update = step.name == "dynamic_update_slice"
            if update and step.output not in stores:
                raise NotRowsError("an array that is not handed on is changed")
            if any(var in stores for var in (step.inputs[1:] if update else step.inputs)):
                raise NotRowsError("what was written is read again")
            if not update:
                self.check_sizes(step)
        if any(body.results[n] in stores for n in self.handed_on):
            raise NotRowsError("what was written is handed on twice")
        if any(math.prod(var.shape) >= 2**31 for var in (*body.carried, *body.constants)):
            raise NotRowsError("an array is too long for positions of 32 bits")
        shared = {var for var in self.read if var not in self.rows.axes}
        if _bytes(shared | {stream.matrix for stream in self.streams.values()}) > MOST_BYTES:
            raise NotRowsError("there is more to read in every iteration than is near")

    def check_sizes(self, step: Step) -> None:
        name, given, shape = step.name, [*map(self.rows.shape, self.inputs(step))], self.rows.shape(step.output)
        sizes = [math.prod(padded(one)) for one in (shape, *given)]
        if name == "dot_general" and step.output not in self.streams and not is_matrices(step, *given):
            sizes.append(products_of(step, self.rows) // 4)
        if max(sizes) > MOST_VALUES:
            raise NotRowsError("there is more than fits into registers")
        if name in ("reshape", "squeeze") and not keeps_rest_behind(given[0], shape):
            raise NotRowsError("an array is reshaped that is padded in between")
        if name in ("slice", "concatenate", "pad") and not is_in_parts(step, given, shape):
            raise NotRowsError("what is cut out or put together are no equal parts")
        if name in FUNCTIONS and step.output.dtype.itemsize < 4:
            raise NotRowsError(f"{name} of half precision is computed")
        if name in ("argmax", "argmin") and len(step.params["axes"]) != 1:
            raise NotRowsError("positions along several axes are looked for")

    # -- what it takes, in microseconds an iteration -------------------------------------------------------------

    @property
    def own_time(self) -> float:
        """With kernels of their own for products and sums."""
        whole = replace(self.rows, each=self.rows.count)
        multiplied = sum(products_of(step, whole) for step in self.products)
        reductions = sum(step.name in REDUCTIONS for step in self.body.steps)
        products = OWN_PRODUCT * len(self.products) + OWN_PRODUCTS * multiplied
        return products + OWN_REDUCTION * reductions + OWN_REST

    @property
    def time(self) -> float:
        """In one kernel."""
        rows, steps = self.rows, self.body.steps
        inside = ITERATION + REDUCTION * sum(step.name in REDUCTIONS for step in steps)
        for step in self.products:
            if step.output in self.streams:
                read = _bytes([self.streams[step.output].matrix])
                inside += STREAM_BYTE * read + rows.each * (STREAM_ROW + STREAM_BYTE_ROW * read)
            else:
                large = is_matrices(step, *map(rows.shape, step.inputs))
                inside += products_of(step, rows) * (PRODUCTS if large else SMALL_PRODUCTS)
        inside += FUNCTION * sum(math.prod(padded(rows.shape(s.output))) for s in steps if s.name in FUNCTIONS)
        inside += BYTE * _bytes(var for var in self.read if var not in self.rows.axes and var not in self.kept)
        return inside * math.ceil(rows.count / rows.each / PROGRAMS)

    # -- the kernel ----------------------------------------------------------------------------------------------

    def run(self, start: list[Array], count: Any, interpret: bool) -> list[Array]:
        body = self.body
        matrices = [stream.arranged(body.constants[stream.matrix]) for stream in self.streams.values()]
        given = [jnp.asarray(count, jnp.int32), *body.constants.values(), *matrices, *start]
        wide = [jnp.reshape(array, (1,)) if jnp.ndim(array) == 0 else jnp.asarray(array) for array in given]
        outlines = [outline(array.shape, array.dtype) for array in wide]
        first = 1 + len(body.constants) + len(matrices)
        # A program that has not begun must not find what another one has made.
        own = [n for n, var in enumerate(body.carried) if n in self.written or var in self.rows.axes]
        programs = pl.cdiv(self.rows.count, self.rows.each)
        longest = max((stream.sizes[0] for stream in self.streams.values()), default=0)
        scratch = [outline((programs * self.rows.each, longest), np.dtype(np.float32))] if longest else []
        call = pl.pallas_call(
            functools.partial(self.kernel, interpret=interpret),
            out_shape=outlines[first:] + scratch,
            grid=(programs,),
            input_output_aliases={first + n: n for n in own},
            compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=AHEAD if self.streams else 1),
            interpret=interpret,
            name="loop",
        )
        if not interpret:
            try:
                jax.jit(call).trace(*outlines).lower(lowering_platforms=("cuda",))
            except Exception as error:  # whatever it is that Triton cannot do: XLA can
                raise NotRowsError(f"Triton refuses it: {error}") from error
        results = call(*wide)[: len(body.carried)]
        return [array.reshape(var.shape) for array, var in zip(results, body.carried, strict=True)]

    def kernel(self, count: Any, *refs: Any, interpret: bool) -> None:
        """One program."""
        body, number = self.body, len(self.body.carried)
        sizes = len(body.constants), len(self.streams), number, number
        constants, matrices, initial, results, scratch = _split(refs, sizes)
        first = pl.program_id(0) * self.rows.each
        outside = Blocks(self.rows, first, lax.Precision.HIGHEST if interpret else THREE_PRODUCTS)
        wait = (lambda: None) if interpret else triton.debug_barrier
        by_output = dict(zip(self.streams, matrices, strict=True))
        for var, ref in zip(body.constants, constants, strict=True):
            if var.shape:
                outside.memory[var] = outside.view(var, ref)
            else:
                outside.values[var] = Block(ref[0], ())
        for var in self.kept:
            outside.values[var] = outside[var]

        def in_scratch(start: Any, size: int) -> Any:
            return scratch[0].at[pl.ds(first, self.rows.each), pl.ds(start, size)]

        def fetch(number: Array) -> tuple[Array, ...]:
            """Begin to read what an iteration needs."""
            blocks = outside.with_values({body.number: Block(number, ())})
            for step in self.addresses:
                blocks.run(step)
            return tuple(blocks[var].array for var in self.fetched)

        def iteration(number: Array, carry: tuple[tuple[Array, ...], tuple[Array, ...]]) -> Any:
            # It takes about as long as an iteration until what is read is there.
            following = fetch(number + 1)
            handed = [*(body.carried[n] for n in self.handed_on), *self.fetched]
            arrays = zip(handed, (*carry[0], *carry[1]), strict=True)
            values = {var: Block(array, self.rows.shape(var)) for var, array in arrays}
            blocks = outside.with_values({body.number: Block(number, ()), **values})
            for n in self.written:
                blocks.memory[body.carried[n]] = blocks.view(body.carried[n], results[n])
            for step in body.steps:
                if (stream := self.streams.get(step.output)) is None:
                    blocks.run(step)
                else:
                    product = stream.multiply(blocks[stream.rows], by_output[step.output], in_scratch, wait)
                    blocks.values[step.output] = Block(product, self.rows.shape(step.output))
            return tuple(blocks[body.results[n]].array for n in self.handed_on), following

        start = tuple(
            outside.view(var, ref).read().array if var.shape else ref[0]
            for var, ref in ((body.carried[n], initial[n]) for n in self.handed_on)
        )
        final, _ = lax.fori_loop(jnp.int32(0), count[0], iteration, (start, fetch(jnp.int32(0))))
        for n, array in zip(self.handed_on, final, strict=True):
            var = body.carried[n]
            if var.shape:
                outside.view(var, results[n]).write(Block(array, self.rows.shape(var)))
            else:
                results[n][0] = array


def _split(refs: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    """So many, so many, ..., and the rest."""
    ends = [0, *itertools.accumulate(sizes), len(refs)]
    return [refs[start:end] for start, end in itertools.pairwise(ends)]


def _bytes(arrays: Iterable[Var]) -> int:
    return sum(math.prod(var.shape) * var.dtype.itemsize for var in arrays)


def _is_written(var: Var, step: Step | None) -> bool:
    return step is not None and step.name == "dynamic_update_slice" and step.inputs[0] is var
