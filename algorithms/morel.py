"""MOReL: model-based offline reinforcement learning (Kidambi et al. 2020, arXiv:2005.05951).

The policy is trained in a pessimistic MDP (definition 2): where the ensemble members' means differ by more than a
threshold, the rollout halts with a low reward. The disagreement is d(s, a) = max_ij |f_i - f_j| over the elites, reward
included; the threshold is `threshold` times the largest d on the data, and the reward of halting is the smallest reward
in the data plus `halt_reward_offset`.

The policy optimiser is the soft actor-critic with 10 critics that unifloral uses, instead of the paper's natural policy
gradient in the model; unifloral's numbers are the defaults here. unifloral takes as the largest disagreement that
between the means of *different* transitions in two batches, which does not measure the ensemble's disagreement and is
quadratic in the rows; here it is the largest at any one transition that the model was trained on. unifloral's rollouts
continue after terminations; here they stop. With an infinite threshold this is MOPO without a penalty.
"""

from __future__ import annotations

import flax
import jax
import jax.numpy as jnp

from offrl.algorithm import Metrics, Phase, Spec, option
from offrl.data.transforms import Preprocessing
from offrl.learning import model_based, soft_actor_critic
from offrl.learning.model_based import (
    ROLLOUTS_AT_ONCE,
    ModelBasedConfig,
    advance,
    dynamics_phase,
    mixed_batch,
    policy,
    policy_act,
    prepare,
    progress,
    roll_out,
)
from offrl.learning.models import dynamics, penalties
from offrl.learning.models.dynamics import Ensemble, ModelData
from offrl.learning.models.rollouts import Model, Steps

__all__ = ["Config", "init", "phases", "policy", "prepare"]


@flax.struct.dataclass
class Config(ModelBasedConfig):
    threshold: float = option(1.0, "halt where the disagreement exceeds this multiple of the largest on the data")
    halt_reward_offset: float = option(-200.0, "reward of halting, relative to the data's smallest reward")
    critics: int = option(10, "number of critics; the smallest of their values is used", static=True)
    critic_learning_rate: float = option(1e-4, "Adam step size of the critics", low=0)
    actor_schedule: str = option(
        "constant", "decay of the policy's step size over the run", static=True, choices=("cosine", "constant")
    )
    real_ratio: float = option(0.01, "share of a batch that comes from the data", static=True)
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)


@flax.struct.dataclass
class State(model_based.State):
    largest_disagreement: jax.Array  # on the data
    smallest_reward: jax.Array


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    parts = model_based.init_parts(key, config, spec)
    return State(**parts, largest_disagreement=jnp.zeros(()), smallest_reward=jnp.zeros(()))


def disagreement(ensemble: Ensemble, mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """The largest distance between two elites' means, [n]; `mean` and `log_var` are those of all members."""
    return penalties.max_pairwise(jax.random.key(0), mean[ensemble.elites], log_var[ensemble.elites])


def begin_policy(key: jax.Array, state: State, dataset: ModelData, config: Config) -> State:
    """Measures the largest disagreement on the data, in parts that fit into memory, and the smallest reward."""
    rows, transitions = jnp.asarray(dataset.train_rows), dataset.transitions

    def largest(i: jax.Array, so_far: jax.Array) -> jax.Array:
        # the last part repeats the last row
        part = rows[jnp.minimum(i * ROLLOUTS_AT_ONCE + jnp.arange(ROLLOUTS_AT_ONCE), len(rows) - 1)]
        batch = dynamics.rows_of(transitions, part)
        predicted = dynamics.predict(state.ensemble, batch.observations, batch.actions, config)
        return jnp.maximum(so_far, disagreement(state.ensemble, *predicted).max())

    parts = -(-len(rows) // ROLLOUTS_AT_ONCE)
    return state.replace(
        largest_disagreement=jax.lax.fori_loop(0, parts, largest, jnp.zeros(())),
        smallest_reward=jnp.min(jnp.asarray(transitions.rewards)),
    )


def pessimistic_model(state: State, config: Config) -> Model:
    def step(key: jax.Array, observations: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        key_step, _ = jax.random.split(key)  # as in mopo.py, to draw the same samples
        predicted = dynamics.step(key_step, state.ensemble, observations, actions, config)
        unknown = disagreement(state.ensemble, predicted.mean, predicted.log_var)
        halt = unknown > config.threshold * state.largest_disagreement
        rewards = jnp.where(halt, state.smallest_reward + config.halt_reward_offset, predicted.rewards)
        return predicted.next_observations, rewards, jnp.where(halt, 1.0, predicted.terminations)

    return step


def update_batch(key: jax.Array, state: State, batch: Steps, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch."""
    learner, metrics = soft_actor_critic.update(key, state.learner, batch, progress(state), config)
    return advance(state, learner), {**metrics, "batch_reward": batch.rewards.mean()}


def update(key: jax.Array, state: State, dataset: ModelData, config: Config) -> tuple[State, Metrics]:
    key_rollout, key_batch, key_update = jax.random.split(key, 3)
    state = roll_out(key_rollout, state, dataset, config, policy_act(state, config), pessimistic_model(state, config))
    return update_batch(key_update, state, mixed_batch(key_batch, state, dataset, config), config)


def phases(config: Config) -> tuple[Phase, ...]:
    return dynamics_phase(config), Phase("policy", update, begin=begin_policy)
