"""Algorithms: functions that build a whole training program, each a file to read, copy and change."""

from tempo.rl.algorithms.algorithm import Algorithm
from tempo.rl.algorithms.ppo import ppo
from tempo.rl.algorithms.reinforce import reinforce

__all__ = ["Algorithm", "ppo", "reinforce"]
