"""Means and their uncertainty.

Arrays are [members, episodes]; episode e of every member starts from the same reset seed.
"""

from __future__ import annotations

import numpy as np


def standard_error(values: np.ndarray) -> float:
    """Standard error of the mean of independent values [n]; nan for a single one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def episode_error(values: np.ndarray) -> float:
    """Standard error over episodes of the mean of everything, for these very members.

    Members share reset seeds, so a seed's returns go together: the unit is the mean over members of one episode.
    """
    return standard_error(values.mean(0))


def member_spread(values: np.ndarray) -> float:
    """Standard deviation over members of their means; nan for one member."""
    return float(np.std(values.mean(1), ddof=1)) if len(values) > 1 else float("nan")


def bootstrap_interval(
    values: np.ndarray, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean, members and reset seeds both drawn anew with replacement.

    It is too narrow for few members: with three, a nominal 95 % covers some 80 %. For one it says only what the
    episodes leave open.
    """
    random = np.random.default_rng(seed)
    members, episodes = values.shape
    member_shares = random.multinomial(members, np.full(members, 1 / members), resamples) / members
    episode_shares = random.multinomial(episodes, np.full(episodes, 1 / episodes), resamples) / episodes
    means = ((member_shares @ values) * episode_shares).sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
