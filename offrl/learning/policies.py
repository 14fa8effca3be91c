"""The one interface through which evaluation, diagnostics and export see every algorithm alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

State = Any  # the algorithm's own pytree


@dataclass(frozen=True)
class Policy:
    """Pure functions of one member's state, made by the algorithm's `policy(config, spec)`.

    Observations are [n, observation_dim], preprocessed as the run's data was; actions are [n, action_dim] in [-1, 1].
    What an algorithm does not have is None.
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
