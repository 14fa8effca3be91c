"""EDAC: ensemble-diversified actor-critic (An, Moon, Kim & Song 2021, arXiv:2110.01548).

SAC-N that also keeps the critics' gradients with respect to the action diverse, so that few critics bound the value
away from the data as well as many would. It adds to the critics' errors, at the data's actions,

    eta / (N - 1) * mean over the batch of the sum over i != j of <g_i, g_j>,
    where g_i = grad_a Q_i(s, a) / |grad_a Q_i(s, a)|

With eta = 0 it is SAC-N: `diff sac_n.py edac.py` shows the difference, and `sac_n.py` describes the order of an update
and the deviations. The authors' code takes the term over min(N, action dimensions) critics, drawn at random in each
update, and divides by their number minus 1; here, as in the paper and in CORL, it is over all critics.
"""

from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning.networks import (
    Critic,
    TanhGaussianActor,
    ensemble,
    tanh_gaussian_log_prob,
    tanh_gaussian_sample,
    uniform_init,
)
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch

HIDDEN_BIAS_INIT = nn.initializers.constant(0.1)
MAX_BACKUP_ACTIONS = 10


@flax.struct.dataclass
class Config:
    eta: float = option(1.0, "weight of the diversity of the critics' action gradients; 0 is SAC-N")
    num_critics: int = option(10, "N, the number of critics, whose minimum is used; 2 or more", static=True)
    backup: str = option(
        "entropy",
        "critics' target: with the policy's entropy; or max_online: the best of 10 actions by the learned critics",
        static=True,
        choices=("entropy", "max_online"),
    )
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target critics towards the learned ones", low=0, high=1)
    initial_alpha: float = option(1.0, "temperature at the start: weight of the entropy against the value")
    alpha_learning_rate: float = option(
        3e-4, "Adam step size of its logarithm; 0 keeps the temperature constant", low=0
    )
    actor_learning_rate: float = option(3e-4, "Adam step size of the policy", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics", low=0)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    critic: Any
    critic_target: Any
    log_alpha: jax.Array
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState


def actor_network(config: Config, action_dim: int) -> TanhGaussianActor:
    return TanhGaussianActor(config.hidden_dims, action_dim, output_init=uniform_init(1e-3), bias_init=HIDDEN_BIAS_INIT)


def critic_network(config: Config):
    return ensemble(Critic, config.num_critics)(
        config.hidden_dims, output_init=uniform_init(3e-3), bias_init=HIDDEN_BIAS_INIT
    )


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_actor, key_critic = jax.random.split(key)
    observations, actions = jnp.zeros((1, spec.observation_dim)), jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    log_alpha = jnp.log(jnp.asarray(config.initial_alpha, jnp.float32))
    return State(
        step=jnp.zeros((), jnp.int32),
        actor=actor,
        critic=critic,
        critic_target=copy(critic),
        log_alpha=log_alpha,
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
        alpha_opt=adam_init(log_alpha),
    )


def alpha_loss(log_alpha: jax.Array, key: jax.Array, state: State, batch: Transitions, config: Config):
    """Raises the temperature while the policy's entropy is below its target, which is minus the action dimension."""
    action_dim = batch.actions.shape[-1]
    _, log_prob = tanh_gaussian_sample(key, *actor_network(config, action_dim).apply(state.actor, batch.observations))
    loss = -log_alpha * (log_prob.mean() - action_dim)
    return loss, {"alpha_loss": loss, "alpha": jnp.exp(log_alpha), "entropy": -log_prob.mean()}


def actor_loss(params: Any, key: jax.Array, state: State, batch: Transitions, config: Config):
    actor, critic = actor_network(config, batch.actions.shape[-1]), critic_network(config)
    actions, log_prob = tanh_gaussian_sample(key, *actor.apply(params, batch.observations))
    q = critic.apply(state.critic, batch.observations, actions).min(0)
    loss = (jnp.exp(state.log_alpha) * log_prob - q).mean()
    return loss, {"actor_loss": loss, "policy_q": q.mean()}


def critic_targets(key: jax.Array, state: State, batch: Transitions, config: Config) -> jax.Array:
    """r + discount * value of the next state, [rows]; no bootstrapping past a termination."""
    actor, critic = actor_network(config, batch.actions.shape[-1]), critic_network(config)
    mean, log_std = actor.apply(state.actor, batch.next_observations)
    if config.backup == "max_online":
        repeat = (MAX_BACKUP_ACTIONS, 1, 1)
        next_actions, _ = tanh_gaussian_sample(key, jnp.tile(mean, repeat), jnp.tile(log_std, repeat))
        q = critic.apply(state.critic, jnp.tile(batch.next_observations, repeat), next_actions)
        next_value = q.max(1).min(0)
    else:
        next_actions, log_prob = tanh_gaussian_sample(key, mean, log_std)
        q = critic.apply(state.critic_target, batch.next_observations, next_actions)
        next_value = q.min(0) - jnp.exp(state.log_alpha) * log_prob
    return batch.rewards + config.discount * (1 - batch.terminations) * next_value


def similarity(gradients: jax.Array) -> jax.Array:
    """Mean over rows of the sum over pairs i != j of the cosines between gradients [critics, rows, action_dim]."""
    square = (gradients**2).sum(-1, keepdims=True)
    unit = gradients / (jnp.sqrt(jnp.maximum(square, 1e-20)) + 1e-10)  # the norm has no derivative at 0
    # over all pairs, minus each critic with itself: this needs no matrix of pairs
    return ((unit.sum(0) ** 2).sum(-1) - (unit**2).sum((0, -1))).mean()


def critic_loss(params: Any, key: jax.Array, state: State, batch: Transitions, config: Config):
    """Squared error of every critic to the same target, summed over critics, plus the diversity term."""
    target = critic_targets(key, state, batch, config)

    def q_of(actions: jax.Array) -> jax.Array:
        """Each critic's Q of its own copy of the actions, [critics, rows]."""
        return jax.vmap(Critic(config.hidden_dims).apply, (0, None, 0))(params, batch.observations, actions)

    # one forward pass serves both the errors and the gradients
    q, pull_back = jax.vjp(q_of, jnp.broadcast_to(batch.actions, (config.num_critics, *batch.actions.shape)))
    (gradients,) = pull_back(jnp.ones_like(q))
    diversity = similarity(gradients) / (config.num_critics - 1)
    loss = ((q - target) ** 2).mean(1).sum() + config.eta * diversity
    metrics = {"critic_loss": loss, "diversity_loss": diversity, "data_q": q.mean(), "data_q_std": q.std(0).mean()}
    return loss, metrics


def update_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch."""
    key_alpha, key_actor, key_critic = jax.random.split(key, 3)
    log_alpha, alpha_opt, alpha_metrics = adam_step(
        lambda log_alpha: alpha_loss(log_alpha, key_alpha, state, batch, config),
        state.log_alpha,
        state.alpha_opt,
        config.alpha_learning_rate,
    )
    state = state.replace(step=state.step + 1, log_alpha=log_alpha, alpha_opt=alpha_opt)
    actor, actor_opt, actor_metrics = adam_step(
        lambda params: actor_loss(params, key_actor, state, batch, config),
        state.actor,
        state.actor_opt,
        config.actor_learning_rate,
    )
    state = state.replace(actor=actor, actor_opt=actor_opt)
    critic, critic_opt, critic_metrics = adam_step(
        lambda params: critic_loss(params, key_critic, state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    critic_target = optax.incremental_update(critic, state.critic_target, config.polyak)
    state = state.replace(critic=critic, critic_opt=critic_opt, critic_target=critic_target)
    return state, {**alpha_metrics, **actor_metrics, **critic_metrics}


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_update = jax.random.split(key)
    return update_batch(key_update, state, sample_batch(key_batch, dataset, config.batch_size), config)


def policy(config: Config, spec: Spec) -> Policy:
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)
    return Policy(
        act=lambda state, observations: jnp.tanh(actor.apply(state.actor, observations)[0]),
        sample=lambda key, state, observations: tanh_gaussian_sample(key, *actor.apply(state.actor, observations))[0],
        log_prob=lambda state, observations, actions: tanh_gaussian_log_prob(
            *actor.apply(state.actor, observations), actions
        ),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
    )
