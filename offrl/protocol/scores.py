"""The scores of runs as a tidy table, and published scores; what is not comparable is never averaged.

A member of a run, one of the policies that it trains together, has up to three scores: of its *last* checkpoint; of
the one *selected* from the data alone (where `offrl.select` has been run on it); and of the *best in hindsight*, the
best mean return of all its checkpoints, which nobody can know without the simulator, and which, as a maximum over noisy
means, is biased upwards.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from offrl.data.dataset import Reference
from offrl.errors import UserError
from offrl.playing.evaluation import plan_checkpoints
from offrl.playing.returns import Request, episodes_played, read_returns, run_reference
from offrl.runs.run import Run, differing_options
from offrl.statistics import Interval, aggregate_interval, standard_error

KINDS = ("last", "selected", "best")
SAME = [
    "dataset",
    "fingerprint",
    "env",
    "updates",
    "checkpoint_every",
    "validation_fraction",
    "reference_random",
    "reference_expert",
]
"""Scores that differ in any of these are in different rows of a table, never in one mean."""
TITLES = {"last": "last checkpoint", "selected": "selected from the data alone", "best": "best in hindsight"}


def scores(runs: Sequence[Run], selections: Iterable[Path] = ()) -> pd.DataFrame:
    """One row per member and kind of score: the columns of SAME, and algorithm, setting (the options in which runs of
    one algorithm on one dataset differ), run, member, seed, kind, step, score (normalised where references are known,
    else the return), return, standard_error (of the score, over episodes), episodes, checkpoints (how many were
    scored), data (the score of the data's mean return), reason (why there is no score; it is then nan).

    Args:
        selections: folders that `offrl.select` wrote.

    Raises:
        UserError: no run; or two selections that chose differently for one run.
    """
    chosen = _selected(selections)
    rows = [row for run in runs for row in _run_scores(run, chosen)]
    if not rows:
        raise UserError("no run given; give one or more folders that offrl.train made")
    table = pd.DataFrame(rows)
    table["step"] = table["step"].astype("Int64")
    table = one_name_each(table)
    table["setting"] = _settings(table)
    return table.drop(columns="options")


def one_name(names: Iterable[str]) -> str:
    """Of the names that one dataset goes by the one to show: the shortest, a file's only where there is no other."""
    return min(names, key=lambda name: (name.startswith("file:"), len(name), name))


def one_name_each(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every dataset under one name. A file named by a relative and by an absolute path is one dataset:
    which one it is, the fingerprint says."""
    content = table["fingerprint"].where(table["fingerprint"] != "", table["dataset"])
    return table.assign(dataset=table.groupby(content, sort=False)["dataset"].transform(one_name))


def read(file: Path) -> pd.DataFrame:
    """The scores that `offrl.reproduce` and `offrl.compare` write as scores.csv.

    Raises:
        UserError: it is not such a table.
    """
    texts = dict.fromkeys(["dataset", "fingerprint", "env", "algorithm", "setting", "run", "kind", "reason"], str)
    try:
        table = pd.read_csv(file, dtype=texts)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error
    wanted = [*SAME, *texts, "member", "seed", "step", "score", "data"]
    if missing := [column for column in dict.fromkeys(wanted) if column not in table]:
        raise UserError(f"{file}: no scores.csv of offrl.reproduce, it lacks the columns {', '.join(missing)}")
    return table.assign(step=table["step"].astype("Int64"), **{name: table[name].fillna("") for name in texts})


def _settings(table: pd.DataFrame) -> pd.Series:
    """For each row the options, as text, that not all runs of its algorithm on its dataset share."""
    settings: dict[Any, str] = {}
    for _, group in table.groupby(["algorithm", "dataset"]):
        settings |= dict(zip(group.index, differing_options(group["options"].tolist()), strict=True))
    return pd.Series(settings).reindex(table.index)


class Selected(NamedTuple):
    """What a selection says of one member."""

    step: int | None
    """The checkpoint that it ranks first among the member's; None where it vetoes all."""
    seen: int
    """The last checkpoint that it has looked at."""
    fingerprint: str
    """Of the data that it was made on."""


def _selected(selections: Iterable[Path]) -> dict[tuple[Path, int], Selected]:
    """(run, member) -> what was selected of it."""
    steps: dict[tuple[Path, int], Selected] = {}
    for folder in selections:
        file = Path(folder) / "candidates.csv"
        if not file.is_file():
            raise UserError(f"{folder}: no candidates.csv; give a folder that offrl.select wrote")
        try:
            ranked = pd.read_csv(file)
            ranked["seen"] = ranked.groupby(["run", "member"])["step"].transform("max")
            best = ranked.sort_values("score", ascending=False, kind="stable").drop_duplicates(["run", "member"])
            columns = ["run", "member", "step", "score", "seen", "fingerprint"]
            found = {
                (Path(run).resolve(), int(member)): Selected(
                    None if np.isnan(score) else int(step), int(seen), str(fingerprint)
                )
                for run, member, step, score, seen, fingerprint in best[columns].itertuples(index=False)
            }
        except (ValueError, KeyError) as error:
            raise UserError(f"{file}: damaged ({error}); run offrl.select again") from error
        for key, selected in found.items():
            if key in steps and steps[key].step != selected.step:
                raise UserError(f"{folder}: chooses step {selected.step} of {key[0]}, member {key[1]}, and another "
                                f"selection step {steps[key].step}; give one of the two")  # fmt: skip
        steps |= found
    return steps


def _run_scores(run: Run, chosen: dict[tuple[Path, int], Selected]) -> list[dict[str, Any]]:
    dataset, protocol = run.info["dataset"], run.info["protocol"]
    table = episodes_played(run)
    played = table["env"].unique()
    # without an environment of its own, a run may have been scored in one that the user named
    env = dataset["env_id"] or (played[0] if len(played) == 1 else "")
    reference = run_reference(run, env)
    table = table[table["env"] == env]
    column = "normalized_score" if reference else "return"
    evaluate = f"python -m offrl.evaluate {run.path}"
    unusable = ""  # for all kinds of score
    if not run.complete:
        unusable = f"training is not finished (step {(run.checkpoints() or [0])[-1]}); the same command continues it"
    elif not env:
        unusable = f"no environment to score it in: {evaluate} env=ID"
    elif table.empty:
        unusable = f"not scored: {evaluate} checkpoints=all"
    rows = []
    for member in run.members:
        number = member["member"]
        mine = table[table["member"] == number]
        means = mine.groupby("step")["return"].agg(lambda returns: returns.mean(skipna=False))
        last = run.last_checkpoint(number)
        for kind in KINDS:
            step, reason = _step(kind, run, number, last, means, chosen)
            if step is not None and step not in means.index:
                reason = f"step {step} is not scored: {evaluate} checkpoints={step}"
            reason = unusable or (f"diverged at step {member['diverged_at']}, before a checkpoint" if last is None
                                  else reason)  # fmt: skip
            episodes = mine.iloc[:0] if reason else mine[mine["step"] == step]
            broken = int(episodes["return"].isna().sum())
            if broken:
                reason = f"in {broken} of {len(episodes)} episodes an action was not finite"
            values = episodes[column].to_numpy() if not reason else np.empty(0)
            rows.append(
                {
                    "dataset": dataset["name"],
                    "fingerprint": dataset["fingerprint"],
                    "env": env,
                    "updates": protocol["updates"],
                    "checkpoint_every": protocol["checkpoint_every"],
                    "validation_fraction": protocol["validation_fraction"],
                    "reference_random": reference.random if reference else np.nan,
                    "reference_expert": reference.expert if reference else np.nan,
                    "algorithm": run.info["algorithm"]["name"],
                    "options": run.options(number),
                    "run": str(run.path),
                    "member": number,
                    "seed": member["seed"],
                    "kind": kind,
                    "step": pd.NA if reason else step,
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


def _step(
    kind: str, run: Run, member: int, last: int | None, means: pd.Series, chosen: dict[tuple[Path, int], Selected]
) -> tuple[int | None, str]:
    """Which checkpoint of a member the kind of score is of, or why it is of none."""
    if kind == "last":
        return last, ""
    if kind == "selected":
        key = (run.path.resolve(), member)
        if key not in chosen:
            return None, "offrl.select was not run on it"
        selected, again = chosen[key], "run offrl.select again"
        if selected.fingerprint != run.info["dataset"]["fingerprint"]:
            return None, f"it was selected on other data, with fingerprint {selected.fingerprint}; {again}"
        if last is not None and last > selected.seen:
            return None, f"offrl.select has seen no checkpoint after step {selected.seen}; {again}"
        return selected.step, "" if selected.step is not None else "the selector vetoes all of its checkpoints"
    healthy = {step for step in run.policy_checkpoints() if last is not None and step <= last}
    if not set(means.index) >= healthy:
        missing = len(healthy - set(means.index))
        return None, f"{missing} of {len(healthy)} checkpoints are not scored: checkpoints=all scores them"
    usable = means[means.notna() & means.index.isin(list(healthy))]
    if not len(usable):
        return None, "no checkpoint played all its episodes to the end"
    return int(usable.index[int(usable.argmax())]), ""


def fully_scored(run: Run) -> bool:
    """Whether every healthy checkpoint has all the episodes of the run's protocol, or there is nothing to score in."""
    protocol, env = run.info["protocol"], run.info["dataset"]["env_id"]
    if not env or not protocol["episodes"]:
        return True
    try:
        plan = plan_checkpoints(run, "all")
    except UserError:  # every member diverged before its first checkpoint
        return True
    request = Request(env, protocol["episodes"], protocol["evaluation_seed"], plan)
    return not request.missing(read_returns(run), len(run.members), protocol["episodes"])


def _scaled(value: float, reference: Reference | None) -> float:
    return reference.normalise(value) if reference else value


def groups(table: pd.DataFrame) -> tuple[list[pd.DataFrame], list[str]]:
    """The scores split so that each part compares, and messages: for each dataset that had to be split, and for each
    member that is there twice, of which the one with more of the scores counts, or the first."""
    parts, messages = [], []
    for _, part in table.groupby(SAME, sort=False, dropna=False):
        # not independent of its double: the same seed in another run of the same settings
        same_member = ["algorithm", "setting", "seed"]
        known = part["score"].notna().groupby([part[name] for name in [*same_member, "run"]]).transform("sum")
        first = part.assign(known=known).sort_values("known", ascending=False, kind="stable")
        counted = part[same_member].merge(first.drop_duplicates(same_member)[[*same_member, "run"]], how="left")
        left_out = counted["run"].to_numpy() != part["run"].to_numpy()
        again = part[left_out & (part["kind"] == KINDS[0])]
        for (algorithm, run), group in again.groupby(["algorithm", "run"], sort=False):
            seeds = ", ".join(map(str, group["seed"]))
            messages.append(f"{part['dataset'].iloc[0]}: seeds {seeds} of {algorithm} are in two runs; those of {run} "
                            "are left out")  # fmt: skip
        parts.append(part[~left_out])
    for dataset, same_name in table.groupby("dataset", sort=False):
        differing = [c for c in SAME[1:] if same_name[c].nunique(dropna=False) > 1]
        if differing:
            values = {c: ", ".join(map(str, same_name[c].unique())) for c in differing}
            described = "; ".join(f"{name} {value}" for name, value in values.items())
            messages.append(f"{dataset}: these are not comparable and have rows of their own: {described}")
    return parts, messages


def labels(parts: Sequence[pd.DataFrame]) -> list[str]:
    """A name for each part that `groups` made: its dataset, and what tells it from others of the same dataset."""
    firsts = pd.DataFrame([part.iloc[0][SAME] for part in parts])
    found = []
    for _, row in firsts.iterrows():
        others = firsts[firsts["dataset"] == row["dataset"]]
        differing = [column for column in SAME[1:] if others[column].nunique(dropna=False) > 1]
        found.append(", ".join([row["dataset"], *(f"{column} {row[column]}" for column in differing)]))
    return found


def summarize(part: pd.DataFrame, aggregate: Callable[..., Any] = np.mean) -> pd.DataFrame:
    """One row per (algorithm, setting, kind) of comparable scores.

    Columns: algorithm, setting, kind, estimate, low, high (95 %), method, warning, members, reason.

    The interval is over members; for a single one it is over its episodes alone (method "episodes"). Members without a
    score are not counted as anything: `members` says how many there are.
    """
    rows = []
    for (algorithm, setting, kind), group in part.groupby(["algorithm", "setting", "kind"], sort=False):
        known = group.dropna(subset="score")
        values = known["score"].to_numpy()
        if not len(values):
            interval = Interval(np.nan, np.nan, np.nan, "")
        elif len(values) == 1:
            half = 1.96 * known["standard_error"].iloc[0]
            interval = Interval(values[0], values[0] - half, values[0] + half, "episodes",
                                "one member: the interval is over its episodes alone")  # fmt: skip
        else:
            interval = aggregate_interval([values], lambda drawn: aggregate(drawn, axis=-1))
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
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        below = [path] if (path / "run.json").is_file() else sorted(file.parent for file in path.rglob("run.json"))
        if not below:
            raise UserError(f"{path}: no run here nor below; give folders that offrl.train made")
        for folder in below:
            found.setdefault(folder.resolve(), Run.open(folder))
    return list(found.values())


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
