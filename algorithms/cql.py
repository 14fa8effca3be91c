"""CQL: conservative Q-learning (Kumar, Zhou, Tucker & Levine 2020, arXiv:2006.04779), in its form CQL(H).

SAC with two critics that are also pushed down wherever actions look good and up at the data's actions (equation 4): to
the squared error of each it adds weight * gap, with

    gap = T logsumexp_j(q_j / T) - Q(s, a)       averaged over the batch.

The q_j estimate the integral of exp Q over actions by importance sampling: n uniform actions, Q - log(1/2)^dim; n from
pi(s) and n from pi(s'), all evaluated at s, Q - log pi. With `importance_sampling=False` the q_j are plain values and
the data's own is one of them (CQL(rho) with the policy as prior, the code's `min_q_version=2`). Order of one update:
temperature, policy, critics, their targets, each from the newest of the others, as in our SAC-N: with weight 0 and
`backup="entropy"` it is SAC-N with two critics.

The defaults are those of the authors' code (aviralkumar2907/CQL, d4rl) as its README has it for MuJoCo: weight 5, no
Lagrange multiplier, three layers. What differs between the published codes, and the names of their choices here:

- `lagrange`: the weight is multiplied by alpha', which rises while the gap exceeds a threshold tau. JaxCQL and CORL add
  alpha' * weight * (gap - tau), "gap"; the authors alpha' * (weight * gap - tau), "weighted_gap". It begins at 1 as the
  authors' does; JaxCQL's at e.
- `backup` by the best of n actions of the target critics: for each critic and then the lower one, "max_then_min" (the
  authors); or of the lower one, "min_then_max" (JaxCQL, CORL). Both without the entropy.
- Order: the authors compute the critics' losses with the policy from before its step, JaxCQL takes all steps at once.
- `affine_log_std`: JaxCQL and CORL learn a multiplier and an offset (1 and -1 at first) of the log deviation, which is
  clipped to [-20, 2] instead of [-5, 2].
- `bc_steps`: the policy clones first, for 40,000 updates in the authors' script and not at all elsewhere and here.
  CORL's log-density there is not that of the data's actions, which it ignores; ours is.
- CQL+ (sail-sg/offbench) is `activation=elu sampled_actions=50 hidden_dims=[256,256] affine_log_std=true`, on Adroit
  with a `reward_clip`; CORL's critics of AntMaze have different depths, ours the same.

With discrete actions it is double DQN with the same term: the logarithm of the sum over all actions is exact, and the
policy takes the action of highest value. Nothing is sampled and there is no actor: of the options, those of the actor
and its temperature, `sampled_actions`, `importance_sampling`, `backup` and `bc_steps` have no meaning there.
"""

from typing import Any, NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning import double_dqn
from offrl.learning.networks import MLP, Critic, ensemble, tanh_gaussian_log_prob, tanh_gaussian_sample, uniform_init
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch

HIDDEN_BIAS_INIT = nn.initializers.constant(0.1)
ACTIVATIONS = {"relu": nn.relu, "elu": nn.elu}
MAX_MULTIPLIER = 1e6
NEVER = 1e9  # a bound that no gap and no reward reaches
SUPPORTS = ("continuous", "discrete", "image")


