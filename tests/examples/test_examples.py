"""The examples, against the same mathematics in plain NumPy and JAX: values and gradients, in float64.

Every test builds the very program that the example's file shows.
"""

import itertools
import math
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

import tempo as tp

EXAMPLES = Path(__file__).parents[2] / "examples"
# The demonstration prints more, the others train for longer; they have tests of their own.
OWN = ("demo", "character_model", "ppo_cartpole", "selective_scan")
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in OWN)

Array = Any


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def load(name: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))


def close(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_runs_as_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert 1 <= len(lines) <= 20
    assert "nan" not in " ".join(lines)


def test_running_sum(rng: np.random.Generator) -> None:
    prog, T = load("running_sum").build(decay=0.8, dtype=tp.float64)
    x = rng.normal(size=7)

    def averages(x: Array) -> Array:
        found = [x[0]]
        for sample in x[1:]:
            found.append(0.8 * found[-1] + 0.2 * sample)
        return jnp.stack(found)

    result = prog.evaluate({T: 7}, x=x)
    close(result.total, np.cumsum(x))
    close(result.average, averages(x))
    close(result.weights, jax.grad(lambda x: averages(x)[-1])(x))


def test_fibonacci() -> None:
    prog, T = load("fibonacci").build(dtype=tp.float64)
    result = prog.evaluate({T: 12}, a=2.0, b=1.0)
    assert result.F.tolist() == [2, 1, 3, 4, 7, 11, 18, 29, 47, 76, 123, 199]
    assert (result.da, result.db) == (55, 89)


def test_returns(rng: np.random.Generator) -> None:
    gamma, lam, n, steps = 0.9, 0.7, 3, 8
    prog, T = load("returns").build(gamma, lam, n, dtype=tp.float64)
    r, v = rng.normal(size=steps), rng.normal(size=steps + 1)

    def returns(r: Array) -> list[Array]:
        """Each as the sum that it stands for."""
        rest = [gamma ** (steps - t) * v[steps] for t in range(steps + 1)]
        return [sum(gamma ** (k - t) * r[k] for k in range(t, steps)) + rest[t] for t in range(steps + 1)]

    def advantages(r: Array) -> list[Array]:
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(steps)]
        return [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, steps)) for t in range(steps + 1)]

    def n_step(t: int) -> Array:
        k = min(n, steps - t)
        return sum(gamma**m * r[t + m] for m in range(k)) + gamma**k * v[t + k]

    result = prog.evaluate({T: steps}, r=r, values=v[:-1], last_value=v[-1])
    close(result.returns, returns(r))
    close(result.n_step, [n_step(t) for t in range(steps)])
    close(result.advantages, advantages(r))
    close(result.credit, jax.grad(lambda r: advantages(r)[0])(r))


def test_n_step_returns_longer_than_the_episode_are_discounted_returns(rng: np.random.Generator) -> None:
    prog, T = load("returns").build(n=10, dtype=tp.float64)
    r, v = rng.normal(size=5), rng.normal(size=6)
    result = prog.evaluate({T: 5}, r=r, values=v[:-1], last_value=v[-1])
    close(result.n_step, result.returns[:-1])


def test_bidirectional_rnn(rng: np.random.Generator) -> None:
    example = load("bidirectional_rnn")
    prog, T = example.build(inputs=2, hidden=3, outputs=2, dtype=tp.float64)
    params = {name: rng.normal(size=shape) for name, shape in example.shapes(2, 3, 2).items()}
    x, target = rng.normal(size=(5, 2)), rng.normal(size=(5, 2))

    def outputs(p: dict[str, Array]) -> Array:
        def states(W: Array, U: Array, xs: Array) -> list[Array]:
            h, found = jnp.zeros(3), []
            for sample in xs:
                h = jnp.tanh(W @ sample + U @ h)
                found.append(h)
            return found

        forward, backward = states(p["W_f"], p["U_f"], x), states(p["W_b"], p["U_b"], x[::-1])[::-1]
        both = zip(forward, backward, strict=True)
        return jnp.stack([p["W_y"] @ jnp.concatenate(pair) for pair in both])

    def loss(p: dict[str, Array]) -> Array:
        return jnp.mean((outputs(p) - target) ** 2)

    result = prog.evaluate({T: 5}, x=x, target=target, **params)
    close(result.y, outputs(params))
    close(result.loss, loss(params))
    for name, gradient in jax.grad(loss)(params).items():
        close(result[f"d_{name}"], gradient)


