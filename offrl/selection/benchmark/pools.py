"""Pools whose returns are known: the candidates on one dataset, their diagnostics, and what each really returned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from offrl import statistics
from offrl.selection import selectors

CANDIDATE_COLUMNS = ["run", "algorithm", "setting", "member", "seed", "step"]


@dataclass(frozen=True)
class ScoredPool:
    """Candidates on one dataset with their diagnostics and returns; all tables have the candidates as index."""

    name: str
    candidates: pd.DataFrame
    """CANDIDATE_COLUMNS, and optionally `default`: whether it has the published settings (else: an empty setting)."""
    scores: pd.DataFrame
    """Diagnostics as measured; nan where they do not apply. attrs: coverage, standard_error, seconds (of each
    measurement, for the whole pool)."""
    returns: pd.Series
    """Mean undiscounted return."""
    errors: pd.Series
    """Standard error of it, nan where unknown."""
    episodes: pd.DataFrame | None = None
    """Returns [candidates x episodes], where they are known: one column is one reset seed."""
    reference: tuple[float, float] | None = None
    """Returns that make 0 and 100 of the normalised score."""

    @cached_property
    def last(self) -> np.ndarray:
        """Whether a candidate is the last checkpoint of its member, bool [n]."""
        return self.candidates.index.isin(selectors.last_checkpoints(self.candidates))

    @cached_property
    def own_last(self) -> np.ndarray:
        """Position of the last checkpoint of each candidate's member, int [n]."""
        final = np.zeros(self.member.max() + 1, np.int64)
        final[self.member[self.last]] = np.flatnonzero(self.last)
        return final[self.member]

    @cached_property
    def cloned(self) -> np.ndarray:
        """Whether it is a last checkpoint of behaviour cloning that may be deployed, bool [n]."""
        return self.candidates.index.isin(selectors.cloning(self.candidates, self.scores))

    @cached_property
    def default(self) -> np.ndarray:
        """Whether it is the last checkpoint of a run with the default settings, bool [n]: in what the pool varies, the
        algorithm's defaults; in what it does not, whatever all have. A table that does not tell has them where an
        algorithm has one setting alone."""
        if "default" in self.candidates:
            return self.last & self.candidates["default"].astype(bool).to_numpy()
        return self.last & (self.candidates["setting"] == "").to_numpy()

    @cached_property
    def member(self) -> np.ndarray:
        """Number of the (run, member) that each candidate is a checkpoint of, int [n]."""
        return self.candidates.groupby(["run", "member"], dropna=False, sort=False).ngroup().to_numpy()

    @cached_property
    def configuration(self) -> np.ndarray:
        """Number of its (algorithm, setting), within which runs differ in their seed, int [n]."""
        return self.candidates.groupby(["algorithm", "setting"], dropna=False, sort=False).ngroup().to_numpy()

    @cached_property
    def reliability(self) -> statistics.Reliability:
        if self.episodes is not None:
            return statistics.split_half_reliability(self.episodes.to_numpy())
        return statistics.reliability_from_errors(self.returns, self.errors)

    @property
    def dropped(self) -> str:
        """Why there is nothing to select here; empty where there is."""
        values = self.returns.to_numpy()
        if len(values) < 2:
            return "fewer than two candidates"
        spread = values.max() - values.min()
        if not spread > 0:
            return "all candidates have the same return"
        error = self.errors.mean()
        if np.isfinite(error) and spread < 3 * error:
            return f"returns span {spread:.4g}, less than 3 standard errors ({error:.4g})"
        return ""
