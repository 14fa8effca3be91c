"""Diagnostics: what the data alone say about each policy of a pool, with error bars and reasons.

A family is a file that defines MEASUREMENTS. A measurement is one computation, a pure function of a `Pool`, from which
one or more diagnostics come. `measure` runs measurements and keeps what they found with the runs, so that nothing is
computed twice and an interrupted command goes on.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from offrl.errors import UserError, nearest
from offrl.selection.pool import RESAMPLES, Pool, Rows

FAMILIES = ("health", "critic", "support", "curves", "evaluation", "bellman", "model")
VERSION = 3
"""Of the numbers: raise it when a diagnostic changes, and what is kept with the runs is computed anew."""


HAS_MEMORY = "not applicable: the policy has memory"


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


@cache
def measurements() -> dict[str, Measurement]:
    """All of them, by name."""
    found: dict[str, Measurement] = {}
    for family in FAMILIES:
        for measurement in importlib.import_module(f"offrl.selection.diagnostics.{family}").MEASUREMENTS:
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


COLUMNS = ["diagnostic", "value", "standard_error", "seconds", "reason"]


def measure(
    pool: Pool,
    names: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Run measurements on a pool.

    Args:
        names: of measurements or diagnostics; None runs all that need nothing but the data.
        progress: called with (measurement, candidates done, candidates in all).

    Returns:
        The tidy table (the columns of `pool.table`, then COLUMNS), and for diagnostics that have them the bootstrap
        replicates, name -> [candidates, RESAMPLES].
    """
    tables, replicates = [], {}
    for measurement in chosen(names):
        found = _measure_one(pool, measurement, progress)
        for diagnostic in measurement.diagnostics:
            part = found[diagnostic.name]
            tables.append(pd.concat([pool.table, part[COLUMNS]], axis=1))
            drawn = part["replicates"].tolist()
            if any(r is not None for r in drawn):
                empty = np.full(RESAMPLES, np.nan, np.float32)
                replicates[diagnostic.name] = np.stack([empty if r is None else np.asarray(r) for r in drawn])
    return pd.concat(tables, ignore_index=True), replicates


def _measure_one(
    pool: Pool, measurement: Measurement, progress: Callable[[str, int, int], None]
) -> dict[str, pd.DataFrame]:
    """diagnostic -> one row per candidate of the pool, from what is kept or measured now."""
    kept = {key: _read_kept(pool, i, measurement, key) for i, key in enumerate(_keys(pool, measurement))}
    keys = list(kept)
    missing = [i for i, key in enumerate(keys) if kept[key] is None]
    batch = measurement.batch if measurement.per_policy else max(len(pool), 1)
    progress(measurement.name, len(pool) - len(missing), len(pool))
    for first in range(0, len(missing), batch):
        indices = missing[first : first + batch]
        if not measurement.per_policy:
            indices = list(range(len(pool)))
        started = time.monotonic()
        scores = _apply(measurement, pool.subset(indices) if len(indices) < len(pool) else pool)
        seconds = (time.monotonic() - started) / len(indices)
        for place, i in enumerate(indices):
            rows = []
            for diagnostic in measurement.diagnostics:
                found = scores[diagnostic.name]
                rows.append(
                    {
                        "diagnostic": diagnostic.name,
                        "value": float(found.value[place]),
                        "standard_error": float(found.standard_error[place]),
                        "seconds": round(seconds / len(measurement.diagnostics), 4),
                        "reason": found.reasons[place] if found.reasons else "",
                        "replicates": None if found.replicates is None else found.replicates[place].tolist(),
                    }
                )
            kept[keys[i]] = rows
            _keep(pool, i, keys[i], rows)
        progress(measurement.name, len(pool) - len(missing) + first + len(indices), len(pool))
        if not measurement.per_policy:
            break
    result = {}
    for place, diagnostic in enumerate(measurement.diagnostics):
        result[diagnostic.name] = pd.DataFrame([kept[key][place] for key in keys])  # type: ignore[index]
    return result


def _apply(measurement: Measurement, pool: Pool) -> dict[str, Scores]:
    """What it measures; candidates with memory are left out, as single logged states do not say what they would do."""
    plain = [i for i, candidate in enumerate(pool.candidates) if candidate.run.policy.memory is None]
    if len(plain) == len(pool):
        return measurement.measure(pool)
    found = measurement.measure(pool.subset(plain)) if plain else {}
    result = {}
    for diagnostic in measurement.diagnostics:
        whole = not_applicable(pool, HAS_MEMORY)
        if plain:
            part = found[diagnostic.name]
            whole.value[plain], whole.standard_error[plain] = part.value, part.standard_error
            for place, i in enumerate(plain):
                whole.reasons[i] = part.reasons[place] if part.reasons else ""
            if part.replicates is not None:
                whole.replicates = np.full((len(pool), RESAMPLES), np.nan, np.float32)
                whole.replicates[plain] = part.replicates
        result[diagnostic.name] = whole
    return result


def _keys(pool: Pool, measurement: Measurement) -> list[str]:
    """What each candidate's values depend on, 16 hex digits."""
    shared: dict[str, Any] = {
        "version": VERSION,
        "measurement": measurement.name,
        "fingerprint": pool.dataset.fingerprint,
        "held_out": hashlib.sha256(pool.held_out.tobytes()).hexdigest(),
        "rows": pool.rows,
        "seed": pool.seed,
    }
    own = [[c.name, c.run.info["identity"], c.run.checkpoint_store.checksum(c.step)] for c in pool.candidates]
    if not measurement.per_policy:
        shared["pool"] = own
    return [
        hashlib.sha256(json.dumps([shared, mine], sort_keys=True, default=str).encode()).hexdigest()[:16]
        for mine in own
    ]


def _file(pool: Pool, i: int, key: str):
    return pool.candidates[i].run.path / "diagnostics" / f"{key}.json"


def _read_kept(pool: Pool, i: int, measurement: Measurement, key: str) -> list[dict[str, Any]] | None:
    path = _file(pool, i, key)
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError):  # not there, or half written by a kill: measured again
        return None
    return rows if [row["diagnostic"] for row in rows] == [d.name for d in measurement.diagnostics] else None


def _keep(pool: Pool, i: int, key: str, rows: list[dict[str, Any]]) -> None:
    from offrl.runs.run import write_whole

    path = _file(pool, i, key)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(rows))
