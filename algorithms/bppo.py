"""BPPO: behavior proximal policy optimization (Zhuang et al. 2023, arXiv:2302.11312).

Four phases. A Gaussian policy clones the data. V regresses on the data's discounted returns; Q bootstraps from the
data's next actions (SARSA). Then PPO's clipped objective improves the policy on the data's states, with actions of the
old policy and advantages Q(s, a) - V(s), which are normalised over the batch and weighted by omega if positive and by
1 - omega if negative; the clip range and the step size decay. Differences from the authors' code ("it"):

- It plays ten episodes in the environment after every update, replaces the old policy only if they scored better than
  ever before, and keeps the clone and the policy with the best such score. That is tuning online. Here nothing is
  played, and the last policy is the result. `gate=none` replaces the old policy on a fixed schedule, every
  `old_policy_every` updates. `gate=advantage` replaces it at these updates only if an estimate from the data says that
  the new one is better: the mean over held-out states of Q(s, a) under the new policy minus that under the old one
  (same noise) must exceed `gate_threshold` times its standard error, which takes episodes as the independent units. A
  policy that fails is dropped and training continues from the old one, so that the deployed policy has passed the gate
  (if `old_policy_every` divides the phase). Episodes are held out of all four phases, in `prepare`. The critic is the
  one that the policy was improved with: the gate tests whether the gain holds in new states, not whether the critic is
  right.
- It treats time limits as terminal states. Here the return of a truncated episode bootstraps from V of its last
  observation, and so does Q, which has no next action there; therefore V is fitted before Q. Returns never cross the
  end of an episode; if the last observation of an episode is unknown, its last step is left out.
- Its V and Q end in a ReLU, which cannot represent negative values. Here they are linear.
- It evaluates Q at actions of the old policy that may lie outside the action box. The environment would clip them, and
  Q was never trained on such actions: here they are clipped for Q (not for the ratio).
- It fits V and Q in 2,000,000 updates each and the clone in 500,000, then improves the policy in 1,000. Here the
  protocol's updates are divided among the three fits in those `proportions` (protocol.updates=4500000 gives exactly the
  published lengths), and the improvement has `improvement_updates` on top, never more than the protocol's. The clone,
  which depends on neither V nor Q, is fitted first, so that every later checkpoint holds a policy worth scoring.
- Biases of the policy start at 0. V's three layers and polyak 0.005 are those of the repository's last version.

At clip 0 the only ratio within the range is 1, and the objective is constant: without an entropy bonus the behaviour
policy stays as it is. Left out: refitting Q with the current policy's actions (off in the published runs). Uni-O4, with
an ensemble of clones and a gate on rollouts in a learned model, is `uni_o4.py`.
"""

from typing import Any, NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from offrl.algorithm import Metrics, Phase, Spec, option
from offrl.data.dataset import Dataset, Transitions
from offrl.data.transforms import Preprocessing, transform_observations, transform_rewards
from offrl.errors import UserError
from offrl.learning.networks import MLP, Critic, gaussian_log_prob
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy

LOG_STD_RANGE = (-5.0, 0.0)
GRADIENT_NORM = 0.5  # maximum, in the improvement
ADAM_EPSILON = 1e-5  # in the improvement
LAST_DECAY = 200  # the update of the improvement, counted from 0, after which clip range and step size are constant
GATE_STATES = 2048  # at most, evenly spaced over the held-out episodes


