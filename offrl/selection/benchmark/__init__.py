"""How well do selectors select?

Given pools whose returns are known, every selector is applied to the diagnostics alone, and what it would have deployed
is looked up. The protocol is section 3 of selection.md: ties are broken at random and expectations reported; returns
are normalised within a pool (0 its worst policy, 1 its best); a selector that abstains deploys behaviour cloning, and
is counted at its mean return; pools in which there is nothing to select are dropped.

Nothing else in `offrl.selection` reads returns; a selector never sees them.
"""

from offrl.selection.benchmark.metrics import (
    BUDGETS,
    KNOWING,
    REFERENCES,
    TOP,
    budget_metrics,
    correlation_metrics,
    decisions,
    references,
)
from offrl.selection.benchmark.pools import CANDIDATE_COLUMNS, ScoredPool
from offrl.selection.benchmark.reading import Score, gather_returns, read_pools, read_table
from offrl.selection.benchmark.resampling import Resamples, over_pools, resample
from offrl.selection.benchmark.scoring import PRIMARY, REPLICATES, RESAMPLES, Result, benchmark

__all__ = [
    "BUDGETS",
    "CANDIDATE_COLUMNS",
    "KNOWING",
    "PRIMARY",
    "REFERENCES",
    "REPLICATES",
    "RESAMPLES",
    "TOP",
    "Resamples",
    "Result",
    "Score",
    "ScoredPool",
    "benchmark",
    "budget_metrics",
    "correlation_metrics",
    "decisions",
    "gather_returns",
    "over_pools",
    "read_pools",
    "read_table",
    "references",
    "resample",
]
