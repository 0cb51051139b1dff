"""Temporal indexing and definition by cases: what ``x[key]`` and ``x[key] = value`` mean."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType
from tempo.errors import DomainError, DtypeError, IndexExpressionError, ProgramError, ShapeError
from tempo.graph.node import (
    Case,
    Domain,
    Edge,
    Node,
    Shape,
    dims_of,
    shape_symbols,
    show_domain,
    show_shape,
    substitute_shape,
)
from tempo.graph.structural import INPUT, RECURRENT
from tempo.ops.elementwise import copy
from tempo.ops.shaping import broadcast_to
from tempo.source import SourceLine, user_line
from tempo.symbolic import (
    TRUE,
    Condition,
    Dim,
    Expr,
    Index,
    Item,
    Slice,
    Symbol,
    as_expr,
    conjunction,
    constant,
    equal,
)
from tempo.tensor import RecurrentTensor, TensorLike, as_tensor, is_weak

# -- temporal indexing ------------------------------------------------------------------------------------


def parse_index(tensor: RecurrentTensor, key: Any) -> Index:
    """The index that ``x[key]`` means: one item per dim of x's domain."""
    keys = key if isinstance(key, tuple) else (key,)
    domain = tensor.domain
    ellipses = sum(1 for k in keys if isinstance(k, EllipsisType))
    given = len(keys) - ellipses
    if ellipses > 1 or given > len(domain):
        found = f"{given} indices" if given != 1 else "1 index"
        shown = tensor if tensor.edge.node.name else f"({tensor})"
        raise IndexExpressionError(
            f"{shown}[...]: {found}{' and more than one ...' if ellipses > 1 else ''} "
            f"for the domain {show_domain(domain)}",
            places=[("here", user_line()), (tensor.name, tensor.edge.node.source)],
            hint="x[...] indexes time, one index per dim of the domain; x.space[...] indexes inside a value",
        )
    at = next((n for n, k in enumerate(keys) if isinstance(k, EllipsisType)), len(keys))
    before, after = keys[:at], keys[at + 1 :]
    here = domain[len(before) : len(domain) - len(after)]
    full = (*before, *here, *after)
    return tuple(_parse_item(tensor, d, k) for d, k in zip(domain, full, strict=True))


def _parse_item(tensor: RecurrentTensor, dim: Dim, key: Any) -> Item:
    if isinstance(key, slice):
        if key.step is not None:
            shown = ":".join("" if k is None else str(k) for k in (key.start, key.stop, key.step))
            hint = f"stack the steps, then take some of them: x[0:{dim.bound}].space[::{key.step}]"
            raise _index_error(tensor, dim, shown, "a temporal slice has no step", hint)
        start = constant(0) if key.start is None else _point(tensor, dim, key.start)
        stop = dim.bound if key.stop is None else _point(tensor, dim, key.stop)
        return Slice(start, stop)
    return _point(tensor, dim, key)


def _point(tensor: RecurrentTensor, dim: Dim, key: Any) -> Expr:
    if isinstance(key, builtins.bool | np.bool_):
        raise _index_error(
            tensor,
            dim,
            key,
            f"{key} is a plain bool, not an index",
            f"{dim.name} == 0 compares expressions as Python objects; "
            f"write {tensor.name}[0], or the condition tp.equal({dim.name}, 0)",
        )
    if isinstance(key, Condition):
        raise _index_error(
            tensor,
            dim,
            key,
            "a condition selects the points that a case defines, not the points that are read",
            f"to choose between values write tp.where({key}, {tensor.name}, other)",
        )
    if isinstance(key, RecurrentTensor):
        raise _index_error(
            tensor,
            dim,
            key,
            "an index cannot be a tensor",
            f"to choose by a condition on data write tp.where({key}, a, b)"
            if dtypes.is_bool(key.dtype)
            else f"to index by values stack the steps and take some of them: x[0:{dim.bound}].take({key})",
        )
    try:
        expr = as_expr(key)
    except IndexExpressionError as error:
        raise _index_error(tensor, dim, repr(key), str(error.message), error.hint) from None
    tensor.program.check_symbols(expr.symbols())
    return expr


def _index_error(tensor: RecurrentTensor, dim: Dim, key: object, message: str, hint: str) -> IndexExpressionError:
    return IndexExpressionError(
        f"{tensor} indexed over {dim.name} by {key}: {message}",
        places=[("here", user_line()), (tensor.name, tensor.edge.node.source)],
        hint=hint,
    )


