"""Environments of the built-in datasets that Gymnasium does not have: ICU-Sepsis, and Pendulum seen in images.

Their ids name this module, as in "offrl.datasets.environments:PendulumImages-v0", so making one imports it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete

from offrl.errors import UserError

IMAGE_SIZE = 64  # pixels, both ways
ROD_LENGTH, ROD_HALF_WIDTH = 27.0, 2.5  # pixels
TORQUE_ROWS = slice(60, 63)  # the bar of the torque lies below the rod's reach
TORQUE_BRIGHTNESS = 128
DEATH, SURVIVAL = 713, 714  # states of ICU-Sepsis that end an episode; in its table, 715 follows them


def specification(env_id: str) -> EnvSpec:
    """Like `gymnasium.spec`, but keeps an id "module:Name-v0" in full, so that it can be made anywhere."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return dataclasses.replace(gymnasium.spec(name), id=env_id)


def draw_pendulum(angle: float, torque: float) -> np.ndarray:
    """uint8 [64, 64], grey: the rod, anti-aliased, and below it a bar from the middle as long as the torque is strong.

    angle: radians, 0 upright, growing counter-clockwise; torque: in [-1, 1] of the largest, to the right if positive.
    """
    middle = (IMAGE_SIZE - 1) / 2
    y, x = middle - np.arange(IMAGE_SIZE)[:, None], np.arange(IMAGE_SIZE) - middle
    along_x, along_y = -np.sin(angle), np.cos(angle)
    along = np.clip(x * along_x + y * along_y, 0, ROD_LENGTH)
    distance = np.hypot(x - along * along_x, y - along * along_y)
    image = np.clip(ROD_HALF_WIDTH + 0.5 - distance, 0, 1) * 255
    covered = np.clip(abs(torque) * IMAGE_SIZE / 2 + 0.5 - x * np.sign(torque), 0, 1) * (x * np.sign(torque) > 0)
    image[TORQUE_ROWS] = np.maximum(image[TORQUE_ROWS], covered * TORQUE_BRIGHTNESS)
    return image.round().astype(np.uint8)


class PendulumImages(PendulumEnv):
    """Pendulum-v1 observed in uint8 images [64, 64, 2]: the frame before and the current one, so that speed shows.

    A reset repeats its first frame. Actions and rewards are Pendulum-v1's.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.observation_space = Box(0, 255, (IMAGE_SIZE, IMAGE_SIZE, 2), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        _, info = super().reset(seed=seed, options=options)
        self._frame = draw_pendulum(self.state[0], 0.0)
        return np.stack([self._frame, self._frame], axis=-1), info

    def step(self, action):
        before = self._frame
        _, reward, terminated, truncated, info = super().step(action)
        self._frame = draw_pendulum(self.state[0], self.last_u / self.max_torque)
        return np.stack([before, self._frame], axis=-1), reward, terminated, truncated, info

    def policy_observation(self) -> np.ndarray:
        """What Pendulum-v1 shows, float32 [3]: the policies that roll out datasets were trained on it."""
        return self._get_obs()


class SepsisTables(NamedTuple):
    """What defines ICU-Sepsis."""

    transitions: np.ndarray
    """float64 [states, actions, states]: probability of the next state."""
    starts: np.ndarray
    """float64 [states]: probability of the first state."""
    clinicians: np.ndarray
    """float64 [states, actions]: the policy estimated from what clinicians did; zeros in states that end an episode."""


@functools.cache
def sepsis_tables() -> SepsisTables:
    """The tables in the package icu-sepsis, read without importing it, which would import the old `gym`, for numpy 1.

    Raises:
        UserError: the package is missing, or holds other tables.
    """
    package = importlib.util.find_spec("icu_sepsis")
    if package is None or not package.submodule_search_locations:
        raise UserError(
            "ICU-Sepsis: its tables are in the package icu-sepsis, which is missing; pip install 'offrl[sepsis]'"
        )
    path = Path(package.submodule_search_locations[0]) / "envs" / "assets" / "dynamics.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            tables = SepsisTables(file["tx_mat"], file["d_0"], file["expert_policy"])
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); pip install --no-deps --force-reinstall icu-sepsis==2.0.1")\
            from error  # fmt: skip
    if tables.transitions.shape != (716, 25, 716):
        raise UserError(f"{path}: tables {tables.transitions.shape}, not (716, 25, 716); pip install icu-sepsis==2.0.1")
    return tables


@functools.cache
def _sepsis_cumulative() -> tuple[np.ndarray, np.ndarray]:
    """Cumulative probabilities of next states, float32 [states, actions, states], and of first states."""
    tables = sepsis_tables()
    nexts, starts = np.cumsum(tables.transitions, axis=-1), np.cumsum(tables.starts)
    return (nexts / nexts[..., -1:]).astype(np.float32), starts / starts[-1]


class ICUSepsis(gymnasium.Env):
    """The tabular ICU-Sepsis benchmark: 716 states of a patient, seen as one-hot vectors, and 25 treatments.

    An episode ends with survival, which has a reward of 1, or with death, which has none; there is no discount.
    Inadmissible actions have the average transition of the admissible ones, as in Sepsis/ICU-Sepsis-v1.
    """

    def __init__(self) -> None:
        self._nexts, self._starts = _sepsis_cumulative()
        states, actions, _ = self._nexts.shape
        self.observation_space = Box(0, 1, (states,), np.uint8)
        self.action_space = Discrete(actions)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed, options=options)
        return self._enter(self._starts), {}

    def step(self, action):
        observation = self._enter(self._nexts[self._state, action])
        return observation, float(self._state == SURVIVAL), self._state >= DEATH, False, {}

    def _enter(self, cumulative: np.ndarray) -> np.ndarray:
        """Draw a state and observe it. `side="right"`: a state of probability 0 is never drawn."""
        self._state = int(np.searchsorted(cumulative, self.np_random.random(), side="right"))
        observation = np.zeros(self.observation_space.shape, np.uint8)
        observation[self._state] = 1
        return observation


gymnasium.register("PendulumImages-v0", "offrl.datasets.environments:PendulumImages", max_episode_steps=200)
gymnasium.register("ICUSepsis-v0", "offrl.datasets.environments:ICUSepsis", max_episode_steps=500)
