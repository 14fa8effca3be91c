"""Rollouts in a model, and the buffer on the device that keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from offrl.algorithm import Spec


class Steps(NamedTuple):
    """Rows of steps, of the data or of the model; [..., dim] or [...]."""

    observations: jax.Array
    actions: jax.Array
    rewards: jax.Array
    next_observations: jax.Array
    terminations: jax.Array


Act = Callable[[jax.Array, jax.Array], jax.Array]
"""(key, observations [n, ...]) -> actions [n, ...]."""
Model = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""(key, observations, actions) -> next observations, rewards, terminations (1 where the rollout stops)."""


def rollout(key: jax.Array, observations: jax.Array, act: Act, model: Model, length: int) -> tuple[Steps, jax.Array]:
    """`length` steps in the model from [n] observations: rows [length, n, ...], and which are valid, bool [length, n].

    A rollout's rows after its termination are not valid.
    """

    def one(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> Any:
        observations, alive = carry
        key_act, key_model = jax.random.split(key)
        actions = act(key_act, observations)
        next_observations, rewards, terminations = model(key_model, observations, actions)
        row = Steps(observations, actions, rewards, next_observations, terminations)
        # a rollout that has ended stays where it is, so that what is computed there stays finite
        ended = ~alive | (terminations > 0)
        return (jnp.where(ended[:, None], observations, next_observations), ~ended), (row, alive)

    start = (observations, jnp.ones(observations.shape[0], bool))
    _, (rows, valid) = jax.lax.scan(one, start, jax.random.split(key, length))
    return rows, valid


class Buffer(NamedTuple):
    """A ring of rows on the device: the newest `size` of all that were added."""

    rows: Steps
    size: jax.Array
    next: jax.Array
    """Where the next row goes."""


def init_buffer(capacity: int, spec: Spec) -> Buffer:
    rows = Steps(
        observations=jnp.zeros((capacity, spec.observation_dim)),
        actions=jnp.zeros((capacity, spec.action_dim)),
        rewards=jnp.zeros(capacity),
        next_observations=jnp.zeros((capacity, spec.observation_dim)),
        terminations=jnp.zeros(capacity),
    )
    return Buffer(rows, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def add(buffer: Buffer, rows: Steps, valid: jax.Array) -> Buffer:
    """Writes the valid ones of n rows over the oldest in the buffer; n is at most its capacity."""
    capacity, count = buffer.rows.rewards.shape[0], valid.sum(dtype=jnp.int32)
    places = (buffer.next + jnp.cumsum(valid, dtype=jnp.int32) - 1) % capacity
    places = jnp.where(valid, places, capacity)  # outside: dropped
    written = jax.tree.map(lambda kept, new: kept.at[places].set(new, mode="drop"), buffer.rows, rows)
    return Buffer(written, jnp.minimum(buffer.size + count, capacity), (buffer.next + count) % capacity)


def sample(key: jax.Array, buffer: Buffer, count: int) -> Steps:
    """Rows drawn uniformly with replacement; the buffer must not be empty."""
    places = jax.random.randint(key, (count,), 0, buffer.size)
    return jax.tree.map(lambda column: column[places], buffer.rows)
