"""Training as a product: progress, logs, learning curves, checkpoints that go on to the bit, evaluation, GIFs."""

from tempo.rl.training.curve import plot_curves, read_log
from tempo.rl.training.evaluation import Evaluation, evaluate, render
from tempo.rl.training.presets import make, preset
from tempo.rl.training.train import Trained, load_parameters, train

__all__ = [
    "Evaluation",
    "Trained",
    "evaluate",
    "load_parameters",
    "make",
    "plot_curves",
    "preset",
    "read_log",
    "render",
    "train",
]
