"""One HTML page about runs, and its pictures: `python -m offrl.report RUN-or-folder...`.

The page is one file that works from disk and fetches nothing: scores of three kinds that are never mixed, learning
curves, aggregates, profiles, what selection cost against the best in hindsight, selections with their scoreboards, the
workflow's verdicts and the data. A section is there where there is something to show. This page looks at the
simulator's returns (RUN/oracle), of selections too: it judges them, and chooses nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console

import offrl
import offrl.data
from offrl import command_line, statistics
from offrl.data.dataset import Dataset
from offrl.errors import UserError, run_command
from offrl.playing.returns import episodes_played, run_reference
from offrl.protocol import scores
from offrl.protocol.published import published_range
from offrl.reporting import pictures
from offrl.reporting.page import (
    Cell,
    Column,
    Html,
    Section,
    decimal,
    figure,
    grid,
    joined,
    notes,
    number,
    page,
    significant,
    table,
    tag,
    tiles,
)
from offrl.reporting.pictures import Curve
from offrl.runs.run import Run, write_whole
from offrl.selection import diagnostics

MAX_CURVES = 12
"""Workflow pictures; the table has all verdicts."""
MAX_ACROSS = 12
"""Algorithms that a table has room for side by side."""
COLUMN_TITLES = {"last": "last", "selected": "selected", "best": "best in hindsight"}
KIND_HINTS = {
    "last": "the last healthy checkpoint of every member",
    "selected": "the checkpoint that offrl.select ranks first among those of the member, from the data alone",
    "best": "the checkpoint with the best measured mean: out of reach without the simulator, and too high besides",
}


class Selected(NamedTuple):
    """A folder that offrl.select wrote."""

    folder: Path
    answer: dict[str, Any]
    candidates: pd.DataFrame
    """With `measured`, the mean score of its episodes, nan where it was not scored."""
    diagnostics: pd.DataFrame


class Material(NamedTuple):
    """All that the page is made of."""

    runs: list[Run]
    table: pd.DataFrame
    """`scores.scores`, with `name`: the algorithm and its setting."""
    parts: list[pd.DataFrame]
    labels: list[str]
    messages: list[str]
    selections: list[Selected]
    colours: dict[str, int]
    returns: dict[str, pd.DataFrame]
    """Path of a run -> its oracle table in the environment that counts, with `score`."""

    def tone(self, algorithm: Any) -> int:
        """The place of an algorithm's colour, of its first setting where it has several."""
        names = self.table[self.table["algorithm"] == algorithm]["name"]
        return self.colours[names.iloc[0]] if len(names) else 0

    def unit(self, part: pd.DataFrame) -> str:
        return "normalised score" if normalised(part) else "return"


def normalised(part: pd.DataFrame) -> bool:
    return bool(pd.notna(part["reference_expert"].iloc[0]))


# Reading


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
    table = pd.concat([*found, *(scores.read(file) for file in tables)], ignore_index=True)
    table["name"] = (table["algorithm"] + " " + table["setting"]).str.strip()
    parts, messages = scores.groups(table)
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


# Sections


Save = Callable[[str, Any], Html]
"""Keeps a picture under a name and returns its markup."""


def build(material: Material, save: Save) -> list[Section]:
    found = [
        ("scores", "Scores", scores_section(material)),
        ("curves", "Learning curves", curves_section(material, save)),
        ("aggregates", "Aggregates and profiles", aggregates_section(material, save)),
        ("regret", "Selected against best", regret_section(material, save)),
        ("selection", "Selection", selections_section(material, save)),
        ("workflow", "Training-curve workflow", workflow_section(material, save)),
        ("data", "Data", data_section(material, save)),
    ]
    return [Section(*section) for section in found if section[2]]


def summaries(material: Material) -> pd.DataFrame:
    """One row per part, name and kind: place (of the part), name, and what `scores.summarize` says."""
    found = []
    for place, part in enumerate(material.parts):
        summary = scores.summarize(part)
        summary.insert(0, "place", place)
        summary["name"] = (summary["algorithm"] + " " + summary["setting"]).str.strip()
        found.append(summary)
    return pd.concat(found, ignore_index=True)


