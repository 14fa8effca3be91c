"""Standardised inputs (s, a), and random Fourier features of them, shared by the estimators of value and of fit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offrl.selection.pool import Pool, Rows

LIMIT = 10.0  # standardised inputs further out count as that far out
SMALLEST_DEVIATION = 1e-3
FEATURES = 300


class Standardiser(NamedTuple):
    """To mean 0 and standard deviation 1 over the training rows, observations and actions alike."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, rows: Rows) -> Standardiser:
        both = np.concatenate([rows.observations, rows.actions], 1, dtype=np.float64)
        return cls(both.mean(0), np.maximum(both.std(0), SMALLEST_DEVIATION))

    def __call__(self, observations: np.ndarray, actions: np.ndarray | None = None) -> np.ndarray:
        """float32 [n, observation_dim + action_dim], or [n, observation_dim] without actions."""
        both = observations if actions is None else np.concatenate([observations, actions], 1)
        dim = both.shape[1]
        return np.clip((both - self.mean[:dim]) / self.deviation[:dim], -LIMIT, LIMIT).astype(np.float32)


class RandomFeatures(NamedTuple):
    """cos(x W + b) * sqrt(2 / FEATURES), the features of a Gaussian kernel, and a constant 1 after them.

    The kernel is as wide as the median distance between training rows (Rahimi and Recht 2007).
    """

    frequencies: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, inputs: np.ndarray, seed: int, features: int = FEATURES) -> RandomFeatures:
        random = np.random.default_rng(seed)
        first, second = random.integers(0, len(inputs), (2, 2000))
        width = np.median(np.linalg.norm(inputs[first] - inputs[second], axis=1)) or 1.0
        frequencies = random.normal(0, 1 / width, (inputs.shape[1], features))
        return cls(frequencies.astype(np.float32), random.uniform(0, 2 * np.pi, features).astype(np.float32))

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """float32 [n, features + 1]."""
        waves = np.cos(inputs @ self.frequencies + self.offsets) * np.float32(np.sqrt(2 / len(self.offsets)))
        return np.concatenate([waves, np.ones((len(inputs), 1), np.float32)], 1)


def standardiser(pool: Pool) -> Standardiser:
    return pool.once("standardiser", lambda: Standardiser.of(pool.train))


def random_features(pool: Pool) -> RandomFeatures:
    def make() -> RandomFeatures:
        return RandomFeatures.of(standardiser(pool)(pool.train.observations, pool.train.actions), pool.seed)

    return pool.once("random features", make)
