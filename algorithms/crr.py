"""CRR: critic regularized regression (Wang et al. 2020, arXiv:2006.15134), with the options of CRR+.

The policy is fitted to the data's actions, weighted by f(A(s, a)) with A(s, a) = min_i Q_i(s, a) - V(s) and f either
min(exp(A / beta), 20) or the indicator of A > 0; V(s) is the mean or the maximum of min_i Q_i(s, a_j) over actions a_j
of the policy. The critics bootstrap from one action of the policy's *target* network. All losses of one update use the
parameters from before it; then the target networks of policy and critics move.

CRR+ is sail-sg/offbench's version for D4RL, and its defaults are those here: layer normalisation, a tanh-squashed
policy whose standard deviation depends on the state, 50 sampled actions, and an expectile loss of the critics that
weighs errors of a critic *above* its target by 0.7, which is pessimistic (IQL's weighs those below). The CRR of the
paper is critic_expectile=0.5 (half the squared error), critic_layer_norm=false, actor_layer_norm=false, samples=4, with
a mixture policy and a distributional critic, which are not implemented here.

Deviations from offbench: layer normalisation follows the activation (theirs precedes it); mean and log standard
deviation are two heads of one network, not two networks; the latter's learned scale and offset are left out, but it
starts at -1 as theirs does; actions are clipped to 1 - 1e-3 by `preprocessing.action_margin`. Softmax weights, the mean
of both critics, n-step returns and learning-rate schedules are off by default there and not offered here. offbench's
AntMaze rewards, (r - 0.5) * 4, are in configs/published/crr.yaml; for Adroit and Kitchen it maps rewards to [-1, 1].
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
from offrl.learning.networks import MLP, Critic, ensemble, gaussian_log_prob, tanh_gaussian_log_prob
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch

KERNEL_INIT = nn.initializers.lecun_normal()
OUTPUT_INIT = nn.initializers.variance_scaling(0.01, "fan_in", "uniform")
MEAN_RANGE, LOG_STD_RANGE, INITIAL_LOG_STD = (-9.0, 9.0), (-5.0, 2.0), -1.0


@flax.struct.dataclass
class Config:
    weight: str = option("exp", "weights of the data's actions", static=True, choices=("exp", "indicator"))
    temperature: float = option(1.0, "beta of exp(advantage / beta); infinite is behaviour cloning")
    max_weight: float = option(20.0, "upper bound of those weights")
    value: str = option("mean", "what V is of the sampled actions' values", static=True, choices=("mean", "max"))
    samples: int = option(50, "actions of the policy per state for V", static=True)
    critic_expectile: float = option(
        0.7, "weight of errors above the target, 0.5 for the squared error", low=0.0, high=1.0
    )
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target networks towards the learned ones", low=0, high=1)
    actor_learning_rate: float = option(1e-4, "Adam step size of the policy", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics", low=0)
    tanh_squash: bool = option(True, "policy: tanh of a Gaussian; else a Gaussian around a tanh", static=True)
    state_dependent_std: bool = option(True, "policy: its standard deviation depends on the state", static=True)
    actor_layer_norm: bool = option(True, "layer normalisation in the policy", static=True)
    critic_layer_norm: bool = option(True, "layer normalisation in the critics", static=True)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(Preprocessing(action_margin=1e-3), "steps applied to the data", static=True)


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    actor_target: Any
    critic: Any
    critic_target: Any
    actor_opt: optax.OptState
    critic_opt: optax.OptState


class GaussianActor(nn.Module):
    """Mean and log standard deviation [..., action_dim] of the Gaussian, before the tanh if there is one."""

    hidden_dims: tuple[int, ...]
    action_dim: int
    layer_norm: bool
    state_dependent_std: bool
    tanh_squash: bool

    @nn.compact
    def __call__(self, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = self.action_dim * (2 if self.state_dependent_std else 1)
        network = MLP(self.hidden_dims, outputs, KERNEL_INIT, OUTPUT_INIT, layer_norm=self.layer_norm)
        mean, log_std = jnp.split(network(observations), [self.action_dim], -1)
        if not self.state_dependent_std:
            log_std = self.param("log_std", nn.initializers.zeros, (self.action_dim,))
        mean = jnp.clip(mean, *MEAN_RANGE) if self.tanh_squash else jnp.tanh(mean)
        return mean, jnp.clip(log_std + INITIAL_LOG_STD, *LOG_STD_RANGE)


def actor_network(config: Config, action_dim: int) -> GaussianActor:
    return GaussianActor(
        config.hidden_dims, action_dim, config.actor_layer_norm, config.state_dependent_std, config.tanh_squash
    )


def critic_network(config: Config):
    return ensemble(Critic, 2)(config.hidden_dims, KERNEL_INIT, config.critic_layer_norm, OUTPUT_INIT)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_actor, key_critic = jax.random.split(key)
    observations, actions = jnp.zeros((1, spec.observation_dim)), jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    return State(
        step=jnp.zeros((), jnp.int32),
        actor=actor,
        actor_target=copy(actor),
        critic=critic,
        critic_target=copy(critic),
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
    )


def sample_actions(actor: Any, observations: jax.Array, noise: jax.Array, config: Config) -> jax.Array:
    """Actions of the policy for standard normal noise [..., rows, action_dim]."""
    mean, log_std = actor_network(config, noise.shape[-1]).apply(actor, observations)
    x = mean + jnp.exp(log_std) * noise
    return jnp.tanh(x) if config.tanh_squash else jnp.clip(x, -1, 1)


def log_prob(actor: Any, observations: jax.Array, actions: jax.Array, config: Config) -> jax.Array:
    mean, log_std = actor_network(config, actions.shape[-1]).apply(actor, observations)
    return (tanh_gaussian_log_prob if config.tanh_squash else gaussian_log_prob)(mean, log_std, actions)


def critic_loss(params: Any, noise: jax.Array, state: State, batch: Transitions, config: Config):
    critic = critic_network(config)
    next_actions = sample_actions(state.actor_target, batch.next_observations, noise, config)
    next_q = critic.apply(state.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + config.discount * (1 - batch.terminations) * next_q
    q = critic.apply(params, batch.observations, batch.actions)
    weight = jnp.where(q > target, config.critic_expectile, 1 - config.critic_expectile)
    loss = (weight * (q - target) ** 2).mean(1).sum()
    return loss, {"critic_loss": loss, "data_q": q.mean()}


def actor_loss(params: Any, noise: jax.Array, state: State, batch: Transitions, config: Config):
    """`noise` [samples, rows, action_dim] is for the actions whose values give V."""
    critic, actions = critic_network(config), sample_actions(state.actor, batch.observations, noise, config)
    observations = jnp.broadcast_to(batch.observations, (*noise.shape[:-1], batch.observations.shape[-1]))
    values = critic.apply(state.critic, observations, actions).min(0)
    value = values.mean(0) if config.value == "mean" else values.max(0)
    advantage = critic.apply(state.critic, batch.observations, batch.actions).min(0) - value
    if config.weight == "exp":
        weight = jnp.minimum(jnp.exp(advantage / config.temperature), config.max_weight)
    else:
        weight = (advantage > 0).astype(jnp.float32)
    loss = -(weight * log_prob(params, batch.observations, batch.actions, config)).mean()
    return loss, {"actor_loss": loss, "advantage": advantage.mean(), "weight": weight.mean()}


def update_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch."""
    noise = jax.random.normal(key, (1 + config.samples, *batch.actions.shape))
    critic, critic_opt, critic_metrics = adam_step(
        lambda params: critic_loss(params, noise[0], state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    actor, actor_opt, actor_metrics = adam_step(
        lambda params: actor_loss(params, noise[1:], state, batch, config),
        state.actor,
        state.actor_opt,
        config.actor_learning_rate,
    )
    state = state.replace(
        step=state.step + 1,
        actor=actor,
        actor_target=optax.incremental_update(actor, state.actor_target, config.polyak),
        critic=critic,
        critic_target=optax.incremental_update(critic, state.critic_target, config.polyak),
        actor_opt=actor_opt,
        critic_opt=critic_opt,
    )
    return state, {**critic_metrics, **actor_metrics}


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_noise = jax.random.split(key)
    return update_batch(key_noise, state, sample_batch(key_batch, dataset, config.batch_size), config)


def policy(config: Config, spec: Spec) -> Policy:
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)

    def act(state: State, observations: jax.Array) -> jax.Array:
        mean, _ = actor.apply(state.actor, observations)
        return jnp.tanh(mean) if config.tanh_squash else mean

    return Policy(
        act=act,
        sample=lambda key, state, observations: sample_actions(
            state.actor, observations, jax.random.normal(key, (*observations.shape[:-1], spec.action_dim)), config
        ),
        log_prob=lambda state, observations, actions: log_prob(state.actor, observations, actions, config),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
    )
