"""Uni-O4, the offline stage: BPPO for an ensemble, gated by a learned model (Lei et al. 2023, arXiv:2311.03351).

An ensemble of policies clones the data. V and Q of the behaviour policy are fitted with the losses of `bppo.py`, and a
dynamics model as in `learning.models`. PPO's clipped objective then improves every member, while step size and clip
range fall linearly to 0. Every `gate_every` updates, each member's deterministic policy makes rollouts in the model
from states of the data. It replaces the member's old policy if its score, the mean of Q over all states visited before
a predicted termination, is above the member's best so far (at first the clone's). A policy that is rejected continues
training against the same old policy. None of this plays the environment.

The clones' loss, from the authors' BC_ensemble.py, is the mean over the batch of -log pi_i(a | s) - w D with
w = `disagreement`. D compares member i with k, the other member with the highest density at the row's action, in one of
two forms, without a gradient through pi_k:

- `log_ratio`, their default: D = log pi_i(a | s) - log pi_k(a | s). **The loss then has 1 + w times the gradient of
  cloning**, a factor that Adam cancels: members differ only by their initialisation. The metric `diversity` reports D.
- `kl`, their other form (kl_type=distribution): D = KL(pi_i(. | s) | pi_k(. | s)), averaged over the action's
  dimensions as there. This one does move the members apart.

The deployed policy is the old policy, which has passed the gate, of the member with the highest best score; before the
improvement, the first clone. Updates after the last gate are therefore lost, and if no gate falls within the phase, the
best clone is deployed. The authors save the last policy of every member, whether it passed or not, and score in the
environment each of them and a mixture that takes the action of the member with the highest density. To choose among
those would be tuning online, and the density tells how narrow a member is, not how good. Other deviations from the
authors' code, besides those of `bppo.py` (V, Q and time limits, clipped actions for Q, Adam's epsilon 1e-5 in the
improvement):

- `gate_length` is 100; theirs is 1000, at ten times the cost, and their README shortens it where Q explodes. The errors
  of a model grow with the length, and its terminations are learned here; their code is given the task's rule
  (`terminations=assisted:hopper`).
- The model's states are clipped to the range of the data. Without that, a few rollouts that left it and never returned,
  unnoticed by the learned terminations, decided the gate: on trpo/hopper/mixed-v0 the scores went from -214,000 to
  -105,000 where Q on the data is 28 (`python -m offrl.reproduce small datasets=minari:trpo/hopper/mixed-v0`, at
  c904de8).
- Start states and the model's noise are the same at every gate and for every member, so that only the policies make
  scores differ; there they are resampled at every gate, and the best of many noisy scores is partly luck.
- All clones are updated at once, not in a random order with densities from before or after the others' updates.
- In their code the clip range stops falling after 201 updates, at 0.245, due to a flag left over from BPPO's schedule.
- Their lengths (clone 400,000, V and Q 2,000,000 each) are proportions of the protocol's updates, as in `bppo.py`:
  protocol.updates=4400000 gives them exactly.

Left out: IQL's critics, a flag of main.py that the scripts for MuJoCo set together with standardised observations; the
penalty between members in the improvement, off there; the online stage. With one member and a gate that always passes
it is BPPO with `gate=none`, except for the schedules.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from offrl.algorithm import Metrics, Phase, Spec, option
from offrl.algorithms import bppo
from offrl.algorithms.bppo import actor_network, critic_network
from offrl.data.dataset import Dataset, Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning.model_based import dynamics_phase, model
from offrl.learning.models import dynamics
from offrl.learning.models.dynamics import DynamicsConfig, Ensemble
from offrl.learning.networks import gaussian_log_prob
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy


@flax.struct.dataclass
class Config(DynamicsConfig):
    ensemble_policies: int = option(4, "number of policies, each cloned and improved; 1 or more", static=True)
    disagreement: float = option(0.1, "w: weight of the clones' disagreement with each other")
    disagreement_form: str = option(
        "log_ratio",
        "its form: between densities at the data's actions (has no effect on the clones), or between distributions",
        static=True,
        choices=("log_ratio", "kl"),
    )
    gate_every: int = option(100, "improvement updates between gates", static=True)
    gate_rollouts: int = option(512, "rollouts in the model per gate and member, from states of the data", static=True)
    gate_length: int = option(100, "maximum steps of such a rollout")
    clip: float = option(0.25, "initial clip range of the ratio; falls to 0")
    omega: float = option(0.7, "weight of positive advantages; negative ones weigh 1 - omega")
    entropy_weight: float = option(0.0, "weight of the policies' entropy")
    learning_rate: float = option(1e-4, "initial Adam step size of the improvement; falls to 0", low=0)
    behaviour_learning_rate: float = option(1e-4, "Adam step size of the clones", low=0)
    value_learning_rate: float = option(1e-4, "Adam step size of V", low=0)
    critic_learning_rate: float = option(1e-4, "Adam step size of Q", low=0)
    polyak: float = option(0.005, "step of the target critic towards the learned one", low=0, high=1)
    target_frequency: int = option(2, "critic updates per target update", static=True)
    discount: float = option(
        0.99, "discount per step; the returns are computed with it, once", static=True, low=0, high=1
    )
    proportions: tuple[int, ...] = option(
        (1, 5, 5), "how the clones, V and Q divide the protocol's updates", static=True
    )
    improvement_updates: int = option(10_000, "updates of the improvement, at most the protocol's", static=True)
    batch_size: int = option(512, "states per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256, 256), "widths of the policies' ReLU layers", static=True)
    critic_hidden_dims: tuple[int, ...] = option((1024, 1024), "widths of Q's ReLU layers", static=True)
    value_hidden_dims: tuple[int, ...] = option((512, 512, 512), "widths of V's ReLU layers", static=True)
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)


class Data(NamedTuple):
    """The fields of `bppo.Data` and of `dynamics.ModelData`, of the same transitions."""

    transitions: Transitions
    returns: np.ndarray
    bootstrap: np.ndarray
    episodes: np.ndarray
    final_observations: np.ndarray
    train_rows: np.ndarray
    holdout_rows: np.ndarray
    input_mean: np.ndarray
    input_std: np.ndarray
    observation_mean: np.ndarray
    observation_std: np.ndarray


@flax.struct.dataclass
class State:
    """Leaves of `actor`, `old_actor` and `actor_opt`, and the last three, have the members on axis 0."""

    step: jax.Array
    actor: Any
    old_actor: Any
    value: Any
    critic: Any
    critic_target: Any
    actor_opt: optax.OptState
    value_opt: optax.OptState
    critic_opt: optax.OptState
    ensemble: Ensemble
    improvement_step: jax.Array
    updates: jax.Array  # of the whole improvement, at whose end its schedules end
    score: jax.Array  # of the policies at the last gate
    best_score: jax.Array  # of the old policies
    replaced: jax.Array  # how often they were replaced


def prepare(dataset: Dataset, config: Config) -> Data:
    columns = {**bppo.with_returns(dataset, config)._asdict(), **dynamics.prepare(dataset, config)._asdict()}
    return Data(**{name: columns[name] for name in Data._fields})


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_parent, key_actors, key_ensemble = jax.random.split(key, 3)
    parent = bppo.init(key_parent, config, spec)  # for its V and Q
    actor, observations = actor_network(config, spec.action_dim), jnp.zeros((1, spec.observation_dim))
    actors = jax.vmap(actor.init, (0, None))(jax.random.split(key_actors, config.ensemble_policies), observations)
    return State(
        step=parent.step,
        actor=actors,
        old_actor=copy(actors),
        value=parent.value,
        critic=parent.critic,
        critic_target=parent.critic_target,
        actor_opt=jax.vmap(adam_init)(actors),
        value_opt=parent.value_opt,
        critic_opt=parent.critic_opt,
        ensemble=dynamics.init_ensemble(key_ensemble, config, spec),
        improvement_step=parent.improvement_step,
        updates=jnp.asarray(min(config.improvement_updates, spec.updates), jnp.int32),
        score=jnp.zeros(config.ensemble_policies),
        best_score=jnp.zeros(config.ensemble_policies),
        replaced=jnp.zeros(config.ensemble_policies, jnp.int32),
    )


# The clones


def rivals(actors: Any, batch: Transitions, config: Config) -> tuple[jax.Array, jax.Array]:
    """Mean and log standard deviation of the other member with the highest density at each row's action,
    [members, rows, dim]."""
    network = actor_network(config, batch.actions.shape[-1])
    mean, log_std = jax.vmap(network.apply, (0, None))(actors, batch.observations)
    itself = jnp.eye(config.ensemble_policies, dtype=bool)[:, :, None]
    likeliest = jnp.where(itself, -jnp.inf, gaussian_log_prob(mean, log_std, batch.actions)).argmax(1)
    rows = jnp.arange(batch.actions.shape[0])
    return mean[likeliest, rows], log_std[likeliest, rows]


def behaviour_loss(params: Any, rival: tuple[jax.Array, jax.Array], batch: Transitions, config: Config):
    """Loss of one member; `rival` is its part of `rivals`."""
    loss, metrics = bppo.behaviour_loss(params, batch, config)
    if config.ensemble_policies == 1:
        return loss, {**metrics, "diversity": jnp.zeros(())}
    rival_mean, rival_log_std = rival
    mean, log_std = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    if config.disagreement_form == "kl":
        squares = jnp.exp(2 * log_std) + (mean - rival_mean) ** 2
        kl = rival_log_std - log_std + 0.5 * squares / jnp.exp(2 * rival_log_std) - 0.5
        diversity = kl.mean()
    else:
        diversity = -loss - gaussian_log_prob(rival_mean, rival_log_std, batch.actions).mean()
    return loss - config.disagreement * diversity, {**metrics, "diversity": diversity}


def update_behaviour(key: jax.Array, state: State, data: Data, config: Config) -> tuple[State, Metrics]:
    return update_behaviour_batch(state, bppo.sample(key, data, config).transitions, config)


def update_behaviour_batch(state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One step of every clone on a given batch."""

    def member(params: Any, opt: optax.OptState, rival: tuple[jax.Array, jax.Array]):
        return adam_step(
            lambda params: behaviour_loss(params, rival, batch, config), params, opt, config.behaviour_learning_rate
        )

    actor, actor_opt, metrics = jax.vmap(member)(state.actor, state.actor_opt, rivals(state.actor, batch, config))
    state = state.replace(step=state.step + 1, actor=actor, old_actor=actor, actor_opt=actor_opt)
    return state, jax.tree.map(jnp.mean, metrics)


