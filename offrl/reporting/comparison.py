"""A comparison of algorithms on the terminal and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from offrl import statistics
from offrl.protocol.compare import samples
from offrl.reporting.canvas import picture, short


def draw(table: pd.DataFrame, algorithms: list[str], comparison: pd.DataFrame, file: Path) -> None:
    """Performance profiles of all algorithms, and the probability of improvement of the new one over each other."""
    with picture(file, 11, 4.2) as figure:
        _draw(figure, table, algorithms, comparison)


def _draw(figure: Figure, table: pd.DataFrame, algorithms: list[str], comparison: pd.DataFrame) -> None:
    profile, bars = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.3, 1]})
    found = {name: sample for name in algorithms if (sample := samples(table, name))}
    common = [key for key in next(iter(found.values()), {}) if all(key in sample for sample in found.values())]
    if len(common) > 1:
        common = [key for key in common if all(sample[key].normalised for sample in found.values())]
    if common:
        values = {name: [sample[key].values for key in common] for name, sample in found.items()}
        every = np.concatenate([value for sample in values.values() for value in sample])
        thresholds = np.linspace(min(every.min(), 0), every.max(), 200)
        for i, (name, scored) in enumerate(values.items()):
            share, low, high = statistics.profile_band(scored, thresholds)
            profile.plot(thresholds, share, color=f"C{i}", label=short(name), linewidth=2 if i == 0 else 1.2)
            profile.fill_between(thresholds, low, high, color=f"C{i}", alpha=0.15, linewidth=0)
        profile.legend(frameon=False, fontsize=8)
    profile.set_title(f"datasets on which all have a score: {len(common)}", fontsize=10)
    profile.set_xlabel("score of the last checkpoint")
    profile.set_ylabel("share of runs above the score")
    known = comparison.dropna(subset="probability")
    bars.axvline(0.5, color="#666666", linewidth=1, linestyle=":")
    for place, (_, row) in enumerate(known.iterrows()):
        if np.isfinite(row["low"]):
            bars.plot([row["low"], row["high"]], [place, place], color="#1f5fa8")
        bars.plot(row["probability"], place, "o", color="#1f5fa8")
    bars.set_yticks(range(len(known)), known["against"].map(short))
    bars.set_ylim(len(known) - 0.4, -0.6)
    bars.set_xlim(-0.02, 1.02)
    bars.set_title(f"P({short(algorithms[0])} above)", fontsize=10)
    for axes in (profile, bars):
        axes.spines[["top", "right"]].set_visible(False)


def show(new: str, comparison: pd.DataFrame, console: Console) -> None:
    table = Table(title=f"{new} against others, scores of last checkpoints", title_justify="left", box=None)
    for name in ("against", "datasets", "difference", f"P({new} above)", "p (Holm)", "test"):
        table.add_column(name, justify="left" if name in ("against", "test") else "right")
    for _, row in comparison.iterrows():
        if np.isnan(row["probability"]):
            table.add_row(row["against"], str(row["datasets"]), "-", "-", "-", row["reason"])
            continue
        interval = f" [{row['low']:.2f}, {row['high']:.2f}]" if np.isfinite(row["low"]) else ""
        probability, p = f"{row['probability']:.2f}{interval}", f"{row['p']:.3g} ({row['p_holm']:.3g})"
        table.add_row(row["against"], str(row["datasets"]), f"{row['difference']:+.1f}", probability, p, row["test"])
    console.print(table)
