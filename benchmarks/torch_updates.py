"""TD3+BC and IQL updates in plain torch, to compare with ours: the same networks, losses and order of one update.

A worker of training_speed.py: reads lines "ALGORITHM UPDATES" and answers with the seconds of processor time.
Written as torch code usually is (eager, foreach Adam, targets updated in place), with the data in memory.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

ROWS, OBSERVATION_DIM, ACTION_DIM = 100_000, 11, 3
BATCH, WIDTH, LEARNING_RATE = 256, 256, 3e-4
DISCOUNT, POLYAK = 0.99, 0.005


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
    )


class Critics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = mlp(OBSERVATION_DIM + ACTION_DIM, 1)
        self.second = mlp(OBSERVATION_DIM + ACTION_DIM, 1)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.cat([observations, actions], -1)
        return self.first(inputs).squeeze(-1), self.second(inputs).squeeze(-1)


class Data:
    def __init__(self) -> None:
        self.observations = torch.randn(ROWS, OBSERVATION_DIM)
        self.actions = torch.tanh(torch.randn(ROWS, ACTION_DIM))
        self.rewards = torch.randn(ROWS)
        self.next_observations = torch.randn(ROWS, OBSERVATION_DIM)
        self.terminations = (torch.rand(ROWS) < 0.01).float()

    def batch(self) -> tuple[torch.Tensor, ...]:
        rows = torch.randint(ROWS, (BATCH,))
        columns = (self.observations, self.actions, self.rewards, self.next_observations, self.terminations)
        return tuple(column[rows] for column in columns)


def adam(network: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(network.parameters(), LEARNING_RATE)


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


@torch.no_grad()
def follow(target: nn.Module, network: nn.Module) -> None:
    torch._foreach_lerp_(list(target.parameters()), list(network.parameters()), POLYAK)


def td3_bc(data: Data) -> Callable[[], None]:
    actor, critics = mlp(OBSERVATION_DIM, ACTION_DIM), Critics()
    actor_target, critics_target = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_optimizer, critic_optimizer = adam(actor), adam(critics)
    updates = 0

    def update() -> None:
        nonlocal updates
        updates += 1
        observations, actions, rewards, next_observations, terminations = data.batch()
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(actions)).clamp(-0.5, 0.5)
            next_actions = (torch.tanh(actor_target(next_observations)) + noise).clamp(-1, 1)
            next_q = torch.minimum(*critics_target(next_observations, next_actions))
            target = rewards + DISCOUNT * (1 - terminations) * next_q
        first, second = critics(observations, actions)
        step(critic_optimizer, functional.mse_loss(first, target) + functional.mse_loss(second, target))
        if updates % 2 == 0:
            policy = torch.tanh(actor(observations))
            q = critics.first(torch.cat([observations, policy], -1))
            loss = -2.5 / q.abs().mean().detach() * q.mean() + functional.mse_loss(policy, actions)
            step(actor_optimizer, loss)
            follow(critics_target, critics)
            follow(actor_target, actor)

    return update


def iql(data: Data) -> Callable[[], None]:
    actor, critics, value = mlp(OBSERVATION_DIM, ACTION_DIM), Critics(), mlp(OBSERVATION_DIM, 1)
    log_std = nn.Parameter(torch.zeros(ACTION_DIM))
    critics_target = copy.deepcopy(critics)
    critic_optimizer, value_optimizer = adam(critics), adam(value)
    actor_optimizer = torch.optim.Adam([*actor.parameters(), log_std], LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(actor_optimizer, 1_000_000)

    def update() -> None:
        observations, actions, rewards, next_observations, terminations = data.batch()
        with torch.no_grad():
            target_q = torch.minimum(*critics_target(observations, actions))
        error = target_q - value(observations).squeeze(-1)
        step(value_optimizer, ((0.7 - (error < 0).float()).abs() * error**2).mean())
        with torch.no_grad():
            v, next_v = value(observations).squeeze(-1), value(next_observations).squeeze(-1)
            weight = torch.exp(3.0 * (target_q - v)).clamp(max=100.0)
            target = rewards + DISCOUNT * (1 - terminations) * next_v
        mean, scale = torch.tanh(actor(observations)), log_std.clamp(-5.0, 2.0)
        standardised = (actions - mean) / scale.exp()
        log_prob = (-0.5 * standardised**2 - scale - 0.5 * math.log(2 * math.pi)).sum(-1)
        step(actor_optimizer, -(weight * log_prob).mean())
        schedule.step()
        first, second = critics(observations, actions)
        step(critic_optimizer, functional.mse_loss(first, target) + functional.mse_loss(second, target))
        follow(critics_target, critics)

    return update


def main() -> None:
    torch.set_num_threads(1)
    data = Data()
    updates = {"td3_bc": td3_bc(data), "iql": iql(data)}
    for line in sys.stdin:
        name, count = line.split()
        update = updates[name]
        start = time.process_time()
        for _ in range(int(count)):
            update()
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
