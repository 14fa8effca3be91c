"""Doubly robust off-policy evaluation: importance weights on the errors of a fitted Q, added to its value.

Refused where importance sampling is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from offrl.selection.diagnostics import fitted_q_evaluation
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, quotients
from offrl.selection.diagnostics.behaviour_value import behaviour
from offrl.selection.diagnostics.features import standardiser
from offrl.selection.diagnostics.fitting import DISCOUNT
from offrl.selection.diagnostics.importance_sampling import (
    Estimate,
    LoggedEpisodes,
    importance_weighted,
    weighted_importance_sampling,
)
from offrl.selection.pool import Pool


def doubly_robust(
    log_ratios: np.ndarray,
    rewards: np.ndarray,
    q: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
    terminated: np.ndarray,
    discount: float,
    weights: np.ndarray | None = None,
) -> Estimate:
    """Weighted, per decision (Thomas and Brunskill 2016): the critic's value of first states, and its errors.

    V(s_0) + sum_t discount^t E_w[r_t + discount V(s_t+1) - Q(s_t, a_t)], with V = 0 after a termination: right where
    the critic is right whatever the ratios, and where the ratios are right whatever the critic. After a truncation the
    critic's value is all there is. (google-research/policy_eval has no mask for terminations in this place.)

    Args:
        q: [episodes, steps], the critic at the logged actions.
        v: [episodes, steps + 1], its mean over the target's actions; also after the last step.
        log_ratios, rewards, lengths, terminated, weights: as in `weighted_importance_sampling`.
    """
    ended = terminated[:, None] & (np.arange(1, v.shape[1]) == lengths[:, None])
    errors = rewards + discount * np.where(ended, 0.0, v[:, 1:]) - q
    found = weighted_importance_sampling(log_ratios, errors, lengths, terminated, discount, weights)
    weights = np.ones((1, len(rewards))) if weights is None else weights
    return Estimate(quotients(weights @ v[:, 0], weights.sum(1)) + found.value, found.effective_sample_size)


def measure_doubly_robust(pool: Pool) -> dict[str, Scores]:
    """Of the policy that `measure_importance_sampling` values, with a Q fitted to it: the mean of FQE's heads on the
    training rows, with the data's noise on the next actions. V is the mean over a noise and its negative. Discrete
    actions have no noise.
    """
    rows, inputs = pool.train, standardiser(pool)

    def estimate(logged: LoggedEpisodes, i: int, log_ratios: np.ndarray, weights: np.ndarray) -> Estimate:
        random = np.random.default_rng(pool.seed)  # the same noise for all candidates
        start = behaviour(pool)

        def noise(actions: np.ndarray) -> np.ndarray:
            return logged.deviations * random.standard_normal(actions.shape)

        following = pool.actions("train_next")[i]
        following = np.clip(following + noise(following), -1, 1)
        data = start.data._replace(next_inputs=jnp.asarray(inputs(rows.next_observations, following)))
        actions = pool.act(pool.candidates[i], logged.states)
        drawn = noise(actions)
        queries = [
            inputs(logged.observations, logged.actions),
            inputs(logged.states, np.clip(actions + drawn, -1, 1)),
            inputs(logged.states, np.clip(actions - drawn, -1, 1)),
        ]
        values = fitted_q_evaluation.fitted_values(
            jax.random.key(pool.seed + 1), start.q, data, np.concatenate(queries)
        ).mean(0)
        at_rows, *at_states = np.split(np.asarray(values, np.float64), np.cumsum([len(q) for q in queries[:-1]]))
        episodes, steps = logged.rewards.shape
        q, v = np.zeros((episodes, steps)), np.zeros((episodes, steps + 1))
        q[logged.inside] = at_rows
        v[np.arange(steps + 1) <= logged.lengths[:, None]] = sum(at_states) / 2
        known = logged.lengths - logged.lost  # a step that led nobody knows where has no error
        return doubly_robust(log_ratios, logged.rewards, q, v, known, logged.terminated, DISCOUNT, weights)

    return {"doubly_robust": importance_weighted(pool, estimate)[0]}


MEASUREMENTS = (
    Measurement(
        "doubly_robust",
        (Diagnostic("doubly_robust", "high", "weighted doubly robust value, with a critic by FQE"),),
        measure_doubly_robust,
        on_request=True,  # FQE once more for every candidate that it does not refuse
    ),
)
