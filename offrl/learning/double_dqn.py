"""Double DQN (van Hasselt, Guez & Silver 2016, arXiv:1509.06461): Q-learning with discrete actions.

A network gives the values of all actions at once, q [..., action_dim]; actions are one-hot. In the next state the
online network chooses the action and the target network evaluates it. The target network follows by Polyak averaging,
as in all algorithms here, instead of being copied every few thousand updates.
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
    """The values of one-hot actions, [...]."""
    return (q * actions).sum(-1)


def td_target(network: Network, params: Any, target_params: Any, batch: Transitions, discount: Any) -> jax.Array:
    """r + discount * value of the next state, [rows], without gradient; no bootstrapping past a termination."""
    best = one_hot_mode(network(params, batch.next_observations))
    next_value = value_of(network(target_params, batch.next_observations), best)
    return jax.lax.stop_gradient(batch.rewards + discount * (1 - batch.terminations) * next_value)


def greedy_policy(network: Network) -> Policy:
    """Takes the action of highest value under the parameters `state.critic`."""
    return Policy(
        act=lambda state, observations: one_hot_mode(network(state.critic, observations)),
        q_values=lambda state, observations, actions: value_of(network(state.critic, observations), actions)[None],
    )
