"""Loops over small arrays that a CPU runs as one kernel each.

XLA makes a kernel of every few operations, and between two of them a CPU spends 50 ns or more, in which it could add up
hundreds of numbers. Loops that touch less than 1 KB in an iteration it compiles as one function in place of that. This
pays off for larger ones, too: so a loop is a function of its own in a lowered program, and it is noted at its call if
all it does is with a few numbers at a time, and of a kind that XLA makes code of without calling a library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

Found = TypeVar("Found")

NAME = "tempo_loop"
KERNEL = "tempo_kernel"
NOTES = "mhlo.frontend_attributes"
ONE_KERNEL = {"xla_cpu_small_call": "true", "inlineable": "false"}
NUMBER = "tensor<i32>"
TRIED = ((0, 10), (0, 11))
"""Releases of JAX with which random programs were run. Such notes are meant for parts of XLA by others, and where XLA
does not like them it ends the process: with other releases there are no kernels of loops."""
MOST_NUMBERS = 2**10
"""With more, kernels are not what takes time, and XLA may make calls of a library, or work for several cores."""
MOST_OPERATIONS = 2**10
"""In larger functions it takes LLVM longer to find out what is best."""

FREE = {"while", "return", "optimization_barrier"}
MOVES = {
    "broadcast_in_dim",
    "concatenate",
    "constant",
    "iota",
    "pad",
    "reshape",
    "reverse",
    "slice",
    "transpose",
    "dynamic_slice",
    "gather",
}
ELEMENTWISE = {
    "abs",
    "add",
    "and",
    "atan2",
    "bitcast_convert",
    "cbrt",
    "ceil",
    "clamp",
    "compare",
    "complex",
    "convert",
    "cosine",
    "count_leading_zeros",
    "divide",
    "exponential",
    "exponential_minus_one",
    "floor",
    "imag",
    "is_finite",
    "log",
    "log_plus_one",
    "logistic",
    "maximum",
    "minimum",
    "multiply",
    "negate",
    "not",
    "or",
    "popcnt",
    "power",
    "real",
    "reduce_precision",
    "remainder",
    "round_nearest_afz",
    "round_nearest_even",
    "rsqrt",
    "select",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sine",
    "sqrt",
    "subtract",
    "tan",
    "tanh",
    "xor",
}


def as_function(loop: Callable[..., Found]) -> Callable[..., Found]:
    """A loop as a function of its own in what it is traced for."""

    def call(*args: Any) -> Found:
        return loop(*args)

    call.__name__ = call.__qualname__ = NAME
    return jax.jit(call)


def make_kernels(module: Any) -> None:
    """Note in a StableHLO program for a CPU which of its loops are one kernel each: the outermost ones that can be."""
    if jax.__version_info__[:2] not in TRIED:
        return
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f.operation for f in module.body.operations}
    sizes: dict[str, float] = {}
    seen: set[str] = set()
    found: list[Any] = []

    def size(name: str) -> float:
        """How many operations a function has, with those that it calls; infinity if it is none for a kernel."""
        if name not in sizes:
            sizes[name] = sum(map(operations, _inside(functions[name])))
        return sizes[name]

    def operations(one: Any) -> float:
        if one.name == "func.call":
            return size(_called(one))
        return 1 if _is_small(one) else math.inf

    def visit(name: str) -> None:
        seen.add(name)
        for call in _inside(functions[name]):
            if call.name == "func.call":
                called = _called(call)
                if called.startswith(NAME) and size(called) <= MOST_OPERATIONS:
                    if len(call.results):  # or nobody reads what the loop makes
                        found.append(call)
                elif called not in seen and not called.startswith(KERNEL):
                    visit(called)

    visit("main")
    with module.context, ir.Location.unknown():
        for number, call in enumerate(found):
            _make_kernel(module, call, f"{KERNEL}_{number}")


def _make_kernel(module: Any, call: Any, name: str) -> None:
    """Put in place of a call of a loop that of a function of a tuple. When XLA makes a kernel of several operations it
    ends the process if an argument is not used, as it may find out itself of any. What is given back as it is given, a
    number that nobody reads, keeps the tuple in use."""
    values, results = list(call.operands), list(call.results)
    types, made_types = ([str(value.type) for value in several] for several in (values, results))
    given, made = (f"tuple<{', '.join([*several, NUMBER])}>" for several in (types, made_types))
    taken = [f"%{n} = stablehlo.get_tuple_element %t[{n}] : ({given}) -> {of}" for n, of in enumerate([*types, NUMBER])]
    own = f"({', '.join(types)}) -> ({', '.join(made_types)})"
    source = ir.Module.parse(f"""
        func.func private @{name}(%t: {given}) -> {made} {{
            {" ".join(taken)}
            %r:{len(results)} = func.call @{_called(call)}({", ".join(f"%{n}" for n in range(len(types)))}) : {own}
            %made = stablehlo.tuple {", ".join(f"%r#{n}" for n in range(len(results)))}, %{len(types)} : {made}
            return %made : {made}
        }}
        func.func private @{_called(call)}({", ".join(types)}) -> ({", ".join(made_types)})
    """)
    source.body.operations[0].operation.clone(ip=ir.InsertionPoint(module.body))
    place = ir.InsertionPoint(call)
    number = stablehlo.ConstantOp(ir.Attribute.parse(f"dense<0> : {NUMBER}"), ip=place)
    both = stablehlo.TupleOp([*values, number.result], ip=place)
    notes: dict[str, ir.Attribute] = {key: ir.StringAttr.get(value) for key, value in ONE_KERNEL.items()}
    callee: dict[str, Any] = {"callee": ir.FlatSymbolRefAttr.get(name), NOTES: ir.DictAttr.get(notes)}
    kernel = ir.Operation.create("func.call", [ir.Type.parse(made)], [both.result], callee, ip=place)
    for n, old in enumerate(results):
        old.replace_all_uses_with(stablehlo.GetTupleElementOp(kernel.results[0], n, ip=place).result)
    call.erase()


def unmake_kernels(module: Any) -> bool:
    """Take such notes back; whether there were any."""
    calls = [found for found in _inside(module.operation) if found.name == "func.call"]
    noted = [call for call in calls if _called(call).startswith(KERNEL) and NOTES in call.attributes]
    for call in noted:
        del call.attributes[NOTES]
    return bool(noted)


def _inside(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _inside(inner.operation)


def _called(call: Any) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _is_small(found: Any) -> bool:
    """Whether an operation is one of few numbers that becomes a part of a kernel."""
    dialect, name = found.name.split(".")
    if name in FREE:
        return True
    if name == "dot_general":
        return _is_of_vector(found)
    if name == "reduce":
        return all(_numbers(operand) <= MOST_NUMBERS for operand in found.operands)
    if name == "dynamic_update_slice":
        return _numbers(found.operands[1]) <= MOST_NUMBERS
    return (
        dialect == "stablehlo"
        and name in MOVES | ELEMENTWISE
        and all(_numbers(result) <= MOST_NUMBERS for result in found.results)
    )


def _is_of_vector(product: Any) -> bool:
    """Whether a product is one of a matrix with a vector, for which XLA makes code of its own."""
    axes = stablehlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    types = [ir.RankedTensorType(operand.type) for operand in product.operands]
    summed = len(axes.lhs_contracting_dimensions)
    return (
        not axes.lhs_batching_dimensions
        and summed == min(of.rank for of in types)
        and all(isinstance(of.element_type, ir.F32Type) for of in types)
        and max(map(_numbers, product.operands)) <= MOST_NUMBERS
    )


def _numbers(value: Any) -> int:
    return math.prod(ir.RankedTensorType(value.type).shape)
