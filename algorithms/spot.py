"""SPOT: supported policy optimization (Wu et al. 2022, arXiv:2202.06239).

Phase one fits a conditional variational autoencoder to the data's actions; its loss, the negative evidence lower bound
up to scale and a constant, is low where the behaviour policy has support. Phase two is TD3 whose actor minimises
-mean Q_1(s, pi(s)) / mean |Q_1| + lambda mean(loss of the autoencoder at (s, pi(s))), with one latent sample per state
and the autoencoder frozen. Order of one update as in TD3+BC. In the autoencoder's loss the squared error is a mean over
action dimensions and the divergence a mean over latent ones, as in the authors' code (thuml/SPOT), whose
hyper-parameters depend on it. As there, the dropout of the actor and of its target is active throughout training; the
deployed actor has none.

Deviations: with `small_init` the last layers' biases start at 0, theirs in the same small range as the weights. The
authors stop a run whose mean Q exceeds 1e4; here a member is stopped only if its metrics are not finite. Their
importance-weighted bound, several latent samples, values without normalisation and the online phase are not
implemented. If the protocol has fewer updates than the autoencoder's 100,000, both phases have the protocol's number.
lambda was tuned per dataset on online returns (configs/published/spot.yaml); the default, 0.1, is that of hopper-medium
and hopper-medium-replay.
"""

from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Phase, Spec, option
from offrl.data.dataset import Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning.networks import MLP, Critic, ensemble, uniform_init
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch

LOG_STD_RANGE = (-4.0, 15.0)


