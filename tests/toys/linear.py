"""Linear cloning: quick to compile, and told to fail when a test wants a failure."""

import flax
import jax
import jax.numpy as jnp

from offrl.algorithm import option
from offrl.learning.policies import Policy
from offrl.learning.updates import sample_batch


@flax.struct.dataclass
class Config:
    learning_rate: float = option(0.1, "step size")
    fails_at: float = option(-1.0, "the update whose loss is NaN; -1 is none", low=-1)
    batch_size: int = option(4, "transitions per update", static=True)
    flavour: str = option("plain", "does nothing", static=True, choices=("plain", "salty"))


@flax.struct.dataclass
class State:
    step: jax.Array
    weights: jax.Array


def init(key, config, spec):
    weights = jax.random.normal(key, (spec.observation_dim, spec.action_dim))
    return State(step=jnp.zeros((), jnp.int32), weights=weights)


def update(key, state, dataset, config):
    batch = sample_batch(key, dataset, config.batch_size)

    def squared_error(weights):
        return ((batch.observations @ weights - batch.actions) ** 2).mean()

    loss, gradient = jax.value_and_grad(squared_error)(state.weights)
    step = state.step + 1
    loss = jnp.where(step == config.fails_at, jnp.nan, loss)
    return State(step=step, weights=state.weights - config.learning_rate * gradient), {"loss": loss}


def policy(config, spec):
    return Policy(act=lambda state, observations: observations @ state.weights)
