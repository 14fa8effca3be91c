"""What the critics that an algorithm has learned say, on held-out rows.

Q is the lowest of an algorithm's critics, in the reward units and with the discount it was trained with, and without
the entropy that soft actor-critics add. Every score but the values themselves is free of the scale of rewards, so
that runs with different preprocessing can be compared. An algorithm without a critic has none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from offrl.algorithms import iql
from offrl.selection.diagnostics.base import (
    Diagnostic,
    Measurement,
    Scores,
    not_applicable,
    quotients,
    spread,
    without_error,
)
from offrl.selection.pool import CHUNK, Candidate, Pool, Rows

NOT_HELD_OUT = "no episode is held out from all runs; train with protocol.validation_fraction above 0"
TOP, BOTTOM = 0.2, 0.5
"""Shares of the episodes, by return, that rank-OPC tells apart."""
MOST_EPISODES = 200
"""Of either side, that rank-OPC compares."""


def no_critic(candidate: Candidate) -> str:
    """Why the candidate has no Q, or an empty string."""
    name = candidate.run.algorithm.name
    if candidate.run.policy.q_values is None:
        return f"{name} has no critic"
    return "" if candidate.discount is not None else f"{name} names no discount"


def thinned(pool: Pool, split: str) -> np.ndarray:
    """Indices of the rows of "train" or "validation" at which critics are evaluated: evenly spread, a chunk at most."""
    rows = pool.train if split == "train" else pool.validation
    assert rows is not None
    return np.linspace(0, len(rows) - 1, min(len(rows), CHUNK)).round().astype(int)


def critic_rows(pool: Pool, split: str) -> Rows:
    """Those rows."""
    rows = pool.train if split == "train" else pool.validation
    assert rows is not None
    return pool.once(f"critics' {split} rows", lambda: rows.take(thinned(pool, split)))


def own_q(pool: Pool, candidate: Candidate, where: str) -> np.ndarray:
    """[2, n]: the lowest critic and the critics' standard deviation at (s, a); evaluated once.

    Args:
        where: "train" or "validation" (`critic_rows`), then "/data", "/policy" (a = pi(s)) or "/next" (s', pi(s'));
            or "initial/policy", at the first states of all episodes.
    """

    def evaluate() -> np.ndarray:
        split, _, which = where.partition("/")
        one = pool.subset([pool.candidates.index(candidate)])
        if split == "initial":
            observations, actions = pool.initial_observations, one.actions("initial")[0]
        else:
            rows = critic_rows(pool, split)
            observations = rows.next_observations if which == "next" else rows.observations
            following = "_next" if which == "next" else ""
            actions = rows.actions if which == "data" else one.actions(split + following)[0][thinned(pool, split)]
        q = pool.q(candidate, observations, actions)
        assert q is not None
        with np.errstate(all="ignore"):  # a diverged critic is reported, and not by numpy
            return np.stack([q.min(0), q.std(0, dtype=np.float64)])

    return pool.once(f"q {candidate.run.path} {candidate.member} {candidate.step} {where}", evaluate)


def td_parts(pool: Pool, candidate: Candidate, split: str) -> tuple[np.ndarray, np.ndarray]:
    """(error, target) [n] in double precision; target r + discount * Q(s', pi(s')), and r where the episode ended."""
    rows = critic_rows(pool, split)
    assert candidate.discount is not None
    q = own_q(pool, candidate, f"{split}/data")[0].astype(np.float64)
    following = own_q(pool, candidate, f"{split}/next")[0].astype(np.float64)
    target = pool.rewards_of(candidate, rows.rewards) + candidate.discount * (1 - rows.terminations) * following
    return q - target, target


def of_means(pool: Pool, parts: list[tuple[Rows, np.ndarray]], function: Callable[..., Any]) -> Scores:
    """`function` of means over rows, with episodes resampled as wholes.

    Args:
        parts: rows and quantities of them [k, candidates, n]; `function` takes all their means, each [..., candidates].
    """
    episodes, weights = pool.dataset.episodes, pool.episode_weights.astype(np.float64)
    means, resampled, used = [], [], np.inf
    with np.errstate(all="ignore"):
        for rows, quantities in parts:
            counts = np.bincount(rows.episodes, minlength=episodes).astype(np.float64)
            totals = weights @ counts
            used = min(used, (counts > 0).sum())
            for quantity in quantities:
                sums = np.stack([np.bincount(rows.episodes, values, episodes) for values in quantity])
                means.append(sums.sum(1) / counts.sum())
                resampled.append(quotients(weights @ sums.T, totals[:, None]))
        replicates = np.asarray(function(*resampled)).T
        error = spread(replicates) if used > 1 else np.full(len(replicates), np.nan)
        return Scores(np.asarray(function(*means), np.float64), error, replicates.astype(np.float32))


def of_candidates(
    pool: Pool, compute: Callable[[Candidate], np.ndarray], reason: Callable[[Candidate], str] = no_critic
) -> tuple[np.ndarray, list[str]]:
    """`compute` [k, n] of every candidate, as [k, candidates, n] in double precision; nan where there is a reason."""
    reasons = [reason(candidate) for candidate in pool.candidates]
    found = [None if r else np.asarray(compute(c), np.float64) for c, r in zip(pool.candidates, reasons, strict=True)]
    like = next((values for values in found if values is not None), np.zeros((1, 1)))
    return np.stack([np.full(like.shape, np.nan) if values is None else values for values in found], 1), reasons


def explained(scores: Scores, reasons: list[str]) -> Scores:
    scores.reasons = reasons
    return scores


def all_not_applicable(pool: Pool, diagnostics: tuple[Diagnostic, ...], reason: str) -> dict[str, Scores]:
    return {diagnostic.name: not_applicable(pool, reason) for diagnostic in diagnostics}


def no_reason(pool: Pool) -> str:
    """Why no candidate can be scored: there is no held-out row, or no critic at all."""
    if pool.validation is None:
        return NOT_HELD_OUT
    return none_applies(pool)


def none_applies(pool: Pool, reason: Callable[[Candidate], str] = no_critic) -> str:
    """The reasons of all candidates, or an empty string where one has none."""
    reasons = [reason(candidate) for candidate in pool.candidates]
    return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""


TD = (
    Diagnostic("td_error", "low", "held-out squared TD error of the critic, over the variance of its target"),
    Diagnostic("td_error_ratio", "flag", "squared TD error on held-out rows over that on training rows"),
)


def td_error(pool: Pool) -> dict[str, Scores]:
    """E[(Q(s, a) - y)^2] / Var[y]; biased by twice the same sample, and kind to flat critics that bootstrap little.

    td_error_ratio: how much larger E[(Q - y)^2] is on rows that the critic has not seen.
    """
    if reason := no_reason(pool):
        return all_not_applicable(pool, TD, reason)
    rows, train_rows = critic_rows(pool, "validation"), critic_rows(pool, "train")

    def moments(candidate: Candidate) -> np.ndarray:
        error, target = td_parts(pool, candidate, "validation")
        centred = target - target.mean()  # the variance does not cancel away
        return np.stack([error**2, centred, centred**2])

    held_out, reasons = of_candidates(pool, moments)
    train, _ = of_candidates(pool, lambda c: td_parts(pool, c, "train")[0][None] ** 2)
    normalised = of_means(pool, [(rows, held_out)], lambda e, y, yy: e / (yy - y**2))
    ratio = of_means(pool, [(rows, held_out[:1]), (train_rows, train)], lambda e, t: e / t)
    return {"td_error": explained(normalised, reasons), "td_error_ratio": explained(ratio, reasons)}


VALUES = (
    Diagnostic("initial_value", "high", "the critic's value of the policy at held-out first states, raw rewards"),
    Diagnostic("average_value", "high", "the critic's value of the policy at held-out states, raw rewards"),
    Diagnostic("advantage_gap", "low", "Q(s, pi(s)) - Q(s, a), over the spread of Q: large is exploitation"),
    Diagnostic("critic_disagreement", "low", "spread of the critics at (s, pi(s)), over the spread of Q"),
)


def values(pool: Pool) -> dict[str, Scores]:
    """What the critic says at (s, pi(s)).

    Values are in raw reward units: r' = x r + y gives V = (V' - y / (1 - discount)) / x.
    The shift's part is exact where episodes do not terminate, else a bound on it.
    """
    if reason := no_reason(pool):
        return all_not_applicable(pool, VALUES, reason)
    rows = critic_rows(pool, "validation")

    def raw(candidate: Candidate, q: np.ndarray) -> np.ndarray:
        shift, one = pool.rewards_of(candidate, np.array([0.0, 1.0])).astype(np.float64)
        assert candidate.discount is not None
        return (q - (shift / (1 - candidate.discount) if shift else 0.0)) / (one - shift)

    def moments(candidate: Candidate) -> np.ndarray:
        data = own_q(pool, candidate, "validation/data")[0].astype(np.float64)
        policy, spread = own_q(pool, candidate, "validation/policy").astype(np.float64)
        centred = data - data.mean()
        return np.stack([raw(candidate, policy), policy - data, spread, centred, centred**2])

    def critics(candidate: Candidate) -> str:
        one = no_critic(candidate)
        if one:
            return one
        shape = pool.q(candidate, rows.observations[:1], rows.actions[:1])
        return f"{candidate.run.algorithm.name} has one critic" if shape is not None and len(shape) == 1 else ""

    first = first_rows(pool)
    initial, reasons = of_candidates(
        pool, lambda c: raw(c, own_q(pool, c, "initial/policy")[:1, pool.held_out].astype(np.float64))
    )
    m, _ = of_candidates(pool, moments)
    gap = of_means(pool, [(rows, m[[1, 3, 4]])], lambda g, q, qq: g / np.sqrt(qq - q**2))
    disagreement = of_means(pool, [(rows, m[[2, 3, 4]])], lambda s, q, qq: s / np.sqrt(qq - q**2))
    alone = [critics(candidate) for candidate in pool.candidates]
    for found in (disagreement.value, disagreement.standard_error, disagreement.replicates):
        assert found is not None
        found[[bool(reason) for reason in alone]] = np.nan
    return {
        "initial_value": explained(of_means(pool, [(first, initial)], lambda v: v), reasons),
        "average_value": explained(of_means(pool, [(rows, m[:1])], lambda v: v), reasons),
        "advantage_gap": explained(gap, reasons),
        "critic_disagreement": explained(disagreement, alone),
    }


ADVANTAGES = (
    Diagnostic("discounted_advantages", "low", "discounted sum over an episode of Q(s, a) - Q(s, pi(s)), raw rewards"),
)


def discounted_advantages(pool: Pool) -> dict[str, Scores]:
    """The mean over held-out episodes of sum_t discount^t (Q(s_t, a_t) - Q(s_t, pi(s_t))).

    Low where the critic holds the policy for better than the data. The sums are over whole episodes, however long:
    rows that have been thinned out are made up for by the discounted lengths, which are known.
    """
    if reason := no_reason(pool):
        return all_not_applicable(pool, ADVANTAGES, reason)
    rows = critic_rows(pool, "validation")
    lengths = pool.dataset.lengths[pool.held_out]

    def moments(candidate: Candidate) -> np.ndarray:
        assert candidate.discount is not None
        zero, one = pool.rewards_of(candidate, np.array([0.0, 1.0])).astype(np.float64)
        data, policy = (own_q(pool, candidate, f"validation/{a}")[0].astype(np.float64) for a in ("data", "policy"))
        weights = candidate.discount ** rows.timesteps.astype(np.float64)
        per_episode = np.mean([(candidate.discount ** np.arange(length)).sum() for length in lengths])
        return np.stack([per_episode * weights * (data - policy) / (one - zero), weights])

    m, reasons = of_candidates(pool, moments)
    scores = of_means(pool, [(rows, m)], lambda advantage, weight: advantage / weight)
    return {"discounted_advantages": explained(scores, reasons)}


WEIGHTS = (
    Diagnostic(
        "weight_ess", "flag", "effective share of training rows under advantage weights: < 0.01 few, 1 is cloning"
    ),
)


def advantage_weights(candidate: Candidate, advantage: np.ndarray) -> np.ndarray:
    """The weights [n] that the algorithm gives to the data's actions in fitting its policy."""
    config, name = candidate.config, candidate.run.algorithm.name
    if name == "crr" and config.weight == "indicator":
        return (advantage > 0).astype(np.float64)
    if name == "iql":
        return np.exp(np.minimum(config.temperature * advantage, np.log(iql.MAX_WEIGHT)))
    return np.exp(np.minimum(advantage / config.temperature, np.log(config.max_weight)))


