"""RUN/oracle/returns.csv: what every episode returned, one row each.

Only evaluation writes it, and nothing that trains or selects reads it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

import offrl
from offrl.data.dataset import Reference
from offrl.errors import UserError
from offrl.runs.run import Run, write_whole

DTYPES = {
    "algorithm": str,
    "dataset": str,
    "fingerprint": str,
    "env": str,
    "member": np.int64,
    "seed": np.int64,
    "step": np.int64,
    "episode": np.int64,
    "reset_seed": np.int64,
    "return": np.float64,
    "length": np.int64,
    "success": np.float64,
    "normalized_score": np.float64,
    "reference_random": np.float64,
    "reference_expert": np.float64,
    "protocol": str,
    "version": str,
}
"""Columns of the oracle table. `success` is 1 or 0, empty where the environment reports none; `return` is empty where
the policy's action was not finite; score and references are empty where no references are known."""
KEY = ["env", "step", "member", "episode", "reset_seed"]


class Episodes(NamedTuple):
    """What was played, [members, episodes]; nan and 0 where nothing was."""

    returns: np.ndarray
    """Undiscounted; nan where the policy's action was not finite."""
    lengths: np.ndarray
    successes: np.ndarray
    """1 if info["success"] was true at any step, 0 if at none, nan where the environment does not report it."""


class Request(NamedTuple):
    """Which rows of the oracle table are requested."""

    env: str
    episodes: int
    seed: int
    """Reset seed of episode 0; the others count up from it."""
    plan: dict[int, list[int]]
    """The members to score at each step."""

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """The requested rows that the table has, by step, member, episode."""
        pairs = [(step, member) for step, members in self.plan.items() for member in members]
        table = table[(table["env"] == self.env) & (table["episode"] < self.episodes)]
        table = table[table["reset_seed"] == self.seed + table["episode"]]
        return table.merge(pd.DataFrame(pairs, columns=["step", "member"])).sort_values(KEY, ignore_index=True)

    def missing(self, table: pd.DataFrame, members: int, slots: int) -> list[tuple[int, np.ndarray]]:
        """What is left to play: (step, bool [members, episodes]), in parts of at most `slots` episodes per member."""
        present = self.rows(table)
        parts = []
        for step, scored in self.plan.items():
            wanted = np.zeros((members, self.episodes), bool)
            wanted[scored] = True
            at_step = present[present["step"] == step]
            wanted[at_step["member"], at_step["episode"]] = False
            for first in range(0, self.episodes, slots):
                part = np.zeros_like(wanted)
                part[:, first : first + slots] = wanted[:, first : first + slots]
                if part.any():
                    parts.append((step, part))
        return parts


def oracle_rows(run: Run, request: Request, step: int, played: np.ndarray, result: Episodes) -> pd.DataFrame:
    """The rows of the oracle table for the episodes that were played, bool [members, episodes]."""
    dataset = run.info["dataset"]
    member, episode = np.nonzero(played)
    returns = result.returns[played]
    reference = run_reference(run, request.env)
    return pd.DataFrame(
        {
            "algorithm": run.info["algorithm"]["name"],
            "dataset": dataset["name"],
            "fingerprint": dataset["fingerprint"],
            "env": request.env,
            "member": member,
            "seed": np.array([item["seed"] for item in run.members])[member],
            "step": step,
            "episode": episode,
            "reset_seed": request.seed + episode,
            "return": returns,
            "length": result.lengths[played],
            "success": result.successes[played],
            "normalized_score": reference.normalise(returns) if reference else np.nan,
            "reference_random": reference.random if reference else np.nan,
            "reference_expert": reference.expert if reference else np.nan,
            "protocol": run.info["protocol"]["name"],
            "version": offrl.__version__,
        }
    ).astype(DTYPES)


def run_reference(run: Run, env: str) -> Reference | None:
    """The returns of normalised scores 0 and 100 in `env`; None if they are not known."""
    dataset = run.info["dataset"]
    return Reference(**dataset["reference"]) if dataset["reference"] and env == dataset["env_id"] else None


def read_returns(run: Run) -> pd.DataFrame:
    """The oracle table of the run; empty where nothing has been scored.

    Raises:
        UserError: the table cannot be read.
    """
    file = run.path / "oracle" / "returns.csv"
    if not file.exists():
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in DTYPES.items()})
    try:
        # numbers are parsed by Python itself, which restores exactly the float that was written
        table = pd.read_csv(file, dtype=str, keep_default_na=False)[list(DTYPES)]
        floats = [name for name, kind in DTYPES.items() if kind is np.float64]
        table[floats] = table[floats].replace("", "nan")
        return table.astype(DTYPES)
    except (ValueError, KeyError) as error:
        raise UserError(f"{file}: damaged ({error}); delete it to score again") from error


def episodes_played(run: Run) -> pd.DataFrame:
    """`read_returns` without repeated reset seeds of a policy, which requests with different first seeds may make."""
    return read_returns(run).drop_duplicates(["env", "step", "member", "reset_seed"], ignore_index=True)


def write_returns(run: Run, rows: pd.DataFrame) -> None:
    """Add rows to the oracle table; the whole file is replaced at once."""
    table = pd.concat([read_returns(run), rows]).drop_duplicates(KEY, ignore_index=True).sort_values(KEY)
    (run.path / "oracle").mkdir(exist_ok=True)
    write_whole(run.path / "oracle" / "returns.csv", table.to_csv(index=False))
