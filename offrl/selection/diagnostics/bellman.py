"""Bellman error: whose critic is consistent with the data, on held-out rows.

TD errors hold the noise of rewards and transitions; these estimate E[(Q - T Q)^2] without it, where T Q(s, a) =
E[r + discount (1 - d) Q(s', pi(s'))]. A critic that is consistent is not a policy that is good: combine with a score
of value. Q is the lowest of an algorithm's critics, and T is that of the policy that is deployed, which is not the
one that each algorithm trains its critic with (IQL's is of the data's actions, and soft critics add an entropy).
All are in the critic's own units and with its own discount, and over the variance of the target.

- bvft: batch value function tournament (Xie and Jiang 2021), pairwise projections on piecewise constant functions.
- ridge_bellman_error: supervised Bellman validation (Zitovsky et al. 2023) with ridge regression on random Fourier
  features in place of a network: one factorisation serves all candidates.
- ibes: E[2 g delta - g^2] with g the regression of the TD error delta on the same features, a lower bound of the
  Bellman error that is tight where g is right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offrl.selection.diagnostics.base import (
    Diagnostic,
    Measurement,
    Scores,
    not_applicable,
    quotients,
    spread,
    without_error,
)
from offrl.selection.diagnostics.critic import (
    NOT_HELD_OUT,
    critic_rows,
    no_critic,
    of_candidates,
    of_means,
    own_q,
    td_parts,
)
from offrl.selection.diagnostics.features import random_features, standardiser
from offrl.selection.pool import Candidate, Pool

RESOLUTIONS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Of BVFT: the width of a cell, in standard deviations of Q."""
RANGE = 4.0
"""Standard deviations from the mean beyond which Q falls into the last cell."""
MOST_CRITICS = 300
BVFT_ROWS = 5_000
PENALTIES = np.logspace(-6, 2, 33)
"""Ridge penalties tried, over the number of rows and the mean squared feature."""


def reason_against(pool: Pool, candidate: Candidate) -> str:
    """Why a candidate has no Bellman error, or an empty string."""
    if reason := no_critic(candidate):
        return reason
    finite = all(np.isfinite(own_q(pool, candidate, f"validation/{which}")[0]).all() for which in ("data", "next"))
    return "" if finite else "its critic is not finite"


# Ridge regression


class Ridge(NamedTuple):
    """Phi^T Phi / n = vectors diag(values) vectors^T, from which every penalty and every target follow."""

    features: np.ndarray
    vectors: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> Ridge:
        features = features.astype(np.float64)  # in float32 the small eigenvalues are rounding errors
        values, vectors = np.linalg.eigh(features.T @ features / len(features))
        return cls(features, vectors, np.maximum(values, 0.0))

    def fit(self, y: np.ndarray) -> tuple[np.ndarray, float]:
        """Coefficients [features] for targets y [n], and the penalty, of all those tried the best by GCV.

        GCV = (RSS / n) / (1 - tr(H) / n)^2, the hat matrix H = Phi (Phi^T Phi + n penalty I)^-1 Phi^T.
        """
        n = len(self.features)
        projected = self.vectors.T @ (self.features.T @ y.astype(np.float64)) / n
        penalties = PENALTIES[:, None] * self.values.mean()
        shrunk = projected / (self.values + penalties)  # [penalties, features]
        residual = np.square(y, dtype=np.float64).mean() - (shrunk * (2 * projected - self.values * shrunk)).sum(1)
        freedom = (self.values / (self.values + penalties)).sum(1) / n
        best = int(np.argmin(residual / (1 - freedom) ** 2))
        return self.vectors @ shrunk[best], float(penalties[best, 0])


RIDGE = (
    Diagnostic("ridge_bellman_error", "low", "held-out squared distance of Q to a regression of its target"),
    Diagnostic("ibes", "low", "held-out lower bound of the squared Bellman error by a regression of the TD error"),
)


def measure_ridge(pool: Pool) -> dict[str, Scores]:
    """Regressions on training rows, scores on held-out rows, both over the variance of the held-out targets."""
    if pool.validation is None:
        return {diagnostic.name: not_applicable(pool, NOT_HELD_OUT) for diagnostic in RIDGE}
    train, rows = critic_rows(pool, "train"), critic_rows(pool, "validation")

    def factorise() -> tuple[Ridge, np.ndarray]:
        inputs, features = standardiser(pool), random_features(pool)
        return (
            Ridge.of(features(inputs(train.observations, train.actions))),
            features(inputs(rows.observations, rows.actions)),
        )

    ridge, phi = pool.once("ridge", factorise)

    def moments(candidate: Candidate) -> np.ndarray:
        train_error, train_target = td_parts(pool, candidate, "train")
        error, target = td_parts(pool, candidate, "validation")
        center = train_target.mean()
        backup = center + phi @ ridge.fit(train_target - center)[0]
        g = phi @ ridge.fit(train_error)[0]
        centred = target - target.mean()
        return np.stack([(error + target - backup) ** 2, 2 * g * error - g**2, centred, centred**2])

    m, reasons = of_candidates(pool, moments, lambda candidate: reason_against(pool, candidate))
    if all(reasons):
        nothing = without_error(np.full(len(pool), np.nan), reasons)
        return {diagnostic.name: nothing for diagnostic in RIDGE}
    result = {}
    for diagnostic, part in zip(RIDGE, m[:2], strict=True):
        found = of_means(pool, [(rows, np.stack([part, *m[2:]]))], lambda e, y, yy: e / (yy - y**2))
        found.reasons = reasons
        result[diagnostic.name] = found
    return result


