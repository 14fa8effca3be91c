"""Double DQN (van Hasselt, Guez & Silver 2016, arXiv:1509.06461): Q-learning with discrete actions.

A network gives the values of all actions at once, q [..., action_dim]; actions are one-hot. Of the next state the
learned network chooses the action and its target values it. The target follows by Polyak averaging instead of a copy
every few thousand updates, as the critics of all our algorithms do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from offrl.data.dataset import Transitions
from offrl.learning.networks import one_hot_mode
from offrl.learning.policies import Policy

Network = Callable[[Any, Any], jax.Array]
"""(parameters, observations) -> q [..., action_dim]."""


def value_of(q: jax.Array, actions: jax.Array) -> jax.Array:
    """Of one-hot actions, [...]."""
    return (q * actions).sum(-1)


def td_target(network: Network, params: Any, target_params: Any, batch: Transitions, discount: Any) -> jax.Array:
    """r + discount * value of the next state, [rows], a constant; never bootstrapped past a termination."""
    best = one_hot_mode(network(params, batch.next_observations))
    next_value = value_of(network(target_params, batch.next_observations), best)
    return jax.lax.stop_gradient(batch.rewards + discount * (1 - batch.terminations) * next_value)


def greedy_policy(network: Network) -> Policy:
    """The action of highest value, by the field `critic` of the state."""
    return Policy(
        act=lambda state, observations: one_hot_mode(network(state.critic, observations)),
        q_values=lambda state, observations, actions: value_of(network(state.critic, observations), actions)[None],
    )
