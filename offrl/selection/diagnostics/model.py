"""Rollouts of each policy in a learned model of the environment, and how unsure the model is along them.

One ensemble per data set (`learning.models`), trained on the training episodes; terminations are learned too, and what
bounds observations and rewards is the range of the data: nothing is known but the data (the published code of MB-OPE,
MOPO and TOReL is given termination functions, reset distributions or reward ranges). Each member rolls out by itself.
An episode does not end or go on in the model, but goes on with a probability, by which its later rewards count.
All candidates start from the same states and see the same noise.

- model_value, model_value_min: HORIZON steps from the first states of episodes, then the behaviour's value of where
  they lead (`behaviour_value.behaviour`); the mean and the lowest of the members.
- model_advantage: the same for SHORT steps from held-out states, less the behaviour's value there.
- penalty_NAME: mean over the same steps of a penalty of `learning.models.penalties`, over the 95th percentile that it
  has on held-out rows: above 1 the model is less sure than on 95 % of the data.
- torel: the regret bound by which TOReL selects (2505.22442), with the data's own range of rewards.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from offrl.algorithm import Algorithm, Spec
from offrl.data.preprocessing import preprocess
from offrl.data.transforms import Preprocessing, observation_statistics
from offrl.learning.models import dynamics
from offrl.learning.models.dynamics import DynamicsConfig, Ensemble
from offrl.learning.models.penalties import PENALTIES
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, quotients, spread
from offrl.selection.diagnostics.behaviour_value import behaviour
from offrl.selection.diagnostics.features import standardiser
from offrl.selection.diagnostics.fitting import DISCOUNT, NO_HELD_OUT, NOT_FINITE, values_of
from offrl.selection.pool import RESAMPLES, Candidate, Pool

CONFIG = DynamicsConfig(
    ensemble_size=5,
    elites=5,
    dynamics_hidden_dims=(200, 200),
    termination_hidden_dims=(),  # not used: see `fit_ends`
    dynamics_batch_size=128,
    dynamics_updates=8_000,
    holdout_every=500,
)
"""Small enough for a CPU; the published networks are four layers deep. On minari trpo-hopper-mixed the held-out error
after 3,000 updates was 0.0131, 0.0120, 0.0102 at 64, 128, 200 wide, and 0.0056 after 8,000: chosen by that and time."""
HORIZON, SHORT = 100, 25
"""Steps of a rollout; the first is a multiple of the second, so that one compiled program does for both."""
STARTS = 100
"""Rollouts of each member from either kind of state."""
PERCENTILE = 95.0


class Model(NamedTuple):
    ensemble: Ensemble
    """Of observations and rewards standardised: nothing depends on the units of either."""
    reward_mean: float
    reward_std: float
    ends: Any
    """Of terminations; see `fit_ends`."""
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
    data = jax.tree.map(jnp.asarray, data)
    for block_key in jax.random.split(key, config.dynamics_updates // config.holdout_every):
        ensemble = _train(block_key, ensemble, data, config)
        if ensemble.stale >= config.patience:
            break
    return ensemble


@partial(jax.jit, static_argnames="config")
def _train(key: jax.Array, ensemble: Ensemble, data: dynamics.ModelData, config: DynamicsConfig) -> Ensemble:
    """`holdout_every` updates and an evaluation: `dynamics.update_ensemble`, whose inner loops copy all data every
    time, takes seven times as long at 100,000 rows."""
    shape = (config.ensemble_size, config.dynamics_batch_size)

    def update(ensemble: Ensemble, key: jax.Array) -> tuple[Ensemble, None]:
        rows = data.train_rows[jax.random.randint(key, shape, 0, len(data.train_rows))]
        return dynamics.train_step(ensemble, dynamics.rows_of(data.transitions, rows), config), None

    ensemble, _ = jax.lax.scan(update, ensemble, jax.random.split(key, config.holdout_every))
    return dynamics.holdout_step(ensemble, dynamics.rows_of(data.transitions, jnp.asarray(data.holdout_rows)), config)


@partial(jax.jit, static_argnames="config")
def penalties(
    key: jax.Array, ensemble: Ensemble, observations: jax.Array, actions: jax.Array, config: DynamicsConfig
) -> dict[str, jax.Array]:
    """Name -> [n]."""
    mean, log_var = dynamics.predict(ensemble, observations, actions, config)
    return {name: penalty(key, mean, log_var) for name, penalty in PENALTIES.items()}


def _end_features(following: Any) -> Any:
    """[..., dim] -> [..., 2 dim + 1]: intervals and discs are where a weighted sum of these is positive."""
    return jnp.concatenate([following, following**2 - 1, jnp.ones_like(following[..., :1])], -1)


def fit_ends(following: np.ndarray, terminations: np.ndarray) -> np.ndarray:
    """Weights of a logistic regression of terminations on the standardised next observation and its squares.

    Ends are rare: from 77 among 92,599 steps (minari trpo-hopper-mixed) the ensemble's own classifiers learned next to
    nothing, at most 0.17 at eleven held-out ends, where this gives ten of them 0.59 or more. Weights have a standard
    normal prior.
    """
    features, n, count = np.asarray(_end_features(following), np.float64), len(terminations), terminations.sum()
    weights = np.zeros(features.shape[1])
    if count == 0:  # never
        weights[-1] = -np.inf
        return weights

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits, prior = features @ weights, np.append(weights[:-1], 0.0)
        value = (np.logaddexp(0, logits) - terminations * logits).mean() + 0.5 * (prior**2).sum() / n
        return value, (features.T @ (expit(logits) - terminations) + prior) / n

    weights[-1] = np.log((count + 0.5) / (n - count + 0.5))
    return minimize(loss, weights, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x


def model(pool: Pool) -> Model:
    return pool.once("model", lambda: _model(pool))


def _model(pool: Pool) -> Model:
    train = pool.dataset.select_episodes(np.flatnonzero(~pool.held_out))
    mean, std = float(train.rewards.mean(dtype=np.float64)), max(float(train.rewards.std(dtype=np.float64)), 1e-6)
    train = preprocess(train, Preprocessing("standardize", reward_scale=1 / std, reward_shift=-mean / std))
    data = dynamics.prepare(train, CONFIG)
    train_key, penalty_key, rollouts = jax.random.split(jax.random.key(pool.seed + 3), 3)
    ensemble = train_ensemble(train_key, data, CONFIG)
    seen = np.concatenate([data.transitions.next_observations, data.transitions.rewards[:, None]], 1)
    rows = pool.validation or pool.train
    observations = jnp.asarray((rows.observations - data.observation_mean) / data.observation_std)
    found = penalties(penalty_key, ensemble, observations, jnp.asarray(rows.actions), CONFIG)
    percentiles = {name: float(np.percentile(values, PERCENTILE)) for name, values in found.items()}
    known = train.dynamics()
    ends = fit_ends(known.next_observations, known.terminations)
    bounds = jnp.asarray(seen.min(0)), jnp.asarray(seen.max(0))
    return Model(ensemble, mean, std, ends, *bounds, percentiles, rollouts)


class Imagined(NamedTuple):
    """Steps of one policy in the model, each member for itself: [steps, members, n, ...]."""

    observations: Any
    """Standardised as the ensemble sees them."""
    actions: Any
    rewards: Any
    """Raw."""
    alive: Any
    """The probability that no step before ended the episode."""


@partial(jax.jit, static_argnames=("algorithm", "spec", "dynamics_config"))
def imagine(
    algorithm: Algorithm,
    spec: Spec,
    config: Any,
    state: Any,
    seen: tuple[jax.Array, jax.Array],
    model: Model,
    start: tuple[jax.Array, jax.Array],
    keys: jax.Array,
    dynamics_config: DynamicsConfig,
) -> tuple[tuple[jax.Array, jax.Array], Imagined]:
    """Go on from `start`.

    Args:
        seen: mean and standard deviation by which the policy's observations are standardised.
        start: observations [members, n, dim] as the ensemble sees them, and `alive` [members, n].
        keys: one per step.

    Returns:
        Where the steps lead, as `start`, and the steps.
    """
    statistics, act = model.ensemble.statistics, algorithm.policy(config, spec).act
    network = dynamics.dynamics_network(dynamics_config, spec.observation_dim)

    def member_step(params: Any, x: jax.Array, actions: jax.Array, noise: jax.Array) -> Any:
        mean, log_var = network.apply(params, dynamics.dynamics_inputs(statistics, x, actions))
        sample = mean + jnp.exp(0.5 * log_var) * noise + jnp.pad(x, ((0, 0), (0, 1)))
        sample = jnp.clip(sample, model.lowest, model.highest)
        return sample[:, :-1], model.reward_mean + model.reward_std * sample[:, -1]

    def step(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Imagined]:
        x, alive = carry
        raw = statistics.observation_mean + statistics.observation_std * x
        actions = jnp.clip(act(state, ((raw - seen[0]) / seen[1]).reshape(-1, x.shape[-1])), -1, 1)
        actions = actions.reshape(*alive.shape, -1)
        noise = jax.random.normal(key, (x.shape[1], x.shape[2] + 1))  # the same for all members
        following, rewards = jax.vmap(member_step, (0, 0, 0, None))(
            model.ensemble.params["dynamics"], x, actions, noise
        )
        going_on = jax.nn.sigmoid(-_end_features(following) @ model.ends)
        return (following, alive * going_on), Imagined(x, actions, rewards, alive)

    return jax.lax.scan(step, start, keys)


def truncated_value(found: Imagined, final: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Discounted rewards, then the value `final` [members, n] of what is still `alive`."""
    steps = len(found.rewards)
    earned = np.tensordot(DISCOUNT ** np.arange(steps), found.rewards * found.alive, 1)
    return earned + DISCOUNT**steps * alive * final


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
    mean = quotients(weights @ x.T, total[:, None])  # [resamples, members]
    var = np.maximum(quotients(weights @ (x**2).T, total[:, None]) - mean**2, 0)
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
        Diagnostic(name, "low", f"doubt of the model along the policy's rollouts, by {key}")
        for key, name in PENALTY_NAMES.items()
    ),
)
NEED_HELD_OUT = ("model_advantage", *PENALTY_NAMES.values())


