"""Random numbers from a counter-based generator.

Every draw is a pure function of the seed of the run, the operation, the point and the element, so that the same
program gives the same numbers under every schedule, block size and backend. The generator is Threefry-2x32 with 20
rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType, DTypeLike
from tempo.errors import DomainError, DtypeError
from tempo.graph.node import Primitive, Shape, dims_of, shape_symbols, union
from tempo.ops.creation import as_shape, number
from tempo.ops.elementwise import astype, cos, floor_divide, less, log, maximum, mod, sqrt
from tempo.ops.reduction import argmax
from tempo.ops.sorting import argsort
from tempo.source import user_line
from tempo.symbolic import Expr, Symbol
from tempo.tensor import (
    RecurrentTensor,
    ShapeLike,
    TensorLike,
    apply,
    as_tensor,
    current_program,
)

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded
    from tempo.program import Program

Steps = Expr | Sequence[Expr]
"""Over which dims draws differ: dims, or expressions of them."""
Array = Any
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
# How many random bits fill the significand of each type.
_PRECISION = {dtypes.bfloat16: 8, dtypes.float16: 11, dtypes.float32: 24, dtypes.float64: 53}


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """The 64 random bits of a 64-bit counter under a 64-bit key, as two words: arrays of uint32, NumPy's or JAX's."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = x + y
            y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
            y = y ^ x
        x = x + keys[(block + 1) % 3]
        y = y + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x, y


def _random_bits(
    xp: Any,
    seed: Array,
    stream: int,
    point: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: DType,
    generate: Callable[..., Any] = threefry,
    kept: Callable[[Any], Any] = lambda key: key,
) -> Array:
    """Random words; ``xp`` is NumPy or JAX's. The key is the seed folded with the operation's number, then with each
    coordinate of the point; the counter is the element's position. ``kept`` says that a key is an array of its own."""
    key = (seed[0:1], seed[1:2])
    for n, coordinate in enumerate((stream, *point)):
        key = kept(generate(key, (_word(xp, coordinate), _word(xp, n))))
    first, second = generate(key, _counter(xp, math.prod(shape)))
    if dtype == dtypes.uint64:
        first = (first.astype(np.uint64) << np.uint64(32)) | second
    return first.reshape(shape)


def _word(xp: Any, value: Any) -> Array:
    return xp.asarray(value).astype(np.uint32).reshape(1)


def _counter(xp: Any, count: int) -> tuple[Array, Array]:
    if count <= 2**32:
        low = xp.arange(count, dtype=np.uint32)
        return low, xp.zeros_like(low)
    position = xp.arange(count, dtype=np.uint64)
    return position.astype(np.uint32), (position >> np.uint64(32)).astype(np.uint32)


