"""What a source reads, before it is checked: whole episodes, from rows of a flat log or from an episodic store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offrl.data.dataset import Reference
from offrl.errors import UserError


@dataclass
class Episodes:
    """Unchecked episodes, arrays as in `Dataset` (length + 1 observations per episode); the checks may change them.

    Observations of int32 [.., 1] are states counted from 0; observation_count: how many there are, or None. They become
    one-hot vectors, or where that is 1 a number.
    """

    name: str
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    lengths: np.ndarray
    final_observation_known: np.ndarray
    action_low: np.ndarray | None = None
    action_high: np.ndarray | None = None
    env_id: str | None = None
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    time_limit: int | None = None
    reference: Reference | None = None
    successes: np.ndarray | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    observation_layout: tuple[str, ...] = ()
    observation_count: int | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.lengths) - self.lengths

    @property
    def ends(self) -> np.ndarray:
        return np.cumsum(self.lengths) - 1


def from_rows(
    name: str,
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminations: np.ndarray,
    truncations: np.ndarray | None = None,
    next_observations: np.ndarray | None = None,
    ends: np.ndarray | None = None,
    successes: np.ndarray | None = None,
) -> Episodes:
    """Episodes from a flat log of [rows, ...].

    An episode ends where a row is terminal, truncated or marked in `ends` (a cut that is not terminal is a
    truncation), and where the stored next observation is not the observation of the following row. The observation
    after the last action comes from `next_observations`; without it, it is lost (`final_observation_known` False).
    successes: bool [rows].
    """
    columns = {"actions": actions, "rewards": rewards, "terminations": terminations, "truncations": truncations}
    columns |= {"next_observations": next_observations, "episode ends": ends, "successes": successes}
    rows = len(observations)
    if rows == 0:
        raise UserError(f"{name} is empty: it has no steps")
    for column, values in columns.items():
        if values is not None and len(values) != rows:
            raise UserError(f"{name}: {column} has {len(values)} rows but observations has {rows}; they must be equal")
    observations, actions = as_observations(name, "observations", observations), as_actions(name, actions)
    if next_observations is not None:
        next_observations = as_observations(name, "next_observations", next_observations)
        if next_observations.dtype != observations.dtype:
            observations, next_observations = observations.astype(np.float32), next_observations.astype(np.float32)
        if next_observations.shape != observations.shape:
            raise UserError(
                f"{name}: next_observations has {_size(next_observations)} columns but observations has "
                f"{_size(observations)}; they must be equal"
            )
    rewards = as_vector(name, "rewards", rewards).astype(np.float32)
    terminations = as_flags(name, "terminations", terminations)
    warnings = []

    last = terminations.copy()
    for column, values in (("truncations", truncations), ("episode ends", ends)):
        if values is not None:
            last |= as_flags(name, column, values)
    if next_observations is not None:
        jump = np.zeros(rows, bool)
        jump[:-1] = ~last[:-1] & differ(next_observations[:-1], observations[1:])
        if jump.any():
            where = np.flatnonzero(jump)
            explanation = (
                "no column marks the ends of time-limited episodes, so an episode ends there (truncated)"
                if truncations is None and ends is None
                else "observations jump inside an episode, which is cut there (truncated)"
            )
            warnings.append(
                f"{len(where)} of {rows} rows have a next observation that is not the observation of the next row, "
                f"the first in row {where[0]}: {explanation}"
            )
            last |= jump
    if not last[-1]:
        warnings.append(
            f"the last episode (from row {int(np.flatnonzero(np.r_[True, last[:-1]])[-1])}) does not end: "
            f"its last row {rows - 1} is neither terminal nor truncated; it is taken as truncated"
        )
        last[-1] = True

    end_rows = np.flatnonzero(last)
    lengths = np.diff(end_rows, prepend=-1)
    count = len(end_rows)
    blocks = np.empty((rows + count, *observations.shape[1:]), observations.dtype)
    blocks[np.arange(rows) + np.repeat(np.arange(count), lengths)] = observations
    final = end_rows + np.arange(count) + 1
    blocks[final] = observations[end_rows] if next_observations is None else next_observations[end_rows]
    return Episodes(
        name=name,
        observations=blocks,
        actions=actions,
        rewards=rewards,
        terminations=terminations,
        truncations=last & ~terminations,
        lengths=lengths.astype(np.int64),
        final_observation_known=np.full(count, next_observations is not None),
        successes=None
        if successes is None
        else np.logical_or.reduceat(as_flags(name, "successes", successes), end_rows - lengths + 1),
        warnings=warnings,
    )


def as_extra(name: str, key: str, values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """A further column, `columns.KEY`, [steps] or [steps, ...]: float32, int32 or bool.

    Values given once per episode are repeated over its steps.
    """
    column, steps = f"columns.{key}", int(lengths.sum())
    values = _numeric(name, column, values)
    if len(values) == len(lengths) != steps:
        values = np.repeat(values, lengths, axis=0)
    if len(values) != steps:
        raise UserError(
            f"{name}: {column} has {len(values)} rows, but there are {steps} steps in {len(lengths)} episodes; it must "
            "have a row for every step or for every episode"
        )
    if values.ndim > 1 and values.size == steps:
        values = values.reshape(-1)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return values if values.dtype == bool else values.astype(np.int32)


def as_observations(name: str, column: str, values: np.ndarray) -> np.ndarray:
    """Vectors, float32 [rows, dim], images, uint8 [rows, H, W, C], or states, whole numbers from 0, int32 [rows, 1]."""
    values = np.asarray(values)
    if values.ndim == 4 and values.dtype == np.uint8:
        return values
    values = as_matrix(name, column, values)
    states = values.dtype.kind in "iu" and values.shape[1] == 1 and (values >= 0).all()
    return values.astype(np.int32 if states else np.float32)


def as_actions(name: str, values: np.ndarray) -> np.ndarray:
    """float32 [rows, dim]; integers are discrete actions, int32 [rows, 1]."""
    values = as_matrix(name, "actions", values)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if values.shape[1] != 1:
        raise UserError(
            f"{name} has discrete actions of {values.shape[1]} columns; only one per step is supported (where they are "
            "continuous, store them as floating-point numbers)"
        )
    return values.astype(np.int32)


def as_matrix(name: str, column: str, values: np.ndarray) -> np.ndarray:
    """[rows, dim]; a vector becomes one column, further axes of size 1 are dropped."""
    values = _numeric(name, column, values)
    if values.ndim == 1:
        return values[:, None]
    if values.ndim > 2 and values[0].size == max(values.shape[1:]):
        values = values.reshape(len(values), -1)
    if values.ndim != 2:
        raise UserError(
            f"{name}: {column} has the shape {values.shape} of {values.dtype}; vectors [rows, dim] or images of uint8 "
            "[rows, height, width, channels] are supported"
        )
    return values


def as_vector(name: str, column: str, values: np.ndarray) -> np.ndarray:
    """[rows]; a column [rows, 1] is unrolled."""
    values = _numeric(name, column, values)
    if values.ndim > 1 and values.size == len(values):
        values = values.reshape(-1)
    if values.ndim != 1:
        raise UserError(f"{name}: {column} has the shape {values.shape}; one number per step [rows] is needed")
    return values


def as_flags(name: str, column: str, values: np.ndarray) -> np.ndarray:
    """bool [rows] of 0/1 flags."""
    values = as_vector(name, column, values)
    if values.dtype != bool:
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if wrong.size:
            raise UserError(f"{name}: {column} must be 0 or 1, but row {wrong[0]} is {values[wrong[0]]}")
    return values.astype(bool)


def _numeric(name: str, column: str, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind not in "fiub":
        raise UserError(f"{name}: {column} is of type {values.dtype}, not numbers")
    return values


def _size(values: np.ndarray) -> str:
    return " x ".join(map(str, values.shape[1:]))


def differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool [rows]: beyond rounding to single precision. NaN is left to the check for NaN."""
    if a.dtype == np.uint8:
        return (a != b).reshape(len(a), -1).any(axis=1)
    with np.errstate(invalid="ignore"):
        return (np.abs(a - b) > 1e-5 + 1e-5 * np.abs(b)).any(axis=1)
