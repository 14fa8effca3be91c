"""Pools from files: what `offrl.select` and `offrl.evaluate` have written, or any table with one row per policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from offrl.errors import UserError, nearest
from offrl.runs.run import labels
from offrl.selection import selectors
from offrl.selection.benchmark.pools import CANDIDATE_COLUMNS, ScoredPool
from offrl.selection.diagnostics import seconds_spent


def read_csv(path: Path) -> pd.DataFrame:
    """
    Raises:
        UserError: there is no such file, or it is no table.
    """
    try:
        table = pd.read_csv(path)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a CSV table: {str(error).splitlines()[0]}") from error
    if table.empty:
        raise UserError(f"{path}: the table has no rows")
    return table


def require(table: pd.DataFrame, names: Sequence[str], path: Path) -> None:
    for name in names:
        if name not in table:
            raise UserError(f"{path}: no column {name}; {nearest(name, map(str, table.columns))}")


def numbers(table: pd.DataFrame, name: str, path: Path) -> pd.Series:
    values = pd.to_numeric(table[name], errors="coerce")
    bad = values.isna() & table[name].notna()
    if bad.any():
        raise UserError(
            f"{path}: column {name}, row {bad.to_numpy().argmax() + 1}: {table.loc[bad, name].iloc[0]!r} is no number"
        )
    return values.astype(float)


def read_pools(
    diagnostics: Path, oracle: Path | None, warn: Callable[[str], None] = lambda text: None
) -> list[ScoredPool]:
    """Pools from a tidy table of diagnostics and a table of returns; one for each dataset (and fingerprint) in it.

    A row with the diagnostic `coverage` gives the data's coverage, whatever its candidate.

    Args:
        diagnostics: columns candidate, CANDIDATE_COLUMNS, dataset, diagnostic, value; fingerprint, standard_error and
            seconds where there are.
        oracle: columns candidate and return, with standard_error where known; or with several rows for each candidate,
            one per episode (column episode). None: what `offrl.evaluate` has written in the runs, `gather_returns`.

    Raises:
        UserError: columns are missing, values are no numbers, or rows are there twice.
    """
    table = read_csv(diagnostics)
    require(table, ["candidate", *CANDIDATE_COLUMNS, "dataset", "diagnostic", "value"], diagnostics)
    table["value"] = numbers(table, "value", diagnostics)
    table["setting"] = table["setting"].astype(object).fillna("").astype(str)
    prints = ["fingerprint"] if "fingerprint" in table else []
    played = read_csv(oracle) if oracle else gather_returns(list(table["run"].dropna().unique()))
    returns, errors, episodes, reference = read_oracle(played, oracle or diagnostics)
    pools = []
    for key, part in table.groupby(["dataset", *prints], dropna=False, sort=True):
        several = bool(prints) and table.loc[table["dataset"] == key[0], "fingerprint"].nunique() > 1
        name = f"{key[0]} [{str(key[1])[:8]}]" if several else str(key[0])
        coverage = part.loc[part["diagnostic"] == "coverage", "value"].dropna()
        part = part[part["candidate"].notna() & (part["diagnostic"] != "coverage")]
        twice = part.duplicated(["candidate", "diagnostic"])
        if twice.any():
            row = part[twice].iloc[0]
            raise UserError(f"{diagnostics}: {row['candidate']} has {row['diagnostic']} twice")
        scores = part.pivot(index="candidate", columns="diagnostic", values="value")
        if "standard_error" in part:
            scores.attrs["standard_error"] = part.pivot(
                index="candidate", columns="diagnostic", values="standard_error"
            )
        if "seconds" in part:
            scores.attrs["seconds"] = seconds_spent(part)
        if len(coverage):
            scores.attrs["coverage"] = float(coverage.iloc[0])
        candidates = part.drop_duplicates("candidate").set_index("candidate")
        optional = [column for column in ("default",) if column in candidates]
        candidates = candidates.loc[scores.index, [*CANDIDATE_COLUMNS, *optional]]
        pools.append(_scored(name, candidates, scores, returns, errors, episodes, reference, warn))
    return pools


def gather_returns(runs: Sequence[str | Path]) -> pd.DataFrame:
    """The oracle tables of runs, one row per episode, with the candidate's name in front.

    Raises:
        UserError: a run has none.
    """
    tables = []
    for run, label in zip(map(Path, runs), labels([Path(run) for run in runs]), strict=True):
        file = run / "oracle" / "returns.csv"
        if not file.exists():
            raise UserError(f"{run}: no returns yet; score it with python -m offrl.evaluate {run} checkpoints=all")
        table = read_csv(file)
        name = label + "/" + table["member"].astype(str) + "/" + table["step"].astype(str)
        table = table.assign(candidate=name, episode=table["reset_seed"])
        # asked for from two first seeds, an episode is there twice
        tables.append(table.drop_duplicates(["candidate", "env", "episode"]))
    gathered = pd.concat(tables, ignore_index=True)
    return gathered[["candidate", *(name for name in gathered if name != "candidate")]]


def read_oracle(
    table: pd.DataFrame, path: Path
) -> tuple[pd.Series, pd.Series, pd.DataFrame | None, pd.DataFrame | None]:
    """Mean returns, standard errors, episodes, and the references of the normalised score, by candidate.

    Raises:
        UserError: columns are missing, values are no numbers, or rows are there twice.
    """
    require(table, ["candidate", "return"], path)
    table["return"] = numbers(table, "return", path)
    reference = None
    if {"reference_random", "reference_expert"} <= set(table):
        reference = table.drop_duplicates("candidate").set_index("candidate")[["reference_random", "reference_expert"]]
    if "env" in table and table.groupby("candidate")["env"].nunique().max() > 1:
        raise UserError(f"{path}: a candidate was scored in several environments; keep the rows of one")
    if not table["candidate"].duplicated().any():
        table = table.set_index("candidate")
        errors = numbers(table, "standard_error", path) if "standard_error" in table else table["return"] * np.nan
        return table["return"], errors, None, reference
    require(table, ["episode"], path)
    twice = table.duplicated(["candidate", "episode"])
    if twice.any():
        row = table[twice].iloc[0]
        raise UserError(f"{path}: {row['candidate']} has episode {row['episode']} twice")
    episodes = table.pivot(index="candidate", columns="episode", values="return")
    # an episode whose action was not finite has no return: such a policy cannot be deployed
    broken = table.loc[table["return"].isna(), "candidate"].unique()
    episodes.loc[broken] = np.nan
    errors = episodes.std(axis=1, ddof=1) / np.sqrt(episodes.notna().sum(axis=1))
    return episodes.mean(axis=1), errors, episodes, reference


def _scored(
    name: str,
    candidates: pd.DataFrame,
    scores: pd.DataFrame,
    returns: pd.Series,
    errors: pd.Series,
    episodes: pd.DataFrame | None,
    reference: pd.DataFrame | None,
    warn: Callable[[str], None],
) -> ScoredPool:
    """A pool of the candidates whose returns were measured.

    One that was measured and has no finite return is worth the pool's lowest: choosing it is a mistake to be counted.
    """
    known = candidates.index.intersection(returns.index, sort=False)
    if len(known) < len(candidates):
        warn(f"{name}: {len(candidates) - len(known)} of {len(candidates)} candidates have no return and are left out")
    if not len(known):
        raise UserError(f"{name}: no candidate of the diagnostics has a return in the oracle table")
    attributes = dict(scores.attrs)
    scores = scores.loc[known]
    scores.attrs = {
        key: value.reindex(known) if isinstance(value, pd.DataFrame) else value for key, value in attributes.items()
    }
    values = returns[known].astype(float)
    broken = ~np.isfinite(values)
    if broken.all():
        raise UserError(f"{name}: no candidate has a finite return")
    if broken.any():
        warn(f"{name}: {broken.sum()} candidates have no finite return: counted as the lowest of the pool")
        values = values.where(~broken, values[~broken].min())
    played = None if episodes is None else episodes.loc[known]
    if played is not None and broken.any():
        played = played.copy()
        played.loc[broken] = values[broken].to_numpy()[:, None]
    ends = None
    if reference is not None and np.isfinite(first := reference.loc[known].to_numpy(float)[0]).all():
        ends = (float(first[0]), float(first[1]))
    return ScoredPool(name, candidates.loc[known], scores, values, errors[known].astype(float), played, ends)


@dataclass(frozen=True)
class Score:
    """A score of a plain table: NAME=[-][mean:|median:|min:|max:|lcb:]COLUMN[,COLUMN...]."""

    name: str
    direction: str
    reduce: str
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Score:
        name, equals, columns = text.partition("=")
        if not equals or not name or not columns:
            raise UserError(f"--score {text}: write NAME=COLUMN, or NAME=-COLUMN where lower is better")
        low = columns.startswith("-")
        columns = columns.removeprefix("-")
        reduce, colon, rest = columns.partition(":")
        if not colon or reduce not in ("mean", "median", "min", "max", "lcb"):
            reduce, rest = "mean", columns
        known = selectors.DIRECTIONS.get(name)
        if known == "high" and low:
            raise UserError(f"--score {text}: a high {name} is good; give a score with another sense another name")
        direction = known if known is not None else "low" if low else "high"
        return cls(name, direction, reduce, tuple(rest.split(",")))

    def values(self, table: pd.DataFrame, path: Path) -> pd.Series:
        require(table, self.columns, path)
        parts = pd.concat([numbers(table, column, path) for column in self.columns], axis=1)
        if self.reduce == "lcb":
            return parts.mean(axis=1, skipna=False) - parts.std(axis=1, ddof=1, skipna=False)
        return getattr(parts, self.reduce)(axis=1, skipna=False)


def read_table(
    path: Path,
    scores: Sequence[Score],
    returns: str,
    pool: Sequence[str] = (),
    policy: Sequence[str] = (),
    algorithm: Sequence[str] = (),
    setting: Sequence[str] = (),
    seed: str | None = None,
    step: str | None = None,
    error: str | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> list[ScoredPool]:
    """Pools from a plain table with one row per policy. Several columns are joined into one label.

    Args:
        returns: column of the online return; `error` that of its standard error.
        pool: columns that tell pools apart; none: the table is one pool.
        policy: columns that name a policy; none: every row is one.
        algorithm, setting, seed: columns that say what was trained; runs of one algorithm and setting differ in the
            seed, and are resampled together. With `step`, rows that agree in all of these are one run's checkpoints.
            Without a setting, rows are of one setting where a seed or step is given, else each of its own.

    Raises:
        UserError: a column is missing, a value is no number, or a policy is there twice.
    """
    table = read_csv(path)
    labels = [*pool, *policy, *algorithm, *setting, *(name for name in (seed, step, error) if name)]
    require(table, [*labels, returns], path)

    def label(columns: Sequence[str], otherwise: Any) -> pd.Series:
        if not columns:
            return pd.Series(otherwise, index=table.index).astype(str)
        return table[list(columns)].astype(str).agg(" ".join, axis=1)

    row = np.arange(1, len(table) + 1).astype(str)
    runs_known = seed is not None or step is not None
    frame = pd.DataFrame(
        {
            "pool": label(pool, path.stem),
            "candidate": label(policy, row),
            "algorithm": label(algorithm, "unknown"),
            "setting": label(setting, "" if runs_known else row),
            "seed": table[seed] if seed else 0,
            "member": 0,
            "step": numbers(table, step, path) if step else np.nan,
            "return": numbers(table, returns, path),
            "error": numbers(table, error, path) if error else np.nan,
        }
    )
    frame["run"] = frame[["algorithm", "setting", "seed"]].astype(str).agg("/".join, axis=1) if step else row
    for score in scores:
        frame[f"score {score.name}"] = score.values(table, path)
    pools = []
    for name, part in frame.groupby("pool", sort=True):
        if part["candidate"].duplicated().any():
            twice = part.loc[part["candidate"].duplicated(), "candidate"].iloc[0]
            raise UserError(f"{path}: pool {name} has policy {twice} twice; name the columns that tell them apart")
        part = part.set_index("candidate").assign(default=False)
        values = part[[f"score {score.name}" for score in scores]].set_axis([s.name for s in scores], axis=1)
        candidates = part[[*CANDIDATE_COLUMNS, "default"]]
        pools.append(_scored(str(name), candidates, values, part["return"], part["error"], None, None, warn))
    return pools
