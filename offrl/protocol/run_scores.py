"""What the policies of one run have returned: means over episodes and over members, with their uncertainty."""

from __future__ import annotations

import numpy as np
import pandas as pd

from offrl.statistics import episode_error, member_spread, standard_error


def as_matrix(rows: pd.DataFrame, column: str) -> np.ndarray:
    """[members, episodes] of one checkpoint's rows."""
    return rows.pivot(index="member", columns="episode", values=column).to_numpy()


def policy_scores(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per policy (step, member): means over episodes, and their standard errors."""
    scores = []
    for (step, member, seed), group in rows.groupby(["step", "member", "seed"]):
        scale = _scale(group)
        scores.append(
            {
                "step": step,
                "member": member,
                "seed": seed,
                "episodes": len(group),
                "return": group["return"].mean(skipna=False),
                "return_standard_error": standard_error(group["return"].to_numpy()),
                "normalized_score": group["normalized_score"].mean(skipna=False),
                "normalized_score_standard_error": scale * standard_error(group["return"].to_numpy()),
                "length": group["length"].mean(),
                "success_rate": group["success"].mean(),
            }
        )
    return pd.DataFrame(scores)


def population_scores(rows: pd.DataFrame, last: bool) -> pd.DataFrame:
    """One row per step, or one for every member's only checkpoint (`last`): means over members and episodes.

    `..._standard_error` is over episodes, for these very members; `..._member_deviation` is the standard deviation
    over members of their means.
    """
    scores = []
    for step, group in [(rows["step"].max(), rows)] if last else rows.groupby("step"):
        returns, scale = as_matrix(group, "return"), _scale(group)
        scores.append(
            {
                "step": step,
                "members": len(returns),
                "episodes": returns.shape[1],
                "return": returns.mean(),
                "return_standard_error": episode_error(returns),
                "return_member_deviation": member_spread(returns),
                "normalized_score": group["normalized_score"].mean(skipna=False),
                "normalized_score_standard_error": scale * episode_error(returns),
                "normalized_score_member_deviation": scale * member_spread(returns),
                "length": group["length"].mean(),
                "success_rate": group["success"].mean(),
            }
        )
    return pd.DataFrame(scores)


def _scale(rows: pd.DataFrame) -> float:
    """Normalised points per unit of return; nan without references. A deviation is scaled by it and never shifted."""
    return float(100.0 / (rows["reference_expert"].iloc[0] - rows["reference_random"].iloc[0]))
