"""How far a policy goes from the data, for algorithms with and without critics.

A policy that does what good data do can be trusted to do as well; closeness to bad data says nothing good. Actions are
in [-1, 1], discrete ones one-hot: the squared distance of two that differ is 2. Where the policy is compared with
logged actions, rows are held out from training.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offrl.learning.networks import MLP, categorical_log_prob, gaussian_log_prob
from offrl.learning.updates import adam_init, adam_step
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, not_applicable, over_episodes, ratio
from offrl.selection.diagnostics.critic import NOT_HELD_OUT, of_means
from offrl.selection.pool import Pool, Rows, in_chunks

REFERENCE_ROWS = 10_000
QUERY_ROWS = 2_000
NEIGHBOURS = 5
QUANTILE = 0.95
LEAST_VARIANCE = 1e-4
"""Of whitened directions, as a share of the mean variance: a direction that hardly varies does not decide alone."""


def split_name(pool: Pool) -> str:
    """Held-out rows where there are any; for what does not look at logged actions training rows do as well."""
    return "train" if pool.validation is None else "validation"


def split_rows(pool: Pool) -> Rows:
    return pool.train if pool.validation is None else pool.validation


# The distance to logged actions

DISTANCES = (
    Diagnostic("action_distance", "low", "squared distance of pi(s) to the logged action, on held-out rows"),
    Diagnostic("return_weighted_action_distance", "low", "the same, where episodes weigh exp(return / sd of returns)"),
    Diagnostic("action_distance_ratio", "flag", "action distance on held-out rows over that on training rows"),
)


def action_distances(pool: Pool) -> dict[str, Scores]:
    """E||pi(s) - a||^2; weighted by returns, a row counts exp((return of its episode - best) / sd of returns).

    The ratio tells of overfitting without a critic: a clone that has learned its training rows by heart is above 1.
    """
    rows = pool.validation
    if rows is None:
        return {diagnostic.name: not_applicable(pool, NOT_HELD_OUT) for diagnostic in DISTANCES}

    def distances(split: str, rows: Rows) -> np.ndarray:
        return np.stack([((a - rows.actions).astype(np.float64) ** 2).sum(-1) for a in pool.actions(split)])

    held_out, train = distances("validation", rows), distances("train", pool.train)
    weights = return_weights(pool)
    sums = np.stack([np.bincount(rows.episodes, d, pool.dataset.episodes) for d in held_out])
    counts = np.bincount(rows.episodes, minlength=pool.dataset.episodes)
    return {
        "action_distance": over_episodes(pool, rows, held_out),
        "return_weighted_action_distance": ratio(pool, sums * weights, counts * weights),
        "action_distance_ratio": of_means(
            pool, [(rows, held_out[None]), (pool.train, train[None])], lambda validation, train: validation / train
        ),
    }


def return_weights(pool: Pool) -> np.ndarray:
    """[episodes]: exp of the standardised return, the best at 1; all 1 where returns are alike."""
    returns = pool.dataset.returns
    return np.exp((returns - returns.max()) / (returns.std() or 1.0))


# The density of a behaviour clone

COMPONENTS = 5
CLONE_DIMS = (128, 128)
CLONE_BATCH = 256
CLONE_BLOCK = 250
CLONE_UPDATES = 6_000
CLONE_PATIENCE = 4
"""Blocks without a better held-out likelihood, after which the clone's training ends."""
LEAST_LOG_STD = -3.0
"""0.05 of a box from -1 to 1: actions that a source has clipped to its bounds are not infinitely likely."""
UNIFORM_WEIGHT = 1e-3
"""Of a uniform component over the action box: the least density, so that one absurd action does not decide a mean."""


