"""A small language model of characters: trained on a page of text, interrupted, resumed, and asked to go on writing.

Dims: iterations i of the training, texts b of a minibatch, characters t of a text. Every character is predicted from
those before it in the text, which are known while training: nothing goes from step to step, and the compiler computes
all steps of t at once. When the model writes, each character is chosen from the prediction before it: the same
modules, one step after the other, with keys and values kept.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

import tempo as tp
from tempo import llm, nn, optim

TEXT = Path(__file__).with_suffix(".txt")  # a page that was written for this example


def config(characters, layers=2, width=64, heads=4):
    """A decoder in the manner of Llama, over so many characters."""
    return llm.Config(
        architecture="llama",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        hidden=2 * width,
        vocabulary=characters,
        context=1024,
        windows=(None,) * layers,
        norm="rms",
        norm_epsilon=1e-6,
        activation="silu",
        gated=True,
        rope_theta=10000.0,
        rope_scaling=None,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        tied=False,
        dtype=tp.float32,
        beginning_of_text=None,
        end_of_text=(),
    )


def build(decoder, length, rate=3e-3):
    """The training and its bounds. Input: text, (length,) integers. Emits the loss of every iteration; outputs: the
    losses (I,) and the parameters after the last iteration, by their names."""
    with tp.Program("character_model") as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        text = prog.input("text", length, dtype="int32")
        with prog.training(over=i):
            net = decoder.declare(prog)

        first = tp.random.randint(0, length, domain=(i, b))  # after the end, a text goes on from the beginning
        logits, _ = net(tp.take(text, (first + t) % length), t)
        losses = nn.cross_entropy(logits, tp.take(text, (first + t + 1) % length))
        loss = tp.mean(losses[i, 0:B, 0:T])

        optim.Adam(rate, betas=(0.9, 0.99)).update(net.parameters(), tp.grad(loss, net.parameters()))
        prog.emit("loss", loss)
        prog.output("losses", loss)
        for name, parameter in net.parameters().items():
            prog.output(name, parameter.final)
    return prog, I, B, T


def train(run, text, path, save=None, show=50):
    """What a training gives, or what is left of one that was loaded; it is saved after iteration ``save``."""
    stream = run.stream(text=text)
    for record in stream:
        i = record.point["i"]
        if i % show == 0:
            print(f"iteration {i:>3}: loss {record.value:.3f}")
        if i == save:
            run.save(path)
    return stream.result


def write(shape, parameters, prompt, count):
    """What the model goes on with."""
    names = llm.Decoder(shape).parameters()
    model = llm.LanguageModel(shape, {name: parameters[name] for name in names})
    (written,) = llm.generate(model, prompt, count, temperature=0.5)
    return written.tokens


def main(iterations=200, texts=8, steps=96, count=86, show=25, **sizes):
    page = TEXT.read_text(encoding="utf-8")
    characters = sorted(set(page))
    text = np.array([characters.index(c) for c in page], np.int32)
    shape = config(len(characters), **sizes)

    prog, I, B, T = build(llm.Decoder(shape), len(text))
    run = prog.compile({I: iterations, B: texts, T: steps})
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "training.safetensors"
        start = time.perf_counter()
        trained = train(run, text, path, iterations // 2, show)
        print(f"trained in {time.perf_counter() - start:.0f} s; the last loss is {trained.losses[-1]:.3f}")

        # Another day, from the file. It could be another process as well.
        run.load(path)
        resumed = train(run, text, path, show=show)
        same = all(np.array_equal(resumed[name], array) for name, array in trained.outputs.items())
        print(f"resumed in the middle: {'the same, to the bit' if same else 'something else'}")

    prompt = "The mouse "
    written = write(shape, trained, [characters.index(c) for c in prompt], count)
    print(prompt + "".join(characters[token] for token in written))


if __name__ == "__main__":
    main()