@flax.struct.dataclass
class Config:
    penalty: float = option(0.1, "lambda: weight of the autoencoder's loss against the value term")
    kl_weight: float = option(0.5, "beta: weight of the divergence in the autoencoder's loss")
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target networks towards the learned ones", low=0, high=1)
    policy_noise: float = option(0.2, "standard deviation of the target policy's smoothing noise, actions in [-1, 1]")
    noise_clip: float = option(0.5, "bound of that noise")
    vae_learning_rate: float = option(1e-3, "Adam step size of the autoencoder", low=0)
    actor_learning_rate: float = option(3e-4, "Adam step size of the actor", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics", low=0)
    vae_updates: int = option(100_000, "updates of the autoencoder, at most the protocol's", static=True)
    policy_frequency: int = option(2, "critic updates per actor and target update", static=True)
    dropout: float = option(0.1, "dropout rate of the actor", static=True, low=0.0, high=1.0)
    small_init: bool = option(
        False, "last layers within +-1e-3 (actor) and +-3e-3 (critics), as on AntMaze", static=True
    )
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of actor and critics", static=True)
    vae_hidden_dims: tuple[int, ...] = option((750, 750), "widths of encoder and decoder", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize"), "steps applied to the data", static=True
    )


@flax.struct.dataclass
class State:
    step: jax.Array
    vae: Any
    actor: Any
    actor_target: Any
    critic: Any
    critic_target: Any
    vae_opt: optax.OptState
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    actor_metrics: Metrics  # of the last actor update, reported until the next one


class VAE(nn.Module):
    """Squared error [...] of the decoded action and divergence [...] of the latent from the standard normal, both means
    over dimensions; `noise` is the latent's, [..., 2 * action_dim]."""

    hidden_dims: tuple[int, ...]

    @nn.compact
    def __call__(self, observations: jax.Array, actions: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        encoder = MLP(self.hidden_dims, 2 * noise.shape[-1], name="encoder")
        decoder = MLP(self.hidden_dims, actions.shape[-1], name="decoder")
        mean, log_std = jnp.split(encoder(jnp.concatenate([observations, actions], -1)), 2, -1)
        log_std = jnp.clip(log_std, *LOG_STD_RANGE)
        latent = mean + jnp.exp(log_std) * noise
        decoded = jnp.tanh(decoder(jnp.concatenate([observations, latent], -1)))
        divergence = 0.5 * (mean**2 + jnp.exp(2 * log_std) - 1) - log_std
        return ((decoded - actions) ** 2).mean(-1), divergence.mean(-1)


class DropoutActor(nn.Module):
    """tanh of an MLP with dropout: actions [..., action_dim]."""

    hidden_dims: tuple[int, ...]
    action_dim: int
    dropout: float
    small_init: bool

    @nn.compact
    def __call__(self, observations: jax.Array, deterministic: bool = True) -> jax.Array:
        output_init = uniform_init(1e-3) if self.small_init else None
        network = MLP(self.hidden_dims, self.action_dim, output_init=output_init, dropout=self.dropout)
        return jnp.tanh(network(observations, deterministic))


def vae_network(config: Config) -> VAE:
    return VAE(config.vae_hidden_dims)


def actor_network(config: Config, action_dim: int) -> DropoutActor:
    return DropoutActor(config.hidden_dims, action_dim, config.dropout, config.small_init)


def critic_network(config: Config):
    return ensemble(Critic, 2)(config.hidden_dims, output_init=uniform_init(3e-3) if config.small_init else None)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_vae, key_actor, key_critic = jax.random.split(key, 3)
    observations, actions = jnp.zeros((1, spec.observation_dim)), jnp.zeros((1, spec.action_dim))
    vae = vae_network(config).init(key_vae, observations, actions, jnp.zeros((1, 2 * spec.action_dim)))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    return State(
        step=jnp.zeros((), jnp.int32),
        vae=vae,
        actor=actor,
        actor_target=copy(actor),
        critic=critic,
        critic_target=copy(critic),
        vae_opt=adam_init(vae),
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
        actor_metrics={name: jnp.zeros(()) for name in ("actor_loss", "support_loss", "policy_q", "lambda")},
    )


def vae_loss(params: Any, key: jax.Array, observations: jax.Array, actions: jax.Array, config: Config):
    """The autoencoder's loss; with the policy's actions, the actor's penalty."""
    noise = jax.random.normal(key, (*actions.shape[:-1], 2 * actions.shape[-1]))
    error, divergence = vae_network(config).apply(params, observations, actions, noise)
    loss = (error + config.kl_weight * divergence).mean()
    return loss, {"vae_loss": loss, "reconstruction_error": error.mean(), "divergence": divergence.mean()}


def act(actor: Any, key: jax.Array, observations: jax.Array, action_dim: int, config: Config) -> jax.Array:
    """Actions of the actor during training, with dropout."""
    network = actor_network(config, action_dim)
    return network.apply(actor, observations, config.dropout == 0, rngs={"dropout": key})


def critic_loss(params: Any, key: jax.Array, state: State, batch: Transitions, config: Config):
    critic, action_dim = critic_network(config), batch.actions.shape[-1]
    key_noise, key_dropout = jax.random.split(key)
    noise = config.policy_noise * jax.random.normal(key_noise, batch.actions.shape)
    noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
    next_actions = act(state.actor_target, key_dropout, batch.next_observations, action_dim, config)
    next_actions = jnp.clip(next_actions + noise, -1, 1)
    next_q = critic.apply(state.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + config.discount * (1 - batch.terminations) * next_q
    q = critic.apply(params, batch.observations, batch.actions)
    loss = ((q - target) ** 2).mean(1).sum()
    return loss, {"critic_loss": loss, "data_q": q.mean()}


def actor_loss(params: Any, key: jax.Array, state: State, batch: Transitions, config: Config):
    key_dropout, key_latent = jax.random.split(key)
    actions = act(params, key_dropout, batch.observations, batch.actions.shape[-1], config)
    first_critic = jax.tree.map(lambda leaf: leaf[0], state.critic)  # the second critic is not needed
    q = Critic(config.hidden_dims).apply(first_critic, batch.observations, actions)
    scale = 1 / jax.lax.stop_gradient(jnp.abs(q).mean())
    support_loss, _ = vae_loss(state.vae, key_latent, batch.observations, actions, config)
    loss = -scale * q.mean() + config.penalty * support_loss
    return loss, {"actor_loss": loss, "support_loss": support_loss, "policy_q": q.mean(), "lambda": scale}


def update_vae_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update of the first phase on a given batch."""
    vae, vae_opt, metrics = adam_step(
        lambda params: vae_loss(params, key, batch.observations, batch.actions, config),
        state.vae,
        state.vae_opt,
        config.vae_learning_rate,
    )
    return state.replace(step=state.step + 1, vae=vae, vae_opt=vae_opt), metrics


def update_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update of the second phase on a given batch."""
    key_critic, key_actor = jax.random.split(key)
    critic, critic_opt, metrics = adam_step(
        lambda params: critic_loss(params, key_critic, state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    state = state.replace(step=state.step + 1, critic=critic, critic_opt=critic_opt)

    def update_actor(state: State) -> State:
        actor, actor_opt, actor_metrics = adam_step(
            lambda params: actor_loss(params, key_actor, state, batch, config),
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


def update_vae(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_latent = jax.random.split(key)
    return update_vae_batch(key_latent, state, sample_batch(key_batch, dataset, config.batch_size), config)


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_update = jax.random.split(key)
    return update_batch(key_update, state, sample_batch(key_batch, dataset, config.batch_size), config)


def phases(config: Config) -> tuple[Phase, ...]:
    return (
        Phase("vae", update_vae, updates=lambda updates: min(config.vae_updates, updates)),
        Phase("policy", update),
    )


def policy(config: Config, spec: Spec) -> Policy:
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)
    return Policy(
        act=lambda state, observations: actor.apply(state.actor, observations),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
    )
