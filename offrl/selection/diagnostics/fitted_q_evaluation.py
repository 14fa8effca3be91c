"""Fitted Q evaluation (FQE; Paine et al. 2020, Voloshin et al. 2019) with HEADS independent networks.

`fqe` is the mean of the heads' values of the initial states; `fqe_lcb` is that less their standard deviation.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offrl.learning.updates import adam_init, adam_step
from offrl.selection.diagnostics import keeping
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, ratio, spread
from offrl.selection.diagnostics.behaviour_value import behaviour
from offrl.selection.diagnostics.features import standardiser
from offrl.selection.diagnostics.fitting import HEADS, NOT_FINITE, Transitions, batches, follow, head_value, steps_of
from offrl.selection.pool import RESAMPLES, Pool
from offrl.statistics import kendall

LEARNING_RATE = 3e-4
"""Falls linearly to 0. With 1e-3 Kendall tau between the heads' rankings was 0.3 in place of 0.6
(12 trained policies on one data set, minari trpo-hopper-mixed; no return was looked at)."""
UPDATES = 5_000
AVERAGED = 10
"""Values are averaged over so many iterates, evenly spread over the last fifth of the updates."""
LEAST_STABILITY = 0.5
LEAST_POLICIES = 4
"""With fewer policies the rank correlation of heads says nothing."""


@partial(jax.jit, static_argnames="updates")
def fitted_values(
    key: jax.Array, params: Any, data: Transitions, initial_inputs: jax.Array, updates: int = UPDATES
) -> jax.Array:
    """Q of one policy by FQE, from given parameters of the heads: values of `initial_inputs`, [heads, n].

    y = clip(r + gamma Q_target(s', pi(s'))); the mean squared error of Q(s, a) to y is descended by Adam.
    """

    def loss(params: Any, rows: jax.Array, targets: jax.Array) -> tuple[jax.Array, dict]:
        return ((head_value(params, data.inputs[rows]) - targets) ** 2).mean(), {}

    def head_update(carry: Any, rows: jax.Array, rate: jax.Array) -> tuple[Any, Any, Any]:
        params, target, optimizer = carry
        y = data.target(rows, head_value(target, data.next_inputs[rows]))
        params, optimizer, _ = adam_step(lambda p: loss(p, rows, y), params, optimizer, rate)
        return params, follow(target, params), optimizer

    def update(carry: Any, now: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        rows = batches(now[0], len(data.rewards))
        return jax.vmap(head_update, (0, 0, None))(carry, rows, now[1]), None

    def block(carry: Any, steps: Any) -> tuple[Any, jax.Array]:
        carry, _ = jax.lax.scan(update, carry, steps)
        return carry, jax.vmap(head_value, (0, None))(carry[0], initial_inputs)

    last = updates // (5 * AVERAGED) * AVERAGED
    steps = steps_of(key, updates, LEARNING_RATE)
    carry = (params, params, jax.vmap(adam_init)(params))
    carry, _ = jax.lax.scan(update, carry, jax.tree.map(lambda x: x[:-last], steps))
    _, iterates = jax.lax.scan(block, carry, jax.tree.map(lambda x: x[-last:].reshape(AVERAGED, -1), steps))
    return data.center + data.scale * iterates.mean(0)


def measure_fqe_heads(pool: Pool) -> dict[str, Scores]:
    """The mean value of the initial states, by head.

    All candidates start from the same networks, those of the behaviour's Q, and see the same batches (common random
    numbers): two equal policies get equal values, and what differs is due to the policies.
    """
    rows, inputs, start = pool.train, standardiser(pool), behaviour(pool)
    key = jax.random.key(pool.seed + 1)
    values = np.full((HEADS, len(pool), pool.dataset.episodes), np.nan)
    reasons = [""] * len(pool)
    initial, following = pool.actions("initial"), pool.actions("train_next")
    for i in range(len(pool)):
        if not (np.isfinite(initial[i]).all() and np.isfinite(following[i]).all()):
            reasons[i] = NOT_FINITE
            continue
        data = start.data._replace(next_inputs=jnp.asarray(inputs(rows.next_observations, following[i])))
        values[:, i] = fitted_values(key, start.q, data, inputs(pool.initial_observations, initial[i]))
    result = {}
    for head in range(HEADS):
        found = ratio(pool, values[head], np.ones(pool.dataset.episodes))
        result[f"fqe_head_{head + 1}"] = Scores(found.value, found.standard_error, found.replicates, reasons)
    return result


def measure_fqe(pool: Pool) -> dict[str, Scores]:
    """From the heads' values, which are kept with the runs: mean, spread, bound, and whether the heads agree."""
    table, replicates = keeping.run(pool, MEASUREMENTS[:1])
    heads = [table[table.diagnostic == name] for name in FQE_HEADS]
    value = np.stack([head.value.to_numpy() for head in heads])
    drawn = np.stack([replicates.get(name, np.full((len(pool), RESAMPLES), np.nan)) for name in FQE_HEADS])
    healthy = np.array([not candidate.diverged for candidate in pool.candidates])
    return combine_heads(value, drawn, healthy, heads[0].reason.tolist(), pool.seed)