def scores_section(material: Material) -> Html:
    every = summaries(material)
    kinds = [kind for kind in scores.KINDS if kind == "last" or every[every["kind"] == kind]["estimate"].notna().any()]
    published = [
        published_range(material.parts[row["place"]]["dataset"].iloc[0], row["algorithm"], row["kind"])
        if normalised(material.parts[row["place"]]) else (np.nan, np.nan, 0)
        for _, row in every.iterrows()
    ]  # fmt: skip
    every["published"] = pd.Series(published, every.index, object)
    reported = [kind for kind, (_, _, sources) in zip(every["kind"], published, strict=True) if sources]
    shown = [kind for kind in scores.KINDS if kind in reported]
    with_settings = every["setting"].any()
    has_bc = (every["algorithm"] == "bc").any() and every["algorithm"].nunique() > 1
    columns = [
        Column("dataset"),
        Column("algorithm"),
        *([Column("setting")] if with_settings else []),
        Column("members", True, "how many have a score of their last checkpoint"),
        *(Column(COLUMN_TITLES[kind], True, KIND_HINTS[kind], "ours, of the checkpoint") for kind in kinds),
        Column("data", True, "the mean return of the data, on the same scale", "beside"),
        *([Column("BC", True, "last checkpoint of behaviour cloning", "beside")] if has_bc else []),
        *(Column(kind, True, f"range of the published scores of the {kind} checkpoint", "published") for kind in shown),
    ]  # fmt: skip
    rows: list[list[Any]] = []
    marked = []
    for place, (label, part) in enumerate(zip(material.labels, material.parts, strict=True)):
        mine = every[every["place"] == place]
        last = mine[mine["kind"] == "last"]
        cloning = last[last["algorithm"] == "bc"]["estimate"]
        if last["estimate"].notna().sum() > 1:
            marked.append(len(rows) + int(np.nanargmax(last["estimate"])))
        for name, group in mine.groupby("name", sort=False):
            ours = {row["kind"]: row for _, row in group.iterrows()}
            members = float(ours["last"]["members"])
            total = len(part[(part["name"] == name) & (part["kind"] == "last")])
            rows.append([
                label, ours["last"]["algorithm"], *([ours["last"]["setting"]] if with_settings else []),
                Cell(f"{members:.0f}", members),
                *(_ours(ours[kind], total) for kind in kinds),
                number(part["data"].iloc[0]),
                *([number(cloning.iloc[0] if len(cloning) else None)] if has_bc else []),
                *(_published(ours[kind]) for kind in shown),
            ])  # fmt: skip
    units = {material.unit(part) for part in material.parts}
    text = [
        "Normalised: 0 is a random policy and 100 the reference policy. " if "normalised score" in units else "",
        "Where no references are known, returns. " if "return" in units else "",
        "± is half of the 95 % interval over members (Student’s t: wide for two; over episodes for a single one). ",
        "The three kinds of score answer different questions and are never mixed; best in hindsight is out of reach "
        "without the simulator. " if "best" in kinds else "",
        "A published range in red lies outside our interval. " if shown else "",
        "Marked: the highest last score of a dataset." if marked else "",
    ]  # fmt: skip
    absent = [
        f"No score “{scores.TITLES[kind]}”: {every[every['kind'] == kind]['reason'].iloc[0]}"
        for kind in scores.KINDS
        if kind not in kinds
    ]
    return joined([tag("p", *text), notes(material.messages), glance(material, every), table(columns, rows, marked),
                   notes(absent, "plain")])  # fmt: skip


def glance(material: Material, every: pd.DataFrame) -> Html:
    """The last scores as papers show them, datasets down and algorithms across, where there are several of both."""
    names = list(material.colours)
    if len(material.parts) < 2 or not 1 < len(names) <= MAX_ACROSS:
        return Html("")
    rows = []
    for place, (label, part) in enumerate(zip(material.labels, material.parts, strict=True)):
        last = every[(every["place"] == place) & (every["kind"] == "last")]
        found = {row["name"]: row for _, row in last.iterrows()}
        top = last["estimate"].max()
        cells = []
        for name in names:
            cell = number(found[name]["estimate"], _half(found[name])) if name in found else number(None)
            cells.append(cell._replace(kind="top") if cell.value == top else cell)
        rows.append([label, number(part["data"].iloc[0]), *cells])
    columns = [Column("last checkpoint"), Column("data", True), *(Column(name, True) for name in names)]
    return table(columns, rows)


def _ours(row: pd.Series, total: int) -> Cell:
    """A score of ours; where members are missing from it, how many are there and why the others are not."""
    cell = number(row["estimate"], _half(row), reason=row["reason"])
    if cell.value is None or row["members"] == total:
        return cell
    missing = number(None, reason=row["reason"])
    return cell._replace(note=f"{row['members']} of {total} members; {missing.note}", hint=missing.hint)


def _half(row: pd.Series) -> float:
    return float((row["high"] - row["low"]) / 2)


