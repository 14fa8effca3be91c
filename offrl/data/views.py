"""Views of a dataset for learners that need more than transitions: windows, sums to go, labels, preferences.

`episode_steps(dataset)` lays whole episodes end to end. `windows_from` and `windows_until` cut windows out of them that
never cross the end of an episode; which ones may be drawn within a jitted update, so that no window is stored. They
take arrays of numpy and of jax, and return what they took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from offrl.data.dataset import Dataset
from offrl.data.transforms import actions_to_unit_box, transform_observations, transform_rewards
from offrl.errors import UserError

Array = Any  # of numpy or of jax


class EpisodeSteps(NamedTuple):
    """The steps of whole episodes, one after the other, transformed like transitions; [steps, ...]."""

    observations: Array
    actions: Array
    rewards: Array
    terminations: Array
    returns_to_go: Array
    """Discounted sum of the rewards from this step to the end of its episode."""
    timesteps: Array
    """int32: steps since the start of the episode."""
    lengths: Array
    """int32: steps of the whole episode."""
    extra: dict[str, Array]


class Windows(NamedTuple):
    """Consecutive steps of one episode each, [windows, length, ...]; where mask is False everything is 0."""

    observations: Array
    actions: Array
    rewards: Array
    terminations: Array
    returns_to_go: Array
    timesteps: Array
    mask: Array
    """bool: the step lies in the episode."""
    extra: dict[str, Array]


class Preferences(NamedTuple):
    """Pairs of windows, by the steps at which they begin (int32 [pairs]): see `windows_from`."""

    first: Array
    second: Array
    first_preferred: Array
    """float32 [pairs]: 1 where the first is the better one, 0 where the second is, 0.5 where they are alike."""


def episode_steps(
    dataset: Dataset, discount: float = 1.0, extra: Sequence[str] = (), to_go: Sequence[str] = ()
) -> EpisodeSteps:
    """All steps of a dataset, also those whose next observation is lost.

    discount: of the sums to go. extra: columns of `Dataset.extra` to include. to_go: columns whose discounted sums
    to the end of the episode are wanted, such as ("costs",); they become the extra columns "costs_to_go".
    """
    columns = {key: dataset.column(key) for key in extra}
    columns |= {f"{key}_to_go": dataset.sums_to_go(dataset.column(key), discount) for key in to_go}
    return EpisodeSteps(
        observations=transform_observations(dataset.transforms, dataset.observations[dataset.observation_rows]),
        actions=actions_to_unit_box(dataset.transforms, dataset.actions),
        rewards=transform_rewards(dataset.transforms, dataset.rewards),
        terminations=dataset.terminations.astype(np.float32),
        returns_to_go=dataset.returns_to_go(discount),
        timesteps=dataset.timesteps.astype(np.int32),
        lengths=np.repeat(dataset.lengths, dataset.lengths).astype(np.int32),
        extra=columns,
    )


def windows_from(steps: EpisodeSteps, first: Array, length: int) -> Windows:
    """The windows that begin at these steps, int [windows]; masked after the end of the episode."""
    ahead = np.arange(length)
    inside = steps.timesteps[first][:, None] + ahead < steps.lengths[first][:, None]
    return _windows(steps, first[:, None] + ahead, inside)


def windows_until(steps: EpisodeSteps, last: Array, length: int) -> Windows:
    """The windows that end with these steps, int [windows]; masked before the start of the episode."""
    ahead = np.arange(1 - length, 1)
    return _windows(steps, last[:, None] + ahead, steps.timesteps[last][:, None] + ahead >= 0)


def _windows(steps: EpisodeSteps, rows: Array, inside: Array) -> Windows:
    rows = rows * inside  # row 0 stands in for the others

    def cut(column: Array) -> Array:
        values = column[rows]
        where = values.__array_namespace__().where
        return where(inside.reshape(inside.shape + (1,) * (values.ndim - 2)), values, np.zeros((), values.dtype))

    columns = {name: cut(getattr(steps, name)) for name in Windows._fields if name not in ("mask", "extra")}
    return Windows(**columns, mask=inside, extra={key: cut(column) for key, column in steps.extra.items()})


def episode_labels(dataset: Dataset, column: str) -> np.ndarray:
    """The value that a column of `Dataset.extra` has in every step of an episode, [episodes, ...].

    Raises:
        UserError: there is no such column, or it changes within an episode.
    """
    values = dataset.column(column)
    labels = values[dataset.starts]
    changes = (values != labels[dataset.episode_of_step]).reshape(dataset.steps, -1).any(axis=1)
    if changes.any():
        raise UserError(
            f"{dataset.name}: column {column} is no label of episodes: it changes within episode "
            f"{int(dataset.episode_of_step[np.argmax(changes)])}"
        )
    return labels


def preferences(
    dataset: Dataset, pairs: int, seed: int, length: int | None = None, column: str | None = None
) -> Preferences:
    """Random pairs of windows, of which the one is preferred that has the larger sum of raw rewards.

    length: steps of the windows, drawn from all that lie within an episode. None: the windows are the whole episodes.
    column: a column of `Dataset.extra` to compare by instead; where windows are episodes it must be a label of them.

    Raises:
        UserError: there are no two such windows, no such column, or it is no label of episodes.
    """
    if length is None:
        first = dataset.starts
        scores = dataset.returns if column is None else episode_labels(dataset, column)
    else:
        remaining = dataset.lengths[dataset.episode_of_step] - dataset.timesteps
        first = np.flatnonzero(remaining >= length)
        scores = dataset.rewards if column is None else dataset.column(column)
    if len(first) < 2:
        what = "episodes" if length is None else f"windows of {length} steps"
        raise UserError(f"{dataset.name}: {len(first)} {what}, too few for pairs of them")
    if scores.ndim > 1:
        raise UserError(f"{dataset.name}: column {column} has {scores.shape[1]} numbers per step; one is needed")
    random = np.random.default_rng(seed)
    one = random.integers(0, len(first), pairs)
    other = (one + random.integers(1, len(first), pairs)) % len(first)  # never the same one
    if length is None:
        sums = [scores[chosen] for chosen in (one, other)]
    else:
        sums = [scores[first[chosen][:, None] + np.arange(length)].sum(1, dtype=np.float64) for chosen in (one, other)]
    return Preferences(
        first=first[one].astype(np.int32),
        second=first[other].astype(np.int32),
        first_preferred=(0.5 * (1 + np.sign(sums[0].astype(np.float64) - sums[1]))).astype(np.float32),
    )
