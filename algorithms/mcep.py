"""MCEP: TD3+BC with a mildly constrained evaluation policy (Xu et al. 2023, arXiv:2306.03680).

The *target* policy is TD3+BC's; only it enters the critics' target, which needs a strong constraint to stay stable. A
second, *evaluation* policy maximises the same critics under a weaker constraint (alpha 10 instead of 2.5). It does not
influence the critics, and it is the policy that acts. Target policy and critics are exactly those of
algorithms/td3_bc.py. Order of one update, as in the authors' code (egg-west/MCEP): critics; on every
`policy_frequency`-th update both policies, with the new first critic, and then the target networks of target policy and
critics.

Deviations from the authors' code: its critic loss is the mean over critics, half of the sum used here, which makes no
difference to Adam; it has a target network of the evaluation policy, which nothing reads; it initialises orthogonally,
while here it is TD3+BC's initialisation. In its names, "bp" is the paper's target policy, and "tp" or "actor" the
evaluation policy. Not implemented: the paper's AWAC variant, and the division of the cloning loss by a moving average
of the target policy's (`use_bcNorm`), which its Adroit runs use with alphas 10 and 100.
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
    alpha: float = option(2.5, "target policy: weight of the value term against the cloning term")
    evaluation_alpha: float = option(10.0, "evaluation policy: the same weight; 0 is behaviour cloning")
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target networks towards the learned ones", low=0, high=1)
    policy_noise: float = option(0.2, "standard deviation of the target policy's smoothing noise, actions in [-1, 1]")
    noise_clip: float = option(0.5, "bound of that noise")
    actor_learning_rate: float = option(3e-4, "Adam step size of both policies", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics", low=0)
    policy_frequency: int = option(2, "critic updates per actor and target update", static=True)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize", rewards="return_range", action_margin=1e-5),
        "steps applied to the data",
        static=True,
    )


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    actor_target: Any
    evaluation_actor: Any
    critic: Any
    critic_target: Any
    actor_opt: optax.OptState
    evaluation_actor_opt: optax.OptState
    critic_opt: optax.OptState
    actor_metrics: Metrics  # of the last actor update, reported until the next one


def actor_network(config: Config, action_dim: int) -> DeterministicActor:
    return DeterministicActor(config.hidden_dims, action_dim)


def critic_network(config: Config):
    return ensemble(Critic, 2)(config.hidden_dims)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_actor, key_evaluation, key_critic = jax.random.split(key, 3)
    observations, actions = jnp.zeros((1, spec.observation_dim)), jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    evaluation_actor = actor_network(config, spec.action_dim).init(key_evaluation, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    names = ("actor_loss", "bc_loss", "policy_q", "lambda")
    return State(
        step=jnp.zeros((), jnp.int32),
        actor=actor,
        actor_target=copy(actor),
        evaluation_actor=evaluation_actor,
        critic=critic,
        critic_target=copy(critic),
        actor_opt=adam_init(actor),
        evaluation_actor_opt=adam_init(evaluation_actor),
        critic_opt=adam_init(critic),
        actor_metrics={f"{prefix}{name}": jnp.zeros(()) for prefix in ("", "evaluation_") for name in names},
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


def actor_loss(params: Any, alpha: jax.Array | float, state: State, batch: Transitions, config: Config):
    """The loss of either policy, with its alpha."""
    actions = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    first_critic = jax.tree.map(lambda leaf: leaf[0], state.critic)  # the second critic is not needed
    q = Critic(config.hidden_dims).apply(first_critic, batch.observations, actions)
    scale = alpha / jax.lax.stop_gradient(jnp.abs(q).mean())
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
            lambda params: actor_loss(params, config.alpha, state, batch, config),
            state.actor,
            state.actor_opt,
            config.actor_learning_rate,
        )
        evaluation_actor, evaluation_actor_opt, evaluation_metrics = adam_step(
            lambda params: actor_loss(params, config.evaluation_alpha, state, batch, config),
            state.evaluation_actor,
            state.evaluation_actor_opt,
            config.actor_learning_rate,
        )
        return state.replace(
            actor=actor,
            actor_opt=actor_opt,
            evaluation_actor=evaluation_actor,
            evaluation_actor_opt=evaluation_actor_opt,
            actor_target=optax.incremental_update(actor, state.actor_target, config.polyak),
            critic_target=optax.incremental_update(state.critic, state.critic_target, config.polyak),
            actor_metrics={
                **actor_metrics,
                **{f"evaluation_{name}": value for name, value in evaluation_metrics.items()},
            },
        )

    state = jax.lax.cond(state.step % config.policy_frequency == 0, update_actor, lambda state: state, state)
    return state, {**metrics, **state.actor_metrics}


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_noise = jax.random.split(key)
    return update_batch(key_noise, state, sample_batch(key_batch, dataset, config.batch_size), config)


def policy(config: Config, spec: Spec) -> Policy:
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)
    return Policy(
        act=lambda state, observations: actor.apply(state.evaluation_actor, observations),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
    )
