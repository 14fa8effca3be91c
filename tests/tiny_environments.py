"""Environments for the tests of evaluation; worker processes import this file by its name."""

import os
import sys

import gymnasium
import numpy as np


def episode_length(seed: int) -> int:
    return 3 + 7 * seed % 23


class Tiny(gymnasium.Env):
    """An episode that lasts `episode_length(reset seed)` steps; every step pays 1 and twice its first action."""

    action_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)

    def __init__(self, crash_at=None, crash="raise", success=False, forbid_jax=False, nested=False):
        self.crash_at, self.crash, self.success, self.forbid_jax = crash_at, crash, success, forbid_jax
        self.nested = nested
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = gymnasium.spaces.Dict(b=box, a=box) if nested else box

    def observe(self):
        observation = np.array([self.time / 10, self.length / 10])
        return {"b": observation, "a": -observation} if self.nested else observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.forbid_jax and "jax" in sys.modules:
            raise RuntimeError("jax was imported")
        self.seed, self.time, self.length = seed, 0, episode_length(seed)
        return self.observe(), {}

    def step(self, action):
        self.time += 1
        if self.seed == self.crash_at and self.time == 3:
            if self.crash == "exit":
                os._exit(7)
            raise FileNotFoundError("no such mesh")
        info = {"success": np.bool_(self.time == 2 and self.seed % 2 == 0)} if self.success else {}
        return self.observe(), 1.0 + 2.0 * float(action[0]), self.time >= self.length, False, info


class Parts(gymnasium.Env):
    """A room of four and a position, observed by name; of three actions the one of the time modulo 3 pays 1."""

    def __init__(self, counted_from=0, pixels=None):
        Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete
        self.action_space = Discrete(3, start=counted_from)
        parts = {"room": Discrete(4, start=1), "position": Box(-1, 1, (2,), np.float64)}
        if pixels is not None:
            parts["camera"] = Box(0, 1, (4, 4, 1), pixels)
        self.observation_space = gymnasium.spaces.Dict(parts)

    def observe(self):
        return {"room": np.int64(1 + self.time % 4), "position": np.array([self.time / 10, -self.time / 10])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(action == self.time % 3)
        self.time += 1
        return self.observe(), reward, False, False, {}


class Paying(gymnasium.Env):
    """Five steps, each of which pays its action; the observation is the time."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time / 5, np.float32), float(action[0]), False, False, {}


gymnasium.register("Tiny-v0", entry_point=Tiny, max_episode_steps=20)
gymnasium.register("Endless-v0", entry_point=Tiny)
gymnasium.register("Parts-v0", entry_point=Parts, max_episode_steps=6)
gymnasium.register("Paying-v0", entry_point=Paying, max_episode_steps=5)
