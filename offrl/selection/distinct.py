"""Which policies of a pool differ: how far apart they act, which act alike, and whom to try one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offrl.selection.diagnostics.support import split_name
from offrl.selection.pool import Pool


def policy_distances(pool: Pool, rows: int = 1_000) -> np.ndarray:
    """[candidates, candidates], mean distance of two policies' actions over logged states.

    nan to and from a policy with memory: single states do not say what it would do.
    """
    plain = [i for i, candidate in enumerate(pool.candidates) if candidate.run.policy.memory is None]
    distances = np.full((len(pool), len(pool)), np.nan)
    if plain:
        actions = pool.subset(plain).actions(split_name(pool))
        thin = np.linspace(0, actions.shape[1] - 1, min(actions.shape[1], rows)).astype(int)
        actions = actions[:, thin]
        found = np.stack([np.linalg.norm(actions - one, axis=-1).mean(-1) for one in actions])
        distances[np.ix_(plain, plain)] = found
    return distances


def duplicates(distances: np.ndarray, tolerance: float = 0.01) -> np.ndarray:
    """[candidates]: the first candidate that each is the same policy as, itself where there is none.

    The same: a mean distance of at most `tolerance` (actions are in [-1, 1]) to that first one.
    """
    first = np.arange(len(distances))
    for i in range(len(distances)):
        originals = np.flatnonzero((first[:i] == np.arange(i)) & (distances[i, :i] <= tolerance))
        if len(originals):
            first[i] = originals[0]
    return first


def diverse(distances: np.ndarray, order: Sequence[int], count: int) -> list[int]:
    """The first `count` policies of an order that lie apart: a policy nearer to one already taken than half of the
    median distance between two policies of the pool is passed over."""
    between = distances[np.triu_indices(len(distances), 1)]
    apart = np.nanmedian(between) / 2 if np.isfinite(between).any() else 0.0
    taken: list[int] = []
    for i in order:
        if len(taken) < count and not any(distances[i, j] <= apart for j in taken):
            taken.append(i)
    return taken