def combine_heads(
    value: np.ndarray, replicates: np.ndarray, healthy: np.ndarray, reasons: list[str], seed: int
) -> dict[str, Scores]:
    """value [heads, candidates], replicates [heads, candidates, RESAMPLES], healthy [candidates]: what may be ranked.

    Heads are resampled with the episodes, the same heads for all candidates: the standard error holds both.
    """
    between = value.std(0, ddof=1)
    draws = np.random.default_rng(seed).integers(0, HEADS, (RESAMPLES, HEADS))
    resampled = np.stack([replicates[drawn, :, b].mean(0) for b, drawn in enumerate(draws)], 1)
    error = spread(resampled)
    mean = value.mean(0)
    stability, reason = head_agreement(value[:, healthy & np.isfinite(mean)])
    stable = Scores(np.full(len(mean), stability), np.full(len(mean), np.nan), None, [reason] * len(mean))
    if stability < LEAST_STABILITY:
        refusal = f"the heads rank the policies differently (Kendall tau {stability:.2f} < {LEAST_STABILITY})"
        nothing = np.full(len(mean), np.nan)
        refused = Scores(nothing, nothing, None, [r or refusal for r in reasons])
        return {"fqe": refused, "fqe_sd": refused, "fqe_lcb": refused, "fqe_stability": stable}
    return {
        "fqe": Scores(mean, error, resampled.astype(np.float32), reasons),
        "fqe_sd": Scores(between, np.full(len(mean), np.nan), None, reasons),
        "fqe_lcb": Scores(mean - between, error, (resampled - between[:, None]).astype(np.float32), reasons),
        "fqe_stability": stable,
    }


def head_agreement(value: np.ndarray) -> tuple[float, str]:
    """Mean Kendall tau between the rankings of two heads, and why there is none; value [heads, candidates]."""
    if value.shape[1] < LEAST_POLICIES:
        return np.nan, f"{value.shape[1]} policies are too few to compare rankings; it takes {LEAST_POLICIES}"
    taus = [kendall(value[a], value[b]) for a, b in combinations(range(len(value)), 2)]
    return (float(np.mean(taus)), "") if np.isfinite(taus).all() else (np.nan, "all policies have the same value")


FQE_HEADS = tuple(f"fqe_head_{head + 1}" for head in range(HEADS))

MEASUREMENTS = (
    Measurement(
        "fqe_heads",
        tuple(Diagnostic(name, "flag", "value of the initial states by one head of FQE") for name in FQE_HEADS),
        measure_fqe_heads,
    ),
    Measurement(
        "fqe",
        (
            Diagnostic("fqe", "high", "value of the initial states by fitted Q evaluation, mean of the heads"),
            Diagnostic("fqe_sd", "low", "standard deviation of that over the heads"),
            Diagnostic("fqe_lcb", "high", "mean less standard deviation over the heads"),
            Diagnostic("fqe_stability", "flag", "mean Kendall tau between two heads' rankings of the policies"),
        ),
        measure_fqe,
        per_policy=False,
        reads=("fqe_heads",),
    ),
)
