"""A linear policy with quadratic critics, given and not learned: on a linear-quadratic task they can be exact."""

import flax
import jax
import jax.numpy as jnp

from offrl.algorithm import option
from offrl.learning.policies import Policy


@flax.struct.dataclass
class Config:
    discount: float = option(0.9, "discount per step")
    critics: int = option(2, "how many; 0 is an algorithm without any", static=True)


@flax.struct.dataclass
class State:
    step: jax.Array
    gain: jax.Array  # [observation_dim, action_dim]
    offset: jax.Array  # [action_dim]
    quadratic: jax.Array  # [critics, 1 + observation_dim + action_dim, the same]: Q = z' P z with z = (1, s, a)


def init(key, config, spec):
    width = 1 + spec.observation_dim + spec.action_dim
    return State(
        step=jnp.zeros((), jnp.int32),
        gain=jnp.zeros((spec.observation_dim, spec.action_dim)),
        offset=jnp.zeros(spec.action_dim),
        quadratic=jnp.zeros((config.critics, width, width)),
    )


def update(key, state, dataset, config):
    return state.replace(step=state.step + 1), {}


def policy(config, spec):
    def q_values(state, observations, actions):
        z = jnp.concatenate([jnp.ones_like(observations[:, :1]), observations, actions], -1)
        return jnp.einsum("ni,eij,nj->en", z, state.quadratic, z)

    return Policy(
        act=lambda state, observations: jnp.clip(observations @ state.gain + state.offset, -1, 1),
        q_values=q_values if config.critics else None,
    )
