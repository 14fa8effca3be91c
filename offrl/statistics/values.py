"""Types that the statistics take and return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

Values = np.ndarray | pd.Series | Sequence[float] | Sequence[Sequence[float]]
"""Anything that can be read as an array of floats."""


def scalar(value: Any) -> Any:
    """A Python float for an array without axes; other arrays as they are."""
    return float(value) if np.ndim(value) == 0 else value
