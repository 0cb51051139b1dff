"""REINFORCE and PPO in PyTorch, CleanRL's way: steps written into tensors that are there from the start, one update."""

from __future__ import annotations

import math
from typing import Any

import torch
from _ppo_setting import CLIP, ENTROPY, GAMMA, LAMBDA, VALUE
from _ppo_torch import network

RATE = 1e-3


class Trainer:
    """Acts and learns on, from one call of ``iteration`` to the next."""

    def __init__(self, case: Any, limit: int, device: str) -> None:
        torch.manual_seed(0)
        self.case, self.limit, self.device = case, limit, device
        size = math.prod(case.shape)
        self.policy = network([size, *case.hidden, 2], 0.01).to(device)
        self.critic = network([size, *case.hidden, 1], 1.0).to(device)
        parameters = [*self.policy.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)
        self.x = torch.randn(case.envs, size, device=device)
        self.count = torch.zeros(case.envs, dtype=torch.int32, device=device)
        self.seen = torch.empty(case.steps, case.envs, size, device=device)
        self.numbers = [torch.empty(case.steps, case.envs, device=device) for _ in range(4)]
        self.action = torch.empty(case.steps, case.envs, dtype=torch.int64, device=device)

    def iteration(self) -> None:
        before, reward, ended, ahead = self.numbers
        with torch.no_grad():
            for t in range(self.case.steps):
                self.seen[t] = self.x
                log_p = torch.log_softmax(self.policy(self.x), -1)
                action = (log_p - torch.empty_like(log_p).exponential_().log()).argmax(-1)
                after = 0.95 * self.x + 0.1 * (action[:, None].float() - 0.5)
                over = self.count + 1 >= self.limit
                self.x = torch.where(over[:, None], torch.randn_like(after), after)
                self.count = torch.where(over, 0, self.count + 1)
                self.action[t], ended[t] = action, over.float()
                before[t] = log_p.gather(-1, action[:, None])[:, 0]
                reward[t] = -after.square().mean(-1)
                ahead[t] = self.critic(after)[:, 0]
            value = self.critic(self.seen)[..., 0]
            target = self.returns(value, reward, ended, ahead)
        log_p = torch.log_softmax(self.policy(self.seen), -1)
        chosen = log_p.gather(-1, self.action[..., None])[..., 0]
        advantage = target - value
        if self.case.ahead == 0:
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
            ratio = (chosen - before).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        else:
            gain = chosen * advantage
        entropy = -(log_p.exp() * log_p).sum(-1)
        error = (self.critic(self.seen)[..., 0] - target).square()
        self.optimiser.zero_grad()
        (VALUE * error - gain - ENTROPY * entropy).mean().backward()
        self.optimiser.step()

    def returns(self, value: Any, reward: Any, ended: Any, ahead: Any) -> Any:
        """What every step is worth: (T, B)."""
        found, steps = torch.empty_like(reward), self.case.steps
        if self.case.ahead == 0:
            later = torch.zeros_like(reward[0])
            for t in reversed(range(steps)):
                later = reward[t] + GAMMA * ahead[t] - value[t] + GAMMA * LAMBDA * (1 - ended[t]) * later
                found[t] = later
            return found + value
        if self.case.ahead is None:
            later = ahead[-1]
            for t in reversed(range(steps)):
                found[t] = later = reward[t] + GAMMA * torch.where(ended[t] > 0, ahead[t], later)
            return found
        found = reward + GAMMA * ahead
        for _ in range(self.case.ahead - 1):
            later = torch.cat([found[1:], ahead[-1:]])
            found = reward + GAMMA * torch.where(ended > 0, ahead, later)
        return found
