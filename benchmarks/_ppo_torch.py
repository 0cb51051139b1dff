"""PPO in PyTorch, as CleanRL has it, with the synthetic environment in PyTorch as well, on the same device.

``cached`` keeps the activations of acting for the update, where CleanRL computes a second forward pass.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from _ppo_setting import CLIP, ENTROPY, GAMMA, LAMBDA, MOST_NORM, RATE, VALUE, Setting
from torch import nn


def network(sizes: list[int], last: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n, (a, b) in enumerate(pairwise(sizes)):
        layer = nn.Linear(a, b)
        limit = (last if n == len(sizes) - 2 else math.sqrt(2)) * math.sqrt(3 / a)
        nn.init.uniform_(layer.weight, -limit, limit)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def loss(log_p: Any, value: Any, action: Any, before: Any, value_before: Any, advantage: Any) -> Any:
    """That of a minibatch, with the log-probabilities and values that its parameters give now and gave before."""
    target = advantage + value_before
    advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    ratio = (log_p.gather(-1, action[..., None])[..., 0] - before).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
    clipped = value_before + (value - value_before).clamp(-CLIP, CLIP)
    error = 0.5 * torch.maximum((value - target).square(), (clipped - target).square()).mean()
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    return -gain + VALUE * error - ENTROPY * entropy


class PPO:
    """Acts and learns on, from one call of ``iteration`` to the next."""

    def __init__(self, setting: Setting, device: str, cached: bool) -> None:
        torch.manual_seed(0)
        self.setting, self.device, self.cached = setting, device, cached
        size, hidden = math.prod(setting.observation), setting.layers * [setting.width]
        self.policy = network([size, *hidden, 2], 0.01).to(device)
        self.critic = network([size, *hidden, 1], 1.0).to(device)
        self.parameters = [*self.policy.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=RATE, eps=1e-5)
        self.x = torch.randn(setting.envs, size, device=device)
        self.count = torch.zeros(setting.envs, dtype=torch.int32, device=device)
        self.made = 0

    def step(self, action: Any) -> tuple[Any, Any, Any]:
        after = 0.95 * self.x + 0.1 * (action[:, None].float() - 0.5)
        ended = self.count + 1 >= self.setting.limit
        self.x = torch.where(ended[:, None], torch.randn_like(after), after)
        self.count = torch.where(ended, 0, self.count + 1)
        return -after.square().mean(-1), ended, after

    def iteration(self) -> Any:
        T, seen = self.setting.steps, []
        self.optimiser.param_groups[0]["lr"] = RATE * (
            1 - self.made % self.setting.iterations / self.setting.iterations
        )
        self.made += 1
        for _ in range(T):
            with torch.set_grad_enabled(self.cached):
                x = self.x
                log_p = torch.log_softmax(self.policy(x), -1)
                value = self.critic(x)[:, 0]
            with torch.no_grad():
                # Not torch.distributions, whose checks wait for the device at every step.
                action = (log_p - torch.empty_like(log_p).exponential_().log()).argmax(-1)
                reward, ended, after = self.step(action)
            seen.append((x, action, log_p, value, reward, ended, after))
        x, action, log_p, value, reward, ended, after = (torch.stack(parts) for parts in zip(*seen, strict=True))
        with torch.no_grad():
            delta = reward + GAMMA * self.critic(after)[..., 0] - value
            going_on = GAMMA * LAMBDA * (~ended).float()
            advantage, later = torch.empty_like(delta), torch.zeros_like(delta[0])
            for t in reversed(range(T)):
                advantage[t] = later = delta[t] + going_on[t] * later
            before = log_p.gather(-1, action[..., None])[..., 0]
            value_before = value.detach()
        if not self.cached:
            log_p = torch.log_softmax(self.policy(x), -1)
            value = self.critic(x)[..., 0]
        self.optimiser.zero_grad()
        loss(log_p, value, action, before, value_before, advantage).backward()
        nn.utils.clip_grad_norm_(self.parameters, MOST_NORM)
        self.optimiser.step()
        return reward.mean()
