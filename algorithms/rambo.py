"""RAMBO: robust adversarial model-based offline RL (Rigter, Lacerda & Hawes 2022, arXiv:2204.12581).

No penalty: the model itself is trained to be pessimistic. Phases: the dynamics by maximum likelihood; the policy by
cloning; then soft actor-critic, and every `adversary_every` updates of it `adversary_updates` steps of the model on
w * mean(log p(s', r | s, a) A) + the negative log-likelihood of data (equations 7 to 9). Here (s', r) is sampled from a
random elite on rollouts of the policy, p is the elites' mixture, and A = r + discount * min Q(s', pi(s')) - min Q(s, a)
with the policy's mode as pi and no next value after a termination, standardised over the batch: outcomes that are
better than expected are made less likely. The likelihood keeps the model close to the data.

Published values switch the adversary off (w = 0) on four or five of the nine locomotion tasks. Deviations: p is the
mixture of the elites' joint densities, by logsumexp; OfflineRL-Kit takes a mixture per dimension and underflows where a
density does (an early version of it multiplied log p [n] by A [n, 1], whose sum over n x n is 0: no adversary at all).
Cloning maximises the likelihood of the data's actions (where +-1 is moved inwards by 1e-6), as the authors do. The two
code bases agree on the rollouts' length; OfflineRL-Kit makes new rollouts every 250 updates, the default here, and the
authors every 1,000. Observations are standardised, as the authors do. And the deviations of `mopo.py`.
"""

from __future__ import annotations

from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Phase, Spec, option
from offrl.data.dataset import Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning import model_based, soft_actor_critic
from offrl.learning.model_based import (
    ModelBasedConfig,
    advance,
    dynamics_phase,
    mixed_batch,
    policy,
    policy_act,
    prepare,
    progress,
    roll_out,
)
from offrl.learning.models import dynamics
from offrl.learning.models.dynamics import Ensemble, ModelData
from offrl.learning.models.rollouts import Steps
from offrl.learning.networks import gaussian_log_prob, tanh_gaussian_log_prob
from offrl.learning.soft_actor_critic import Learner
from offrl.learning.updates import adam_init, adam_step, sample_batch

__all__ = ["Config", "init", "phases", "policy", "prepare"]

ADVERSARY_BOUND_WEIGHT = 0.001


@flax.struct.dataclass
class Config(ModelBasedConfig):
    adversary_weight: float = option(3e-4, "w: weight of the adversarial term; 0 leaves only the likelihood")
    adversary_learning_rate: float = option(3e-4, "Adam step size of the model in the policy phase", low=0)
    adversary_every: int = option(1_000, "policy updates between updates of the model", static=True)
    adversary_updates: int = option(1_000, "steps of the model at a time", static=True)
    adversary_batch_size: int = option(256, "rollouts, and rows of the data, per step of the model", static=True)
    cloning_updates: int = option(50_000, "updates of the policy by cloning, before its own phase", static=True)
    cloning_learning_rate: float = option(1e-4, "Adam step size of the cloning", low=0)
    rollout_every: int = option(250, "policy updates between rollouts", static=True)
    real_ratio: float = option(0.5, "share of a batch that comes from the data", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize"), "steps applied to the data", static=True
    )


@flax.struct.dataclass
class State(model_based.State):
    cloning_opt: optax.OptState
    adversary_opt: optax.OptState
    adversary_metrics: Metrics  # means of the last round, reported until the next one


ADVERSARY_METRICS = ("adversary_loss", "likelihood_loss")


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    parts = model_based.init_parts(key, config, spec)
    return State(
        **parts,
        cloning_opt=adam_init(parts["learner"].actor),
        adversary_opt=adam_init(parts["ensemble"].params["dynamics"]),
        adversary_metrics={name: jnp.zeros(()) for name in ADVERSARY_METRICS},
    )


def cloning_loss(params: Any, batch: Transitions, config: Config) -> tuple[jax.Array, Metrics]:
    actor = soft_actor_critic.actor_network(config, batch.actions.shape[-1])
    loss = -tanh_gaussian_log_prob(*actor.apply(params, batch.observations), batch.actions).mean()
    return loss, {"cloning_loss": loss}


def update_cloning(key: jax.Array, state: State, dataset: ModelData, config: Config) -> tuple[State, Metrics]:
    batch = sample_batch(key, dataset.transitions, config.batch_size)
    actor, cloning_opt, metrics = adam_step(
        lambda params: cloning_loss(params, batch, config),
        state.learner.actor,
        state.cloning_opt,
        config.cloning_learning_rate,
    )
    learner = state.learner.replace(actor=actor)
    return state.replace(step=state.step + 1, learner=learner, cloning_opt=cloning_opt), metrics


def mixture_log_prob(
    params: Any, ensemble: Ensemble, observations: jax.Array, actions: jax.Array, sample: jax.Array, config: Config
) -> jax.Array:
    """Log-density [n] of [change of the observation, reward] under the elites' mixture, with these parameters."""
    mean, log_var = dynamics.predict(ensemble.replace(params={"dynamics": params}), observations, actions, config)
    log_prob = gaussian_log_prob(mean, 0.5 * log_var, sample)[ensemble.elites]
    return jax.nn.logsumexp(log_prob, 0) - jnp.log(config.elites)