def test_maml() -> None:
    example = load("maml")
    alpha, beta, iterations, tasks, steps = 0.05, 0.1, 3, 2, 2
    prog, I, K, S = example.build(hidden=4, alpha=alpha, beta=beta, dtype=tp.float64)
    given, w = example.data(iterations, tasks), example.initial(hidden=4)

    def loss(w: dict[str, Array], x: Array, y: Array) -> Array:
        h = jnp.tanh(x[:, None] @ w["layers.0.weight"].T + w["layers.0.bias"])
        return jnp.mean(((h @ w["layers.1.weight"].T + w["layers.1.bias"])[:, 0] - y) ** 2)

    def after(w: dict[str, Array], x: Array, y: Array, x_test: Array, y_test: Array) -> Array:
        for _ in range(steps):
            w = jax.tree.map(lambda v, g: v - alpha * g, w, jax.grad(loss)(w, x, y))
        return loss(w, x_test, y_test)

    def mean(w: dict[str, Array], i: int) -> Array:
        return jnp.mean(jnp.stack([after(w, *(value[i, k] for value in given.values())) for k in range(tasks)]))

    result = prog.evaluate({I: iterations, K: tasks, S: steps}, **given, **w)
    for i in range(iterations):
        value, gradients = jax.value_and_grad(mean)(w, i)
        close(result.after[i], value)
        w = jax.tree.map(lambda v, g: v - beta * g, w, gradients)
    for name, v in w.items():
        close(result[name], v)


def test_lstm_training() -> None:
    example = load("lstm_training")
    hidden, lr, iterations = 3, 0.4, 4
    prog, I, T = example.build(hidden, lr, dtype=tp.float64)
    params = example.initial(hidden)
    x = np.sin(np.arange(6.0))

    def loss(p: dict[str, Array]) -> Array:
        h = c = jnp.zeros(hidden)
        errors = []
        for sample, following in itertools.pairwise(x):
            gates = p["W"] @ jnp.concatenate([jnp.array([sample]), h]) + p["b"]
            entering, kept, shown, candidate = gates.reshape(4, hidden)
            c = jax.nn.sigmoid(kept) * c + jax.nn.sigmoid(entering) * jnp.tanh(candidate)
            h = jax.nn.sigmoid(shown) * jnp.tanh(c)
            errors.append(p["w"] @ h - following)
        return jnp.mean(jnp.stack(errors) ** 2)

    result = prog.evaluate({I: iterations, T: len(x)}, x=x, **params)
    losses = []
    for _ in range(iterations):
        value, gradient = jax.value_and_grad(loss)(params)
        losses.append(value)
        params = {name: params[name] - lr * gradient[name] for name in params}

    close(result.losses, losses)
    assert [record.point["i"] for record in result.emits["loss"]] == list(range(iterations))
    close([record.value for record in result.emits["loss"]], losses)
    for name, value in params.items():
        close(result[f"final_{name}"], value)


@pytest.mark.parametrize("w", [1, 3, 20])
def test_attention(rng: np.random.Generator, w: int) -> None:
    steps, d = 7, 3
    prog, T = load("attention").build(d, w, dtype=tp.float64)
    q, k, v, target = rng.normal(size=(4, steps, d))
    key, query = np.arange(steps), np.arange(steps)[:, None]
    masks = {
        "causal": key <= query,
        "sliding": (key <= query) & (key > query - w),
        "look_ahead": key >= query,
        "two_sided": abs(key - query) <= w,
    }

    def attend(q: Array, k: Array, v: Array, mask: Array) -> Array:
        return jax.nn.softmax(jnp.where(mask, q @ k.T / math.sqrt(d), -jnp.inf)) @ v

    def loss(q: Array, k: Array, v: Array, mask: Array) -> Array:
        return jnp.sum((attend(q, k, v, mask) - target) ** 2)

    result = prog.evaluate({T: steps}, q=q, k=k, v=v, target=target)
    for name, mask in masks.items():
        close(result[name], attend(q, k, v, mask))
        gradients = jax.grad(loss, argnums=(0, 1, 2))(q, k, v, mask)
        for operand, gradient in zip("qkv", gradients, strict=True):
            close(result[f"{name}_d{operand}"], gradient)


WORDS = [("kitten", "sitting"), ("intention", "execution"), ("abc", "abc"), ("a", "xyz"), ("flaw", "lawn")]


@pytest.mark.parametrize(("a", "b"), WORDS)
def test_edit_distance(a: str, b: str) -> None:
    example = load("edit_distance")
    prog, I, J = example.build(dtype=tp.float64)
    costs = {"insert": 1.0, "delete": 1.1, "substitute": 1.3}

    def distance(costs: dict[str, float]) -> Array:
        """The textbook recursion, from the end of the words."""

        def least(i: int, j: int) -> Array:
            if i == 0 or j == 0:
                return i * costs["delete"] + j * costs["insert"]
            if (i, j) not in known:
                change = 0 if a[i - 1] == b[j - 1] else costs["substitute"]
                ways = [least(i - 1, j - 1) + change, least(i - 1, j) + costs["delete"]]
                known[i, j] = jnp.min(jnp.stack([*ways, least(i, j - 1) + costs["insert"]]))
            return known[i, j]

        known: dict[tuple[int, int], Array] = {}
        return least(len(a), len(b))

    result = prog.evaluate({I: len(a), J: len(b)}, a=example.letters(a), b=example.letters(b), **costs)
    assert result.D.shape == (len(a) + 1, len(b) + 1)
    close(result.distance, distance(costs))
    counts = jax.grad(distance)(costs)
    close(result.inserted, counts["insert"])
    close(result.deleted, counts["delete"])
    close(result.substituted, counts["substitute"])


