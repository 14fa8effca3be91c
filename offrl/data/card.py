"""The data card: what is in a dataset, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offrl.data.dataset import Dataset

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def card(dataset: Dataset) -> dict[str, Any]:
    """The facts of a dataset, JSON-able. Returns are undiscounted sums of raw rewards; shares are of episodes."""
    ends = dataset.ends
    terminated = dataset.terminations[ends]
    reference = dataset.reference
    facts: dict[str, Any] = {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "env_id": dataset.env_id,
        "env_kwargs": dataset.env_kwargs,
        "time_limit": dataset.time_limit,
        "episodes": dataset.episodes,
        "steps": dataset.steps,
        "observation_dim": dataset.observation_dim,
        "observation_shape": list(dataset.observations.shape[1:]),
        "observation_layout": list(dataset.observation_layout),
        "action_dim": dataset.action_dim,
        "discrete_actions": dataset.discrete,
        "returns": _summary(dataset.returns),
        "normalised_returns": None if reference is None else _summary(reference.normalise(dataset.returns)),
        "reference": None
        if reference is None
        else {"random": reference.random, "expert": reference.expert, "source": reference.source},
        "lengths": _summary(dataset.lengths),
        "rewards": _summary(dataset.rewards),
        "terminated_share": float(terminated.mean()),
        "truncated_share": float((dataset.truncations[ends] & ~terminated).mean()),
        "lost_final_observations": int((~dataset.final_observation_known).sum()),
        "transitions": len(dataset.transition_rows),
        "success_share": None if dataset.successes is None else float(dataset.successes.mean()),
        "observations": _ranges(_sample(dataset)),
        "actions": _ranges(dataset.actions, low=dataset.action_low, high=dataset.action_high),
        "columns": {key: _summary(values) for key, values in sorted(dataset.extra.items())},
        "warnings": list(dataset.warnings),
    }
    return facts


def _sample(dataset: Dataset) -> np.ndarray:
    """The observations that have an action; of images about a thousand, evenly spaced."""
    rows = dataset.observation_rows
    if dataset.observations.dtype == np.uint8:
        rows = rows[:: max(1, len(rows) // 1000)]
    return dataset.observations[rows]


def _summary(values: np.ndarray) -> dict[str, Any]:
    values = values.astype(np.float64)
    quantiles = np.quantile(values, QUANTILES)
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "quantiles": {_percent(quantile): float(value) for quantile, value in zip(QUANTILES, quantiles, strict=True)},
    }


def _ranges(values: np.ndarray, **bounds: np.ndarray) -> dict[str, list[float]]:
    if values.ndim > 2:  # images: by channel
        values = values.reshape(-1, values.shape[-1])
    wide = values.astype(np.float64)
    columns: dict[str, Sequence[float] | np.ndarray] = {
        "min": wide.min(axis=0),
        "mean": wide.mean(axis=0),
        "max": wide.max(axis=0),
        "std": wide.std(axis=0),
    }
    columns |= {f"box {side}": bound for side, bound in bounds.items()}
    return {key: [float(value) for value in column] for key, column in columns.items()}


def _percent(quantile: float) -> str:
    return {0.0: "min", 0.5: "median", 1.0: "max"}.get(quantile, f"{quantile:.0%}")
