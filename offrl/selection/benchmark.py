"""How well do selectors select? `python -m offrl.benchmark_selection POOL...`, or `benchmark`.

Given pools whose returns are known, every selector is applied to the diagnostics alone, and what it would have deployed
is looked up. The protocol is section 3 of selection.md: ties are broken at random and expectations reported; returns
are normalised within a pool (0 its worst policy, 1 its best); a selector that abstains deploys behaviour cloning, and
is counted at its mean return; pools in which there is nothing to select are dropped.

Apart from `offrl.evaluate` and reports, this is the only module that reads returns; a selector never sees them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from offrl import command_line, statistics
from offrl.errors import UserError, nearest, run_command
from offrl.runs.run import labels
from offrl.selection import selectors
from offrl.selection.diagnostics import cost, seconds_spent

CANDIDATE_COLUMNS = ["run", "algorithm", "setting", "member", "seed", "step"]
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
RESAMPLES = 10_000
REPLICATES = 500
"""Resamples within one pool; those over pools draw from them."""
PRIMARY = "regret@1"


@dataclass(frozen=True)
class ScoredPool:
    """Candidates on one dataset with their diagnostics and returns; all tables have the candidates as index."""

    name: str
    candidates: pd.DataFrame
    """CANDIDATE_COLUMNS, and optionally `default`: whether it has the published settings (else: an empty setting)."""
    scores: pd.DataFrame
    """Diagnostics as measured; nan where they do not apply. attrs: coverage, standard_error, seconds (of each
    measurement, for the whole pool)."""
    returns: pd.Series
    """Mean undiscounted return."""
    errors: pd.Series
    """Standard error of it, nan where unknown."""
    episodes: pd.DataFrame | None = None
    """Returns [candidates x episodes], where they are known: one column is one reset seed."""
    reference: tuple[float, float] | None = None
    """Returns that make 0 and 100 of the normalised score."""

    @cached_property
    def last(self) -> np.ndarray:
        """Whether a candidate is the last checkpoint of its member, bool [n]."""
        return self.candidates.index.isin(selectors.last_checkpoints(self.candidates))

    @cached_property
    def own_last(self) -> np.ndarray:
        """Position of the last checkpoint of each candidate's member, int [n]."""
        final = np.zeros(self.member.max() + 1, np.int64)
        final[self.member[self.last]] = np.flatnonzero(self.last)
        return final[self.member]

    @cached_property
    def cloned(self) -> np.ndarray:
        """Whether it is a last checkpoint of behaviour cloning that may be deployed, bool [n]."""
        return self.candidates.index.isin(selectors.cloning(self.candidates, self.scores))

    @cached_property
    def default(self) -> np.ndarray:
        """Whether it is the last checkpoint of a run with the default settings, bool [n]: in what the pool varies, the
        algorithm's defaults; in what it does not, whatever all have. A table that does not tell has them where an
        algorithm has one setting alone."""
        if "default" in self.candidates:
            return self.last & self.candidates["default"].astype(bool).to_numpy()
        return self.last & (self.candidates["setting"] == "").to_numpy()

    @cached_property
    def member(self) -> np.ndarray:
        """Number of the (run, member) that each candidate is a checkpoint of, int [n]."""
        return self.candidates.groupby(["run", "member"], dropna=False, sort=False).ngroup().to_numpy()

    @cached_property
    def configuration(self) -> np.ndarray:
        """Number of its (algorithm, setting), within which runs differ in their seed, int [n]."""
        return self.candidates.groupby(["algorithm", "setting"], dropna=False, sort=False).ngroup().to_numpy()

    @cached_property
    def reliability(self) -> statistics.Reliability:
        if self.episodes is not None:
            return statistics.split_half_reliability(self.episodes.to_numpy())
        return statistics.reliability_from_errors(self.returns, self.errors)

    @property
    def dropped(self) -> str:
        """Why there is nothing to select here; empty where there is."""
        values = self.returns.to_numpy()
        if len(values) < 2:
            return "fewer than two candidates"
        spread = values.max() - values.min()
        if not spread > 0:
            return "all candidates have the same return"
        error = self.errors.mean()
        if np.isfinite(error) and spread < 3 * error:
            return f"returns span {spread:.4g}, less than 3 standard errors ({error:.4g})"
        return ""


@dataclass
class Result:
    """What `benchmark` found, tidy."""

    points: pd.DataFrame
    """pool, selector, metric, value: every single number."""
    summary: pd.DataFrame
    """selector, metric, mean, low, high, median, worst, pools, kind (composite, single, reference, ...)."""
    comparisons: pd.DataFrame
    """The baseline against every other selector, paired over pools: baseline minus other."""
    pools: pd.DataFrame
    """One row per pool: sizes, spread, reliability and ceiling, why it was dropped."""
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------------
# Metrics of one choice
# ---------------------------------------------------------------------------------------------------------------


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