def measure_model(pool: Pool) -> dict[str, Scores]:
    fitted, fit, inputs, dataset = model(pool), behaviour(pool), standardiser(pool), pool.dataset
    rows = pool.validation or pool.train
    random = np.random.default_rng(pool.seed)
    # where there are fewer than STARTS, some are rolled out more than once
    episodes = np.resize(random.permutation(dataset.episodes), STARTS)
    chosen = np.resize(random.permutation(len(rows)), STARTS)
    statistics = fitted.ensemble.statistics
    keys = jax.random.split(fitted.rollouts, HORIZON).reshape(-1, SHORT)

    def behaviour_value(observations: np.ndarray) -> np.ndarray:
        flat = inputs(observations.reshape(-1, observations.shape[-1]))
        values = fit.data.center + fit.data.scale * values_of(fit.v, flat).mean(0)
        return np.asarray(values, np.float64).reshape(observations.shape[:-1])

    def rollouts(candidate: Candidate, starts: np.ndarray, keys: jax.Array) -> tuple[Imagined, np.ndarray, np.ndarray]:
        """The steps, the behaviour's value of where they lead, and the probability that they have not ended there."""
        run = candidate.run
        seen = observation_statistics(run.info["dataset"]["transforms"], dataset.observation_dim)
        x = jnp.asarray((starts - statistics.observation_mean) / statistics.observation_std)
        now = jnp.tile(x, (CONFIG.ensemble_size, 1, 1)), jnp.ones((CONFIG.ensemble_size, STARTS))
        parts = []
        for part in keys:
            now, found = imagine(
                run.algorithm, run.spec, candidate.config, pool.state(candidate), seen, fitted, now, part, CONFIG
            )
            parts.append(found)
        last = np.asarray(statistics.observation_mean + statistics.observation_std * now[0])
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), behaviour_value(last), np.asarray(now[1])

    def doubts(found: Imagined) -> dict[str, np.ndarray]:
        """Name -> [n], the mean over the steps, as probable as they are, and over members."""
        flat = [np.reshape(column, (-1, column.shape[-1])) for column in (found.observations, found.actions)]
        values = penalties(fitted.rollouts, fitted.ensemble, *flat, CONFIG)
        shaped = {name: np.reshape(value, found.alive.shape) for name, value in values.items()}
        return {name: ((value * found.alive).sum(0) / found.alive.sum(0)).mean(0) for name, value in shaped.items()}

    here = behaviour_value(rows.observations[chosen])
    low, high = float(fit.data.low), float(fit.data.high)
    both = np.concatenate([np.ones((1, dataset.episodes)), pool.episode_weights]).astype(np.float64)
    at_first, at_later = both[:, episodes], both[:, rows.episodes[chosen]]
    drawn = {diagnostic.name: np.full((len(pool), 1 + RESAMPLES), np.nan) for diagnostic in DIAGNOSTICS}
    reasons = [""] * len(pool)
    for i, candidate in enumerate(pool.candidates):
        if not np.isfinite(pool.actions("initial")[i]).all():
            reasons[i] = NOT_FINITE
            continue
        found, final, alive = rollouts(candidate, pool.initial_observations[episodes], keys)
        values = truncated_value(found, final, alive)
        by_member = quotients(at_first @ values.T, at_first.sum(1, keepdims=True))
        drawn["model_value"][i], drawn["model_value_min"][i] = by_member.mean(1), by_member.min(1)
        mean_reward = (found.rewards * found.alive).sum(0) / found.alive.sum(0)
        for_ever = truncated_value(found, mean_reward / (1 - DISCOUNT), alive)
        drawn["torel"][i] = torel(for_ever, at_first, low, high)
        if pool.validation is not None:
            found, final, alive = rollouts(candidate, rows.observations[chosen], keys[:1])
            gains = truncated_value(found, final, alive).mean(0) - here
            drawn["model_advantage"][i] = quotients(at_later @ gains, at_later.sum(1))
            for name, doubt in doubts(found).items():
                relative = doubt / fitted.percentiles[name]
                drawn[PENALTY_NAMES[name]][i] = quotients(at_later @ relative, at_later.sum(1))
    result = {}
    for name, columns in drawn.items():
        missing = [NO_HELD_OUT] * len(pool) if pool.validation is None and name in NEED_HELD_OUT else reasons
        replicates = columns[:, 1:].astype(np.float32)
        result[name] = Scores(columns[:, 0], spread(columns[:, 1:]), replicates, missing)
    return result


MEASUREMENTS = (Measurement("model", DIAGNOSTICS, measure_model),)