def compose(tensor: RecurrentTensor, items: Index) -> Edge:
    """The edge that reads ``tensor`` (itself a view) through a further index."""
    view, edge = tensor.domain, tensor.edge
    sliced = {d for d, item in zip(view, items, strict=True) if isinstance(item, Slice)}
    for d in sliced & shape_symbols(tensor.shape):
        raise ShapeError(
            f"{tensor} has shape {show_shape(tensor.shape)}, which differs from step to step of {d.name}: "
            f"its steps cannot be stacked by a slice over {d.name}",
            places=[("here", user_line()), (tensor.name, edge.node.source)],
            hint="reduce or pad the axis to a size that does not depend on " + d.name,
        )
    # A slice takes the place of a dim that stands alone; anything else is copied to where it does.
    alone = all(d in edge.index and sum(d in item.symbols() for item in edge.index) == 1 for d in sliced)
    if sliced and not (alone and all(isinstance(item, Expr) for item in edge.index)):
        edge = copy(tensor).edge
    points = {d: i for d, i in zip(view, items, strict=True) if isinstance(i, Expr)}
    spread = {d: i for d, i in zip(view, items, strict=True) if isinstance(i, Slice)}

    def through(item: Item) -> Item:
        return spread[item] if isinstance(item, Dim) and item in spread else item.substitute(points)

    return Edge(edge.node, tuple(through(item) for item in edge.index))


# -- definition by cases --------------------------------------------------------------------------------


def define_case(tensor: RecurrentTensor, key: Any, value: TensorLike) -> None:
    """``x[key] = value``: one more case of the definition of a recurrent tensor."""
    node, program, here = tensor.edge.node, tensor.program, user_line()
    if node not in program.cases or not tensor.edge.is_here:
        view = node in program.cases
        what = "a part of another tensor" if view else "an input" if node.op is INPUT else "made by an operation"
        raise ProgramError(
            f"{tensor} cannot be defined by cases: it is {what}",
            places=[("here", here), (tensor.name, node.source)],
            hint=f"define {node.name} itself: {node.name}[...] = ..."
            if view
            else f'cases define what prog.recurrent("{node.name or "name"}", shape=..., domain=...) declares',
        )
    if isinstance(key, Condition):
        target: tuple[Expr, ...] = node.domain
        condition = _checked_condition(tensor, key)
    else:
        target = _parse_target(tensor, key)
        condition = TRUE
    add_case(tensor, target, condition, value, here)
    _check_reachable(node, _left(node, target, condition), program.cases[node])


def add_case(
    tensor: RecurrentTensor,
    target: tuple[Expr, ...],
    condition: Condition,
    value: TensorLike,
    source: SourceLine,
    left: str = "",
) -> None:
    node, program = tensor.edge.node, tensor.program
    free = {d for d, e in zip(node.domain, target, strict=True) if d in e.symbols()}
    left = left or _left(node, target, condition)
    value = _case_value(tensor, left, dict(zip(node.domain, target, strict=True)), free, value, source)

    solved: dict[Symbol, Expr] = {}
    pinned: list[Condition] = []
    for d, e in zip(node.domain, target, strict=True):
        if d in free:
            solved[d] = d - (e - d) if dict(e.terms)[d] == 1 else (e + d) - d
        else:
            pinned.append(equal(d, e))
    guards = tuple((solved[d], d) for d in node.domain if d in free)
    program.cases[node].append(
        Case(
            target,
            guards,
            conjunction([*pinned, condition.substitute(solved)]),
            value.edge.substitute(solved),
            source,
        )
    )
    program.changed()


def _left(node: Node, target: tuple[Expr, ...], condition: Condition) -> str:
    return f"{node.label}[{', '.join(map(str, target)) or '...' if condition is TRUE else condition}]"


