"""How far to trust a choice: its chances against cloning and the logged behaviour, agreement, and who dissents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from offrl.selection import selectors
from offrl.selection.diagnostics import behaviour_value
from offrl.selection.pool import Pool
from offrl.selection.selectors import Choice
from offrl.statistics import kendall_w

VALUE = ("behaviour_advantage", "fqe", "lstd", "model_value")
"""Estimates of how good a policy is, whose bootstrap samples say how sure a difference is."""


def chances(pool: Pool, choice: Choice, scores: pd.DataFrame, replicates: dict[str, np.ndarray]) -> pd.DataFrame:
    """How sure it is that the deployed policy beats BC, and the behaviour that made the data: estimate by estimate.

    All are resampled by the same episodes, so what two policies have in common cancels. They hold the estimator for
    true: what it gets wrong on both sides they do not know.
    """
    dataset = pool.dataset
    places = {name: i for i, name in enumerate(scores.index)}
    chosen = [places[name] for name in choice.deploy[:1]]
    cloned = [places[name] for name in selectors.cloning(pool.table.set_index("candidate"), scores)]
    rows = []
    for name in VALUE:
        if name not in replicates or not chosen or not np.isfinite(replicates[name][chosen]).any():
            continue
        drawn = replicates[name]
        mine = drawn[chosen[0]]
        row: dict[str, Any] = {"estimate": name, "choice": float(scores[name].iloc[chosen[0]])}
        if cloned and chosen[0] not in cloned and np.isfinite(drawn[cloned]).any(1).all():
            row["bc"] = float(scores[name].iloc[cloned].mean())
            row["beats_bc"] = chance(mine - drawn[cloned].mean(0))
        if name == "behaviour_advantage":  # an advantage over the behaviour: its own value is 0
            row["behaviour"], row["beats_behaviour"] = 0.0, chance(mine)
        else:
            logged = behaviour_value.continued_returns(dataset)[dataset.starts]  # as long as what it is compared with
            weights = pool.episode_weights
            row["behaviour"] = float(logged.mean())
            row["beats_behaviour"] = chance(mine - weights @ logged / weights.sum(1))
        rows.append(row)
    columns = ["estimate", "choice", "bc", "beats_bc", "behaviour", "beats_behaviour"]
    return pd.DataFrame(rows, columns=columns)


def chance(differences: np.ndarray) -> float:
    """Share of bootstrap differences above 0, ties half; never quite 0 or 1, which so many draws cannot show. Draws
    that are not finite say nothing, and are left out."""
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    return float(((differences > 0).sum() + 0.5 * (differences == 0).sum() + 0.5) / (n + 1))


def agreement(scores: pd.DataFrame, veto: pd.Series) -> float:
    """Kendall's W between the value and support diagnostics, over the candidates that are not vetoed."""
    kept = scores[veto == ""]
    columns = []
    for members in (*selectors.VALUE, *selectors.SUPPORT):
        name = next((n for n in members if n in kept and kept[n].notna().all()), None)
        if name is not None:
            columns.append(kept[name] * (-1 if selectors.DIRECTIONS[name] == "low" else 1))
    if len(columns) < 2 or len(kept) < 3:
        return float("nan")
    return float(kendall_w(np.stack([column.to_numpy() for column in columns])))


def dissent(
    scores: pd.DataFrame, described: pd.DataFrame, known: dict[str, selectors.Selector], choice: Choice, chosen: str
) -> pd.DataFrame:
    """What the other selectors would choose, and at which place of their order the choice stands."""
    rows = []
    for name, selector in known.items():
        if name == chosen:
            continue
        other = selectors.choose(scores, described, selector)
        if not len(other.ranking):
            continue
        place = np.nan
        if choice.deploy and choice.deploy[0] in other.ranking:
            place = int((other.ranking > other.ranking[choice.deploy[0]]).sum()) + 1
        rows.append(
            {
                "selector": name,
                "would_choose": other.top[0],
                "algorithm": described.loc[other.top[0], "algorithm"],
                "abstains": bool(other.abstains),
                "agrees": bool(set(other.deploy) & set(choice.deploy)),
                "place_of_choice": place,
                "of": len(other.ranking),
            }
        )
    return pd.DataFrame(rows)
