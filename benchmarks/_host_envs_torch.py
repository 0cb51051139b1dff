"""PPO in PyTorch, as CleanRL has it, with environments of Gymnasium in Python.

``apart`` computes the values of a rollout at once, when it is over, where CleanRL has the critic in every step.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from _host_envs_setting import EPOCHS, MINIBATCHES, Setting
from _ppo_setting import GAMMA, LAMBDA, MOST_NORM, RATE
from _ppo_torch import loss, network
from torch import nn


class HostPPO:
    """Acts and learns on, from one call of ``iteration`` to the next."""

    def __init__(self, setting: Setting, device: str, apart: bool) -> None:
        torch.manual_seed(0)
        self.setting, self.device, self.apart = setting, device, apart
        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self.envs = gymnasium.make_vec(
            setting.name, num_envs=setting.envs, vectorization_mode="sync", vector_kwargs=same_step
        )
        (size,), actions = self.envs.single_observation_space.shape, int(self.envs.single_action_space.n)
        self.policy = network([size, *setting.hidden, actions], 0.01).to(device)
        self.critic = network([size, *setting.hidden, 1], 1.0).to(device)
        self.parameters = [*self.policy.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=RATE, eps=1e-5)
        T, B = setting.steps, setting.envs
        # Written in place, step by step, as CleanRL does.
        self.seen = np.zeros((T, B, size), np.float32)
        self.after = np.zeros((T, B, size), np.float32)
        self.reward = np.zeros((T, B), np.float32)
        self.terminated, self.truncated = np.zeros((T, B), bool), np.zeros((T, B), bool)
        self.action = torch.zeros((T, B), dtype=torch.int64, device=device)
        self.before = torch.zeros((T, B), device=device)
        self.value = torch.zeros((T, B), device=device)
        self.observation: Any = None
        self.made = 0

    def start(self) -> None:
        """Other episodes, from the same seed on, with the networks as they are."""
        self.observation, _ = self.envs.reset(seed=0)
        self.made = 0

    def iteration(self) -> float:
        self.optimiser.param_groups[0]["lr"] = RATE * (1 - self.made / self.setting.iterations)
        self.made += 1
        with torch.no_grad():
            self.act()
            flat = self.advantages()
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(flat[0]), device=self.device).chunk(MINIBATCHES):
                self.learn(*(array[chosen] for array in flat))
        return float(self.reward.mean())

    def act(self) -> None:
        for t in range(self.setting.steps):
            self.seen[t] = self.observation
            x = torch.from_numpy(self.seen[t]).to(self.device)
            log_p = torch.log_softmax(self.policy(x), -1)
            if not self.apart:
                self.value[t] = self.critic(x)[:, 0]
            # Not torch.distributions, whose checks take as long as the network.
            action = (log_p - torch.empty_like(log_p).exponential_().log()).argmax(-1)
            self.action[t] = action
            self.before[t] = log_p.gather(-1, action[:, None])[:, 0]
            self.observation, self.reward[t], terminated, truncated, info = self.envs.step(action.cpu().numpy())
            self.terminated[t], self.truncated[t] = terminated, truncated
            self.after[t] = self.observation
            for n in np.flatnonzero(terminated | truncated):
                self.after[t, n] = info["final_obs"][n]

    def advantages(self) -> list[Any]:
        """Everything that is learned from, all steps of all environments in one row."""
        x, after, reward, terminated, truncated = (
            torch.from_numpy(array).to(self.device)
            for array in (self.seen, self.after, self.reward, self.terminated, self.truncated)
        )
        if self.apart:
            self.value = self.critic(x)[..., 0]
        delta = reward + GAMMA * (~terminated).float() * self.critic(after)[..., 0] - self.value
        going_on = GAMMA * LAMBDA * (~(terminated | truncated)).float()
        advantage, later = torch.empty_like(delta), torch.zeros_like(delta[0])
        for t in reversed(range(self.setting.steps)):
            advantage[t] = later = delta[t] + going_on[t] * later
        return [array.flatten(0, 1) for array in (x, self.action, self.before, self.value, advantage)]

    def learn(self, x: Any, action: Any, before: Any, value_before: Any, advantage: Any) -> None:
        log_p, value = torch.log_softmax(self.policy(x), -1), self.critic(x)[:, 0]
        self.optimiser.zero_grad()
        loss(log_p, value, action, before, value_before, advantage).backward()
        nn.utils.clip_grad_norm_(self.parameters, MOST_NORM)
        self.optimiser.step()
