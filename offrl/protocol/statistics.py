"""Means and their uncertainty, aggregates over runs and tasks, and what a score is worth as a guide to returns.

Arrays of one run are [members, episodes]; episode e of every member starts from the same reset seed. Everything random
is drawn from a numpy Generator made of `seed`: the same call twice gives the same numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

# scipy.stats takes a second to import: that is done where it is needed

Values = np.ndarray | pd.Series | Sequence[float] | Sequence[Sequence[float]]
"""What is read as an array of floats."""
FEW_DATASETS = 8
"""Below so many datasets an interval over them is not to be trusted: show all points, and an exact sign-flip p."""


def standard_error(values: np.ndarray) -> float:
    """Standard error of the mean of independent values [n]; nan for a single one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def episode_error(values: np.ndarray) -> float:
    """Standard error over episodes of the mean of everything, for these very members.

    Members share reset seeds, so a seed's returns go together: the unit is the mean over members of one episode.
    """
    return standard_error(values.mean(0))


def member_spread(values: np.ndarray) -> float:
    """Standard deviation over members of their means; nan for one member."""
    return float(np.std(values.mean(1), ddof=1)) if len(values) > 1 else float("nan")


def bootstrap_interval(
    values: np.ndarray, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean, members and reset seeds both drawn anew with replacement.

    It is too narrow for few members: with three, a nominal 95 % covers some 80 %. For one it says only what the
    episodes leave open.
    """
    random = np.random.default_rng(seed)
    members, episodes = values.shape
    member_shares = random.multinomial(members, np.full(members, 1 / members), resamples) / members
    episode_shares = random.multinomial(episodes, np.full(episodes, 1 / episodes), resamples) / episodes
    means = ((member_shares @ values) * episode_shares).sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Interval(NamedTuple):
    """An estimate with the ends of its confidence interval, in the unit of the values it was made of."""

    estimate: float
    low: float
    high: float
    method: str
    """How the ends were found: percentile, bca, jackknife_t."""
    warning: str = ""
    """What speaks against trusting it; empty where nothing does."""


# ---------------------------------------------------------------------------------------------------------------
# Aggregates over runs and tasks (Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice").
# `scores` are normalised scores [..., n], all runs of all tasks pooled; the last axis is reduced.
# ---------------------------------------------------------------------------------------------------------------


def interquartile_mean(scores: Values) -> Any:
    """Mean of the middle half of `scores` [..., n]: a quarter of them, rounded down, is cut at each end.

    nan where a score is nan: a missing run must not be cut away as if it were the best.
    """
    ordered = np.sort(np.asarray(scores, float), axis=-1)  # nan goes last
    cut = ordered.shape[-1] // 4
    middle = ordered[..., cut : ordered.shape[-1] - cut].mean(-1)
    return _scalar(np.where(np.isnan(ordered[..., -1]), np.nan, middle))


def optimality_gap(scores: Values, target: float = 1.0) -> Any:
    """By how much `scores` [..., n] fall short of `target` on average; what lies above it does not make up for it."""
    return _scalar(target - np.minimum(np.asarray(scores, float), target).mean(-1))


def performance_profile(scores: Values, thresholds: Values) -> np.ndarray:
    """Share of `scores` [n] strictly above each threshold, [thresholds]."""
    return (np.ravel(scores)[:, None] > np.asarray(thresholds, float)).mean(0)


def profile_band(
    tasks: Sequence[Values], thresholds: Values, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Profile of the runs of several tasks, with its pointwise band: (share, low, high), each [thresholds].

    Runs are drawn anew within each task (percentile): too narrow for few runs, see `coverage_warning`.
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
    return _scalar(np.mean(shares, axis=0))


def coverage_warning(runs: int, tasks: int = 1) -> str:
    """What a nominal 95 % percentile (or BCa) bootstrap of so many runs of each task really covers; empty from 20 runs.

    The figures are of the interquartile mean of normal scores, measured (selection.md, section 3.3).
    """
    if runs >= 20:
        return ""
    covers = 78 if runs <= 3 else 87 if runs <= 5 and tasks < 6 else 88 if runs <= 5 else 91
    return f"{runs} runs per task: a nominal 95 % bootstrap interval covers about {covers} % or less"


def stratified_interval(
    tasks: Sequence[Values],
    statistic: Callable[..., Any],
    method: str = "auto",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Interval of a statistic of several samples, runs drawn anew within each: they are the strata.

    Args:
        tasks: scores [runs] of each task.
        statistic: of as many arrays [..., runs] as there are tasks; reduces the last axis of them.
        method: "percentile" or "bca" (`scipy.stats.bootstrap`), "jackknife_t" (estimate ± t · jackknife standard
            error, degrees of freedom after Welch and Satterthwaite), or "auto": "jackknife_t" while a task has fewer
            than 10 runs, where the bootstrap is too narrow, and "bca" from there.
    """
    return _stratified(tasks, statistic, method, level, resamples, seed)


def aggregate_interval(
    tasks: Sequence[Values],
    aggregate: Callable[[np.ndarray], Any] = interquartile_mean,
    method: str = "auto",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """`stratified_interval` of an aggregate of all runs of all tasks, pooled; by default the interquartile mean.

    A task with more runs than another weighs more: give every task the same number. The jackknife of the
    interquartile mean has its degrees of freedom from the scores that are not cut (Tukey and McLaughlin 1963).
    """
    total = sum(map(len, tasks))
    kept = 1 - 2 * (total // 4) / total if aggregate is interquartile_mean else 1.0
    return _stratified(
        tasks, lambda *drawn: aggregate(np.concatenate(drawn, axis=-1)), method, level, resamples, seed, total, kept
    )


def improvement_interval(x: Sequence[Values], y: Sequence[Values], **options: Any) -> Interval:
    """`stratified_interval` of `probability_of_improvement`, cut to [0, 1]; X and Y are drawn independently.

    Where every run of X is above every run of Y it has no width: with few runs, look at their number instead.
    """
    count = len(x)
    interval = stratified_interval(
        [*x, *y], lambda *drawn: probability_of_improvement(drawn[:count], drawn[count:]), **options
    )
    low, high = np.clip([interval.low, interval.high], 0.0, 1.0)  # nan, of a single run, stays nan
    return interval._replace(low=float(low), high=float(high))


def _stratified(
    tasks: Sequence[Values],
    statistic: Callable[..., Any],
    method: str,
    level: float,
    resamples: int,
    seed: int,
    pooled: int | None = None,
    kept: float = 1.0,
) -> Interval:
    """`stratified_interval`; `pooled`: how many scores the statistic pools, None where it keeps tasks apart."""
    samples = [np.asarray(task, float) for task in tasks]
    fewest = min(map(len, samples))
    if method == "auto":
        method = "jackknife_t" if fewest < 10 else "bca"
    if method not in ("percentile", "bca", "jackknife_t"):
        raise ValueError(f"method={method}: choose from percentile, bca, jackknife_t, auto")
    estimate = float(statistic(*samples))
    if fewest < 2 or not np.isfinite(estimate):
        warning = "one run of a task has no spread" if fewest < 2 else "scores that are not finite"
        return Interval(estimate, float("nan"), float("nan"), method, warning)
    if method == "jackknife_t":
        half = _jackknife_t(samples, statistic, level, pooled, kept)
        return Interval(estimate, estimate - half, estimate + half, method)

    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where all resamples are alike; the ends are then nan
        low, high = stats.bootstrap(
            samples,
            lambda *drawn, axis: statistic(*drawn),
            n_resamples=resamples,
            confidence_level=level,
            method={"percentile": "percentile", "bca": "BCa"}[method],
            vectorized=True,
            axis=-1,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    if method == "bca" and not (np.isfinite(low) and np.isfinite(high)):
        return _stratified(tasks, statistic, "percentile", level, resamples, seed)
    return Interval(estimate, float(low), float(high), method, coverage_warning(fewest, len(samples)))


def _jackknife_t(
    samples: list[np.ndarray], statistic: Callable[..., Any], level: float, pooled: int | None, kept: float
) -> float:
    """Half the width of estimate ± t · SE, with SE² summed over the strata; wide, and honest, for three runs."""
    from scipy import stats

    variances, freedoms = [], []
    for place, sample in enumerate(samples):
        n = len(sample)
        # all leave-one-out samples at once, [n, n - 1]
        others = np.broadcast_to(sample, (n, n))[~np.eye(n, dtype=bool)].reshape(n, n - 1)
        rest = [np.broadcast_to(other, (n, len(other))) for other in samples]
        left_out = np.asarray(statistic(*rest[:place], others, *rest[place + 1 :]))
        among = pooled or n  # the fewer there are, the more the absence of one moves the statistic
        scale = ((among - 1) / among) ** 2 * n / (n - 1)
        variances.append(scale * np.sum((left_out - left_out.mean()) ** 2))
        freedoms.append(n - 1)
    total = float(np.sum(variances))
    if total == 0:
        return 0.0
    freedom = kept * total**2 / np.sum(np.square(variances) / freedoms)
    return float(stats.t.ppf((1 + level) / 2, max(freedom, 1.0)) * np.sqrt(total))


def hierarchical_means(values: Values, levels: Sequence[Values], resamples: int = 10000, seed: int = 0) -> np.ndarray:
    """Bootstrap distribution of a nested mean, [resamples]: such as datasets -> seeds -> episodes.

    The mean is over the groups of the first level of the means over the groups of the second within each, and so on
    down to the single values. At every level as many groups are drawn, with replacement, as there are, and each copy
    of a group draws its own children.

    Args:
        values: [n].
        levels: for each level, outermost first, the label of every value, [n].
    """
    random = np.random.default_rng(seed)
    values = np.asarray(values, float)
    parent = np.zeros(len(values), np.int64)
    copies = np.ones((resamples, 1), np.int64)
    weights = np.ones((resamples, 1))
    for labels in levels:
        _, label = np.unique(np.asarray(labels), return_inverse=True)
        pairs, child = np.unique(np.stack([parent, label.ravel()], 1), axis=0, return_inverse=True)
        drawn = np.zeros((resamples, len(pairs)), np.int64)
        shares = np.zeros((resamples, len(pairs)))
        for group in range(copies.shape[1]):
            children = np.flatnonzero(pairs[:, 0] == group)
            # m copies that draw n children each, independently: together one multinomial of m n draws
            total = copies[:, group] * len(children)
            drawn[:, children] = random.multinomial(total, np.full(len(children), 1 / len(children)))
            shares[:, children] = (weights[:, group] / np.maximum(total, 1))[:, None] * drawn[:, children]
        copies, weights, parent = drawn, shares, child.ravel()
    means = np.zeros(resamples)
    for group in range(copies.shape[1]):
        members = values[parent == group]
        total = copies[:, group] * len(members)
        drawn = random.multinomial(total, np.full(len(members), 1 / len(members)))
        means += weights[:, group] * (drawn @ members) / np.maximum(total, 1)
    return means


def hierarchical_interval(
    values: Values, levels: Sequence[Values], level: float = 0.95, resamples: int = 10000, seed: int = 0
) -> Interval:
    """Percentile interval of the mean of `hierarchical_means`; warns where the outermost level has few groups."""
    drawn = hierarchical_means(values, levels, resamples, seed)
    frame = pd.DataFrame({place: np.asarray(labels) for place, labels in enumerate(levels)})
    frame["value"] = np.asarray(values, float)
    for depth in range(len(levels), 0, -1):
        frame = frame.groupby(list(range(depth)))["value"].mean().reset_index()
    outer = len(frame)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    warning = f"only {outer} groups at the outermost level: show every point, the interval is too narrow"
    return Interval(
        float(frame["value"].mean()), float(low), float(high), "percentile", warning if outer < FEW_DATASETS else ""
    )


# ---------------------------------------------------------------------------------------------------------------
# What a score is worth as a guide to returns (selection.md, section 3.2).
# `scores` are higher-is-better, nan for what may not be chosen; ties are broken at random, and expectations returned.
# ---------------------------------------------------------------------------------------------------------------


def pool_normalized(returns: Values) -> np.ndarray:
    """Returns [n] of a pool on the scale where its worst policy is 0 and its best 1; nan where all are equal."""
    returns = np.asarray(returns, float)
    spread = returns.max() - returns.min()
    return (returns - returns.min()) / spread if spread > 0 else np.full(returns.shape, np.nan)


def top_probabilities(scores: Values, k: int) -> np.ndarray:
    """Probability of each candidate [n] to be among the k with the highest scores, ties broken at random.

    Where fewer than k have a score, those that do are taken.
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

    With returns as `values` this is *guided* EOP@k: the k first policies of the order are tried, the best is kept.
    nan where no candidate has a score.
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

    1 where the average policy is as good already; n for the best of the pool.
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
        """The arm of the highest value, [repeats]; of equal ones a random one, so that their order tells nothing."""
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
    # C(place - 1, draws - 1) / C(n, draws), by logarithms: the binomials alone overflow
    log_factorial = special.gammaln  # of its argument minus 1
    usable = place >= draws
    rest = np.where(usable, place - draws, 0)
    log = log_factorial(place) - log_factorial(draws) - log_factorial(rest + 1)
    log -= log_factorial(n + 1) - log_factorial(draws + 1) - log_factorial(n - draws + 1)
    weights = np.where(usable, np.exp(log), 0.0)
    return weights / weights.sum()


# ---------------------------------------------------------------------------------------------------------------
# Correlation, agreement, reliability
# ---------------------------------------------------------------------------------------------------------------


def spearman(scores: Values, returns: Values) -> float:
    """Rank correlation over the candidates that have both, ties at their mean rank.

    Scores that are all equal say nothing: 0, the expectation over random tie-breaks. nan for fewer than three
    candidates or equal returns. Infinite scores have their place in the order.
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
    """Agreement of several orders of the same candidates: 1 where they are the same, near 0 where unrelated.

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
    """Rank correlation between means over two halves of the episodes; nan where it was found from standard errors."""
    reliability: float
    """Of all episodes: 2 r / (1 + r) (Spearman and Brown)."""
    ceiling: float
    """√reliability."""


def split_half_reliability(returns: Values, splits: int = 100, seed: int = 0) -> Reliability:
    """Reliability of mean returns from episodes [policies, episodes] (nan: not played), mean over random halvings.

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


# ---------------------------------------------------------------------------------------------------------------
# Tests
# ---------------------------------------------------------------------------------------------------------------


def sign_flip_p(differences: Values, draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided p-value of paired differences [n] under the null that each sign is a coin's.

    Exact, over all 2^n signs, up to n = 20; by random signs beyond. nan is left out. With n pairs no p is below
    2 / 2^n: 0.25 for three pairs, 0.0625 for five.
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


def holm(p_values: Values) -> np.ndarray:
    """P-values adjusted for several comparisons (Holm 1979), in the order given; nan stays nan and does not count."""
    p_values = np.asarray(p_values, float)
    adjusted = np.full(p_values.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    steps = p_values[order] * (len(order) - np.arange(len(order)))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def _ranks(values: np.ndarray) -> np.ndarray:
    """1 for the lowest of `values` [n]; ties share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _scalar(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
