"""How XLA is asked to compile a program.

On a GPU, XLA makes some thirty Triton kernels for every matrix product, to run the fastest of them or the library's
instead. That takes most of its time. For small products in loops it is worth that: biases and activations become part
of a product. For tall ones, such as those of a batch of all steps, the library is as fast; and it is not worth it for
what is done once, before a loop.

A GPU's matrix units know numbers of fewer bits than single precision has. But such a number is the sum of two that they
know, and three of the four products of these parts are as exact as the library's products without matrix units. A
Triton kernel makes them of what it has read once; where a GPU has time for that, it is faster. (Large products are a
kernel of our own, of halves that are made before: ``halves.py``.)

A loop whose number of turns is known is started at once, for as long as it goes. Otherwise a GPU's host fetches after
each turn whether there is another one, while the GPU waits, for 20 us or more; as a CUDA graph, the loop finds out by
itself, in five.

On a CPU, loops over small arrays are one kernel each (``small_loops.py``).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from tempo.backends.jax import pallas
from tempo.backends.jax.replaced import is_exact, use_kernels
from tempo.backends.jax.small_loops import make_kernels, unmake_kernels

# A product is tall if one side is at least this long, and no other longer than that.
TALL = 2**14
NARROW = 2**10

# Products in which three of matrix units are faster: with as many rows and columns as these units want, not more on
# both sides than Triton is good at (the library's three products are less exact), and sums that one program makes.
# Where a product is tall, sums must be long: otherwise most of the time goes to writing them.
LEAST_SIDE, MOST_SIDE = 16, 512
LEAST_TALL_SUM, LONGEST_SUM = 512, 2**12
THREE_PRODUCTS = (
    "#stablehlo.dot_algorithm<lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32, "
    "lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 3, "
    "allow_imprecise_accumulation = false>"
)

LIBRARY_ONLY: dict[str, Any] = {"xla_gpu_enable_triton_gemm": False}
# For what is done once: XLA also takes seconds to find out how the softmax of each layer is best cut into tiles.
ONCE = {**LIBRARY_ONLY, "xla_disable_hlo_passes": "triton-softmax-rewriter"}
# What is put into CUDA graphs: XLA's own choice, with loops and conditions. Earlier releases are said to crash when a
# loop that is one runs for a second time.
COMMANDS = "xla_gpu_enable_command_buffer"
GRAPHS = {COMMANDS: "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"}
LEAST_VERSION = (0, 11)
# Our kernel for products of few rows was only measured on a GPU of this kind; earlier ones have other matrix units.
LEAST_FOR_KERNELS = 9.0
# So many multiply-adds take a GPU less time than to look for the fastest way takes XLA.
QUICK = 10**13

_DIMS = r"\[([\d, ]*)\] x \[[\d, ]*\]"
_PRODUCT = re.compile(
    rf"stablehlo\.dot_general .*?(?:batching_dims = {_DIMS}, )?contracting_dims = {_DIMS}"
    r".*?: \(tensor<([\dx]*)x?\w+>, tensor<([\dx]*)x?\w+>\)"
)


def compile_lowered(lowered: Any, device: Any, once: bool = False) -> Any:
    """The XLA program of something lowered for a device, which may be what is done ``once``, before a loop."""
    return compile_prepared(lowered, prepared(lowered, device, once))


def compile_prepared(lowered: Any, wanted: dict[str, Any] | None) -> Any:
    """The XLA program of something lowered that is ``prepared``."""
    try:
        return lowered.compile(compiler_options=wanted)
    except jax.errors.JaxRuntimeError:
        # What can be a part of a kernel for a whole loop may be up to the release of XLA.
        if not unmake_kernels(lowered.compiler_ir("stablehlo")):
            raise
        return lowered.compile(compiler_options=wanted)


def prepared(lowered: Any, device: Any, once: bool = False) -> dict[str, Any] | None:
    """The options for something lowered for a device, in which it is noted what matrix units and our own kernels are
    used for."""
    if device.platform == "cpu":
        make_kernels(lowered.compiler_ir("stablehlo"))
    found = ONCE if once and is_quick(lowered, device) else options(lowered, device)
    if found is not ONCE and has_matrix_units(device):
        if pallas.IS_THERE and float(device.compute_capability) >= LEAST_FOR_KERNELS:
            use_kernels(lowered.compiler_ir("stablehlo"))
        if found is not LIBRARY_ONLY:
            use_matrix_units(lowered.compiler_ir("stablehlo"))
    if has_graphs(device) and waits(lowered.compiler_ir("stablehlo")):
        found = {**(found or {}), **GRAPHS}
    return found


def options(lowered: Any, device: Any) -> dict[str, Any] | None:
    """What XLA is told beyond its defaults, to compile something lowered for a device."""
    if not is_cuda(device):
        return None
    return LIBRARY_ONLY if all(map(is_tall, products(lowered.as_text()))) else None


def is_quick(lowered: Any, device: Any) -> bool:
    """Whether a GPU's time for something is not worth a search."""
    # What a user has told XLA to leave out would be forgotten.
    is_told = "xla_disable_hlo_passes" in os.environ.get("XLA_FLAGS", "")
    return is_cuda(device) and not is_told and sum(map(math.prod, products(lowered.as_text()))) < QUICK


