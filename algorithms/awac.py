"""AWAC: advantage weighted actor critic (Nair, Gupta, Dalal & Levine 2020, arXiv:2006.09359), offline.

The critics bootstrap from one action of the current policy; the policy is fitted to the data's actions, weighted by
min(exp(A(s, a) / lambda), 100) with A(s, a) = min_i Q_i(s, a) - min_i Q_i(s, a~pi), also with one action of the policy.
Algorithm and hyper-parameters follow CORL's code, and so does the order of one update: critics; policy, with the new
critics; target critics. The policy is an unsquashed Gaussian whose standard deviation does not depend on the state; its
sampled actions are clipped to the box, and its densities ignore the clipping.

Deviations: the deployed action, the mean, is clipped to the box here and by the simulator there. In CORL lambda is 1 in
the class, 1/3 in the files of the MuJoCo tasks (the default here) and 0.1 in all others (configs/published/awac.yaml).
jaxrl and d3rlpy use two critic layers, four policy layers and weight decay of the policy.
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
from offrl.learning.networks import MLP, Critic, ensemble, gaussian_log_prob
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch

LOG_STD_RANGE = (-20.0, 2.0)


@flax.struct.dataclass
class Config:
    temperature: float = option(1 / 3, "lambda: weights are exp(advantage / lambda); infinite is behaviour cloning")
    max_weight: float = option(100.0, "upper bound of those weights")
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target critics towards the learned ones", low=0, high=1)
    actor_learning_rate: float = option(3e-4, "Adam step size of the policy", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics", low=0)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize"), "steps applied to the data", static=True
    )


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    critic: Any
    critic_target: Any
    actor_opt: optax.OptState
    critic_opt: optax.OptState


class GaussianActor(nn.Module):
    """Mean [..., action_dim], unbounded, and a log standard deviation [action_dim], the same in all states."""

    hidden_dims: tuple[int, ...]
    action_dim: int

    @nn.compact
    def __call__(self, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_std = self.param("log_std", nn.initializers.zeros, (self.action_dim,))
        return MLP(self.hidden_dims, self.action_dim)(observations), jnp.clip(log_std, *LOG_STD_RANGE)


def actor_network(config: Config, action_dim: int) -> GaussianActor:
    return GaussianActor(config.hidden_dims, action_dim)


def critic_network(config: Config):
    return ensemble(Critic, 2)(config.hidden_dims)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_actor, key_critic = jax.random.split(key)
    observations, actions = jnp.zeros((1, spec.observation_dim)), jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    return State(
        step=jnp.zeros((), jnp.int32),
        actor=actor,
        critic=critic,
        critic_target=copy(critic),
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
    )


def sample_actions(actor: Any, observations: jax.Array, noise: jax.Array, config: Config) -> jax.Array:
    """Actions of the policy for standard normal noise [..., action_dim]."""
    mean, log_std = actor_network(config, noise.shape[-1]).apply(actor, observations)
    return jnp.clip(mean + jnp.exp(log_std) * noise, -1, 1)


def critic_loss(params: Any, noise: jax.Array, state: State, batch: Transitions, config: Config):
    critic = critic_network(config)
    next_actions = sample_actions(state.actor, batch.next_observations, noise, config)
    next_q = critic.apply(state.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + config.discount * (1 - batch.terminations) * next_q
    q = critic.apply(params, batch.observations, batch.actions)
    loss = ((q - target) ** 2).mean(1).sum()
    return loss, {"critic_loss": loss, "data_q": q.mean()}


def actor_loss(params: Any, noise: jax.Array, state: State, batch: Transitions, config: Config):
    critic, actions = critic_network(config), sample_actions(state.actor, batch.observations, noise, config)
    value = critic.apply(state.critic, batch.observations, actions).min(0)
    advantage = critic.apply(state.critic, batch.observations, batch.actions).min(0) - value
    weight = jnp.minimum(jnp.exp(advantage / config.temperature), config.max_weight)
    mean, log_std = actor_network(config, noise.shape[-1]).apply(params, batch.observations)
    loss = -(weight * gaussian_log_prob(mean, log_std, batch.actions)).mean()
    return loss, {"actor_loss": loss, "advantage": advantage.mean(), "weight": weight.mean()}


def update_batch(noise: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch; noise [2, rows, action_dim]: for actions at the next and at the current
    observations."""
    critic, critic_opt, critic_metrics = adam_step(
        lambda params: critic_loss(params, noise[0], state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    state = state.replace(step=state.step + 1, critic=critic, critic_opt=critic_opt)
    actor, actor_opt, actor_metrics = adam_step(
        lambda params: actor_loss(params, noise[1], state, batch, config),
        state.actor,
        state.actor_opt,
        config.actor_learning_rate,
    )
    critic_target = optax.incremental_update(critic, state.critic_target, config.polyak)
    state = state.replace(actor=actor, actor_opt=actor_opt, critic_target=critic_target)
    return state, {**critic_metrics, **actor_metrics}


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_noise = jax.random.split(key)
    batch = sample_batch(key_batch, dataset, config.batch_size)
    return update_batch(jax.random.normal(key_noise, (2, *batch.actions.shape)), state, batch, config)


def policy(config: Config, spec: Spec) -> Policy:
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)
    return Policy(
        act=lambda state, observations: jnp.clip(actor.apply(state.actor, observations)[0], -1, 1),
        sample=lambda key, state, observations: sample_actions(
            state.actor, observations, jax.random.normal(key, (*observations.shape[:-1], spec.action_dim)), config
        ),
        log_prob=lambda state, observations, actions: gaussian_log_prob(
            *actor.apply(state.actor, observations), actions
        ),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
    )