@flax.struct.dataclass
class Config:
    weight: float = option(5.0, "weight of the conservative term; 0 is SAC")
    temperature: float = option(1.0, "T of the soft maximum over actions")
    sampled_actions: int = option(10, "n: actions drawn from each of the three distributions", static=True)
    importance_sampling: bool = option(True, "CQL(H); false: plain values, with the data's action", static=True)
    gap_floor: float = option(-NEVER, "the gap of a state is cut off below it; -200 on AntMaze")
    lagrange: str = option(
        "none",
        "multiplier of the term: alpha' weight (gap - tau), or alpha' (weight gap - tau)",
        static=True,
        choices=("none", "gap", "weighted_gap"),
    )
    lagrange_threshold: float = option(5.0, "tau")
    backup: str = option(
        "deterministic",
        "critics' target: one action of the policy, its entropy added, or the best of n in either order",
        static=True,
        choices=("deterministic", "entropy", "max_then_min", "min_then_max"),
    )
    bc_steps: int = option(0, "updates at first in which the policy clones instead of maximising Q")
    reward_clip: float = option(NEVER, "rewards above it count as it; on Adroit 20, hammer 40, in CQL+")
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target critics towards the learned ones", low=0, high=1)
    initial_alpha: float = option(1.0, "temperature of the policy at the start: weight of its entropy")
    alpha_learning_rate: float = option(1e-4, "Adam step size of its logarithm; 0 keeps it constant", low=0)
    actor_learning_rate: float = option(1e-4, "Adam step size of the policy", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics and of the multiplier", low=0)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256, 256), "widths of the hidden layers", static=True)
    activation: str = option("relu", "of the hidden layers", static=True, choices=tuple(ACTIVATIONS))
    affine_log_std: bool = option(False, "learn a multiplier and an offset of the log deviation", static=True)
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    critic: Any
    critic_target: Any
    log_alpha: jax.Array
    log_multiplier: jax.Array  # of the Lagrange form
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState
    multiplier_opt: optax.OptState


@flax.struct.dataclass
class DiscreteState:
    """Where actions are discrete."""

    step: jax.Array
    critic: Any
    critic_target: Any
    log_multiplier: jax.Array  # of the Lagrange form
    critic_opt: optax.OptState
    multiplier_opt: optax.OptState


class Actor(nn.Module):
    """Mean and log standard deviation, each [..., action_dim], of a Gaussian whose tanh is the action."""

    hidden_dims: tuple[int, ...]
    action_dim: int
    activation: str
    affine_log_std: bool

    @nn.compact
    def __call__(self, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        network = MLP(
            self.hidden_dims,
            2 * self.action_dim,
            output_init=uniform_init(1e-3),
            bias_init=HIDDEN_BIAS_INIT,
            activation=ACTIVATIONS[self.activation],
        )
        mean, log_std = jnp.split(network(observations), 2, -1)
        if not self.affine_log_std:
            return mean, jnp.clip(log_std, -5, 2)
        multiplier = self.param("log_std_multiplier", nn.initializers.ones, ())
        offset = self.param("log_std_offset", nn.initializers.constant(-1.0), ())
        return mean, jnp.clip(multiplier * log_std + offset, -20, 2)


def actor_network(config: Config, action_dim: int) -> Actor:
    return Actor(config.hidden_dims, action_dim, config.activation, config.affine_log_std)


def critic_network(config: Config):
    return ensemble(Critic, 2)(
        config.hidden_dims,
        output_init=uniform_init(3e-3),
        bias_init=HIDDEN_BIAS_INIT,
        activation=ACTIVATIONS[config.activation],
    )


def discrete_network(config: Config, action_dim: int) -> MLP:
    """Q of all actions, [..., action_dim]."""
    return MLP(
        config.hidden_dims,
        action_dim,
        output_init=uniform_init(3e-3),
        bias_init=HIDDEN_BIAS_INIT,
        activation=ACTIVATIONS[config.activation],
    )


def init(key: jax.Array, config: Config, spec: Spec) -> State | DiscreteState:
    if spec.discrete:
        critic, log_multiplier = discrete_network(config, spec.action_dim).init(key, spec.observations), jnp.zeros(())
        return DiscreteState(
            step=jnp.zeros((), jnp.int32),
            critic=critic,
            critic_target=copy(critic),
            log_multiplier=log_multiplier,
            critic_opt=adam_init(critic),
            multiplier_opt=adam_init(log_multiplier),
        )
    key_actor, key_critic = jax.random.split(key)
    observations, actions = spec.observations, jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    log_alpha, log_multiplier = jnp.log(jnp.asarray(config.initial_alpha, jnp.float32)), jnp.zeros(())
    return State(
        step=jnp.zeros((), jnp.int32),
        actor=actor,
        critic=critic,
        critic_target=copy(critic),
        log_alpha=log_alpha,
        log_multiplier=log_multiplier,
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
        alpha_opt=adam_init(log_alpha),
        multiplier_opt=adam_init(log_multiplier),
    )


class Samples(NamedTuple):
    """The actions that the critics' loss evaluates, which are constants of it."""

    actions: jax.Array
    """[3 n, rows, action_dim] at the observations: n uniform, n of the policy there, n of it at the next ones."""
    log_densities: jax.Array
    """[3 n, rows]."""
    next_actions: jax.Array
    """[m, rows, action_dim] at the next observations, for the target: m = 1, or n where the best of them counts."""
    next_log_prob: jax.Array
    """[m, rows]."""


def sample_actions(keys: jax.Array, state: State, batch: Transitions, config: Config) -> Samples:
    """From four keys: for the target, and for the three kinds of sampled actions."""
    rows, action_dim = batch.actions.shape
    n = config.sampled_actions
    actor = actor_network(config, action_dim)
    here, there = (actor.apply(state.actor, x) for x in (batch.observations, batch.next_observations))

    def draw(key: jax.Array, count: int, distribution: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return tanh_gaussian_sample(key, *(jnp.broadcast_to(x, (count, *x.shape)) for x in distribution))

    uniform = jax.random.uniform(keys[1], (n, rows, action_dim), minval=-1, maxval=1)
    uniform_log_density = jnp.full((n, rows), action_dim * jnp.log(0.5))
    of_here, here_log_prob = draw(keys[2], n, here)
    of_there, there_log_prob = draw(keys[3], n, there)
    best_of_several = config.backup in ("max_then_min", "min_then_max")
    next_actions, next_log_prob = draw(keys[0], n if best_of_several else 1, there)
    samples = Samples(
        actions=jnp.concatenate([uniform, of_here, of_there]),
        log_densities=jnp.concatenate([uniform_log_density, here_log_prob, there_log_prob]),
        next_actions=next_actions,
        next_log_prob=next_log_prob,
    )
    return jax.lax.stop_gradient(samples)


def values(params: Any, observations: jax.Array, actions: jax.Array, config: Config) -> jax.Array:
    """Q of several actions [k, rows, action_dim] per observation [rows, observation_dim]: [critics, k, rows]."""
    if observations.dtype != jnp.uint8:  # of images the critic repeats the features
        observations = jnp.broadcast_to(observations, (len(actions), *observations.shape))
    return critic_network(config).apply(params, observations, actions)


def alpha_loss(log_alpha: jax.Array, key: jax.Array, state: State, batch: Transitions, config: Config):
    """Raises the temperature while the policy's entropy is below its target, minus the number of action dimensions."""
    action_dim = batch.actions.shape[-1]
    _, log_prob = tanh_gaussian_sample(key, *actor_network(config, action_dim).apply(state.actor, batch.observations))
    loss = -log_alpha * (log_prob.mean() - action_dim)
    return loss, {"alpha_loss": loss, "alpha": jnp.exp(log_alpha), "entropy": -log_prob.mean()}


def actor_loss(params: Any, key: jax.Array, state: State, batch: Transitions, config: Config):
    mean, log_std = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    actions, log_prob = tanh_gaussian_sample(key, mean, log_std)
    q = critic_network(config).apply(state.critic, batch.observations, actions).min(0)
    cloned = tanh_gaussian_log_prob(mean, log_std, batch.actions)
    gain = jnp.where(state.step < config.bc_steps, cloned, q)
    loss = (jnp.exp(state.log_alpha) * log_prob - gain).mean()
    return loss, {"actor_loss": loss, "policy_q": q.mean(), "data_log_prob": cloned.mean()}


def critic_targets(samples: Samples, state: State, batch: Transitions, config: Config) -> jax.Array:
    """r + discount * value of the next state, [rows]; never bootstrapped past a termination."""
    q = values(state.critic_target, batch.next_observations, samples.next_actions, config)
    next_value = q.max(1).min(0) if config.backup == "max_then_min" else q.min(0).max(0)
    if config.backup == "entropy":
        next_value -= jnp.exp(state.log_alpha) * samples.next_log_prob[0]
    rewards = jnp.minimum(batch.rewards, config.reward_clip)
    return rewards + config.discount * (1 - batch.terminations) * next_value


def excess(gap: jax.Array, config: Config) -> jax.Array:
    """How far the gap exceeds the threshold, weighted, in either form of the Lagrange term."""
    if config.lagrange == "weighted_gap":
        return config.weight * gap - config.lagrange_threshold
    return config.weight * (gap - config.lagrange_threshold)


def conservative_term(gap: jax.Array, log_multiplier: jax.Array, config: Config) -> jax.Array:
    """What the gaps of all critics add to the loss, a scalar."""
    if config.lagrange == "none":
        return config.weight * gap.sum()
    multiplier = jnp.minimum(jnp.exp(log_multiplier), MAX_MULTIPLIER)
    return multiplier * excess(gap, config).sum()


def critic_loss(params: Any, samples: Samples, state: State, batch: Transitions, config: Config):
    """Squared error of both critics to the same target, and the conservative term, summed over critics."""
    n, target = config.sampled_actions, critic_targets(samples, state, batch, config)
    # one pass for all actions: the data's first, then the sampled ones
    q = values(params, batch.observations, jnp.concatenate([batch.actions[None], samples.actions]), config)
    data_q, sampled_q = q[:, 0], q[:, 1:]
    td_loss = ((data_q - target) ** 2).mean(1).sum()
    compared = sampled_q - samples.log_densities if config.importance_sampling else q
    soft_maximum = config.temperature * jax.nn.logsumexp(compared / config.temperature, axis=1)
    gap = jnp.maximum(soft_maximum - data_q, config.gap_floor).mean(1)
    conservative_loss = conservative_term(gap, state.log_multiplier, config)
    loss = td_loss + conservative_loss
    return loss, {
        "critic_loss": loss,
        "td_loss": td_loss,
        "conservative_loss": conservative_loss,
        "gap": gap.mean(),
        "data_q": data_q.mean(),
        "uniform_q": sampled_q[:, :n].mean(),
        "sampled_policy_q": sampled_q[:, n : 2 * n].mean(),
    }


def multiplier_loss(log_multiplier: jax.Array, gap: jax.Array, config: Config):
    """Raises alpha' while the gap exceeds its threshold."""
    multiplier = jnp.minimum(jnp.exp(log_multiplier), MAX_MULTIPLIER)
    loss = -multiplier * excess(gap, config)
    return loss, {"multiplier_loss": loss, "multiplier": multiplier}


def update_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update from a given batch."""
    key_alpha, key_actor, *sample_keys = jax.random.split(key, 6)
    log_alpha, alpha_opt, alpha_metrics = adam_step(
        lambda log_alpha: alpha_loss(log_alpha, key_alpha, state, batch, config),
        state.log_alpha,
        state.alpha_opt,
        config.alpha_learning_rate,
    )
    state = state.replace(log_alpha=log_alpha, alpha_opt=alpha_opt)
    actor, actor_opt, actor_metrics = adam_step(
        lambda params: actor_loss(params, key_actor, state, batch, config),
        state.actor,
        state.actor_opt,
        config.actor_learning_rate,
    )
    state = state.replace(actor=actor, actor_opt=actor_opt)
    samples = sample_actions(sample_keys, state, batch, config)
    critic, critic_opt, critic_metrics = adam_step(
        lambda params: critic_loss(params, samples, state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    state, multiplier_metrics = multiplier_step(state, critic_metrics["gap"], config)
    critic_target = optax.incremental_update(critic, state.critic_target, config.polyak)
    state = state.replace(step=state.step + 1, critic=critic, critic_opt=critic_opt, critic_target=critic_target)
    return state, {**alpha_metrics, **actor_metrics, **critic_metrics, **multiplier_metrics}


def multiplier_step(state: Any, gap: jax.Array, config: Config) -> tuple[Any, Metrics]:
    """One step of alpha' in the Lagrange form, none in the other."""
    if config.lagrange == "none":
        return state, {}
    log_multiplier, multiplier_opt, metrics = adam_step(
        lambda log_multiplier: multiplier_loss(log_multiplier, gap, config),
        state.log_multiplier,
        state.multiplier_opt,
        config.critic_learning_rate,
    )
    return state.replace(log_multiplier=log_multiplier, multiplier_opt=multiplier_opt), metrics


def discrete_critic_loss(params: Any, state: DiscreteState, batch: Transitions, config: Config):
    """Squared error of double DQN, and the conservative term over all actions."""
    network = discrete_network(config, batch.actions.shape[-1]).apply
    clipped = batch._replace(rewards=jnp.minimum(batch.rewards, config.reward_clip))
    target = double_dqn.td_target(network, state.critic, state.critic_target, clipped, config.discount)
    q = network(params, batch.observations)
    data_q = double_dqn.value_of(q, batch.actions)
    td_loss = ((data_q - target) ** 2).mean()
    soft_maximum = config.temperature * jax.nn.logsumexp(q / config.temperature, axis=-1)
    gap = jnp.maximum(soft_maximum - data_q, config.gap_floor).mean()
    conservative_loss = conservative_term(gap, state.log_multiplier, config)
    loss = td_loss + conservative_loss
    return loss, {
        "critic_loss": loss,
        "td_loss": td_loss,
        "conservative_loss": conservative_loss,
        "gap": gap,
        "data_q": data_q.mean(),
        "policy_q": q.max(-1).mean(),
    }


def discrete_update_batch(state: DiscreteState, batch: Transitions, config: Config) -> tuple[DiscreteState, Metrics]:
    """One update from a given batch."""
    critic, critic_opt, metrics = adam_step(
        lambda params: discrete_critic_loss(params, state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    state, multiplier_metrics = multiplier_step(state, metrics["gap"], config)
    critic_target = optax.incremental_update(critic, state.critic_target, config.polyak)
    state = state.replace(step=state.step + 1, critic=critic, critic_opt=critic_opt, critic_target=critic_target)
    return state, {**metrics, **multiplier_metrics}


def update(key: jax.Array, state: Any, dataset: Transitions, config: Config) -> tuple[Any, Metrics]:
    key_batch, key_update = jax.random.split(key)
    batch = sample_batch(key_batch, dataset, config.batch_size)
    if isinstance(state, DiscreteState):
        return discrete_update_batch(state, batch, config)
    return update_batch(key_update, state, batch, config)


def policy(config: Config, spec: Spec) -> Policy:
    if spec.discrete:
        return double_dqn.greedy_policy(discrete_network(config, spec.action_dim).apply)
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)
    return Policy(
        act=lambda state, observations: jnp.tanh(actor.apply(state.actor, observations)[0]),
        sample=lambda key, state, observations: tanh_gaussian_sample(key, *actor.apply(state.actor, observations))[0],
        log_prob=lambda state, observations, actions: tanh_gaussian_log_prob(
            *actor.apply(state.actor, observations), actions
        ),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
    )