def no_advantage_weights(candidate: Candidate) -> str:
    name = candidate.run.algorithm.name
    known = name in ("iql", "awac", "crr")
    return "" if known else f"{name} does not weight the data's actions by their advantages"


def weight_ess(pool: Pool) -> dict[str, Scores]:
    """(sum w)^2 / (n sum w^2) of w(A(s, a)) on training rows, with A = Q(s, a) - V(s).

    V is the algorithm's own (IQL), or Q(s, pi(s)) at the deployed action, for which AWAC and CRR draw from the policy.
    Near 0 the policy is fitted to a handful of rows, at 1 it is a clone.
    """
    if reason := none_applies(pool, no_advantage_weights):
        return all_not_applicable(pool, WEIGHTS, reason)
    rows = critic_rows(pool, "train")

    def moments(candidate: Candidate) -> np.ndarray:
        value = pool.value(candidate, rows.observations)
        if value is None:
            value = own_q(pool, candidate, "train/policy")[0]
        advantage = own_q(pool, candidate, "train/data")[0].astype(np.float64) - value
        weights = advantage_weights(candidate, advantage)
        return np.stack([weights, weights**2])

    m, reasons = of_candidates(pool, moments, no_advantage_weights)
    return {"weight_ess": explained(of_means(pool, [(rows, m)], lambda w, ww: w**2 / ww), reasons)}


