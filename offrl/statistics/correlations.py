"""Rank correlation of scores with returns, agreement between orders, and how reliable measured returns are."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from offrl.statistics.values import Values


def spearman(scores: Values, returns: Values) -> float:
    """Rank correlation over the candidates that have both, ties at their mean rank.

    0 if all scores are equal, the expectation over random tie-breaks. nan for fewer than three candidates, or if all
    returns are equal. Infinite scores are ranked like others.
    """
    pair = _paired(scores, returns)
    if pair is None:
        return float("nan")
    ranks = [_ranks(values) for values in pair]
    if np.ptp(ranks[0]) == 0:
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def kendall(scores: Values, returns: Values) -> float:
    """Kendall's τ_b; equal scores, few candidates and nan as in `spearman`."""
    pair = _paired(scores, returns)
    if pair is None:
        return float("nan")
    if np.all(pair[0] == pair[0][0]):
        return 0.0
    from scipy import stats

    return float(stats.kendalltau(*map(_ranks, pair), variant="b").statistic)


def _paired(scores: Values, returns: Values) -> tuple[np.ndarray, np.ndarray] | None:
    scores, returns = np.asarray(scores, float), np.asarray(returns, float)
    both = ~np.isnan(scores) & ~np.isnan(returns)
    scores, returns = scores[both], returns[both]
    return (scores, returns) if len(returns) >= 3 and not np.all(returns == returns[0]) else None


def kendall_w(scores: Values) -> float:
    """Kendall's W: agreement of several rankings of the same candidates, 1 if they are equal, near 0 if unrelated.

    Args:
        scores: [judges, candidates]; candidates that a judge did not score (nan) are left out. Ties are corrected for.
    """
    scores = np.asarray(scores, float)
    scores = scores[:, ~np.isnan(scores).any(0)]
    judges, n = scores.shape
    if judges < 2 or n < 2:
        return float("nan")
    ranks = np.array([_ranks(row) for row in scores])
    ties = sum(float(np.sum(counts**3 - counts)) for counts in (np.unique(row, return_counts=True)[1] for row in ranks))
    worst = judges**2 * (n**3 - n) - judges * ties
    return float(12 * np.sum((ranks.sum(0) - judges * (n + 1) / 2) ** 2) / worst) if worst > 0 else float("nan")


class Reliability(NamedTuple):
    """How well measured returns order policies: no score can be expected to correlate with them beyond `ceiling`."""

    split_half: float
    """Rank correlation between means over two halves of the episodes; nan if only standard errors were known."""
    reliability: float
    """Of means over all episodes: 2 r / (1 + r) (Spearman and Brown)."""
    ceiling: float
    """√reliability."""


def split_half_reliability(returns: Values, splits: int = 100, seed: int = 0) -> Reliability:
    """Reliability of mean returns from episodes [policies, episodes] (nan: not played), averaged over random halvings.

    Policies share reset seeds, so the episodes are halved in the same way for all of them.
    """
    returns = np.asarray(returns, float)
    random = np.random.default_rng(seed)
    half = returns.shape[1] // 2
    if half < 1:
        return Reliability(float("nan"), float("nan"), float("nan"))
    correlations = []
    for _ in range(splits):
        order = random.permutation(returns.shape[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a policy with no episode in a half has no mean there
            halves = [np.nanmean(returns[:, part], axis=1) for part in (order[:half], order[half : 2 * half])]
        correlations.append(spearman(*halves))
    r = float(np.mean(correlations))
    whole = 2 * r / (1 + r) if r > -1 else float("nan")
    return Reliability(r, whole, float(np.sqrt(max(whole, 0.0))))


def reliability_from_errors(means: Values, errors: Values) -> Reliability:
    """Reliability where only means and their standard errors [policies] are known: 1 - mean(SE²) / var(means)."""
    means, errors = np.asarray(means, float), np.asarray(errors, float)
    known = np.isfinite(means) & np.isfinite(errors)
    if known.sum() < 3 or np.ptp(means[known]) == 0:
        return Reliability(float("nan"), float("nan"), float("nan"))
    whole = float(1 - np.mean(errors[known] ** 2) / np.var(means[known], ddof=1))
    return Reliability(float("nan"), whole, float(np.sqrt(max(whole, 0.0))))


def _ranks(values: np.ndarray) -> np.ndarray:
    """1 for the lowest of `values` [n]; ties share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]