def _published(ours: pd.Series) -> Cell:
    low, high, sources = ours["published"]
    if not sources:
        return Cell("–", None, "", "muted")
    text = decimal(low) if high - low < 0.05 else f"{decimal(low)} to {decimal(high)}"
    sure = ours["method"] not in ("episodes", "")
    away = sure and (high < ours["low"] or low > ours["high"])
    off = decimal(ours["estimate"] - np.clip(ours["estimate"], low, high))
    hint = f"{sources} source{'s' if sources > 1 else ''}; ours is off its nearer end by {off}"
    return Cell(text, (low + high) / 2, "", "bad" if away else "", hint)


def curves_section(material: Material, save: Save) -> Html:
    figures = []
    for place, (label, part) in enumerate(zip(material.labels, material.parts, strict=True)):
        curves = {}
        for name, mine in part.groupby("name", sort=False):
            if (curve := learning_curve(material, mine)) is not None:
                curves[str(name)] = (material.colours[str(name)], curve)
        if not any(len(curve.x) > 1 for _, curve in curves.values()):
            continue
        members = part.drop_duplicates(["run", "member"]).groupby("name", sort=False).size()
        run = next(run for run in material.runs if str(run.path) == part["run"].iloc[0])
        reference = run_reference(run, part["env"].iloc[0])
        ends = [run.info["dataset"]["returns"][key] for key in ("mean", "max")]
        data = tuple(reference.normalise(value) if reference else value for value in ends)
        drawn = pictures.learning_curves(curves, data, material.unit(part))  # type: ignore[arg-type]
        said = ", ".join(f"{name}: {members[name]}" for name in curves)
        caption = f"Mean and 95 % bootstrap interval over members and episodes. Members: {said}."
        figures.append(figure(save(f"learning-curves-{place}", drawn), caption, label))
    return grid(figures) if figures else Html("")


def learning_curve(material: Material, mine: pd.DataFrame) -> Curve | None:
    """Mean score of every step at which all members that were ever scored have been, on the episodes they share."""
    members = mine.drop_duplicates(["run", "member"])[["run", "member"]]
    if not set(members["run"]) <= set(material.returns):  # a table of scores has no episodes
        return None
    rows = pd.concat([material.returns[run].assign(run=run) for run in members["run"].unique()]).merge(members)
    if rows.empty:
        return None
    count = rows.drop_duplicates(["run", "member"]).shape[0]
    points = []
    for step, group in rows.groupby("step"):
        if group["score"].isna().any() or group.drop_duplicates(["run", "member"]).shape[0] < count:
            continue  # a mean over fewer is another quantity
        matrix = group.pivot(index=["run", "member"], columns="reset_seed", values="score").dropna(axis=1).to_numpy()
        if matrix.size:
            band = statistics.bootstrap_interval(matrix) if matrix.size > 1 else (np.nan, np.nan)
            points.append((step, matrix.mean(), *band))
    return Curve(*np.array(points, float).T) if points else None


def common(material: Material) -> tuple[list[int], dict[str, list[np.ndarray]]]:
    """Places of parts with normalised scores, and the last scores of every name that has some on all of them: the
    parts for which (names, of which at least two where there are) x (parts) is largest."""
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


def aggregates_section(material: Material, save: Save) -> Html:
    places, names = common(material)
    if len(names) < 2:
        return Html("")
    iqm: Callable[..., Any] = statistics.interquartile_mean
    gap: Callable[..., Any] = partial(statistics.optimality_gap, target=100.0)
    aggregates = {
        "interquartile mean": (iqm, "higher is better"),
        "mean": (lambda drawn: np.mean(drawn, axis=-1), "higher is better"),
        "optimality gap": (gap, "by how much scores fall short of 100 on average; lower is better"),
    }
    figures, columns, found = [], [Column("algorithm"), Column("members", True)], {}
    for title, (aggregate, hint) in aggregates.items():
        rows = []
        for name, values in names.items():
            interval = statistics.aggregate_interval(values, aggregate)
            found[name, title] = interval
            rows.append((name, material.colours[name], interval.estimate, interval.low, interval.high))
        columns.append(Column(title, True, hint))
        drawn = pictures.intervals(rows, "normalised score")
        figures.append(figure(save(f"aggregate-{title.replace(' ', '-')}", drawn), hint, title))
    pooled = np.concatenate([score for values in names.values() for score in values])
    thresholds = np.linspace(min(0.0, pooled.min()), max(pooled.max(), 1e-9), 150)
    curves = {}
    for name, values in names.items():
        share, low, high = statistics.profile_band(values, thresholds)
        curves[name] = (material.colours[name], Curve(thresholds, share, low, high))
    caption = "Share of members whose last checkpoint scores above the threshold, with a pointwise 95 % band."
    drawn = pictures.profiles(curves, "normalised score of the last checkpoint")
    figures.append(figure(save("profiles", drawn), caption, "performance profile"))
    rows_of_table = [
        [name, Cell(sum(map(len, values)), float(sum(map(len, values)))),
         *(number(found[name, t].estimate, (found[name, t].high - found[name, t].low) / 2) for t in aggregates)]
        for name, values in names.items()
    ]  # fmt: skip
    fewest = min(len(values) for sample in names.values() for values in sample)
    left_out = [name for name in material.colours if name not in names]
    datasets = f"{len(places)} dataset{'s' if len(places) > 1 else ''}"
    text = [f"Last checkpoints, over the {datasets} on which all of these have a score. "]
    if fewest < 10:
        plural = f"With {fewest} members of each the intervals are wide"
        text.append(f"{plural if fewest > 1 else 'A single member has no interval'}: trust no small difference. ")
    if left_out:
        text.append(f"Left out: {', '.join(left_out)}.")
    return joined([tag("p", *text), grid(figures), table(columns, rows_of_table)])


