"""P-values of paired differences between algorithms, and their adjustment for several comparisons."""

from __future__ import annotations

import numpy as np

from offrl.statistics.values import Values


def sign_flip_p(differences: Values, draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided p-value of paired differences [n] under the null hypothesis that each sign is + or - at random.

    Exact, over all 2^n combinations of signs, up to n = 20; beyond that from random ones. nan is left out. With n pairs
    no p-value is below 2 / 2^n: 0.25 for three pairs, 0.0625 for five.
    """
    differences = np.asarray(differences, float)
    differences = differences[~np.isnan(differences)]
    if not len(differences):
        return float("nan")
    observed = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if len(differences) <= 20:
        sums = np.zeros(1)
        for value in differences:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= observed))
    random = np.random.default_rng(seed)
    extreme = 0
    for first in range(0, draws, 10_000):
        signs = random.choice([-1.0, 1.0], (min(10_000, draws - first), len(differences)))
        extreme += int(np.sum(np.abs(signs @ differences) >= observed))
    return (extreme + 1) / (draws + 1)


def permutation_p(x: list[np.ndarray], y: list[np.ndarray], draws: int = 9999, seed: int = 0) -> float:
    """Two-sided p-value of the difference of means, averaged over datasets, with members permuted within each."""
    random = np.random.default_rng(seed)
    observed, drawn = 0.0, np.zeros(draws)
    for a, b in zip(x, y, strict=True):
        both = np.concatenate([a, b])
        observed += a.mean() - b.mean()
        orders = random.permuted(np.tile(both, (draws, 1)), axis=1)
        drawn += orders[:, : len(a)].mean(1) - orders[:, len(a) :].mean(1)
    return float((1 + (np.abs(drawn) >= abs(observed) - 1e-12).sum()) / (1 + draws))


def holm(p_values: Values) -> np.ndarray:
    """P-values adjusted for several comparisons (Holm 1979), in the order given; nan stays nan and does not count."""
    p_values = np.asarray(p_values, float)
    adjusted = np.full(p_values.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    steps = p_values[order] * (len(order) - np.arange(len(order)))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted
