"""The decision: one policy of a pool, chosen from the data alone, and what the choice rests on.

The candidates are all checkpoints of all members of the runs. Diagnostics look at them and at the dataset; a selector
ranks them; the answer is one policy, or behaviour cloning where nothing is known to be better, with how far to trust
it. Nothing in `offrl.selection` opens an environment or reads a run's oracle/ folder, but for
`offrl.selection.benchmark`, which looks up what selectors were worth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from offrl.runs import averaging
from offrl.runs.run import Run
from offrl.selection import diagnostics, distinct, selectors
from offrl.selection.diagnostics import data, workflow
from offrl.selection.pool import Pool
from offrl.selection.selectors import Choice
from offrl.selection.verdicts import agreement, chances, dissent

TO_TRY = 5


class Selection(NamedTuple):
    """The answer, and what it rests on."""

    pool: Pool
    table: pd.DataFrame
    """Tidy: one row per candidate and diagnostic."""
    scores: pd.DataFrame
    """[candidates, diagnostics]."""
    candidates: pd.DataFrame
    """One row per candidate, best first: its score, and `veto`, the reason why it must not be deployed."""
    selector: str
    choice: Choice
    chances: pd.DataFrame
    """One row per estimate: the probability that the choice beats BC and beats the logged behaviour, over episodes."""
    agreement: float
    """Kendall's W between the diagnostics that the default selector ranks by; nan with fewer than two."""
    dissent: pd.DataFrame
    """One row per other selector: what it would have chosen, and where the choice stands in its order."""
    distinct: int
    """How many policies the pool has, where those that act alike count once."""
    to_try: list[str]
    """Candidates to evaluate where a few evaluations are possible, in this order: the best ranked that differ."""
    workflow: pd.DataFrame
    checks: pd.DataFrame
    seconds: float


def select(
    runs: Sequence[str | Path],
    selector: str = selectors.DEFAULT,
    names: Sequence[str] | None = None,
    checkpoints: int | None = None,
    rows: int = 20_000,
    average: int | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Selection:
    """Measure the pool of some runs on one dataset, and choose.

    Args:
        selector: a name in `offrl.selectors`, a diagnostic's name, or `path/to/file.py:function`.
        names: the diagnostics or measurements to run; None runs all that need nothing but the data.
        checkpoints: at most so many per member, evenly spread, the last among them.
        rows: transitions of each split that are looked at.
        average: the mean of the weights of so many last checkpoints is one more candidate of every member.
        progress: called with (measurement, candidates done, candidates in all).

    Raises:
        UserError: unknown names, runs on different data, data that have changed.
    """
    started = time.monotonic()
    paths = [Path(path) for path in runs]
    if average is not None:
        made = [averaging.average(run, average) for run in map(Run.open, paths) if not averaging.is_average(run)]
        paths += [path for path in made if path not in paths]  # where an earlier call's were given too
    pool = Pool.open(paths, checkpoints, rows)
    table, replicates, scores, known, choice = rank(pool, selector, names, progress)
    described = pool.table.set_index("candidate")
    veto = selectors.vetoes(scores)
    ranked = described.assign(score=choice.ranking.reindex(described.index), veto=veto)
    ranked = ranked.sort_values(["score", "run", "member", "step"], ascending=[False, True, True, True])
    distances = distinct.policy_distances(pool)
    order = scores.index.get_indexer(ranked.index[ranked["score"].notna()])
    return Selection(
        pool,
        table,
        scores,
        ranked.reset_index(),
        selector,
        choice,
        chances(pool, choice, scores, replicates),
        agreement(scores, veto),
        dissent(scores, described, known, choice, selector),
        len(set(distinct.duplicates(distances))),
        [str(scores.index[i]) for i in distinct.diverse(distances, order.tolist(), TO_TRY)],
        workflow.workflow(pool),
        data.checks(pool.dataset),
        time.monotonic() - started,
    )


class Ranked(NamedTuple):
    table: pd.DataFrame
    replicates: dict[str, np.ndarray]
    scores: pd.DataFrame
    known: dict[str, selectors.Selector]
    """Every selector that the scores feed."""
    choice: Choice


def rank(pool: Pool, selector: str, names: Sequence[str] | None, progress: Callable[[str, int, int], None]) -> Ranked:
    """Measure the candidates, and let the selector order them."""
    table, replicates = diagnostics.measure(pool, names, progress)
    scores = table.pivot(index="candidate", columns="diagnostic", values="value").reindex(pool.table["candidate"])
    errors = table.pivot(index="candidate", columns="diagnostic", values="standard_error").reindex(scores.index)
    reasons = table[table["reason"] != ""].groupby("candidate")["reason"].first()
    scores.attrs = {"coverage": data.coverage(pool), "standard_error": errors, "reasons": reasons.to_dict()}
    directions = {d.name: d.better for d in diagnostics.diagnostics().values()}
    known = selectors.available(scores, directions)
    # the default ranks by whatever there is, and notes what it had to do without
    rule = selectors.rank_mean if selector == selectors.DEFAULT else selectors.find(selector, known)
    choice = selectors.choose(scores, pool.table.set_index("candidate"), rule)
    return Ranked(table, replicates, scores, known, choice)