def regret_section(material: Material, save: Save) -> Html:
    figures, rows = [], []
    for place, (label, part) in enumerate(zip(material.labels, material.parts, strict=True)):
        wide = part.pivot(index=["run", "member", "name"], columns="kind", values="score").reset_index()
        wide = wide.dropna(subset=["best", "selected"])
        if wide.empty:
            continue
        points: dict[str, tuple[int, np.ndarray, np.ndarray, np.ndarray]] = {}
        for name, group in wide.groupby("name", sort=False):
            best, selected, last = (group[kind].to_numpy(float) for kind in ("best", "selected", "last"))
            points[str(name)] = (material.colours[str(name)], best, selected, last)
        drawn = pictures.selected_against_best(points, material.unit(part))
        caption = "One point per member; its distance below the line is the regret of the selection."
        figures.append(figure(save(f"selected-against-best-{place}", drawn), caption, label))
        for name, (_, best, selected, last) in points.items():
            regrets, harm = best - selected, selected - last
            rows.append([
                label, name, Cell(len(best), float(len(best))), number(best.mean()), number(selected.mean()),
                number(regrets.mean(), 1.96 * statistics.standard_error(regrets)), number(float((best - last).mean())),
                number(harm.mean())._replace(kind="good" if harm.mean() > 0 else "bad" if harm.mean() < 0 else ""),
            ])  # fmt: skip
    if not rows:
        return Html("")
    columns = [
        Column("dataset"), Column("algorithm"), Column("members", True),
        Column("best in hindsight", True, KIND_HINTS["best"]), Column("selected", True, KIND_HINTS["selected"]),
        Column("regret", True, "best minus selected"), Column("regret of the last", True, "best minus last"),
        Column("selected − last", True, "what selecting gained over taking the last checkpoint"),
    ]  # fmt: skip
    text = ("Which checkpoint of each member to take, from the data alone, against the best that its simulator knows. "
            "The best of many noisy means is too high, so the regret is too.")  # fmt: skip
    return joined([tag("p", text), grid(figures), table(columns, rows)])


def selections_section(material: Material, save: Save) -> Html:
    blocks = [_selection(material, selected, place, save) for place, selected in enumerate(material.selections)]
    return joined(blocks)


