"""Interaction: a policy plays, its steps go into a growing buffer, and the run is marked before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from offrl.errors import UserError
from offrl.playing.simulators import Simulators
from offrl.runs.run import Run


class Buffer(NamedTuple):
    """Arrays of a fixed capacity, so that programs that read them are compiled once; rows from `size` on are zero.

    observations, next_observations [capacity, observation_dim] and actions [capacity, action_dim] as the environment
    has them; rewards and terminations (1 where an episode truly ended, not at a time limit) [capacity].
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminations: np.ndarray
    size: int

    @classmethod
    def empty(cls, capacity: int, observation_dim: int, action_dim: int) -> Buffer:
        observations = np.zeros((capacity, observation_dim), np.float32)
        actions = np.zeros((capacity, action_dim), np.float32)
        scalars = np.zeros(capacity, np.float32)
        return cls(observations, actions, scalars, observations.copy(), scalars.copy(), 0)

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
        act: observations [episodes, observation_dim] -> actions in the environment's units.
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
        actions = np.clip(act(observations), simulators.spaces.action_low, simulators.spaces.action_high)
        simulators.step(actions)
        columns = (observations, actions, simulators.rewards, simulators.observations, simulators.terminations)
        buffer = buffer.add(*(column[:n][active] for column in columns))
    interacted["steps"] += buffer.size - before
    interacted["episodes"] += n
    run.write_info()
    return buffer
