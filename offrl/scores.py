"""What runs have achieved, as tidy scores, beside what was published; nothing that does not compare is averaged.

A member of a run has up to three scores: of its *last* checkpoint; of the one *selected* from the data alone (where
`offrl.select` has been run on it); and of the *best in hindsight*, the best mean return of all its checkpoints, which
nobody can have without asking the simulator, and whose maximum over noisy means is too high besides.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from offrl.data.dataset import Reference
from offrl.errors import UserError
from offrl.evaluate import read_returns, run_reference
from offrl.runs import Run
from offrl.statistics import Interval, aggregate_interval, standard_error

KINDS = ("last", "selected", "best")
SAME = ["dataset", "fingerprint", "env", "updates", "validation_fraction", "reference_random", "reference_expert"]
"""Scores that differ in any of these stand in different rows of a table, never in one mean."""


def scores(runs: Sequence[Run], selections: Iterable[Path] = ()) -> pd.DataFrame:
    """One row per member and kind of score: the columns of SAME, and algorithm, setting, run, member, seed, kind, step,
    score (normalised where references are known, else the return), return, standard_error (of the score, over
    episodes), episodes, checkpoints (how many were scored), data (the score of the data's mean return), reason (why
    there is no score; it is then nan).

    Args:
        selections: folders that `offrl.select` wrote.
    """
    chosen = _selected_steps(selections)
    rows = [row for run in runs for row in _run_scores(run, chosen)]
    if not rows:
        raise UserError("no run given; give one or more folders that offrl.train made")
    return pd.DataFrame(rows)


def _selected_steps(selections: Iterable[Path]) -> dict[tuple[Path, int], int]:
    """(run, member) -> the checkpoint that the selector ranks first among those of that member."""
    steps: dict[tuple[Path, int], int] = {}
    for folder in selections:
        file = Path(folder) / "candidates.csv"
        if not file.is_file():
            raise UserError(f"{folder}: no candidates.csv; give a folder that offrl.select wrote")
        ranked = pd.read_csv(file).dropna(subset="score")
        best = ranked.sort_values("score", ascending=False, kind="stable").drop_duplicates(["run", "member"])
        for _, row in best.iterrows():
            steps[Path(row["run"]).resolve(), int(row["member"])] = int(row["step"])
    return steps


def _run_scores(run: Run, chosen: dict[tuple[Path, int], int]) -> list[dict[str, Any]]:
    dataset, protocol = run.info["dataset"], run.info["protocol"]
    env = dataset["env_id"] or ""
    reference = run_reference(run, env)
    table = read_returns(run)
    table = table[table["env"] == env]
    column = "normalized_score" if reference else "return"
    rows = []
    for member in run.members:
        number = member["member"]
        mine = table[table["member"] == number]
        means = mine.groupby("step")["return"].mean()
        steps: dict[str, tuple[int | None, str]] = {}
        last = run.last_checkpoint(number)
        steps["last"] = (last, "" if last in means.index else "diverged before its first checkpoint" if last is None
                         else f"step {last} is not scored: python -m offrl.evaluate {run.path}")  # fmt: skip
        selected = chosen.get((run.path.resolve(), number))
        steps["selected"] = (selected, "" if selected in means.index else "offrl.select was not run on it"
                             if selected is None else f"step {selected} is not scored")  # fmt: skip
        whole = len(means) > 1 and set(means.index) >= {s for s in run.checkpoints() if last is not None and s <= last}
        steps["best"] = (int(means.idxmax()) if whole and means.notna().any() else None,
                         "" if whole else "not all checkpoints are scored: checkpoints=all")  # fmt: skip
        for kind, (step, reason) in steps.items():
            episodes = mine[mine["step"] == step] if step is not None and not reason else mine.iloc[:0]
            values = episodes[column].to_numpy()
            rows.append(
                {
                    "dataset": dataset["name"],
                    "fingerprint": dataset["fingerprint"],
                    "env": env,
                    "updates": protocol["updates"],
                    "validation_fraction": protocol["validation_fraction"],
                    "reference_random": reference.random if reference else np.nan,
                    "reference_expert": reference.expert if reference else np.nan,
                    "algorithm": run.info["algorithm"]["name"],
                    "setting": ", ".join(f"{name}={value}" for name, value in sorted(member["values"].items())),
                    "run": str(run.path),
                    "member": number,
                    "seed": member["seed"],
                    "kind": kind,
                    "step": step if step is not None and not reason else pd.NA,
                    "score": values.mean() if len(values) else np.nan,
                    "return": episodes["return"].mean() if len(values) else np.nan,
                    "standard_error": standard_error(values) if len(values) else np.nan,
                    "episodes": len(values),
                    "checkpoints": len(means),
                    "data": _scaled(dataset["returns"]["mean"], reference),
                    "reason": reason,
                }
            )
    return rows


def _scaled(value: float, reference: Reference | None) -> float:
    return reference.normalise(value) if reference else value


def groups(table: pd.DataFrame) -> tuple[list[pd.DataFrame], list[str]]:
    """The scores split so that each part compares, and one message per dataset name that had to be split."""
    parts = [part for _, part in table.groupby(SAME, sort=False, dropna=False)]
    messages = []
    for dataset, same_name in table.groupby("dataset", sort=False):
        differing = [c for c in SAME[1:] if same_name[c].nunique(dropna=False) > 1]
        if differing:
            values = {c: ", ".join(map(str, same_name[c].unique())) for c in differing}
            described = "; ".join(f"{name} {value}" for name, value in values.items())
            messages.append(f"{dataset}: these do not compare and stand in rows of their own: {described}")
    return parts, messages


def summarize(part: pd.DataFrame, aggregate: Callable[[np.ndarray], Any] = np.mean) -> pd.DataFrame:
    """One row per (algorithm, setting, kind) of comparable scores: estimate, low, high (95 %, over members), members,
    reason. Members without a score are not counted as anything: `members` says how many there are."""
    rows = []
    for (algorithm, setting, kind), group in part.groupby(["algorithm", "setting", "kind"], sort=False):
        values = group["score"].dropna().to_numpy()
        interval = (
            aggregate_interval([values], lambda drawn: aggregate(drawn, axis=-1))  # type: ignore[call-arg]
            if len(values)
            else Interval(np.nan, np.nan, np.nan, "")
        )
        reasons = [reason for reason in group["reason"].unique() if reason]
        rows.append({"algorithm": algorithm, "setting": setting, "kind": kind, **interval._asdict(),
                     "members": len(values), "reason": "; ".join(reasons)})  # fmt: skip
    return pd.DataFrame(rows)


@cache
def published() -> pd.DataFrame:
    """The published scores: name (ours, empty where offrl has no such algorithm), algorithm, dataset, score, deviation,
    seeds, protocol (last, best, other), source."""
    with (importlib.resources.files("offrl.results") / "published" / "scores.csv").open() as file:
        return pd.read_csv(file, keep_default_na=False, na_values={"deviation": "", "seeds": "", "score": ""})


def published_scores(dataset: str, algorithm: str) -> pd.DataFrame:
    """What was published for one of our datasets and algorithms; empty where nothing compares (built-in data, say)."""
    source, _, name = dataset.partition(":")
    table = published()
    return table[(table["dataset"] == name) & (table["name"] == algorithm)] if source == "d4rl" else table.iloc[:0]


def runs_under(paths: Iterable[str | Path]) -> list[Run]:
    """The runs in those folders, or in folders below them.

    Raises:
        UserError: there is none at a path.
    """
    found = []
    for path in map(Path, paths):
        if (path / "run.json").is_file():
            found.append(Run.open(path))
            continue
        below = sorted(file.parent for file in path.rglob("run.json")) if path.is_dir() else []
        if not below:
            raise UserError(f"{path}: no run here nor below; give folders that offrl.train made")
        found += [Run.open(folder) for folder in below]
    return found


def selection_of(folder: Path) -> dict[str, Any]:
    """What `offrl.select` wrote there.

    Raises:
        UserError: nothing, or something damaged.
    """
    file = folder / "selection.json"
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        raise UserError(f"{folder}: no selection.json; give a folder that offrl.select wrote") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file}: damaged ({error}); run offrl.select again") from error
