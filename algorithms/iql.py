"""IQL: offline RL with implicit Q-learning (Kostrikov, Nair & Levine 2021, arXiv:2110.06169).

V is an expectile of the target critics over the data's actions (equation 5), the critics bootstrap from V (6), and the
policy is extracted by advantage-weighted regression (7); no action outside the data is ever evaluated. Order of one
update, as in the authors' code: V; the policy, with the new V and the target critics; the critics, with the new V;
their targets. CORL differs on two points, each an option here: it uses V from before its update for the advantage and
for the critics' target (`value_lag`), and standardises observations (`preprocessing.observations`); its critic loss is
half of this one, which Adam does not notice.

Of discrete actions the policy is categorical and the critics see one-hot vectors; nothing else changes.
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
    MLP,
    Critic,
    categorical_log_prob,
    ensemble,
    gaussian_log_prob,
    one_hot_mode,
    one_hot_sample,
)
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch

KERNEL_INIT = nn.initializers.orthogonal(2**0.5)
LOG_STD_RANGE = (-5.0, 2.0)
MAX_WEIGHT = 100.0
SUPPORTS = ("continuous", "discrete", "image")


@flax.struct.dataclass
class Config:
    expectile: float = option(
        0.7, "expectile of V; 0.5 is the mean, towards 1 the best action of the data", low=0, high=1
    )
    temperature: float = option(3.0, "inverse temperature of the advantage weights; 0 is behaviour cloning")
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target critics towards the learned ones", low=0, high=1)
    actor_learning_rate: float = option(3e-4, "Adam step size of the policy, at the start of its schedule", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics", low=0)
    value_learning_rate: float = option(3e-4, "Adam step size of V", low=0)
    actor_schedule: str = option(
        "cosine", "decay of the policy's step size over the run", static=True, choices=("cosine", "constant")
    )
    value_lag: bool = option(False, "use V from before its update, as CORL does", static=True)
    dropout: float = option(0.0, "dropout rate of the policy; 0.1 for Kitchen and Adroit", static=True)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(rewards="return_range", action_margin=1e-5), "steps applied to the data", static=True
    )


@flax.struct.dataclass
class State:
    step: jax.Array
    updates: jax.Array  # of the whole run: where the cosine ends
    actor: Any
    critic: Any
    critic_target: Any
    value: Any
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    value_opt: optax.OptState
    discrete: bool = flax.struct.field(pytree_node=False, default=False)


class GaussianActor(nn.Module):
    """Mean in (-1, 1), [..., action_dim], and a log standard deviation [action_dim] that does not see the state."""

    hidden_dims: tuple[int, ...]
    action_dim: int
    dropout: float

    @nn.compact
    def __call__(self, observations: jax.Array, deterministic: bool = True) -> tuple[jax.Array, jax.Array]:
        network = MLP(self.hidden_dims, self.action_dim, KERNEL_INIT, dropout=self.dropout)
        log_std = self.param("log_std", nn.initializers.zeros, (self.action_dim,))
        return jnp.tanh(network(observations, deterministic)), jnp.clip(log_std, *LOG_STD_RANGE)


def actor_network(config: Config, action_dim: int, discrete: bool = False) -> MLP | GaussianActor:
    """Of mean and log standard deviation, or of the logits of discrete actions."""
    if discrete:
        return MLP(config.hidden_dims, action_dim, KERNEL_INIT, dropout=config.dropout)
    return GaussianActor(config.hidden_dims, action_dim, config.dropout)


def critic_network(config: Config):
    return ensemble(Critic, 2)(config.hidden_dims, KERNEL_INIT)


def value_network(config: Config) -> MLP:
    return MLP(config.hidden_dims, 1, KERNEL_INIT)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observations, actions = spec.observations, jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim, spec.discrete).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    value = value_network(config).init(key_value, observations)
    return State(
        step=jnp.zeros((), jnp.int32),
        updates=jnp.asarray(spec.updates, jnp.int32),
        actor=actor,
        critic=critic,
        critic_target=copy(critic),
        value=value,
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
        value_opt=adam_init(value),
        discrete=spec.discrete,
    )


def value_loss(params: Any, target_q: jax.Array, batch: Transitions, config: Config):
    """Expectile regression: errors below V weigh 1 - expectile, errors above it expectile."""
    v = value_network(config).apply(params, batch.observations).squeeze(-1)
    error = target_q - v
    loss = (jnp.abs(config.expectile - (error < 0)) * error**2).mean()
    return loss, {"value_loss": loss, "value": v.mean()}


def log_prob(distribution: Any, actions: jax.Array) -> jax.Array:
    """Of actions under what the actor's network returned: a Gaussian's mean and log deviation, or logits."""
    if isinstance(distribution, tuple):
        return gaussian_log_prob(*distribution, actions)
    return categorical_log_prob(distribution, actions)


def actor_loss(
    params: Any, key: jax.Array, advantage: jax.Array, batch: Transitions, config: Config, discrete: bool = False
):
    distribution = actor_network(config, batch.actions.shape[-1], discrete).apply(
        params, batch.observations, config.dropout == 0, rngs={"dropout": key}
    )
    weight = jnp.minimum(jnp.exp(config.temperature * advantage), MAX_WEIGHT)
    loss = -(weight * log_prob(distribution, batch.actions)).mean()
    return loss, {"actor_loss": loss, "advantage": advantage.mean(), "weight": weight.mean()}


def critic_loss(params: Any, next_v: jax.Array, batch: Transitions, config: Config):
    target = batch.rewards + config.discount * (1 - batch.terminations) * next_v
    q = critic_network(config).apply(params, batch.observations, batch.actions)
    loss = ((q - target) ** 2).mean(1).sum()
    return loss, {"critic_loss": loss, "data_q": q.mean()}


def update_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update from a given batch."""
    target_q = critic_network(config).apply(state.critic_target, batch.observations, batch.actions).min(0)
    value, value_opt, value_metrics = adam_step(
        lambda params: value_loss(params, target_q, batch, config),
        state.value,
        state.value_opt,
        config.value_learning_rate,
    )
    used_value = state.value if config.value_lag else value
    v = value_network(config).apply(used_value, batch.observations).squeeze(-1)
    next_v = value_network(config).apply(used_value, batch.next_observations).squeeze(-1)

    learning_rate = config.actor_learning_rate
    if config.actor_schedule == "cosine":
        progress = jnp.minimum(state.step / state.updates, 1.0)
        learning_rate = learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    actor, actor_opt, actor_metrics = adam_step(
        lambda params: actor_loss(params, key, target_q - v, batch, config, state.discrete),
        state.actor,
        state.actor_opt,
        learning_rate,
    )
    critic, critic_opt, critic_metrics = adam_step(
        lambda params: critic_loss(params, next_v, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    state = state.replace(
        step=state.step + 1,
        actor=actor,
        critic=critic,
        critic_target=optax.incremental_update(critic, state.critic_target, config.polyak),
        value=value,
        actor_opt=actor_opt,
        critic_opt=critic_opt,
        value_opt=value_opt,
    )
    return state, {**value_metrics, **actor_metrics, **critic_metrics}


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_dropout = jax.random.split(key)
    return update_batch(key_dropout, state, sample_batch(key_batch, dataset, config.batch_size), config)


def policy(config: Config, spec: Spec) -> Policy:
    actor = actor_network(config, spec.action_dim, spec.discrete)
    critic, value = critic_network(config), value_network(config)

    def act(state: State, observations: jax.Array) -> jax.Array:
        distribution = actor.apply(state.actor, observations)
        return one_hot_mode(distribution) if spec.discrete else distribution[0]

    def sample(key: jax.Array, state: State, observations: jax.Array) -> jax.Array:
        distribution = actor.apply(state.actor, observations)
        if spec.discrete:
            return one_hot_sample(key, distribution)
        mean, log_std = distribution
        return jnp.clip(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape), -1, 1)

    return Policy(
        act=act,
        sample=sample,
        log_prob=lambda state, observations, actions: log_prob(actor.apply(state.actor, observations), actions),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
        value=lambda state, observations: value.apply(state.value, observations).squeeze(-1),
    )