@flax.struct.dataclass
class Config:
    clip: float = option(0.25, "clip range of the ratio, before it decays; 0 keeps the behaviour policy")
    clip_decay: float = option(0.96, "factor of the clip range after each of the first 200 updates")
    omega: float = option(0.9, "weight of positive advantages; negative ones weigh 1 - omega")
    entropy_weight: float = option(0.0, "weight of the policy's entropy")
    learning_rate: float = option(1e-4, "Adam step size of the improvement, before it decays", low=0)
    learning_rate_decay: float = option(0.98, "factor of that step size after every second of the first 200 updates")
    behaviour_learning_rate: float = option(1e-4, "Adam step size of the clone", low=0)
    value_learning_rate: float = option(1e-4, "Adam step size of V", low=0)
    critic_learning_rate: float = option(1e-4, "Adam step size of Q", low=0)
    polyak: float = option(0.005, "step of the target critic towards the learned one", low=0, high=1)
    target_frequency: int = option(2, "critic updates per target update", static=True)
    discount: float = option(
        0.99, "discount per step; the returns are computed with it, once", static=True, low=0, high=1
    )
    gate: str = option(
        "none",
        "the old policy is replaced on schedule: always, or only if the critic estimates a gain",
        static=True,
        choices=("none", "advantage"),
    )
    old_policy_every: int = option(10, "improvement updates between replacements of the old policy", static=True)
    gate_threshold: float = option(1.0, "standard errors by which the gain must exceed 0 (gate=advantage)")
    gate_fraction: float = option(0.1, "share of the episodes held out for that estimate", static=True)
    proportions: tuple[int, ...] = option(
        (1, 4, 4), "how the clone, V and Q divide the protocol's updates", static=True
    )
    improvement_updates: int = option(1000, "updates of the improvement, at most the protocol's", static=True)
    batch_size: int = option(512, "states per update", static=True)
    hidden_dims: tuple[int, ...] = option((1024, 1024), "widths of the policy's and Q's ReLU layers", static=True)
    value_hidden_dims: tuple[int, ...] = option((512, 512, 512), "widths of V's ReLU layers", static=True)
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)

    @property
    def critic_hidden_dims(self) -> tuple[int, ...]:
        """A separate option in Uni-O4, which shares the functions below."""
        return self.hidden_dims


class HeldOut(NamedTuple):
    """States for the gate, and the episode (0, 1, ...) of each."""

    observations: np.ndarray
    episodes: np.ndarray
    sizes: np.ndarray
    """Number of states of each episode, [episodes]."""


class Data(NamedTuple):
    transitions: Transitions
    returns: np.ndarray
    """Discounted sums of rewards up to the last known observation of the episode, [rows]."""
    bootstrap: np.ndarray
    """Factor of V of that observation in the return, [rows]: 0 in an episode that ends in a terminal state."""
    episodes: np.ndarray
    final_observations: np.ndarray
    """[episodes, observation_dim]"""
    held_out: HeldOut | None


class Batch(NamedTuple):
    transitions: Transitions
    returns: jax.Array
    bootstrap: jax.Array
    final_observations: jax.Array


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    old_actor: Any
    value: Any
    critic: Any
    critic_target: Any
    actor_opt: optax.OptState
    value_opt: optax.OptState
    critic_opt: optax.OptState
    improvement_step: jax.Array
    replaced: jax.Array  # how often the old policy was replaced
    gain: jax.Array  # the gate's last estimate, and its standard error
    gain_error: jax.Array


def prepare(dataset: Dataset, config: Config) -> Data:
    held_out = None
    if config.gate == "advantage":
        dataset, rest = dataset.split(config.gate_fraction, seed=0)
        held_out = held_out_states(rest)
    return with_returns(dataset, config)._replace(held_out=held_out)


def with_returns(dataset: Dataset, config: Config) -> Data:
    ends, episodes = dataset.ends, dataset.episode_of_step
    # the row after an episode's last action holds its last observation; where the source did not record that, it is a
    # copy of the row before, the return ends a step earlier, and the last step is not among the transitions
    lost = ~(dataset.final_observation_known | dataset.terminations[ends])[episodes]
    remaining = ends[episodes] - np.arange(dataset.steps) + 1 - lost
    last_reward = transform_rewards(dataset.transforms, dataset.rewards)[ends][episodes]
    returns = dataset.returns_to_go(config.discount) - lost * config.discount**remaining * last_reward
    bootstrap = config.discount**remaining * ~dataset.terminations[ends][episodes]
    rows = dataset.transition_rows
    final_rows = ends + np.arange(dataset.episodes) + 1
    return Data(
        transitions=dataset.transitions(),
        returns=returns[rows].astype(np.float32),
        bootstrap=bootstrap[rows].astype(np.float32),
        episodes=episodes[rows].astype(np.int32),
        final_observations=transform_observations(dataset.transforms, dataset.observations[final_rows]),
        held_out=None,
    )


