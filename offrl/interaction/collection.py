"""Interaction: a policy plays, its steps go into a growing buffer, and the run is marked before the first step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from offrl.data.dataset import Transitions
from offrl.data.transforms import Transform, actions_to_unit_box, transform_observations, transform_rewards
from offrl.errors import UserError
from offrl.playing.simulators import Simulators, Spaces
from offrl.runs.run import Run


class Buffer(NamedTuple):
    """Arrays of a fixed capacity, so that programs that read them are compiled once; rows from `size` on are zero.

    observations, next_observations [capacity, ...] and actions [capacity, action_dim] as the environment has them
    (images uint8 [H, W, C], discrete actions as one number); rewards and terminations (1 where an episode truly
    ended, not at a time limit) [capacity].
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminations: np.ndarray
    size: int

    @classmethod
    def empty(cls, capacity: int, spaces: Spaces) -> Buffer:
        """A buffer with room for that many steps in an environment with these spaces."""
        actions = np.zeros((capacity, len(spaces.action_low)), np.float32)
        rewards, terminations = np.zeros((2, capacity), np.float32)
        return cls(spaces.observations(capacity), actions, rewards, spaces.observations(capacity), terminations, 0)

    def transitions(self, transforms: Sequence[Transform]) -> Transitions:
        """All rows as an algorithm sees them, preprocessed with the transforms of a run (`run.info["dataset"]`).

        Batches are drawn from the first `size` rows. No next action is known.
        """
        actions = actions_to_unit_box(transforms, self.actions)
        return Transitions(
            observations=transform_observations(transforms, self.observations),
            actions=actions,
            rewards=transform_rewards(transforms, self.rewards),
            next_observations=transform_observations(transforms, self.next_observations),
            terminations=self.terminations,
            next_actions=np.zeros_like(actions),
            next_action_known=np.zeros_like(self.rewards),
        )

    def add(self, *rows: np.ndarray) -> Buffer:
        """The buffer with rows added to its five columns, in their order; the arrays are written in place.

        Raises:
            UserError: there is no room for them.
        """
        end = self.size + len(rows[0])
        if end > len(self.rewards):
            raise UserError(f"the buffer holds {len(self.rewards)} steps, {end} are to go into it; make it larger")
        for column, values in zip(self[:-1], rows, strict=True):
            column[self.size : end] = values
        return self._replace(size=end)


def collect(
    run: Run, act: Callable[[np.ndarray], np.ndarray], simulators: Simulators, seeds: np.ndarray, buffer: Buffer
) -> Buffer:
    """Play one episode from each reset seed and add its steps to the buffer.

    The run is marked in run.json, `"interacted": {env, steps, episodes}`, before the first step; the counts, summed
    over all calls, are updated when the episodes have ended. Selection refuses a run with this mark.

    Args:
        act: observations [episodes, ...] -> actions in the environment's units, such as `run.actor(step)`.
        simulators: entered, with room for as many episodes as there are seeds.

    Raises:
        UserError: the buffer may be too small for the episodes (nothing is played then), or the run has interacted
            with another environment.
    """
    most = buffer.size + len(seeds) * simulators.spaces.max_steps
    if most > len(buffer.rewards):
        raise UserError(f"the buffer holds {len(buffer.rewards)} steps, up to {most} may be collected; make it larger")
    interacted = run.info.get("interacted") or {"env": simulators.env_id, "steps": 0, "episodes": 0}
    if interacted["env"] != simulators.env_id:
        raise UserError(f"{run.path}: has interacted with {interacted['env']}, not with {simulators.env_id}")
    run.info["interacted"] = interacted
    run.write_info()

    before, n = buffer.size, len(seeds)
    simulators.reset(seeds)
    while (active := simulators.active[:n].copy()).any():
        observations = simulators.observations[:n].copy()
        actions = np.asarray(act(observations)).reshape(n, -1)  # discrete ones may lack the axis of one number
        actions = np.clip(actions, simulators.spaces.action_low, simulators.spaces.action_high)
        simulators.step(actions)
        columns = (observations, actions, simulators.rewards, simulators.observations, simulators.terminations)
        buffer = buffer.add(*(column[:n][active] for column in columns))
    interacted["steps"] += buffer.size - before
    interacted["episodes"] += n
    run.write_info()
    return buffer
