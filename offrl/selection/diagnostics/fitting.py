"""Fitting a Q function to logged transitions: what all value estimators share.

All candidates are valued in the same units: raw rewards, discounted by DISCOUNT, whatever their own critics use.
A deployed policy is deterministic (`Policy.act`), and so is what is valued here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offrl.learning.networks import MLP

DISCOUNT = 0.99
HEADS = 3
HIDDEN_DIMS = (64, 64)
BATCH_SIZE = 128
TARGET_RATE = 0.05
"""Share of the network that its target takes over per update. Ten times the published 0.005, for 5,000 updates in
place of a million. An error that is the same everywhere falls by exp(-TARGET_RATE (1 - DISCOUNT)) per update: 8 % of
the distance from the behaviour's value to the policy's is left at the end. That is wanted: at 0.1 and 0.2 the heads
went further apart than the policies (Kendall tau between heads -0.05 and -0.1, in place of 0.6)."""
NOT_FINITE = "its actions are not finite"
NO_HELD_OUT = "no episodes are held out (validation_fraction=0)"


class Transitions(NamedTuple):
    """What a Q function is fitted to; rewards in their own units, values in the networks as (Q - center) / scale."""

    inputs: jax.Array
    next_inputs: jax.Array
    """Of the next observation and the action of the policy that is valued; for behaviour values the observation."""
    rewards: jax.Array
    discounts: jax.Array
    """[n]: 0 where the episode terminated, else the discount (also where it was truncated)."""
    low: jax.Array
    high: jax.Array
    """Targets are clipped to these."""
    center: jax.Array
    scale: jax.Array

    def target(self, rows: jax.Array, next_values: jax.Array) -> jax.Array:
        returns = self.rewards[rows] + self.discounts[rows] * (self.center + self.scale * next_values)
        return (jnp.clip(returns, self.low, self.high) - self.center) / self.scale


def value_bounds(rewards: np.ndarray, terminations: np.ndarray, discount: float) -> tuple[float, float]:
    """The least and greatest value that any policy can have if no reward lies outside those seen.

    Raises:
        ValueError: a discount of 1 or more, with which there is no bound.
    """
    if not 0 <= discount < 1:
        raise ValueError(f"discount {discount}: fitted values need one below 1")
    low, high = float(rewards.min()), float(rewards.max())
    if terminations.any():  # an episode can end here, or go on for ever
        return min(low, low / (1 - discount)), max(high, high / (1 - discount))
    return low / (1 - discount), high / (1 - discount)


def network(outputs: int) -> MLP:
    return MLP(HIDDEN_DIMS, outputs, layer_norm=True)


def head_value(params: Any, inputs: jax.Array) -> jax.Array:
    values: Any = network(1).apply(params, inputs)
    return values.squeeze(-1)


values_of = jax.jit(jax.vmap(head_value, (0, None)))
"""(parameters of all heads, inputs [n, dim]) -> [heads, n], standardised."""


def init_heads(key: jax.Array, dim: int) -> Any:
    return jax.vmap(lambda key: network(1).init(key, jnp.zeros((1, dim))))(jax.random.split(key, HEADS))


def batches(key: jax.Array, n: int) -> jax.Array:
    """Every head draws its own rows, [heads, batch]."""
    return jax.random.randint(key, (HEADS, BATCH_SIZE), 0, n)


def steps_of(key: jax.Array, updates: int, learning_rate: float) -> tuple[jax.Array, jax.Array]:
    """A key and a learning rate, which falls linearly to 0, for every update."""
    return jax.random.split(key, updates), learning_rate * jnp.linspace(1, 0, updates, endpoint=False)


def follow(target: Any, params: Any) -> Any:
    return jax.tree.map(lambda t, p: t + TARGET_RATE * (p - t), target, params)
