"""Means and their confidence intervals: of one run, of aggregates over runs and tasks, of nested groups.

Arrays of one run are [members, episodes]; episode e of every member starts from the same reset seed. Random numbers
come from a numpy Generator seeded with `seed`: the same call twice gives the same result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from offrl.statistics.profiles import interquartile_mean, probability_of_improvement
from offrl.statistics.values import Values

# scipy.stats takes a second to import, so it is imported where it is needed

FEW_DATASETS = 8
"""With fewer datasets an interval over them is unreliable: show all points, and an exact sign-flip p-value."""


def standard_error(values: np.ndarray) -> float:
    """Standard error of the mean of independent values [n]; nan for a single one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def episode_error(values: np.ndarray) -> float:
    """Standard error, over episodes, of the mean over members and episodes; the members are taken as fixed.

    Members share reset seeds, so returns from one seed are correlated: the independent unit is an episode's mean over
    members.
    """
    return standard_error(values.mean(0))


def member_spread(values: np.ndarray) -> float:
    """Standard deviation over members of their means; nan for one member."""
    return float(np.std(values.mean(1), ddof=1)) if len(values) > 1 else float("nan")


def bootstrap_interval(
    values: np.ndarray, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean, with members and reset seeds both resampled with replacement.

    It is too narrow for few members: with three, a nominal 95 % interval covers about 80 %. With one member it covers
    only the uncertainty from the episodes.
    """
    random = np.random.default_rng(seed)
    members, episodes = values.shape
    member_shares = random.multinomial(members, np.full(members, 1 / members), resamples) / members
    episode_shares = random.multinomial(episodes, np.full(episodes, 1 / episodes), resamples) / episodes
    means = ((member_shares @ values) * episode_shares).sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Interval(NamedTuple):
    """An estimate with the ends of its confidence interval, in the unit of the values."""

    estimate: float
    low: float
    high: float
    method: str
    """How the ends were computed: percentile, bca, jackknife_t."""
    warning: str = ""
    """Why the interval may be unreliable; empty if there is no reason."""


def coverage_warning(runs: int, tasks: int = 1) -> str:
    """A warning of how much a nominal 95 % percentile (or BCa) bootstrap over so few runs covers; empty from 20 runs.

    The figures were measured for the interquartile mean of normally distributed scores.
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
    """Interval of a statistic of several samples (the strata), with runs resampled within each.

    Args:
        tasks: scores [runs] of each task.
        statistic: a function of one array [..., runs] per task, which reduces their last axis.
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
    interquartile mean takes its degrees of freedom from the scores that are not cut (Tukey and McLaughlin 1963).
    """
    total = sum(map(len, tasks))
    kept = 1 - 2 * (total // 4) / total if aggregate is interquartile_mean else 1.0
    return _stratified(
        tasks, lambda *drawn: aggregate(np.concatenate(drawn, axis=-1)), method, level, resamples, seed, total, kept
    )


def improvement_interval(x: Sequence[Values], y: Sequence[Values], **options: Any) -> Interval:
    """`stratified_interval` of `probability_of_improvement`, clipped to [0, 1]; X and Y are resampled independently.

    If every run of X is above every run of Y, it has no width: with few runs, consider their number instead.
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
    """`stratified_interval`; `pooled`: how many scores the statistic pools, None if it keeps tasks apart."""
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
        warnings.simplefilter("ignore")  # scipy warns if all resamples are equal; the ends are then nan
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
    """Half the width of estimate ± t · SE, with SE² summed over the strata; for three runs wide, but not too narrow."""
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

    The mean over the groups of the first level is taken of the means over the groups of the second level within each,
    and so on down to single values. At every level the groups are resampled with replacement, as many as there are, and
    each copy of a group resamples its own children.

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
    """Percentile interval of the mean of `hierarchical_means`; warns if the outermost level has few groups."""
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
