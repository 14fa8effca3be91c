"""Off-policy evaluation: the value of each policy, estimated from the data.

All candidates are valued in the same units: raw rewards, discounted by DISCOUNT, whatever their own critics use.
A deployed policy is deterministic (`Policy.act`), and so is what is valued here.

- fqe: fitted Q evaluation (Paine et al. 2020; Voloshin et al. 2019) with HEADS independent networks.
- lstd: LSTD-Q on random Fourier features: closed form, no training noise.
- importance_sampling: weighted, per decision; nearly always refused on long episodes, and then it says so.
- doubly_robust: the same weights on the errors of a fitted Q, added to its value; refused as importance sampling is.
- behaviour_advantage: one step from the behaviour policy: E[Q_beta(s, pi(s)) - V_beta(s)], which never bootstraps
  through the candidate's actions.

A `_lcb` is the estimate less one standard deviation of it: over the heads (fqe), or over resampled episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offrl.data.dataset import Dataset
from offrl.data.transforms import actions_to_unit_box
from offrl.learning.networks import MLP
from offrl.learning.updates import adam_init, adam_step
from offrl.selection.diagnostics import keeping
from offrl.selection.diagnostics.base import (
    Diagnostic,
    Measurement,
    Scores,
    not_applicable,
    over_episodes,
    quotients,
    ratio,
    spread,
    without_error,
)
from offrl.selection.diagnostics.features import random_features, standardiser
from offrl.selection.pool import RESAMPLES, Pool, in_chunks
from offrl.statistics import kendall

DISCOUNT = 0.99
HEADS = 3
HIDDEN_DIMS = (64, 64)
BATCH_SIZE = 128
LEARNING_RATE = 1e-3
"""Of the behaviour's values; like the next, it falls linearly to 0."""
FQE_LEARNING_RATE = 3e-4
"""With 1e-3 Kendall tau between the heads' rankings was 0.3 in place of 0.6
(12 trained policies on one data set, minari trpo-hopper-mixed; no return was looked at)."""
TARGET_RATE = 0.05
"""Share of the network that its target takes over per update. Ten times the published 0.005, for 5,000 updates in
place of a million. An error that is the same everywhere falls by exp(-TARGET_RATE (1 - DISCOUNT)) per update: 8 % of
the distance from the behaviour's value to the policy's is left at the end. That is wanted: at 0.1 and 0.2 the heads
went further apart than the policies (Kendall tau between heads -0.05 and -0.1, in place of 0.6)."""
BEHAVIOUR_UPDATES = 10_000
FQE_UPDATES = 5_000
AVERAGED = 10
"""Values are averaged over so many iterates, evenly spread over the last fifth of the updates."""
LEAST_STABILITY = 0.5
LEAST_POLICIES = 4
"""With fewer policies the rank correlation of heads says nothing."""
RIDGE = 1e-4
"""Of LSTD-Q, in units of the mean squared feature."""
ESS_STEP = 50
LEAST_ESS = 5.0
NOT_FINITE = "its actions are not finite"
NO_HELD_OUT = "no episodes are held out (validation_fraction=0)"


# Fitting Q


class Transitions(NamedTuple):
    """What a Q function is fitted to; rewards in their own units, values in the networks as (Q - center) / scale."""

    inputs: jax.Array
    next_inputs: jax.Array
    """Of the next observation and the action of the policy that is valued; for behaviour values the observation."""
    rewards: jax.Array
    discounts: jax.Array
    """[n]: 0 where the episode terminated, else the discount (also where it was truncated)."""
    low: jax.Array
    high: jax.Array
    """Targets are clipped to these."""
    center: jax.Array
    scale: jax.Array

    def target(self, rows: jax.Array, next_values: jax.Array) -> jax.Array:
        returns = self.rewards[rows] + self.discounts[rows] * (self.center + self.scale * next_values)
        return (jnp.clip(returns, self.low, self.high) - self.center) / self.scale


