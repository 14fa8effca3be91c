"""Rollouts of each policy in a learned model of the environment, and how unsure the model is along them.

One ensemble per data set (`offrl.dynamics`), trained on the training episodes; terminations are learned too, and what
bounds observations and rewards is the range of the data: nothing is known but the data (the published code of MB-OPE,
MOPO and TOReL is given termination functions, reset distributions or reward ranges). Each member rolls out by itself.
All candidates start from the same states and see the same noise.

- model_value, model_value_min: HORIZON steps from the first states of episodes, then the behaviour's value of where
  they lead (`evaluation.behaviour`); the mean and the lowest of the members.
- model_advantage: the same for SHORT steps from held-out states, less the behaviour's value there.
- penalty_NAME: mean over the same steps of a penalty of `offrl.dynamics.PENALTIES`, over the 95th percentile that it
  has on held-out rows: above 1 the model is less sure than on 95 % of the data.
- torel: the regret bound by which TOReL selects (2505.22442), with the data's own range of rewards.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offrl import dynamics
from offrl.algorithm import Algorithm, Spec
from offrl.data.transforms import Preprocessing, observation_statistics, preprocess
from offrl.diagnostics import Diagnostic, Measurement, Scores, spread
from offrl.diagnostics.evaluation import DISCOUNT, NO_HELD_OUT, NOT_FINITE, behaviour, values_of
from offrl.diagnostics.features import standardiser
from offrl.diagnostics.pool import RESAMPLES, Candidate, Pool
from offrl.dynamics import PENALTIES, DynamicsConfig, Ensemble

CONFIG = DynamicsConfig(
    ensemble_size=5,
    elites=5,
    dynamics_hidden_dims=(64, 64),
    dynamics_batch_size=128,
    dynamics_updates=5_000,
    holdout_every=500,
)
"""Small enough for a CPU; the published networks are 200 wide and four layers deep."""
HORIZON, SHORT = 100, 25
STARTS = 150
"""Rollouts of each member from either kind of state, at most."""
PERCENTILE = 95.0


class Model(NamedTuple):
    ensemble: Ensemble
    lowest: jax.Array
    """Of [observation, reward], in the training data, as the ensemble sees them; and highest."""
    highest: jax.Array
    percentiles: dict[str, float]
    """Of each penalty, on held-out rows."""
    rollouts: jax.Array
    """Keys of the rollouts' noise."""


def train_ensemble(key: jax.Array, data: dynamics.ModelData, config: DynamicsConfig) -> Ensemble:
    init_key, key = jax.random.split(key)
    spec = Spec(data.transitions.observations.shape[1], data.transitions.actions.shape[1], config.dynamics_updates)
    # run once: a full optimisation would take longer than it saves
    quickly = {"xla_backend_optimization_level": 1}
    init = jax.jit(dynamics.init_ensemble, static_argnums=(1, 2), compiler_options=quickly)
    ensemble = dynamics.begin_ensemble(init(init_key, config, spec), data)
    return _train(key, ensemble, jax.tree.map(jnp.asarray, data), config)


@partial(jax.jit, static_argnames="config")
def _train(key: jax.Array, ensemble: Ensemble, data: dynamics.ModelData, config: DynamicsConfig) -> Ensemble:
    def update(ensemble: Ensemble, now: tuple[jax.Array, jax.Array]) -> tuple[Ensemble, None]:
        return dynamics.update_ensemble(now[0], ensemble, now[1], data, config)[0], None

    steps = jnp.arange(config.dynamics_updates)
    return jax.lax.scan(update, ensemble, (jax.random.split(key, len(steps)), steps))[0]


@partial(jax.jit, static_argnames="config")
def penalties(
    key: jax.Array, ensemble: Ensemble, observations: jax.Array, actions: jax.Array, config: DynamicsConfig
) -> dict[str, jax.Array]:
    """Name -> [n]."""
    mean, log_var = dynamics.predict(ensemble, observations, actions, config)
    return {name: penalty(key, mean, log_var) for name, penalty in PENALTIES.items()}


def model(pool: Pool) -> Model:
    return pool.once("model", lambda: _model(pool))


def _model(pool: Pool) -> Model:
    train = pool.dataset.select_episodes(np.flatnonzero(~pool.held_out))
    train = preprocess(train, Preprocessing(observations="standardize"))
    data = dynamics.prepare(train, CONFIG)
    train_key, penalty_key, rollouts = jax.random.split(jax.random.key(pool.seed + 3), 3)
    ensemble = train_ensemble(train_key, data, CONFIG)
    seen = np.concatenate([data.transitions.next_observations, data.transitions.rewards[:, None]], 1)
    rows = pool.validation or pool.train
    observations = jnp.asarray((rows.observations - data.observation_mean) / data.observation_std)
    found = penalties(penalty_key, ensemble, observations, jnp.asarray(rows.actions), CONFIG)
    percentiles = {name: float(np.percentile(values, PERCENTILE)) for name, values in found.items()}
    return Model(ensemble, jnp.asarray(seen.min(0)), jnp.asarray(seen.max(0)), percentiles, rollouts)


