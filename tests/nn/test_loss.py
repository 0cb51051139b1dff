"""Cross-entropy gives PyTorch's numbers, however large the logits are."""

import numpy as np

import tempo as tp
from tempo import nn
from tests.nn.checks import B, T, agree, numbers, torch


class CrossEntropy(nn.Module):
    __call__ = staticmethod(nn.cross_entropy)


def test_cross_entropy():
    labels = np.random.default_rng(0).integers(0, 4, (B, T))
    agree(
        CrossEntropy(),
        lambda logits, label: torch.nn.functional.cross_entropy(logits.mT, label, reduction="none"),
        100 * numbers(B, T, 4),
        labels,
    )
    agree(
        CrossEntropy(),
        lambda logits, label: torch.nn.functional.cross_entropy(logits.movedim(-1, 1), label, reduction="none"),
        numbers(B, T, 3, 4),
        np.stack([labels, labels[::-1], 0 * labels], axis=-1),
    )


def test_in_single_precision():
    with tp.Program("half") as prog:
        loss = nn.cross_entropy(tp.constant([1.0, 0.0, 0.0, 0.0], "bfloat16"), tp.constant(0))
        prog.output("loss", loss)
    assert prog.evaluate().loss.dtype == np.float32
    np.testing.assert_allclose(prog.evaluate().loss, np.log(1 + 3 / np.e), rtol=1e-6)