def first_rows(pool: Pool) -> Rows:
    """The first step of every held-out episode."""
    dataset, episodes = pool.dataset, np.flatnonzero(pool.held_out)
    steps = dataset.starts[episodes]
    rows = dataset.observation_rows[steps]
    empty = np.zeros(len(steps), np.float32)
    return Rows(
        observations=dataset.observations[rows],
        actions=dataset.actions[steps],
        rewards=dataset.rewards[steps],
        next_observations=dataset.observations[rows + 1],
        terminations=dataset.terminations[steps].astype(np.float32),
        next_actions=dataset.actions[steps] * 0,
        next_action_known=empty,
        episodes=episodes,
        timesteps=np.zeros(len(steps), np.int64),
        steps=steps,
    )


OPC = (
    Diagnostic("rank_opc", "high", "how surely Q tells steps of the best episodes from those of bad ones"),
    Diagnostic("soft_opc", "high", "mean Q of steps of the best episodes above that of all, over the spread"),
)


def off_policy_classification(pool: Pool) -> dict[str, Scores]:
    """Off-policy classification, on held-out episodes.

    rank_opc is the share of pairs (a step of the top 20 % of episodes by return, a step at the same time of the bottom
    50 %) in which the former has the higher Q, ties half: scale-free, and 0.5 for a critic that knows nothing.
    soft_opc is E[Q | top 20 %] - E[Q] over the standard deviation of Q.
    """
    if reason := no_reason(pool):
        return all_not_applicable(pool, OPC, reason)
    rows = critic_rows(pool, "validation")
    present = np.unique(rows.episodes)
    returns = pool.dataset.returns[present]
    order = present[np.argsort(-returns, kind="stable")]
    top, bottom = order[: max(1, int(TOP * len(order)))], order[len(order) - int(BOTTOM * len(order)) :]
    if len(present) < 5 or pool.dataset.returns[top].min() <= pool.dataset.returns[bottom].max():
        return all_not_applicable(pool, OPC, "too few held-out episodes, or too alike in return, to tell good from bad")
    q, reasons = of_candidates(pool, lambda c: own_q(pool, c, "validation/data")[:1])
    q = q[0]
    wins, pairs = _concordance(rows, q, _thin(top), _thin(bottom))
    weights = pool.episode_weights.astype(np.float64)
    better, worse = weights[:, _thin(top)], weights[:, _thin(bottom)]
    with np.errstate(invalid="ignore", divide="ignore"):
        totals = np.einsum("ri,ij,rj->r", better, pairs, worse, optimize=True)
        replicates = np.einsum("ri,cij,rj->cr", better, wins, worse, optimize=True) / totals
        auc = wins.sum((1, 2)) / pairs.sum()
        rank = Scores(auc, spread(replicates), replicates.astype(np.float32))

    centred = q - q.mean(1, keepdims=True)
    is_top = np.isin(rows.episodes, top).astype(np.float64)
    moments = np.stack([centred * is_top, np.broadcast_to(is_top, q.shape), centred, centred**2])
    soft = of_means(pool, [(rows, moments)], lambda t, share, q, qq: (t / share - q) / np.sqrt(qq - q**2))
    if pairs.sum() == 0:
        rank = without_error(np.full(len(pool), np.nan))
        return {
            "rank_opc": explained(rank, ["no good and bad episode share a time step"] * len(pool)),
            "soft_opc": explained(soft, reasons),
        }
    return {"rank_opc": explained(rank, reasons), "soft_opc": explained(soft, reasons)}


