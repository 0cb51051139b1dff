"""Calls with the same numbers are made once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import nn

from . import models


def test_a_word_that_occurs_again() -> None:
    embed = tp.cell(nn.Embedding(9, 2), name="embed")
    plus = tp.cell(lambda a, b: a + b, name="plus")

    def model(words: list[int]) -> Any:
        total = embed(words[0])
        for word in words[1:]:
            total = plus(total, embed(word))
        return total

    batched = tp.batch(model, cells={"embed": embed})
    data = [[1, 2, 1], [2, 2], [8, 1, 1]]
    table = np.asarray(batched.parameters["embed.weight"])
    for found, words in zip(batched(data), data, strict=True):
        np.testing.assert_allclose(found, table[words].sum(0), rtol=1e-6)
    assert batched.statistics.calls == 8 + 5
    assert batched.statistics.repeated == 5
    assert str(batched.statistics).startswith("3 instances, 13 calls (5 repeated): 3 launches of 2.7 calls")


def test_several_numbers() -> None:
    pair = tp.cell(lambda a, b: 10 * a + b, name="pair")
    batched = tp.batch(lambda ab: pair(*ab))
    data = [(1, 2), (2, 1), (1, 2), (-(10**6), 10**6), (1, 2), (2, 1)]
    assert batched(data) == [12, 21, 12, -9 * 10**6, 12, 21]
    assert batched.statistics.repeated == 3
    # Where few are the same, all are made.
    batched([(n, n) for n in range(9)] + [(1, 1)])
    assert batched.statistics.repeated == 0


def test_numbers_that_are_no_integers_are_not_compared() -> None:
    half = tp.cell(lambda x: x / 2, name="half")
    batched = tp.batch(lambda x: half(x))
    assert batched([1.0, 1.0, 1.0]) == [0.5, 0.5, 0.5]
    assert batched.statistics.repeated == 0


def test_gradients_of_what_is_used_again() -> None:
    data = [(tree, n % 3) for n, tree in enumerate(models.trees(10))]
    batched = tp.batch(models.TreeLoss(4))
    loss, gradients = batched.value_and_grad(data)
    assert batched.statistics.repeated > 0
    each = [batched.value_and_grad([one]) for one in data]
    assert loss == pytest.approx(np.mean([value for value, _ in each]), rel=1e-5)
    for name, gradient in gradients.items():
        expected = np.mean([np.asarray(found[name]) for _, found in each], 0)
        np.testing.assert_allclose(gradient, expected, atol=1e-6, err_msg=name)


class Word(nn.Module):
    """A recurrence over words, of which a product can be taken out."""

    def __init__(self) -> None:
        self.embed = nn.Embedding(models.WORDS, 3)
        self.cell = nn.GRUCell(3, 3)

    def __call__(self, word: Any, h: Any) -> Any:
        return self.cell(self.embed(word), h)


class Sentences(nn.Module):
    def __init__(self) -> None:
        self.start = np.zeros(3, np.float32)
        self.word = Word()
        self.loss = Sum()

    def __call__(self, sentence: list[int]) -> Any:
        h = self.start
        for word in sentence:
            h = self.word(word, h)
        return self.loss(h)


class Sum(nn.Module):
    def __call__(self, h: Any) -> Any:
        return tp.sum(h * h)


@pytest.mark.parametrize("most", [9, 2])
def test_what_is_taken_out_of_a_recursion_is_computed_once_for_a_word(most: int) -> None:
    data = models.sentences(30, most=most)
    batched = tp.batch(Sentences())
    np.testing.assert_allclose(batched(data), batched.one_by_one(data), rtol=1e-5)
    (repeated,) = batched._planner.hoisting.repeated.values()
    assert repeated
    _, gradients = batched.value_and_grad(data)
    each = [batched.value_and_grad([one])[1] for one in data]
    for name, gradient in gradients.items():
        expected = np.mean([np.asarray(found[name]) for found in each], 0)
        np.testing.assert_allclose(gradient, expected, atol=1e-6, err_msg=name)


def test_an_index_out_of_range_is_that_of_the_first_instance() -> None:
    embed = tp.cell(nn.Embedding(4, 2), name="embed")
    batched = tp.batch(lambda word: embed(word), cells={"embed": embed})
    with pytest.raises(tp.errors.InputError) as raised:
        batched([1, 9, 1, 9, 9])
    assert raised.value.message == "an index is out of range in cell embed, called for instance 1"
