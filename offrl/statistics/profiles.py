"""Aggregates over runs and tasks (Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice").

`scores` are normalised scores [..., n], all runs of all tasks pooled; the last axis is reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offrl.statistics.values import Values, scalar


def interquartile_mean(scores: Values) -> Any:
    """Mean of the middle half of `scores` [..., n]: a quarter of them, rounded down, is cut at each end.

    nan if any score is nan: a missing run must not be cut off as if it were the best.
    """
    ordered = np.sort(np.asarray(scores, float), axis=-1)  # nan goes last
    cut = ordered.shape[-1] // 4
    middle = ordered[..., cut : ordered.shape[-1] - cut].mean(-1)
    return scalar(np.where(np.isnan(ordered[..., -1]), np.nan, middle))


def optimality_gap(scores: Values, target: float = 1.0) -> Any:
    """By how much `scores` [..., n] fall short of `target` on average; scores above it do not compensate others."""
    return scalar(target - np.minimum(np.asarray(scores, float), target).mean(-1))


def performance_profile(scores: Values, thresholds: Values) -> np.ndarray:
    """Share of `scores` [n] strictly above each threshold, [thresholds]."""
    return (np.ravel(scores)[:, None] > np.asarray(thresholds, float)).mean(0)


def profile_band(
    tasks: Sequence[Values], thresholds: Values, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Profile of the runs of several tasks, with its pointwise band: (share, low, high), each [thresholds].

    Runs are resampled within each task (percentile band): too narrow for few runs, see `intervals.coverage_warning`.
    """
    random = np.random.default_rng(seed)
    samples = [np.asarray(task, float) for task in tasks]
    above: list[np.ndarray] = [(sample[:, None] > np.asarray(thresholds, float)).astype(float) for sample in samples]
    total = sum(map(len, samples))
    drawn = np.zeros((resamples, above[0].shape[1]))
    for task in above:
        drawn += random.multinomial(len(task), np.full(len(task), 1 / len(task)), resamples) @ task / total
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.concatenate(above).mean(0), low, high


def probability_of_improvement(x: Sequence[Values], y: Sequence[Values]) -> Any:
    """Probability that a run of X scores above a run of Y on a random task: mean over tasks of Mann-Whitney U/(nm).

    Args:
        x, y: for each task, scores [..., runs]; the numbers of runs may differ. Ties count one half.
    """
    if len(x) != len(y):
        raise ValueError(f"X has {len(x)} tasks, and Y has {len(y)}")
    shares = []
    for ours, theirs in zip(x, y, strict=True):
        difference = np.asarray(ours, float)[..., :, None] - np.asarray(theirs, float)[..., None, :]
        shares.append((0.5 + 0.5 * np.sign(difference)).mean((-2, -1)))
    return scalar(np.mean(shares, axis=0))