def value_bounds(rewards: np.ndarray, terminations: np.ndarray, discount: float) -> tuple[float, float]:
    """The least and greatest value that any policy can have if no reward lies outside those seen.

    Raises:
        ValueError: a discount of 1 or more, with which there is no bound.
    """
    if not 0 <= discount < 1:
        raise ValueError(f"discount {discount}: fitted values need one below 1")
    low, high = float(rewards.min()), float(rewards.max())
    if terminations.any():  # an episode can end here, or go on for ever
        return min(low, low / (1 - discount)), max(high, high / (1 - discount))
    return low / (1 - discount), high / (1 - discount)


def _network() -> MLP:
    return MLP(HIDDEN_DIMS, 1, layer_norm=True)


def _value(params: Any, inputs: jax.Array) -> jax.Array:
    values: Any = _network().apply(params, inputs)
    return values.squeeze(-1)


values_of = jax.jit(jax.vmap(_value, (0, None)))
"""(parameters of all heads, inputs [n, dim]) -> [heads, n], standardised."""


def init_heads(key: jax.Array, dim: int) -> Any:
    return jax.vmap(lambda key: _network().init(key, jnp.zeros((1, dim))))(jax.random.split(key, HEADS))


def _batches(key: jax.Array, n: int) -> jax.Array:
    """Every head draws its own rows, [heads, batch]."""
    return jax.random.randint(key, (HEADS, BATCH_SIZE), 0, n)


