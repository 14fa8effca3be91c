"""The one interface through which evaluation, diagnostics and export see every algorithm alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

State = Any  # the algorithm's own pytree
Carry = Any  # what a policy with memory remembers of its episodes: a pytree, episodes on axis 0 of every leaf


class Memory(NamedTuple):
    """How a policy with memory acts: pure functions of one member's state, for n episodes played in parallel.

    `start` is called once, before the first step; then, at every step, `act` and afterwards `observe`.
    """

    start: Callable[[State, int], Carry]
    """(state, n) -> the carry of n new episodes."""
    act: Callable[[State, Carry, jax.Array], tuple[jax.Array, Carry]]
    """(state, carry, observations) -> the actions that are deployed, and the carry."""
    observe: Callable[[Carry, jax.Array], Carry]
    """(carry, rewards [n]) -> the carry; the rewards of that step, preprocessed like the run's data."""


@dataclass(frozen=True)
class Policy:
    """Pure functions of one member's state, made by the algorithm's `policy(config, spec)`.

    Observations are [n, observation_dim], preprocessed like the run's data; actions are [n, action_dim] in [-1, 1].
    Functions that an algorithm does not have are None.
    """

    act: Callable[[State, jax.Array], jax.Array]
    """(state, observations) -> the action that is deployed: the mean or mode."""
    sample: Callable[[jax.Array, State, jax.Array], jax.Array] | None = None
    """(key, state, observations) -> actions drawn from the policy; None where the policy is deterministic."""
    log_prob: Callable[[State, jax.Array, jax.Array], jax.Array] | None = None
    """(state, observations, actions) -> log-densities [n]; None where there is none."""
    q_values: Callable[[State, jax.Array, jax.Array], jax.Array] | None = None
    """(state, observations, actions) -> [critics, n]."""
    value: Callable[[State, jax.Array], jax.Array] | None = None
    """(state, observations) -> V(s), [n]."""
    memory: Memory | None = None
    """None for a policy that depends on the current observation alone. Otherwise these functions play it, and `act` is
    its action at the first step of an episode."""
