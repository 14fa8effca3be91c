"""What deploying by an order of the candidates comes to: metrics of one choice, and the references beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from offrl import statistics
from offrl.selection.benchmark.pools import ScoredPool
from offrl.selection.benchmark.resampling import Resamples

REFERENCES = {
    "random pick": "any candidate of the pool",
    "last checkpoint": "the last checkpoint of a random run",
    "default setting": "the last checkpoint of a random run with the published settings",
    "bc": "behaviour cloning: the mean of its last checkpoints",
    "best algorithm": "knows which algorithm is best on average: the last checkpoint of a random run of it",
    "oracle": "the best of the pool",
}
"""What every selector is to be compared with. The last two know the returns."""
KNOWING = ("best algorithm", "oracle")
TOP = (1, 3)
BUDGETS = (1, 3, 5, 10, 20)


def references(pool: ScoredPool) -> dict[str, pd.Series]:
    """REFERENCES as scores: equal on what may be picked, nan elsewhere. Left out where the pool has no such policy."""
    index = pool.returns.index

    def one_of(mask: np.ndarray) -> pd.Series:
        return pd.Series(np.where(mask, 1.0, np.nan), index=index)

    last = pool.returns[pool.last]
    best = last.groupby(pool.candidates.loc[pool.last, "algorithm"]).mean().idxmax()
    cloning = one_of(pool.cloned)
    cloning.attrs["abstains"] = "always"
    found = {
        "random pick": one_of(np.ones(len(index), bool)),
        "last checkpoint": one_of(pool.last) if not pool.last.all() else None,
        "default setting": one_of(pool.default) if pool.default.any() and not pool.default.all() else None,
        "bc": cloning if pool.cloned.any() else None,
        "best algorithm": one_of(pool.last & (pool.candidates["algorithm"] == best).to_numpy()),
        "oracle": pool.returns.astype(float),
    }
    return {name: scores for name, scores in found.items() if scores is not None}


def decisions(
    pool: ScoredPool, scores: np.ndarray, abstains: bool, drawn: Resamples, top: Sequence[int] = TOP
) -> dict[str, np.ndarray]:
    """What deploying by these scores comes to in each resample: metric -> [resamples]; ties broken at random.

    Args:
        scores: [n] or [resamples, n], higher is better, nan = never chosen.
        abstains: behaviour cloning is deployed instead (the mean of its last checkpoints; the mean of all, a random
            pick, where the pool has no cloning). So it is where no candidate that is present has a score.
    """
    returns, copies, present = *drawn, drawn.present
    count = np.arange(len(returns))

    def mean_of(mask: np.ndarray) -> np.ndarray:
        weights = copies * mask
        total = weights.sum(1)
        return np.where(total > 0, (weights * returns).sum(1) / np.maximum(total, 1), np.nan)

    low = np.where(present, returns, np.inf).min(1)
    high = np.where(present, returns, -np.inf).max(1)
    spread = high - low
    cloned, last = mean_of(pool.cloned), mean_of(pool.last)
    fallback = np.where(np.isnan(cloned), mean_of(np.ones(returns.shape[1], bool)), cloned)

    ranked = present & ~np.isnan(scores)
    # places, not scores: minus infinity is a score, too
    places = scores if scores.ndim == 2 else pd.Series(scores).rank(method="dense").to_numpy()
    places = np.where(ranked, places, -np.inf)
    fixed = np.broadcast_to(abstains, len(returns)) | ~ranked.any(1)
    first = ranked & (places == places.max(1, keepdims=True))
    shares = np.where(first.any(1, keepdims=True), first / np.maximum(first.sum(1, keepdims=True), 1), 0.0)

    def expected(value: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        """Mean of a value of candidates over the tied first place, or its counterpart for what is fallen back on."""
        return np.where(fixed, otherwise, (shares * value).sum(1))

    with np.errstate(invalid="ignore", divide="ignore"):

        def normalised(value: np.ndarray) -> np.ndarray:
            return np.where(spread > 0, (value - low) / spread, 1.0)

        metrics = {}
        ordered = -np.sort(-places, axis=1)
        for k in top:
            boundary = ordered[:, min(k, places.shape[1]) - 1, None]
            inside = ranked & (places >= boundary)
            best = np.where(inside, returns, -np.inf).max(1)
            for row in count[(inside.sum(1) > k) & ~fixed]:
                best[row] = statistics.expected_best_of_top(returns[row], np.where(ranked[row], places[row], np.nan), k)
            metrics[f"regret@{k}"] = 1 - normalised(np.where(fixed, fallback, best))
        deployed = expected(returns, fallback)
        good = high - 0.05 * spread
        metrics["good@1"] = expected(returns >= good[:, None], fallback >= good)
        metrics["safe@1"] = np.where(np.isnan(cloned), np.nan, expected(returns >= cloned[:, None], fallback >= cloned))
        metrics["uplift over bc"] = np.where(spread > 0, (deployed - cloned) / spread, 0.0)
        if not pool.last.all():
            own = np.where(present[:, pool.own_last], returns[:, pool.own_last], np.nan)
            metrics["harm"] = expected(returns < last[:, None], fallback < last)
            metrics["harm to own run"] = expected(returns < own, np.zeros(len(returns)))
            metrics["uplift over last"] = np.where(spread > 0, (deployed - last) / spread, 0.0)
        if pool.default.any():
            metrics["uplift over default"] = np.where(spread > 0, (deployed - mean_of(pool.default)) / spread, 0.0)
        metrics["return"] = deployed
        if pool.reference is not None:
            random, expert = pool.reference
            metrics["normalized score"] = 100 * (deployed - random) / (expert - random)
            metrics["normalized score lost"] = 100 * (high - deployed) / (expert - random)
    return metrics


def budget_metrics(pool: ScoredPool, scores: np.ndarray, abstains: bool) -> dict[str, float]:
    """What more of the order is worth: the first k together, a budget of online trials, trials saved."""
    values = pool.returns.to_numpy(float)
    spread = values.max() - values.min()
    abstains = abstains or bool(np.isnan(scores).all())
    chosen, order = values, scores
    if abstains:
        chosen, order = np.array([(values[pool.cloned] if pool.cloned.any() else values).mean()]), np.zeros(1)

    def normalised(value: float) -> float:
        return float((value - values.min()) / spread)

    metrics = {}
    for k in TOP[1:]:
        inside = statistics.top_probabilities(order, k)
        metrics[f"worst@{k}"] = normalised(-statistics.expected_best_of_top(-chosen, order, k))
        metrics[f"mean@{k}"] = normalised(inside @ chosen / inside.sum())
    for k in () if abstains else TOP:
        inside = statistics.top_probabilities(order, k)
        metrics[f"precision@{k}"] = float(inside @ statistics.top_probabilities(values, k) / inside.sum())
    for budget in BUDGETS:
        metrics[f"eop@{budget}"] = normalised(statistics.expected_best_of_top(chosen, order, budget))
    deployed = float(statistics.top_probabilities(order, 1) @ chosen)
    metrics["evaluations worth"] = statistics.evaluations_worth(values, deployed)
    metrics["abstains"] = float(abstains)
    return metrics


def correlation_metrics(pool: ScoredPool, scores: np.ndarray) -> dict[str, float]:
    """Rank correlation of scores [n] with returns, where that is a question: means over groups, unweighted.

    within run: over the checkpoints of each member. within algorithm: over the last checkpoints of an algorithm's
    members, so over settings and seeds. across algorithms: of the mean ranks of algorithms' last checkpoints, three or
    more. pooled: over everything; it mixes these questions, and is no headline.
    """
    returns = pool.returns.to_numpy()
    algorithms = pool.candidates["algorithm"].to_numpy()
    last = pool.last & ~np.isnan(scores)
    metrics = {}
    for name, correlation in (("spearman", statistics.spearman), ("kendall", statistics.kendall)):
        runs = [correlation(scores[rows], returns[rows]) for rows in _groups(pool.member)]
        within = [correlation(scores[rows & pool.last], returns[rows & pool.last]) for rows in _groups(algorithms)]
        metrics[f"{name} within run"] = _mean(runs)
        metrics[f"{name} within algorithm"] = _mean(within)
        ranks = pd.Series(scores[last]).rank().groupby(algorithms[last]).mean()
        means = pd.Series(returns[last]).groupby(algorithms[last]).mean()
        metrics[f"{name} across algorithms"] = correlation(ranks.to_numpy(), means.to_numpy())
        metrics[f"{name} pooled"] = correlation(scores, returns)
    return metrics


def _groups(labels: np.ndarray) -> list[np.ndarray]:
    return [labels == label for label in pd.unique(labels)]


def _mean(values: list[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
