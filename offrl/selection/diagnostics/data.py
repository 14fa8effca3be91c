"""What the data alone say before any policy is looked at. Warning levels, not rankings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from offrl.data.dataset import Dataset
from offrl.data.transforms import actions_to_unit_box
from offrl.selection.diagnostics.support import fit_clone, squared_distances, whitening
from offrl.selection.pool import Pool

ROWS = 20_000
"""Transitions that a check looks at, unless it says otherwise."""
QUERIES = 1_500
NEIGHBOURS = 10
UNIFORM_STD = 1 / 3**0.5
"""Standard deviation of an action drawn uniformly from [-1, 1]."""


class Check(NamedTuple):
    check: str
    value: float
    level: str
    """"ok", "note" or "warning"."""
    message: str


class Sample(NamedTuple):
    """Rows of a dataset, actions in [-1, 1]."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    episodes: np.ndarray
    discrete: bool = False


def sample(dataset: Dataset, rows: int = ROWS, seed: int = 0) -> Sample:
    """Random transitions whose next observation was really seen."""
    steps = dataset.dynamics_rows
    if len(steps) > rows:
        steps = np.sort(np.random.default_rng(seed).choice(steps, rows, replace=False))
    at = dataset.observation_rows[steps]
    return Sample(
        dataset.observations[at],
        actions_to_unit_box(dataset.transforms, dataset.actions[steps]),
        dataset.rewards[steps],
        dataset.observations[at + 1],
        dataset.episode_of_step[steps],
        dataset.discrete,
    )


def checks(dataset: Dataset, seed: int = 0) -> pd.DataFrame:
    """All of them: check, value, level, message. Of images only what returns say."""
    if dataset.observations.ndim > 2:
        return pd.DataFrame(return_profile(dataset), columns=list(Check._fields))
    rows = sample(dataset, seed=seed)
    found = [
        *return_profile(dataset),
        predictability(rows, seed),
        coverage_check(rows, seed),
        stationarity(dataset, seed),
        stochasticity(rows, seed),
        reward_determined(rows, seed),
    ]
    return pd.DataFrame(found, columns=list(Check._fields))


# Returns


def return_profile(dataset: Dataset) -> list[Check]:
    """Mean, spread, quantiles and skew of episode returns, and how many episodes are cut off."""
    returns = dataset.returns
    low, median, high = np.quantile(returns, [0.05, 0.5, 0.95])
    spread = float(returns.std())
    skew = float((high - median) / (high - low)) if high > low else 0.5
    headroom = float((high - returns.mean()) / spread) if spread > 0 else 0.0
    truncated = float(dataset.truncations[dataset.ends].mean())
    profile = f"5 % {low:.4g}, median {median:.4g}, 95 % {high:.4g}, best {returns.max():.4g}"
    if spread == 0:
        spread_check = Check(
            "return_spread", 0.0, "warning", "all episodes return the same: nothing tells good from bad"
        )
    else:
        text = f"standard deviation {spread:.4g}; the best twentieth is {headroom:.1f} of them above the mean"
        text += ": imitating all of it wastes the best" if headroom > 2 else ""
        spread_check = Check("return_spread", spread, "note" if headroom > 2 else "ok", text)
    return [
        Check("return_mean", float(returns.mean()), "ok", profile),
        spread_check,
        Check(
            "return_skew",
            skew,
            "note" if skew > 0.75 else "ok",
            "share of the 5-95 % range that lies above the median" + (": few good episodes" if skew > 0.75 else ""),
        ),
        Check("truncated", truncated, "ok", f"{truncated:.0%} of the episodes are cut off rather than terminated"),
    ]


# The behaviour policy