def has_graphs(device: Any) -> bool:
    """Whether loops may be CUDA graphs: unless a user has told XLA something else."""
    return is_cuda(device) and jax.__version_info__ >= LEAST_VERSION and COMMANDS not in os.environ.get("XLA_FLAGS", "")


def is_cuda(device: Any) -> bool:
    return device.platform == "gpu" and "cuda" in str(device.client.platform_version).lower()


def has_matrix_units(device: Any) -> bool:
    """Whether it has those for numbers in single precision, as NVIDIA's GPUs have since Ampere."""
    return is_cuda(device) and float(getattr(device, "compute_capability", 0)) >= 8


def products(text: str) -> Iterator[tuple[int, int, int]]:
    """The sides of the matrix products in a StableHLO program: rows, columns, and what is summed over."""
    for batching, contracting, left, right in _PRODUCT.findall(text):
        sizes = _numbers(left, "x")
        batch = math.prod(sizes[n] for n in _numbers(batching, ","))
        summed = math.prod(sizes[n] for n in _numbers(contracting, ","))
        each = max(batch * summed, 1)
        yield math.prod(sizes) // each, math.prod(_numbers(right, "x")) // each, summed


def is_tall(sides: tuple[int, int, int]) -> bool:
    *others, longest = sorted(sides)
    return longest >= TALL and max(others) <= NARROW


def is_for_matrix_units(sides: tuple[int, int, int]) -> bool:
    """Whether three products of matrix units take less time than one in single precision."""
    *_, summed = sides
    least_sum = LEAST_TALL_SUM if is_tall(sides) else LEAST_SIDE
    return LEAST_SIDE <= min(sides[:2]) <= MOST_SIDE and least_sum <= summed <= LONGEST_SUM


def use_matrix_units(module: Any) -> None:
    """Note in a StableHLO program which of its products in single precision are made by matrix units."""
    with module.context:
        way = ir.Attribute.parse(THREE_PRODUCTS)
        precision = ir.Attribute.parse("[#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]")

        def visit(found: Any) -> Any:
            operation = found.operation
            if operation.name == "stablehlo.dot_general" and is_exact(operation):
                sides = _sides(operation)
                if sides is not None and is_for_matrix_units(sides):
                    operation.attributes["algorithm"] = way
                    operation.attributes["precision_config"] = precision
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)


def waits(module: Any) -> bool:
    """Whether a StableHLO program has loops, and of none of them it is known how many turns it makes. A graph with one
    of which it is known would take longer for its turns."""
    known: list[bool] = []

    def visit(found: Any) -> Any:
        if found.operation.name == "stablehlo.while":
            known.append(_is_counted(found.operation))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return bool(known) and not any(known)


def _is_counted(loop: Any) -> bool:
    """Whether a loop goes on for as long as a number is less than a constant."""
    *_, result = loop.regions[0].blocks[0].operations
    test = _maker(result.operands[0])
    if test is None or test.name != "stablehlo.compare":
        return False
    # An argument has no maker.
    return {maker and maker.name for maker in map(_maker, test.operands)} == {None, "stablehlo.constant"}


def _maker(value: Any) -> Any:
    """The operation that a value is of; None for arguments."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _sides(product: Any) -> tuple[int, int, int] | None:
    """The rows, columns and what is summed over of a product, if it is one of two matrices in single precision."""
    left, right = (ir.RankedTensorType(operand.type) for operand in product.operands)
    if not all(isinstance(side.element_type, ir.F32Type) for side in (left, right)):
        return None
    axes = stablehlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    if axes.lhs_batching_dimensions:
        return None
    summed = math.prod(left.shape[n] for n in axes.lhs_contracting_dimensions)
    each = max(summed, 1)
    return math.prod(left.shape) // each, math.prod(right.shape) // each, summed


def _numbers(text: str, separator: str) -> list[int]:
    return [int(number) for number in text.split(separator) if number.strip()]