class Resamples(NamedTuple):
    """Pools to decide in: the pool itself, or what might have been instead of it."""

    returns: np.ndarray
    """[resamples, n]"""
    copies: np.ndarray
    """How often each candidate is there, int [resamples, n]."""

    @property
    def present(self) -> np.ndarray:
        return self.copies > 0

    @classmethod
    def none(cls, pool: ScoredPool) -> Resamples:
        returns = pool.returns.to_numpy(float)[None]
        return cls(returns, np.ones(returns.shape, np.int64))


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


# ---------------------------------------------------------------------------------------------------------------
# Uncertainty
# ---------------------------------------------------------------------------------------------------------------


def resample(pool: ScoredPool, count: int, random: np.random.Generator) -> Resamples | None:
    """Pools that chance might have made instead of this one; None where neither seeds nor errors are known.

    Of each (algorithm, setting) as many runs are drawn, with replacement, as there are: their seed is what chance
    chose. All checkpoints of a run come or stay away together. Then episodes are drawn, the same for all policies
    (they share reset seeds), or, where only standard errors are known, normal errors.
    """
    members = pd.Series(pool.configuration).groupby(pool.member).first()  # member -> its configuration
    order = members.to_numpy().argsort(kind="stable")
    sizes = members.value_counts().sort_index().to_numpy()
    noise = pool.errors.fillna(0.0).to_numpy()
    if sizes.max() < 2 and pool.episodes is None and not noise.any():
        return None
    starts, size = (np.repeat(values, sizes) for values in (np.cumsum(sizes) - sizes, sizes))
    drawn = order[starts + (random.random((count, len(order))) * size).astype(int)]
    copies = np.zeros((count, len(order)), np.int64)
    np.add.at(copies, (np.arange(count)[:, None], drawn), 1)
    returns = np.broadcast_to(pool.returns.to_numpy(float), (count, len(pool.returns)))
    if pool.episodes is not None:
        matrix = pool.episodes.to_numpy()
        played, episodes = ~np.isnan(matrix), matrix.shape[1]
        weights = random.multinomial(episodes, np.full(episodes, 1 / episodes), count)
        total = weights @ played.T
        # a candidate for which no drawn episode was played keeps its mean
        returns = np.where(total > 0, weights @ np.where(played, matrix, 0.0).T / np.maximum(total, 1), returns)
    elif noise.any():
        returns = returns + noise * random.standard_normal(returns.shape)
    return Resamples(returns, copies[:, pool.member])


def over_pools(
    values: np.ndarray, within: list[np.ndarray | None], draws: np.ndarray, uniform: np.ndarray
) -> np.ndarray:
    """Bootstrap distribution of the mean over pools, [resamples].

    Args:
        values: one for each pool, [pools]; nan is left out.
        within: for each pool its value in each resample, or None for the value alone.
        draws: which pools, int [resamples, pools].
        uniform: which replicate of each copy, in [0, 1), [resamples, pools].
    """
    longest = max((len(part) for part in within if part is not None), default=1)
    table = np.empty((len(values), longest))
    for row, (value, part) in enumerate(zip(values, within, strict=True)):
        table[row] = value if part is None else part
    drawn = table[draws, (uniform * longest).astype(int)]
    known = ~np.isnan(drawn)
    with np.errstate(invalid="ignore"):
        return np.where(known, drawn, 0.0).sum(1) / known.sum(1)


# ---------------------------------------------------------------------------------------------------------------
# The benchmark
# ---------------------------------------------------------------------------------------------------------------


