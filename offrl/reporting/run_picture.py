"""Pictures of one run: what its policies score over training, and what each deployed policy did, episode by episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from offrl.data.dataset import Reference
from offrl.reporting.canvas import picture
from offrl.statistics import bootstrap_interval

POLICY, DATA, MUTED = "#1f5fa8", "#c2571a", "#666666"
MAX_DRAWN_MEMBERS = 24


def draw_run(info: dict[str, Any], rows: pd.DataFrame, reference: Reference | None, file: Path) -> None:
    """Write the picture of a run to `file` (PNG).

    Args:
        info: what run.json holds.
        rows: rows of its oracle table in one environment, every policy with the same episodes.
        reference: where given, the scale is the normalised score, and the undiscounted return otherwise.
    """
    with picture(file, 11, 4.4) as figure:
        _draw(figure, info, rows, reference)


def _draw(figure: Figure, info: dict[str, Any], rows: pd.DataFrame, reference: Reference | None) -> None:
    dataset = info["dataset"]
    column = "normalized_score" if reference else "return"
    unit = "normalised score" if reference else "return"

    def scaled(value: float) -> float:
        return reference.normalise(value) if reference else value

    curve, final = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [1.45, 1]})
    for axes in (curve, final):
        axes.axhline(scaled(dataset["returns"]["mean"]), color=DATA, linewidth=1.4, label="data, mean episode")
        axes.axhline(
            scaled(dataset["returns"]["max"]), color=DATA, linewidth=1.4, linestyle=":", label="data, best episode"
        )
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    _draw_curve(curve, rows, column, sum(member["diverged_at"] is not None for member in info["members"]))
    _draw_final(final, rows, column, info["members"])
    curve.set_ylabel(unit)
    handles, labels = curve.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    environment = rows["env"].iloc[0]
    figure.suptitle(
        f"{info['algorithm']['name']} on {dataset['name']}, played in {environment}",
        fontsize=11,
        x=0.01,
        ha="left",
        fontweight="bold",
    )


def _draw_curve(axes: Axes, rows: pd.DataFrame, column: str, diverged: int) -> None:
    """A thin line per member; the mean over members, with its interval, where all of them were scored."""
    episodes = rows["episode"].nunique()
    members = rows["member"].nunique()
    means = rows.groupby(["member", "step"])[column].mean().unstack("step")
    if members > 1:
        for index, (_, scores) in enumerate(means.iterrows()):
            scores = scores.dropna()
            axes.plot(
                scores.index,
                scores,
                color=POLICY,
                alpha=0.4,
                linewidth=0.9,
                marker="." if len(scores) < 2 else None,
                label="one member" if index == 0 else None,
            )
    points = []
    for step, group in rows.groupby("step"):
        if group["member"].nunique() < members:
            continue  # a mean over fewer members is another quantity
        matrix = group.pivot(index="member", columns="episode", values=column).to_numpy()
        points.append((step, matrix.mean(), *bootstrap_interval(matrix)))
    steps, centres, lows, highs = np.array(points, float).reshape(-1, 4).T
    resampled = f"{members} members and {episodes} episodes" if members > 1 else f"{episodes} episodes"
    interval = f"95 % bootstrap over {resampled}"
    what = f"mean of {members} members" if members > 1 else "policy, mean episode"
    if len(steps) > 1:
        axes.fill_between(steps, lows, highs, color=POLICY, alpha=0.16, linewidth=0, label=interval)
    elif len(steps):
        axes.vlines(steps, lows, highs, color=POLICY, alpha=0.35, linewidth=5, label=interval)
    axes.plot(steps, centres, color=POLICY, linewidth=2, marker="o", markersize=3.5, label=what)
    lost = f"; {diverged} of the members diverged" if diverged else ""
    axes.set_title(f"every scored checkpoint{lost}", loc="left", fontsize=9, color=MUTED)
    axes.set_xlabel("update")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)


def _draw_final(axes: Axes, rows: pd.DataFrame, column: str, members: list[dict[str, Any]]) -> None:
    """Every episode of every member's last scored checkpoint, with the member's mean."""
    last = rows[rows["step"] == rows.groupby("member")["step"].transform("max")]
    numbers = sorted(last["member"].unique())
    if len(numbers) > MAX_DRAWN_MEMBERS:
        numbers = numbers[:MAX_DRAWN_MEMBERS]
    random = np.random.default_rng(0)
    for place, number in enumerate(numbers):
        scores = last.loc[last["member"] == number, column].dropna().to_numpy()
        spread = place + random.uniform(-0.22, 0.22, len(scores))
        axes.scatter(spread, scores, s=max(5, 22 - len(scores) / 5), color=POLICY, alpha=0.45, linewidths=0)
        axes.hlines(scores.mean() if len(scores) else np.nan, place - 0.33, place + 0.33, color="black", linewidth=2)
    step = last["step"].unique()
    where = f"step {step[0]:,}" if len(step) == 1 else "of each member"
    shown = "" if len(numbers) == last["member"].nunique() else f", first {len(numbers)} members"
    axes.set_title(f"last checkpoint ({where}): every episode; bar: mean{shown}", loc="left", fontsize=9, color=MUTED)
    crowded = len(numbers) > 8
    axes.set_xticks(range(len(numbers)), [_member_name(members[number], crowded) for number in numbers])
    axes.tick_params(axis="x", length=0, labelsize=7 if crowded else 8, rotation=90 if crowded else 0)
    margin = 0.6 if len(numbers) > 1 else 1.2
    axes.set_xlim(-margin, len(numbers) - 1 + margin)


def _member_name(member: dict[str, Any], crowded: bool) -> str:
    between = " " if crowded else "\n"
    return between.join([f"seed {member['seed']}", *(f"{name} {value}" for name, value in member["values"].items())])
