"""Optimisers against PyTorch's, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tempo as tp
from tempo import nn, optim
from tempo.optim import optimisers

RNG = np.random.default_rng(0)
STEPS = 7
INITIAL = {name: RNG.normal(size=shape) for name, shape in {"a": (3, 2), "b": (4,), "c": ()}.items()}
DATA = {name: RNG.normal(size=(STEPS, *array.shape)) for name, array in INITIAL.items()}


def trained(optimiser: optim.Optimiser, most: float | None = None, backend: str = "numpy") -> dict[str, np.ndarray]:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        with prog.training(over=i):
            parameters = {name: prog.param(name, x.shape, "float64", init=x) for name, x in INITIAL.items()}
        wanted = {name: prog.input(f"x{name}", x.shape, i, "float64") for name, x in INITIAL.items()}
        losses = [tp.sum(tp.square(tp.sin(w) - wanted[name])) for name, w in parameters.items()]
        gradients = tp.grad(losses[0] + losses[1] + losses[2], parameters)
        if most is not None:
            gradients = optim.clip_by_global_norm(gradients, most)
        optimiser.update(parameters, gradients)
        for name, parameter in parameters.items():
            prog.output(name, parameter)
    return prog.compile({I: STEPS}, backend)(**{f"x{name}": x for name, x in DATA.items()}).outputs


def expected(make: Callable[..., Any], most: float | None = None, schedule: Any = None) -> dict[str, np.ndarray]:
    parameters = {name: torch.tensor(x, requires_grad=True) for name, x in INITIAL.items()}
    optimiser = make(list(parameters.values()))
    scheduler = schedule(optimiser) if schedule else None
    for n in range(STEPS):
        optimiser.zero_grad()
        for name, w in parameters.items():
            ((torch.sin(w) - torch.tensor(DATA[name][n])) ** 2).sum().backward()
        if most is not None:
            torch.nn.utils.clip_grad_norm_(list(parameters.values()), most)
        optimiser.step()
        if scheduler:
            scheduler.step()
    return {name: w.detach().numpy() for name, w in parameters.items()}


CASES = {
    "sgd": (optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (optim.SGD(0.1, 0.9, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1)),
    "nesterov": (optim.SGD(0.1, 0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
    "rmsprop": (optim.RMSProp(0.01), lambda p: torch.optim.RMSprop(p, 0.01)),
    "rmsprop with momentum": (
        optim.RMSProp(0.01, momentum=0.5),
        lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    ),
    "adam": (optim.Adam(0.1), lambda p: torch.optim.Adam(p, 0.1)),
    "adam with decay": (optim.Adam(0.1, weight_decay=0.3), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.3)),
    "adamw": (optim.AdamW(0.1, weight_decay=0.3), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.3)),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_pytorch(case: str) -> None:
    ours, theirs = CASES[case]
    found, wanted = trained(ours), expected(theirs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name][-1], array, rtol=1e-12)


def test_large_parameters_are_updated_on_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    together = trained(optim.Adam(0.1))
    monkeypatch.setattr(optimisers, "SMALL", 4)
    apart = trained(optim.Adam(0.1))
    for name, array in together.items():
        np.testing.assert_allclose(apart[name], array, rtol=1e-12)


def test_the_compiled_update() -> None:
    found, wanted = trained(optim.Adam(0.1), backend="jax"), expected(CASES["adam"][1])
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name][-1], array, rtol=1e-9)


def test_long_gradients_are_made_shorter() -> None:
    found, wanted = trained(optim.SGD(0.1), most=0.5), expected(CASES["sgd"][1], most=0.5)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name][-1], array, rtol=1e-12)


def test_a_rate_that_changes() -> None:
    found = trained(optim.SGD(optim.linear(0.1, 0.05, 4)))
    wanted = expected(CASES["sgd"][1], schedule=lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.5, 4))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name][-1], array, rtol=1e-12)


def test_schedules() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        prog.output("linear", optim.linear(1.0, 0.2, 4)(i.value))
        prog.output("cosine", optim.cosine(1.0, 0.0, 4)(i.value))
        prog.output("warm", optim.warmup(2, optim.linear(1.0, 0.0, 4))(i.value))
        prog.output("constant", optim.warmup(4, 2.0)(i.value))
    found = prog.evaluate({I: 6})
    np.testing.assert_allclose(found.linear, [1, 0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(found.cosine, [1, 0.853553, 0.5, 0.146447, 0, 0], atol=1e-6)
    np.testing.assert_allclose(found.warm, [0, 0.5, 1, 0.75, 0.5, 0.25], rtol=1e-6)
    np.testing.assert_allclose(found.constant, [0, 0.5, 1, 1.5, 2, 2], rtol=1e-6)


def test_steps_are_counted_over_all_dims() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        m, M = prog.dim("m")
        with prog.training(over=(i, m)):
            w = prog.param("w", init=0.0)
        optim.SGD(lambda count: 1.0 * count).update({"w": w}, {"w": tp.constant(-1.0)})
        prog.output("w", w[0:I, 0:M])
    # After steps 0, 1, 2, ... it is at 0, 0 + 1, 0 + 1 + 2, ...
    assert prog.evaluate({I: 2, M: 3}).w.tolist() == [[0, 0, 1], [3, 6, 10]]


def test_half_precision_parameters_have_averages_in_single_precision() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        with prog.training(over=i):
            w = prog.param("w", (2,), "bfloat16", init=np.ones(2))
        optim.Adam(0.1).update({"w": w}, {"w": w * 1})
        prog.output("w", w[I])
    found = prog.evaluate({I: 3}).w
    assert found.dtype == tp.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), 0.7, atol=0.02)


def test_mistakes() -> None:
    with tp.Program() as prog:
        i, _ = prog.dim("i")
        plain = prog.param("plain", init=0.0)
        with prog.training(over=i):
            w = prog.param("w", init=0.0)
        with pytest.raises(tp.errors.ProgramError, match="plain is no state"):
            optim.SGD(0.1).update({"plain": plain}, {"plain": plain})
        with pytest.raises(tp.errors.ProgramError, match="there is no gradient for w"):
            optim.SGD(0.1).update({"w": w}, {})
        optim.Adam(0.1).update({"w": w}, {"w": w * 1})
        with pytest.raises(tp.errors.ProgramError) as caught:
            optim.Adam(0.1).update({"w": w}, {"w": w * 1})
        assert caught.value.message == "w has a next value already: it is updated twice"
    with pytest.raises(tp.errors.ProgramError) as caught:
        optim.SGD(0.1, nesterov=True)
    assert caught.value.message == "SGD: nesterov looks ahead along the momentum, which is 0"


def test_two_modules_with_an_optimiser_each() -> None:
    """Their parameters have the same names; what the optimisers keep of them does not."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        with prog.training(over=i):
            nets = {name: nn.Linear(2, 1).declare(prog, name) for name in "ab"}
        for name, net in nets.items():
            loss = tp.sum(tp.square(net(tp.ones(2)) - 1))
            optim.Adam(0.1).update(net.parameters(), tp.grad(loss, net.parameters()))
            prog.output(name, loss)
    found = prog.evaluate({I: 60})
    assert found.a[-1] < 0.01 and found.b[-1] < 0.01


