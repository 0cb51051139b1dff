"""Random data for the recursive models here, and what all of them print.

Trees have the size of those in the Stanford Sentiment Treebank: 19 words, give or take 9, and two children at every
inner node. Sentences have the same lengths. The two loops of a document are 20 to 40 long each.
"""

import jax
import numpy as np

import tempo as tp

WORDS = 500
CLASSES = 5


def tree(rng, words):
    """A word, or two trees."""
    if words == 1:
        return int(rng.integers(WORDS))
    left = int(rng.integers(1, words))
    return tree(rng, left), tree(rng, words - left)


def words(tree):
    """The words of a tree, from left to right."""
    return [tree] if isinstance(tree, int) else [word for child in tree for word in words(child)]


def forest(instances):
    """Labelled trees as arrays."""
    labels = {id(tree): label for tree, label in instances}
    return tp.forest(
        [tree for tree, label in instances],
        children=lambda node: node if isinstance(node, tuple) else (),
        arity=2,
        word=lambda node: node if isinstance(node, int) else 0,
        label=lambda node: labels.get(id(node), 0),
    )


def length(rng):
    return int(np.clip(rng.normal(18.9, 9.0), 2, 50))


def trees(count, seed=0):
    rng = np.random.default_rng(seed)
    return [tree(rng, length(rng)) for _ in range(count)]


def sentences(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(WORDS, size=length(rng)).tolist() for _ in range(count)]


def documents(count, seed=0, least=20, most=40):
    """Lists of sentences."""
    rng = np.random.default_rng(seed)

    def sentence():
        return rng.integers(WORDS, size=rng.integers(least, most + 1)).tolist()

    return [[sentence() for _ in range(rng.integers(least, most + 1))] for _ in range(count)]


def demonstrate(name, model, instances):
    """Run a model for all instances together and for each alone, and say how that went."""
    batched = tp.batch(model)
    together = batched(instances)
    print(f"{name}: {batched.statistics}")
    alone = batched.one_by_one(instances)
    pairs = zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True)
    worst = max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in pairs)
    print(f"largest difference from one call at a time: {worst:.1e}")
