"""Modules: what they are, what their parameters are called, and how programs share them."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import tempo as tp
from tempo import nn


class Block(nn.Module):
    def __init__(self, size):
        self.norm = nn.LayerNorm(size)
        self.out = nn.Linear(size, size, bias=False)

    def __call__(self, x):
        return x + self.out(self.norm(x))


class Net(nn.Module):
    def __init__(self, size=3):
        self.size = size
        self.layers = [Block(size), Block(size)]
        self.heads = {"policy": nn.Linear(size, 2), "value": nn.Linear(size, 1)}
        self.offsets = (nn.Parameter((size,), nn.init.zeros),)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.heads["policy"](x + self.offsets[0])


NAMES = [
    "layers.0.norm.weight",
    "layers.0.norm.bias",
    "layers.0.out.weight",
    "layers.1.norm.weight",
    "layers.1.norm.bias",
    "layers.1.out.weight",
    "heads.policy.weight",
    "heads.policy.bias",
    "heads.value.weight",
    "heads.value.bias",
    "offsets.0",
]


def test_names_are_those_of_the_attributes():
    model = Net()
    assert list(model.parameters()) == NAMES
    assert model.parameters()["heads.policy.weight"].shape == (2, 3)
    with tp.Program("names") as prog:
        net = model.declare(prog)
    assert list(net.parameters()) == list(prog.params) == NAMES
    assert all(net.parameters()[name] is tensor for name, tensor in prog.params.items())
    assert list(net.layers[1].parameters()) == ["norm.weight", "norm.bias", "out.weight"]
    assert net.size == 3


def test_a_prefix_tells_two_models_apart():
    with tp.Program("prefix") as prog:
        actor = nn.Linear(2, 1).declare(prog, prefix="actor")
        nn.Linear(2, 1).declare(prog, prefix="critic")
    assert list(prog.params) == ["actor.weight", "actor.bias", "critic.weight", "critic.bias"]
    assert list(actor.parameters()) == ["weight", "bias"]


def test_one_model_in_several_programs():
    model = nn.Linear(2, 1)
    with tp.Program("training") as train:
        i, I = train.dim("i")
        x = train.input("x", 2)
        with train.training(over=i):
            net = model.declare(train)
        loss = tp.sum(tp.square(net(x) - 1.0))
        gradients = tp.grad(loss, net.parameters())
        for name, parameter in net.parameters().items():
            parameter.next = parameter - 0.1 * gradients[name]
            train.output(name, parameter.final)
        train.output("loss", loss)
    with tp.Program("use") as use:
        x = use.input("x", 2)
        use.output("y", model.declare(use, init=False)(x))

    trained = train.compile({I: 40})(x=[1.0, 2.0])
    assert trained.loss[39] < 1e-3 < trained.loss[0]
    y = use.compile()(x=[1.0, 2.0], **{name: trained[name] for name in model.parameters()}).y
    np.testing.assert_allclose(y, [1.0], atol=0.03)


def test_what_occurs_twice_is_shared():
    class Tied(nn.Module):
        def __init__(self):
            self.embed = nn.Embedding(4, 3)
            self.again = self.embed
            self.head = nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

        def __call__(self, token):
            return self.head(self.again(token))

    with tp.Program("tied") as prog:
        token = prog.input("token", dtype="int32")
        net = Tied().declare(prog, init=False)
        prog.output("y", net(token))
    assert list(prog.params) == list(net.parameters()) == list(Tied().parameters()) == ["embed.weight"]
    table = np.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(prog.evaluate(token=2, **{"embed.weight": table}).y, table @ table[2])


def test_initialisers_and_dtypes_can_be_changed():
    model = nn.Linear(2, 2)
    model.weight.init = nn.init.constant(3.0)
    model.bias.dtype = tp.float64
    with tp.Program("changed") as prog:
        net = model.declare(prog, dtype=tp.float16)
        prog.output("weight", net.weight)
        prog.output("bias", net.bias)
    result = prog.evaluate()
    assert (result.weight.dtype, result.bias.dtype) == (np.float16, np.float64)
    np.testing.assert_array_equal(result.weight, np.full((2, 2), 3))


def test_other_tensors_are_no_parameters():
    class Shifted(nn.Module):
        def __init__(self, by):
            self.by = by
            self.weight = nn.Parameter((), nn.init.ones)

    with tp.Program("other") as prog:
        net = Shifted(prog.input("by")).declare(prog)
    assert list(net.parameters()) == ["weight"]


def test_modules_must_be_declared():
    model = nn.Linear(2, 1)
    with tp.Program("undeclared") as prog, pytest.raises(tp.errors.ProgramError) as caught:
        model(prog.input("x", 2))
    first, here, hint = str(caught.value).splitlines()
    assert first == "a parameter of shape (1, 2) has no value: its module was not declared in a program"
    assert here.endswith('model(prog.input("x", 2))')
    assert hint == "  hint: net = model.declare(prog), then call net in place of model"


def test_names_must_be_free():
    with tp.Program("twice") as prog:
        nn.Linear(2, 1).declare(prog)
        with pytest.raises(tp.errors.ProgramError, match="already has a tensor named 'weight'"):
            nn.Linear(2, 1).declare(prog)


class Pair(NamedTuple):
    scale: Any
    shift: Any


class Affine(nn.Module):
    def __init__(self):
        self.pair = Pair(nn.Parameter((2,), nn.init.constant(3.0)), nn.Parameter((2,), nn.init.ones))

    def __call__(self, x):
        return self.pair.scale * x + self.pair.shift


def test_named_tuples_hold_parameters():
    with tp.Program("pair") as prog:
        net = Affine().declare(prog)
        prog.output("y", net(tp.ones(2)))
    assert list(net.parameters()) == list(prog.params) == list(Affine().parameters()) == ["pair.0", "pair.1"]
    assert prog.evaluate().y.tolist() == [4, 4]


def test_with_parameters():
    """Other tensors in place of parameters, wherever these occur; the rest, and the module itself, stay as they are."""

    class Tied(nn.Module):
        def __init__(self):
            self.first = nn.Linear(2, 2)
            self.layers = [Affine(), nn.Linear(2, 2, bias=False)]
            self.layers[1].weight = self.first.weight

        def __call__(self, x):
            for layer in (self.first, *self.layers):
                x = layer(x)
            return x

    with tp.Program("with_parameters") as prog:
        k, K = prog.dim("k")
        net = Tied().declare(prog)
        weight = prog.input("weight", (2, 2), domain=k)
        scale = prog.input("scale", 2)
        other = net.with_parameters({"first.weight": weight, "layers.0.pair.0": scale})
        again = other.with_parameters({"first.bias": tp.zeros(2)})
        prog.output("y", again(tp.constant([1.0, 2.0])))
        prog.output("g", tp.grad(tp.sum(again(tp.constant([1.0, 2.0]))), again.parameters())["layers.0.pair.0"])
    assert list(other.parameters()) == list(net.parameters())
    assert other.parameters()["first.weight"] is other.layers[1].weight is weight
    assert list(other.layers[0].parameters().values()) == [scale, net.layers[0].pair.shift]
    assert net.parameters()["first.weight"] is prog.params["first.weight"]
    w, s = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [1.0, 0.0]]]), np.array([2.0, 3.0])
    result = prog.evaluate({K: 2}, weight=w, scale=s)
    np.testing.assert_allclose(result.y, [w @ (s * (w @ [1.0, 2.0]) + 1) for w in w])
    np.testing.assert_allclose(result.g, sum(w.sum(0) * (w @ [1.0, 2.0]) for w in w))


def test_with_parameters_that_do_not_fit():
    with tp.Program("wrong") as prog:
        net = nn.Linear(2, 1).declare(prog)
        with pytest.raises(tp.errors.ProgramError) as caught:
            net.with_parameters({"wieght": net.weight})
        assert caught.value.message == "Linear has no parameter 'wieght'"
        assert caught.value.hint == "names are those of .parameters(), such as 'weight'"
        with pytest.raises(tp.errors.ShapeError) as caught:
            net.with_parameters({"weight": net.bias})
        assert caught.value.message == "Linear: weight has shape (1, 2), not (1,)"
