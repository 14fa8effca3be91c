"""Measurements run on a pool; what they find is kept with the runs, so nothing is computed twice."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from offrl.runs.run import write_whole
from offrl.selection.diagnostics.base import Measurement, Scores, not_applicable
from offrl.selection.pool import RESAMPLES, Pool

VERSION = 3
"""Of the numbers: raise it when a diagnostic changes, and what is kept with the runs is computed anew."""
HAS_MEMORY = "not applicable: the policy has memory"
SEES_IMAGES = "not applicable: observations are images, this needs vectors"
COLUMNS = ["diagnostic", "value", "standard_error", "seconds", "reason"]


def run(
    pool: Pool,
    measurements: Sequence[Measurement],
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Run measurements on a pool.

    Args:
        progress: called with (measurement, candidates done, candidates in all).

    Returns:
        The tidy table (the columns of `pool.table`, then COLUMNS), and for diagnostics that have them the bootstrap
        replicates, name -> [candidates, RESAMPLES].
    """
    tables, replicates = [], {}
    for measurement in measurements:
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
        scores = apply(measurement, pool.subset(indices) if len(indices) < len(pool) else pool)
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


def apply(measurement: Measurement, pool: Pool) -> dict[str, Scores]:
    """What it measures; candidates with memory are left out, as single logged states do not say what they would do."""
    if pool.images and not measurement.images:
        return {diagnostic.name: not_applicable(pool, SEES_IMAGES) for diagnostic in measurement.diagnostics}
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
    path = _file(pool, i, key)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(rows))
