"""How well selectors select: the terminal's tables, the picture, and the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from offrl.reporting.canvas import picture
from offrl.selection.benchmark import PRIMARY, Result

SHOWN = {
    "regret@3": "@3",
    "spearman within run": "ρ run",
    "spearman within algorithm": "ρ set.",
    "spearman across algorithms": "ρ alg.",
    "spearman pooled": "ρ all",
    "safe@1": "safe",
    "harm": "harm",
    "eop@5": "EOP@5",
    "evaluations worth": "B*",
    "abstains": "abst.",
    "seconds": "s",
}
"""Columns of the terminal's table, beside regret@1."""
DISPENSABLE = ("eop@5", "spearman pooled", "regret@3", "spearman across algorithms", "spearman within algorithm")
"""Those left out, in this order, where the terminal is too narrow."""


def _rows(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples())


def summary_table(result: Result, metrics: Mapping[str, str]) -> Table:
    """The summary with these columns, best selector first."""
    kept = result.pools[result.pools["dropped"] == ""]
    found = {(row.selector, row.metric): row for row in _rows(result.summary)}
    table = Table(
        title=f"{len(kept)} pools, {kept['candidates'].sum():,} policies",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("selector", no_wrap=True)
    for title in ("regret@1", "95 %", "worst", *metrics.values()):
        table.add_column(title, justify="right", no_wrap=True)
    for row in _rows(result.summary[result.summary["metric"] == PRIMARY].sort_values("mean", kind="stable")):
        cells = []
        for metric in metrics:
            cell = found.get((row.selector, metric))
            if cell is None:
                cells.append("")
            elif metric == "evaluations worth":
                cells.append(f"{cell.median:.0f}")
            elif metric == "seconds":
                cells.append(f"{cell.mean:.0f}")
            elif metric == "abstains":
                cells.append(f"{cell.mean * cell.pools:.0f}" if cell.mean else "")
            else:
                cells.append(f"{cell.mean:.2f}")
        style = {"composite": "bold", "single": "", "reference": "cyan", "oracle": "dim"}[row.kind]
        interval = f"{max(row.low, 0.0):.2f}–{row.high:.2f}"
        table.add_row(row.selector, f"{row.mean:.3f}", interval, f"{row.worst:.2f}", *cells, style=style)
    return table


def show(result: Result, console: Console) -> None:
    """The summary, the comparisons and what to keep in mind, in the terminal."""
    kept = result.pools[result.pools["dropped"] == ""]
    metrics = {metric: title for metric, title in SHOWN.items() if (result.summary["metric"] == metric).any()}
    table = summary_table(result, metrics)
    unbounded = console.options.update(max_width=10_000)
    for metric in DISPENSABLE:
        if console.measure(table, options=unbounded).maximum <= console.width:
            break
        metrics.pop(metric, None)
        table = summary_table(result, metrics)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    console.print(table)
    say(
        "regret: 0 the pool's best policy, 1 its worst; mean over pools, 95 % interval, worst pool. ρ: Spearman, mean "
        "over groups. safe: not below BC. harm: below the mean last checkpoint. B*: online trials of random policies "
        "that do as well (median). s: seconds of measuring a pool for it. Cyan: references; dim: they know the returns."
    )
    if len(result.comparisons):
        baseline = result.comparisons["baseline"].iloc[0]
        table = Table(
            title=f"{PRIMARY} of {baseline} minus that of",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for title in ("", "difference", "95 %", "better/equal/worse", "p", "p (Holm)"):
            table.add_column(title, justify="right" if title else "left", no_wrap=True)
        for other in _rows(result.comparisons):
            table.add_row(
                other.other,
                f"{other.difference:+.3f}",
                f"{other.low:+.2f}…{other.high:+.2f}",
                f"{other.better}/{other.equal}/{other.worse}",
                f"{other.p:.2g}",
                f"{other.p_holm:.2g}",
            )
        console.print(table)
        say("p: sign flips over pools, two-sided; Holm: for all comparisons of this table.")
    ceiling = kept["ceiling"].dropna()
    if len(ceiling):
        say(f"Reliability of the returns: ρ cannot exceed {ceiling.mean():.2f} (mean ceiling over pools).")
    for dropped in _rows(result.pools[result.pools["dropped"] != ""]):
        say(f"dropped {dropped.pool}: {dropped.dropped}")
    for note in result.notes:
        say(f"note: {note}")


def draw(result: Result, file: Path) -> None:
    """Regret of every selector: a point per pool, the mean and its interval (PNG)."""
    rows = result.summary[result.summary["metric"] == PRIMARY].sort_values("mean", ascending=False, kind="stable")
    with picture(file, 8.5, 1.6 + 0.34 * len(rows)) as figure:
        _draw(figure, result, rows)


def _draw(figure: Figure, result: Result, rows: pd.DataFrame) -> None:
    colours = {"composite": "#1f5fa8", "single": "#333333", "reference": "#c2571a", "oracle": "#999999"}
    axes = figure.subplots()
    points = result.points[result.points["metric"] == PRIMARY]
    random = np.random.default_rng(0)
    for place, (_, row) in enumerate(rows.iterrows()):
        values = points.loc[points["selector"] == row["selector"], "value"].dropna().to_numpy()
        colour = colours[row["kind"]]
        heights = place + random.uniform(-0.2, 0.2, len(values))
        axes.scatter(values, heights, s=14, color=colour, alpha=0.35, linewidths=0, zorder=2)
        axes.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=2.4, zorder=3)
        axes.plot(row["mean"], place, "o", color=colour, markersize=6.5, markeredgecolor="white", zorder=4)
    axes.set_yticks(range(len(rows)), rows["selector"], fontsize=9)
    for tick, kind in zip(axes.get_yticklabels(), rows["kind"], strict=True):
        tick.set_color(colours[kind])
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("regret@1, normalised within each pool: 0 is its best policy, 1 its worst")
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    kept = int((result.pools["dropped"] == "").sum())
    figure.suptitle(
        f"What each selector leaves behind, {kept} pools (small points); mean and 95 % interval",
        fontsize=10.5,
        x=0.01,
        ha="left",
        fontweight="bold",
    )


def as_json(result: Result) -> dict[str, Any]:
    """Everything but the single points; nan becomes null."""

    def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
        return json.loads(frame.to_json(orient="records", double_precision=10))

    return {
        "summary": records(result.summary),
        "comparisons": records(result.comparisons),
        "pools": records(result.pools),
        "notes": result.notes,
    }


def write(result: Result, folder: Path) -> None:
    """points.csv, summary.csv, comparisons.csv, pools.csv, benchmark.json and regret.png in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("points", "summary", "comparisons", "pools"):
        getattr(result, name).to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    (folder / "benchmark.json").write_text(json.dumps(as_json(result), indent=1) + "\n")
    draw(result, folder / "regret.png")