def benchmark(
    pools: Sequence[ScoredPool],
    names: Sequence[str] | None = None,
    baseline: str | None = None,
    directions: Mapping[str, str] | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    within: int = REPLICATES,
    seed: int = 0,
) -> Result:
    """Score selectors on pools.

    Args:
        names: selectors to score, each by name or as `file.py:function`; None: all that every pool's table feeds.
        baseline: what the others are compared with; None: the default selector, or else the first.
        directions: of diagnostics that `selectors.DIRECTIONS` does not know, "high" or "low".

    Raises:
        UserError: no pool has anything to select, an unknown selector, or a table that none can be fed from.
    """
    if not pools:
        raise UserError("no pool given")
    if len({pool.name for pool in pools}) < len(pools):
        raise UserError("two pools have the same name: " + ", ".join(sorted(pool.name for pool in pools)))
    kept = [pool for pool in pools if not pool.dropped]
    table = pd.DataFrame([_describe(pool) for pool in pools])
    if not kept:
        raise UserError("no pool has anything to select: " + "; ".join(f"{p.name}: {p.dropped}" for p in pools))
    fed = [selectors.available(pool.scores, directions) for pool in kept]
    notes = []
    if names is None:
        names = [name for name in fed[0] if all(name in known for known in fed)]
        some = sorted({name for known in fed for name in known} - set(names))
        if some:
            notes.append(f"left out, as not every pool has what they need: {', '.join(some)} (name them to score them)")
    if not names:
        raise UserError("no selector can be fed from every pool: the tables have no diagnostic of a known direction")
    unknown = {name for name in names for known in fed[:1] if ":" not in name and all(name not in k for k in fed)}
    for name in unknown:
        known_names = {n for known in fed for n in known}
        raise UserError(f"selector {name}: not among those that the tables feed; {nearest(name, known_names)}")
    if baseline is not None and baseline not in names:
        raise UserError(f"baseline {baseline}: not among the selectors scored; {nearest(baseline, names)}")
    baseline = baseline or (selectors.DEFAULT if selectors.DEFAULT in names else names[0])

    random = np.random.default_rng(seed)
    rows: list[tuple[str, str, str, float]] = []
    drawn: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for pool, known in zip(kept, fed, strict=True):
        orders = {}
        for name in names:
            # one that this pool cannot feed is asked all the same: it abstains, or ranks by what there is
            unfed = {} if ":" in name else {name: selectors.single(name, "high")}
            rank = selectors.find(name, unfed | selectors.SELECTORS | known)
            orders[name] = selectors.apply(rank, pool.scores, pool.candidates)
        orders |= {name: scores for name, scores in references(pool).items() if name not in orders}
        plain, others = Resamples.none(pool), resample(pool, within, random)
        drawn[pool.name] = {}
        for name, order in orders.items():
            scores, abstains = order.to_numpy(float), bool(order.attrs.get("abstains"))
            metrics = {metric: float(value[0]) for metric, value in decisions(pool, scores, abstains, plain).items()}
            metrics |= budget_metrics(pool, scores, abstains)
            if name not in REFERENCES:
                metrics |= correlation_metrics(pool, scores)
                if "seconds" in pool.scores.attrs:
                    metrics["seconds"] = cost(order.attrs.get("uses", ()), pool.scores.attrs["seconds"])
            rows += [(pool.name, name, metric, value) for metric, value in metrics.items()]
            if others is not None:
                own = others.returns if name == "oracle" else scores
                drawn[pool.name][name] = decisions(pool, own, abstains, others)
    points = pd.DataFrame(rows, columns=["pool", "selector", "metric", "value"])

    pool_names = [pool.name for pool in kept]
    draws = random.integers(len(kept), size=(resamples, len(kept)))
    uniform = random.random((resamples, len(kept)))

    found = {key: part.set_index("pool")["value"] for key, part in points.groupby(["selector", "metric"], sort=False)}

    def column(name: str, metric: str) -> tuple[np.ndarray, list[np.ndarray | None]]:
        return found[name, metric].reindex(pool_names).to_numpy(), [
            drawn[pool].get(name, {}).get(metric) for pool in pool_names
        ]

    ends = [(1 - level) / 2, (1 + level) / 2]
    summary = []
    for (selector, what), part in found.items():
        name, metric = str(selector), str(what)
        values = part.dropna()
        if values.empty:
            continue
        spread = over_pools(*column(name, metric), draws, uniform)
        low, high = np.nanquantile(spread, ends)
        bad = values.min() if _higher_is_better(metric) else values.max()
        summary.append(
            (name, _kind(name), metric, values.mean(), low, high, values.median(), bad, len(values), len(kept))
        )
    columns = ["selector", "kind", "metric", "mean", "low", "high", "median", "worst", "pools", "pools_kept"]
    compared = []
    ours, our_draws = column(baseline, PRIMARY)
    for name in dict.fromkeys(points["selector"]):
        if name == baseline or name in KNOWING:
            continue
        theirs, their_draws = column(name, PRIMARY)
        both = ~np.isnan(ours) & ~np.isnan(theirs)
        if not both.any():
            continue
        differences = np.where(both, ours - theirs, np.nan)
        paired = [
            None if a is None or b is None or not shared else a - b
            for a, b, shared in zip(our_draws, their_draws, both, strict=True)
        ]
        low, high = np.nanquantile(over_pools(differences, paired, draws, uniform), ends)
        known = differences[both]
        signs = [int((np.abs(known) <= 1e-12).sum()), int((known < -1e-12).sum()), int((known > 1e-12).sum())]
        p = statistics.sign_flip_p(known)
        compared.append((baseline, name, PRIMARY, known.mean(), low, high, *signs, len(known), p))
    comparisons = pd.DataFrame(
        compared,
        columns=["baseline", "other", "metric", "difference", "low", "high", "equal", "better", "worse", "pools", "p"],
    )
    comparisons["p_holm"] = statistics.holm(comparisons["p"].to_numpy(float))
    if len(kept) < statistics.FEW_DATASETS:
        notes.append(
            f"only {len(kept)} pools: intervals over them are too narrow; look at every point, and at the exact p, "
            f"which cannot be below {2 / 2 ** len(kept):.3g}"
        )
    return Result(points, pd.DataFrame(summary, columns=columns), comparisons, table, notes)


def _describe(pool: ScoredPool) -> dict[str, Any]:
    returns, reliability = pool.returns, pool.reliability
    return {
        "pool": pool.name,
        "candidates": len(returns),
        "algorithms": pool.candidates["algorithm"].nunique(),
        "runs": len(np.unique(pool.member)),
        "lowest": returns.min(),
        "mean": returns.mean(),
        "highest": returns.max(),
        "standard_error": pool.errors.mean(),
        "split_half": reliability.split_half,
        "reliability": reliability.reliability,
        "ceiling": reliability.ceiling,
        "dropped": pool.dropped,
    }