def test_schedules_of_few_steps() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        prog.output("now", optim.warmup(0, 2.0)(i.value))
        prog.output("then", optim.warmup(0, optim.linear(1.0, 0.0, 2))(i.value))
        for steps in (0, 1):
            prog.output(f"linear{steps}", optim.linear(1.0, 0.2, steps)(i.value))
            prog.output(f"cosine{steps}", optim.cosine(1.0, 0.2, steps)(i.value))
    found = prog.evaluate({I: 3})
    np.testing.assert_allclose(found.now, [2, 2, 2])
    np.testing.assert_allclose(found.then, [1, 0.5, 0])
    for name, first in (("linear0", 0.2), ("cosine0", 0.2), ("linear1", 1), ("cosine1", 1)):
        np.testing.assert_allclose(found[name], [first, 0.2, 0.2], rtol=1e-6, err_msg=name)


def test_no_gradients_are_not_clipped() -> None:
    assert optim.clip_by_global_norm({}, 1.0) == {}


def test_schedules_of_as_many_steps_as_there_are() -> None:
    """A bound's number is not known while the program is written."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        half = prog.input("half", dtype="int32")
        prog.output("linear", optim.linear(1.0, 0.0, I)(i.value))
        prog.output("cosine", optim.cosine(1.0, 0.0, I - 1)(i.value))
        prog.output("warmup", optim.warmup(I // 2, optim.linear(1.0, 0.0, half))(i.value))
    found = prog.evaluate({I: 4}, half=2)
    np.testing.assert_allclose(found.linear, [1, 0.75, 0.5, 0.25])
    np.testing.assert_allclose(found.cosine, [1, 0.75, 0.25, 0], atol=1e-7)
    np.testing.assert_allclose(found.warmup, [0, 0.5, 1, 0.5])
    np.testing.assert_allclose(prog.compile({I: 4})(half=2).warmup, found.warmup)


TENSORS: dict[str, tuple[Callable[..., optim.Optimiser], dict[str, float]]] = {
    "sgd": (optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "rmsprop": (optim.RMSProp, {"decay": 0.9, "epsilon": 1e-3, "momentum": 0.5, "weight_decay": 0.1}),
    "adam": (optim.Adam, {"first": 0.8, "second": 0.9, "epsilon": 1e-3, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"first": 0.8, "second": 0.9, "epsilon": 1e-3, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("case", TENSORS)
def test_settings_are_numbers_or_tensors(case: str) -> None:
    make, settings = TENSORS[case]

    def last(of: Callable[[tp.Program, str, float], Any], **inputs: float) -> np.ndarray:
        with tp.Program() as prog:
            i, I = prog.dim("i")
            with prog.training(over=i):
                w = prog.param("w", (3,), init=np.arange(3.0))
            found = {name: of(prog, name, value) for name, value in settings.items()}
            if "first" in found:
                found["betas"] = (found.pop("first"), found.pop("second"))
            make(0.1, **found).update({"w": w}, tp.grad(tp.sum(tp.square(w - 1)), {"w": w}))
            prog.output("w", w.final)
        return prog.evaluate({I: 5}, **inputs).w

    numbers = last(lambda prog, name, value: value)
    tensors = last(lambda prog, name, value: prog.input(name), **settings)
    np.testing.assert_allclose(tensors, numbers, rtol=1e-5, atol=1e-7)


def test_what_is_given_to_optimisers() -> None:
    with tp.Program() as prog:
        i, _ = prog.dim("i")
        with prog.training(over=i):
            w = prog.param("w", (2,), init=np.zeros(2))
        gradient = tp.grad(tp.sum(tp.square(w)), w)
        for parameters, gradients, message in (
            ([w], {"w": gradient}, "the parameters are a list, not a dict by name"),
            ({"w": w}, gradient, "the gradients are a tensor, not a dict by name"),
            ({"w": w}, {"w": tp.sum(gradient)}, "the gradient for w has the shape (), w has (2,)"),
        ):
            with pytest.raises(tp.TempoError) as caught:
                optim.SGD(0.1).update(parameters, gradients)  # type: ignore[arg-type]
            assert caught.value.message == message
        with pytest.raises(tp.errors.ProgramError) as caught:
            optim.clip_by_global_norm([gradient], 1.0)  # type: ignore[arg-type]
        assert caught.value.message == "the gradients are a list, not a dict by name"
        with pytest.raises(tp.errors.ProgramError) as caught:
            optim.clip_by_global_norm({"w": gradient}, -1.0)
        assert caught.value.message == "clip_by_global_norm: no gradient is as short as -1.0"
        # An array is a gradient that is always the same.
        optim.SGD(0.1).update({"w": w}, {"w": np.ones(2)})  # type: ignore[dict-item]
        prog.output("w", w)
        prog.output("none", optim.global_norm({}))
    found = prog.evaluate({"I": 3})
    np.testing.assert_allclose(found.w, [[0, 0], [-0.1, -0.1], [-0.2, -0.2], [-0.3, -0.3]], rtol=1e-6)
    assert found.none == 0


@pytest.mark.parametrize("betas", [(0.9, 1.0), (-0.1, 0.9), 0.9])
def test_averages_that_are_none(betas: Any) -> None:
    with pytest.raises(tp.errors.ProgramError) as caught:
        optim.AdamW(0.1, betas)
    assert caught.value.message == f"AdamW: betas are {betas}, not two numbers from 0 to below 1"