def _selection(material: Material, selected: Selected, place: int, save: Save) -> Html:
    answer, candidates = selected.answer, selected.candidates
    measured = candidates.set_index("candidate")["measured"].astype(float)
    best = measured.max()  # nan where nothing was scored
    deploy = (answer.get("deploy") or [None])[0]
    lines = [tag("p", "Deploy ", tag("strong", deploy)) if deploy else tag("p", tag("strong", "Behaviour cloning"), ", "
             "which the pool has not: train it with ", tag("code", "algo=bc"))]  # fmt: skip
    if answer.get("abstains"):
        lines.append(tag("p", f"The selector abstains and falls back to behaviour cloning: {answer['abstains']}"))
    for row in answer.get("chances") or []:
        known = [f"P(beats {what}) = {row[key]:.2f}" for key, what in (("beats_bc", "BC"), ("beats_behaviour",
                 "the logged behaviour")) if row.get(key) is not None]  # fmt: skip
        lines.append(tag("p", f"If {row['estimate']} is right: {', '.join(known)}", class_="muted"))
    if deploy in measured.index and np.isfinite(measured[deploy]):
        lines.append(tag("p", f"Measured: {decimal(measured[deploy])}; the best of the pool {decimal(best)}, "
                              f"regret {decimal(best - measured[deploy])}", class_="muted"))  # fmt: skip
    vetoed = int((candidates["veto"] != "").sum()) if "veto" in candidates else 0
    w = answer.get("agreement")
    agreement = f"Kendall’s W {w:.2f}" if w is not None else "agreement not known"
    about = (f"{len(candidates)} candidates, {vetoed} vetoed; selector {answer.get('selector', 'unknown')}; "
             f"{agreement}; {answer.get('held_out_episodes', 0)} episodes held out")  # fmt: skip
    figures = []
    scored = candidates[np.isfinite(measured.to_numpy()) & candidates["score"].notna()]
    if len(scored) > 1:
        groups = {
            str(name): (material.tone(name), group["score"].to_numpy(float), group["measured"].to_numpy(float))
            for name, group in scored.groupby("algorithm", sort=False)
        }
        chosen = scored[scored["candidate"] == deploy]
        point = (float(chosen["score"].iloc[0]), float(chosen["measured"].iloc[0])) if len(chosen) else None
        drawn = pictures.pool(groups, point, best, ("selector’s score", "measured score"))
        figures.append(figure(save(f"pool-{place}", drawn), "Every candidate that was scored.", "choice and truth"))
    scoreboard, correlations = _diagnostics(selected, measured, best)
    if correlations:
        rows = [(name, 0, value, np.nan, np.nan) for name, value in correlations]
        drawn = pictures.intervals(rows, "rank correlation with the measured score", 0.0)
        figures.append(figure(save(f"diagnostics-{place}", drawn), "All candidates of the pool.", "diagnostics"))
    checks = [f"{check['check']}: {check['message']}" for check in answer.get("data_checks") or []
              if check.get("level") != "ok"]  # fmt: skip
    return joined([
        tag("h3", answer.get("dataset", selected.folder)),
        tag("p", about, "; ", tag("code", selected.folder), class_="muted"),
        tag("div", *lines, class_="verdict"),
        notes(checks),
        grid(figures) if figures else "",
        tag("h3", "Candidates"), _candidates(material, selected, deploy),
        joined([tag("h3", "Scoreboard of selectors"), _dissent(selected, measured, best)])
        if answer.get("dissent") else "",
        joined([tag("h3", "Scoreboard of diagnostics"), scoreboard]) if scoreboard else "",
    ])  # fmt: skip


def _candidates(material: Material, selected: Selected, deploy: str | None) -> Html:
    candidates = selected.candidates
    settings = candidates["setting"].astype(str).str.len().any()
    columns = [
        Column("place", True), Column("candidate"), Column("algorithm"), *([Column("setting")] if settings else []),
        Column("step", True), Column("score", True, "the selector’s: higher is better"),
        Column("measured", True, "mean of its episodes, which the selector has not seen"), Column("veto"),
    ]  # fmt: skip
    rows = []
    for place, (_, row) in enumerate(candidates.iterrows(), 1):
        rows.append([
            Cell(place, float(place)), row["candidate"], row["algorithm"], *([row["setting"]] if settings else []),
            Cell(f"{row['step']:,}", float(row["step"])), number(row["score"], digits=3), number(row["measured"]),
            Cell(row.get("veto", ""), kind="bad"),
        ])  # fmt: skip
    return table(columns, rows, [i for i, name in enumerate(candidates["candidate"]) if name == deploy])


def _dissent(selected: Selected, measured: pd.Series, best: float) -> Html:
    answer = selected.answer
    columns = [
        Column("selector"), Column("would choose"), Column("algorithm"), Column("deploys the same"),
        Column("place of the choice", True, "where the deployed policy stands in this selector’s order"),
        Column("measured", True), Column("regret", True, "best of the pool minus this choice"),
    ]  # fmt: skip
    own = {"selector": answer.get("selector", ""), "would_choose": (answer.get("top") or [""])[0], "agrees": True,
           "abstains": bool(answer.get("abstains")), "place_of_choice": None}  # fmt: skip
    described = selected.candidates.set_index("candidate")["algorithm"]
    rows = []
    for row in [own, *answer["dissent"]]:
        choice = row["would_choose"]
        score = measured.get(choice, np.nan)
        place = row.get("place_of_choice")
        rows.append([
            Cell(row["selector"], note="the one that chose" if row is own else ""),
            Cell(choice, note="but abstains" if row.get("abstains") else ""), described.get(choice, ""),
            "yes" if row.get("agrees") else "no",
            Cell("–", None, kind="muted") if place is None else Cell(f"{place:.0f} of {row['of']}", float(place)),
            number(score), number(best - score),
        ])  # fmt: skip
    return table(columns, rows, [0])


