"""The pieces of a gradient step that every algorithm takes and none is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from offrl.data.dataset import Transitions


def sample_batch(key: jax.Array, dataset: Transitions, batch_size: int) -> Transitions:
    """`batch_size` transitions, drawn uniformly with replacement."""
    rows = jax.random.randint(key, (batch_size,), 0, dataset.rewards.shape[0])
    return jax.tree.map(lambda column: column[rows], dataset)


def adam_step(
    loss: Callable[..., Any], params: Any, opt_state: optax.OptState, learning_rate: jax.Array | float
) -> tuple[Any, optax.OptState, dict[str, jax.Array]]:
    """One Adam step on `loss(params) -> (scalar, metrics)`: new parameters, new optimiser state, the metrics.

    `opt_state` is that of `optax.adam` with any learning rate, so that the rate may differ between members and steps.
    """
    gradients, metrics = jax.grad(loss, has_aux=True)(params)
    changes, opt_state = optax.adam(learning_rate).update(gradients, opt_state)
    return optax.apply_updates(params, changes), opt_state, metrics


def adam_init(params: Any) -> optax.OptState:
    return optax.adam(0.0).init(params)


def copy(params: Any) -> Any:
    """Parameters for a target network: equal, in memory of their own, so that both may be donated to one program."""
    return jax.tree.map(jnp.copy, params)
