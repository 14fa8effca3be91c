"""Importance sampling, weighted and per decision; nearly always refused on long episodes, and then it says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offrl.data.transforms import actions_to_unit_box
from offrl.learning.updates import adam_init, adam_step
from offrl.selection.diagnostics import fitting
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, not_applicable, spread, without_error
from offrl.selection.diagnostics.features import standardiser
from offrl.selection.diagnostics.fitting import DISCOUNT, NO_HELD_OUT, NOT_FINITE, follow, network
from offrl.selection.diagnostics.support import behaviour_clone
from offrl.selection.pool import RESAMPLES, Pool, in_chunks

ESS_STEP = 50
LEAST_ESS = 5.0
CLONE_LEARNING_RATE = 1e-3


@partial(jax.jit, static_argnames="updates")
def fit_clone(key: jax.Array, params: Any, states: jax.Array, actions: jax.Array, updates: int = 5_000) -> Any:
    """The mean action at a state by least squares; returned is the average of the last iterates."""

    def loss(params: Any, rows: jax.Array) -> tuple[jax.Array, dict]:
        means: Any = network(actions.shape[1]).apply(params, states[rows])
        return ((means - actions[rows]) ** 2).mean(), {}

    def update(carry: Any, key: jax.Array) -> tuple[Any, None]:
        params, optimizer, average = carry
        rows = jax.random.randint(key, (fitting.BATCH_SIZE,), 0, len(states))
        params, optimizer, _ = adam_step(lambda p: loss(p, rows), params, optimizer, CLONE_LEARNING_RATE)
        return (params, optimizer, follow(average, params)), None

    carry, _ = jax.lax.scan(update, (params, adam_init(params), params), jax.random.split(key, updates))
    return carry[2]


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


def measure_importance_sampling(pool: Pool) -> dict[str, Scores]:
    """What is valued: the candidate's action with the data's own noise around it.

    A deterministic policy has no density, so no ratio to the behaviour's. Both densities here are Gaussians that differ
    in their means alone: the candidate's action, and a clone's fitted to the training rows. Their standard deviations
    are those of the held-out actions about the clone. The clone itself has ratio 1, and gets the mean discounted return
    of the held-out episodes. Where the data have several modes the Gaussian is wrong, and no sample size tells.

    Of discrete actions the candidate's own is valued, without noise: the ratio is 0 where the data's differs, and else
    one over its probability by the categorical `support.behaviour_clone`.
    """

    def estimate(logged: LoggedEpisodes, i: int, log_ratios: np.ndarray, weights: np.ndarray) -> Estimate:
        return weighted_importance_sampling(
            log_ratios, logged.rewards, logged.lengths, logged.terminated, DISCOUNT, weights
        )

    value, effective = importance_weighted(pool, estimate)
    return {"importance_sampling": value, "effective_sample_size": effective}


def importance_weighted(
    pool: Pool, estimate: Callable[[LoggedEpisodes, int, np.ndarray, np.ndarray], Estimate]
) -> tuple[Scores, Scores]:
    """`estimate(logged, candidate, log_ratios, weights)` where enough episodes count; the effective sample size."""
    if pool.validation is None:
        nothing = not_applicable(pool, NO_HELD_OUT)
        return nothing, nothing
    logged = pool.once("held-out episodes with behaviour density", lambda: logged_episodes(pool))
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
    """[action_dim]; 0 where actions are discrete."""
    log_prob: np.ndarray | None
    """[rows], of discrete actions: the behaviour's."""

    @property
    def inside(self) -> np.ndarray:
        """bool [episodes, steps]: before the end; the rows, in their order."""
        return np.arange(self.rewards.shape[1]) < self.lengths[:, None]


def _log_ratio(logged: LoggedEpisodes, actions: np.ndarray) -> np.ndarray:
    """log N(a; pi(s), sd) - log N(a; mean, sd) at the logged actions, [rows]; of discrete ones -inf where they differ
    from pi(s)."""
    if logged.log_prob is not None:
        return np.where((logged.actions == actions).all(1), -logged.log_prob, -np.inf)
    behaviour = ((logged.actions - logged.means) / logged.deviations) ** 2
    target = ((logged.actions - actions) / logged.deviations) ** 2
    return 0.5 * (behaviour - target).sum(1)


def logged_episodes(pool: Pool) -> LoggedEpisodes:
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
    terminated = dataset.terminations[dataset.ends[episodes]]
    lost = ~dataset.final_observation_known[episodes] & ~terminated
    described = (episodes, lengths, terminated, lost, rewards, observations, states, actions)
    if dataset.discrete:
        log_prob = behaviour_clone(pool).log_prob(observations, actions).astype(np.float64)
        return LoggedEpisodes(*described, actions, np.zeros(dataset.action_dim), log_prob)
    init_key, key = jax.random.split(jax.random.key(pool.seed + 2))
    clone, clone_inputs = network(dataset.action_dim), jnp.asarray(inputs(train.observations))
    params = fit_clone(key, clone.init(init_key, clone_inputs[:1]), clone_inputs, jnp.asarray(train.actions))
    program: Any = jax.jit(lambda x: clone.apply(params, x))
    means = in_chunks(program, inputs(observations)).astype(np.float64)
    deviations = np.maximum(np.sqrt(((actions - means) ** 2).mean(0)), 1e-3)
    return LoggedEpisodes(*described, means, deviations, None)


MEASUREMENTS = (
    Measurement(
        "importance_sampling",
        (
            Diagnostic("importance_sampling", "high", "value by weighted per-decision importance sampling"),
            Diagnostic("effective_sample_size", "high", f"effective number of episodes in it at step {ESS_STEP}"),
        ),
        measure_importance_sampling,
    ),
)
