"""What a report is made of: the runs, their scores and episodes, and the selections made among them.

The simulator's returns (RUN/oracle) are read here, of selections too: a report shows them, and chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import offrl.data
from offrl.data.dataset import Dataset
from offrl.errors import UserError
from offrl.playing.returns import episodes_played, run_reference
from offrl.protocol import scores
from offrl.reporting.page import Cell, digits_of
from offrl.runs.run import Run


class Selected(NamedTuple):
    """A folder that offrl.select wrote."""

    folder: Path
    answer: dict[str, Any]
    candidates: pd.DataFrame
    """With `measured`, the mean score of its episodes, nan where it was not scored."""
    diagnostics: pd.DataFrame

    @property
    def digits(self) -> int:
        """Decimals of the measured scores."""
        return digits_of(self.candidates["measured"])


class Material(NamedTuple):
    """Everything the page shows."""

    runs: list[Run]
    table: pd.DataFrame
    """`scores.scores`, with `name`: the algorithm and its setting."""
    parts: list[pd.DataFrame]
    """That table split into what is comparable (`scores.groups`): one dataset, environment and protocol each."""
    labels: list[str]
    """The name of each part."""
    messages: list[str]
    """Why the table was split, and what was left out."""
    selections: list[Selected]
    colours: dict[str, int]
    """Name -> place of its colour."""
    returns: dict[str, pd.DataFrame]
    """Path of a run -> its oracle table in the environment that counts, with `score`."""

    def tone(self, algorithm: Any) -> int:
        """The place of an algorithm's colour, of its first setting where it has several."""
        names = self.table[self.table["algorithm"] == algorithm]["name"]
        return self.colours[names.iloc[0]] if len(names) else 0

    def unit(self, part: pd.DataFrame) -> str:
        return "normalised score" if normalised(part) else "return"

    def digits(self, part: pd.DataFrame) -> int:
        """Decimals of its scores: returns may be of any size."""
        return 1 if normalised(part) else digits_of([*part["score"], *part["data"]])

    def label(self, place: int) -> Cell:
        """The name of a part, with its unit below where others have another one."""
        several = len({self.unit(part) for part in self.parts}) > 1
        return Cell(self.labels[place], note=self.unit(self.parts[place]) if several else "")


def normalised(part: pd.DataFrame) -> bool:
    return bool(pd.notna(part["reference_expert"].iloc[0]))


def gather(paths: Sequence[Path]) -> Material:
    """
    Raises:
        UserError: nothing at a path, something damaged, or two selections that differ.
    """
    tables = [path for path in paths if path.suffix == ".csv"]
    paths = [path for path in paths if path not in tables]
    folders, elsewhere = find_selections(paths)
    sources = [path for path in paths if path not in elsewhere] + elsewhere_runs(elsewhere)
    runs = scores.runs_under(sources) if sources or not tables else []
    for run in runs:
        folders.setdefault((run.path.parent / "selection").resolve(), run.path.parent / "selection")
    selections = [folder for folder in folders.values() if (folder / "selection.json").is_file()]
    found = [scores.scores(runs, selections)] if runs else []
    table = scores.one_name_each(pd.concat([*found, *map(scores.read, tables)], ignore_index=True))
    table["name"] = (table["algorithm"] + " " + table["setting"]).str.strip()
    parts, messages = scores.groups(table)
    messages += [
        f"{run.path} is not an offline run: its policies have {run.interacted}" for run in runs if run.interacted
    ]
    returns = {}
    for run in runs:
        mine = table[table["run"] == str(run.path)]
        env = mine["env"].iloc[0]
        column = "normalized_score" if run_reference(run, env) else "return"
        rows = episodes_played(run)
        returns[str(run.path)] = rows[rows["env"] == env].assign(score=lambda r, c=column: r[c])
    colours = {name: place for place, name in enumerate(dict.fromkeys(table["name"]))}
    material = Material(runs, table, parts, scores.labels(parts), messages, [], colours, returns)
    material.selections.extend(read_selection(material, folder) for folder in selections)
    return material