# The improvement, and its gate


def gate_scores(state: State, data: Data, length: jax.Array, config: Config) -> jax.Array:
    """Mean of Q over the states that each member's deterministic policy visits in the model, [members].

    Rollouts have at most `length` steps; states after a predicted termination do not count.
    """
    key_start, key_model = jax.random.split(jax.random.key(0))  # the same at every gate
    observations = jnp.asarray(data.transitions.observations)
    start = observations[jax.random.randint(key_start, (config.gate_rollouts,), 0, len(observations))]
    low, high = observations.min(0), observations.max(0)
    actor, critic = actor_network(config, data.transitions.actions.shape[-1]), critic_network(config)
    model_step = model(state.ensemble, config)

    def member(params: Any) -> jax.Array:
        def step(carry: Any) -> Any:
            t, observations, alive, total, visited = carry
            actions, _ = actor.apply(params, observations)
            q = critic.apply(state.critic, observations, actions)
            following, _, terminations = model_step(jax.random.fold_in(key_model, t), observations, actions)
            following = jnp.clip(following, low, high)
            total, visited = total + jnp.where(alive, q, 0).sum(), visited + alive.sum(dtype=jnp.int32)
            alive = alive & (terminations == 0)
            # a rollout that has ended stays where it is, so that what is computed there stays finite
            return t + 1, jnp.where(alive[:, None], following, observations), alive, total, visited

        zero = jnp.zeros((), jnp.int32)
        carry = (zero, start, jnp.ones(config.gate_rollouts, bool), jnp.zeros(()), zero)
        *_, total, visited = jax.lax.while_loop(lambda carry: (carry[0] < length) & carry[2].any(), step, carry)
        return total / visited

    return jax.vmap(member)(state.actor)