def test_hmm(rng: np.random.Generator) -> None:
    states, symbols, steps = 3, 4, 6
    prog, T = load("hmm").build(states, symbols, dtype=tp.float64)
    log_pi = np.log(rng.dirichlet(np.ones(states)))
    log_A = np.log(rng.dirichlet(np.ones(states), states))
    log_B = np.log(rng.dirichlet(np.ones(symbols), states))
    o = rng.integers(symbols, size=steps)
    paths = np.array(list(itertools.product(range(states), repeat=steps)))

    def of_every_path(log_b: Array) -> Array:
        """The log-probability of every path there is, together with the observations."""
        moves = log_A[paths[:, :-1], paths[:, 1:]].sum(1)
        return log_pi[paths[:, 0]] + moves + log_b[jnp.arange(steps), paths].sum(1)

    log_b = log_B[:, o].T
    probabilities = np.asarray(of_every_path(log_b))
    weights = np.exp(probabilities - np.logaddexp.reduce(probabilities))
    marginals = np.stack([weights @ (paths == s) for s in range(states)], 1)

    result = prog.evaluate({T: steps}, log_pi=log_pi, log_A=log_A, log_B=log_B, o=o)
    close(result.log_likelihood, np.logaddexp.reduce(probabilities))
    close(result.posterior, marginals)
    close(result.gradient, jax.grad(lambda log_b: logsumexp(of_every_path(log_b)))(log_b))
    close(result.gradient, result.posterior)
    assert result.path.tolist() == paths[probabilities.argmax()].tolist()
    close(result.path_log_probability, probabilities.max())


@pytest.mark.parametrize("labels", [[1], [1, 2], [2, 2], [2, 1, 2]])
def test_ctc(rng: np.random.Generator, labels: list[int]) -> None:
    example = load("ctc")
    symbols, steps = 3, 5
    prog, T, S = example.build(symbols, dtype=tp.float64)
    places, logits = example.with_blanks(labels), rng.normal(size=(steps, symbols))
    assert places.tolist() == [0, *(symbol for label in labels for symbol in (label, 0))]

    def says(symbols: tuple[int, ...]) -> list[int]:
        return [symbol for symbol, _ in itertools.groupby(symbols) if symbol != 0]

    ways = np.array([way for way in itertools.product(range(symbols), repeat=steps) if says(way) == labels])

    def loss(logits: Array) -> Array:
        return -logsumexp(jax.nn.log_softmax(logits)[jnp.arange(steps), ways].sum(1))

    result = prog.evaluate({T: steps, S: len(places)}, logits=logits, places=places)
    close(result.loss, loss(logits))
    close(result.gradient, jax.grad(loss)(logits))


def test_td_learning(rng: np.random.Generator) -> None:
    alpha, gamma, episodes, steps = 0.2, 0.9, 6, 12
    prog, I, T = load("td_learning").build(alpha, gamma, dtype=tp.float64)
    V = np.array([0, *rng.uniform(size=5), 0])
    result = prog.evaluate({I: episodes, T: steps}, V0=V, seed=3)

    walks = result.s
    assert walks.shape == (episodes, steps + 1)
    assert (walks[:, 0] == 3).all()
    ended = 0
    for walk, at_start in zip(walks, result.V, strict=True):
        close(at_start, V)
        for s, following in itertools.pairwise(walk):
            if s in (0, 6):
                assert following == s
                ended += 1
            else:
                assert abs(following - s) == 1
                V[s] += alpha * ((following == 6) + gamma * V[following] - V[s])
    assert ended > 0
    close(result.final_V, V)


def test_hypergradient() -> None:
    example = load("hypergradient")
    prog, I = example.build(dtype=tp.float64)
    given = example.data()
    lr, iterations = 0.3, 4

    def loss(w: Array, X: Array, y: Array) -> Array:
        return jnp.mean((jnp.tanh(X @ w) - y) ** 2)

    def outcome(lr: Array, w: Array) -> tuple[Array, list[Array]]:
        losses = []
        for _ in range(iterations):
            value, gradient = jax.value_and_grad(loss)(w, given["X"], given["y"])
            losses.append(value)
            w = w - lr * gradient
        return loss(w, given["X_valid"], given["y_valid"]), losses

    result = prog.evaluate({I: iterations}, lr=lr, **given)
    differentiated = jax.value_and_grad(outcome, argnums=(0, 1), has_aux=True)
    (value, losses), (d_lr, d_w0) = differentiated(lr, given["w0"])
    close(result.losses, losses)
    close(result.outcome, value)
    close(result.d_lr, d_lr)
    close(result.d_w0, d_w0)
