"""The dataset: whole episodes in raw units on the host, and the views derived from them.

Episodes are stored with the observation after their last action, so a next observation is never guessed from the row
that happens to follow. The arrays stay as the source gave them; `transforms` lists what the views do to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from offrl.data.transforms import (
    ONE_HOT,
    UNIT_BOX,
    Transform,
    actions_to_unit_box,
    find,
    one_hot,
    transform_observations,
    transform_rewards,
    unit_box,
)
from offrl.errors import UserError


@dataclass(frozen=True)
class Reference:
    """The returns that make 0 (random) and 100 (expert) of the normalised score, and where they come from."""

    random: float
    expert: float
    source: str

    def normalise(self, returns: Any) -> Any:
        """100 * (returns - random) / (expert - random), for a number or an array."""
        return 100.0 * (returns - self.random) / (self.expert - self.random)

    def denormalise(self, scores: Any) -> Any:
        """The returns of normalised scores."""
        return self.random + scores / 100.0 * (self.expert - self.random)


class Transitions(NamedTuple):
    """Flat float32 arrays, one row per step, transformed; [rows, dim] or [rows].

    terminations is 1 where the next value is 0 (never for a time limit); next_action_known is 0 at the end of an
    episode, where next_actions is 0. extra: the columns of `Dataset.extra` that were named.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminations: np.ndarray
    next_actions: np.ndarray
    next_action_known: np.ndarray
    extra: dict[str, np.ndarray] = {}  # noqa: RUF012 - never changed


