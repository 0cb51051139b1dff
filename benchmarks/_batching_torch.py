"""The models of examples/batching in PyTorch: for one instance, and batched by hand. Parameters are ours, by name.

By hand means what people write: trees level by level from lists of indices made in Python, sentences step by step
sorted by length, everything else in rounds of the instances that are still at work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear

Tensor = torch.Tensor
Parameters = dict[str, Tensor]


def at(p: Parameters, name: str, x: Tensor) -> Tensor:
    """A linear layer."""
    return linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def gru(p: Parameters, name: str, x: Tensor, h: Tensor) -> Tensor:
    weights = [p[f"{name}.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    if x.ndim == 1:
        return torch.gru_cell(x[None], h[None], *weights)[0]
    return torch.gru_cell(x, h, *weights)


def numbers(p: Parameters, found: Sequence[int]) -> Tensor:
    return torch.tensor(found, device=next(iter(p.values())).device)


def words_of(tree: Any) -> list[int]:
    return [tree] if isinstance(tree, int) else [word for child in tree for word in words_of(child)]


def levels(trees: Sequence[Any]) -> tuple[list[int], list[list[tuple[int, int]]], list[int]]:
    """Trees as words, per level the rows of both children, and the rows of roots: rows in the order of computing."""
    words: list[int] = []
    above: list[list[tuple[Any, Any, list[Any]]]] = []

    def visit(tree: Any) -> tuple[int, list[Any]]:
        if isinstance(tree, int):
            words.append(tree)
            return 0, [len(words) - 1]
        (a, left), (b, right) = visit(tree[0]), visit(tree[1])
        height = max(a, b)
        place: list[Any] = [None]
        if len(above) == height:
            above.append([])
        above[height].append((left, right, place))
        return height + 1, place

    roots = [visit(tree)[1] for tree in trees]
    row = len(words)
    found = []
    for nodes in above:
        for _, _, place in nodes:
            place[0] = row
            row += 1
        found.append([(left[0], right[0]) for left, right, _ in nodes])
    return words, found, [place[0] for place in roots]


# -- TreeLSTM ---------------------------------------------------------------------------------------------------


def tree_leaf(p: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
    i, o, u = at(p, "leaf.gates", x).chunk(3, -1)
    c = i.sigmoid() * u.tanh()
    return o.sigmoid() * c.tanh(), c


def tree_inner(p: Parameters, left: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    (a, x), (b, y) = left, right
    i, o, u = at(p, "inner.gates", a + b).chunk(3, -1)
    forget = at(p, "inner.forget", a).sigmoid() * x + at(p, "inner.forget", b).sigmoid() * y
    c = i.sigmoid() * u.tanh() + forget
    return o.sigmoid() * c.tanh(), c


def tree_lstm(p: Parameters, tree: Any) -> tuple[Tensor, Tensor]:
    xs = iter(embedding(numbers(p, words_of(tree)), p["leaf.embed.weight"]))

    def visit(tree: Any) -> tuple[Tensor, Tensor]:
        if isinstance(tree, int):
            return tree_leaf(p, next(xs))
        return tree_inner(p, visit(tree[0]), visit(tree[1]))

    return visit(tree)


def tree_lstm_by_hand(p: Parameters, trees: Sequence[Any]) -> tuple[Tensor, Tensor]:
    words, above, roots = levels(trees)
    h, c = tree_leaf(p, embedding(numbers(p, words), p["leaf.embed.weight"]))
    for nodes in above:
        left, right = numbers(p, nodes).unbind(1)
        new_h, new_c = tree_inner(p, (h[left], c[left]), (h[right], c[right]))
        h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
    rows = numbers(p, roots)
    return h[rows], c[rows]


# -- MV-RNN -----------------------------------------------------------------------------------------------------


def compose(p: Parameters, left: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    (a, A), (b, B) = left, right
    both = torch.cat([(a[..., None, :] @ B)[..., 0, :], (b[..., None, :] @ A)[..., 0, :]], -1)
    return at(p, "compose.vector", both).tanh(), A @ p["compose.left"] + B @ p["compose.right"]


def mv_rnn(p: Parameters, tree: Any) -> tuple[Tensor, Tensor]:
    rows = numbers(p, words_of(tree))
    vectors = iter(embedding(rows, p["word.vector.weight"]))
    matrices = iter(p["word.matrix"][rows])

    def visit(tree: Any) -> tuple[Tensor, Tensor]:
        return (next(vectors), next(matrices)) if isinstance(tree, int) else compose(p, *map(visit, tree))

    return visit(tree)


def mv_rnn_by_hand(p: Parameters, trees: Sequence[Any]) -> tuple[Tensor, Tensor]:
    words, above, roots = levels(trees)
    rows = numbers(p, words)
    vectors, matrices = embedding(rows, p["word.vector.weight"]), p["word.matrix"][rows]
    for nodes in above:
        left, right = numbers(p, nodes).unbind(1)
        v, m = compose(p, (vectors[left], matrices[left]), (vectors[right], matrices[right]))
        vectors, matrices = torch.cat([vectors, v]), torch.cat([matrices, m])
    rows = numbers(p, roots)
    return vectors[rows], matrices[rows]


# -- BiRNN ------------------------------------------------------------------------------------------------------


def zeros(p: Parameters, *shape: int) -> Tensor:
    return next(iter(p.values())).new_zeros(shape)


def chain(p: Parameters, name: str, words: Sequence[int]) -> list[Tensor]:
    x = embedding(numbers(p, words), p[f"{name}.embed.weight"])
    h = zeros(p, x.shape[1])
    found = []
    for one in x:
        h = gru(p, f"{name}.gru", one, h)
        found.append(h)
    return found


def bi_rnn(p: Parameters, sentence: Sequence[int]) -> list[Tensor]:
    there, back = chain(p, "there", sentence), chain(p, "back", sentence[::-1])
    return [at(p, "classify.out", torch.cat(pair)) for pair in zip(there, reversed(back), strict=True)]


def chains(p: Parameters, name: str, sentences: Sequence[Sequence[int]]) -> list[Tensor]:
    """States of sentences sorted by length, the longest first: per step those that are as long."""
    h = zeros(p, len(sentences), p[f"{name}.embed.weight"].shape[1])
    found = []
    for step in range(len(sentences[0])):
        now = [sentence[step] for sentence in sentences if len(sentence) > step]
        h = gru(p, f"{name}.gru", embedding(numbers(p, now), p[f"{name}.embed.weight"]), h[: len(now)])
        found.append(h)
    return found


def bi_rnn_by_hand(p: Parameters, sentences: Sequence[Sequence[int]]) -> Tensor:
    """The logits of all words, sentence by sentence."""
    order = sorted(range(len(sentences)), key=lambda n: -len(sentences[n]))
    there = torch.cat(chains(p, "there", [sentences[n] for n in order]))
    back = torch.cat(chains(p, "back", [sentences[n][::-1] for n in order]))
    first, total = [], 0
    for step in range(len(sentences[order[0]])):
        first.append(total)
        total += sum(len(sentence) > step for sentence in sentences)
    position = {n: k for k, n in enumerate(order)}
    forwards = [first[step] + position[n] for n, s in enumerate(sentences) for step in range(len(s))]
    backwards = [first[len(s) - 1 - step] + position[n] for n, s in enumerate(sentences) for step in range(len(s))]
    return at(p, "classify.out", torch.cat([there[numbers(p, forwards)], back[numbers(p, backwards)]], 1))


# -- NestedRNN --------------------------------------------------------------------------------------------------


def nested_rnn(p: Parameters, document: Sequence[Sequence[int]]) -> Tensor:
    state = zeros(p, p["word.embed.weight"].shape[1])
    for sentence in document:
        h = state
        for x in at(p, "word.input", embedding(numbers(p, sentence), p["word.embed.weight"])):
            h = (x + at(p, "word.hidden", h)).tanh()
        state = gru(p, "sentence", h, state)
    return state


def nested_rnn_by_hand(p: Parameters, documents: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    state = zeros(p, len(documents), p["word.embed.weight"].shape[1])
    for n in range(max(map(len, documents))):
        # Documents that are that long, those with the longest nth sentence first.
        alive = sorted((k for k, d in enumerate(documents) if len(d) > n), key=lambda k: -len(documents[k][n]))
        rows = numbers(p, alive)
        lengths = [len(documents[k][n]) for k in alive]
        before = h = state[rows]
        for step in range(lengths[0]):
            now = [documents[k][n][step] for k, length in zip(alive, lengths, strict=True) if length > step]
            x = at(p, "word.input", embedding(numbers(p, now), p["word.embed.weight"]))
            new = (x + at(p, "word.hidden", h[: len(now)])).tanh()
            h = torch.cat([new, h[len(now) :]])
        state = state.index_copy(0, rows, gru(p, "sentence", h, before))
    return state


# -- DRNN -------------------------------------------------------------------------------------------------------

DEPTH, SIBLINGS = 5, 4


def drnn_node(p: Parameters, parent: Tensor, sibling: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    down, across = gru(p, "node.ancestral", parent, parent), gru(p, "node.fraternal", parent, sibling)
    h = at(p, "node.mix", torch.cat([down, across], -1)).tanh()
    return down, across, at(p, "node.label", h), at(p, "node.decide", h)


def drnn(p: Parameters, encoding: Tensor) -> Any:
    start = torch.zeros_like(encoding)

    def siblings(parent: Tensor, before: Tensor, depth: int, position: int) -> list[Any]:
        down, across, label, decision = drnn_node(p, parent, before)
        has_children, has_sibling = (decision > 0).tolist()
        children = siblings(down, start, depth + 1, 0) if has_children and depth < DEPTH else []
        others = siblings(parent, across, depth, position + 1) if has_sibling and position < SIBLINGS else []
        return [(label, children), *others]

    return siblings(encoding, start, 0, SIBLINGS)[0]


def drnn_by_hand(p: Parameters, encodings: Tensor) -> list[Any]:
    """All nodes that are known, in rounds."""
    parents, before = encodings, torch.zeros_like(encodings)
    found: list[list[Any]] = [[] for _ in encodings]
    places = [(siblings, 0, SIBLINGS) for siblings in found]
    while places:
        down, across, labels, decisions = drnn_node(p, parents, before)
        below, beside = [], []
        inner, outer = [], []
        for n, ((has_children, has_sibling), place) in enumerate(zip((decisions > 0).tolist(), places, strict=True)):
            siblings, depth, position = place
            children: list[Any] = []
            siblings.append((labels[n], children))
            if has_children and depth < DEPTH:
                inner.append(n)
                below.append((children, depth + 1, 0))
            if has_sibling and position < SIBLINGS:
                outer.append(n)
                beside.append((siblings, depth, position + 1))
        rows, sides = numbers(p, inner).long(), numbers(p, outer).long()
        before = torch.cat([torch.zeros_like(down[rows]), across[sides]])
        parents = torch.cat([down[rows], parents[sides]])
        places = below + beside
    return [siblings[0] for siblings in found]


# -- Berxit -----------------------------------------------------------------------------------------------------

LAYERS, HEADS, CERTAIN = 12, 4, 0.62


def layer(p: Parameters, x: Tensor) -> Tensor:
    """One layer, of (length, size) or (instances, length, size)."""
    q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(-2, -3) for y in at(p, "layer.project", x).chunk(3, -1))
    weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
    x = x + at(p, "layer.merge", (weights @ v).transpose(-2, -3).flatten(-2))
    x = layer_norm(x, x.shape[-1:], p["layer.first.weight"], p["layer.first.bias"])
    x = x + at(p, "layer.narrow", gelu(at(p, "layer.widen", x)))
    return layer_norm(x, x.shape[-1:], p["layer.second.weight"], p["layer.second.bias"])


def berxit(p: Parameters, x: Tensor) -> tuple[Tensor, int]:
    depth, certainty = 0, 0.0
    while depth < LAYERS and certainty <= CERTAIN:
        x = layer(p, x)
        probabilities = at(p, "exit.out", x[0]).softmax(-1)
        certainty = probabilities.max().item()
        depth += 1
    return probabilities, depth


def berxit_by_hand(p: Parameters, xs: Tensor) -> list[Any]:
    found: list[Any] = [None] * len(xs)
    x, alive = xs, list(range(len(xs)))
    for depth in range(1, LAYERS + 1):
        x = layer(p, x)
        probabilities = at(p, "exit.out", x[:, 0]).softmax(-1)
        certain = (probabilities.amax(1) > CERTAIN).tolist()
        for n, one in enumerate(alive):
            if certain[n] or depth == LAYERS:
                found[one] = probabilities[n], depth
        stay = [n for n, is_certain in enumerate(certain) if not is_certain]
        if not stay:
            break
        x, alive = x[numbers(p, stay)], [alive[n] for n in stay]
    return found


# -- StackRNN ---------------------------------------------------------------------------------------------------


def decide(p: Parameters, *seen: Tensor) -> Tensor:
    return at(p, "decide.out", at(p, "decide.hidden", torch.cat(seen, -1)).tanh())[..., 0]


def reduce(p: Parameters, below: Tensor, top: Tensor) -> Tensor:
    gate, candidate = at(p, "reduce.gates", torch.cat([below, top], -1)).chunk(2, -1)
    gate = gate.sigmoid()
    return gate * candidate.tanh() + (1 - gate) * 0.5 * (below + top)


def stack_rnn(p: Parameters, sentence: Sequence[int]) -> tuple[Tensor, list[int]]:
    buffer = list(embedding(numbers(p, sentence[::-1]), p["embed.weight"]))
    stack: list[Tensor] = []
    actions: list[int] = []
    while buffer or len(stack) > 1:
        if len(stack) < 2 or not buffer:
            action = int(len(stack) >= 2)
        else:
            action = int(decide(p, stack[-2], stack[-1], buffer[-1]).item() > 0)
        if action:
            top, below = stack.pop(), stack.pop()
            stack.append(reduce(p, below, top))
        else:
            stack.append(buffer.pop())
        actions.append(action)
    return stack[0], actions


def stack_rnn_by_hand(p: Parameters, sentences: Sequence[Sequence[int]]) -> list[Any]:
    """In rounds: whoever has to decide decides, then whoever reduces reduces."""
    words = list(embedding(numbers(p, [w for s in sentences for w in s[::-1]]), p["embed.weight"]))
    buffers = []
    for sentence in sentences:
        buffers.append(words[: len(sentence)])
        words = words[len(sentence) :]
    stacks: list[list[Tensor]] = [[] for _ in sentences]
    actions: list[list[int]] = [[] for _ in sentences]
    alive = list(range(len(sentences)))
    while alive:
        chosen = {n: int(len(stacks[n]) >= 2) for n in alive if len(stacks[n]) < 2 or not buffers[n]}
        open_ones = [n for n in alive if n not in chosen]
        if open_ones:
            seen = [(stacks[n][-2], stacks[n][-1], buffers[n][-1]) for n in open_ones]
            scores = decide(p, *(torch.stack(column) for column in zip(*seen, strict=True)))
            chosen.update(zip(open_ones, (scores > 0).int().tolist(), strict=True))
        reducing = [n for n in alive if chosen[n]]
        if reducing:
            tops = [stacks[n].pop() for n in reducing]
            new = reduce(p, torch.stack([stacks[n].pop() for n in reducing]), torch.stack(tops))
            for n, one in zip(reducing, new, strict=True):
                stacks[n].append(one)
        for n in alive:
            if not chosen[n]:
                stacks[n].append(buffers[n].pop())
            actions[n].append(chosen[n])
        alive = [n for n in alive if buffers[n] or len(stacks[n]) > 1]
    return [(stack[0], done) for stack, done in zip(stacks, actions, strict=True)]


# -- losses -----------------------------------------------------------------------------------------------------


def root_loss(model: Callable[..., Any], p: Parameters, data: Any, labels: Any) -> Tensor:
    """The loss of what a model gives for one instance with its label, or summed over several."""
    state = model(p, data)
    state = state if isinstance(state, Tensor) else state[0]
    return cross_entropy(at(p, "score.out", state), numbers(p, labels), reduction="sum")


def word_loss(model: Callable[..., Any], p: Parameters, data: Any, labels: Any) -> Tensor:
    """The same with a label for every word."""
    logits = model(p, data)
    logits = logits if isinstance(logits, Tensor) else torch.stack(logits)
    several = isinstance(labels[0], list)
    return cross_entropy(
        logits, numbers(p, [label for some in labels for label in some] if several else labels), reduction="sum"
    )


@dataclass(frozen=True)
class Model:
    one: Callable[[Parameters, Any], Any]
    """For one instance."""
    many: Callable[[Parameters, Any], Any]
    """Batched by hand."""
    loss: Callable[..., Tensor] | None = None

    def mean_loss(self, p: Parameters, instances: Sequence[Any], by_hand: bool = False) -> Tensor:
        assert self.loss is not None
        if by_hand:
            data, labels = zip(*instances, strict=True)
            return self.loss(self.many, p, list(data), list(labels)) / len(instances)
        return torch.stack([self.loss(self.one, p, *one) for one in instances]).mean()


MODELS = {
    "tree_lstm": Model(tree_lstm, tree_lstm_by_hand, root_loss),
    "mv_rnn": Model(mv_rnn, mv_rnn_by_hand, root_loss),
    "bi_rnn": Model(bi_rnn, bi_rnn_by_hand, word_loss),
    "nested_rnn": Model(nested_rnn, nested_rnn_by_hand, root_loss),
    "drnn": Model(drnn, drnn_by_hand),
    "berxit": Model(berxit, berxit_by_hand),
    "stack_rnn": Model(stack_rnn, stack_rnn_by_hand),
}