def _diagnostics(selected: Selected, measured: pd.Series, best: float) -> tuple[Html, list[tuple[str, float]]]:
    """The scoreboard, and the rank correlations of those that have one, highest first."""
    known = diagnostics.diagnostics()
    rows, correlations = [], []
    for name, group in selected.diagnostics.groupby("diagnostic", sort=False):
        better = known[name].better if name in known else "flag"  # type: ignore[index]
        values = group.set_index("candidate")["value"].astype(float)
        usable = values.dropna()
        correlation, regret = np.nan, np.nan
        truth = measured.reindex(values.index)
        if better != "flag" and truth.notna().sum() > 2 and len(usable) > 2:
            signed = values * (-1 if better == "low" else 1)
            both = truth.notna()
            correlation = statistics.spearman(signed[both], truth[both])
            regret = best - statistics.expected_best_of_top(truth[both], signed[both], 1)
            if np.isfinite(correlation):
                correlations.append((str(name), correlation))
        reasons = [reason for reason in group["reason"].unique() if reason] if "reason" in group else []
        seconds = float(group["seconds"].sum()) if "seconds" in group else np.nan
        meaning = known[name].summary if name in known else ""  # type: ignore[index]
        rows.append([
            Cell(name, note=meaning), better if better != "flag" else "–",
            Cell(f"{len(usable)} of {len(values)}", float(len(usable)), "; ".join(reasons[:2])),
            Cell(significant(usable.median()), usable.median()) if len(usable) else number(None),
            number(correlation, digits=2), number(regret), number(seconds),
        ])  # fmt: skip
    columns = [
        Column("diagnostic"), Column("better"), Column("applies to", True, "candidates that it has a value for"),
        Column("median", True), Column("rank correlation", True, "Spearman, with the measured score, right way up"),
        Column("regret@1", True, "best of the pool minus the candidate that it ranks first"), Column("seconds", True),
    ]  # fmt: skip
    return table(columns, rows) if rows else Html(""), sorted(correlations, key=lambda pair: -pair[1])


def workflow_section(material: Material, save: Save) -> Html:
    rows, figures, drawn = [], [], 0
    for place, selected in enumerate(material.selections):
        verdicts = selected.answer.get("workflow") or []
        curves = selected.diagnostics[selected.diagnostics["diagnostic"].isin(["dataset_q", "dataset_q_validation"])]
        for row in verdicts:
            run, name = Path(row["run"]).name, f"{row['algorithm']}, seed {row['seed']}"
            kind = {"well-fitted": "good", "overfitted": "bad", "underfitted": "bad"}.get(row["verdict"], "muted")
            rows.append([
                selected.answer.get("dataset", ""), Cell(name, note=f"{run}, member {row['member']}"),
                Cell(row["verdict"], kind=kind), Cell(f"{row['step']:,}", float(row["step"])), row["advice"],
                row.get("reason") or "",
            ])  # fmt: skip
        for row in sorted(verdicts, key=lambda verdict: verdict["verdict"] == "unknown"):
            mine = curves[(curves["run"] == row["run"]) & (curves["member"] == row["member"])]
            parts = {kind: _curve(mine[mine["diagnostic"] == kind]) for kind in ("dataset_q", "dataset_q_validation")}
            training = parts["dataset_q"]
            if training is None or drawn == MAX_CURVES:
                continue
            peak = row.get("peak_step")
            claims = row["verdict"] != "unknown"
            picture = pictures.workflow(
                training,
                parts["dataset_q_validation"],
                None if peak is None else int(peak),
                int(row["step"]),
                material.tone(row["algorithm"]),
            )
            title = f"{row['algorithm']}, seed {row['seed']}: {row['verdict'] if claims else 'no verdict'}"
            caption = row.get("reason") or "" if claims else ""
            figures.append(figure(save(f"workflow-{place}-{drawn}", picture), caption, title))
            drawn += 1
    if not rows:
        return Html("")
    columns = [
        Column("dataset"), Column("member"), Column("verdict"), Column("take step", True), Column("what to change"),
        Column("why"),
    ]  # fmt: skip
    text = (
        "What the curves say of each member. Conservative critics (CQL, COMBO, ReBRAC with a critic penalty) go by "
        "their average Q over the data, which the pictures show (Kumar et al. 2021); other critics, and clones, by "
        "their error on held-out rows. Where neither rule holds nothing is claimed."
    )
    return joined([tag("p", text), table(columns, rows), grid(figures) if figures else ""])


