"""A small transformer, whole: trained by teacher forcing, then run step by step on its own tokens."""

import numpy as np

import tempo as tp
from tempo import nn

VOCABULARY, SIZE = 7, 16


class Block(nn.Module):
    def __init__(self, window):
        self.attn_norm = nn.RMSNorm(SIZE)
        self.attn = nn.Attention(SIZE, heads=4, kv_heads=2, window=window, rope=nn.RoPE(SIZE // 4))
        self.mlp_norm = nn.RMSNorm(SIZE)
        self.mlp = nn.SwiGLU(SIZE, 2 * SIZE)

    def __call__(self, x, t):
        x = x + self.attn(self.attn_norm(x), t)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    def __init__(self):
        self.embed = nn.Embedding(VOCABULARY, SIZE)
        self.layers = [Block(window=None), Block(window=3)]
        self.norm = nn.RMSNorm(SIZE)
        self.head = nn.Linear(SIZE, VOCABULARY, bias=False)

    def __call__(self, token, t):
        x = self.embed(token)
        for layer in self.layers:
            x = layer(x, t)
        return self.head(self.norm(x))


def training(model, rate=0.3):
    """Inputs: tokens (B, T + 1). Outputs: the loss (I,), and the parameters after the last iteration."""
    with tp.Program("training") as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        tokens = prog.input("tokens", T + 1, domain=b, dtype="int32")
        with prog.training(over=i):
            net = model.declare(prog)
        logits = net(tokens.space[t], t)
        loss = tp.mean(nn.cross_entropy(logits, tokens.space[t + 1])[i, 0:B, 0:T])
        gradients = tp.grad(loss, net.parameters())
        for name, parameter in net.parameters().items():
            parameter.next = parameter - rate * gradients[name]
            prog.output(name, parameter.final)
        prog.output("loss", loss)
    return prog, I, B, T


def generation(model):
    """Inputs: the first token and the parameters. Outputs: token (T + 1,), each the likeliest after those before."""
    with tp.Program("generation") as prog:
        t, T = prog.dim("t")
        net = model.declare(prog, init=False)
        token = prog.recurrent("token", domain=t, dtype="int32")
        token[0] = prog.input("first", dtype="int32")
        token[t + 1] = tp.argmax(net(token, t)).astype("int32")
        prog.output("token", token)
    return prog, T


def test_trains_and_generates():
    # What follows a 1 or a 4 depends on what came before it.
    sequences = [[1, 2, 1, 3, 1, 2, 1, 3, 1], [5, 4, 4, 5, 4, 4, 5, 4, 4]]
    model = Transformer()
    prog, I, B, T = training(model)
    trained = prog.compile({I: 100, B: 2, T: 8})(tokens=sequences)
    assert abs(trained.loss[0] - np.log(VOCABULARY)) < 1
    assert trained.loss[99] < 0.05
    assert trained.loss.shape == (100,)

    prog, T = generation(model)
    weights = {name: trained[name] for name in model.parameters()}
    run = prog.compile({T: 8})
    for sequence in sequences:
        assert run(first=sequence[0], **weights).token.tolist() == sequence


def test_training_is_what_the_oracle_says():
    prog, I, B, T = training(Transformer())
    bounds, tokens = {I: 2, B: 2, T: 4}, np.random.default_rng(0).integers(0, VOCABULARY, (2, 5))
    expected, found = prog.evaluate(bounds, tokens=tokens), prog.compile(bounds)(tokens=tokens)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
