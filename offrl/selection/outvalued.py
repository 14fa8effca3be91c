"""Candidates that are shown to be worth less than another, by estimators of a policy's value that agree.

Closeness to the data ranks behaviour cloning first by construction, whatever it is worth. It is a good guide among
candidates that estimates of their value cannot tell apart, and must not outvote estimates that can. So here it is a
veto and not a vote: whoever is better must not lie further outside the data.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

ESTIMATORS = ("fqe", "lstd", "model_value")
"""Diagnostics that estimate the value of a whole policy, each in another way: a fitted network, linear equations, and
rollouts in a learned model. They fail in different ways, so all of them must agree."""
OUTSIDE = "ood_fraction"
STANDARD_ERRORS = 1.645
"""Of a difference, beyond which it counts: the one-sided 95 % bound of a normal distribution."""


def outvalued(scores: pd.DataFrame, eligible: pd.Series) -> pd.Series:
    """Which candidates another eligible one is shown to be better than; bool by candidate.

    One is better than another if each of ESTIMATORS puts it higher by more than STANDARD_ERRORS standard errors of the
    difference, and if its share of actions outside the data is not higher by as much. What is not known does not hold.
    The two errors are taken as independent; both are over the same episodes, so that the true error of the difference
    is smaller.

    Args:
        scores: [candidates x diagnostics], with attrs["standard_error"], a table of the same shape.
        eligible: bool by candidate; the others are neither better nor worse than any.
    """
    errors = scores.attrs.get("standard_error")
    needed = [*ESTIMATORS, OUTSIDE]
    if errors is None or not all(name in scores and name in errors for name in needed):
        return pd.Series(False, index=scores.index)
    errors = errors.reindex(scores.index)
    allowed = eligible.to_numpy(bool)
    better = allowed[:, None] & allowed  # [candidates, candidates]: the first than the second
    with np.errstate(invalid="ignore"):  # comparisons with nan are false
        for name in needed:
            value, error = (table[name].to_numpy(np.float64) for table in (scores, errors))
            difference = value[:, None] - value
            bound = STANDARD_ERRORS * np.hypot(error[:, None], error)
            better &= (difference <= bound) if name == OUTSIDE else (difference > bound)
    return pd.Series(better.any(0), index=scores.index)