def find_selections(paths: Sequence[Path]) -> tuple[dict[Path, Path], list[Path]]:
    """(resolved -> as given) of the selections at and below the paths, and which paths are a selection themselves."""
    folders: dict[Path, Path] = {}
    itself = []
    for path in paths:
        if (path / "selection.json").is_file():
            itself.append(path)
        for file in sorted(path.rglob("selection.json")) if path.is_dir() else []:
            folders.setdefault(file.parent.resolve(), file.parent)
    return folders, itself


def elsewhere_runs(selections: Sequence[Path]) -> list[Path]:
    """The runs that these selections chose from."""
    found: dict[str, None] = {}
    for folder in selections:
        try:
            found |= dict.fromkeys(pd.read_csv(folder / "candidates.csv")["run"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{folder / 'candidates.csv'}: cannot be read ({error}); run offrl.select again") from error
    return [Path(name) for name in found]


def read_selection(material: Material, folder: Path) -> Selected:
    answer = scores.selection_of(folder)
    names = dict(zip(material.table["fingerprint"], material.table["dataset"], strict=True))
    answer["dataset"] = names.get(answer.get("fingerprint"), answer.get("dataset", str(folder)))
    candidates = pd.read_csv(folder / "candidates.csv", keep_default_na=False, na_values={"score": ""})
    means = {}
    for path, rows in material.returns.items():
        for (member, step), group in rows.groupby(["member", "step"]):
            means[Path(path).resolve(), member, step] = group["score"].mean(skipna=False)
    keys = zip(candidates["run"], candidates["member"], candidates["step"], strict=True)
    candidates["measured"] = [means.get((Path(run).resolve(), member, step), np.nan) for run, member, step in keys]
    file = folder / "diagnostics.csv"
    # empty where the row is of the data
    numbers = ("member", "seed", "step", "value", "standard_error", "seconds")
    measured = pd.read_csv(file, keep_default_na=False, na_values=dict.fromkeys(numbers, "")) if (
        file.is_file()) else pd.DataFrame(columns=["candidate", "diagnostic", "value"])  # fmt: skip
    return Selected(folder, answer, candidates, measured)


def summaries(material: Material) -> pd.DataFrame:
    """One row per part, name and kind: place (of the part), name, and what `scores.summarize` says."""
    found = []
    for place, part in enumerate(material.parts):
        summary = scores.summarize(part)
        summary.insert(0, "place", place)
        summary["name"] = (summary["algorithm"] + " " + summary["setting"]).str.strip()
        found.append(summary)
    return pd.concat(found, ignore_index=True)


def half_width(row: pd.Series) -> float:
    return float((row["high"] - row["low"]) / 2)


def common(material: Material) -> tuple[list[int], dict[str, list[np.ndarray]]]:
    """The parts and names to aggregate over: places of parts with normalised scores, and the last scores of every name
    that has some on all of them. Chosen so that names x parts is largest, with two names or more if possible."""
    values: dict[str, dict[int, np.ndarray]] = {}
    for place, part in enumerate(material.parts):
        if normalised(part):
            for name, mine in part[part["kind"] == "last"].groupby("name", sort=False):
                known = mine["score"].dropna().to_numpy()
                if len(known):
                    values.setdefault(str(name), {})[place] = known
    best: tuple[list[int], list[str]] = ([], [])
    for covered in {frozenset(found) for found in values.values()}:
        names = [name for name, found in values.items() if covered <= set(found)]
        size = (min(len(names), 2), len(names) * len(covered))
        if size > (min(len(best[1]), 2), len(best[1]) * len(best[0])):
            best = (sorted(covered), names)
    return best[0], {name: [values[name][place] for place in best[0]] for name in best[1]}


def at_hand(run: Run) -> Dataset | None:
    """The run's data if they are on this machine; nothing is downloaded or rolled out for a page."""
    facts = run.info["dataset"]
    options = run.info["identity"].get("data", {})
    try:
        return offrl.data.load(
            facts["name"],
            clip_actions=options.get("clip_actions", False),
            trust_next_observations=options.get("trust_next_observations", False),
            columns=options.get("columns") or None,
            steps=options.get("steps"),
            time_limit=facts.get("time_limit"),
            action_low=facts["action_low"],
            action_high=facts["action_high"],
            observation_dim=run.info["spec"]["observation_dim"],
            at_hand=True,
            quiet=True,
        )
    except UserError:
        return None