def _curve(rows: pd.DataFrame) -> Curve | None:
    rows = rows.dropna(subset="value").sort_values("step")
    return Curve(rows["step"].to_numpy(float), rows["value"].to_numpy(float)) if len(rows) > 1 else None


def data_section(material: Material, save: Save) -> Html:
    blocks = []
    seen: dict[tuple[str, str], Run] = {}
    for run in material.runs:
        seen.setdefault((run.info["dataset"]["name"], run.info["dataset"]["fingerprint"]), run)
    for place, ((name, fingerprint), run) in enumerate(seen.items()):
        facts = run.info["dataset"]
        reference = run_reference(run, facts["env_id"] or "")

        def both(value: float, reference: Any = reference) -> str:
            return significant(value) + (f" ({decimal(reference.normalise(value))})" if reference else "")

        returns = facts["returns"]
        lines = [
            ("environment", facts["env_id"] or "not known"),
            ("episodes, steps", f"{facts['episodes']:,} episodes ({facts['train_episodes']:,} trained on), "
                                f"{facts['steps']:,} steps" if "train_episodes" in facts else
                                f"{facts['episodes']:,} episodes, {facts['steps']:,} steps"),
            ("return" + (" (normalised)" if reference else ""),
             f"mean {both(returns['mean'])}, lowest {both(returns['min'])}, highest {both(returns['max'])}"),
            ("0 and 100", f"{significant(reference.random)} and {significant(reference.expert)}: {reference.source}"
             if reference else "no reference returns are known: nothing is normalised"),
            ("transforms", ", ".join(t["name"] for t in facts["transforms"]) or "none"),
            ("fingerprint", tag("code", fingerprint)),
        ]  # fmt: skip
        dataset = at_hand(run)
        figures = []
        if dataset is not None and dataset.fingerprint == fingerprint:
            for what, values in (("return", dataset.returns), ("length", dataset.lengths)):
                picture = pictures.histogram(values, f"{what} of an episode")
                figures.append(figure(save(f"data-{place}-{what}", picture)))
        facts_table = tag("div", tag("table", tag("tbody", *(tag("tr", tag("td", a, class_="muted"), tag("td", b))
                          for a, b in lines))), class_="scroll")  # fmt: skip
        changed = []
        if dataset is not None and dataset.fingerprint != fingerprint:
            changed.append(
                f"the data here now have the fingerprint {dataset.fingerprint}: they are not those of the runs"
            )
        blocks.append(joined([tag("h3", name), facts_table, notes([*facts["warnings"], *changed]),
                              grid(figures) if figures else ""]))  # fmt: skip
    return joined(blocks)


def at_hand(run: Run) -> Dataset | None:
    """The run's data if they are on this machine; nothing is downloaded or rolled out for a page."""
    facts = run.info["dataset"]
    options = run.info["identity"].get("data", {})
    try:
        return offrl.data.load(
            facts["name"],
            clip_actions=options.get("clip_actions", False),
            columns=options.get("columns") or None,
            steps=options.get("steps"),
            time_limit=facts.get("time_limit"),
            action_low=facts["action_low"],
            action_high=facts["action_high"],
            at_hand=True,
            quiet=True,
        )
    except UserError:
        return None


