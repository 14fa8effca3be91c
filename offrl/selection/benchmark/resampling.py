"""How far chance moves what a selector is worth: other seeds, other episodes, other pools."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from offrl.selection.benchmark.pools import ScoredPool


class Resamples(NamedTuple):
    """Pools to decide in: the pool itself, or what might have been instead of it."""

    returns: np.ndarray
    """[resamples, n]"""
    copies: np.ndarray
    """How often each candidate is there, int [resamples, n]."""

    @property
    def present(self) -> np.ndarray:
        return self.copies > 0

    @classmethod
    def none(cls, pool: ScoredPool) -> Resamples:
        returns = pool.returns.to_numpy(float)[None]
        return cls(returns, np.ones(returns.shape, np.int64))


def resample(pool: ScoredPool, count: int, random: np.random.Generator) -> Resamples | None:
    """Pools that chance might have made instead of this one; None where neither seeds nor errors are known.

    Of each (algorithm, setting) as many runs are drawn, with replacement, as there are: their seed is what chance
    chose. All checkpoints of a run come or stay away together. Then episodes are drawn, the same for all policies
    (they share reset seeds), or, where only standard errors are known, normal errors.
    """
    members = pd.Series(pool.configuration).groupby(pool.member).first()  # member -> its configuration
    order = members.to_numpy().argsort(kind="stable")
    sizes = members.value_counts().sort_index().to_numpy()
    noise = pool.errors.fillna(0.0).to_numpy()
    if sizes.max() < 2 and pool.episodes is None and not noise.any():
        return None
    starts, size = (np.repeat(values, sizes) for values in (np.cumsum(sizes) - sizes, sizes))
    drawn = order[starts + (random.random((count, len(order))) * size).astype(int)]
    copies = np.zeros((count, len(order)), np.int64)
    np.add.at(copies, (np.arange(count)[:, None], drawn), 1)
    returns = np.broadcast_to(pool.returns.to_numpy(float), (count, len(pool.returns)))
    if pool.episodes is not None:
        matrix = pool.episodes.to_numpy()
        played, episodes = ~np.isnan(matrix), matrix.shape[1]
        weights = random.multinomial(episodes, np.full(episodes, 1 / episodes), count)
        total = weights @ played.T
        # a candidate for which no drawn episode was played keeps its mean
        returns = np.where(total > 0, weights @ np.where(played, matrix, 0.0).T / np.maximum(total, 1), returns)
    elif noise.any():
        returns = returns + noise * random.standard_normal(returns.shape)
    return Resamples(returns, copies[:, pool.member])


def over_pools(
    values: np.ndarray, within: list[np.ndarray | None], draws: np.ndarray, uniform: np.ndarray
) -> np.ndarray:
    """Bootstrap distribution of the mean over pools, [resamples].

    Args:
        values: one for each pool, [pools]; nan is left out.
        within: for each pool its value in each resample, or None for the value alone.
        draws: which pools, int [resamples, pools].
        uniform: which replicate of each copy, in [0, 1), [resamples, pools].
    """
    longest = max((len(part) for part in within if part is not None), default=1)
    table = np.empty((len(values), longest))
    for row, (value, part) in enumerate(zip(values, within, strict=True)):
        table[row] = value if part is None else part
    drawn = table[draws, (uniform * longest).astype(int)]
    known = ~np.isnan(drawn)
    with np.errstate(invalid="ignore"):
        return np.where(known, drawn, 0.0).sum(1) / known.sum(1)
