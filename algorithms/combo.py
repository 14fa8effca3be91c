"""COMBO: conservative offline model-based policy optimization (Yu et al. 2021, arXiv:2102.08363).

No estimate of the model's uncertainty: the critics are trained on data and model rollouts; they are pushed down at
states of both, at actions of the policy, and up at the data's own actions (equation 2). The first term is CQL's soft
maximum over actions: T logsumexp((Q(s, a) - log-density of a) / T) over 10 actions of the policy at s, 10 of the policy
at s' and 10 uniform ones. Its gradient reaches only the critics, not the policy.

Order of one update as in OfflineRL-Kit: policy, entropy weight, critics, target critics; the temporal-difference target
has no entropy term. OfflineRL-Kit's Lagrange multiplier and max-Q backup, off by default, are left out. Deviations:
those of `mopo.py`; the entropy weight is capped at 1, as for the other model-based algorithms.
"""

from __future__ import annotations

from typing import Any

import flax
import jax
import jax.numpy as jnp

from offrl.algorithm import Metrics, Phase, option
from offrl.data.transforms import Preprocessing
from offrl.learning import model_based, soft_actor_critic
from offrl.learning.model_based import (
    ModelBasedConfig,
    State,
    advance,
    dynamics_phase,
    init,
    mixed_batch,
    policy,
    policy_act,
    prepare,
    progress,
    real_rows,
    roll_out,
)
from offrl.learning.models.dynamics import ModelData
from offrl.learning.models.rollouts import Steps
from offrl.learning.soft_actor_critic import Learner

__all__ = ["Config", "init", "phases", "policy", "prepare"]


@flax.struct.dataclass
class Config(ModelBasedConfig):
    cql_weight: float = option(5.0, "weight of the conservative term")
    cql_temperature: float = option(1.0, "T of its soft maximum")
    cql_actions: int = option(10, "actions of each of the three kinds that it is taken over", static=True)
    conservative_states: str = option(
        "mix", "states at which the critics are pushed down: all, or the model's", static=True, choices=("mix", "model")
    )
    uniform_rollouts: bool = option(False, "make rollouts with uniform actions, not the policy's", static=True)
    entropy_backup: bool = option(False, "the critics' target includes the entropy term", static=True)
    real_ratio: float = option(0.5, "share of a batch that comes from the data", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)


def proposals(key: jax.Array, learner: Learner, batch: Steps, config: Config) -> tuple[jax.Array, jax.Array]:
    """Actions [rows, 3 * cql_actions, action_dim] and their log-densities; no gradient passes through either."""
    key_here, key_next, key_uniform = jax.random.split(key, 3)
    rows, action_dim = batch.actions.shape

    def drawn(key: jax.Array, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        repeated = jnp.repeat(observations[:, None], config.cql_actions, 1)
        return soft_actor_critic.sample_actions(key, learner.actor, repeated, action_dim, config)

    here, here_log_prob = drawn(key_here, batch.observations)
    following, following_log_prob = drawn(key_next, batch.next_observations)
    uniform = jax.random.uniform(key_uniform, (rows, config.cql_actions, action_dim), minval=-1.0, maxval=1.0)
    uniform_log_prob = jnp.full((rows, config.cql_actions), -action_dim * jnp.log(2.0))
    actions = jnp.concatenate([here, following, uniform], 1)
    return actions, jnp.concatenate([here_log_prob, following_log_prob, uniform_log_prob], 1)


def conservative_loss(
    params: Any, actions: jax.Array, log_prob: jax.Array, pushed: Steps, real: Steps, config: Config
) -> jax.Array:
    """Soft maximum of Q at the states of `pushed` minus mean Q of the real rows, summed over critics, unweighted."""
    critic = soft_actor_critic.critic_network(config)
    repeated = jnp.repeat(pushed.observations[:, None], actions.shape[1], 1)
    q = critic.apply(params, repeated, actions) - log_prob  # published code subtracts before dividing by T
    soft_maximum = config.cql_temperature * jax.nn.logsumexp(q / config.cql_temperature, -1).mean(1)
    return (soft_maximum - critic.apply(params, real.observations, real.actions).mean(1)).sum()


def critic_loss(params: Any, target: jax.Array, drawn: Any, batch: Steps, config: Config) -> tuple[Any, Metrics]:
    loss, metrics = soft_actor_critic.critic_loss(params, target, batch, config)
    count = real_rows(config)
    real = jax.tree.map(lambda column: column[:count], batch)
    conservative = conservative_loss(params, *drawn, pushed_down(batch, config), real, config)
    return loss + config.cql_weight * conservative, {**metrics, "conservative_loss": conservative}


def pushed_down(batch: Steps, config: Config) -> Steps:
    first = real_rows(config) if config.conservative_states == "model" else 0
    return jax.tree.map(lambda column: column[first:], batch)


def update_batch(key: jax.Array, state: State, batch: Steps, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch, whose first `real_rows(config)` rows come from the data."""
    key_actor, key_target, key_proposals = jax.random.split(key, 3)
    learner, actor_metrics = soft_actor_critic.actor_step(key_actor, state.learner, batch, progress(state), config)
    target = soft_actor_critic.td_target(key_target, learner, batch, config)
    drawn = proposals(key_proposals, learner, pushed_down(batch, config), config)
    learner, critic_metrics = soft_actor_critic.critic_step(
        learner, lambda params: critic_loss(params, target, drawn, batch, config), config
    )
    learner = soft_actor_critic.target_step(learner, config)
    return advance(state, learner), {**actor_metrics, **critic_metrics}


def update(key: jax.Array, state: State, dataset: ModelData, config: Config) -> tuple[State, Metrics]:
    key_rollout, key_batch, key_update = jax.random.split(key, 3)
    act = policy_act(state, config)
    if config.uniform_rollouts:
        shape = dataset.transitions.actions.shape[1:]

        def act(key: jax.Array, observations: jax.Array) -> jax.Array:
            return jax.random.uniform(key, (*observations.shape[:-1], *shape), minval=-1.0, maxval=1.0)

    state = roll_out(key_rollout, state, dataset, config, act, model_based.model(state.ensemble, config))
    return update_batch(key_update, state, mixed_batch(key_batch, state, dataset, config), config)


def phases(config: Config) -> tuple[Phase, ...]:
    return dynamics_phase(config), Phase("policy", update)
