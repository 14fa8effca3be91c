"""Diagnostics: what the data alone say about each policy of a pool, with error bars and reasons.

A family of diagnostics is a file that defines MEASUREMENTS (fitted_q_evaluation.py, importance_sampling.py, ...). A
measurement is one computation, a pure function of a `Pool`, from which one or more diagnostics come. `measure` runs
measurements and keeps what they found with the runs, so that nothing is computed twice and an interrupted command goes
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import pandas as pd

from offrl.errors import UserError, nearest
from offrl.selection.diagnostics import (
    behaviour_value,
    bellman,
    critic,
    curves,
    doubly_robust,
    fitted_q_evaluation,
    health,
    importance_sampling,
    keeping,
    lstd,
    model,
    support,
    workflow,
)
from offrl.selection.diagnostics.base import Diagnostic, Measurement
from offrl.selection.pool import Pool

FAMILIES = (
    health,
    critic,
    support,
    curves,
    workflow,
    fitted_q_evaluation,
    lstd,
    importance_sampling,
    doubly_robust,
    behaviour_value,
    bellman,
    model,
)


@cache
def measurements() -> dict[str, Measurement]:
    """All of them, by name."""
    found: dict[str, Measurement] = {}
    for family in FAMILIES:
        for measurement in family.MEASUREMENTS:
            found[measurement.name] = measurement
    return found


@cache
def diagnostics() -> dict[str, Diagnostic]:
    """All of them, by name."""
    return {d.name: d for measurement in measurements().values() for d in measurement.diagnostics}


def seconds_spent(table: pd.DataFrame) -> dict[str, float]:
    """Measurement -> seconds for all candidates, from a tidy table with the columns diagnostic and seconds."""
    of = {d.name: m.name for m in measurements().values() for d in m.diagnostics}
    sums = table["seconds"].groupby(table["diagnostic"].map(of), sort=False).sum()
    return {str(name): float(seconds) for name, seconds in sums.items()}


def cost(names: Iterable[str], spent: Mapping[str, float]) -> float:
    """Seconds of the measurements behind these diagnostics, each counted once; nan where one is not among `spent`."""
    behind = {m.name: m for m in measurements().values() if {d.name for d in m.diagnostics} & set(names)}
    read = {name for m in behind.values() for name in m.reads} - set(behind)
    # what was read and has no time of its own was measured within the reader's
    return sum(spent.get(name, np.nan) for name in behind) + sum(spent.get(name, 0.0) for name in read)


def chosen(names: Sequence[str] | None) -> list[Measurement]:
    """The measurements of those names, or that make the diagnostics of those names; None: all that are neither
    assisted nor only on request.

    Raises:
        UserError: an unknown name.
    """
    known = measurements()
    if names is None:
        return [measurement for measurement in known.values() if not (measurement.assisted or measurement.on_request)]
    result = []
    for name in names:
        found = [m for m in known.values() if name == m.name or name in [d.name for d in m.diagnostics]]
        if not found:
            raise UserError(f"diagnostic {name!r} is unknown; {nearest(name, [*known, *diagnostics()])}")
        result += [m for m in found if m not in result]
    return result


def measure(
    pool: Pool,
    names: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """`keeping.run` of the measurements of those names, or of diagnostics; None: all that need nothing but the data."""
    return keeping.run(pool, chosen(names), progress)
