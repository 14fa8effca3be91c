"""The behaviour policy's own values, and how much better than it a policy's actions are in one step.

behaviour_advantage: E[Q_beta(s, pi(s)) - V_beta(s)], which never bootstraps through the candidate's actions.
Its `_lcb` is the estimate less one standard error over resampled episodes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offrl.data.dataset import Dataset
from offrl.learning.updates import adam_init, adam_step
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, not_applicable, over_episodes
from offrl.selection.diagnostics.features import standardiser
from offrl.selection.diagnostics.fitting import (
    DISCOUNT,
    NO_HELD_OUT,
    NOT_FINITE,
    Transitions,
    batches,
    follow,
    head_value,
    init_heads,
    steps_of,
    value_bounds,
    values_of,
)
from offrl.selection.pool import Pool, in_chunks

LEARNING_RATE = 1e-3
"""Of the behaviour's values; it falls linearly to 0."""
BEHAVIOUR_UPDATES = 10_000


@partial(jax.jit, static_argnames="updates")
def fit_behaviour(
    key: jax.Array, q: Any, v: Any, data: Transitions, states: jax.Array, updates: int = BEHAVIOUR_UPDATES
) -> tuple[Any, Any]:
    """Q and V of the behaviour policy from its own transitions: IQL with expectile 0.5, whose V is the mean over a.

    V(s) -> Q_target(s, a), Q(s, a) -> clip(r + gamma V_target(s')); returned are the targets, which change slowly.
    """

    def loss(params: Any, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, dict]:
        return ((head_value(params, inputs) - targets) ** 2).mean(), {}

    def head_update(carry: Any, rows: jax.Array, rate: jax.Array) -> Any:
        q, q_target, q_optimizer, v, v_target, v_optimizer = carry
        inputs, seen = data.inputs[rows], states[rows]
        y = data.target(rows, head_value(v_target, data.next_inputs[rows]))
        v_y = head_value(q_target, inputs)
        q, q_optimizer, _ = adam_step(lambda p: loss(p, inputs, y), q, q_optimizer, rate)
        v, v_optimizer, _ = adam_step(lambda p: loss(p, seen, v_y), v, v_optimizer, rate)
        return q, follow(q_target, q), q_optimizer, v, follow(v_target, v), v_optimizer

    def update(carry: Any, now: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        return jax.vmap(head_update, (0, 0, None))(carry, batches(now[0], len(data.rewards)), now[1]), None

    init = jax.vmap(adam_init)
    carry, _ = jax.lax.scan(update, (q, q, init(q), v, v, init(v)), steps_of(key, updates, LEARNING_RATE))
    return carry[1], carry[4]


class Behaviour(NamedTuple):
    """Values of the policy that made the data."""

    data: Transitions
    q: Any
    v: Any


def behaviour(pool: Pool) -> Behaviour:
    """Fitted once to the training rows."""
    return pool.once("behaviour values", lambda: _behaviour(pool))


def _behaviour(pool: Pool) -> Behaviour:
    rows, inputs = pool.train, standardiser(pool)
    low, high = value_bounds(rows.rewards, rows.terminations, DISCOUNT)
    returns = continued_returns(pool.dataset)[rows.steps]
    data = Transitions(
        inputs=jnp.asarray(inputs(rows.observations, rows.actions)),
        next_inputs=jnp.asarray(inputs(rows.next_observations)),
        rewards=jnp.asarray(rows.rewards),
        discounts=jnp.asarray(DISCOUNT * (1 - rows.terminations)),
        low=jnp.asarray(low),
        high=jnp.asarray(high),
        center=jnp.asarray(returns.mean()),
        scale=jnp.asarray(max(float(returns.std()), 1e-6)),
    )
    states = jnp.asarray(inputs(rows.observations))
    q_key, v_key, key = jax.random.split(jax.random.key(pool.seed), 3)
    q, v = init_heads(q_key, data.inputs.shape[1]), init_heads(v_key, states.shape[1])
    return Behaviour(data, *fit_behaviour(key, q, v, data, states))


def continued_returns(dataset: Dataset) -> np.ndarray:
    """Discounted returns of the steps; what a truncated episode misses is made up by the mean reward, for ever."""
    tail = dataset.rewards.mean() / (1 - DISCOUNT) * ~dataset.terminations[dataset.ends]
    remaining = dataset.lengths[dataset.episode_of_step] - dataset.timesteps
    return dataset.returns_to_go(DISCOUNT) + DISCOUNT**remaining * tail[dataset.episode_of_step]


def measure_behaviour_advantage(pool: Pool) -> dict[str, Scores]:
    """E[Q_beta(s, pi(s)) - V_beta(s)] over held-out states, the mean of the heads."""
    rows = pool.validation
    if rows is None:
        nothing = not_applicable(pool, NO_HELD_OUT)
        return {"behaviour_advantage": nothing, "behaviour_advantage_lcb": nothing}
    inputs, fit = standardiser(pool), behaviour(pool)
    scale = float(fit.data.scale)

    def heads_mean(params: Any, inputs: np.ndarray) -> np.ndarray:
        return in_chunks(lambda x: values_of(params, x).mean(0), inputs)

    v = pool.once("behaviour V of held-out rows", lambda: heads_mean(fit.v, inputs(rows.observations)))
    actions = pool.actions("validation")
    finite = np.isfinite(actions).all((1, 2))  # checked here and not in the values: a compiled ReLU makes 0 of nan
    advantages = np.full(actions.shape[:2], np.nan)
    for i in np.flatnonzero(finite):
        advantages[i] = scale * (heads_mean(fit.q, inputs(rows.observations, actions[i])) - v)
    found = over_episodes(pool, rows, advantages)
    found.reasons = ["" if ok else NOT_FINITE for ok in finite]
    assert found.replicates is not None
    lcb = found.replicates - found.standard_error[:, None].astype(np.float32)
    return {
        "behaviour_advantage": found,
        "behaviour_advantage_lcb": Scores(found.value - found.standard_error, found.standard_error, lcb, found.reasons),
    }


MEASUREMENTS = (
    Measurement(
        "behaviour_advantage",
        (
            Diagnostic(
                "behaviour_advantage", "high", "advantage over the behaviour policy, by its own value, in one step"
            ),
            Diagnostic("behaviour_advantage_lcb", "high", "that less one standard error over episodes"),
        ),
        measure_behaviour_advantage,
    ),
)