@partial(jax.jit, static_argnames="updates")
def fitted_q_evaluation(
    key: jax.Array, params: Any, data: Transitions, initial_inputs: jax.Array, updates: int = FQE_UPDATES
) -> jax.Array:
    """Q of one policy by FQE, from given parameters of the heads: values of `initial_inputs`, [heads, n].

    y = clip(r + gamma Q_target(s', pi(s'))); the mean squared error of Q(s, a) to y is descended by Adam.
    """

    def loss(params: Any, rows: jax.Array, targets: jax.Array) -> tuple[jax.Array, dict]:
        return ((_value(params, data.inputs[rows]) - targets) ** 2).mean(), {}

    def head_update(carry: Any, rows: jax.Array, rate: jax.Array) -> tuple[Any, Any, Any]:
        params, target, optimizer = carry
        y = data.target(rows, _value(target, data.next_inputs[rows]))
        params, optimizer, _ = adam_step(lambda p: loss(p, rows, y), params, optimizer, rate)
        return params, _follow(target, params), optimizer

    def update(carry: Any, now: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        rows = _batches(now[0], len(data.rewards))
        return jax.vmap(head_update, (0, 0, None))(carry, rows, now[1]), None

    def block(carry: Any, steps: Any) -> tuple[Any, jax.Array]:
        carry, _ = jax.lax.scan(update, carry, steps)
        return carry, jax.vmap(_value, (0, None))(carry[0], initial_inputs)

    last = updates // (5 * AVERAGED) * AVERAGED
    steps = _steps(key, updates, FQE_LEARNING_RATE)
    carry = (params, params, jax.vmap(adam_init)(params))
    carry, _ = jax.lax.scan(update, carry, jax.tree.map(lambda x: x[:-last], steps))
    _, iterates = jax.lax.scan(block, carry, jax.tree.map(lambda x: x[-last:].reshape(AVERAGED, -1), steps))
    return data.center + data.scale * iterates.mean(0)


def _steps(key: jax.Array, updates: int, learning_rate: float) -> tuple[jax.Array, jax.Array]:
    """A key and a learning rate, which falls linearly to 0, for every update."""
    return jax.random.split(key, updates), learning_rate * jnp.linspace(1, 0, updates, endpoint=False)


def _follow(target: Any, params: Any) -> Any:
    return jax.tree.map(lambda t, p: t + TARGET_RATE * (p - t), target, params)


@partial(jax.jit, static_argnames="updates")
def fit_behaviour(
    key: jax.Array, q: Any, v: Any, data: Transitions, states: jax.Array, updates: int = BEHAVIOUR_UPDATES
) -> tuple[Any, Any]:
    """Q and V of the behaviour policy from its own transitions: IQL with expectile 0.5, whose V is the mean over a.

    V(s) -> Q_target(s, a), Q(s, a) -> clip(r + gamma V_target(s')); returned are the targets, which change slowly.
    """

    def loss(params: Any, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, dict]:
        return ((_value(params, inputs) - targets) ** 2).mean(), {}

    def head_update(carry: Any, rows: jax.Array, rate: jax.Array) -> Any:
        q, q_target, q_optimizer, v, v_target, v_optimizer = carry
        inputs, seen = data.inputs[rows], states[rows]
        y = data.target(rows, _value(v_target, data.next_inputs[rows]))
        v_y = _value(q_target, inputs)
        q, q_optimizer, _ = adam_step(lambda p: loss(p, inputs, y), q, q_optimizer, rate)
        v, v_optimizer, _ = adam_step(lambda p: loss(p, seen, v_y), v, v_optimizer, rate)
        return q, _follow(q_target, q), q_optimizer, v, _follow(v_target, v), v_optimizer

    def update(carry: Any, now: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        return jax.vmap(head_update, (0, 0, None))(carry, _batches(now[0], len(data.rewards)), now[1]), None

    init = jax.vmap(adam_init)
    carry, _ = jax.lax.scan(update, (q, q, init(q), v, v, init(v)), _steps(key, updates, LEARNING_RATE))
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


# E1 fitted Q evaluation


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
        values[:, i] = fitted_q_evaluation(key, start.q, data, inputs(pool.initial_observations, initial[i]))
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


# E2 LSTD-Q


class Lstd(NamedTuple):
    theta: np.ndarray
    inverse: np.ndarray
    penalty: np.ndarray
    """[features]: ridge of each feature; none on the constant, so that adding to all rewards adds to all values."""


def lstd_q(
    features: np.ndarray, next_features: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, ridge: float = RIDGE
) -> Lstd:
    """Q(s, a) = features . theta with theta = A^-1 b, A = Phi^T (Phi - discount Phi') / n + penalty, b = Phi^T r / n.

    The last feature is the constant. Features may be float32; what is solved is float64.
    """
    n, d = features.shape
    penalty = np.full(d, ridge * float(np.square(features[:, :-1]).mean()))
    penalty[-1] = 0.0
    a = (features.T @ (features - discounts[:, None] * next_features)).astype(np.float64) / n + np.diag(penalty)
    inverse = np.linalg.pinv(a)
    return Lstd(inverse @ (features.T @ rewards).astype(np.float64) / n, inverse, penalty)


def measure_lstd(pool: Pool) -> dict[str, Scores]:
    """With errors by the episode bootstrap through the influence of each episode on theta, to first order."""
    rows, inputs, features = pool.train, standardiser(pool), random_features(pool)
    low, high = value_bounds(rows.rewards, rows.terminations, DISCOUNT)
    discounts = (DISCOUNT * (1 - rows.terminations)).astype(np.float32)
    phi = pool.once("features of training rows", lambda: features(inputs(rows.observations, rows.actions)))
    weights = pool.episode_weights.astype(np.float64)
    counts = np.bincount(rows.episodes, minlength=pool.dataset.episodes)
    initial, following = pool.actions("initial"), pool.actions("train_next")
    value, error = np.full((2, len(pool)), np.nan)
    replicates, reasons = np.full((len(pool), RESAMPLES), np.nan, np.float32), [""] * len(pool)
    for i in range(len(pool)):
        if not (np.isfinite(initial[i]).all() and np.isfinite(following[i]).all()):
            reasons[i] = NOT_FINITE
            continue
        next_phi = features(inputs(rows.next_observations, following[i]))
        phi_0 = features(inputs(pool.initial_observations, initial[i])).astype(np.float64)
        fit = lstd_q(phi, next_phi, rows.rewards, discounts)
        found = float((phi_0 @ fit.theta).mean())
        if not low <= found <= high:
            reasons[i] = f"the solution {found:.4g} is outside what rewards allow, {low:.4g} to {high:.4g}"
            continue
        residuals = rows.rewards + (discounts[:, None] * next_phi - phi) @ fit.theta.astype(np.float32)
        sums = _sums_by_episode(phi * residuals[:, None], rows.episodes, pool.dataset.episodes)
        moments = quotients(weights @ sums, (weights @ counts)[:, None])
        thetas = fit.theta + (moments - fit.penalty * fit.theta) @ fit.inverse.T
        value[i] = found
        replicates[i] = ((weights @ phi_0 / weights.sum(1, keepdims=True)) * thetas).sum(1)
        error[i] = spread(replicates[i])
    lcb = (replicates - error[:, None]).astype(np.float32)
    return {
        "lstd": Scores(value, error, replicates, reasons),
        "lstd_lcb": Scores(value - error, error, lcb, reasons),
    }


def _sums_by_episode(values: np.ndarray, episodes: np.ndarray, count: int) -> np.ndarray:
    """values [n, d] summed over the rows of each episode, float64 [count, d]; rows are in the order of episodes."""
    first = np.flatnonzero(np.diff(episodes, prepend=-1))
    sums = np.zeros((count, values.shape[1]))
    sums[episodes[first]] = np.add.reduceat(values, first, dtype=np.float64)
    return sums


# E8 behaviour advantage


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
    finite = np.isfinite(actions).all((1, 2))  # asked of the actions: a compiled ReLU makes 0 of nan
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


# E4 importance sampling


@partial(jax.jit, static_argnames="updates")
def fit_clone(key: jax.Array, params: Any, states: jax.Array, actions: jax.Array, updates: int = 5_000) -> Any:
    """The mean action at a state by least squares; returned is the average of the last iterates."""

    def loss(params: Any, rows: jax.Array) -> tuple[jax.Array, dict]:
        means: Any = _clone(actions.shape[1]).apply(params, states[rows])
        return ((means - actions[rows]) ** 2).mean(), {}

    def update(carry: Any, key: jax.Array) -> tuple[Any, None]:
        params, optimizer, average = carry
        rows = jax.random.randint(key, (BATCH_SIZE,), 0, len(states))
        params, optimizer, _ = adam_step(lambda p: loss(p, rows), params, optimizer, LEARNING_RATE)
        return (params, optimizer, _follow(average, params)), None

    carry, _ = jax.lax.scan(update, (params, adam_init(params), params), jax.random.split(key, updates))
    return carry[2]


def _clone(action_dim: int) -> MLP:
    return MLP(HIDDEN_DIMS, action_dim, layer_norm=True)


class Estimate(NamedTuple):
    value: np.ndarray
    """[resamples]."""
    effective_sample_size: np.ndarray
    """[resamples, steps]: of the episodes at each step."""


def weighted_importance_sampling(
    log_ratios: np.ndarray,
    rewards: np.ndarray,
    lengths: np.ndarray,
    terminated: np.ndarray,
    discount: float,
    weights: np.ndarray | None = None,
) -> Estimate:
    """Per-decision, self-normalised at every step over the episodes whose reward there is known.

    A terminated episode goes on with reward 0 and the weight it had; a truncated one leaves, since nobody knows what
    would have followed. (google-research/policy_eval normalises over the episodes still alive, which forgets that the
    others have died.)

    Args:
        log_ratios: [episodes, steps], log of target over behaviour density of each action; what is beyond the end of
            an episode is not read.
        terminated: bool [episodes], whether the episode truly ended.
        weights: [resamples, episodes], how often each episode counts; None: once each.
    """
    steps = np.arange(rewards.shape[1])
    inside = steps < lengths[:, None]
    total = np.where(inside, log_ratios, 0.0).cumsum(1)
    known = inside | terminated[:, None]
    rewards = np.where(inside, rewards, 0.0)
    best = np.where(known, total, -np.inf).max(0, keepdims=True)
    ratios = np.where(known, np.exp(total - np.where(np.isfinite(best), best, 0.0)), 0.0)
    weights = np.ones((1, len(rewards))) if weights is None else weights
    mass = weights @ ratios
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(mass > 0, (weights @ (ratios * rewards)) / mass, 0.0)
        effective = np.where(mass > 0, mass**2 / (weights @ ratios**2), 0.0)
    value = np.where(weights.any(1), means @ discount**steps, np.nan)  # of no episode at all nothing is known
    return Estimate(value, effective)


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


def measure_importance_sampling(pool: Pool) -> dict[str, Scores]:
    """What is valued: the candidate's action with the data's own noise around it.

    A deterministic policy has no density, so no ratio to the behaviour's. Both densities here are Gaussians that differ
    in their means alone: the candidate's action, and a clone's fitted to the training rows. Their standard deviations
    are those of the held-out actions about the clone. The clone itself has ratio 1, and gets the mean discounted return
    of the held-out episodes. Where the data have several modes the Gaussian is wrong, and no sample size tells.
    """

    def estimate(logged: LoggedEpisodes, i: int, log_ratios: np.ndarray, weights: np.ndarray) -> Estimate:
        return weighted_importance_sampling(
            log_ratios, logged.rewards, logged.lengths, logged.terminated, DISCOUNT, weights
        )

    value, effective = _importance_weighted(pool, estimate)
    return {"importance_sampling": value, "effective_sample_size": effective}


def measure_doubly_robust(pool: Pool) -> dict[str, Scores]:
    """Of the policy that `measure_importance_sampling` values, with a Q fitted to it: the mean of FQE's heads on the
    training rows, with the data's noise on the next actions. V is the mean over a noise and its negative.
    """
    rows, inputs = pool.train, standardiser(pool)

    def estimate(logged: LoggedEpisodes, i: int, log_ratios: np.ndarray, weights: np.ndarray) -> Estimate:
        random, start = np.random.default_rng(pool.seed), behaviour(pool)  # the same noise for all candidates

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
        values = fitted_q_evaluation(jax.random.key(pool.seed + 1), start.q, data, np.concatenate(queries)).mean(0)
        at_rows, *at_states = np.split(np.asarray(values, np.float64), np.cumsum([len(q) for q in queries[:-1]]))
        episodes, steps = logged.rewards.shape
        q, v = np.zeros((episodes, steps)), np.zeros((episodes, steps + 1))
        q[logged.inside] = at_rows
        v[np.arange(steps + 1) <= logged.lengths[:, None]] = sum(at_states) / 2
        known = logged.lengths - logged.lost  # a step that led nobody knows where has no error
        return doubly_robust(log_ratios, logged.rewards, q, v, known, logged.terminated, DISCOUNT, weights)

    return {"doubly_robust": _importance_weighted(pool, estimate)[0]}


def _importance_weighted(
    pool: Pool, estimate: Callable[[LoggedEpisodes, int, np.ndarray, np.ndarray], Estimate]
) -> tuple[Scores, Scores]:
    """`estimate(logged, candidate, log_ratios, weights)` where enough episodes count; the effective sample size."""
    if pool.validation is None:
        nothing = not_applicable(pool, NO_HELD_OUT)
        return nothing, nothing
    logged = pool.once("held-out episodes with behaviour density", lambda: _logged_episodes(pool))
    weights = np.concatenate([np.ones((1, len(logged.episodes))), pool.episode_weights[:, logged.episodes]])
    at = min(ESS_STEP, logged.rewards.shape[1] - 1)
    value, error, effective = np.full((3, len(pool)), np.nan)
    replicates, reasons = np.full((len(pool), RESAMPLES), np.nan, np.float32), [""] * len(pool)
    ess_reasons = list(reasons)
    for i, candidate in enumerate(pool.candidates):
        actions = pool.act(candidate, logged.observations)
        if not np.isfinite(actions).all():
            reasons[i] = ess_reasons[i] = NOT_FINITE
            continue
        log_ratios = np.zeros(logged.rewards.shape)
        log_ratios[logged.inside] = _log_ratio(logged, actions)
        sizes = weighted_importance_sampling(
            log_ratios, logged.rewards, logged.lengths, logged.terminated, DISCOUNT
        ).effective_sample_size
        effective[i] = sizes[0, at]
        if effective[i] < LEAST_ESS:
            reasons[i] = f"effective sample size {effective[i]:.1f} of {len(logged.episodes)} episodes at step {at}"
            continue
        found = estimate(logged, i, log_ratios, weights).value
        value[i], replicates[i] = found[0], found[1:]
        error[i] = spread(found[1:])
    return Scores(value, error, replicates, reasons), without_error(effective, ess_reasons)


class LoggedEpisodes(NamedTuple):
    """Whole held-out episodes, and the behaviour's density at their rows."""

    episodes: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    lost: np.ndarray
    """bool [episodes]: truncated, and where the last step led is not known."""
    rewards: np.ndarray
    """[episodes, steps], 0 beyond the end."""
    observations: np.ndarray
    """[rows, dim], the episodes one after the other; so are the rest."""
    states: np.ndarray
    """[rows + episodes, dim]: also where each episode's last step led."""
    actions: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    """[action_dim]."""

    @property
    def inside(self) -> np.ndarray:
        """bool [episodes, steps]: before the end; the rows, in their order."""
        return np.arange(self.rewards.shape[1]) < self.lengths[:, None]


def _log_ratio(logged: LoggedEpisodes, actions: np.ndarray) -> np.ndarray:
    """log N(a; pi(s), sd) - log N(a; mean, sd) at the logged actions, [rows]."""
    behaviour = ((logged.actions - logged.means) / logged.deviations) ** 2
    target = ((logged.actions - actions) / logged.deviations) ** 2
    return 0.5 * (behaviour - target).sum(1)


def _logged_episodes(pool: Pool) -> LoggedEpisodes:
    dataset, train, inputs = pool.dataset, pool.train, standardiser(pool)
    episodes = np.flatnonzero(pool.held_out)
    order = np.random.default_rng(pool.seed).permutation(episodes)
    enough = np.searchsorted(dataset.lengths[order].cumsum(), pool.rows, side="right")
    episodes = np.sort(order[: max(enough, 1)])
    steps = np.flatnonzero(np.isin(dataset.episode_of_step, episodes))
    lengths = dataset.lengths[episodes]
    rewards = np.zeros((len(episodes), lengths.max()))
    rewards[np.arange(lengths.max()) < lengths[:, None]] = dataset.rewards[steps]
    observations = dataset.observations[dataset.observation_rows[steps]]
    states = dataset.observations[np.isin(np.repeat(np.arange(dataset.episodes), dataset.lengths + 1), episodes)]
    actions = actions_to_unit_box(dataset.transforms, dataset.actions[steps])
    init_key, key = jax.random.split(jax.random.key(pool.seed + 2))
    clone, clone_inputs = _clone(dataset.action_dim), jnp.asarray(inputs(train.observations))
    params = fit_clone(key, clone.init(init_key, clone_inputs[:1]), clone_inputs, jnp.asarray(train.actions))
    program: Any = jax.jit(lambda x: clone.apply(params, x))
    means = in_chunks(program, inputs(observations)).astype(np.float64)
    deviations = np.maximum(np.sqrt(((actions - means) ** 2).mean(0)), 1e-3)
    terminated = dataset.terminations[dataset.ends[episodes]]
    lost = ~dataset.final_observation_known[episodes] & ~terminated
    return LoggedEpisodes(
        episodes, lengths, terminated, lost, rewards, observations, states, actions, means, deviations
    )


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
    Measurement(
        "lstd",
        (
            Diagnostic("lstd", "high", "value of the initial states by LSTD-Q on random Fourier features"),
            Diagnostic("lstd_lcb", "high", "that less one standard error over episodes"),
        ),
        measure_lstd,
    ),
    Measurement(
        "importance_sampling",
        (
            Diagnostic("importance_sampling", "high", "value by weighted per-decision importance sampling"),
            Diagnostic("effective_sample_size", "high", f"effective number of episodes in it at step {ESS_STEP}"),
        ),
        measure_importance_sampling,
    ),
    Measurement(
        "doubly_robust",
        (Diagnostic("doubly_robust", "high", "weighted doubly robust value, with a critic by FQE"),),
        measure_doubly_robust,
        on_request=True,  # FQE once more for every candidate that it does not refuse
    ),
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
