"""Discrete actions and one-hot observations: preferences and values in tables, given and not learned."""

import flax
import jax
import jax.numpy as jnp

from offrl.algorithm import option
from offrl.learning.networks import one_hot_mode
from offrl.learning.policies import Policy

SUPPORTS = ("discrete",)


@flax.struct.dataclass
class Config:
    discount: float = option(0.9, "discount per step")


@flax.struct.dataclass
class State:
    step: jax.Array
    preferences: jax.Array  # [observation_dim, action_dim]
    values: jax.Array  # the same, of one critic


def init(key, config, spec):
    table = jnp.zeros((spec.observation_dim, spec.action_dim))
    return State(step=jnp.zeros((), jnp.int32), preferences=table, values=table)


def update(key, state, dataset, config):
    return state.replace(step=state.step + 1), {}


def policy(config, spec):
    return Policy(
        act=lambda state, observations: one_hot_mode(observations @ state.preferences),
        q_values=lambda state, observations, actions: ((observations @ state.values) * actions).sum(-1)[None],
    )
