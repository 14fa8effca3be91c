"""How well scores guide the choice from a pool of policies when only some of them can be tried online.

In `scores` higher is better, and nan marks candidates that cannot be chosen. Ties are broken at random; the functions
return expectations over that.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from offrl.statistics.values import Values


def pool_normalized(returns: Values) -> np.ndarray:
    """Returns [n] of a pool on the scale where its worst policy is 0 and its best 1; nan where all are equal."""
    returns = np.asarray(returns, float)
    spread = returns.max() - returns.min()
    return (returns - returns.min()) / spread if spread > 0 else np.full(returns.shape, np.nan)


def top_probabilities(scores: Values, k: int) -> np.ndarray:
    """Probability of each candidate [n] to be among the k with the highest scores, ties broken at random.

    If fewer than k have a score, all of those are taken.
    """
    scores = np.asarray(scores, float)
    ranked = scores[~np.isnan(scores)]
    probabilities = np.zeros(len(scores))
    if not len(ranked):
        return probabilities
    k = min(k, len(ranked))
    boundary = np.sort(ranked)[-k]
    above, tied = scores > boundary, scores == boundary
    probabilities[above] = 1
    probabilities[tied] = (k - above.sum()) / tied.sum()
    return probabilities


def expected_best_of_top(values: Values, scores: Values, k: int) -> float:
    """Expected highest value among the k candidates with the highest scores, ties broken at random.

    With returns as `values` this is the *guided* expected online performance, EOP@k: the first k policies in the order
    of the scores are tried, and the best is kept. nan if no candidate has a score.
    """
    values, probabilities = np.asarray(values, float), top_probabilities(scores, k)
    sure, tied = values[probabilities == 1], values[(probabilities > 0) & (probabilities < 1)]
    if not len(tied):
        return float(sure.max()) if len(sure) else float("nan")
    drawn = round(float(probabilities[(probabilities > 0) & (probabilities < 1)].sum()))
    best = np.maximum(np.sort(tied), sure.max() if len(sure) else -np.inf)
    return float(_best_of_draws(len(tied), drawn, replace=False) @ best)


def expected_online_performance(returns: Values, budgets: Values, replace: bool = False) -> np.ndarray:
    """Expected best return of B policies tried at random, for each budget B, [budgets].

    Args:
        returns: [n], one for each policy.
        budgets: numbers of policies that can be tried; beyond n, without replacement, all are.
        replace: draw with replacement (Kurenkov and Kolesnikov 2022, as published), or without (unbiased; the default).
    """
    ordered = np.sort(np.asarray(returns, float))
    return np.array([_best_of_draws(len(ordered), int(b), replace) @ ordered for b in np.atleast_1d(budgets)])


def evaluations_worth(returns: Values, achieved: float) -> int:
    """B*: how many policies drawn at random, without replacement, must be tried online to expect `achieved`.

    1 if the average policy is that good; n for the best of the pool.
    """
    returns = np.asarray(returns, float)
    slack = 1e-9 * (returns.max() - returns.min())
    curve = expected_online_performance(returns, np.arange(1, len(returns) + 1))
    enough = np.flatnonzero(curve >= achieved - slack)
    return int(enough[0]) + 1 if len(enough) else len(returns)


def bandit_curve(
    returns: Values,
    budget: int,
    low: float,
    high: float,
    exploration: float = 1.0,
    repeats: int = 1000,
    order: Values | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Mean return of the arm that UCB1 recommends after each of `budget` episodes, [budget].

    Returns are scaled by the range of the *data* (`low`, `high`), so that the bonus √(2 ln t / n) means the same in
    every task and for negative returns. Every arm is pulled once first, in the order given or a random one; only an
    arm that was pulled can be recommended.

    Args:
        returns: [arms, episodes]; a pull draws one of the arm's episodes with replacement.
        exploration: factor of the bonus.
    """
    returns = np.asarray(returns, float)
    if not high > low:
        raise ValueError(f"low={low} high={high}: the range of the data's returns must have a width")
    random = np.random.default_rng(seed)
    arms, episodes = returns.shape
    truth, scaled = returns.mean(1), (returns - low) / (high - low)
    trials = np.arange(repeats)
    first = (
        np.stack([random.permutation(arms) for _ in trials])
        if order is None
        else np.broadcast_to(np.asarray(order, np.int64), (repeats, arms))
    )
    totals, pulls = np.zeros((repeats, arms)), np.zeros((repeats, arms))
    curve = np.empty(budget)

    def best(values: np.ndarray) -> np.ndarray:
        """The arm of the highest value, [repeats]; ties are broken at random, so the arms' order has no influence."""
        tied = values == values.max(axis=1, keepdims=True)
        return np.argmax(tied * (1 - random.random(values.shape)), axis=1)

    for t in range(budget):
        seen = np.maximum(pulls, 1)
        bonus = exploration * np.sqrt(2 * np.log(max(t, 1)) / seen)
        arm = first[:, t] if t < arms else best(totals / seen + bonus)
        totals[trials, arm] += scaled[arm, random.integers(episodes, size=repeats)]
        pulls[trials, arm] += 1
        means = np.where(pulls > 0, totals / np.maximum(pulls, 1), -np.inf)
        curve[t] = truth[best(means)].mean()
    return curve


def _best_of_draws(n: int, draws: int, replace: bool) -> np.ndarray:
    """Probability of each of n, in ascending order, to be the best of `draws` drawn at random, [n]."""
    if draws < 1:
        raise ValueError(f"{draws} draws: at least 1")
    place = np.arange(1, n + 1)
    if replace:
        return (place / n) ** draws - ((place - 1) / n) ** draws
    draws = min(draws, n)
    # C(place - 1, draws - 1) / C(n, draws), by logarithms: the binomials themselves overflow
    log_factorial = special.gammaln  # of its argument minus 1
    usable = place >= draws
    rest = np.where(usable, place - draws, 0)
    log = log_factorial(place) - log_factorial(draws) - log_factorial(rest + 1)
    log -= log_factorial(n + 1) - log_factorial(draws + 1) - log_factorial(n - draws + 1)
    weights = np.where(usable, np.exp(log), 0.0)
    return weights / weights.sum()
