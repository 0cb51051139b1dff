"""Distributions against torch.distributions: values, and gradients of log_prob."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as theirs

import tempo as tp
from tempo import rl

RNG = np.random.default_rng(0)
STEPS, SIZE = 5, 3
FIRST = RNG.normal(size=(STEPS, SIZE))
SECOND = RNG.uniform(0.5, 1.5, size=(STEPS, SIZE))
OTHER = RNG.normal(size=(STEPS, SIZE))


def squashed(mean: Any, std: Any) -> Any:
    normal = theirs.TransformedDistribution(theirs.Normal(mean, std), theirs.TanhTransform(cache_size=1))
    return theirs.Independent(normal, 1)


CASES: dict[str, tuple[Any, Any, Any]] = {
    "categorical": (
        lambda a, b: rl.Categorical(a * b),
        lambda a, b: theirs.Categorical(logits=a * b),
        RNG.integers(0, SIZE, size=STEPS),
    ),
    "bernoulli": (
        lambda a, b: rl.Bernoulli(a * b),
        lambda a, b: theirs.Independent(theirs.Bernoulli(logits=a * b), 1),
        RNG.integers(0, 2, size=(STEPS, SIZE)).astype(float),
    ),
    "normal": (rl.Normal, lambda a, b: theirs.Independent(theirs.Normal(a, b), 1), RNG.normal(size=(STEPS, SIZE))),
    "tanh normal": (rl.TanhNormal, squashed, RNG.uniform(-0.99, 0.99, size=(STEPS, SIZE))),
}


@pytest.mark.parametrize("name", CASES)
def test_as_torch(name: str) -> None:
    ours, reference, actions = CASES[name]
    with tp.Program() as prog:
        t, T = prog.dim("t")
        a, b, c = (prog.input(n, SIZE, t, "float64") for n in "abc")
        dtype = "int32" if name == "categorical" else "float64"
        action = prog.input("action", actions.shape[1:], t, dtype)
        p, q = ours(a, b), ours(c, b + 0.25)
        prog.output("log_prob", p.log_prob(action))
        by = {"a": a, "b": b} | ({"x": action} if dtype == "float64" else {})
        for n, gradient in tp.grad(p.log_prob(action), by).items():
            prog.output(f"by_{n}", gradient)
        if name != "tanh normal":
            prog.output("entropy", p.entropy())
        prog.output("kl", rl.kl(p, q))
        prog.output("mode", p.mode())
    inputs = {"a": FIRST, "b": SECOND, "c": OTHER, "action": actions}
    found = prog.evaluate({T: STEPS}, **inputs)
    for output, value in prog.compile({T: STEPS})(**inputs).outputs.items():
        np.testing.assert_allclose(value, found[output], rtol=1e-6, atol=1e-7)

    x, y, z = (torch.tensor(array, requires_grad=True) for array in (FIRST, SECOND, OTHER))
    taken = torch.tensor(actions, requires_grad=dtype == "float64")
    p, q = reference(x, y), reference(z, y + 0.25)
    log_prob = p.log_prob(taken)
    log_prob.sum().backward()
    np.testing.assert_allclose(found.log_prob, log_prob.detach(), rtol=1e-6)
    np.testing.assert_allclose(found.by_a, x.grad, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.by_b, y.grad, rtol=1e-6, atol=1e-12)
    if dtype == "float64":
        np.testing.assert_allclose(found.by_x, taken.grad, rtol=1e-6)
    if name == "tanh normal":
        base = [theirs.Independent(theirs.Normal(m, s), 1) for m, s in ((x, y), (z, y + 0.25))]
        np.testing.assert_allclose(found.kl, theirs.kl_divergence(*base).detach(), rtol=1e-6)
        np.testing.assert_allclose(found.mode, np.tanh(FIRST))
    else:
        np.testing.assert_allclose(found.entropy, p.entropy().detach(), rtol=1e-6)
        np.testing.assert_allclose(found.kl, theirs.kl_divergence(p, q).detach(), rtol=1e-6)
        np.testing.assert_allclose(found.mode, p.mode.detach())


def test_samples_have_the_moments_and_their_own_draw_at_every_point() -> None:
    with tp.Program() as prog:
        b, B = prog.dim("b")
        mean, std = tp.constant([1.0, -2.0]), tp.constant([0.5, 2.0])
        logits = tp.log(tp.constant([0.2, 0.3, 0.5]))
        prog.output("normal", rl.Normal(mean, std).sample(domain=b))
        prog.output("categorical", rl.Categorical(logits).sample(domain=b))
        prog.output("bernoulli", rl.Bernoulli(tp.constant([0.0, 2.0])).sample(domain=b))
        squash, log_prob = rl.TanhNormal(mean, std).sample_and_log_prob(domain=b)
        prog.output("tanh", squash)
        prog.output("log_prob", log_prob)
        prog.output("log_prob_after", rl.TanhNormal(mean, std).log_prob(squash))
    run = prog.compile({B: 4000})
    drawn = run(seed=1)
    np.testing.assert_allclose(drawn.normal.mean(0), [1, -2], atol=0.1)
    np.testing.assert_allclose(drawn.normal.std(0), [0.5, 2], rtol=0.05)
    np.testing.assert_allclose(np.bincount(drawn.categorical) / 4000, [0.2, 0.3, 0.5], atol=0.03)
    np.testing.assert_allclose(drawn.bernoulli.mean(0), [0.5, 1 / (1 + np.exp(-2))], atol=0.03)
    assert np.abs(drawn.tanh).max() <= 1
    inside = np.abs(drawn.tanh).max(-1) < 0.999
    np.testing.assert_allclose(drawn.log_prob[inside], drawn.log_prob_after[inside], atol=1e-2)


def test_an_action_that_is_ruled_out() -> None:
    with tp.Program() as prog:
        p = rl.Categorical(tp.constant([0.0, 0.0, -np.inf]))
        prog.output("entropy", p.entropy())
        prog.output("kl", rl.kl(p, rl.Categorical(tp.constant([1.0, 1.0, 1.0]))))
    found = prog.evaluate()
    np.testing.assert_allclose(found.entropy, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(found.kl, np.log(1.5), rtol=1e-6)


def test_what_has_no_closed_form() -> None:
    with tp.Program():
        mean = tp.zeros(2)
        with pytest.raises(tp.errors.ProgramError) as error:
            rl.TanhNormal(mean, mean + 1).entropy()
        assert error.value.message == "the entropy of TanhNormal has no closed form"
        with pytest.raises(tp.errors.ProgramError) as error:
            rl.kl(rl.Normal(mean, mean + 1), rl.Categorical(mean))
        assert error.value.message == "kl of Normal and Categorical has no closed form"


def test_several_choices_at_once() -> None:
    """Two and three: the sums of what each of them has."""
    logits = np.array([0.3, -0.2, 0.1, 0.5, -1.0], np.float32)
    with tp.Program("several") as prog:
        t, T = prog.dim("t")
        p = rl.MultiCategorical(tp.constant(logits), (2, 3))
        parts = [rl.Categorical(tp.constant(logits[:2])), rl.Categorical(tp.constant(logits[2:]))]
        action = tp.constant([1, 2], dtype="int32")
        prog.output("log_prob", p.log_prob(action) - parts[0].log_prob(1) - parts[1].log_prob(2))
        prog.output("entropy", p.entropy() - parts[0].entropy() - parts[1].entropy())
        prog.output("kl", rl.kl(p, p))
        prog.output("mode", p.mode())
        prog.output("sample", p.sample(t))
    result = prog.evaluate({T: 300})
    np.testing.assert_allclose([result.log_prob, result.entropy, result.kl], 0, atol=1e-6)
    assert result.mode.tolist() == [0, 1]
    assert result["sample"].dtype == np.int32
    shares = [np.bincount(result["sample"][:, n], minlength=n + 2) / 300 for n in (0, 1)]
    for share, own in zip(shares, (logits[:2], logits[2:]), strict=True):
        np.testing.assert_allclose(share, np.exp(own) / np.exp(own).sum(), atol=0.1)


def test_gradients_where_an_action_is_ruled_out_by_both() -> None:
    with tp.Program() as prog:
        a, b = (prog.input(name, 3) for name in "ab")
        for name, gradient in tp.grad(rl.kl(rl.Categorical(a), rl.Categorical(b)), {"a": a, "b": b}).items():
            prog.output(name, gradient)
    inputs = {"a": [0, 1, -np.inf], "b": [0.5, 0.2, -np.inf]}
    for found in (prog.evaluate(**inputs), prog.compile(backend="numpy")(**inputs)):
        np.testing.assert_allclose(found.a, [-0.2556, 0.2556, 0], atol=1e-4)
        np.testing.assert_allclose(found.b, [0.3055, -0.3055, 0], atol=1e-4)


def test_bits_that_are_certain() -> None:
    """Infinite logits: nothing is nan, and what cannot be has a probability of 0."""
    with tp.Program() as prog:
        logits, bits = prog.input("logits", 2), prog.input("bits", 2)
        p, q = rl.Bernoulli(logits), rl.Bernoulli(tp.constant([0.3, 0.3]))
        prog.output("prob", tp.exp(p.log_prob(bits)))
        prog.output("entropy", p.entropy())
        prog.output("kl", rl.kl(p, q))
        prog.output("same", rl.kl(p, p))
        prog.output("slope", tp.grad(p.log_prob(bits), {"logits": logits})["logits"])
    for bits, prob in (([1, 0], 1), ([0, 0], 0), ([1, 1], 0)):
        found = prog.evaluate(logits=[np.inf, -np.inf], bits=bits)
        np.testing.assert_allclose([found.prob, found.entropy, found.same], [prob, 0, 0])
        np.testing.assert_allclose(found.kl, -np.log(1 / (1 + np.exp(-0.3))) - np.log(1 / (1 + np.exp(0.3))), rtol=1e-6)
        assert np.isfinite(found.slope).all()


def test_choices_that_do_not_fit_the_logits() -> None:
    with tp.Program(), pytest.raises(tp.errors.ShapeError) as error:
        rl.MultiCategorical(tp.zeros(6), (2, 3))
    assert error.value.message == "MultiCategorical: 6 logits for choices of 2, 3"


def test_half_precision() -> None:
    """It has no number as large as the one that stands for infinity elsewhere."""
    logits = np.array([[1, 2, -np.inf], [0, 0, 0]], np.float16)
    with tp.Program("half") as prog:
        x = prog.input("x", (2, 3), dtype="float16")
        p, bits = rl.Categorical(x), rl.Bernoulli(x)
        prog.output("entropy", p.entropy())
        prog.output("gradient", tp.grad(tp.sum(p.entropy()), x))
        prog.output("kl", rl.kl(p, p))
        prog.output("bits", bits.entropy())
    found = prog.evaluate(x=logits)
    np.testing.assert_allclose(found.entropy, [0.5822, np.log(3)], atol=2e-3)
    np.testing.assert_allclose(found.bits, [0.5822 + 0.3653, 3 * np.log(2)], atol=4e-3)
    assert not found.kl.any()
    assert np.isfinite(found.gradient).all()