# BVFT


def cells(q: np.ndarray, resolution: float) -> np.ndarray:
    """int [critics, n]: the cell of each value, `resolution` standard deviations of its critic wide, from 0."""
    standardised = (q - q.mean(1, keepdims=True)) / np.maximum(q.std(1, keepdims=True), 1e-12)
    return np.floor((np.clip(standardised, -RANGE, RANGE) + RANGE) / resolution).astype(np.int64)


def tournament_losses(
    q: np.ndarray, targets: np.ndarray, resolution: float, weights: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    """max over j of ||Q_i - projection of y_i on the cells of (Q_i, Q_j)|| / sd(y_i), [resamples, critics].

    Args:
        q, targets: [critics, n].
        weights: [resamples, episodes], how often each episode counts in the norm; projections are of all rows. Where
            none counts, the losses are nan.
        groups: int [n], the episode of each row.
    """
    cell = cells(q, resolution)
    width = int(cell.max()) + 1
    episodes = weights.shape[1]
    totals = weights @ np.bincount(groups, minlength=episodes)
    losses = np.empty((len(weights), len(q)))
    for i in range(len(q)):
        squares = np.empty((len(q), episodes))
        for j in range(len(q)):
            joint = cell[i] * width + cell[j]
            counts = np.bincount(joint)
            means = np.bincount(joint, targets[i]) / np.maximum(counts, 1)
            squares[j] = np.bincount(groups, (q[i] - means[joint]) ** 2, episodes)
        means_of_squares = quotients(weights @ squares.T, totals[:, None])
        losses[:, i] = np.sqrt(means_of_squares.max(1) / max(targets[i].var(), 1e-12))
    return losses


def rank_share(losses: np.ndarray) -> np.ndarray:
    """Share of the other critics with a lower loss, ties half, in [0, 1]; [..., critics]. nan where the loss is."""
    below = (losses[..., None, :] < losses[..., :, None]).sum(-1)
    ties = (losses[..., None, :] == losses[..., :, None]).sum(-1) - 1
    return np.where(np.isnan(losses), np.nan, (below + 0.5 * ties) / max(losses.shape[-1] - 1, 1))


def measure_bvft(pool: Pool) -> dict[str, Scores]:
    """Mean over RESOLUTIONS of the rank of each critic's worst loss; resamples leave the projections as they are."""
    if pool.validation is None:
        return {"bvft": not_applicable(pool, NOT_HELD_OUT)}
    reasons = [reason_against(pool, c) or ("its run diverged" if c.diverged else "") for c in pool.candidates]
    critics = [i for i, reason in enumerate(reasons) if not reason]
    if len(critics) > MOST_CRITICS:
        too_many = f"{len(critics)} critics are too many to compare in pairs; give at most {MOST_CRITICS}"
        reasons = [reason or too_many for reason in reasons]
    if all(reasons):
        return {"bvft": without_error(np.full(len(pool), np.nan), reasons)}
    rows = critic_rows(pool, "validation")
    random = np.random.default_rng(pool.seed)
    chosen = np.sort(random.permutation(len(rows))[:BVFT_ROWS])
    q = np.empty((len(critics), len(chosen)))
    targets = np.empty_like(q)
    for place, i in enumerate(critics):
        error, target = td_parts(pool, pool.candidates[i], "validation")
        q[place], targets[place] = (error + target)[chosen], target[chosen]
    used, groups = np.unique(rows.episodes[chosen], return_inverse=True)
    weights = np.concatenate([np.ones((1, len(used))), pool.episode_weights[:, used]])
    shares = np.mean([rank_share(tournament_losses(q, targets, r, weights, groups)) for r in RESOLUTIONS], 0)
    value = np.full(len(pool), np.nan)
    replicates = np.full((len(pool), len(weights) - 1), np.nan, np.float32)
    value[critics], replicates[critics] = shares[0], shares[1:].T
    return {"bvft": Scores(value, spread(replicates), replicates, reasons)}


MEASUREMENTS = (
    Measurement("ridge_bellman_error", RIDGE, measure_ridge),
    Measurement(
        "bvft",
        (Diagnostic("bvft", "low", "rank of Q in a tournament of projected Bellman errors, 0 to 1"),),
        measure_bvft,
        per_policy=False,
        images=True,
    ),
)
