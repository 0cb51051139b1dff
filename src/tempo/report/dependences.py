"""What is drawn of a program: its tensors, and who reads whom at which step.

Of a large program it is only part: inputs, what has a name, what is defined by cases, host calls, results, and whatever
is read at other steps. All else is read at its own step, so that what is read through it is read as if directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass, field

from tempo.graph.node import Edge, Graph, Node
from tempo.graph.printing import show_node, show_type
from tempo.graph.structural import HOST, INPUT, RECURRENT
from tempo.graph.traversal import edges_of
from tempo.symbolic import index as indices

# Programs with more tensors are not drawn as a whole.
MOST_DRAWN = 150

# What joins fewer tensors is not drawn of a large program.
LEAST_JOINED = 3

# Of reads of the same tensor this many are written beside an arrow.
MOST_INDICES = 3


Key = Node | str
"""What a box stands for: a node, or a result by its name."""

Reads = dict[tuple[Key, Key], dict[str, None]]
"""For every reader and what it reads, where: at the same step if that is nothing."""


@dataclass(frozen=True)
class Tensor:
    """One box: a tensor, a result, or several inputs with the same readers."""

    kind: str
    """"input", "recurrent", "host", "operation" or "result"."""
    title: str
    type: str
    definition: str
    node: Node | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Read:
    """One arrow, from what is read to what reads it, by their numbers."""

    start: int
    end: int
    index: str = ""
    """Where it is read, if that is not the step of the reader."""


@dataclass(frozen=True)
class Dependences:
    """Boxes and arrows, and how many tensors are not among them."""

    tensors: tuple[Tensor, ...]
    reads: tuple[Read, ...]
    left_out: int


def dependences(graph: Graph) -> Dependences:
    """What is drawn of a graph."""
    nodes = [node for node in graph.nodes if not _is_number(node)]
    kept = _kept(graph) if len(nodes) > MOST_DRAWN else {*nodes}
    boxes: dict[Key, Tensor] = {node: _tensor(graph, node) for node in nodes if node in kept}
    reads: Reads = {}
    for node in nodes:
        for read, index in _reads(graph, node, kept) if node in kept else ():
            reads.setdefault((node, read), {})[index] = None
    results = {"output": graph.outputs, "emit": graph.emits, "stop": {d.name: e for d, e in graph.stops.items()}}
    for kind, edges in results.items():
        for name, edge in edges.items():
            key = f"{kind} {name}"
            boxes[key] = Tensor("result", key, "", f"{key} {'when' if kind == 'stop' else '='} {edge}")
            if edge.node in kept:
                reads[key, edge.node] = {_index(edge): None}
    left_out = len(nodes) - sum(node in kept for node in nodes)
    if left_out:
        boxes, reads = _with_inputs_together(boxes, reads)
    numbers = {key: n for n, key in enumerate(boxes)}
    arrows = []
    for (reader, producer), found in reads.items():
        # What is read at the same step as well has two arrows: one of them may go back in time.
        elsewhere = [index for index in found if index]
        more = " …" if len(elsewhere) > MOST_INDICES else ""
        texts = [""] if "" in found else []
        texts += [" | ".join(elsewhere[:MOST_INDICES]) + more] if elsewhere else []
        arrows += [Read(numbers[producer], numbers[reader], text) for text in texts]
    return Dependences(tuple(boxes.values()), tuple(arrows), left_out)


def _with_inputs_together(boxes: Mapping[Key, Tensor], reads: Reads) -> tuple[dict[Key, Tensor], Reads]:
    """Boxes and reads with one box for all inputs that the same tensors read in the same way, as a layer's weights."""
    readers: dict[Key, list[object]] = {key: [] for key, tensor in boxes.items() if tensor.kind == "input"}
    for (reader, producer), found in reads.items():
        if producer in readers:
            readers[producer].append((reader, *found))
    groups: dict[tuple[object, ...], list[Key]] = {}
    for key, uses in readers.items():
        groups.setdefault(tuple(uses), []).append(key)
    first = {key: keys[0] for keys in groups.values() for key in keys}
    together: dict[Key, Tensor] = {}
    for key, tensor in boxes.items():
        keys = groups[tuple(readers[key])] if key in readers else [key]
        if len(keys) == 1:
            together[key] = tensor
        elif key == keys[0]:
            definition = "\n".join(boxes[each].definition for each in keys)
            together[key] = Tensor("input", f"{len(keys)} inputs", f"{tensor.title} …", definition)
    return together, {(reader, first.get(p, p)): found for (reader, p), found in reads.items()}


def _is_number(node: Node) -> bool:
    """Whether a node is a constant that is written where it is read."""
    return node.op.name == "constant" and not node.name and node.shape == () and not node.domain


def _number(node: Node) -> str:
    value = node.attributes["value"].item()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tensor(graph: Graph, node: Node) -> Tensor:
    kinds = {INPUT.name: "input", RECURRENT.name: "recurrent", HOST.name: "host"}
    title = node.label
    if any(_is_number(edge.node) for edge in node.edges):
        numbers = (_number(edge.node) if _is_number(edge.node) else "·" for edge in node.edges)
        title = f"{title}({', '.join(numbers)})"
    domain = ", ".join(d.name for d in node.domain)
    lines = [*show_node(graph, node), *([str(node.source)] if node.source else [])]
    return Tensor(kinds.get(node.op.name, "operation"), title, f"({domain}) {show_type(node)}", "\n".join(lines), node)


def _kept(graph: Graph) -> set[Node]:
    """What is drawn of a large graph."""
    kept = {node for node in graph.nodes if node.name or node.op in (INPUT, RECURRENT, HOST)}
    kept |= {edge.node for edges in (graph.outputs, graph.emits, graph.stops) for edge in edges.values()}
    kept |= {producer for node in graph.nodes for producer, index in _direct(graph, node) if index}
    kept = {node for node in kept if not _is_number(node)}
    return kept | _joints(graph, kept)


def _joints(graph: Graph, kept: Set[Node]) -> set[Node]:
    """What joins several tensors, and several others read, such as the sum behind a layer. Without it, every layer has
    arrows to all layers after it."""
    readers = Counter(p for node in graph.nodes for p in {producer for producer, _ in _direct(graph, node)})
    joints: set[Node] = set()
    joined: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        found: set[Node] = set()
        for producer, _ in _direct(graph, node):
            found |= {producer} if producer in kept or producer in joints else joined.get(producer, set())
        joined[node] = {tensor for tensor in found if tensor.op is not INPUT}
        if len(joined[node]) >= LEAST_JOINED and readers[node] > 1:
            joints.add(node)
    return joints


def _reads(graph: Graph, node: Node, drawn: Container[Node]) -> Iterator[tuple[Node, str]]:
    """What a node reads of what is drawn, directly or through what is not, and where."""
    ahead, seen = [node], {node}
    while ahead:
        for producer, index in _direct(graph, ahead.pop()):
            if producer in drawn:
                yield producer, index
            elif producer not in seen:
                seen.add(producer)
                ahead.append(producer)


def _direct(graph: Graph, node: Node) -> Iterator[tuple[Node, str]]:
    for edge in edges_of(node, graph.cases):
        yield edge.node, _index(edge)
    for scatter in node.scatters:
        yield scatter.node, "" if scatter.index == node.domain else f"→ {indices.show(scatter.index)}"


def _index(edge: Edge) -> str:
    return "" if edge.is_here else indices.show(edge.index)
