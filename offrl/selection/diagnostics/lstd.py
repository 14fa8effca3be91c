"""LSTD-Q on random Fourier features: the value in closed form, without training noise.

`lstd_lcb` is the estimate less one standard error over resampled episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, quotients, spread
from offrl.selection.diagnostics.features import random_features, standardiser
from offrl.selection.diagnostics.fitting import DISCOUNT, NOT_FINITE, value_bounds
from offrl.selection.pool import RESAMPLES, Pool

RIDGE = 1e-4
"""In units of the mean squared feature."""


class Lstd(NamedTuple):
    theta: np.ndarray
    inverse: np.ndarray
    penalty: np.ndarray
    """[features]: ridge of each feature; none on the constant, so that adding to all rewards adds to all values."""


def lstd_q(
    features: np.ndarray, next_features: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, ridge: float = RIDGE
) -> Lstd:
    """Q(s, a) = features . theta with theta = A^-1 b, A = Phi^T (Phi - discount Phi') / n + penalty, b = Phi^T r / n.

    The last feature is the constant. Features may be float32; what is solved is float64.
    """
    n, d = features.shape
    penalty = np.full(d, ridge * float(np.square(features[:, :-1]).mean()))
    penalty[-1] = 0.0
    a = (features.T @ (features - discounts[:, None] * next_features)).astype(np.float64) / n + np.diag(penalty)
    inverse = np.linalg.pinv(a)
    return Lstd(inverse @ (features.T @ rewards).astype(np.float64) / n, inverse, penalty)


def measure_lstd(pool: Pool) -> dict[str, Scores]:
    """With errors by the episode bootstrap through the influence of each episode on theta, to first order."""
    rows, inputs, features = pool.train, standardiser(pool), random_features(pool)
    low, high = value_bounds(rows.rewards, rows.terminations, DISCOUNT)
    discounts = (DISCOUNT * (1 - rows.terminations)).astype(np.float32)
    phi = pool.once("features of training rows", lambda: features(inputs(rows.observations, rows.actions)))
    weights = pool.episode_weights.astype(np.float64)
    counts = np.bincount(rows.episodes, minlength=pool.dataset.episodes)
    initial, following = pool.actions("initial"), pool.actions("train_next")
    value, error = np.full((2, len(pool)), np.nan)
    replicates, reasons = np.full((len(pool), RESAMPLES), np.nan, np.float32), [""] * len(pool)
    for i in range(len(pool)):
        if not (np.isfinite(initial[i]).all() and np.isfinite(following[i]).all()):
            reasons[i] = NOT_FINITE
            continue
        next_phi = features(inputs(rows.next_observations, following[i]))
        phi_0 = features(inputs(pool.initial_observations, initial[i])).astype(np.float64)
        fit = lstd_q(phi, next_phi, rows.rewards, discounts)
        found = float((phi_0 @ fit.theta).mean())
        if not low <= found <= high:
            reasons[i] = f"the solution {found:.4g} is outside what rewards allow, {low:.4g} to {high:.4g}"
            continue
        residuals = rows.rewards + (discounts[:, None] * next_phi - phi) @ fit.theta.astype(np.float32)
        sums = _sums_by_episode(phi * residuals[:, None], rows.episodes, pool.dataset.episodes)
        moments = quotients(weights @ sums, (weights @ counts)[:, None])
        thetas = fit.theta + (moments - fit.penalty * fit.theta) @ fit.inverse.T
        value[i] = found
        replicates[i] = ((weights @ phi_0 / weights.sum(1, keepdims=True)) * thetas).sum(1)
        error[i] = spread(replicates[i])
    lcb = (replicates - error[:, None]).astype(np.float32)
    return {
        "lstd": Scores(value, error, replicates, reasons),
        "lstd_lcb": Scores(value - error, error, lcb, reasons),
    }


def _sums_by_episode(values: np.ndarray, episodes: np.ndarray, count: int) -> np.ndarray:
    """values [n, d] summed over the rows of each episode, float64 [count, d]; rows are in the order of episodes."""
    first = np.flatnonzero(np.diff(episodes, prepend=-1))
    sums = np.zeros((count, values.shape[1]))
    sums[episodes[first]] = np.add.reduceat(values, first, dtype=np.float64)
    return sums


MEASUREMENTS = (
    Measurement(
        "lstd",
        (
            Diagnostic("lstd", "high", "value of the initial states by LSTD-Q on random Fourier features"),
            Diagnostic("lstd_lcb", "high", "that less one standard error over episodes"),
        ),
        measure_lstd,
    ),
)