def _reference(seed: Array, *, stream: int, point: tuple[int, ...], shape: tuple[int, ...], dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        return _random_bits(np, seed, stream, point, shape, dtype)


def _jax(jx: Jx, seed: Padded, *, stream: int, point: tuple[Any, ...], shape: tuple[int, ...], dtype: DType) -> Array:
    def kept(key: tuple[Array, Array]) -> tuple[Array, Array]:
        # XLA would compute the key of a row again for each of its elements. Since 0.11, LLVM's vectoriser follows all
        # paths through what is the same for a row, of which twenty rounds have a million: it never came back.
        first, second = jx.lax.optimization_barrier(key)
        # On a CPU, XLA fuses them all the same. LLVM then sees that element n of a row begins with a sum of n and the
        # twenty terms of a key, and tries for seconds in which order to add these. The fourth power of an odd number
        # is 1 more than a multiple of 16, which LLVM does not know: to it, the key is no sum, and what it is stays.
        odd = first | np.uint32(1)
        nothing = (odd * odd) * (odd * odd) & np.uint32(8)
        return first ^ nothing, second ^ nothing

    point = tuple(map(jx.true, point))
    return _random_bits(jx.np, seed.array, stream, point, shape, dtype, _traced_once(jx.jax), kept)


@functools.cache
def _traced_once(jax: ModuleType) -> Callable[..., Any]:
    """The generator, whose hundred operations JAX looks at once for arrays of the same sizes, and not for every draw:
    that was a third of the time in which it traced a program for PPO."""
    traced: Callable[..., Any] = jax.jit(threefry, inline=True)
    return traced


RANDOM_BITS = Primitive(
    "random_bits",
    infer=lambda seed, *, stream, point, shape, dtype: (shape, dtype),
    reference=_reference,
    jax=_jax,
)


def bits(shape: ShapeLike = (), domain: Steps = (), dtype: DTypeLike = "uint32") -> RecurrentTensor:
    """Random unsigned integers (uint32 or uint64), all values equally likely.

    ``domain`` says over which dims the draws differ: one draw for all steps without it, one per step of t
    with ``domain=(t,)``. In place of a dim, an index expression says which step's draw it is: with
    ``domain=(t - P,)``, step P has the draw that step 0 has with ``domain=(t,)``.
    """
    program = current_program()
    point = _point(program, domain)
    sizes = as_shape(shape)
    varying = dims_of(shape_symbols(sizes))
    if varying:
        raise DomainError(
            f"the shape of random numbers varies over {', '.join(d.name for d in varying)}",
            places=[("here", user_line())],
            hint="draw a fixed number per step and use part of it: x.space[0:t + 1]",
        )
    target = dtypes.as_dtype(dtype)
    if target not in (dtypes.uint32, dtypes.uint64):
        raise DtypeError(f"random bits are uint32 or uint64, not {target.name}", places=[("here", user_line())])
    return apply(
        RANDOM_BITS,
        (program.seed,),
        program=program,
        stream=program.next_random_stream(),
        point=point,
        shape=sizes,
        dtype=target,
    )


def _point(program: Program, domain: Steps) -> tuple[Expr, ...]:
    """The coordinates that tell draws apart: dims in the order of their declaration, or expressions of them."""
    given = tuple(domain) if isinstance(domain, Iterable) else (domain,)
    steps: list[Expr] = []
    dims: list[Any] = []
    for each in given:
        (steps if isinstance(each, Expr) and not isinstance(each, Symbol) else dims).append(each)
    program.check_symbols(frozenset().union(*(step.symbols() for step in steps)))
    program.as_domain(dims)
    return given


def _unit(shape: ShapeLike, domain: Steps, dtype: DTypeLike) -> RecurrentTensor:
    """Uniform in [0, 1), every multiple of the type's precision equally likely."""
    target = dtypes.as_dtype(dtype)
    if not dtypes.is_float(target):
        raise DtypeError(
            f"random real numbers need a floating-point dtype, not {target.name}",
            places=[("here", user_line())],
            hint="use tp.random.randint for integers",
        )
    precision = _PRECISION[target]
    width, source = (64, "uint64") if target == dtypes.float64 else (32, "uint32")
    whole = floor_divide(bits(shape, domain, source), 2 ** (width - precision))
    return astype(whole, target) * 2.0**-precision


def _over(domain: Steps | None, *parameters: TensorLike) -> Steps:
    """Over which dims draws differ: those asked for, else those that the distribution's parameters vary over."""
    if domain is not None:
        return domain
    return union(*(p.domain for p in parameters if isinstance(p, RecurrentTensor)))


def uniform(
    shape: ShapeLike = (),
    domain: Steps | None = None,
    low: TensorLike = 0.0,
    high: TensorLike = 1.0,
    dtype: DTypeLike = "float32",
) -> RecurrentTensor:
    """Uniform in ``[low, high)``, or ``high`` where it is rounded to that.

    Draws differ over ``domain``, by default over the domain of low and high.
    """
    unit = _unit(shape, _over(domain, low, high), dtype)
    if isinstance(low, int | float) and isinstance(high, int | float):
        return unit if (low, high) == (0, 1) else unit * (high - low) + low
    low = as_tensor(low)
    return unit * (as_tensor(high) - low) + low


def normal(
    shape: ShapeLike = (),
    domain: Steps | None = None,
    mean: TensorLike = 0.0,
    std: TensorLike = 1.0,
    dtype: DTypeLike = "float32",
) -> RecurrentTensor:
    """Normal with the given mean and standard deviation (Box-Muller).

    Draws differ over ``domain``, by default over the domain of mean and std.
    """
    over = _over(domain, mean, std)
    # Eight bits of bfloat16 would end at 3.3 standard deviations, and be 0 in one of 256 cases.
    wide = dtypes.accumulator_of(dtypes.as_dtype(dtype))
    # 1 - u is in (0, 1], so the logarithm is finite.
    radius = sqrt(-2.0 * log(1.0 - _unit(shape, over, wide)))
    standard = astype(radius * cos(2 * math.pi * _unit(shape, over, wide)), dtype)
    if isinstance(mean, int | float) and isinstance(std, int | float) and (mean, std) == (0, 1):
        return standard
    return standard * std + mean


def bernoulli(p: TensorLike = 0.5, shape: ShapeLike | None = None, domain: Steps | None = None) -> RecurrentTensor:
    """True with probability ``p``. The shape, and the domain over which draws differ, are those of ``p`` by default."""
    probability = as_tensor(p)
    size: Shape = probability.shape if shape is None else as_shape(shape)
    # In half precision, a probability of 0.001 would be one of 256 equally likely numbers.
    wide = dtypes.accumulator_of(dtypes.float_of(probability.dtype))
    return less(_unit(size, _over(domain, probability), wide), probability)


def randint(
    low: TensorLike,
    high: TensorLike,
    shape: ShapeLike = (),
    domain: Steps | None = None,
    dtype: DTypeLike = "int32",
) -> RecurrentTensor:
    """Integers in ``low .. high - 1``, or ``low`` where there are none. (Uneven by at most one part in
    2**32 / (high - low).)

    Both are integers, index expressions or tensors. Draws differ over ``domain``, by default over theirs.
    """
    start: RecurrentTensor | int
    count: RecurrentTensor | int
    if isinstance(low, int | np.integer) and isinstance(high, int | np.integer):
        start, count = int(low), int(high) - int(low)
        possible = 0 < count < 2**32
        for last in (int(low), int(high) - 1):  # what is drawn would wrap around
            number("randint", last, dtypes.as_dtype(dtype))
    else:
        start, end = as_tensor(low), as_tensor(high)
        possible = dtypes.is_integer(start.dtype) and dtypes.is_integer(end.dtype)
        count = astype(maximum(end - start, 1), "uint32")
        start = astype(start, dtype)
    if not possible:
        raise DtypeError(
            f"randint({low}, {high}): needs integers low < high, less than 2**32 apart",
            places=[("here", user_line())],
        )
    drawn = mod(bits(shape, _over(domain, start, count)), count)
    return astype(drawn, dtype) + start


def categorical(logits: TensorLike, domain: Steps | None = None, axis: int = -1) -> RecurrentTensor:
    """An index along ``axis``, drawn with probabilities ``softmax(logits)`` (the Gumbel trick).

    Draws differ over ``domain``, by default over the domain of the logits.
    """
    scores = as_tensor(logits)
    over = _over(domain, scores)
    scores = astype(scores, dtypes.accumulator_of(dtypes.float_of(scores.dtype)))
    # Half a step up from [0, 1): neither logarithm sees a zero.
    drawn = _unit(scores.shape, over, scores.dtype)
    half = 2.0 ** -(_PRECISION[scores.dtype] + 1)
    return argmax(scores - log(-log(drawn * (1 - 2 * half) + half)), axis)


def permutation(n: int | Expr, domain: Steps = (), dtype: DTypeLike = "int32") -> RecurrentTensor:
    """A random order of ``0, 1, ..., n - 1``."""
    return astype(argsort(bits(n, domain)), dtype)
