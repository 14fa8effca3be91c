"""What every family of diagnostics is made of: measurements, scores, and errors by resampled episodes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from offrl.selection.pool import Pool, Rows


class Diagnostic(NamedTuple):
    name: str
    better: str
    """"high", "low", or "flag": not a ranking, but a warning or a veto."""
    summary: str


class Measurement(NamedTuple):
    """One computation.

    measure(pool) -> one `Scores` per diagnostic.
    """

    name: str
    diagnostics: tuple[Diagnostic, ...]
    measure: Callable[[Pool], dict[str, Scores]]
    per_policy: bool = True
    """False where a candidate's value depends on which others are in the pool."""
    assisted: str = ""
    """The knowledge it uses that is not in the data; left out of the default choice where there is any."""
    on_request: bool = False
    """Left out of the default choice because it takes many minutes on a pool of usual size."""
    batch: int = 32
    """Candidates measured at once: what an interrupted command loses."""
    reads: tuple[str, ...] = ()
    """Other measurements whose values it starts from."""
    images: bool = False
    """True where it holds for image observations too; else it is left out there, with the reason."""


@dataclass
class Scores:
    """A diagnostic's values for the candidates of a pool."""

    value: np.ndarray
    """float64 [candidates]; nan where it does not apply."""
    standard_error: np.ndarray
    """float64 [candidates], over episodes."""
    replicates: np.ndarray | None = None
    """float32 [candidates, RESAMPLES]: the value on each bootstrap sample of the pool's `episode_weights`."""
    reasons: list[str] = field(default_factory=list)
    """Why it does not apply, per candidate; empty strings, or an empty list, where it does."""


def over_episodes(pool: Pool, rows: Rows, values: np.ndarray) -> Scores:
    """The mean over rows of `values` [candidates, n], with episodes resampled as wholes."""
    episodes = pool.dataset.episodes
    counts = np.bincount(rows.episodes, minlength=episodes).astype(np.float64)
    sums = np.stack([np.bincount(rows.episodes, np.asarray(v, np.float64), episodes) for v in values])
    return ratio(pool, sums, counts)


def ratio(pool: Pool, sums: np.ndarray, counts: np.ndarray) -> Scores:
    """sum(sums) / sum(counts) over episodes, resampled; sums [candidates, episodes], counts [episodes] or as sums."""
    weights = pool.episode_weights
    totals = weights @ np.broadcast_to(counts, sums.shape).T  # [resamples, candidates]
    replicates = quotients(weights @ sums.T, totals).T
    value = quotients(sums.sum(1), np.broadcast_to(counts, sums.shape).sum(1))
    used = (np.broadcast_to(counts, sums.shape) > 0).sum(1)
    error = np.where(used > 1, spread(replicates), np.nan)
    return Scores(value, error, replicates.astype(np.float32))


def quotients(sums: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """sums / totals; nan where the total is 0: a bootstrap sample that drew none of the episodes in question says
    nothing, and `spread` leaves it out."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(totals == 0, np.nan, sums / totals)


def spread(replicates: np.ndarray) -> np.ndarray:
    """The standard deviation of [..., RESAMPLES] without those that are nan; nan where fewer than two are left."""
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanstd(replicates, axis=-1, ddof=1)


def without_error(values: Sequence[float] | np.ndarray, reasons: list[str] | None = None) -> Scores:
    """Values for which episodes say nothing about the error (a count, a flag)."""
    values = np.asarray(values, np.float64)
    return Scores(values, np.full(len(values), np.nan), None, reasons or [])


def not_applicable(pool: Pool, reason: str) -> Scores:
    return without_error(np.full(len(pool), np.nan), [reason] * len(pool))
