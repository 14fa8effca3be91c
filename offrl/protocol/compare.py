"""A new algorithm against others, over the datasets of a table: the probability that one of its runs beats one of each
other's, and p-values with Holm's correction for having made several comparisons.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from offrl import statistics
from offrl.errors import UserError
from offrl.protocol import scores

COLUMNS = ["against", "datasets", "difference", "wins", "probability", "low", "high", "p", "p_holm", "test", "reason"]
FEW = 6
"""With fewer datasets than this the p-value is from permuting members within datasets, not from the datasets."""


class Sample(NamedTuple):
    """The scores [members] of one algorithm on one group of comparable runs."""

    values: np.ndarray
    normalised: bool


def samples(table: pd.DataFrame, algorithm: str) -> dict[str, Sample]:
    """Scores of an algorithm's last checkpoints on each group of comparable runs; groups without any are left out.

    Raises:
        UserError: the algorithm is there in several settings, which must not be taken for one.
    """
    found = {}
    parts, _ = scores.groups(table)
    for part, label in zip(parts, scores.labels(parts), strict=True):
        mine = part[(part["algorithm"] == algorithm) & (part["kind"] == "last")].dropna(subset="score")
        if mine["setting"].nunique() > 1:
            raise UserError(
                f"{label}: {algorithm} is there in several settings ({'; '.join(mine['setting'].unique())})"
            )
        if len(mine):
            found[label] = Sample(mine["score"].to_numpy(), bool(pd.notna(part["reference_expert"].iloc[0])))
    return found


def compare(table: pd.DataFrame, new: str, against: list[str]) -> pd.DataFrame:
    """One row per opponent: datasets, difference (mean over datasets of the difference of means, in points), wins,
    probability (that a run of the new one is above), low, high, p, p_holm, test, reason.

    The p-value: with FEW or more datasets the exact sign-flip test of the differences per dataset; with fewer, a
    permutation test of the members within each dataset, which says something of these datasets alone. Datasets whose
    scores are returns, for want of references, are left out beside normalised ones: their points are others.
    """
    ours = samples(table, new)
    rows = []
    for other in against:
        theirs = samples(table, other)
        shared = [key for key in ours if key in theirs]
        reasons = []
        if len(shared) > 1 and (returns := [key for key in shared if not ours[key].normalised]):
            shared = [key for key in shared if key not in returns]
            reasons.append(f"left out, for returns without references have no common scale: {', '.join(returns)}")
        row: dict[str, object] = {"against": other, "datasets": len(shared)}
        if not shared:
            rows.append({**row, "reason": "; ".join(reasons) or "no dataset has a score of both"})
            continue
        x, y = [ours[key].values for key in shared], [theirs[key].values for key in shared]
        differences = np.array([a.mean() - b.mean() for a, b in zip(x, y, strict=True)])
        interval = statistics.improvement_interval(x, y)
        if len(shared) >= FEW:
            p, test = statistics.sign_flip_p(differences), "sign flip over datasets"
        else:
            p, test = statistics.permutation_p(x, y), "permutation of members"
        reasons.append(interval.warning)
        rows.append({**row, "difference": differences.mean(), "wins": int((differences > 0).sum()),
                     "probability": interval.estimate, "low": interval.low, "high": interval.high, "p": p, "test": test,
                     "reason": "; ".join(filter(None, reasons))})  # fmt: skip
    result = pd.DataFrame(rows).reindex(columns=COLUMNS)
    result["p_holm"] = statistics.holm(result["p"].to_numpy(float))
    return result
