"""Recursive models for one instance, in Tempo and in PyTorch, and random data for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import tempo as tp
from tempo import nn

WORDS = 20


def tree(rng: np.random.Generator, words: int) -> Any:
    """A binary tree: a word, or two trees."""
    if words == 1:
        return int(rng.integers(WORDS))
    left = int(rng.integers(1, words))
    return tree(rng, left), tree(rng, words - left)


def trees(count: int, most: int = 12, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [tree(rng, int(rng.integers(1, most + 1))) for _ in range(count)]


def sentences(count: int, most: int = 9, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(WORDS, size=rng.integers(1, most + 1)).tolist() for _ in range(count)]


# -- TreeLSTM: a sum over children ---------------------------------------------------------------------------


class Leaf(nn.Module):
    def __init__(self, size: int) -> None:
        self.embed = nn.Embedding(WORDS, size)
        self.gates = nn.Linear(size, 3 * size)

    def __call__(self, word: Any) -> Any:
        i, o, u = tp.split(self.gates(self.embed(word)), 3)
        c = tp.sigmoid(i) * tp.tanh(u)
        return tp.sigmoid(o) * tp.tanh(c), c


class Inner(nn.Module):
    def __init__(self, size: int) -> None:
        self.gates = nn.Linear(size, 3 * size)
        self.forget = nn.Linear(size, size)

    def __call__(self, *children: Any) -> Any:
        i, o, u = tp.split(self.gates(sum(h for h, _ in children)), 3)
        c = tp.sigmoid(i) * tp.tanh(u) + sum(tp.sigmoid(self.forget(h)) * c for h, c in children)
        return tp.sigmoid(o) * tp.tanh(c), c


class Score(nn.Module):
    def __init__(self, size: int) -> None:
        self.out = nn.Linear(size, 3)

    def __call__(self, state: Any, label: Any) -> Any:
        return nn.cross_entropy(self.out(state[0]), label)


class TreeLSTM(nn.Module):
    def __init__(self, size: int) -> None:
        self.leaf = Leaf(size)
        self.inner = Inner(size)

    def __call__(self, tree: Any) -> Any:
        return self.state(tree)

    def state(self, tree: Any) -> Any:
        match tree:
            case int():
                return self.leaf(tree)
            case children:
                return self.inner(*map(self.state, children))


class TreeLoss(TreeLSTM):
    """The loss of (tree, label)."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.score = Score(size)

    def __call__(self, instance: Any) -> Any:
        tree, label = instance
        return self.score(self.state(tree), label)


def torch_tree(p: dict[str, torch.Tensor], tree: Any) -> tuple[torch.Tensor, torch.Tensor]:
    linear = torch.nn.functional.linear
    if isinstance(tree, int):
        gates = linear(p["leaf.embed.weight"][tree], p["leaf.gates.weight"], p["leaf.gates.bias"])
        i, o, u = gates.chunk(3)
        c = i.sigmoid() * u.tanh()
    else:
        children = [torch_tree(p, child) for child in tree]
        gates = linear(sum(h for h, _ in children), p["inner.gates.weight"], p["inner.gates.bias"])
        i, o, u = gates.chunk(3)
        forgets = [linear(h, p["inner.forget.weight"], p["inner.forget.bias"]).sigmoid() for h, _ in children]
        c = i.sigmoid() * u.tanh() + sum(f * c for f, (_, c) in zip(forgets, children, strict=True))
    return o.sigmoid() * c.tanh(), c


def torch_tree_loss(p: dict[str, torch.Tensor], instance: Any) -> torch.Tensor:
    tree, label = instance
    logits = torch.nn.functional.linear(torch_tree(p, tree)[0], p["score.out.weight"], p["score.out.bias"])
    return torch.nn.functional.cross_entropy(logits, torch.tensor(label))


# -- BiRNN: two recurrences and a classifier for every word --------------------------------------------------


class Classify(nn.Module):
    def __init__(self, size: int) -> None:
        self.out = nn.Linear(2 * size, 4)

    def __call__(self, forward: Any, backward: Any) -> Any:
        return self.out(tp.concatenate([forward, backward]))


class BiRNN(nn.Module):
    def __init__(self, size: int) -> None:
        self.size = size
        self.embed = nn.Embedding(WORDS, size)
        self.forward = nn.GRUCell(size, size)
        self.backward = nn.GRUCell(size, size)
        self.classify = Classify(size)

    def __call__(self, sentence: list[int]) -> list[Any]:
        words = [self.embed(word) for word in sentence]

        def states(cell: Any, words: list[Any], h: Any) -> list[Any]:
            return [h, *states(cell, words[1:], cell(words[0], h))] if words else [h]

        start = np.zeros(self.size, np.float32)
        there = states(self.forward, words, start)[1:]
        back = states(self.backward, words[::-1], start)[:0:-1]
        return [self.classify(f, b) for f, b in zip(there, back, strict=True)]


def torch_birnn(p: dict[str, torch.Tensor], sentence: list[int]) -> torch.Tensor:
    x = p["embed.weight"][sentence]
    size = x.shape[1]
    outputs = []
    for name, words in (("forward", x), ("backward", x.flip(0))):
        cell = torch.nn.GRUCell(size, size)
        cell.load_state_dict({key: p[f"{name}.{key}"] for key in cell.state_dict()})
        h = torch.zeros(size)
        found = []
        for word in words:
            h = cell(word, h)
            found.append(h)
        outputs.append(torch.stack(found))
    both = torch.cat([outputs[0], outputs[1].flip(0)], 1)
    return torch.nn.functional.linear(both, p["classify.out.weight"], p["classify.out.bias"])


# -- MV-RNN: a vector and a matrix for every word ------------------------------------------------------------


class Word(nn.Module):
    def __init__(self, size: int) -> None:
        self.vector = nn.Embedding(WORDS, size)
        self.matrices = nn.Parameter((WORDS, size, size), nn.init.normal(0.3))

    def __call__(self, word: Any) -> Any:
        return self.vector(word), tp.take(self.matrices, word)


class Compose(nn.Module):
    def __init__(self, size: int) -> None:
        self.vector = nn.Linear(2 * size, size)
        self.matrix = nn.Parameter((size, 2 * size), nn.init.normal(0.3))

    def __call__(self, left: Any, right: Any) -> Any:
        (a, A), (b, B) = left, right
        return tp.tanh(self.vector(tp.concatenate([B @ a, A @ b]))), self.matrix @ tp.concatenate([A, B])


def torch_mvrnn(p: dict[str, torch.Tensor], tree: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(tree, int):
        return p["word.vector.weight"][tree], p["word.matrices"][tree]
    (a, A), (b, B) = (torch_mvrnn(p, child) for child in tree)
    both = torch.cat([B @ a, A @ b])
    vector = torch.nn.functional.linear(both, p["compose.vector.weight"], p["compose.vector.bias"]).tanh()
    return vector, p["compose.matrix"] @ torch.cat([A, B])


def as_torch(parameters: dict[str, Any], gradients: bool = False) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(np.array(value), requires_grad=gradients) for name, value in parameters.items()}