class Dynamics(NamedTuple):
    """Steps whose next observation was really seen, terminal ones included; float32, transformed."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminations: np.ndarray


@dataclass(frozen=True)
class Dataset:
    """Whole episodes, raw. Build one with `offrl.data.load`, which checks it.

    observations: float32 [steps + episodes, observation_dim], or images, uint8 [steps + episodes, H, W, C]; the block
      of an episode has length + 1 rows.
    actions: float32 [steps, action_dim], in the units of the source, or discrete, int32 [steps, 1], counted from 0;
      rewards: float32 [steps].
    terminations, truncations: bool [steps]; only the last step of an episode carries one.
    lengths: int64 [episodes], steps of each episode.
    final_observation_known: bool [episodes]; False where the source lost the observation after the last action: that
      row is a copy of the one before, and the step is left out of the views that need it.
    action_low, action_high: float32 [action_dim], the action box; of n discrete actions [0] and [n - 1].
    env_id, env_kwargs: the Gymnasium environment the source names, or None; time_limit: its step limit, or None.
    reference: for normalised scores, or None. successes: bool [episodes], `info["success"]` at any step, or None.
    extra: further columns by name (`data.columns={costs: NAME}`), [steps] or [steps, ...], float32, int32 or bool.
    observation_layout: of observations in several parts, these and their sizes: ("achieved_goal[2]", "observation[4]").
    transforms: named steps with their statistics, which the views apply in this order.
    warnings: what the checks found on loading.
    """

    name: str
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    lengths: np.ndarray
    final_observation_known: np.ndarray
    action_low: np.ndarray
    action_high: np.ndarray
    env_id: str | None = None
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    time_limit: int | None = None
    reference: Reference | None = None
    successes: np.ndarray | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    observation_layout: tuple[str, ...] = ()
    transforms: tuple[Transform, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if find(self.transforms, UNIT_BOX) is None and find(self.transforms, ONE_HOT) is None:
            object.__setattr__(self, "transforms", (self.action_transform(), *self.transforms))
        for name in ("observations", "actions", "rewards", "terminations", "truncations", "lengths"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))
        object.__setattr__(self, "extra", {key: _read_only(values) for key, values in self.extra.items()})

    def action_transform(self, margin: float = 0.0) -> Transform:
        """What the views do to actions; margin: see `unit_box`, nothing for discrete actions."""
        if self.discrete:
            return one_hot(int(self.action_high[0]) + 1)
        return unit_box(self.action_low, self.action_high, margin)

    # Sizes and places

    @property
    def episodes(self) -> int:
        return len(self.lengths)

    @property
    def steps(self) -> int:
        return len(self.actions)

    @property
    def observation_dim(self) -> int:
        """Numbers in one observation."""
        return int(np.prod(self.observations.shape[1:]))

    @property
    def discrete(self) -> bool:
        return self.actions.dtype.kind in "iu"

    @property
    def action_dim(self) -> int:
        """Numbers in one action as the views give it: of discrete actions how many there are."""
        return int(self.action_high[0]) + 1 if self.discrete else self.actions.shape[1]

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 [episodes]: the first step of every episode."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def ends(self) -> np.ndarray:
        """int64 [episodes]: the last step of every episode."""
        return np.cumsum(self.lengths) - 1

    @cached_property
    def episode_of_step(self) -> np.ndarray:
        """int64 [steps]: the episode every step belongs to."""
        return np.repeat(np.arange(self.episodes), self.lengths)

    @cached_property
    def observation_rows(self) -> np.ndarray:
        """int64 [steps]: the row of `observations` of every step; the next observation is in the row after."""
        return np.arange(self.steps) + self.episode_of_step

    @cached_property
    def timesteps(self) -> np.ndarray:
        """int64 [steps]: steps since the start of the episode."""
        return np.arange(self.steps) - self.starts[self.episode_of_step]

    @cached_property
    def returns(self) -> np.ndarray:
        """float64 [episodes]: undiscounted sum of the raw rewards."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.starts)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the raw content: the same for the same episodes, wherever stored and whatever called."""
        digest = hashlib.sha256()
        for array in (
            self.observations,
            self.actions,
            self.rewards,
            self.terminations,
            self.truncations,
            self.lengths.astype(np.int64),
            self.final_observation_known,
            self.action_low,
            self.action_high,
            *(self.extra[key] for key in sorted(self.extra)),
        ):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update("".join(sorted(self.extra)).encode())
        return digest.hexdigest()[:16]

    # Subsets, always of whole episodes

    def select_episodes(self, indices: Sequence[int] | np.ndarray) -> Dataset:
        """The episodes of those indices, in that order. Transforms keep their statistics."""
        indices = np.asarray(indices, np.int64)
        if indices.size == 0:
            raise UserError(f"{self.name}: no episode selected of {self.episodes}")
        steps = _ranges(self.starts[indices], self.lengths[indices])
        rows = _ranges(self.starts[indices] + indices, self.lengths[indices] + 1)
        return replace(
            self,
            observations=self.observations[rows],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            terminations=self.terminations[steps],
            truncations=self.truncations[steps],
            lengths=self.lengths[indices],
            final_observation_known=self.final_observation_known[indices],
            successes=None if self.successes is None else self.successes[indices],
            extra={key: values[steps] for key, values in self.extra.items()},
        )

    def split(self, validation_fraction: float, seed: int) -> tuple[Dataset, Dataset]:
        """(train, validation), by episode: a random `validation_fraction` of the episodes, at least one, is held out.

        The episodes of each part stay in the order of the source.
        """
        train, validation = self.split_indices(validation_fraction, seed)
        return self.select_episodes(train), self.select_episodes(validation)

    def split_indices(self, validation_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The episodes of each part of `split`, ascending."""
        if not 0 < validation_fraction < 1:
            raise UserError(f"validation_fraction={validation_fraction} must be between 0 and 1")
        if self.episodes < 2:
            raise UserError(f"{self.name} has one episode, which cannot be split into training and validation data")
        held_out = min(max(1, round(validation_fraction * self.episodes)), self.episodes - 1)
        order = np.random.default_rng(seed).permutation(self.episodes)
        return np.sort(order[held_out:]), np.sort(order[:held_out])

    def top_fraction(self, fraction: float, discount: float = 1.0) -> Dataset:
        """The best `fraction` of the episodes (at least one) by discounted raw return; ties go to the earlier."""
        if not 0 < fraction <= 1:
            raise UserError(f"top fraction {fraction} must be in (0, 1]")
        scores = self.returns if discount == 1.0 else self._discounted(self.rewards, discount)[self.starts]
        count = max(1, int(fraction * self.episodes + 1e-9))
        return self.select_episodes(np.sort(np.argsort(-scores, kind="stable")[:count]))

    # Views

    @cached_property
    def transition_rows(self) -> np.ndarray:
        """int64 [rows]: the steps in `transitions`: all but those that would bootstrap from a lost observation."""
        keep = np.ones(self.steps, bool)
        keep[self.ends] = self.final_observation_known | self.terminations[self.ends]
        return np.flatnonzero(keep)

    @cached_property
    def dynamics_rows(self) -> np.ndarray:
        """int64 [rows]: the steps in `dynamics`: those whose next observation is in the source."""
        keep = np.ones(self.steps, bool)
        keep[self.ends] = self.final_observation_known
        return np.flatnonzero(keep)

    def transitions(self, extra: Sequence[str] = ()) -> Transitions:
        """The TD view: (s, a, r, s', terminal, a'). Truncated steps stay and bootstrap; no row crosses an episode.

        extra: names of columns of `Dataset.extra` to include, such as ("costs",).
        """
        rows = self._some(self.transition_rows)
        actions = actions_to_unit_box(self.transforms, self.actions)
        next_known = np.ones(self.steps, np.float32)
        next_known[self.ends] = 0.0
        next_actions = np.concatenate([actions[1:], actions[:1]]) * next_known[:, None]
        return Transitions(
            observations=self._observations_at(self.observation_rows[rows]),
            actions=actions[rows],
            rewards=transform_rewards(self.transforms, self.rewards[rows]),
            next_observations=self._observations_at(self.observation_rows[rows] + 1),
            terminations=self.terminations[rows].astype(np.float32),
            next_actions=next_actions[rows],
            next_action_known=next_known[rows],
            extra={key: self.column(key)[rows] for key in extra},
        )

    def dynamics(self) -> Dynamics:
        """The model view: steps with a next observation that was really seen, the terminal one included."""
        rows = self._some(self.dynamics_rows)
        return Dynamics(
            observations=self._observations_at(self.observation_rows[rows]),
            actions=actions_to_unit_box(self.transforms, self.actions[rows]),
            rewards=transform_rewards(self.transforms, self.rewards[rows]),
            next_observations=self._observations_at(self.observation_rows[rows] + 1),
            terminations=self.terminations[rows].astype(np.float32),
        )

    def returns_to_go(self, discount: float = 1.0) -> np.ndarray:
        """float32 [steps]: discounted sum of the transformed rewards to the end of the episode, nothing added after it.

        A time limit cuts the sum like a terminal state. Rows of `transitions` are
        `returns_to_go(...)[transition_rows]`.
        """
        return self.sums_to_go(transform_rewards(self.transforms, self.rewards), discount)

    def sums_to_go(self, values: np.ndarray, discount: float = 1.0) -> np.ndarray:
        """float32 [steps]: discounted sum of [steps] values, such as costs, from every step to its episode's end."""
        return self._discounted(values, discount).astype(np.float32)

    def column(self, key: str) -> np.ndarray:
        """A column of `extra`, [steps, ...]."""
        if key not in self.extra:
            known = ", ".join(sorted(self.extra)) or "none"
            raise UserError(
                f"{self.name}: no column {key} was loaded (there are: {known}); name it with data.columns.{key}=COLUMN"
            )
        return self.extra[key]

    def _some(self, rows: np.ndarray) -> np.ndarray:
        if not rows.size:
            raise UserError(
                f"{self.name}: no row is left to learn from: none of these {self.episodes} episodes has a step whose "
                "next observation is known"
            )
        return rows

    def _observations_at(self, rows: np.ndarray) -> np.ndarray:
        return transform_observations(self.transforms, self.observations[rows])

    def _discounted(self, rewards: np.ndarray, discount: float) -> np.ndarray:
        """float64 [steps]: back in time through all episodes at once, longest first, so one pass per time step."""
        if not 0 <= discount <= 1:
            raise UserError(f"discount={discount} must be in [0, 1]")
        result = rewards.astype(np.float64)
        order = np.argsort(-self.lengths, kind="stable")
        starts, lengths = self.starts[order], self.lengths[order]
        for time in range(int(lengths[0]) - 2, -1, -1):
            steps = starts[: np.searchsorted(-lengths, -(time + 1), side="left")] + time
            result[steps] += discount * result[steps + 1]
        return result


def _read_only(values: np.ndarray) -> np.ndarray:
    """The same array, protected from changes: views and fingerprint are cached."""
    view = values.view()
    view.flags.writeable = False
    return view


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """starts[0], ..., starts[0] + lengths[0] - 1, starts[1], ...: int64 [sum of lengths]."""
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
