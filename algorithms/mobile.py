"""MOBILE: model-Bellman inconsistency penalized offline policy optimization (Sun et al. 2023, ICML).

The penalty lowers the critics' target instead of the reward, and measures what matters to the critics: for a transition
of the model, `penalty_samples` next states are sampled from each elite, their values min_k Q(s', a') with a' from the
policy are averaged over the samples, and u is the standard deviation of these averages over the elites. The target is
r - lambda u + discount * min Q'(s', a'); transitions of the data have u = 0.

Order of one update as in the authors' code: critics, policy, entropy weight, target critics; the target has no entropy
term. Both published code bases clamp the target to 0 or more (`clip_target`), so that is the default, but it is right
only where no reward can be negative: it is wrong for the worst rewards of halfcheetah, hopper and walker2d, and badly
wrong for tasks with costs or rewards of -1 per step. Next states are sampled again in every update: elites x samples
times as many rows as in the target of soft actor-critic. On a CPU, lower `penalty_samples`. Deviations: those of
`mopo.py`.
"""

from __future__ import annotations

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
from offrl.learning.models import dynamics
from offrl.learning.models.dynamics import ModelData
from offrl.learning.models.rollouts import Steps

__all__ = ["Config", "init", "phases", "policy", "prepare"]


@flax.struct.dataclass
class Config(ModelBasedConfig):
    penalty_weight: float = option(1.5, "lambda: weight of the inconsistency in the critics' target")
    penalty_samples: int = option(10, "next states sampled from each elite", static=True)
    clip_target: bool = option(
        True, "clamp the critics' target to 0 or more; wrong where returns can be negative", static=True
    )
    entropy_backup: bool = option(False, "the critics' target includes the entropy term", static=True)
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)


def inconsistency(key: jax.Array, state: State, batch: Steps, config: Config) -> jax.Array:
    """Standard deviation (with n - 1) over elites of the mean value of their next states, [rows]."""
    key_noise, key_act = jax.random.split(key)
    mean, log_var = dynamics.predict(state.ensemble, batch.observations, batch.actions, config)
    elites = state.ensemble.elites
    change, std = mean[elites][..., :-1], jnp.exp(0.5 * log_var[elites][..., :-1])
    noise = jax.random.normal(key_noise, (config.penalty_samples, *change.shape))
    following = batch.observations + change + std * noise  # [samples, elites, rows, dim]
    actions, _ = soft_actor_critic.sample_actions(
        key_act, state.learner.actor, following, batch.actions.shape[-1], config
    )
    q = soft_actor_critic.critic_network(config).apply(state.learner.critic_target, following, actions).min(0)
    return q.mean(0).std(0, ddof=1) if config.elites > 1 else jnp.zeros(len(batch.rewards))


def update_batch(key: jax.Array, state: State, batch: Steps, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch, whose first `real_rows(config)` rows come from the data."""
    key_penalty, key_target, key_actor = jax.random.split(key, 3)
    learner, count = state.learner, real_rows(config)
    target = soft_actor_critic.td_target(key_target, learner, batch, config)
    penalty = jnp.zeros(len(target))
    if count < config.batch_size:
        imagined = jax.tree.map(lambda column: column[count:], batch)
        penalty = penalty.at[count:].set(inconsistency(key_penalty, state, imagined, config))
    target = target - config.penalty_weight * penalty
    if config.clip_target:
        target = jnp.maximum(target, 0.0)
    learner, critic_metrics = soft_actor_critic.critic_step(
        learner, lambda params: soft_actor_critic.critic_loss(params, target, batch, config), config
    )
    learner, actor_metrics = soft_actor_critic.actor_step(key_actor, learner, batch, progress(state), config)
    learner = soft_actor_critic.target_step(learner, config)
    metrics = {**critic_metrics, **actor_metrics, "inconsistency": penalty.sum() / max(len(target) - count, 1)}
    return advance(state, learner), metrics


def update(key: jax.Array, state: State, dataset: ModelData, config: Config) -> tuple[State, Metrics]:
    key_rollout, key_batch, key_update = jax.random.split(key, 3)
    model = model_based.model(state.ensemble, config)
    state = roll_out(key_rollout, state, dataset, config, policy_act(state, config), model)
    return update_batch(key_update, state, mixed_batch(key_batch, state, dataset, config), config)


def phases(config: Config) -> tuple[Phase, ...]:
    return dynamics_phase(config), Phase("policy", update)