def begin_improvement(key: jax.Array, state: State, data: Data, config: Config) -> State:
    score = gate_scores(state, data, config.gate_length, config)
    return state.replace(
        old_actor=copy(state.actor), actor_opt=jax.vmap(adam_init)(state.actor), score=score, best_score=score
    )


def improve_batch(key: jax.Array, state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One step of every member on a given batch."""
    left = 1 - state.improvement_step / state.updates

    def member(key: jax.Array, actor: Any, old_actor: Any, actor_opt: optax.OptState):
        own = state.replace(actor=actor, old_actor=old_actor, actor_opt=actor_opt)
        return bppo.clipped_step(key, own, batch, left * config.clip, left * config.learning_rate, config)

    keys = jax.random.split(key, config.ensemble_policies)
    actor, actor_opt, metrics = jax.vmap(member)(keys, state.actor, state.old_actor, state.actor_opt)
    state = state.replace(
        step=state.step + 1, improvement_step=state.improvement_step + 1, actor=actor, actor_opt=actor_opt
    )
    return state, jax.tree.map(jnp.mean, metrics)


def replace_old_policies(state: State, data: Data, length: jax.Array, config: Config) -> State:
    """Replaces each member's old policy by its policy if that scores above the member's best so far."""
    score = gate_scores(state, data, length, config)
    better = score > state.best_score

    def chosen(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return state.replace(
        old_actor=jax.tree.map(chosen, state.actor, state.old_actor),
        score=score,
        best_score=chosen(score, state.best_score),
        replaced=state.replaced + better,
    )


def improve(key: jax.Array, state: State, data: Data, config: Config) -> tuple[State, Metrics]:
    key_batch, key_actions = jax.random.split(key)
    state, metrics = improve_batch(key_actions, state, bppo.sample(key_batch, data, config).transitions, config)
    due = state.improvement_step % config.gate_every == 0
    # under `vmap`, on accelerators, `cond` computes both branches: without a gate, rollouts of 0 steps
    length = jnp.where(due, config.gate_length, 0)
    state = jax.lax.cond(
        due, lambda state: replace_old_policies(state, data, length, config), lambda state: state, state
    )
    return state, {
        **metrics,
        "score": state.score.mean(),
        "best_score": state.best_score.max(),
        "replaced": state.replaced.sum().astype(jnp.float32),
    }


def phases(config: Config) -> tuple[Phase, ...]:
    behaviour, value, critic, improvement = bppo.phases(config)
    return (
        dynamics_phase(config),
        behaviour._replace(update=update_behaviour),
        value,
        critic,
        improvement._replace(update=improve, begin=begin_improvement),
    )


def policy(config: Config, spec: Spec) -> Policy:
    parent = bppo.policy(config, spec)

    def deployed(state: State) -> State:
        best = state.best_score.argmax()
        return state.replace(actor=jax.tree.map(lambda leaf: leaf[best], state.old_actor))

    return replace(
        parent,
        act=lambda state, observations: parent.act(deployed(state), observations),
        sample=lambda key, state, observations: parent.sample(key, deployed(state), observations),
        log_prob=lambda state, observations, actions: parent.log_prob(deployed(state), observations, actions),
    )
