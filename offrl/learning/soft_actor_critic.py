"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905): the policy optimiser of the model-based algorithms.

Critics first, then the policy, then the entropy weight, then the target critics, as in the published code of MOPO,
RAMBO and MOBILE. The entropy weight is tuned towards a target entropy and capped at 1; the policy's learning rate
follows a cosine to 0 over the run. Every part is a separate function, so that algorithms can use another target or
another loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.learning.models.rollouts import Steps
from offrl.learning.networks import (
    Critic,
    TanhGaussianActor,
    ensemble,
    tanh_gaussian_log_prob,
    tanh_gaussian_sample,
)
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy

MAX_ALPHA = 1.0


@flax.struct.dataclass
class SoftActorCriticConfig:
    """The options of the policy optimiser; an algorithm's Config inherits them."""

    discount: float = option(0.99, "discount per step")
    polyak: float = option(0.005, "step of the target critics towards the learned ones")
    actor_learning_rate: float = option(1e-4, "Adam step size of the policy, at the start of its schedule")
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics")
    alpha_learning_rate: float = option(1e-4, "Adam step size of the entropy weight's logarithm")
    actor_schedule: str = option(
        "cosine", "decay of the policy's step size over the run", static=True, choices=("cosine", "constant")
    )
    tune_alpha: bool = option(True, "tune the entropy weight, which starts at 1, to the target entropy", static=True)
    alpha: float = option(0.2, "the entropy weight if it is not tuned")
    target_entropy: float = option(-1.0, "the entropy that it is tuned to, per dimension of the action")
    entropy_backup: bool = option(True, "the critics' target includes the entropy term", static=True)
    critics: int = option(2, "number of critics; the smallest of their values is used", static=True)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of the ReLU layers", static=True)


class Learner(flax.struct.PyTreeNode):
    actor: Any
    critic: Any
    critic_target: Any
    log_alpha: jax.Array
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState


def actor_network(config: SoftActorCriticConfig, action_dim: int) -> Any:
    return TanhGaussianActor(config.hidden_dims, action_dim)


def critic_network(config: SoftActorCriticConfig) -> Any:
    return ensemble(Critic, config.critics)(config.hidden_dims)


def init(key: jax.Array, config: SoftActorCriticConfig, spec: Spec) -> Learner:
    key_actor, key_critic = jax.random.split(key)
    observations, actions = jnp.zeros((1, spec.observation_dim)), jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    log_alpha = jnp.zeros(())
    return Learner(
        actor=actor,
        critic=critic,
        critic_target=copy(critic),
        log_alpha=log_alpha,
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
        alpha_opt=adam_init(log_alpha),
    )


def entropy_weight(learner: Learner, config: SoftActorCriticConfig) -> jax.Array | float:
    return jnp.minimum(jnp.exp(learner.log_alpha), MAX_ALPHA) if config.tune_alpha else config.alpha


def sample_actions(
    key: jax.Array, actor: Any, observations: jax.Array, action_dim: int, config: SoftActorCriticConfig
) -> tuple[jax.Array, jax.Array]:
    """Actions sampled from the policy with the parameters `actor`, and their log-densities."""
    return tanh_gaussian_sample(key, *actor_network(config, action_dim).apply(actor, observations))


def td_target(key: jax.Array, learner: Learner, batch: Steps, config: SoftActorCriticConfig) -> jax.Array:
    next_actions, log_prob = sample_actions(
        key, learner.actor, batch.next_observations, batch.actions.shape[-1], config
    )
    value = critic_network(config).apply(learner.critic_target, batch.next_observations, next_actions).min(0)
    if config.entropy_backup:
        value = value - entropy_weight(learner, config) * log_prob
    return batch.rewards + config.discount * (1 - batch.terminations) * value


def critic_loss(
    params: Any, target: jax.Array, batch: Steps, config: SoftActorCriticConfig
) -> tuple[jax.Array, Metrics]:
    """Mean squared error of each critic, summed over critics."""
    q = critic_network(config).apply(params, batch.observations, batch.actions)
    loss = ((q - target) ** 2).mean(1).sum()
    return loss, {"critic_loss": loss, "batch_q": q.mean()}


