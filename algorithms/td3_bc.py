"""TD3+BC: a minimalist approach to offline RL (Fujimoto & Gu 2021, arXiv:2106.06860).

TD3 whose actor also stays close to the data: maximise lambda Q(s, pi(s)) - (pi(s) - a)^2 (equation 3), with
lambda = alpha / mean |Q| over the batch (equation 5). Order of one update, as in the authors' code: critics; on every
`policy_frequency`-th update the actor, with the new first critic, and then all target networks.
"""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning.networks import Critic, DeterministicActor, ensemble
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch


@flax.struct.dataclass
class Config:
    alpha: float = option(2.5, "weight of the value term against the cloning term; 0 is behaviour cloning")
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target networks towards the learned ones", low=0, high=1)
    policy_noise: float = option(0.2, "standard deviation of the target policy's smoothing noise, actions in [-1, 1]")
    noise_clip: float = option(0.5, "bound of that noise")
    actor_learning_rate: float = option(3e-4, "Adam step size of the actor", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics", low=0)
    policy_frequency: int = option(2, "critic updates per actor and target update", static=True)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize"), "steps applied to the data", static=True
    )


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    actor_target: Any
    critic: Any
    critic_target: Any
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    actor_metrics: Metrics  # of the last actor update, reported until the next one


def actor_network(config: Config, action_dim: int) -> DeterministicActor:
    return DeterministicActor(config.hidden_dims, action_dim)


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
        actor_target=copy(actor),
        critic=critic,
        critic_target=copy(critic),
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
        actor_metrics={name: jnp.zeros(()) for name in ("actor_loss", "bc_loss", "policy_q", "lambda")},
    )


def critic_loss(params: Any, key: jax.Array, state: State, batch: Transitions, config: Config):
    """Squared error of both critics to the clipped double-Q target of the smoothed target policy."""
    actor, critic = actor_network(config, batch.actions.shape[-1]), critic_network(config)
    noise = config.policy_noise * jax.random.normal(key, batch.actions.shape)
    noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
    next_actions = jnp.clip(actor.apply(state.actor_target, batch.next_observations) + noise, -1, 1)
    next_q = critic.apply(state.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + config.discount * (1 - batch.terminations) * next_q
    q = critic.apply(params, batch.observations, batch.actions)
    loss = ((q - target) ** 2).mean(1).sum()
    return loss, {"critic_loss": loss, "data_q": q.mean()}


def actor_loss(params: Any, state: State, batch: Transitions, config: Config):
    actions = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    first_critic = jax.tree.map(lambda leaf: leaf[0], state.critic)  # the second critic is not needed
    q = Critic(config.hidden_dims).apply(first_critic, batch.observations, actions)
    scale = config.alpha / jax.lax.stop_gradient(jnp.abs(q).mean())
    bc_loss = ((actions - batch.actions) ** 2).mean()
    loss = -scale * q.mean() + bc_loss
    return loss, {"actor_loss": loss, "bc_loss": bc_loss, "policy_q": q.mean(), "lambda": scale}


def update_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch."""
    critic, critic_opt, metrics = adam_step(
        lambda params: critic_loss(params, key, state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    state = state.replace(step=state.step + 1, critic=critic, critic_opt=critic_opt)

    def update_actor(state: State) -> State:
        actor, actor_opt, actor_metrics = adam_step(
            lambda params: actor_loss(params, state, batch, config),
            state.actor,
            state.actor_opt,
            config.actor_learning_rate,
        )
        return state.replace(
            actor=actor,
            actor_opt=actor_opt,
            actor_target=optax.incremental_update(actor, state.actor_target, config.polyak),
            critic_target=optax.incremental_update(state.critic, state.critic_target, config.polyak),
            actor_metrics=actor_metrics,
        )

    state = jax.lax.cond(state.step % config.policy_frequency == 0, update_actor, lambda state: state, state)
    return state, {**metrics, **state.actor_metrics}


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_noise = jax.random.split(key)
    return update_batch(key_noise, state, sample_batch(key_batch, dataset, config.batch_size), config)


def policy(config: Config, spec: Spec) -> Policy:
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)
    return Policy(
        act=lambda state, observations: actor.apply(state.actor, observations),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
    )