def predictability(rows: Sample, seed: int = 0) -> Check:
    """R^2 of a behaviour clone's mean action on unseen episodes: 1 is a deterministic function of the state."""
    present = np.unique(rows.episodes)
    random = np.random.default_rng(seed)
    held_out = np.isin(rows.episodes, random.choice(present, max(1, len(present) // 5), replace=False))
    if held_out.all():
        held_out = random.random(len(rows.episodes)) < 0.2
    train = ~held_out
    clone = fit_clone(rows.observations[train], rows.actions[train], rows.episodes[train], seed, 2_000, rows.discrete)
    error = ((rows.actions[held_out] - clone.expected(rows.observations[held_out])) ** 2).sum()
    total = ((rows.actions[held_out] - rows.actions[train].mean(0)) ** 2).sum()
    value = float(1 - error / total) if total > 0 else 1.0
    if value < 0.2:
        text = "actions hardly depend on the state, or several policies disagree: closeness to the data means little"
    else:
        text = f"a clone explains {value:.0%} of the variance of actions"
    return Check("behaviour_predictability", value, "note" if value < 0.2 else "ok", text)


def action_coverage(rows: Sample, seed: int = 0) -> float:
    """c in [0, 1]: the spread of actions among states alike, over that of uniform actions, mean over dimensions.

    The spread is the standard deviation; of discrete actions, how often two of them differ. Among the 10 nearest states
    of other episodes (of any, where there is one). Near 0 the data are narrow: only what
    was done can be judged; near 1 they are broad.
    """
    random = np.random.default_rng(seed)
    if len(rows.episodes) > 10_000:
        rows = _take(rows, np.sort(random.choice(len(rows.episodes), 10_000, replace=False)))
    states = (rows.observations - rows.observations.mean(0)) / (rows.observations.std(0) + 1e-6)
    queries = random.choice(len(states), min(len(states), QUERIES), replace=False)
    nearest, _ = _nearest(states, rows.episodes, queries)
    if rows.discrete:
        differ = rows.actions[nearest].var(1, ddof=1).sum(1).mean()  # one-hot: unbiased, however few the neighbours
        return float(min(differ / (1 - 1 / max(rows.actions.shape[1], 2)), 1.0))
    spread = rows.actions[nearest].std(1, ddof=1).mean(0)  # [action_dim]
    return float(np.minimum(spread / UNIFORM_STD, 1).mean())


def coverage(pool: Pool) -> float:
    """`action_coverage` of the pool's dataset; made once. nan where observations are images."""
    if pool.images:
        return np.nan
    return pool.once("coverage", lambda: action_coverage(sample(pool.dataset, seed=pool.seed), pool.seed))


def coverage_check(rows: Sample, seed: int = 0) -> Check:
    c = action_coverage(rows, seed)
    if c < 0.15:
        return Check("coverage", c, "note", "narrow: other actions than the data's cannot be judged; trust support")
    return Check("coverage", c, "ok", "broad: value estimates have something to go by" if c > 0.5 else "in between")


def _take(rows: Sample, indices: np.ndarray) -> Sample:
    columns = {name: column[indices] for name, column in rows._asdict().items() if name != "discrete"}
    return rows._replace(**columns)


def _nearest(points: np.ndarray, episodes: np.ndarray, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices and squared distances [queries, NEIGHBOURS] of the nearest points of other episodes, ascending.

    Where there is one episode, of other rows.
    """
    points = points.astype(np.float32)
    alone = len(np.unique(episodes)) == 1
    indices, distances = [], []
    count = min(NEIGHBOURS, len(points) - 1)
    for part in np.array_split(queries, max(1, len(queries) // 500)):
        squared = squared_distances(points[part], points)
        same = part[:, None] == np.arange(len(points)) if alone else episodes[part, None] == episodes
        squared[same] = np.inf
        found = np.argpartition(squared, count - 1, axis=1)[:, :count]
        near = np.take_along_axis(squared, found, 1)
        order = np.argsort(near, axis=1, kind="stable")
        indices.append(np.take_along_axis(found, order, 1))
        distances.append(np.maximum(np.take_along_axis(near, order, 1), 0))
    return np.concatenate(indices), np.concatenate(distances)


# Drift over the order of the episodes

STATIONARITY_EPISODES = 400
STATIONARITY_FEATURES = 32
PERMUTATIONS = 199
DISCOUNT = 0.95


def stationarity(dataset: Dataset, seed: int = 0) -> Check:
    """Do early and late episodes tell of one value function? A p-value from permuting the episodes.

    After CUSUM-RL (Li, Shi, Wu & Fryzlewicz 2022), for continuous actions and one split in the middle: a linear
    LSTD fit of the behaviour's Q on either half, the mean squared difference of the two over the data, and the same
    after episodes have changed halves at random. Small p: the environment, or the behaviour, has changed in time, in
    the order in which the file holds its episodes.
    """
    random = np.random.default_rng(seed)
    count = min(dataset.episodes, STATIONARITY_EPISODES)
    if count < 8:
        return Check("stationarity", np.nan, "ok", f"{dataset.episodes} episodes are too few to compare early and late")
    part = dataset.select_episodes(np.linspace(0, dataset.episodes - 1, count).round().astype(int))
    rows = part.transitions()
    pairs = np.concatenate([rows.observations, rows.actions], -1, dtype=np.float64)
    following = np.concatenate([rows.next_observations, rows.next_actions], -1, dtype=np.float64)
    mean, std = pairs.mean(0), pairs.std(0) + 1e-6
    width = pairs.shape[1] ** 0.5
    frequencies = random.normal(0, 1 / width, (pairs.shape[1], STATIONARITY_FEATURES))
    phases = random.uniform(0, 2 * np.pi, STATIONARITY_FEATURES)

    def features(x: np.ndarray) -> np.ndarray:
        cosines = np.cos((x - mean) / std @ frequencies + phases)
        return np.concatenate([np.ones((len(x), 1)), cosines], 1)

    episodes = part.episode_of_step[part.transition_rows]
    # the last step of a truncated episode has no next action; it is left out
    usable = (rows.terminations > 0) | (rows.next_action_known > 0)
    phi, episodes, rewards = features(pairs[usable]), episodes[usable], rows.rewards[usable].astype(np.float64)
    successor = DISCOUNT * (1 - rows.terminations[usable])[:, None] * features(following[usable])
    scale = rewards.std() or 1.0
    matrices = np.zeros((count, phi.shape[1], phi.shape[1]))
    vectors = np.zeros((count, phi.shape[1]))
    for episode in np.unique(episodes):
        at = episodes == episode
        matrices[episode] = phi[at].T @ (phi[at] - successor[at])
        vectors[episode] = phi[at].T @ (rewards[at] / scale)
    lengths = np.bincount(episodes, minlength=count).astype(np.float64)
    second_moment = phi.T @ phi / len(phi)

    halves = np.zeros((PERMUTATIONS + 1, count))
    halves[0, count // 2 :] = 1
    for i in range(1, PERMUTATIONS + 1):
        halves[i] = random.permutation(halves[0])
    ridge = 1e-2 * np.eye(phi.shape[1])
    fits = []
    for weights in (halves, 1 - halves):
        n = (weights @ lengths)[:, None, None]
        a = np.tensordot(weights, matrices, 1) / n + ridge
        fits.append(np.linalg.solve(a, (weights @ vectors)[..., None] / n)[..., 0])
    difference = fits[0] - fits[1]
    statistic = np.einsum("ri,ij,rj->r", difference, second_moment, difference)
    p = float((statistic >= statistic[0] * (1 - 1e-9)).mean())
    if p < 0.05:
        text = f"early and late episodes differ (p = {p:.3f}): a mixture over time, or an environment that has changed"
    else:
        text = f"early and late episodes do not differ (p = {p:.2f})"
    return Check("stationarity", p, "note" if p < 0.05 else "ok", text)


# What observations and actions leave undetermined


def stochasticity(rows: Sample, seed: int = 0) -> Check:
    """The share of the variance of the change of observations that (s, a) does not determine, see `undetermined`."""
    value = undetermined(rows, rows.next_observations - rows.observations, seed)
    if np.isnan(value):
        return Check("stochasticity", value, "ok", "observations never change, or too few rows to find neighbours")
    if value > 0.3:
        text = "much of what happens is not determined by (s, a): methods conditioned on returns are at risk"
    else:
        text = (
            f"about {value:.0%} of the change of observations is not determined by (s, a), if the rows are dense enough"
        )
    return Check("stochasticity", value, "note" if value > 0.3 else "ok", text)


def reward_determined(rows: Sample, seed: int = 0) -> Check:
    """R^2 of the reward given (s, a), by the same test: what is missing hangs on what was not observed, or is noise.

    It also says why ROF, RCF and CROF (arXiv 2607.01736) are not here: checks of how far the latent state of a world
    model sees the reward. They need a latent model with a decoder and a reward head, and every model here is one of the
    observations themselves, for which ROF is 1 by construction, whatever the policy. If one joins, they are worth their
    cost only where this value is below 0.95: where (s, a) give the reward, as on the authors' Reacher, the sign of
    their correlation with returns is reversed.
    """
    value = 1 - undetermined(rows, rows.rewards[:, None], seed)
    if np.isnan(value):
        return Check("reward_determined", value, "ok", "rewards are all the same, or too few rows to find neighbours")
    if value < 0.5:
        text = f"(s, a) determine {value:.0%} of the variance of rewards: noise, or something not observed"
    else:
        text = f"(s, a) determine about {value:.0%} of the variance of rewards"
    return Check("reward_determined", value, "note" if value < 0.5 else "ok", text)


def undetermined(rows: Sample, targets: np.ndarray, seed: int = 0) -> float:
    """The share of the variance of `targets` [n, dim] that (s, a) does not determine, by a Gamma test; nan: unknown.

    Half the squared difference of two neighbours' targets, against their squared distance in whitened (s, a), for the
    first to tenth neighbours: the line's value at distance 0 is the variance of the noise (Stefansson, Koncar & Jones
    1997). Over the variance of the targets: 0 is a function of (s, a), 1 pure noise.
    """
    targets = targets.astype(np.float64)
    scale = targets.std(0)
    targets = targets[:, scale > 0] / scale[scale > 0]
    if not targets.shape[1]:
        return np.nan
    pairs = np.concatenate([rows.observations, rows.actions], -1, dtype=np.float64)
    mean, whitener = whitening(pairs)
    random = np.random.default_rng(seed)
    queries = random.choice(len(pairs), min(len(pairs), QUERIES), replace=False)
    nearest, squared = _nearest((pairs - mean) @ whitener, rows.episodes, queries)
    usable = np.isfinite(squared).all(1)
    if usable.sum() < 2:
        return np.nan
    nearest, squared, queries = nearest[usable], squared[usable], queries[usable]
    gamma = 0.5 * ((targets[nearest] - targets[queries][:, None]) ** 2).mean((0, 2))  # [NEIGHBOURS]
    delta = squared.mean(0)
    apart = np.ptp(delta) > 1e-12 * (1 + delta.max())
    return float(np.clip(np.polyfit(delta, gamma, 1)[1] if apart else gamma.mean(), 0, 1))