def actor_loss(
    params: Any, key: jax.Array, learner: Learner, batch: Steps, config: SoftActorCriticConfig
) -> tuple[jax.Array, Metrics]:
    actions, log_prob = sample_actions(key, params, batch.observations, batch.actions.shape[-1], config)
    q = critic_network(config).apply(learner.critic, batch.observations, actions).min(0)
    loss = (entropy_weight(learner, config) * log_prob - q).mean()
    return loss, {"actor_loss": loss, "policy_q": q.mean(), "entropy": -log_prob.mean()}


def alpha_loss(log_alpha: jax.Array, entropy: jax.Array, target_entropy: jax.Array | float) -> jax.Array:
    """Minimising it raises the weight while the entropy is below the target."""
    return log_alpha * (entropy - target_entropy)


def critic_step(
    learner: Learner, loss: Callable[[Any], tuple[jax.Array, Metrics]], config: SoftActorCriticConfig
) -> tuple[Learner, Metrics]:
    """One step of the critics on `loss(params) -> (scalar, metrics)`; target critics stay as they are."""
    critic, critic_opt, metrics = adam_step(loss, learner.critic, learner.critic_opt, config.critic_learning_rate)
    return learner.replace(critic=critic, critic_opt=critic_opt), metrics


def actor_step(
    key: jax.Array, learner: Learner, batch: Steps, progress: jax.Array, config: SoftActorCriticConfig
) -> tuple[Learner, Metrics]:
    """One step of the policy and one of the entropy weight. progress: the fraction of the run that is done, 0 to 1."""
    learning_rate: jax.Array | float = config.actor_learning_rate
    if config.actor_schedule == "cosine":
        learning_rate = learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))
    actor, actor_opt, metrics = adam_step(
        lambda params: actor_loss(params, key, learner, batch, config),
        learner.actor,
        learner.actor_opt,
        learning_rate,
    )
    metrics["alpha"] = jnp.asarray(entropy_weight(learner, config), jnp.float32)
    learner = learner.replace(actor=actor, actor_opt=actor_opt)
    if config.tune_alpha:
        target = config.target_entropy * batch.actions.shape[-1]
        log_alpha, alpha_opt, _ = adam_step(
            lambda log_alpha: (alpha_loss(log_alpha, metrics["entropy"], target), {}),
            learner.log_alpha,
            learner.alpha_opt,
            config.alpha_learning_rate,
        )
        learner = learner.replace(log_alpha=log_alpha, alpha_opt=alpha_opt)
    return learner, metrics


def target_step(learner: Learner, config: SoftActorCriticConfig) -> Learner:
    target = optax.incremental_update(learner.critic, learner.critic_target, config.polyak)
    return learner.replace(critic_target=target)


def update(
    key: jax.Array, learner: Learner, batch: Steps, progress: jax.Array, config: SoftActorCriticConfig
) -> tuple[Learner, Metrics]:
    """One update of policy, entropy weight, critics and target critics on a given batch."""
    key_target, key_actor = jax.random.split(key)
    target = td_target(key_target, learner, batch, config)
    learner, critic_metrics = critic_step(learner, lambda params: critic_loss(params, target, batch, config), config)
    learner, actor_metrics = actor_step(key_actor, learner, batch, progress, config)
    return target_step(learner, config), {**critic_metrics, **actor_metrics}


def policy(config: SoftActorCriticConfig, spec: Spec) -> Policy:
    """The policy of a state whose field `learner` is a `Learner`."""
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)

    def log_prob(state: Any, observations: jax.Array, actions: jax.Array) -> jax.Array:
        mean, log_std = actor.apply(state.learner.actor, observations)
        return tanh_gaussian_log_prob(mean, log_std, actions)

    return Policy(
        act=lambda state, observations: jnp.tanh(actor.apply(state.learner.actor, observations)[0]),
        sample=lambda key, state, observations: sample_actions(
            key, state.learner.actor, observations, spec.action_dim, config
        )[0],
        log_prob=log_prob,
        q_values=lambda state, observations, actions: critic.apply(state.learner.critic, observations, actions),
    )
