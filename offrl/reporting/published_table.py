"""A table's scores and the published ones: on the terminal, as Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from offrl.data import d4rl
from offrl.errors import UserError
from offrl.protocol import scores
from offrl.protocol.published import collect
from offrl.protocol.reproduce import NO_DATA, Plan
from offrl.reporting.canvas import picture
from offrl.runs.run import write_whole

MOST_ACROSS = 10
"""Columns of algorithms that fit on a page."""


def cell(row: pd.Series) -> str:
    """`ours ± half-width (published low to high)`, with a mark where they disagree; `-` where ours is missing."""
    text = "-" if np.isnan(row["ours"]) else f"{row['ours']:.1f}"
    if np.isfinite(row["high"]):
        text += f" ± {(row['high'] - row['low']) / 2:.1f}"
    if row["sources"]:
        low, high = row["published_low"], row["published_high"]
        text += f" ({low:.1f})" if high - low < 0.05 else f" ({low:.1f} to {high:.1f})"
    return text + (" ≠" if row["disagrees"] else "")


def wide(comparison: pd.DataFrame, kind: str) -> tuple[list[str], list[list[str]]]:
    """(headings, rows of cells) of the table of one kind of score: dataset, data, and a column per algorithm.

    The other way round where it would be wider than a page: the algorithms down, the datasets across.
    """
    part = comparison[comparison["kind"] == kind]
    names = part["algorithm"] + np.where(part["setting"] == "", "", " " + part["setting"])
    headings, rows = list(dict.fromkeys(names)), []
    for label, mine in part.groupby("row", sort=False):
        cells = dict(zip(names[mine.index], map(cell, (row for _, row in mine.iterrows())), strict=True))
        data = mine["data"].dropna()
        rows.append([str(label), f"{data.iloc[0]:.1f}" if len(data) else "-", *(cells.get(n, "-") for n in headings)])
    table = [["dataset", "data", *headings], *rows]
    if len(headings) > max(MOST_ACROSS, len(rows)):
        table = [list(column) for column in zip(*table, strict=True)]
    return table[0], table[1:]


def empty_cells(comparison: pd.DataFrame) -> list[str]:
    """One line per reason and dataset: which algorithms have no score there."""
    empty = comparison[comparison["ours"].isna() & (comparison["kind"] == "last")]
    return [
        f"{row}: {', '.join(mine['algorithm'])}: {reason}"
        for (reason, row), mine in empty.groupby(["reason", "row"], sort=False)
    ]


def as_markdown(plan: Plan, comparison: pd.DataFrame, messages: Sequence[str]) -> str:
    """The table of each kind of score, with a legend and the reasons of empty cells."""
    legend = (
        f"{plan.seeds} seed{'s' if plan.seeds > 1 else ''}, protocol `{plan.protocol}`. Ours ± half of the 95 % "
        "interval over seeds (Student's t, wide for two seeds; of one seed, over its episodes), and in brackets the "
        "range of the published scores of the same kind; ≠ where that range lies outside our interval. `data` is the "
        "mean return of the data on the same scale. Sources: `results/published/scores.csv`."
    )
    lines = [f"# {plan.name}", "", legend]
    if plan.settings:
        lines += ["", "What differs from the published settings:", ""]
        lines += [f"- {name}: `{' '.join(overrides)}`" for name, overrides in plan.settings.items()]
    for kind, title in scores.TITLES.items():
        if comparison[comparison["kind"] == kind]["ours"].isna().all() and kind != "last":
            continue
        headings, rows = wide(comparison, kind)
        lines += ["", f"## {title.capitalize()}", ""]
        table = [[text.replace("|", r"\|") for text in cells] for cells in (headings, ["---"] * len(headings), *rows)]
        lines += [f"| {' | '.join(cells)} |" for cells in table]
    if empty := empty_cells(comparison):
        lines += ["", "Empty cells:", "", *[f"- {line}" for line in empty]]
    if messages:
        lines += ["", *[f"- {message}" for message in messages]]
    return "\n".join(lines) + "\n"


def show(plan: Plan, comparison: pd.DataFrame, console: Console) -> None:
    """The table of last checkpoints, on the terminal."""
    headings, rows = wide(comparison, "last")
    table = Table(title=f"{plan.name}: last checkpoint, ours ± 95 % (published)", title_justify="left", box=None)
    for name in headings:
        table.add_column(name, justify="left" if name == headings[0] else "right")
    for cells in rows:
        table.add_row(*(text.replace(" (", "\n(") for text in cells))  # the published ones on a line of their own
    console.print(table)
    for line in empty_cells(comparison):
        console.print(f"empty: {line}", style="yellow", soft_wrap=True)


def draw(comparison: pd.DataFrame, file: Path) -> None:
    """Ours as points with intervals, the published ranges as bars behind them; one panel per dataset."""
    part = comparison[(comparison["kind"] == "last") & comparison["ours"].notna()]
    datasets = list(dict.fromkeys(part["row"]))
    if not datasets:
        return
    columns = 2 if len(datasets) == 4 else min(3, len(datasets))
    lines = -(-len(datasets) // columns)
    height = max(2.6, 0.6 + 0.16 * part["row"].value_counts().max())
    with picture(file, 4.2 * columns, 0.6 + height * lines) as figure:
        _draw(figure, part, datasets, lines, columns)


def _draw(figure: Figure, part: pd.DataFrame, datasets: list[str], lines: int, columns: int) -> None:
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(datasets) :]:
        axes.set_axis_off()
    for axes, dataset in zip(panels, datasets, strict=False):
        rows = part[part["row"] == dataset].reset_index(drop=True)
        for place, row in rows.iterrows():
            if row["sources"]:
                axes.barh(place, row["published_high"] - row["published_low"] + 0.4, left=row["published_low"] - 0.2,
                          height=0.6, color="#f0c9a8")  # fmt: skip
            if np.isfinite(row["high"]):
                axes.plot([row["low"], row["high"]], [place, place], color="#1f5fa8", linewidth=1.2)
            axes.plot(row["ours"], place, "o", color="#1f5fa8", markersize=4)
        axes.axvline(rows["data"].iloc[0], color="#666666", linewidth=1, linestyle=":")
        names = [" ".join(filter(None, pair)) for pair in zip(rows["algorithm"], rows["setting"], strict=True)]
        axes.set_yticks(range(len(rows)), names, fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_title(dataset, fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("score of the last checkpoint: ours (blue, 95 %), published (orange), data (dotted)", fontsize=10)


def finish(plan: Plan, reasons: dict[tuple[str, str], str], console: Console) -> pd.DataFrame:
    """Collect, print, and write scores.csv, comparison.csv, table.md and table.png into the plan's folder.

    Raises:
        UserError: no run of the table has a score; of the files only comparison.csv, with the reasons, is written then.
    """
    table, comparison, messages = collect(plan, reasons)
    for message in messages:
        console.print(message, style="yellow", soft_wrap=True)
    plan.folder.mkdir(parents=True, exist_ok=True)
    comparison.to_csv(plan.folder / "comparison.csv", index=False)
    if comparison["ours"].isna().all():
        raise UserError(nothing_reproduced(plan, reasons))
    table.to_csv(plan.folder / "scores.csv", index=False)
    write_whole(plan.folder / "table.md", as_markdown(plan, comparison, messages))
    draw(comparison, plan.folder / "table.png")
    show(plan, comparison, console)
    console.print(f"written to {plan.folder}: scores.csv, comparison.csv, table.md, table.png", soft_wrap=True)
    return comparison


def nothing_reproduced(plan: Plan, reasons: dict[tuple[str, str], str]) -> str:
    """One line that says that no run has a score and what to do; the reason of each was printed before."""
    missing = {dataset for (dataset, _), reason in reasons.items() if reason.startswith(NO_DATA)}
    line = f"{plan.name}: nothing was reproduced, none of its {len(plan.cells())} runs has a score"
    if not missing:
        return f"{line}; do what the lines above say and run this again"
    line += f": {len(missing)} of {len(plan.datasets)} datasets could not be loaded (named above)"
    if all(dataset.startswith("d4rl:") for dataset in missing):
        return f"{line}; go online, or put their files into {d4rl.cached_path('').parent}, and run this again"
    return f"{line}; go online, or do what the lines above say, and run this again"