class Imagined(NamedTuple):
    """Rollouts of one policy; time first, then members, then starts."""

    rewards: Any
    alive: Any
    """bool: whether the step was taken: no termination before it."""
    short: Any
    """Raw observations after SHORT steps, [members, n, dim]."""
    last: Any
    """After HORIZON steps."""
    short_alive: Any
    """Whether it had not ended by then, [members, n]."""
    last_alive: Any
    penalties: dict[str, Any]
    """Name -> [members, n], the mean over the SHORT first steps that were taken."""


@partial(jax.jit, static_argnames=("algorithm", "spec", "dynamics_config", "short", "horizon"))
def imagine(
    algorithm: Algorithm,
    spec: Spec,
    config: Any,
    state: Any,
    seen: tuple[jax.Array, jax.Array],
    model: Model,
    starts: jax.Array,
    dynamics_config: DynamicsConfig,
    short: int = SHORT,
    horizon: int = HORIZON,
) -> Imagined:
    """
    Args:
        seen: mean and standard deviation by which the policy's observations are standardised.
        starts: raw observations [n, dim].
    """
    ensemble, size, (n, dim) = model.ensemble, dynamics_config.ensemble_size, starts.shape
    mean, std = ensemble.statistics.observation_mean, ensemble.statistics.observation_std
    act = algorithm.policy(config, spec).act
    member = jnp.repeat(jnp.arange(size), n)

    def step(carry: tuple[jax.Array, jax.Array], key: jax.Array, doubts: bool) -> Any:
        x, alive = carry
        noise_key, penalty_key = jax.random.split(key)
        actions = jnp.clip(act(state, (mean + std * x - seen[0]) / seen[1]), -1, 1)
        means, log_vars = dynamics.predict(ensemble, x, actions, dynamics_config)
        rows = jnp.arange(size * n)
        noise = jnp.tile(jax.random.normal(noise_key, (n, dim + 1)), (size, 1))  # the same for all members
        sample = means[member, rows] + jnp.exp(0.5 * log_vars[member, rows]) * noise
        sample = jnp.clip(sample + jnp.pad(x, ((0, 0), (0, 1))), model.lowest, model.highest)
        following, rewards = sample[:, :-1], sample[:, -1]
        ends = dynamics.termination_probability(ensemble, x, actions, following, dynamics_config) > 0.5
        found = {name: p(penalty_key, means, log_vars) for name, p in PENALTIES.items()} if doubts else {}
        going_on = alive & ~ends
        return (jnp.where(going_on[:, None], following, x), going_on), (jnp.where(alive, rewards, 0.0), alive, found)

    keys = jax.random.split(model.rollouts, horizon)
    carry = (jnp.tile((starts - mean) / std, (size, 1)), jnp.ones(size * n, bool))
    middle, (rewards, alive, found) = jax.lax.scan(partial(step, doubts=True), carry, keys[:short])
    last, (more_rewards, more_alive, _) = jax.lax.scan(partial(step, doubts=False), middle, keys[short:])
    shape = (size, n)
    return Imagined(
        rewards=jnp.concatenate([rewards, more_rewards]).reshape(horizon, *shape),
        alive=jnp.concatenate([alive, more_alive]).reshape(horizon, *shape),
        short=(mean + std * middle[0]).reshape(*shape, dim),
        last=(mean + std * last[0]).reshape(*shape, dim),
        short_alive=middle[1].reshape(shape),
        last_alive=last[1].reshape(shape),
        penalties={k: ((v * alive).sum(0) / alive.sum(0)).reshape(shape) for k, v in found.items()},
    )


