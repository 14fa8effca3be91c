"""What MOPO, MOReL, COMBO, RAMBO and MOBILE share: a dynamics phase, rollouts in the model, mixed batches.

The first phase trains the ensemble. In the policy phase, every `rollout_every`-th update begins with rollouts of the
current policy from states of the data; a ring buffer keeps the newest. A share `real_ratio` of each batch comes from
the data and the rest from the buffer.

The buffer is part of the state, so that a resumed run continues exactly, and so part of every checkpoint: at the
published sizes (50,000 rollouts of 5 steps at a time, the last 5 such batches kept) it holds 1.25 million rows, 135 MB
for hopper. For a short run on a CPU, lower `rollout_batch_size` and `rollouts_kept` first.
"""

from __future__ import annotations

from typing import Any

import flax
import jax
import jax.numpy as jnp

from offrl.algorithm import Metrics, Phase, Spec, option
from offrl.data.dataset import Dataset
from offrl.errors import UserError
from offrl.learning import soft_actor_critic
from offrl.learning.models import dynamics, rollouts
from offrl.learning.models.dynamics import DynamicsConfig, Ensemble, ModelData
from offrl.learning.models.rollouts import Act, Buffer, Model, Steps
from offrl.learning.soft_actor_critic import Learner, SoftActorCriticConfig

ROLLOUTS_AT_ONCE = 5_000
"""Limits the memory that rollouts take: the hidden layers of all ensemble members for this many rows."""


@flax.struct.dataclass
class ModelBasedConfig(DynamicsConfig, SoftActorCriticConfig):
    rollout_length: int = option(5, "maximum steps of a rollout in the model", static=True)
    rollout_batch_size: int = option(50_000, "rollouts made at a time, from states of the data", static=True)
    rollout_every: int = option(1_000, "policy updates between rollouts", static=True)
    rollouts_kept: int = option(5, "the buffer has room for this many batches of rollouts", static=True)
    real_ratio: float = option(0.05, "share of a batch that comes from the data", static=True)


@flax.struct.dataclass
class State:
    step: jax.Array
    policy_step: jax.Array  # updates of the policy phase so far
    updates: jax.Array  # of the whole policy phase: where the cosine schedule ends
    ensemble: Ensemble
    learner: Learner
    buffer: Buffer


def chunks(config: ModelBasedConfig) -> tuple[int, int]:
    """In how many chunks the rollouts are made, and the size of each; in total at least `rollout_batch_size`."""
    count = -(-config.rollout_batch_size // ROLLOUTS_AT_ONCE)
    return count, -(-config.rollout_batch_size // count)


def real_rows(config: ModelBasedConfig) -> int:
    """How many rows of a batch come from the data."""
    return int(config.real_ratio * config.batch_size)


def prepare(dataset: Dataset, config: ModelBasedConfig) -> ModelData:
    """See `offrl.learning.models.dynamics.prepare`."""
    if not 0 <= config.real_ratio <= 1:
        raise UserError(f"algo.real_ratio={config.real_ratio}: must be from 0 to 1")
    return dynamics.prepare(dataset, config)


def init_parts(key: jax.Array, config: ModelBasedConfig, spec: Spec) -> dict[str, Any]:
    """The fields of a new `State`."""
    key_ensemble, key_learner = jax.random.split(key)
    count, size = chunks(config)
    wants_model = real_rows(config) < config.batch_size
    capacity = config.rollouts_kept * count * size * config.rollout_length if wants_model else 1
    return {
        "step": jnp.zeros((), jnp.int32),
        "policy_step": jnp.zeros((), jnp.int32),
        "updates": jnp.asarray(spec.updates, jnp.int32),
        "ensemble": dynamics.init_ensemble(key_ensemble, config, spec),
        "learner": soft_actor_critic.init(key_learner, config, spec),
        "buffer": rollouts.init_buffer(capacity, spec),
    }


def init(key: jax.Array, config: ModelBasedConfig, spec: Spec) -> State:
    return State(**init_parts(key, config, spec))


def dynamics_phase(config: ModelBasedConfig) -> Phase:
    """Trains `state.ensemble`."""

    def begin(key: jax.Array, state: Any, dataset: ModelData, config: ModelBasedConfig) -> Any:
        return state.replace(ensemble=dynamics.begin_ensemble(state.ensemble, dataset))

    def update(key: jax.Array, state: Any, dataset: ModelData, config: ModelBasedConfig) -> tuple[Any, Metrics]:
        ensemble, metrics = dynamics.update_ensemble(key, state.ensemble, dataset, config)
        return state.replace(step=state.step + 1, ensemble=ensemble), metrics

    return Phase("dynamics", update, config.dynamics_updates, begin)


def model(ensemble: Ensemble, config: ModelBasedConfig) -> Model:
    """The ensemble as an environment, without any penalty."""

    def step(key: jax.Array, observations: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        prediction = dynamics.step(key, ensemble, observations, actions, config)
        return prediction.next_observations, prediction.rewards, prediction.terminations

    return step


def policy_act(state: Any, config: ModelBasedConfig) -> Act:
    """The current policy, sampled."""
    actor, action_dim = state.learner.actor, state.buffer.rows.actions.shape[-1]

    def act(key: jax.Array, observations: jax.Array) -> jax.Array:
        return soft_actor_critic.sample_actions(key, actor, observations, action_dim, config)[0]

    return act


def roll_out(key: jax.Array, state: Any, dataset: ModelData, config: ModelBasedConfig, act: Act, model: Model) -> Any:
    """The state, with new rollouts in its buffer at every `rollout_every`-th policy update."""
    if real_rows(config) == config.batch_size:
        return state
    count, size = chunks(config)
    observations = jnp.asarray(dataset.transitions.observations)

    def chunk(i: jax.Array, buffer: Buffer) -> Buffer:
        key_start, key_rollout = jax.random.split(jax.random.fold_in(key, i))
        start = observations[jax.random.randint(key_start, (size,), 0, len(observations))]
        rows, valid = rollouts.rollout(key_rollout, start, act, model, config.rollout_length)
        flat = jax.tree.map(lambda column: column.reshape(-1, *column.shape[2:]), rows)
        return rollouts.add(buffer, flat, valid.reshape(-1))

    due = state.policy_step % config.rollout_every == 0
    # a loop, of no iterations in other updates: under `vmap`, `cond` would make rollouts in every update
    return state.replace(buffer=jax.lax.fori_loop(0, jnp.where(due, count, 0), chunk, state.buffer))


def mixed_batch(key: jax.Array, state: Any, dataset: ModelData, config: ModelBasedConfig) -> Steps:
    """Rows of the data first, then rows of the buffer."""
    key_real, key_model = jax.random.split(key)
    count, total = real_rows(config), dataset.transitions.rewards.shape[0]
    real = dynamics.rows_of(dataset.transitions, jax.random.randint(key_real, (count,), 0, total))
    imagined = rollouts.sample(key_model, state.buffer, config.batch_size - count)
    return jax.tree.map(lambda *columns: jnp.concatenate(columns), real, imagined)


def progress(state: Any) -> jax.Array:
    """The fraction of the policy phase that is done, 0 to 1."""
    return state.policy_step / state.updates


def advance(state: Any, learner: Learner) -> Any:
    """The state after an update of the policy phase."""
    return state.replace(step=state.step + 1, policy_step=state.policy_step + 1, learner=learner)


policy = soft_actor_critic.policy