class Clone(NamedTuple):
    """The behaviour policy as far as the data show it: a mixture of Gaussians over actions, given a state.

    Of discrete actions a categorical distribution.
    """

    params: Any
    mean: np.ndarray
    std: np.ndarray
    """Of raw observations, which the network sees standardised."""
    nll: float
    """Of the rows it was stopped by, per row."""
    discrete: bool

    def log_prob(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """[n], at raw observations and actions in [-1, 1]."""
        return in_chunks(partial(_clone_log_prob, self.discrete, self.params), self._seen(observations), actions)

    def expected(self, observations: np.ndarray) -> np.ndarray:
        """The mean action [n, action_dim] at raw observations: of discrete ones their probabilities."""
        return in_chunks(partial(_clone_mean, self.discrete, self.params), self._seen(observations))

    def _seen(self, observations: np.ndarray) -> np.ndarray:
        return ((observations - self.mean) / self.std).astype(np.float32)


def _mixture(params: Any, observations: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    outputs = params["params"]["Dense_2"]["bias"].shape[0]
    dim = (outputs // COMPONENTS - 1) // 2
    raw = MLP(CLONE_DIMS, outputs).apply(params, observations)
    raw = jnp.asarray(raw).reshape(*observations.shape[:-1], COMPONENTS, 2 * dim + 1)
    log_std = jnp.clip(raw[..., dim : 2 * dim], LEAST_LOG_STD, 1.0)
    return jnp.tanh(raw[..., :dim]), log_std, jax.nn.log_softmax(raw[..., -1])


def _logits(params: Any, observations: jax.Array) -> Any:
    """Of discrete actions."""
    return MLP(CLONE_DIMS, params["params"]["Dense_2"]["bias"].shape[0]).apply(params, observations)


@partial(jax.jit, static_argnums=0)
def _clone_log_prob(discrete: bool, params: Any, observations: jax.Array, actions: jax.Array) -> jax.Array:
    if discrete:
        known = categorical_log_prob(_logits(params, observations), actions)
        return jnp.logaddexp(jnp.log1p(-UNIFORM_WEIGHT) + known, jnp.log(UNIFORM_WEIGHT / actions.shape[-1]))
    mean, log_std, log_weight = _mixture(params, observations)
    gaussians = jax.nn.logsumexp(log_weight + gaussian_log_prob(mean, log_std, actions[..., None, :]), -1)
    uniform = jnp.log(UNIFORM_WEIGHT) - actions.shape[-1] * jnp.log(2.0)
    return jnp.logaddexp(jnp.log1p(-UNIFORM_WEIGHT) + gaussians, uniform)


@partial(jax.jit, static_argnums=0)
def _clone_mean(discrete: bool, params: Any, observations: jax.Array) -> jax.Array:
    if discrete:
        return jax.nn.softmax(_logits(params, observations))
    mean, _, log_weight = _mixture(params, observations)
    return (jnp.exp(log_weight)[..., None] * mean).sum(-2)


@partial(jax.jit, static_argnames=("inputs", "outputs"))
def _clone_init(key: jax.Array, inputs: int, outputs: int) -> tuple[Any, Any]:
    params = MLP(CLONE_DIMS, outputs).init(key, jnp.zeros((1, inputs)))
    return params, adam_init(params)


@partial(jax.jit, static_argnums=0)
def _clone_block(
    discrete: bool, key: jax.Array, params: Any, optimizer: Any, observations: jax.Array, actions: jax.Array
) -> Any:
    def update(carry: Any, key: jax.Array) -> tuple[Any, None]:
        params, optimizer = carry
        rows = jax.random.randint(key, (CLONE_BATCH,), 0, len(observations))

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            return -_clone_log_prob(discrete, params, observations[rows], actions[rows]).mean(), {}

        params, optimizer, _ = adam_step(loss, params, optimizer, 1e-3)
        return (params, optimizer), None

    return jax.lax.scan(update, (params, optimizer), jax.random.split(key, CLONE_BLOCK))[0]


def fit_clone(
    observations: np.ndarray,
    actions: np.ndarray,
    episodes: np.ndarray,
    seed: int = 0,
    updates: int = CLONE_UPDATES,
    discrete: bool = False,
) -> Clone:
    """Maximum likelihood, stopped by the likelihood of a tenth of the episodes (of the rows, where there is one)."""
    random = np.random.default_rng(seed)
    present = np.unique(episodes)
    if len(present) > 1:
        held_out = np.isin(episodes, random.choice(present, max(1, len(present) // 10), replace=False))
    else:
        held_out = random.random(len(episodes)) < 0.1
    mean, std = observations.mean(0, np.float64), observations.std(0, np.float64) + 1e-6
    seen = ((observations - mean) / std).astype(np.float32)
    train = jnp.asarray(seen[~held_out]), jnp.asarray(actions[~held_out])
    key = jax.random.key(seed)
    outputs = actions.shape[1] if discrete else COMPONENTS * (2 * actions.shape[1] + 1)
    params, optimizer = _clone_init(key, seen.shape[1], outputs)
    best, best_nll, waited = params, np.inf, 0
    for block in range(updates // CLONE_BLOCK):
        params, optimizer = _clone_block(discrete, jax.random.fold_in(key, block), params, optimizer, *train)
        likelihood = in_chunks(partial(_clone_log_prob, discrete, params), seen[held_out], actions[held_out])
        nll, waited = -float(likelihood.mean()), waited + 1
        if nll < best_nll:
            best, best_nll, waited = params, nll, 0
        if waited >= CLONE_PATIENCE:
            break
    return Clone(best, mean, std, best_nll, discrete)


def behaviour_clone(pool: Pool) -> Clone:
    """One clone of the pool's training rows, made once; held-out rows have no part in it."""
    rows, discrete = pool.train, pool.dataset.discrete
    return pool.once(
        "clone", lambda: fit_clone(rows.observations, rows.actions, rows.episodes, pool.seed, discrete=discrete)
    )


CLONE = (
    Diagnostic(
        "behaviour_log_prob", "high", "log density of pi(s) over that of the logged action, by a behaviour clone"
    ),
)


def behaviour_log_prob(pool: Pool) -> dict[str, Scores]:
    """E[log b(pi(s) | s) - log b(a | s)] at held-out rows: 0 is as likely as the data's own actions.

    b is a mixture of five Gaussians, or categorical where actions are discrete, and, at weight 0.001, uniform, which
    bounds what one row can do. A deterministic policy at the mode of the behaviour is above 0; compare candidates, not
    signs.
    """
    rows = pool.validation
    if rows is None:
        return {"behaviour_log_prob": not_applicable(pool, NOT_HELD_OUT)}
    clone = behaviour_clone(pool)
    logged = pool.once("clone at held-out rows", lambda: clone.log_prob(rows.observations, rows.actions))
    ratios = [clone.log_prob(rows.observations, actions) - logged for actions in pool.actions("validation")]
    return {"behaviour_log_prob": over_episodes(pool, rows, np.stack(ratios))}


# Nearest neighbours


class Neighbourhood(NamedTuple):
    """Logged (s, a), whitened, and how far apart they lie."""

    reference: jax.Array
    squared_radius: float
    """95 % of the reference rows have their fifth neighbour, of other episodes, within it."""
    mean: np.ndarray
    whitener: np.ndarray

    def whiten(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        pairs = np.concatenate([observations, actions], -1, dtype=np.float64)
        return ((pairs - self.mean) @ self.whitener).astype(np.float32)


def squared_distances(x: Any, y: Any) -> Any:
    return (x**2).sum(-1)[:, None] - 2 * x @ y.T + (y**2).sum(-1)


def whitening(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and a matrix that takes them to unit covariance, but for directions that hardly vary."""
    scale = pairs.std(0) + 1e-9
    variances, directions = np.linalg.eigh(np.cov((pairs / scale).T))
    variances = np.maximum(variances, LEAST_VARIANCE * variances.mean())
    return pairs.mean(0), (directions / np.sqrt(variances)) / scale[:, None]


def neighbourhood(rows: Rows, seed: int = 0) -> Neighbourhood:
    """The reference, and its radius by leaving out: each row's neighbours are sought in the other episodes.

    Leaving out the row alone, as usual, would find the steps just before and after it, which a held-out row lacks:
    data never seen would then be called far from data.
    """
    random = np.random.default_rng(seed)
    if len(rows) > REFERENCE_ROWS:
        rows = rows.take(np.sort(random.choice(len(rows), REFERENCE_ROWS, replace=False)))
    mean, whitener = whitening(np.concatenate([rows.observations, rows.actions], -1, dtype=np.float64))
    found = Neighbourhood(jnp.zeros(()), 0.0, mean, whitener)
    reference = found.whiten(rows.observations, rows.actions)
    queries = np.sort(random.choice(len(rows), min(len(rows), QUERY_ROWS), replace=False))
    alone = len(np.unique(rows.episodes)) == 1
    fifth = []
    for part in np.array_split(queries, max(1, len(queries) // 500)):
        distances = squared_distances(reference[part], reference)
        same = part[:, None] == np.arange(len(rows)) if alone else rows.episodes[part, None] == rows.episodes
        distances[same] = np.inf
        fifth.append(np.partition(distances, NEIGHBOURS - 1, axis=1)[:, NEIGHBOURS - 1])
    radius = float(np.quantile(np.concatenate(fifth), QUANTILE))
    return found._replace(reference=jnp.asarray(reference), squared_radius=radius)


@jax.jit
def _within(reference: jax.Array, squared_radius: jax.Array, queries: jax.Array) -> jax.Array:
    """How many reference rows lie within the radius of each query."""
    return (squared_distances(queries, reference) <= squared_radius).sum(-1)


OOD = (Diagnostic("ood_fraction", "low", "share of (s, pi(s)) further from the data than 95 % of the data are"),)


def ood_fraction(pool: Pool) -> dict[str, Scores]:
    """The share of (s, pi(s)) with fewer than five training rows within `Neighbourhood.squared_radius`.

    At held-out states: about 0.05 for a policy that acts as the data.
    """
    rows = pool.validation
    if rows is None:
        return {"ood_fraction": not_applicable(pool, NOT_HELD_OUT)}
    near = pool.once("neighbourhood", lambda: neighbourhood(pool.train, pool.seed))
    thin = np.linspace(0, len(rows) - 1, min(len(rows), QUERY_ROWS)).astype(int)
    rows = rows.take(thin)
    far = []
    for actions in pool.actions("validation"):
        queries = near.whiten(rows.observations, actions[thin])
        far.append(np.asarray(_within(near.reference, near.squared_radius, queries)) < NEIGHBOURS)
    return {"ood_fraction": over_episodes(pool, rows, np.stack(far))}


# The policy itself

MOTION = (
    Diagnostic("saturation", "flag", "share of action dimensions beyond 0.99 of the box"),
    Diagnostic("jerk", "flag", "mean distance of pi(s') to pi(s) along logged transitions"),
)


def motion(pool: Pool) -> dict[str, Scores]:
    """Safety flags, compare them with the data's own."""
    name, rows = split_name(pool), split_rows(pool)
    actions, following = pool.actions(name), pool.actions(f"{name}_next")
    saturation = over_episodes(pool, rows, (np.abs(actions) > 0.99).mean(-1))
    return {
        "saturation": not_applicable(pool, "discrete actions have no bounds") if pool.dataset.discrete else saturation,
        "jerk": over_episodes(pool, rows, np.linalg.norm(following - actions, axis=-1)),
    }


DRIFT = (Diagnostic("policy_drift", "low", "squared distance to the policy of the member's checkpoint before"),)


def policy_drift(pool: Pool) -> dict[str, Scores]:
    """How much the policy still moves, per checkpoint of those in the pool; low among equals."""
    actions, rows = pool.actions(split_name(pool)), split_rows(pool)
    before: dict[Any, int] = {}
    drift, reasons = np.full(actions.shape[:2], np.nan), [""] * len(pool)
    for i in sorted(range(len(pool)), key=lambda i: pool.candidates[i].step):
        member = (pool.candidates[i].run.path, pool.candidates[i].member)
        if member in before:
            drift[i] = ((actions[i] - actions[before[member]]) ** 2).sum(-1)
        else:
            reasons[i] = "the first of its member's checkpoints in the pool"
        before[member] = i
    scores = over_episodes(pool, rows, drift)
    scores.reasons = reasons
    return {"policy_drift": scores}


MEASUREMENTS = (
    Measurement("action_distances", DISTANCES, action_distances, images=True),
    Measurement("clone", CLONE, behaviour_log_prob),
    Measurement("neighbours", OOD, ood_fraction),
    Measurement("motion", MOTION, motion, images=True),
    Measurement("drift", DRIFT, policy_drift, per_policy=False, images=True),
)
