"""Two phases: the first finds the mean action, the second walks towards it with steps of its own."""

import flax
import jax
import jax.numpy as jnp

from offrl.algorithm import Phase, option
from offrl.learning.policies import Policy
from offrl.learning.updates import sample_batch


@flax.struct.dataclass
class Config:
    first_updates: int = option(25, "updates of the first phase", static=True)


@flax.struct.dataclass
class State:
    step: jax.Array
    mean: jax.Array
    action: jax.Array
    begun: jax.Array  # how often the second phase began
    noise: jax.Array  # what its beginning drew


def init(key, config, spec):
    zeros = jnp.zeros(spec.action_dim)
    return State(step=jnp.zeros((), jnp.int32), mean=zeros, action=zeros, begun=jnp.zeros((), jnp.int32), noise=zeros)


def find_mean(key, state, dataset, config):
    error = sample_batch(key, dataset, 4).actions.mean(0) - state.mean
    return state.replace(step=state.step + 1, mean=state.mean + 0.1 * error), {"mean_loss": (error**2).sum()}


def start_walking(key, state, dataset, config):
    noise = jax.random.normal(key, state.noise.shape)
    return state.replace(action=dataset.actions[0], begun=state.begun + 1, noise=noise)


def walk(key, state, dataset, config):
    error = state.mean + 0.01 * jax.random.normal(key, state.mean.shape) - state.action
    return state.replace(step=state.step + 1, action=state.action + 0.1 * error), {"walk_loss": (error**2).sum()}


def phases(config):
    return (
        Phase("mean", find_mean, updates=config.first_updates),
        Phase("walk", walk, begin=start_walking),
    )


def policy(config, spec):
    return Policy(
        act=lambda state, observations: jnp.broadcast_to(state.action, (len(observations), len(state.action)))
    )
