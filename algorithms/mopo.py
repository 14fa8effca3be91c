"""MOPO: model-based offline policy optimization (Yu et al. 2020, arXiv:2005.13239).

Soft actor-critic on short rollouts in a learned model, with rewards lowered by the model's uncertainty:
r - lambda u(s, a) (equation 3 of the paper, algorithm 2). The published u is the largest norm of the ensemble members'
standard deviations, `max_aleatoric`; the other penalties are those of Lu et al. 2022 (arXiv:2110.04135), who found that
choice of penalty, ensemble size, horizon and weight matter more than MOPO's own setting suggests. The penalties' scales
differ: a weight tuned for one is wrong for another.

Defaults are those of OfflineRL-Kit, with its most common rollout length, 5. Deviations: terminations are learned, while
all published code is given the task's rule (here by `terminations=assisted:hopper`); the cosine of the step size falls
with every update instead of every 1,000; and those of `learning.models`. unifloral's rollouts continue after predicted
terminations; here they stop. Penalty 0 with real ratio 1 is soft actor-critic on the data.
"""

from __future__ import annotations

import flax
import jax

from offrl.algorithm import Metrics, Phase, option
from offrl.data.transforms import Preprocessing
from offrl.learning import soft_actor_critic
from offrl.learning.model_based import (
    ModelBasedConfig,
    State,
    advance,
    dynamics_phase,
    init,
    mixed_batch,
    policy,
    policy_act,
    prepare,
    progress,
    roll_out,
)
from offrl.learning.models import dynamics
from offrl.learning.models.dynamics import ModelData
from offrl.learning.models.penalties import PENALTIES
from offrl.learning.models.rollouts import Model, Steps

__all__ = ["Config", "init", "phases", "policy", "prepare"]


@flax.struct.dataclass
class Config(ModelBasedConfig):
    penalty: str = option("max_aleatoric", "u: the model's uncertainty", static=True, choices=tuple(PENALTIES))
    penalty_weight: float = option(2.5, "lambda: rewards are lowered by lambda * u")
    preprocessing: Preprocessing = option(Preprocessing(), "steps applied to the data", static=True)


def penalised_model(state: State, config: Config) -> Model:
    def step(key: jax.Array, observations: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        key_step, key_penalty = jax.random.split(key)
        predicted = dynamics.step(key_step, state.ensemble, observations, actions, config)
        penalty = PENALTIES[config.penalty](key_penalty, predicted.mean, predicted.log_var)
        rewards = predicted.rewards - config.penalty_weight * penalty
        return predicted.next_observations, rewards, predicted.terminations

    return step


def update_batch(key: jax.Array, state: State, batch: Steps, config: Config) -> tuple[State, Metrics]:
    """One update on a given batch."""
    learner, metrics = soft_actor_critic.update(key, state.learner, batch, progress(state), config)
    return advance(state, learner), {**metrics, "batch_reward": batch.rewards.mean()}


def update(key: jax.Array, state: State, dataset: ModelData, config: Config) -> tuple[State, Metrics]:
    key_rollout, key_batch, key_update = jax.random.split(key, 3)
    state = roll_out(key_rollout, state, dataset, config, policy_act(state, config), penalised_model(state, config))
    return update_batch(key_update, state, mixed_batch(key_batch, state, dataset, config), config)


def phases(config: Config) -> tuple[Phase, ...]:
    return dynamics_phase(config), Phase("policy", update)