def _kind(name: str) -> str:
    if name in REFERENCES:
        return "oracle" if name in KNOWING else "reference"
    return "composite" if name in selectors.SELECTORS or ":" in name else "single"


def _higher_is_better(metric: str) -> bool:
    return not metric.startswith(("regret", "harm", "normalized score lost", "abstains", "seconds"))


# ---------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------


def read_csv(path: Path) -> pd.DataFrame:
    """
    Raises:
        UserError: there is no such file, or it is no table.
    """
    try:
        table = pd.read_csv(path)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a CSV table: {str(error).splitlines()[0]}") from error
    if table.empty:
        raise UserError(f"{path}: the table has no rows")
    return table


def require(table: pd.DataFrame, names: Sequence[str], path: Path) -> None:
    for name in names:
        if name not in table:
            raise UserError(f"{path}: no column {name}; {nearest(name, map(str, table.columns))}")


def numbers(table: pd.DataFrame, name: str, path: Path) -> pd.Series:
    values = pd.to_numeric(table[name], errors="coerce")
    bad = values.isna() & table[name].notna()
    if bad.any():
        raise UserError(
            f"{path}: column {name}, row {bad.to_numpy().argmax() + 1}: {table.loc[bad, name].iloc[0]!r} is no number"
        )
    return values.astype(float)


def read_pools(
    diagnostics: Path, oracle: Path | None, warn: Callable[[str], None] = lambda text: None
) -> list[ScoredPool]:
    """Pools from a tidy table of diagnostics and a table of returns; one for each dataset (and fingerprint) in it.

    A row with the diagnostic `coverage` gives the data's coverage, whatever its candidate.

    Args:
        diagnostics: columns candidate, CANDIDATE_COLUMNS, dataset, diagnostic, value; fingerprint, standard_error and
            seconds where there are.
        oracle: columns candidate and return, with standard_error where known; or with several rows for each candidate,
            one per episode (column episode). None: what `offrl.evaluate` has written in the runs, `gather_returns`.

    Raises:
        UserError: columns are missing, values are no numbers, or rows are there twice.
    """
    table = read_csv(diagnostics)
    require(table, ["candidate", *CANDIDATE_COLUMNS, "dataset", "diagnostic", "value"], diagnostics)
    table["value"] = numbers(table, "value", diagnostics)
    table["setting"] = table["setting"].astype(object).fillna("").astype(str)
    prints = ["fingerprint"] if "fingerprint" in table else []
    played = read_csv(oracle) if oracle else gather_returns(list(table["run"].dropna().unique()))
    returns, errors, episodes, reference = read_oracle(played, oracle or diagnostics)
    pools = []
    for key, part in table.groupby(["dataset", *prints], dropna=False, sort=True):
        several = bool(prints) and table.loc[table["dataset"] == key[0], "fingerprint"].nunique() > 1
        name = f"{key[0]} [{str(key[1])[:8]}]" if several else str(key[0])
        coverage = part.loc[part["diagnostic"] == "coverage", "value"].dropna()
        part = part[part["candidate"].notna() & (part["diagnostic"] != "coverage")]
        twice = part.duplicated(["candidate", "diagnostic"])
        if twice.any():
            row = part[twice].iloc[0]
            raise UserError(f"{diagnostics}: {row['candidate']} has {row['diagnostic']} twice")
        scores = part.pivot(index="candidate", columns="diagnostic", values="value")
        if "standard_error" in part:
            scores.attrs["standard_error"] = part.pivot(
                index="candidate", columns="diagnostic", values="standard_error"
            )
        if "seconds" in part:
            scores.attrs["seconds"] = seconds_spent(part)
        if len(coverage):
            scores.attrs["coverage"] = float(coverage.iloc[0])
        candidates = part.drop_duplicates("candidate").set_index("candidate")
        optional = [column for column in ("default",) if column in candidates]
        candidates = candidates.loc[scores.index, [*CANDIDATE_COLUMNS, *optional]]
        pools.append(_scored(name, candidates, scores, returns, errors, episodes, reference, warn))
    return pools


def gather_returns(runs: Sequence[str | Path]) -> pd.DataFrame:
    """The oracle tables of runs, one row per episode, with the candidate's name in front.

    Raises:
        UserError: a run has none.
    """
    tables = []
    for run, label in zip(map(Path, runs), labels([Path(run) for run in runs]), strict=True):
        file = run / "oracle" / "returns.csv"
        if not file.exists():
            raise UserError(f"{run}: no returns yet; score it with python -m offrl.evaluate {run} checkpoints=all")
        table = read_csv(file)
        name = label + "/" + table["member"].astype(str) + "/" + table["step"].astype(str)
        table = table.assign(candidate=name, episode=table["reset_seed"])
        # asked for from two first seeds, an episode is there twice
        tables.append(table.drop_duplicates(["candidate", "env", "episode"]))
    gathered = pd.concat(tables, ignore_index=True)
    return gathered[["candidate", *(name for name in gathered if name != "candidate")]]