def _parse_target(tensor: RecurrentTensor, key: Any) -> tuple[Expr, ...]:
    x, target = tensor.name, []
    for k in key if isinstance(key, tuple) else ():
        if isinstance(k, Condition):
            raise IndexExpressionError(
                f"{x}[...] = ...: the condition {k} stands among other indices",
                places=[("here", user_line()), (x, tensor.edge.node.source)],
                hint=f"a condition stands alone, for all dims: {x}[{k}] = ..., {x}[({k}) & ...] = ...",
            )
    for d, item in zip(tensor.edge.node.domain, parse_index(tensor, key), strict=True):
        if isinstance(item, Slice):
            raise _index_error(
                tensor,
                d,
                item,
                "a case defines points, not slices",
                f"write a condition: {x}[({d.name} >= {item.start}) & ({d.name} < {item.stop})] = ...",
            )
        others = set(dims_of(item.symbols())) - {d}
        own = dict(item.terms).get(d, 0)
        nested = d in (item - own * d).symbols()
        if others or nested or own not in (0, 1, -1):
            raise _index_error(
                tensor,
                d,
                item,
                f"on the left of = stands {d.name}, {d.name} plus or minus something fixed, or something fixed",
                f"define every point through its own index, e.g. {x}[{d.name}] = ..., "
                f"with conditions such as {x}[tp.equal({d.name} % 2, 0)] = ...",
            )
        target.append(item)
    return tuple(target)


def _checked_condition(tensor: RecurrentTensor, condition: Condition) -> Condition:
    tensor.program.check_symbols(condition.symbols())
    extra = set(dims_of(condition.symbols())) - set(tensor.edge.node.domain)
    if extra:
        raise DomainError(
            f"{tensor.name}[{condition}]: the condition uses {_names(extra)}, over which {tensor.name} does not vary",
            places=[("here", user_line()), (tensor.name, tensor.edge.node.source)],
            hint=f"{tensor.name} has the domain {show_domain(tensor.edge.node.domain)}",
        )
    return condition


def _check_reachable(node: Node, left: str, cases: Sequence[Case]) -> None:
    """Reject a last case that an earlier one has taken, as it is written. (A condition may well turn out empty or
    covered for some of the numbers that a program is written with.)"""
    *earlier, case = cases
    for e in earlier:
        if (e.target, e.condition) in ((node.domain, TRUE), (case.target, case.condition)):
            raise ProgramError(
                f"{left} = ... can never apply: an earlier case has all of its points",
                places=[("here", case.source), ("earlier", e.source)],
                hint="the first case that matches wins; write special cases before the general one",
            )


def _case_value(
    tensor: RecurrentTensor,
    left: str,
    replacement: Mapping[Any, Expr],
    free: set[Dim],
    value: TensorLike,
    source: SourceLine,
) -> RecurrentTensor:
    """The right-hand side, checked against the left and brought to its shape and dtype."""
    node = tensor.edge.node
    places = [("here", source), (node.label, node.source)]
    try:
        result = as_tensor(value, tensor.program, node.dtype if is_weak(value) else None)
    except DtypeError as error:
        raise DtypeError(f"{left} = ...: {error.message}", places=places, hint=error.hint) from None
    places.append((str(result), result.edge.node.source))
    extra = set(result.domain) - free
    if extra:
        raise DomainError(
            f"{left} = ...: the right side varies over {_names(extra)}, the left does not",
            places=places,
            hint=f"index the right side at one step of {_names(extra)}, or stack the steps and reduce them, e.g. "
            + "; ".join(f"value[0:{d.bound}].sum(0) over {d.name}" for d in dims_of(frozenset(extra))),
        )
    if result.dtype != node.dtype:
        raise DtypeError(
            f"{left} = ...: the right side is {result.dtype.name}, {node.label} is {node.dtype.name}",
            places=places,
            hint=f"cast with .astype({dtypes.spelling(node.dtype)}), or declare {node.label} as {result.dtype.name}",
        )
    expected = substitute_shape(node.shape, replacement)
    if result.shape != expected:
        try:
            return broadcast_to(result, expected)
        except ShapeError:
            raise ShapeError(
                f"{left} = ...: the right side has shape {show_shape(result.shape)}, the left {show_shape(expected)}",
                places=places,
                hint="a value may be broadcast to the left side's shape, as in NumPy, but not reshaped",
            ) from None
    return result


def _names(dims: set[Dim]) -> str:
    return ", ".join(d.name for d in sorted(dims, key=lambda d: d.number))


def recurrent_node(name: str, domain: Domain, shape: Shape, dtype: DType, source: SourceLine | None) -> Node:
    return Node(RECURRENT, (), domain, shape, dtype, source, name=name)