def truncated_value(rewards: np.ndarray, final: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Discounted rewards [steps, members, n], then the value `final` [members, n] of those still `alive`."""
    steps = len(rewards)
    return np.tensordot(DISCOUNT ** np.arange(steps), rewards, 1) + DISCOUNT**steps * alive * final


def torel(values: np.ndarray, weights: np.ndarray, low: float, high: float) -> np.ndarray:
    """max(2 sqrt(Var_e(mean) + mean_e(Var)), 1 - median_e(mean)) of (values - low) / (high - low), in [0, 1].

    Args:
        values: [members, n], the discounted return of each rollout.
        weights: [resamples, n].

    Returns:
        [resamples].
    """
    x = (values - low) / (high - low)
    total = weights.sum(1)
    mean = weights @ x.T / total[:, None]  # [resamples, members]
    var = np.maximum(weights @ (x**2).T / total[:, None] - mean**2, 0)
    uncertainty = 2 * np.sqrt(mean.var(1) + var.mean(1))
    return np.clip(np.maximum(uncertainty, 1 - np.median(mean, 1)), 0, 1)


PENALTY_NAMES = {name: f"penalty_{name}" for name in PENALTIES}
DIAGNOSTICS = (
    Diagnostic("model_value", "high", f"value of first states: {HORIZON} steps in a learned model, then the behaviour"),
    Diagnostic("model_value_min", "high", "the same by the member that gives least"),
    Diagnostic(
        "model_advantage", "high", f"gain over the behaviour by {SHORT} steps in the model, from held-out states"
    ),
    Diagnostic("torel", "low", "regret bound of TOReL from rollouts in the model, 0 to 1 (G10)"),
    *(
        Diagnostic(name, "low", f"doubt of the model along the policy's rollouts, by {key} (G1-G6)")
        for key, name in PENALTY_NAMES.items()
    ),
)
NEED_HELD_OUT = ("model_advantage", *PENALTY_NAMES.values())


def measure_model(pool: Pool) -> dict[str, Scores]:
    fitted, fit, inputs, dataset = model(pool), behaviour(pool), standardiser(pool), pool.dataset
    rows = pool.validation or pool.train
    random = np.random.default_rng(pool.seed)
    episodes = np.sort(random.permutation(dataset.episodes)[:STARTS])
    chosen = np.sort(random.permutation(len(rows))[:STARTS])
    starts = np.concatenate([pool.initial_observations[episodes], rows.observations[chosen]])
    first, later = slice(None, len(episodes)), slice(len(episodes), None)

    def behaviour_value(observations: np.ndarray) -> np.ndarray:
        flat = inputs(observations.reshape(-1, observations.shape[-1]))
        values = fit.data.center + fit.data.scale * values_of(fit.v, flat).mean(0)
        return np.asarray(values, np.float64).reshape(observations.shape[:-1])

    def rollouts(candidate: Candidate) -> Imagined:
        run = candidate.run
        seen = observation_statistics(run.info["dataset"]["transforms"], dataset.observation_dim)
        state = pool.state(candidate)
        found = imagine(run.algorithm, run.spec, candidate.config, state, seen, fitted, starts, CONFIG)
        return jax.tree.map(np.asarray, found)

    here = behaviour_value(rows.observations[chosen])
    low, high = (float(bound) / (1 - DISCOUNT) for bound in (fitted.lowest[-1], fitted.highest[-1]))
    both = np.concatenate([np.ones((1, dataset.episodes)), pool.episode_weights]).astype(np.float64)
    at_first, at_later = both[:, episodes], both[:, rows.episodes[chosen]]
    drawn = {diagnostic.name: np.full((len(pool), 1 + RESAMPLES), np.nan) for diagnostic in DIAGNOSTICS}
    reasons = [""] * len(pool)
    for i, candidate in enumerate(pool.candidates):
        if not np.isfinite(pool.actions("initial")[i]).all():
            reasons[i] = NOT_FINITE
            continue
        found = rollouts(candidate)
        values = truncated_value(found.rewards, behaviour_value(found.last), found.last_alive)[:, first]
        by_member = at_first @ values.T / at_first.sum(1, keepdims=True)
        drawn["model_value"][i], drawn["model_value_min"][i] = by_member.mean(1), by_member.min(1)
        taken = np.maximum(found.alive.sum(0), 1)
        going_on = found.rewards.sum(0) / taken / (1 - DISCOUNT)  # for ever, by its own mean reward
        returns = truncated_value(found.rewards, going_on, found.last_alive)[:, first]
        drawn["torel"][i] = torel(returns, at_first, low, high)
        if pool.validation is not None:
            with np.errstate(invalid="ignore"):  # a resample without any of these episodes
                short = truncated_value(found.rewards[:SHORT], behaviour_value(found.short), found.short_alive)
                gains = short[:, later].mean(0) - here
                drawn["model_advantage"][i] = at_later @ gains / at_later.sum(1)
                for key, name in PENALTY_NAMES.items():
                    doubts = found.penalties[key][:, later].mean(0) / fitted.percentiles[key]
                    drawn[name][i] = at_later @ doubts / at_later.sum(1)
    result = {}
    for name, columns in drawn.items():
        missing = [NO_HELD_OUT] * len(pool) if pool.validation is None and name in NEED_HELD_OUT else reasons
        replicates = columns[:, 1:].astype(np.float32)
        result[name] = Scores(columns[:, 0], spread(columns[:, 1:]), replicates, missing)
    return result


MEASUREMENTS = (Measurement("model", DIAGNOSTICS, measure_model, on_request=True),)
