"""The same models as programs over time, for all instances at once: five of the seven.

Recursion in Python is the shortest way to write a model down, and the host has to run it for every instance, again for
every mini-batch. Where a model is a loop, or a loop over a stack or a queue of what is left to do, it can be a program:
a step is a step of all instances, what an instance decides is a number like any other, and nothing waits for the host.
It takes padding, and lengths to compare with.

    python examples/batching/programs.py [--size 32] [--count 16]
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import berxit
import bi_rnn
import drnn
import jax
import nested_rnn
import numpy as np
import stack_rnn

import tempo as tp


@dataclass
class AsProgram:
    """A model as a program, and how the program's arrays are made of instances and its results turned into theirs."""

    prog: tp.Program
    given: Callable[[list[Any]], tuple[dict[str, int], dict[str, np.ndarray]]]
    """The bounds, and the arrays."""
    results: Callable[[Any, list[Any]], list[Any] | None]
    """None if there was too little room, of which there is more from now on."""
    runs: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, instances, parameters):
        found = None
        while found is None:
            bounds, arrays = self.given(instances)
            key = tuple(bounds.values())
            if key not in self.runs:
                self.runs[key] = self.prog.compile(bounds)
            found = self.results(self.runs[key](**arrays, **parameters), instances)
        return found


def room(count):
    """For how many there should be room: the next multiple of 16, so that few programs are compiled."""
    return -(-count // 16) * 16


def padded(sequences, length):
    """Sequences of numbers as rows, filled up with zeros."""
    rows = np.zeros((len(sequences), length), np.int32)
    rows[np.arange(length) < np.array([len(sequence) for sequence in sequences])[:, None]] = np.concatenate(sequences)
    return rows


# -- BiRNN: two recurrences, one against time ---------------------------------------------------------------------


def bi_rnn_program(size):
    """Behind a sentence's end the state that comes from there is zero, which is what its last word starts from."""
    with tp.Program("bi_rnn") as prog:
        b, _ = prog.dim("b")
        t, T = prog.dim("t")
        word = prog.input("word", (), (b, t), dtype="int32")
        length = prog.input("length", (), b, dtype="int32")
        net = bi_rnn.BiRNN(size).declare(prog, init=False)
        there = prog.recurrent("there", size, (b, t))
        there[b, -1] = 0
        there[b, t] = net.there(word, there[b, t - 1])
        back = prog.recurrent("back", size, (b, t))
        back[b, T] = 0
        back[b, t] = tp.where(t < length, net.back(word, back[b, t + 1]), 0)
        prog.output("logits", net.classify(there, back))

    def given(sentences):
        steps = room(max(map(len, sentences)))
        length = np.array([len(sentence) for sentence in sentences], np.int32)
        return {"B": len(sentences), "T": steps}, {"word": padded(sentences, steps), "length": length}

    def results(found, sentences):
        return [list(logits[: len(words)]) for logits, words in zip(found.logits, sentences, strict=True)]

    return AsProgram(prog, given, results)


# -- NestedRNN: a recurrence over words inside of one over sentences -----------------------------------------------


def nested_rnn_program(size):
    """Where there is no word, or no sentence, the state stays."""
    with tp.Program("nested_rnn") as prog:
        b, _ = prog.dim("b")
        s, S = prog.dim("s")
        t, T = prog.dim("t")
        word = prog.input("word", (), (b, s, t), dtype="int32")
        words = prog.input("words", (), (b, s), dtype="int32")
        net = nested_rnn.NestedRNN(size).declare(prog, init=False)
        state = prog.recurrent("state", size, (b, s))
        h = prog.recurrent("h", size, (b, s, t))
        h[b, s, -1] = state
        h[b, s, t] = tp.where(t < words, net.word(word, h[b, s, t - 1]), h[b, s, t - 1])
        state[b, 0] = 0
        state[b, s + 1] = tp.where(words > 0, net.sentence(h[b, s, T - 1], state), state)
        prog.output("state", state[b, S])

    def given(documents):
        sentences, steps = max(map(len, documents)), room(max(len(s) for document in documents for s in document))
        whole = [[*document, *[[]] * (sentences - len(document))] for document in documents]
        flat = [sentence for document in whole for sentence in document]
        shape = len(documents), sentences
        words = np.array([len(sentence) for sentence in flat], np.int32)
        arrays = {"word": padded(flat, steps).reshape(*shape, steps), "words": words.reshape(shape)}
        return {"B": len(documents), "S": sentences, "T": steps}, arrays

    return AsProgram(prog, given, lambda found, _: list(found.state))


# -- StackRNN: what is on a stack are steps ------------------------------------------------------------------------


def stack_rnn_program(size, longest=50):
    """Every step pushes something, a word or a phrase: a stack has the numbers of steps, plus one."""
    with tp.Program("stack_rnn") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        words = prog.input("words", (longest,), b, dtype="int32")
        length = prog.input("length", (), b, dtype="int32")
        net = stack_rnn.StackRNN(size).declare(prog, init=False)
        embedded = net.embed(words)

        stack = prog.recurrent("stack", longest, (b, t), dtype="int32")
        depth = prog.recurrent("depth", (), (b, t), dtype="int32")
        read = prog.recurrent("read", (), (b, t), dtype="int32")
        pushed = prog.recurrent("pushed", size, (b, t))
        stack[b, 0], depth[b, 0], read[b, 0], pushed[b, -1] = 0, 0, 0, 0

        def on_stack(place):
            return pushed[b, -1:t].take(stack.take(tp.maximum(depth - place, 0)))

        below, top = on_stack(2), on_stack(1)
        ahead = embedded.take(tp.minimum(read, longest - 1))
        is_read = read >= length
        is_done = is_read & (depth < 2)
        reduces = (depth >= 2) & (is_read | (net.decide(below, top, ahead) > 0))
        pushed[b, t] = tp.where(reduces, net.reduce(below, top), ahead)
        depth[b, t + 1] = after = tp.where(is_done, depth, tp.where(reduces, depth - 1, depth + 1))
        read[b, t + 1] = tp.where(reduces | is_done, read, read + 1)
        stack[b, t + 1] = tp.where(~is_done & tp.equal(tp.arange(longest), after - 1), t + 1, stack)
        prog.stop(t, when=tp.all(is_done[0:B]))
        prog.output("state", pushed[b, -1:T].take(stack[b, T].space[0]))
        prog.output("actions", reduces.astype("int32"))

    def given(sentences):
        length = np.array([len(sentence) for sentence in sentences], np.int32)
        # Every word is pushed once, and all but one of what is pushed are reduced; the last step sees that.
        return {"B": len(sentences), "T": 2 * longest}, {"words": padded(sentences, longest), "length": length}

    def results(found, sentences):
        actions = found.actions.tolist()
        return [(found.state[n], actions[n][: 2 * len(words) - 1]) for n, words in enumerate(sentences)]

    return AsProgram(prog, given, results)


# -- DRNN: a queue of nodes that are left to be made -----------------------------------------------------------------


def drnn_program(size, lanes=1024):
    """In every round all nodes are made whose parents and siblings are known, each in a lane; of any instance.

    Those with children come first in the next round, as the first of these, then those with another sibling. If there
    are more than lanes, the program is run again with more of them."""
    with tp.Program("drnn") as prog:
        b, B = prog.dim("b")
        w, W = prog.dim("w")
        r, R = prog.dim("r")
        encoding = prog.input("encoding", size, b)
        net = drnn.DRNN(size).declare(prog, init=False)
        parent = prog.recurrent("parent", size, (w, r))
        before = prog.recurrent("before", size, (w, r))
        depth = prog.recurrent("depth", (), (w, r), dtype="int32")
        position = prog.recurrent("position", (), (w, r), dtype="int32")
        count = prog.recurrent("count", (), r, dtype="int32")
        parent[w, 0] = encoding[0:B].take(tp.minimum(w.value, B - 1))
        before[w, 0], depth[w, 0], position[w, 0], count[0] = 0, 0, drnn.SIBLINGS, B

        down, across, label, decision = net.node(parent, before)
        is_there = w < count
        has_children = is_there & (decision.space[0] > 0) & (depth < drnn.DEPTH)
        has_sibling = is_there & (decision.space[1] > 0) & (position < drnn.SIBLINGS)
        follow = tp.concatenate([has_children[0:W], has_sibling[0:W]])
        source = tp.argsort(~follow).space[w]
        is_child, lane = source < W, source % W
        parent[w, r + 1] = tp.where(is_child, down[0:W].take(lane), parent[0:W].take(lane))
        before[w, r + 1] = tp.where(is_child, 0, across[0:W].take(lane))
        depth[w, r + 1] = depth[0:W].take(lane) + tp.where(is_child, 1, 0)
        position[w, r + 1] = tp.where(is_child, 0, position[0:W].take(lane) + 1)
        count[r + 1] = following = tp.sum(follow)
        prog.stop(r, when=tp.equal(following, 0) | (following > W))
        prog.output("label", label)
        prog.output("has_children", has_children)
        prog.output("has_sibling", has_sibling)
        prog.output("left", count[R])

    def given(encodings):
        rounds = (drnn.DEPTH + 1) * (drnn.SIBLINGS + 1)
        return {"B": len(encodings), "W": max(lanes, len(encodings)), "R": rounds}, {"encoding": np.stack(encodings)}

    def results(found, encodings):
        nonlocal lanes
        if found.left:
            lanes *= 2
            return None
        roots = [[] for _ in encodings]
        places = roots
        # Rounds are rows: (rounds, lanes).
        labels = found.label.swapaxes(0, 1)
        for n, (below, beside) in enumerate(zip(found.has_children.T, found.has_sibling.T, strict=True)):
            nodes = [(label, []) for label in labels[n, : len(places)]]
            for siblings, node in zip(places, nodes, strict=True):
                siblings.append(node)
            places = [nodes[k][1] for k in np.flatnonzero(below)] + [places[k] for k in np.flatnonzero(beside)]
        return [siblings[0] for siblings in roots]

    return AsProgram(prog, given, results)


# -- Berxit: lanes that are filled again ---------------------------------------------------------------------------


def berxit_program(size, length=berxit.LENGTH, lanes=None):
    """A step is a layer of as many instances as there are lanes. Where one is certain, or has been through all layers,
    the next one that waits takes its lane: nothing is computed for those that are done, but at the end. So there are
    no more lanes than it takes to keep a device busy."""
    lanes = lanes or (2 if jax.default_backend() == "cpu" else 16)
    with tp.Program("berxit") as prog:
        b, B = prog.dim("b")
        w, W = prog.dim("w")
        s, _ = prog.dim("s")
        given_x = prog.input("x", (length, size), b)
        net = berxit.Berxit(size).declare(prog, init=False)
        x = prog.recurrent("x_after", (length, size), (w, s))
        instance = prog.recurrent("instance", (), (w, s), dtype="int32")
        depth = prog.recurrent("depth", (), (w, s), dtype="int32")
        begun = prog.recurrent("begun", (), s, dtype="int32")
        instance[w, 0], depth[w, 0], begun[0], x[w, -1] = w.value, 0, W, 0

        new = given_x[0:B].take(tp.minimum(instance, B - 1))
        x[w, s] = net.layer(tp.where(tp.equal(depth, 0), new, x[w, s - 1]))
        probabilities, certainty = net.exit(x)
        is_last = (certainty > berxit.CERTAIN) | tp.equal(depth, berxit.LAYERS - 1)
        leaves = (instance < B) & is_last
        # The first lane that is free takes the first instance that waits, and so on.
        place = tp.cumsum(leaves[0:W].astype("int32")).space[w]
        instance[w, s + 1] = following = tp.where(leaves, begun + place - 1, instance)
        depth[w, s + 1] = tp.where(leaves, 0, depth + 1)
        begun[s + 1] = begun + tp.sum(leaves[0:W].astype("int32"))
        prog.stop(s, when=tp.all(following[0:W] >= B))
        prog.output("probabilities", probabilities)
        prog.output("depth", depth + 1)
        prog.output("left", tp.where(leaves, instance, -1))

    def given(instances):
        count = len(instances)
        width = min(lanes, count)
        return {"B": count, "W": width, "S": -(-count // width) * berxit.LAYERS}, {"x": instances}

    def results(found, instances):
        places = {found.left[place]: place for place in zip(*np.nonzero(found.left >= 0), strict=True)}
        return [(found.probabilities[places[n]], int(found.depth[places[n]])) for n in range(len(instances))]

    return AsProgram(prog, given, results)


MODELS = {
    "bi_rnn": (bi_rnn, bi_rnn_program),
    "nested_rnn": (nested_rnn, nested_rnn_program),
    "stack_rnn": (stack_rnn, stack_rnn_program),
    "drnn": (drnn, drnn_program),
    "berxit": (berxit, berxit_program),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--count", type=int, default=16)
    options = parser.parse_args()
    for name, (example, build) in MODELS.items():
        of_size = {"size": options.size} if name in ("drnn", "berxit") else {}
        instances = example.instances(options.count, **of_size)
        batched = tp.batch(example.MODEL(options.size))
        expected, found = batched(instances), build(options.size)(instances, batched.parameters)
        pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
        worst = max(float(np.max(np.abs(a - b))) for a, b in pairs)
        print(f"{name}: largest difference from the recursion: {worst:.1e}")


if __name__ == "__main__":
    main()