def _thin(episodes: np.ndarray) -> np.ndarray:
    """At most MOST_EPISODES of them, evenly spread."""
    if len(episodes) <= MOST_EPISODES:
        return episodes
    return episodes[np.linspace(0, len(episodes) - 1, MOST_EPISODES).round().astype(int)]


def _concordance(rows: Rows, q: np.ndarray, top: np.ndarray, bottom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """wins [candidates, top, bottom]: times at which the former episode has the higher Q; pairs: times compared."""
    wins, pairs = np.zeros((len(q), len(top), len(bottom))), np.zeros((len(top), len(bottom)))
    places = [np.full(rows.episodes.max() + 1, -1) for _ in range(2)]
    for place, episodes in zip(places, (top, bottom), strict=True):
        place[episodes] = np.arange(len(episodes))
    order = np.argsort(rows.timesteps, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(rows.timesteps[order])) + 1):
        i, j = (place[rows.episodes[at]] for place in places)
        high, low = at[i >= 0], at[j >= 0]
        if len(high) and len(low):
            where = np.ix_(i[i >= 0], j[j >= 0])
            difference = q[:, high, None] - q[:, None, low]
            wins[:, where[0], where[1]] += np.where(np.isnan(difference), np.nan, 0.5 + 0.5 * np.sign(difference))
            pairs[where] += 1
    return wins, pairs


MEASUREMENTS = (
    Measurement("td", TD, td_error, images=True),
    Measurement("critic_values", VALUES, values, images=True),
    Measurement("advantages", ADVANTAGES, discounted_advantages, images=True),
    Measurement("weights", WEIGHTS, weight_ess, images=True),
    Measurement("off_policy_classification", OPC, off_policy_classification, images=True),
)
