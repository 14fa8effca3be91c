"""The tasks' own termination rules: knowledge that is not in the data, for comparisons only.

The classifier that is learned from the data belongs to the ensemble, in `dynamics.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def _never(observations: jax.Array) -> jax.Array:
    return jnp.zeros(observations.shape[:-1], bool)


def _hopper(observations: jax.Array) -> jax.Array:
    healthy = (observations[..., 0] > 0.7) & (jnp.abs(observations[..., 1]) < 0.2)
    return ~(healthy & (jnp.abs(observations[..., 1:]) < 100).all(-1))


def _walker2d(observations: jax.Array) -> jax.Array:
    height, angle = observations[..., 0], observations[..., 1]
    return ~((height > 0.8) & (height < 2.0) & (jnp.abs(angle) < 1.0))


def _ant(observations: jax.Array) -> jax.Array:
    height = observations[..., 0]
    return ~(jnp.isfinite(observations).all(-1) & (height >= 0.2) & (height <= 1.0))


ASSISTED_TERMINATIONS = {
    "assisted:hopper": _hopper,
    "assisted:walker2d": _walker2d,
    "assisted:ant": _ant,
    "assisted:halfcheetah": _never,
}
"""Gymnasium's rules: raw next observations [..., dim] -> whether the episode ends there [...]."""
