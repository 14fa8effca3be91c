"""Sections of the report about scores and data: a function each, empty where there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from offrl import statistics
from offrl.playing.returns import run_reference
from offrl.protocol import scores
from offrl.protocol.published import published_range
from offrl.reporting import pictures
from offrl.reporting.collect import Material, at_hand, common, half_width, normalised, summaries
from offrl.reporting.page import (
    Cell,
    Column,
    Html,
    decimal,
    figure,
    grid,
    joined,
    notes,
    number,
    significant,
    table,
    tag,
)
from offrl.reporting.pictures import Curve, Save
from offrl.runs.run import Run

MAX_ACROSS = 12
"""Columns of algorithms that fit on a page."""
COLUMN_TITLES = {"last": "last", "selected": "selected", "best": "best in hindsight"}
KIND_HINTS = {
    "last": "the last healthy checkpoint of every member",
    "selected": "the checkpoint that offrl.select ranks first among those of the member, from the data alone",
    "best": "the checkpoint with the best measured mean: unknown without the simulator, and biased upwards",
}


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
        *(Column(COLUMN_TITLES[kind], True, KIND_HINTS[kind], "our scores, by checkpoint") for kind in kinds),
        Column("data", True, "the mean return of the data, on the same scale", "for comparison"),
        *([Column("BC", True, "last checkpoint of behaviour cloning", "for comparison")] if has_bc else []),
        *(Column(kind, True, f"range of the published scores of the {kind} checkpoint", "published") for kind in shown),
    ]  # fmt: skip
    rows: list[list[Any]] = []
    marked = []
    for place, part in enumerate(material.parts):
        mine, digits = every[every["place"] == place], material.digits(part)
        last = mine[mine["kind"] == "last"]
        cloning = last[last["algorithm"] == "bc"]["estimate"]
        if last["estimate"].notna().sum() > 1:
            marked.append(len(rows) + int(np.nanargmax(last["estimate"])))
        for name, group in mine.groupby("name", sort=False):
            ours = {row["kind"]: row for _, row in group.iterrows()}
            members = float(ours["last"]["members"])
            total = len(part[(part["name"] == name) & (part["kind"] == "last")])
            rows.append([
                material.label(place), ours["last"]["algorithm"], *([ours["last"]["setting"]] if with_settings else []),
                Cell(f"{members:.0f}", members),
                *(_ours(ours[kind], total, digits) for kind in kinds),
                number(part["data"].iloc[0], digits=digits),
                *([number(cloning.iloc[0] if len(cloning) else None, digits=digits)] if has_bc else []),
                *(_published(ours[kind]) for kind in shown),
            ])  # fmt: skip
    units = {material.unit(part) for part in material.parts}
    text = [
        "Normalised: 0 is a random policy and 100 the reference policy. " if "normalised score" in units else "",
        "A dataset without reference returns shows plain returns. " if "return" in units else "",
        "± is half of the 95 % interval over members (Student’s t, wide for two; of a single one, over its episodes). ",
        "The kinds of score answer different questions and are never mixed; the best in hindsight is unknown without "
        "the simulator. " if "best" in kinds else "",
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
    """The last scores as papers show them, a row per dataset and a column per algorithm, where there are several."""
    names = list(material.colours)
    if len(material.parts) < 2 or not 1 < len(names) <= MAX_ACROSS:
        return Html("")
    rows = []
    for place, part in enumerate(material.parts):
        digits = material.digits(part)
        last = every[(every["place"] == place) & (every["kind"] == "last")]
        found = {row["name"]: row for _, row in last.iterrows()}
        top = last["estimate"].max()
        cells = []
        for name in names:
            known = name in found
            cell = number(found[name]["estimate"], half_width(found[name]), digits) if known else number(None)
            cells.append(cell._replace(kind="top") if cell.value == top else cell)
        rows.append([material.label(place), number(part["data"].iloc[0], digits=digits), *cells])
    columns = [Column("last checkpoint"), Column("data", True), *(Column(name, True) for name in names)]
    return table(columns, rows)


def _ours(row: pd.Series, total: int, digits: int) -> Cell:
    """A score of ours; where members have none, how many have one and why the others do not."""
    cell = number(row["estimate"], half_width(row), digits, row["reason"])
    if cell.value is None or row["members"] == total:
        return cell
    missing = number(None, reason=row["reason"])
    return cell._replace(note=f"{row['members']} of {total} members; {missing.note}", hint=missing.hint)


def _published(ours: pd.Series) -> Cell:
    low, high, sources = ours["published"]
    if not sources:
        return Cell("–", None, "", "muted")
    text = decimal(low) if high - low < 0.05 else f"{decimal(low)} to {decimal(high)}"
    sure = ours["method"] not in ("episodes", "")
    away = sure and (high < ours["low"] or low > ours["high"])
    off = decimal(ours["estimate"] - np.clip(ours["estimate"], low, high))
    hint = f"{sources} source{'s' if sources > 1 else ''}; ours differs from the nearer end by {off}"
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
        digits = material.digits(part)
        for name, (_, best, selected, last) in points.items():
            regrets, gain = best - selected, float((selected - last).mean())
            rows.append([
                material.label(place), name, Cell(len(best), float(len(best))), number(best.mean(), digits=digits),
                number(selected.mean(), digits=digits),
                number(regrets.mean(), 1.96 * statistics.standard_error(regrets), digits),
                number(float((best - last).mean()), digits=digits),
                number(gain, digits=digits)._replace(kind="good" if gain > 0 else "bad" if gain < 0 else ""),
            ])  # fmt: skip
    if not rows:
        return Html("")
    columns = [
        Column("dataset"), Column("algorithm"), Column("members", True),
        Column("best in hindsight", True, KIND_HINTS["best"]), Column("selected", True, KIND_HINTS["selected"]),
        Column("regret", True, "best minus selected"), Column("regret of the last", True, "best minus last"),
        Column("selected − last", True, "what selecting gained over taking the last checkpoint"),
    ]  # fmt: skip
    text = ("Which checkpoint of each member to take, from the data alone, against the best in hindsight, by "
            "the simulator. The best of many noisy means is biased upwards, and so is the regret.")  # fmt: skip
    return joined([tag("p", text), grid(figures), table(columns, rows)])


def data_section(material: Material, save: Save) -> Html:
    blocks = []
    seen: dict[str, dict[str, Run]] = {}
    for run in material.runs:
        facts = run.info["dataset"]
        seen.setdefault(facts["fingerprint"], {}).setdefault(facts["name"], run)
    for place, (fingerprint, named) in enumerate(seen.items()):
        name = scores.one_name(named)
        run, others = named[name], [other for other in named if other != name]
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
            *([("the same data as", ", ".join(others))] if others else []),
        ]  # fmt: skip
        found = (dataset for run in named.values() if (dataset := at_hand(run)) is not None)
        dataset = next(found, None)
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
