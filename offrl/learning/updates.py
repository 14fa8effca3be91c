"""Parts of a gradient step that every algorithm needs: sampling a batch, an Adam step, copying parameters."""

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

    `opt_state` is that of `optax.adam`, which does not depend on the learning rate: it may change with member and step.
    """
    gradients, metrics = jax.grad(loss, has_aux=True)(params)
    changes, opt_state = optax.adam(learning_rate).update(gradients, opt_state)
    return optax.apply_updates(params, changes), opt_state, metrics


def adam_init(params: Any) -> optax.OptState:
    return optax.adam(0.0).init(params)


def copy(params: Any) -> Any:
    """A copy of parameters for a target network, in memory of its own, so that both can be donated to one program."""
    return jax.tree.map(jnp.copy, params)