def advantage(learner: Learner, row: Steps, config: Config) -> jax.Array:
    """Advantage of a step in the model over the critics' value there, standardised over the batch, [n]."""
    actor, critic = (
        soft_actor_critic.actor_network(config, row.actions.shape[-1]),
        soft_actor_critic.critic_network(config),
    )
    next_actions = jnp.tanh(actor.apply(learner.actor, row.next_observations)[0])
    next_q = critic.apply(learner.critic, row.next_observations, next_actions).min(0)
    value = row.rewards + config.discount * (1 - row.terminations) * next_q
    raw = value - critic.apply(learner.critic, row.observations, row.actions).min(0)
    return (raw - raw.mean()) / (raw.std() + 1e-6)


def adversary_loss(
    params: Any, ensemble: Ensemble, learner: Learner, row: Steps, real: Steps, config: Config
) -> tuple[jax.Array, Metrics]:
    """Loss of the members' parameters `params` on n steps in the model and rows of the data [members, n]."""
    sample = dynamics.targets_of(row)
    log_prob = mixture_log_prob(params, ensemble, row.observations, row.actions, sample, config)
    gained = advantage(learner, row, config)
    adversarial = (log_prob * jax.lax.stop_gradient(gained)).mean()
    inputs = dynamics.dynamics_inputs(ensemble.statistics, real.observations, real.actions)
    likelihood = jax.vmap(dynamics.dynamics_loss, (0, 0, 0, None, None))(
        params, inputs, dynamics.targets_of(real), config, ADVERSARY_BOUND_WEIGHT
    )
    loss = config.adversary_weight * adversarial + likelihood.sum()
    return loss, {
        "adversary_loss": adversarial,
        "likelihood_loss": likelihood.mean(),
        "advantage": jnp.abs(gained).mean(),
    }


def update_model(key: jax.Array, state: State, dataset: ModelData, config: Config) -> State:
    """`adversary_updates` steps of the model, along rollouts that restart every `rollout_length` of them."""
    act, rows, n = policy_act(state, config), jnp.asarray(dataset.train_rows), config.adversary_batch_size
    observations = jnp.asarray(dataset.transitions.observations)

    def one(i: jax.Array, carry: Any) -> Any:
        params, opt, current, sums = carry
        key_start, key_act, key_step, key_real = jax.random.split(jax.random.fold_in(key, i), 4)
        fresh = observations[jax.random.randint(key_start, (n,), 0, len(observations))]
        current = jnp.where(i % config.rollout_length == 0, fresh, current)
        ensemble = state.ensemble.replace(params={**state.ensemble.params, "dynamics": params})
        actions = act(key_act, current)
        step = dynamics.step(key_step, ensemble, current, actions, config)
        row = Steps(current, actions, step.rewards, step.next_observations, step.terminations)
        # the same rows for all members, as published
        real = dynamics.rows_of(dataset.transitions, rows[jax.random.randint(key_real, (n,), 0, len(rows))])
        real = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (config.ensemble_size, *leaf.shape)), real)
        params, opt, metrics = adam_step(
            lambda params: adversary_loss(params, ensemble, state.learner, row, real, config),
            params,
            opt,
            config.adversary_learning_rate,
        )
        ended = step.terminations[:, None] > 0  # rollouts that have ended restart
        current = jnp.where(ended, fresh, step.next_observations)
        return params, opt, current, {name: sums[name] + metrics[name] for name in sums}

    due = jnp.where(state.policy_step % config.adversary_every == 0, config.adversary_updates, 0)
    zeros = {name: jnp.zeros(()) for name in ADVERSARY_METRICS}
    start = (state.ensemble.params["dynamics"], state.adversary_opt, jnp.zeros((n, observations.shape[1])), zeros)
    params, opt, _, sums = jax.lax.fori_loop(0, due, one, start)
    metrics = {name: jnp.where(due > 0, sums[name] / config.adversary_updates, old)
               for name, old in state.adversary_metrics.items()}  # fmt: skip
    ensemble = state.ensemble.replace(params={**state.ensemble.params, "dynamics": params})
    return state.replace(ensemble=ensemble, adversary_opt=opt, adversary_metrics=metrics)


def update_batch(key: jax.Array, state: State, batch: Steps, config: Config) -> tuple[State, Metrics]:
    """One update of the policy on a given batch."""
    learner, metrics = soft_actor_critic.update(key, state.learner, batch, progress(state), config)
    return advance(state, learner), {**metrics, **state.adversary_metrics}


def update(key: jax.Array, state: State, dataset: ModelData, config: Config) -> tuple[State, Metrics]:
    key_model, key_rollout, key_batch, key_update = jax.random.split(key, 4)
    state = update_model(key_model, state, dataset, config)
    model = model_based.model(state.ensemble, config)
    state = roll_out(key_rollout, state, dataset, config, policy_act(state, config), model)
    return update_batch(key_update, state, mixed_batch(key_batch, state, dataset, config), config)


def phases(config: Config) -> tuple[Phase, ...]:
    return (
        dynamics_phase(config),
        Phase("cloning", update_cloning, config.cloning_updates),
        Phase("policy", update),
    )
