"""What is wrong with a program at a point, in the user's names: a value that nothing defines or that needs itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tempo.errors import CausalityError, DefinitionError
from tempo.graph.node import Domain, Edge, Node
from tempo.graph.regions import ends
from tempo.graph.structural import HOST, RECURRENT
from tempo.source import SourceLine
from tempo.symbolic import Dim, Expr, Item, Slice
from tempo.tensor import describe

if TYPE_CHECKING:
    from tempo.reference import Interpreter

Point = tuple[int, ...]
Key = tuple[Node, Point]
Asked = tuple[str, Edge]  # who asked for a value from outside, and what it reads


def undefined(machine: Interpreter, key: Key, readers: Sequence[Key], asked: Asked | None) -> DefinitionError:
    """A value is needed (by the last of the readers, else from outside) where its tensor is not defined."""
    node, point = key
    name, cases = describe(node.here()), machine.cases.get(node, ())
    spans = ends(node, machine.cases)
    ranges = [range(start.evaluate(machine.bounds), stop.evaluate(machine.bounds)) for start, stop in spans]
    outside = next((n for n, p in enumerate(point) if p not in ranges[n]), None)
    reader = readers[-1] if readers else None
    by = _reader(machine, readers) if reader else asked[0] if asked else "the caller"
    if outside is None:
        where = f"no case of {name} defines it"
        general = ", ".join(d.name for d in node.domain)
        hint = f"add a case for it, or a general one after the others: {name}[{general}] = ..."
    else:
        where = f"{name} is only defined for {_show_spans(machine, node.domain, spans)}"
        hint = _stay_inside(machine, key, outside, spans[outside], readers, asked)
    return DefinitionError(
        f"{show_key(key)} is needed by {by}, but {where}",
        places=[
            ("here", _line(machine, reader) if reader else None),
            (name, node.source),
            *(("case", case.source) for case in cases),
        ],
        hint=hint,
    )


def cycle(machine: Interpreter, keys: Sequence[Key]) -> CausalityError:
    """Each of these values needs the next one, and the last the first."""
    first = next((n for n, (node, _) in enumerate(keys) if node.name), 0)
    keys = [*keys[first:], *keys[:first]]
    chain: list[str] = []
    places: list[tuple[str, SourceLine | None]] = []
    for key in keys:
        line = _line(machine, key)
        if key[0].name or not places or line != places[-1][1]:
            chain.append(show_key(key) if key[0].name else _show_line(key))
            places.append((key[0].name or "through", line))
    node = keys[0][0]
    shown = [*chain[:4], "...", chain[-1]] if len(chain) > 6 else chain
    before = ""
    if len({k for k in keys if k[0].name}) == 1 and len(node.domain) == 1:
        before = f", such as {node.name}[{node.domain[0].name} - 1]"
    elif node.domain and all(k[0] is node for k in keys if k[0].name):
        before = ": earlier steps or later ones, not both"
    return CausalityError(
        f"{chain[0]} depends on itself: {' needs '.join([*shown, chain[0]])}",
        places=places,
        hint=f"a value may only use values that can be computed before it{before}",
    )


def negative_slice(
    edge: Edge, dim: Dim, span: range, here: Mapping[Any, int], source: SourceLine | None
) -> DefinitionError:
    """A slice ends before it starts."""
    item = edge.index[edge.node.domain.index(dim)]
    assert isinstance(item, Slice)
    at = ", ".join(f"{s.name}={here[s]}" for s in here)
    return DefinitionError(
        f"{describe(edge)} has a negative length: {dim.name} from {span.start} to {span.stop}"
        + (f" at {at}" if at else ""),
        places=[("here", source), (describe(edge.node.here()), edge.node.source)],
        hint=f"negative steps do not count from the end: write {item.start}:{dim.bound + item.stop} over {dim.name}"
        if item.stop.is_constant and span.stop < 0
        else f"keep the stop above the start: {item.start}:tp.max({item.start}, {item.stop}) over {dim.name}",
    )


def show_key(key: Key) -> str:
    node, point = key
    return f"{_indexable(node)}[{', '.join(map(str, point))}]" if point else describe(node.here())


def _indexable(node: Node) -> str:
    return node.name or f"({describe(node.here())})"


def show_point(domain: Domain, point: Point) -> str:
    return ", ".join(f"{d.name}={p}" for d, p in zip(domain, point, strict=True)) or "its only point"


def _line(machine: Interpreter, key: Key) -> SourceLine | None:
    """The line that says what a value is."""
    case = machine.case_at(*key)
    return case.source if case else key[0].source


def _show_line(key: Key) -> str:
    """An operation that has no name, as the line that it stands in."""
    node, point = key
    text = node.source.text if node.source else ""
    at = f" at {show_point(node.domain, point)}" if point else ""
    return f"'{text}'{at}" if text else show_key(key)


def _reader(machine: Interpreter, readers: Sequence[Key]) -> str:
    """The last of the readers; an operation in the line of a case is called by what the case defines."""
    node, point = readers[-1]
    if node.op is HOST:
        sequence = machine.sequence_point(node, point)
        return f"{node.name} at {show_point(node.attributes['sequence'], sequence)}" if sequence else node.name
    case = next((k for k in reversed(readers) if k[0].op is RECURRENT), None)
    if not node.name and case is not None and _line(machine, case) == node.source:
        return show_key(case)
    return show_key(readers[-1]) if node.name else _show_line(readers[-1])


def _show_spans(machine: Interpreter, domain: Domain, spans: Sequence[tuple[Expr, Expr]]) -> str:
    shown = [
        f"{d.name} = {start}" if start == stop - 1 else f"{d.name} = {start} ... {stop - 1}"
        for d, (start, stop) in zip(domain, spans, strict=True)
    ]
    symbols = {s: None for span in spans for e in span for s in e.symbols()}
    numbers = ", ".join(f"{s} = {machine.bounds[s]}" for s in symbols)
    return " and ".join(shown) + (f" ({numbers})" if numbers else "")


def _stay_inside(
    machine: Interpreter,
    key: Key,
    position: int,
    span: tuple[Expr, Expr],
    readers: Sequence[Key],
    asked: Asked | None,
) -> str:
    """The likely fix of a read outside the steps of a dim."""
    node, point = key
    d, p, (start, stop) = node.domain[position], point[position], span

    def at(index: object) -> str:
        return f"{_indexable(node)}[{', '.join(str(index) if e is d else e.name for e in node.domain)}]"

    below = p < start.evaluate(machine.bounds)
    item = _item(machine, key, position, readers[-1] if readers else None, asked)
    fixed = isinstance(item, Expr) and item.is_constant
    if fixed and p < 0:
        return f"negative steps do not count from the end: write {at(stop + p)}"
    circular = any(k[0] is node for k in readers)
    if fixed and not below and not circular:
        return f"there may be fewer steps: read {at(f'tp.min({p}, {stop - 1})')}"
    if node.op is RECURRENT and (fixed or circular):
        end = f"first step: {at(max(p, 0))}" if below else f"last step: {at(stop - 1)}"
        return f"before the general case write one for the {end} = ..."
    if isinstance(item, Slice):
        start_at, end_at = f"start it at tp.max({item.start}, {start})", f"end it at tp.min({item.stop}, {stop})"
        return f"keep the slice in range: {start_at if below else end_at}"
    if item is None or fixed or item == d:
        return ""
    inside = f"tp.max({item}, {start})" if below else f"tp.min({item}, {stop - 1})"
    return f"read {at(inside)}, or define the {'first' if below else 'last'} step by a case of its own"


def _item(machine: Interpreter, key: Key, position: int, reader: Key | None, asked: Asked | None) -> Item | None:
    """The index through which a value was read."""
    node, point = key
    if reader is None:
        return asked[1].index[position] if asked else None
    case = machine.case_at(*reader)
    here = machine.at(reader[0].domain, reader[1])
    edges = [e for e in ([case.value] if case else reader[0].edges) if e.node is node]
    for edge in edges:
        item = edge.index[position]
        value = item.evaluate(here)
        if point[position] in (value if isinstance(value, range) else (value,)):
            return item
    return None