def read_oracle(
    table: pd.DataFrame, path: Path
) -> tuple[pd.Series, pd.Series, pd.DataFrame | None, pd.DataFrame | None]:
    """Mean returns, standard errors, episodes, and the references of the normalised score, by candidate.

    Raises:
        UserError: columns are missing, values are no numbers, or rows are there twice.
    """
    require(table, ["candidate", "return"], path)
    table["return"] = numbers(table, "return", path)
    reference = None
    if {"reference_random", "reference_expert"} <= set(table):
        reference = table.drop_duplicates("candidate").set_index("candidate")[["reference_random", "reference_expert"]]
    if "env" in table and table.groupby("candidate")["env"].nunique().max() > 1:
        raise UserError(f"{path}: a candidate was scored in several environments; keep the rows of one")
    if not table["candidate"].duplicated().any():
        table = table.set_index("candidate")
        errors = numbers(table, "standard_error", path) if "standard_error" in table else table["return"] * np.nan
        return table["return"], errors, None, reference
    require(table, ["episode"], path)
    twice = table.duplicated(["candidate", "episode"])
    if twice.any():
        row = table[twice].iloc[0]
        raise UserError(f"{path}: {row['candidate']} has episode {row['episode']} twice")
    episodes = table.pivot(index="candidate", columns="episode", values="return")
    # an episode whose action was not finite has no return: such a policy cannot be deployed
    broken = table.loc[table["return"].isna(), "candidate"].unique()
    episodes.loc[broken] = np.nan
    errors = episodes.std(axis=1, ddof=1) / np.sqrt(episodes.notna().sum(axis=1))
    return episodes.mean(axis=1), errors, episodes, reference


def _scored(
    name: str,
    candidates: pd.DataFrame,
    scores: pd.DataFrame,
    returns: pd.Series,
    errors: pd.Series,
    episodes: pd.DataFrame | None,
    reference: pd.DataFrame | None,
    warn: Callable[[str], None],
) -> ScoredPool:
    """A pool of the candidates whose returns were measured.

    One that was measured and has no finite return is worth the pool's lowest: choosing it is a mistake to be counted.
    """
    known = candidates.index.intersection(returns.index, sort=False)
    if len(known) < len(candidates):
        warn(f"{name}: {len(candidates) - len(known)} of {len(candidates)} candidates have no return and are left out")
    if not len(known):
        raise UserError(f"{name}: no candidate of the diagnostics has a return in the oracle table")
    attributes = dict(scores.attrs)
    scores = scores.loc[known]
    scores.attrs = {
        key: value.reindex(known) if isinstance(value, pd.DataFrame) else value for key, value in attributes.items()
    }
    values = returns[known].astype(float)
    broken = ~np.isfinite(values)
    if broken.all():
        raise UserError(f"{name}: no candidate has a finite return")
    if broken.any():
        warn(f"{name}: {broken.sum()} candidates have no finite return: counted as the lowest of the pool")
        values = values.where(~broken, values[~broken].min())
    played = None if episodes is None else episodes.loc[known]
    if played is not None and broken.any():
        played = played.copy()
        played.loc[broken] = values[broken].to_numpy()[:, None]
    ends = None
    if reference is not None and np.isfinite(first := reference.loc[known].to_numpy(float)[0]).all():
        ends = (float(first[0]), float(first[1]))
    return ScoredPool(name, candidates.loc[known], scores, values, errors[known].astype(float), played, ends)


@dataclass(frozen=True)
class Score:
    """A score of a plain table: NAME=[-][mean:|median:|min:|max:|lcb:]COLUMN[,COLUMN...]."""

    name: str
    direction: str
    reduce: str
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Score:
        name, equals, columns = text.partition("=")
        if not equals or not name or not columns:
            raise UserError(f"--score {text}: write NAME=COLUMN, or NAME=-COLUMN where lower is better")
        low = columns.startswith("-")
        columns = columns.removeprefix("-")
        reduce, colon, rest = columns.partition(":")
        if not colon or reduce not in ("mean", "median", "min", "max", "lcb"):
            reduce, rest = "mean", columns
        known = selectors.DIRECTIONS.get(name)
        if known == "high" and low:
            raise UserError(f"--score {text}: a high {name} is good; give a score with another sense another name")
        direction = known if known is not None else "low" if low else "high"
        return cls(name, direction, reduce, tuple(rest.split(",")))

    def values(self, table: pd.DataFrame, path: Path) -> pd.Series:
        require(table, self.columns, path)
        parts = pd.concat([numbers(table, column, path) for column in self.columns], axis=1)
        if self.reduce == "lcb":
            return parts.mean(axis=1, skipna=False) - parts.std(axis=1, ddof=1, skipna=False)
        return getattr(parts, self.reduce)(axis=1, skipna=False)


