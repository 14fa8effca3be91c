"""Checks on loading: what makes data unusable stops with a `UserError`, the rest is a warning kept with the dataset."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from offrl.data.dataset import Dataset
from offrl.data.ends import (
    check_ends,
    check_final_observations,
    check_lost_final_observations,
    check_rows_left,
    check_time_limit_terminations,
)
from offrl.data.episodes import Episodes
from offrl.errors import UserError

STATES_BYTES = 16e9  # of states as one-hot vectors, at most
BOX_TOLERANCE = 1e-4  # share of the box by which an action may lie outside through rounding


def check(
    episodes: Episodes,
    clip_actions: bool = False,
    keep_terminations: bool = False,
    time_limit: int | None = None,
    trust_next_observations: bool = False,
) -> Dataset:
    """The checked dataset; see the functions below, and in `ends.py`, for what is refused, repaired and warned of."""
    if time_limit is not None:
        episodes.time_limit = time_limit
    check_shapes(episodes)
    check_states(episodes)
    check_finite(episodes)
    check_actions(episodes, clip_actions)
    check_ends(episodes)
    check_time_limit_terminations(episodes, keep_terminations)
    check_lost_final_observations(episodes)
    distrusted = check_final_observations(episodes, trust_next_observations)
    check_rows_left(episodes, distrusted)
    check_duplicates(episodes)
    check_variation(episodes)
    assert episodes.action_low is not None
    assert episodes.action_high is not None
    return Dataset(
        name=episodes.name,
        observations=episodes.observations,
        actions=episodes.actions,
        rewards=episodes.rewards,
        terminations=episodes.terminations,
        truncations=episodes.truncations,
        lengths=episodes.lengths,
        final_observation_known=episodes.final_observation_known,
        action_low=episodes.action_low,
        action_high=episodes.action_high,
        env_id=episodes.env_id,
        env_kwargs=episodes.env_kwargs,
        time_limit=episodes.time_limit,
        reference=episodes.reference,
        successes=episodes.successes,
        extra=episodes.extra,
        observation_layout=episodes.observation_layout,
        warnings=tuple(episodes.warnings),
    )


def check_shapes(episodes: Episodes) -> None:
    """Refuses arrays whose lengths do not fit together, and empty ones."""
    steps, count = int(episodes.lengths.sum()), len(episodes.lengths)
    if steps == 0:
        raise UserError(f"{episodes.name} is empty: it has no steps")
    if (episodes.lengths < 1).any():
        raise UserError(f"{episodes.name}: episode {int(np.argmin(episodes.lengths))} has no step")
    for column, expected in (
        ("observations", steps + count),
        ("actions", steps),
        ("rewards", steps),
        ("terminations", steps),
        ("truncations", steps),
    ):
        rows = len(getattr(episodes, column))
        if rows != expected:
            raise UserError(
                f"{episodes.name}: {column} has {rows} rows, but {count} episodes of {steps} steps need {expected}"
            )


def check_states(episodes: Episodes) -> None:
    """Turns observations that are whole numbers into one-hot vectors; refuses numbers outside.

    Where the number of states is not known, it is taken from the data.
    """
    states, count = episodes.observations, episodes.observation_count
    if states.dtype.kind != "i":
        return
    if count == 1:
        episodes.observations = states.astype(np.float32)
        return
    remedy = "store quantities as floating-point numbers"
    if count is None:
        count = int(states.max()) + 1
        episodes.warnings.append(
            f"observations are whole numbers and taken as states, one-hot, of which the data show {count}; name "
            f"the environment (env_id) where there are more, or {remedy}"
        )
    if states.max() >= count:
        raise UserError(f"{episodes.name}: observations are states from 0 to {count - 1}, but there is {states.max()}")
    if len(states) * count * 4 > STATES_BYTES:
        raise UserError(
            f"{episodes.name}: observations are whole numbers, and {count} states one-hot would take "
            f"{len(states) * count * 4 / 1e9:.0f} GB; {remedy}"
        )
    episodes.observations = np.zeros((len(states), count), np.float32)
    episodes.observations[np.arange(len(states)), states[:, 0]] = 1


def check_finite(episodes: Episodes) -> None:
    """Refuses NaN and infinity, naming the first place."""
    columns = {column: getattr(episodes, column) for column in ("observations", "actions", "rewards")}
    for column, values in {**columns, **{f"columns.{key}": values for key, values in episodes.extra.items()}}.items():
        finite = np.isfinite(values)
        if finite.all():
            continue
        row = int(np.argmin(finite.reshape(len(values), -1).all(axis=1)))
        blocks = episodes.lengths + 1 if column == "observations" else episodes.lengths
        episode = int(np.searchsorted(np.cumsum(blocks), row, side="right"))
        step = row - int(blocks[:episode].sum())
        bad = values[row] if values.ndim == 1 else values[row][~finite[row]][0]
        dimension = "" if values.ndim == 1 else f", dimension {int(np.argmin(finite[row]))}"
        count = int((~finite).reshape(len(values), -1).any(axis=1).sum())
        raise UserError(
            f"{episodes.name}: {column} holds {bad} in {count} rows, the first in episode {episode}, "
            f"step {step}{dimension}; remove those episodes from the source"
        )


def check_actions(episodes: Episodes, clip_actions: bool) -> None:
    """Refuses actions outside the action box, or clips them. A box that is not known is taken from the data."""
    actions = episodes.actions
    if actions.dtype.kind in "iu":
        check_discrete_actions(episodes)
        return
    if episodes.action_low is None or episodes.action_high is None:
        low, high = actions.min(axis=0), actions.max(axis=0)
        if (low >= -1 - BOX_TOLERANCE).all() and (high <= 1 + BOX_TOLERANCE).all():
            low, high = np.full_like(low, -1), np.full_like(high, 1)
            choice = "[-1, 1]"
        else:
            low, high = np.where(low == high, low - 1, low), np.where(low == high, high + 1, high)
            choice = f"what the data spans, {_numbers(low)} to {_numbers(high)}"
        episodes.action_low, episodes.action_high = low, high
        episodes.warnings.append(
            f"the action box is unknown and taken as {choice}; name the environment (env_id) or give action_low and "
            "action_high"
        )
    low = np.broadcast_to(np.asarray(episodes.action_low, np.float32), actions.shape[1:]).copy()
    high = np.broadcast_to(np.asarray(episodes.action_high, np.float32), actions.shape[1:]).copy()
    unbounded = ~np.isfinite(low) | ~np.isfinite(high)
    if unbounded.any():
        low[unbounded], high[unbounded] = actions.min(axis=0)[unbounded], actions.max(axis=0)[unbounded]
        episodes.warnings.append(
            f"action dimensions {np.flatnonzero(unbounded).tolist()} have no bounds; the range of the data is their box"
        )
    if not (low < high).all():
        raise UserError(
            f"{episodes.name}: the action box is empty in dimension {int(np.argmin(low < high))} "
            f"(low {_numbers(low)}, high {_numbers(high)}); give action_low and action_high"
        )
    episodes.action_low, episodes.action_high = low, high
    outside = (actions < low - BOX_TOLERANCE * (high - low)) | (actions > high + BOX_TOLERANCE * (high - low))
    if outside.any():
        rows = np.flatnonzero(outside.any(axis=1))
        dimension = int(np.argmax(outside[rows[0]]))
        what = (
            f"{len(rows)} of {len(actions)} rows have actions outside the box "
            f"[{low[dimension]:g}, {high[dimension]:g}], the first {_place(episodes, rows[0])}, "
            f"dimension {dimension}, with {actions[rows[0], dimension]:g}"
        )
        if not clip_actions:
            raise UserError(f"{episodes.name}: {what}; clip_actions=true clips them")
        episodes.warnings.append(f"{what}; clipped")
        episodes.actions = np.clip(actions, low, high)


def check_discrete_actions(episodes: Episodes) -> None:
    """Refuses actions that are not 0, 1, ..., n - 1. Where the source gives no n, it is taken from the data."""
    actions, high = episodes.actions, episodes.action_high
    if high is None:
        high = actions.max(axis=0)
        episodes.warnings.append(
            f"the number of discrete actions is unknown and taken as the {int(high[0]) + 1} in the data; "
            "name the environment (env_id) or give action_high"
        )
    count = int(np.asarray(high).reshape(-1)[0]) + 1
    outside = np.flatnonzero((actions < 0) | (actions >= count))
    if outside.size:
        raise UserError(
            f"{episodes.name}: whole-numbered actions are discrete, 0 to {count - 1}, but {outside.size} of "
            f"{len(actions)} rows have others, the first {_place(episodes, outside[0])} with {actions[outside[0], 0]} "
            "(where actions are continuous, store them as floating-point numbers)"
        )
    episodes.action_low, episodes.action_high = np.zeros(1, np.float32), np.array([count - 1], np.float32)


def check_duplicates(episodes: Episodes) -> None:
    """Warns of episodes that are the same step by step."""
    starts = episodes.starts
    returns = np.add.reduceat(episodes.rewards.astype(np.float64), starts)
    alike = defaultdict(list)
    for episode, key in enumerate(zip(episodes.lengths.tolist(), returns.tolist(), strict=True)):
        alike[key].append(episode)
    first_copy, copies = None, 0
    for group in alike.values():
        if len(group) < 2:
            continue
        seen: dict[bytes, int] = {}
        for episode in group:
            start, length = starts[episode], episodes.lengths[episode]
            rows = episodes.observations[start + episode : start + episode + length]
            content = rows.tobytes() + episodes.actions[start : start + length].tobytes()
            original = seen.setdefault(content, episode)
            if original != episode:
                copies += 1
                first_copy = min(first_copy or (episode, original), (episode, original))
    if first_copy is not None:
        episodes.warnings.append(
            f"{copies} of {len(episodes.lengths)} episodes are copies of an earlier one, the first is episode "
            f"{first_copy[0]}, a copy of episode {first_copy[1]}; a split by episode may put copies on both sides"
        )


def check_variation(episodes: Episodes) -> None:
    """Warns of a constant reward and of dimensions that never change."""
    if episodes.rewards.min() == episodes.rewards.max():
        left = "nothing but the length of episodes" if episodes.terminations.any() else "nothing"
        episodes.warnings.append(f"the reward is {episodes.rewards[0]:g} in every step: there is {left} to improve")
    for column, values in (("observation", episodes.observations), ("action", episodes.actions)):
        still = np.flatnonzero(values.min(axis=0) == values.max(axis=0))
        if still.size == values[0].size or (still.size and values.dtype != np.uint8):  # images may have a still frame
            places = ", ".join(map(str, still[:8].tolist())) + (", ..." if still.size > 8 else "")
            episodes.warnings.append(f"{still.size} of {values[0].size} {column} dimensions never change: {places}")


def check_environment(dataset: Dataset, spaces: Any, env_id: str | None = None) -> tuple[str, ...]:
    """Compares a dataset with what `offrl.playing.simulators.spaces` says of an environment.

    Raises `UserError` where kinds or sizes differ; returns warnings (another action box, other parts).
    """
    low, high = spaces.action_low, spaces.action_high
    environment = env_id or dataset.env_id or "the environment"
    for what, mine, theirs in (
        (
            "observations",
            _size(dataset.observations.shape[1:]),
            _size(spaces.observation_shape or (spaces.observation_dim,)),
        ),
        ("actions", _choices(dataset), _choices(spaces)),
    ):
        if mine != theirs:
            raise UserError(f"{dataset.name} has {what} of {mine}, but those of {environment} have {theirs}")
    warnings = []
    if dataset.observation_layout and dataset.observation_layout != spaces.observation_layout:
        warnings.append(
            f"the observations of {dataset.name} are {', '.join(dataset.observation_layout)}, those of {environment} "
            f"{', '.join(spaces.observation_layout) or 'have no parts'}"
        )
    if not (np.allclose(dataset.action_low, low, atol=1e-5) and np.allclose(dataset.action_high, high, atol=1e-5)):
        warnings.append(
            f"the action box of {dataset.name} is {_numbers(dataset.action_low)} to {_numbers(dataset.action_high)}, "
            f"that of {environment} is {_numbers(low)} to {_numbers(high)}"
        )
    return tuple(warnings)


def _place(episodes: Episodes, row: int) -> str:
    episode = int(np.searchsorted(np.cumsum(episodes.lengths), row, side="right"))
    return f"in row {row} (episode {episode}, step {row - int(episodes.starts[episode])})"


def _size(shape: tuple[int, ...]) -> str:
    return f"size {' x '.join(map(str, shape))}"


def _choices(spaces: Any) -> str:
    """Of a dataset's or an environment's actions."""
    return f"{spaces.action_dim} choices" if spaces.discrete else f"size {spaces.action_dim}"


def _numbers(values: np.ndarray) -> str:
    values = np.asarray(values)
    if (values == values.flat[0]).all():
        return f"{values.flat[0]:g}"
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"