def held_out_states(dataset: Dataset) -> HeldOut:
    rows = dataset.transition_rows
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), GATE_STATES)).astype(int)
    _, episodes, sizes = np.unique(dataset.episode_of_step[rows[chosen]], return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise UserError(
            f"algo.gate=advantage: {len(sizes)} episode(s) held out of {dataset.name}, and a standard error needs two; "
            f"raise algo.gate_fraction"
        )
    observations = dataset.transitions().observations[chosen]
    return HeldOut(observations, episodes.astype(np.int32), sizes.astype(np.float32))


class GaussianActor(nn.Module):
    """Mean in (-1, 1) and log standard deviation within its range, each [..., action_dim]."""

    hidden_dims: tuple[int, ...]
    action_dim: int

    @nn.compact
    def __call__(self, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        network = MLP(self.hidden_dims, 2 * self.action_dim, kernel_init=nn.initializers.orthogonal())
        mean, log_std = jnp.split(jnp.tanh(network(observations)), 2, -1)
        low, high = LOG_STD_RANGE
        return mean, low + (high - low) * (log_std + 1) / 2


def actor_network(config: Config, action_dim: int) -> GaussianActor:
    return GaussianActor(config.hidden_dims, action_dim)


def critic_network(config: Config) -> Critic:
    return Critic(config.critic_hidden_dims)


def value_of(params: Any, observations: jax.Array, config: Config) -> jax.Array:
    return MLP(config.value_hidden_dims, 1).apply(params, observations).squeeze(-1)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observations, actions = jnp.zeros((1, spec.observation_dim)), jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    value = MLP(config.value_hidden_dims, 1).init(key_value, observations)
    return State(
        step=jnp.zeros((), jnp.int32),
        actor=actor,
        old_actor=copy(actor),
        value=value,
        critic=critic,
        critic_target=copy(critic),
        actor_opt=adam_init(actor),
        value_opt=adam_init(value),
        critic_opt=adam_init(critic),
        improvement_step=jnp.zeros((), jnp.int32),
        replaced=jnp.zeros((), jnp.int32),
        gain=jnp.zeros(()),
        gain_error=jnp.zeros(()),
    )


def behaviour_loss(params: Any, batch: Transitions, config: Config):
    mean, log_std = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    loss = -gaussian_log_prob(mean, log_std, batch.actions).mean()
    return loss, {"behaviour_loss": loss}


def value_loss(params: Any, batch: Batch, config: Config):
    final_v = jax.lax.stop_gradient(value_of(params, batch.final_observations, config))
    v = value_of(params, batch.transitions.observations, config)
    loss = ((v - batch.returns - batch.bootstrap * final_v) ** 2).mean()
    return loss, {"value_loss": loss, "value": v.mean()}


def critic_loss(params: Any, state: State, batch: Transitions, config: Config):
    critic = critic_network(config)
    next_q = critic.apply(state.critic_target, batch.next_observations, batch.next_actions)
    next_v = value_of(state.value, batch.next_observations, config)
    next_value = jnp.where(batch.next_action_known == 1, next_q, next_v)  # V at a time limit
    target = batch.rewards + config.discount * (1 - batch.terminations) * next_value
    q = critic.apply(params, batch.observations, batch.actions)
    loss = ((q - target) ** 2).mean()
    return loss, {"critic_loss": loss, "data_q": q.mean()}


def policy_loss(params: Any, key: jax.Array, clip: jax.Array, state: State, batch: Transitions, config: Config):
    actor = actor_network(config, batch.actions.shape[-1])
    old_mean, old_log_std = actor.apply(state.old_actor, batch.observations)
    actions = old_mean + jnp.exp(old_log_std) * jax.random.normal(key, old_mean.shape)
    q = critic_network(config).apply(state.critic, batch.observations, jnp.clip(actions, -1, 1))
    advantage = q - value_of(state.value, batch.observations, config)
    normalised = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-10)
    weighted = jnp.where(normalised > 0, config.omega, 1 - config.omega) * normalised

    mean, log_std = actor.apply(params, batch.observations)
    log_ratio = gaussian_log_prob(mean, log_std, actions) - gaussian_log_prob(old_mean, old_log_std, actions)
    ratio = jnp.exp(log_ratio)
    # min(ratio A, clip(ratio) A), written by the sign of A; at clip 0 no ratio but 1 is allowed
    bounded = jnp.where(weighted > 0, jnp.minimum(ratio, 1 + clip), jnp.maximum(ratio, 1 - clip))
    bounded = jnp.where(clip > 0, bounded, 1.0)
    entropy = (log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum(-1).mean()
    loss = -(bounded * weighted).mean() - config.entropy_weight * entropy
    metrics = {"policy_loss": loss, "advantage": advantage.mean(), "entropy": entropy, "kl": -log_ratio.mean()}
    return loss, metrics


def policy_gain(
    key: jax.Array, state: State, held_out: HeldOut, action_dim: int, config: Config
) -> tuple[jax.Array, jax.Array]:
    """Mean over held-out states of Q under the policy minus Q under the old one; its standard error over episodes."""
    actor = actor_network(config, action_dim)
    noise = jax.random.normal(key, (held_out.observations.shape[0], action_dim))

    def q(params: Any) -> jax.Array:
        mean, log_std = actor.apply(params, held_out.observations)
        actions = jnp.clip(mean + jnp.exp(log_std) * noise, -1, 1)
        return critic_network(config).apply(state.critic, held_out.observations, actions)

    gains = q(state.actor) - q(state.old_actor)
    episodes = held_out.sizes.shape[0]
    deviations = jax.ops.segment_sum(gains - gains.mean(), held_out.episodes, episodes)
    error = jnp.sqrt(episodes / (episodes - 1) * (deviations**2).sum()) / gains.shape[0]
    return gains.mean(), error


def sample(key: jax.Array, data: Data, config: Config) -> Batch:
    rows = jax.random.randint(key, (config.batch_size,), 0, data.returns.shape[0])
    transitions = jax.tree.map(lambda column: column[rows], data.transitions)
    finals = data.final_observations[data.episodes[rows]]
    return Batch(transitions, data.returns[rows], data.bootstrap[rows], finals)


def update_behaviour(key: jax.Array, state: State, data: Data, config: Config) -> tuple[State, Metrics]:
    batch = sample(key, data, config).transitions
    actor, actor_opt, metrics = adam_step(
        lambda params: behaviour_loss(params, batch, config),
        state.actor,
        state.actor_opt,
        config.behaviour_learning_rate,
    )
    return state.replace(step=state.step + 1, actor=actor, actor_opt=actor_opt), metrics


def update_value(key: jax.Array, state: State, data: Data, config: Config) -> tuple[State, Metrics]:
    batch = sample(key, data, config)
    value, value_opt, metrics = adam_step(
        lambda params: value_loss(params, batch, config), state.value, state.value_opt, config.value_learning_rate
    )
    return state.replace(step=state.step + 1, value=value, value_opt=value_opt), metrics


def update_critic(key: jax.Array, state: State, data: Data, config: Config) -> tuple[State, Metrics]:
    batch = sample(key, data, config).transitions
    critic, critic_opt, metrics = adam_step(
        lambda params: critic_loss(params, state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    state = state.replace(step=state.step + 1, critic=critic, critic_opt=critic_opt)
    rate = jnp.where(state.step % config.target_frequency == 0, config.polyak, 0.0)
    return state.replace(critic_target=optax.incremental_update(critic, state.critic_target, rate)), metrics


def begin_improvement(key: jax.Array, state: State, data: Data, config: Config) -> State:
    return state.replace(old_actor=copy(state.actor), actor_opt=adam_init(state.actor))


def improve_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One step of the policy on a given batch."""
    i = state.improvement_step
    clip = config.clip * config.clip_decay ** (jnp.minimum(i, LAST_DECAY) + 1)  # published code decays it before use
    learning_rate = config.learning_rate * config.learning_rate_decay ** (jnp.minimum(i, LAST_DECAY + 1) // 2)
    actor, actor_opt, metrics = clipped_step(key, state, batch, clip, learning_rate, config)
    state = state.replace(step=state.step + 1, improvement_step=i + 1, actor=actor, actor_opt=actor_opt)
    return state, {**metrics, "clip": clip}


def clipped_step(
    key: jax.Array, state: State, batch: Transitions, clip: jax.Array, learning_rate: jax.Array, config: Config
) -> tuple[Any, optax.OptState, Metrics]:
    """One Adam step on the policy's loss: new parameters, new optimiser state, metrics."""
    gradients, metrics = jax.grad(lambda params: policy_loss(params, key, clip, state, batch, config), has_aux=True)(
        state.actor
    )
    gradients, _ = optax.clip_by_global_norm(GRADIENT_NORM).update(gradients, optax.EmptyState())
    changes, actor_opt = optax.adam(learning_rate, eps=ADAM_EPSILON).update(gradients, state.actor_opt)
    return optax.apply_updates(state.actor, changes), actor_opt, metrics


def replace_old_policy(key: jax.Array, state: State, data: Data, config: Config) -> State:
    """The policy becomes the old policy, or is dropped if the gate rejects it."""
    if data.held_out is None:
        return state.replace(old_actor=state.actor, replaced=state.replaced + 1)
    gain, error = policy_gain(key, state, data.held_out, data.transitions.actions.shape[-1], config)
    accepted = gain > config.gate_threshold * error
    actor = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), state.actor, state.old_actor)
    replaced = state.replaced + accepted
    return state.replace(actor=actor, old_actor=actor, replaced=replaced, gain=gain, gain_error=error)


def improve(key: jax.Array, state: State, data: Data, config: Config) -> tuple[State, Metrics]:
    key_batch, key_actions, key_gate = jax.random.split(key, 3)
    state, metrics = improve_batch(key_actions, state, sample(key_batch, data, config).transitions, config)
    state = jax.lax.cond(
        state.improvement_step % config.old_policy_every == 0,
        lambda state: replace_old_policy(key_gate, state, data, config),
        lambda state: state,
        state,
    )
    metrics |= {"replaced": state.replaced.astype(jnp.float32)}
    if data.held_out is not None:
        metrics |= {"gain": state.gain, "gain_error": state.gain_error}
    return state, metrics


def phases(config: Config) -> tuple[Phase, ...]:
    if len(config.proportions) != 3:
        raise UserError(f"algo.proportions={list(config.proportions)}: must be three numbers, of the clone, V and Q")

    def share(part: int):
        return lambda updates: max(1, round(updates * part / sum(config.proportions)))

    behaviour, value, critic = config.proportions
    return (
        Phase("behaviour", update_behaviour, share(behaviour)),
        Phase("value", update_value, share(value)),
        Phase("critic", update_critic, share(critic)),
        Phase("improvement", improve, lambda updates: min(config.improvement_updates, updates), begin_improvement),
    )


def policy(config: Config, spec: Spec) -> Policy:
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)

    def draw(key: jax.Array, state: State, observations: jax.Array) -> jax.Array:
        mean, log_std = actor.apply(state.actor, observations)
        return jnp.clip(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape), -1, 1)

    return Policy(
        act=lambda state, observations: actor.apply(state.actor, observations)[0],
        sample=draw,
        log_prob=lambda state, observations, actions: gaussian_log_prob(
            *actor.apply(state.actor, observations), actions
        ),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions)[None],
        value=lambda state, observations: value_of(state.value, observations, config),
    )
