"""How XLA is asked to compile a program.

On a GPU, XLA makes some thirty Triton kernels for every matrix product, to run the fastest of them or the library's
instead. That takes most of its time. For small products in loops it is worth that: biases and activations become part
of a product. For tall ones, such as those of a batch of all steps, the library is as fast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

# A product is tall if one side is at least this long, and no other longer than that.
TALL = 2**14
NARROW = 2**10

LIBRARY_ONLY = {"xla_gpu_enable_triton_gemm": False}

_DIMS = r"\[([\d, ]*)\] x \[[\d, ]*\]"
_PRODUCT = re.compile(
    rf"stablehlo\.dot_general .*?(?:batching_dims = {_DIMS}, )?contracting_dims = {_DIMS}"
    r".*?: \(tensor<([\dx]*)x?\w+>, tensor<([\dx]*)x?\w+>\)"
)


def compile_lowered(lowered: Any, device: Any) -> Any:
    """The XLA program of something lowered for a device."""
    return lowered.compile(compiler_options=options(lowered, device))


def options(lowered: Any, device: Any) -> dict[str, Any] | None:
    """What XLA is told beyond its defaults, to compile something lowered for a device."""
    if not is_cuda(device):
        return None
    return LIBRARY_ONLY if all(map(is_tall, products(lowered.as_text()))) else None


def is_cuda(device: Any) -> bool:
    return device.platform == "gpu" and "cuda" in str(device.client.platform_version).lower()


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


def _numbers(text: str, separator: str) -> list[int]:
    return [int(number) for number in text.split(separator) if number.strip()]
