"""Playing policies with memory: what they remember of each episode is kept here, next to the simulators."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from offrl.data.transforms import transform_observations, transform_rewards
from offrl.learning.policies import Memory
from offrl.learning.population import stack
from offrl.playing.simulators import Spaces
from offrl.runs.run import Run


class RememberingPolicies:
    """The policies with memory of all members of a run, in one compiled program.

    Set `states`, the members' states at a checkpoint, before playing. `begin` starts new episodes, calling it with
    observations [members, slots, observation_dim] gives actions [members, slots, action_dim] in the environment's
    units, and `observe` takes the rewards [members, slots] of the step that they led to.
    """

    def __init__(self, run: Run, spaces: Spaces):
        self.transforms = run.info["dataset"]["transforms"]
        self.spaces = spaces
        self.states: Any = None
        self.carry: Any = None
        configs = stack(run.member_configs)

        def memory(config: Any) -> Memory:
            found = run.algorithm.policy(config, run.spec).memory
            assert found is not None, "played by this class are policies with memory only"
            return found

        def start(states: Any, slots: int) -> Any:
            return jax.vmap(lambda config, state: memory(config).start(state, slots))(configs, states)

        def act(states: Any, carry: Any, observations: jax.Array) -> tuple[jax.Array, Any]:
            seen = transform_observations(self.transforms, observations)
            return jax.vmap(lambda config, *inputs: memory(config).act(*inputs))(configs, states, carry, seen)

        def observe(carry: Any, rewards: jax.Array) -> Any:
            return jax.vmap(lambda config, *inputs: memory(config).observe(*inputs))(configs, carry, rewards)

        self._start, self._act, self._observe = jax.jit(start, static_argnums=1), jax.jit(act), jax.jit(observe)

    def begin(self, slots: int) -> None:
        """Start new episodes in all slots and forget the former ones."""
        self.carry = self._start(self.states, slots)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        actions, self.carry = self._act(self.states, self.carry, observations)
        return self.spaces.actions(self.transforms, np.asarray(actions))

    def observe(self, rewards: np.ndarray) -> None:
        self.carry = self._observe(self.carry, transform_rewards(self.transforms, rewards))