def summary(material: Material) -> tuple[str, Html]:
    """The title, and what stands at the top: what this is, and the few figures that matter."""
    every = summaries(material)
    last = every[(every["kind"] == "last") & every["estimate"].notna()]
    names = list(dict.fromkeys(part["dataset"].iloc[0] for part in material.parts))
    title = names[0] if len(names) == 1 else f"{len(names)} datasets"
    members = int(material.table.drop_duplicates(["run", "member"]).shape[0])
    episodes = sum(map(len, material.returns.values()))
    checkpoints = sum(rows.drop_duplicates(["member", "step"]).shape[0] for rows in material.returns.values())
    algorithms = list(dict.fromkeys(material.table["algorithm"]))
    protocols = list(dict.fromkeys(run.info["protocol"]["name"] for run in material.runs))
    text = (f"{', '.join(algorithms)} under the protocol{'s' if len(protocols) > 1 else ''} {', '.join(protocols)}: "
            f"{checkpoints:,} checkpoints played {episodes:,} episodes."
            if protocols else f"{', '.join(algorithms)}, from a table of scores.")  # fmt: skip
    figures: list[tuple[str, Any, Any]] = [("runs", f"{material.table['run'].nunique()}", f"{members} members")]
    if len(material.parts) == 1 and len(last):
        row = last.iloc[int(last["estimate"].argmax())]
        figures.append(("best last checkpoint", number(row["estimate"], _half(row)).text, row["name"]))
    elif len(material.parts) > 1:
        places, found = common(material)
        figures.append(("datasets", f"{len(names)}", f"{len(material.parts)} tables" if len(material.parts) > len(names)
                        else ""))  # fmt: skip
        if len(found) > 1:
            means = {name: statistics.interquartile_mean(np.concatenate(values)) for name, values in found.items()}
            top = max(means, key=lambda name: means[name])
            figures.append(("highest interquartile mean", decimal(means[top]), f"{top}, on {len(places)} datasets"))
    if len(material.parts) == 1:
        part = material.parts[0]
        figures.append(("data, mean episode", decimal(part["data"].iloc[0]), material.unit(part)))
    wide = pd.concat([part.pivot(index=["run", "member"], columns="kind", values="score") for part in material.parts
                      if normalised(part) or len(material.parts) == 1])  # fmt: skip
    wide = wide.dropna(subset=["best", "selected"]) if {"best", "selected"} <= set(wide) else wide.iloc[:0]
    if len(wide):
        figures.append(("regret of the selection", decimal((wide["best"] - wide["selected"]).mean()),
                        f"of {len(wide)} members; their last checkpoints’ is "
                        f"{decimal((wide['best'] - wide['last']).mean())}"))  # fmt: skip
    for selected in material.selections if len(material.selections) == 1 else []:
        deploy = (selected.answer.get("deploy") or [None])[0]
        chosen = selected.candidates[selected.candidates["candidate"] == deploy]
        if len(chosen):
            row = chosen.iloc[0]
            figures.append(("deploy", row["algorithm"], f"step {row['step']:,}, seed {row['seed']}"))
    return title, joined([tag("h1", title), tag("p", text), tiles(figures)])


# The command


def make(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write the page to `out` and its pictures beside it.

    Raises:
        UserError: nothing to report on, or something damaged.
    """
    material = gather(paths)
    folder = out.with_name(f"{out.stem}_pictures")
    saved: list[str] = []

    def save(name: str, drawn: Any) -> Html:
        saved.extend(str(folder / f"{name}.{kind}") for kind in ("svg", "png"))
        return pictures.save(drawn, folder, name)

    out.parent.mkdir(parents=True, exist_ok=True)
    with pictures.style():
        sections = build(material, save)
    title, lead = summary(material)
    versions = ", ".join(sorted({f"offrl {run.info['offrl']}" for run in material.runs})) or "other machines"
    given = " ".join(map(str, paths))
    footer = f"Made by offrl {offrl.__version__} of runs of {versions}: python -m offrl.report {given}"
    write_whole(out, page(f"{title} · offrl", lead, sections, footer))
    every = summaries(material).assign(dataset=lambda rows: [material.labels[place] for place in rows["place"]])
    return {
        "page": str(out),
        "pictures": saved,
        "sections": [section.name for section in sections],
        "messages": material.messages,
        "scores": json.loads(every.drop(columns=["place", "name"]).to_json(orient="records", double_precision=12)),
    }


OPTIONS = {"out": "the page; its pictures go into a folder beside it; default: report.html"}


def main() -> None:
    def command() -> None:
        parsed = command_line.parse(
            sys.argv[1:],
            "report",
            "Write one HTML page about runs and selections, and its pictures as SVG and PNG. The page is one\n"
            "file that needs no network. Selections (folders that offrl.select wrote) at, below or beside the runs\n"
            "are found by themselves.",
            OPTIONS,
            "  python -m offrl.report runs/builtin-hopper-medium-replay\n"
            "  python -m offrl.report runs/reproduce/builtin-quick out=table.html\n"
            "  python -m offrl.report results/tables/small/scores.csv\n"
            "  python -m offrl.report RUN RUN runs/hopper/selection --json",
            "RUN",
            "a run directory, a folder with runs below it, one that offrl.select wrote, or a scores.csv of reproduce",
        )
        out = Path(parsed.options.get("out", "report.html"))
        if out.suffix not in (".html", ".htm") or out.is_dir():
            raise UserError(f"out={out}: must be the name of an .html file")
        found = make(parsed.paths, out)
        console = Console(stderr=parsed.json)
        for message in found["messages"]:
            console.print(message, style="yellow", highlight=False, markup=False, soft_wrap=True)
        pictures = f"{len(found['pictures']) // 2} pictures in {out.stem}_pictures"
        console.print(f"written to {out}: {', '.join(found['sections'])}; {pictures}", highlight=False, markup=False,
                      soft_wrap=True)  # fmt: skip
        if parsed.json:
            print(json.dumps(found, indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
