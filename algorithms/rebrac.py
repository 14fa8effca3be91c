"""ReBRAC: TD3 with decoupled behaviour penalties for actor and critic (Tarasov et al. 2023, arXiv:2305.09836).

The actor minimises beta_a |pi(s) - a|^2 - lambda min_i Q_i(s, pi(s)), with lambda = 1 / mean |Q| over the batch; the
critics' target is r + gamma (min_i Q_i(s', a') - beta_c |a' - a'_data|^2), where a' is the target policy's smoothed
action and a'_data the dataset's own next action. Both penalties are sums over action dimensions (TD3+BC takes their
mean). Order of one update, as in the authors' code (tinkoff-ai/ReBRAC): critics; on updates 0, 2, 4, ... the actor,
with the new critics, and all target networks. In that code the actor's target moves towards the actor from *before* its
update and so lags one actor update behind; CORL's copy does the same (`target_lag`).

Deviations. Where an episode was cut off, the dataset has no next action: the target bootstraps there without a penalty.
The authors leave such steps out, as D4RL does; unifloral takes the first action of the next episode. AntMaze's
`normalize_reward` (rewards * 100) is `preprocessing.reward_scale`. The authors count updates from 0 in every epoch,
which makes no difference, as their number is even. Their betas were tuned per dataset on online returns
(configs/published/rebrac.yaml): the defaults here, 0.01 each, are CORL's common ones.
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
from offrl.learning.networks import Critic, DeterministicActor, ensemble, uniform_init
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch

HIDDEN_BIAS_INIT = nn.initializers.constant(0.1)


@flax.struct.dataclass
class Config:
    actor_penalty: float = option(0.01, "beta_a: weight of the actor's distance to the data's action")
    critic_penalty: float = option(0.01, "beta_c: weight of the target's distance to the data's next action")
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target networks towards the learned ones", low=0, high=1)
    policy_noise: float = option(0.2, "standard deviation of the target policy's smoothing noise, actions in [-1, 1]")
    noise_clip: float = option(0.5, "bound of that noise")
    actor_learning_rate: float = option(1e-3, "Adam step size of the actor", low=0)
    critic_learning_rate: float = option(1e-3, "Adam step size of the critics", low=0)
    policy_frequency: int = option(2, "critic updates per actor and target update", static=True)
    target_lag: bool = option(True, "move the actor's target towards the actor from before its update", static=True)
    actor_layer_norm: bool = option(False, "layer normalisation after the actor's activations", static=True)
    critic_layer_norm: bool = option(True, "layer normalisation after the critics' activations", static=True)
    batch_size: int = option(1024, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)


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
    return DeterministicActor(
        config.hidden_dims, action_dim, uniform_init(1e-3), HIDDEN_BIAS_INIT, config.actor_layer_norm
    )


def critic_network(config: Config):
    return ensemble(Critic, 2)(
        config.hidden_dims,
        layer_norm=config.critic_layer_norm,
        output_init=uniform_init(3e-3),
        bias_init=HIDDEN_BIAS_INIT,
    )


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
        actor_metrics={name: jnp.zeros(()) for name in ("actor_loss", "actor_distance", "policy_q", "lambda")},
    )


def critic_loss(params: Any, key: jax.Array, state: State, batch: Transitions, config: Config):
    """Squared error of both critics to a target with the penalty, which is 0 where the next action is unknown."""
    actor, critic = actor_network(config, batch.actions.shape[-1]), critic_network(config)
    noise = jnp.clip(
        config.policy_noise * jax.random.normal(key, batch.actions.shape), -config.noise_clip, config.noise_clip
    )
    next_actions = jnp.clip(actor.apply(state.actor_target, batch.next_observations) + noise, -1, 1)
    distance = batch.next_action_known * ((next_actions - batch.next_actions) ** 2).sum(-1)
    next_q = critic.apply(state.critic_target, batch.next_observations, next_actions).min(0)
    next_value = next_q - config.critic_penalty * distance
    target = batch.rewards + config.discount * (1 - batch.terminations) * next_value
    q = critic.apply(params, batch.observations, batch.actions)
    loss = ((q - target) ** 2).mean(1).sum()
    return loss, {"critic_loss": loss, "data_q": q.mean(), "next_distance": distance.mean()}


def actor_loss(params: Any, state: State, batch: Transitions, config: Config):
    actions = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    distance = ((actions - batch.actions) ** 2).sum(-1).mean()
    q = critic_network(config).apply(state.critic, batch.observations, actions).min(0)
    scale = 1 / jax.lax.stop_gradient(jnp.abs(q).mean())
    loss = config.actor_penalty * distance - scale * q.mean()
    return loss, {"actor_loss": loss, "actor_distance": distance, "policy_q": q.mean(), "lambda": scale}


def update_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch."""
    critic, critic_opt, metrics = adam_step(
        lambda params: critic_loss(params, key, state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )

    def update_actor(state: State) -> State:
        actor, actor_opt, actor_metrics = adam_step(
            lambda params: actor_loss(params, state, batch, config),
            state.actor,
            state.actor_opt,
            config.actor_learning_rate,
        )
        followed = state.actor if config.target_lag else actor
        return state.replace(
            actor=actor,
            actor_opt=actor_opt,
            actor_target=optax.incremental_update(followed, state.actor_target, config.polyak),
            critic_target=optax.incremental_update(state.critic, state.critic_target, config.polyak),
            actor_metrics=actor_metrics,
        )

    due = state.step % config.policy_frequency == 0
    state = state.replace(step=state.step + 1, critic=critic, critic_opt=critic_opt)
    state = jax.lax.cond(due, update_actor, lambda state: state, state)
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
