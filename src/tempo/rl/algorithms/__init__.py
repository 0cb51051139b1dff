"""Algorithms: functions that build a whole training program, each a file to read, copy and change."""

from tempo.rl.algorithms.a2c import a2c
from tempo.rl.algorithms.algorithm import Algorithm
from tempo.rl.algorithms.dqn import dqn
from tempo.rl.algorithms.ppo import ppo
from tempo.rl.algorithms.recurrent_ppo import recurrent_ppo
from tempo.rl.algorithms.reinforce import reinforce

__all__ = ["Algorithm", "a2c", "dqn", "ppo", "recurrent_ppo", "reinforce"]
