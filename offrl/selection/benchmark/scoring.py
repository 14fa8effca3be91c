"""Selectors scored on pools: every metric of every selector on every pool, and what is said of all pools together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from offrl import statistics
from offrl.errors import UserError, nearest
from offrl.selection import selectors
from offrl.selection.benchmark.metrics import (
    KNOWING,
    REFERENCES,
    budget_metrics,
    correlation_metrics,
    decisions,
    references,
)
from offrl.selection.benchmark.pools import ScoredPool
from offrl.selection.benchmark.resampling import Resamples, over_pools, resample
from offrl.selection.diagnostics import cost

RESAMPLES = 10_000
REPLICATES = 500
"""Resamples within one pool; those over pools draw from them."""
PRIMARY = "regret@1"


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
            # also where this pool lacks what the selector needs: it abstains, or ranks by what there is
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