def read_table(
    path: Path,
    scores: Sequence[Score],
    returns: str,
    pool: Sequence[str] = (),
    policy: Sequence[str] = (),
    algorithm: Sequence[str] = (),
    setting: Sequence[str] = (),
    seed: str | None = None,
    step: str | None = None,
    error: str | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> list[ScoredPool]:
    """Pools from a plain table with one row per policy. Several columns are joined into one label.

    Args:
        returns: column of the online return; `error` that of its standard error.
        pool: columns that tell pools apart; none: the table is one pool.
        policy: columns that name a policy; none: every row is one.
        algorithm, setting, seed: columns that say what was trained; runs of one algorithm and setting differ in the
            seed, and are resampled together. With `step`, rows that agree in all of these are one run's checkpoints.
            Without a setting, rows are of one setting where a seed or step is given, else each of its own.

    Raises:
        UserError: a column is missing, a value is no number, or a policy is there twice.
    """
    table = read_csv(path)
    labels = [*pool, *policy, *algorithm, *setting, *(name for name in (seed, step, error) if name)]
    require(table, [*labels, returns], path)

    def label(columns: Sequence[str], otherwise: Any) -> pd.Series:
        if not columns:
            return pd.Series(otherwise, index=table.index).astype(str)
        return table[list(columns)].astype(str).agg(" ".join, axis=1)

    row = np.arange(1, len(table) + 1).astype(str)
    runs_known = seed is not None or step is not None
    frame = pd.DataFrame(
        {
            "pool": label(pool, path.stem),
            "candidate": label(policy, row),
            "algorithm": label(algorithm, "unknown"),
            "setting": label(setting, "" if runs_known else row),
            "seed": table[seed] if seed else 0,
            "member": 0,
            "step": numbers(table, step, path) if step else np.nan,
            "return": numbers(table, returns, path),
            "error": numbers(table, error, path) if error else np.nan,
        }
    )
    frame["run"] = frame[["algorithm", "setting", "seed"]].astype(str).agg("/".join, axis=1) if step else row
    for score in scores:
        frame[f"score {score.name}"] = score.values(table, path)
    pools = []
    for name, part in frame.groupby("pool", sort=True):
        if part["candidate"].duplicated().any():
            twice = part.loc[part["candidate"].duplicated(), "candidate"].iloc[0]
            raise UserError(f"{path}: pool {name} has policy {twice} twice; name the columns that tell them apart")
        part = part.set_index("candidate").assign(default=False)
        values = part[[f"score {score.name}" for score in scores]].set_axis([s.name for s in scores], axis=1)
        candidates = part[[*CANDIDATE_COLUMNS, "default"]]
        pools.append(_scored(str(name), candidates, values, part["return"], part["error"], None, None, warn))
    return pools


# ---------------------------------------------------------------------------------------------------------------
# Showing
# ---------------------------------------------------------------------------------------------------------------

SHOWN = {
    "regret@3": "@3",
    "spearman within run": "ρ run",
    "spearman within algorithm": "ρ set.",
    "spearman across algorithms": "ρ alg.",
    "spearman pooled": "ρ all",
    "safe@1": "safe",
    "harm": "harm",
    "eop@5": "EOP@5",
    "evaluations worth": "B*",
    "abstains": "abst.",
    "seconds": "s",
}
"""Columns of the terminal's table, beside regret@1."""
DISPENSABLE = ("eop@5", "spearman pooled", "regret@3", "spearman across algorithms", "spearman within algorithm")
"""Those left out, in this order, where the terminal is too narrow."""


def _rows(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples())


def summary_table(result: Result, metrics: Mapping[str, str]) -> Table:
    """The summary with these columns, best selector first."""
    kept = result.pools[result.pools["dropped"] == ""]
    found = {(row.selector, row.metric): row for row in _rows(result.summary)}
    table = Table(
        title=f"{len(kept)} pools, {kept['candidates'].sum():,} policies",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("selector", no_wrap=True)
    for title in ("regret@1", "95 %", "worst", *metrics.values()):
        table.add_column(title, justify="right", no_wrap=True)
    for row in _rows(result.summary[result.summary["metric"] == PRIMARY].sort_values("mean", kind="stable")):
        cells = []
        for metric in metrics:
            cell = found.get((row.selector, metric))
            if cell is None:
                cells.append("")
            elif metric == "evaluations worth":
                cells.append(f"{cell.median:.0f}")
            elif metric == "seconds":
                cells.append(f"{cell.mean:.0f}")
            elif metric == "abstains":
                cells.append(f"{cell.mean * cell.pools:.0f}" if cell.mean else "")
            else:
                cells.append(f"{cell.mean:.2f}")
        style = {"composite": "bold", "single": "", "reference": "cyan", "oracle": "dim"}[row.kind]
        interval = f"{max(row.low, 0.0):.2f}–{row.high:.2f}"
        table.add_row(row.selector, f"{row.mean:.3f}", interval, f"{row.worst:.2f}", *cells, style=style)
    return table


def show(result: Result, console: Console) -> None:
    """The summary, the comparisons and what to keep in mind, in the terminal."""
    kept = result.pools[result.pools["dropped"] == ""]
    metrics = {metric: title for metric, title in SHOWN.items() if (result.summary["metric"] == metric).any()}
    table = summary_table(result, metrics)
    unbounded = console.options.update(max_width=10_000)
    for metric in DISPENSABLE:
        if console.measure(table, options=unbounded).maximum <= console.width:
            break
        metrics.pop(metric, None)
        table = summary_table(result, metrics)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    console.print(table)
    say(
        "regret: 0 the pool's best policy, 1 its worst; mean over pools, 95 % interval, worst pool. ρ: Spearman, mean "
        "over groups. safe: not below BC. harm: below the mean last checkpoint. B*: online trials of random policies "
        "that do as well (median). s: seconds of measuring a pool for it. Cyan: references; dim: they know the returns."
    )
    if len(result.comparisons):
        baseline = result.comparisons["baseline"].iloc[0]
        table = Table(
            title=f"{PRIMARY} of {baseline} minus that of",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for title in ("", "difference", "95 %", "better/equal/worse", "p", "p (Holm)"):
            table.add_column(title, justify="right" if title else "left", no_wrap=True)
        for other in _rows(result.comparisons):
            table.add_row(
                other.other,
                f"{other.difference:+.3f}",
                f"{other.low:+.2f}…{other.high:+.2f}",
                f"{other.better}/{other.equal}/{other.worse}",
                f"{other.p:.2g}",
                f"{other.p_holm:.2g}",
            )
        console.print(table)
        say("p: sign flips over pools, two-sided; Holm: for all comparisons of this table.")
    ceiling = kept["ceiling"].dropna()
    if len(ceiling):
        say(f"Reliability of the returns: ρ cannot exceed {ceiling.mean():.2f} (mean ceiling over pools).")
    for dropped in _rows(result.pools[result.pools["dropped"] != ""]):
        say(f"dropped {dropped.pool}: {dropped.dropped}")
    for note in result.notes:
        say(f"note: {note}")


def draw(result: Result, file: Path) -> None:
    """Regret of every selector: a point per pool, the mean and its interval (PNG)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = {"composite": "#1f5fa8", "single": "#333333", "reference": "#c2571a", "oracle": "#999999"}
    rows = result.summary[result.summary["metric"] == PRIMARY].sort_values("mean", ascending=False, kind="stable")
    figure = Figure(figsize=(8.5, 1.6 + 0.34 * len(rows)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    points = result.points[result.points["metric"] == PRIMARY]
    random = np.random.default_rng(0)
    for place, (_, row) in enumerate(rows.iterrows()):
        values = points.loc[points["selector"] == row["selector"], "value"].dropna().to_numpy()
        colour = colours[row["kind"]]
        heights = place + random.uniform(-0.2, 0.2, len(values))
        axes.scatter(values, heights, s=14, color=colour, alpha=0.35, linewidths=0, zorder=2)
        axes.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=2.4, zorder=3)
        axes.plot(row["mean"], place, "o", color=colour, markersize=6.5, markeredgecolor="white", zorder=4)
    axes.set_yticks(range(len(rows)), rows["selector"], fontsize=9)
    for tick, kind in zip(axes.get_yticklabels(), rows["kind"], strict=True):
        tick.set_color(colours[kind])
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("regret@1, normalised within each pool: 0 is its best policy, 1 its worst")
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    kept = int((result.pools["dropped"] == "").sum())
    figure.suptitle(
        f"What each selector leaves behind, {kept} pools (small points); mean and 95 % interval",
        fontsize=10.5,
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    figure.savefig(file, metadata={"Software": "offrl"})


def as_json(result: Result) -> dict[str, Any]:
    """Everything but the single points; nan becomes null."""

    def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
        return json.loads(frame.to_json(orient="records", double_precision=10))

    return {
        "summary": records(result.summary),
        "comparisons": records(result.comparisons),
        "pools": records(result.pools),
        "notes": result.notes,
    }


def write(result: Result, folder: Path) -> None:
    """points.csv, summary.csv, comparisons.csv, pools.csv, benchmark.json and regret.png in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("points", "summary", "comparisons", "pools"):
        getattr(result, name).to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    (folder / "benchmark.json").write_text(json.dumps(as_json(result), indent=1) + "\n")
    draw(result, folder / "regret.png")


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m offrl.benchmark_selection",
        usage="%(prog)s POOL... [options]\n"
        "       %(prog)s --table FILE --return COLUMN --score NAME=COLUMN... [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="How well do selectors select? Score them on pools of policies whose returns are known.\n"
        "A POOL is a folder that offrl.select has written: its runs' returns are looked up, unless oracle.csv\n"
        "lies beside its diagnostics.csv. Or DIAGNOSTICS.csv,ORACLE.csv: tidy tables, which may hold several\n"
        "datasets (each is a pool). Or any table with one row per policy.",
        epilog="""what it says of a selector:
  regret@k   best return of the pool minus best of the k it puts first, as a share of the pool's range
  ρ, τ       rank correlation with returns: within run (which checkpoint?), within algorithm (which
             setting?), across algorithms (which algorithm?)
  safe@1     how often it is not below behaviour cloning    harm   how often below the last checkpoint
  EOP@B      best of the first B policies of its order, were they tried online (random pick: in any order)
  B*         how many online trials of random policies would do as well as its one choice
  s          seconds that the diagnostics it ranks by took for a pool, where the table has them

examples:
  python -m offrl.benchmark_selection runs/builtin-hopper-medium/selection runs/builtin-pendulum-medium/selection
  python -m offrl.benchmark_selection --table neorl_policies.csv --pool task --algorithm algorithm \\
      --setting config_id --seed-column seed --return online_return \\
      --score fqe=fqe_0,fqe_1,fqe_2 --score fqe_lcb=lcb:fqe_0,fqe_1,fqe_2 --output neorl
  python -m offrl.benchmark_selection POOL --selectors rank_mean,fqe_lcb,mine.py:my_selector --json""",
    )
    result.add_argument("pools", nargs="*", metavar="POOL", help="folder, or DIAGNOSTICS.csv,ORACLE.csv")
    table = result.add_argument_group("a plain table instead")
    table.add_argument("--table", type=Path, metavar="FILE", help="CSV, one row per policy")
    table.add_argument("--return", dest="returns", metavar="COLUMN", help="its online return")
    table.add_argument("--return-error", metavar="COLUMN", help="standard error of it")
    table.add_argument(
        "--score",
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="a score; NAME=-COLUMN: lower is better; NAME=A,B,C: their mean; NAME=lcb:A,B,C: mean minus standard "
        "deviation (also median:, min:, max:). Named as a diagnostic (fqe_lcb, ood_fraction, ...), it feeds composites",
    )
    table.add_argument("--pool", default="", metavar="COLUMNS", help="what tells pools apart, e.g. env,level")
    table.add_argument("--policy", default="", metavar="COLUMNS", help="what names a policy; default: its row")
    table.add_argument("--algorithm", default="", metavar="COLUMNS")
    table.add_argument("--setting", default="", metavar="COLUMNS", help="its hyper-parameters")
    table.add_argument("--seed-column", metavar="COLUMN", help="training seed")
    table.add_argument("--step", metavar="COLUMN", help="checkpoint, where there are several of a run")
    result.add_argument("--selectors", metavar="NAMES", help="default: all that can be fed; file.py:function is yours")
    result.add_argument("--baseline", metavar="NAME", help=f"compared with all others; default: {selectors.DEFAULT}")
    result.add_argument("--direction", action="append", default=[], metavar="DIAGNOSTIC=high|low")
    result.add_argument("--resamples", type=int, default=RESAMPLES, help="over pools (default: %(default)s)")
    result.add_argument("--within", type=int, default=REPLICATES, help="within each pool (default: %(default)s)")
    result.add_argument("--seed", type=int, default=0, help="of the resampling (default: %(default)s)")
    result.add_argument("--output", type=Path, metavar="FOLDER", help="write tables (CSV, JSON) and a picture there")
    result.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return result


def command(arguments: Sequence[str]) -> Result:
    """The command line.

    Raises:
        UserError: files, columns, options or values that cannot be used.
    """
    options = parser().parse_args(arguments)
    messages = Console(stderr=True)

    def warn(text: str) -> None:
        messages.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)

    if options.resamples < 1 or options.within < 1:
        raise UserError(f"--resamples {options.resamples} --within {options.within}: at least 1")
    if bool(options.pools) == bool(options.table):
        raise UserError("give either pools or --table FILE; --help shows examples")
    directions = {}
    for text in options.direction:
        name, _, direction = text.partition("=")
        if direction not in ("high", "low"):
            raise UserError(f"--direction {text}: write DIAGNOSTIC=high or DIAGNOSTIC=low")
        directions[name] = direction
    pools: list[ScoredPool] = []
    if options.table:
        if not options.returns or not options.score:
            raise UserError("--table needs --return COLUMN and at least one --score NAME=COLUMN")
        scores = [Score.parse(text) for text in options.score]
        if len({score.name for score in scores}) < len(scores):
            raise UserError("--score: two scores have the same name")
        directions |= {score.name: score.direction for score in scores}
        pools = read_table(
            options.table,
            scores,
            options.returns,
            pool=_columns(options.pool),
            policy=_columns(options.policy),
            algorithm=_columns(options.algorithm),
            setting=_columns(options.setting),
            seed=options.seed_column,
            step=options.step,
            error=options.return_error,
            warn=warn,
        )
    for text in options.pools:
        diagnostics, comma, oracle = text.partition(",")
        if comma:
            pools += read_pools(Path(diagnostics), Path(oracle), warn)
        else:
            beside = Path(text, "oracle.csv")
            pools += read_pools(Path(text, "diagnostics.csv"), beside if beside.exists() else None, warn)
    names = options.selectors.split(",") if options.selectors else None
    result = benchmark(
        pools,
        names,
        options.baseline,
        directions,
        resamples=options.resamples,
        within=options.within,
        seed=options.seed,
    )
    if options.output:
        write(result, options.output)
    if options.json:
        print(json.dumps(as_json(result), indent=1))
    else:
        show(result, command_line.page())
    return result


def _columns(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    run_command(lambda: command(sys.argv[1:]))


if __name__ == "__main__":
    main()
