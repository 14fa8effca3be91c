"""The data card on the terminal and as a picture, and the list of datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from offrl.data.dataset import Dataset
from offrl.reporting.canvas import picture

SHOWN_DIMENSIONS = 60
INK, MUTED, FILL = "#222222", "#6b6b6b", "#3b6ea5"


def print_names(rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Names of datasets, and a note beside each; dim are those that would have to be downloaded."""
    table = Table(box=None, show_header=False)
    for name, note in rows:
        table.add_row(name, note, style="" if note or name.startswith("builtin") else "dim")
    console.print(table)


def print_card(facts: dict[str, Any], console: Console) -> None:
    """Print what `card` returns."""
    table = Table(title=facts["name"], title_justify="left", title_style="bold", show_header=False, box=None)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    limit = f", at most {facts['time_limit']} steps" if facts["time_limit"] else ""
    options = f" {facts['env_kwargs']}" if facts["env_kwargs"] else ""
    table.add_row("environment", f"{facts['env_id']}{options}{limit}" if facts["env_id"] else "not known")
    table.add_row("episodes, steps", f"{facts['episodes']:,} episodes, {facts['steps']:,} steps")
    layout = f" ({', '.join(facts['observation_layout'])})" if facts["observation_layout"] else ""
    shape = " x ".join(map(str, facts["observation_shape"]))
    kinds = "images " if len(facts["observation_shape"]) > 1 else "", " discrete" if facts["discrete_actions"] else ""
    table.add_row("sizes", f"observations {kinds[0]}{shape}{layout}, actions {facts['action_dim']}{kinds[1]}")
    lost = facts["lost_final_observations"]
    table.add_row(
        "episodes end",
        f"{facts['terminated_share']:.1%} terminated, {facts['truncated_share']:.1%} truncated"
        + (f", {lost:,} without the last observation" if lost else ""),
    )
    if facts["success_share"] is not None:
        table.add_row("success", f"{facts['success_share']:.1%} of the episodes")
    if facts["reference"]:
        reference = facts["reference"]
        table.add_row(
            "reference", f"0 is {reference['random']:g}, 100 is {reference['expert']:g}: {reference['source']}"
        )
    table.add_row("fingerprint", facts["fingerprint"])
    console.print(table)

    quantiles = Table(title="distribution", title_justify="left", title_style="bold", box=None, header_style="dim")
    for heading in ("", "mean", "std", *facts["returns"]["quantiles"]):
        quantiles.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    rows = {"return": facts["returns"], "normalised": facts["normalised_returns"]}
    rows |= {"length": facts["lengths"], "reward": facts["rewards"], **facts["columns"]}
    for label, values in rows.items():
        if values is not None:
            quantiles.add_row(
                label, *(_number(value) for value in (values["mean"], values["std"], *values["quantiles"].values()))
            )
    console.print(quantiles)

    for label, key in (("observations", "observations"), ("actions", "actions")):
        columns = facts[key]
        ranges = Table(title=label, title_justify="left", title_style="bold", box=None, header_style="dim")
        for heading in ("dim", *columns):
            ranges.add_column(heading, justify="right")
        for index, row in enumerate(zip(*columns.values(), strict=True)):
            if index == SHOWN_DIMENSIONS:
                ranges.add_row("...", *("" for _ in columns))
                break
            ranges.add_row(str(index), *(_number(value) for value in row))
        console.print(ranges)

    if facts["warnings"]:
        console.print("warnings", style="bold")
        for warning in facts["warnings"]:
            console.print(f"  - {warning}")
    else:
        console.print("no warnings", style="dim")


def draw_card(dataset: Dataset, path: Path) -> Path:
    """Draw returns, lengths and action marginals to a PNG at `path`, whose folder is made. Returns `path`."""
    with picture(path, 11, 6.4) as figure:
        _draw(dataset, figure)
    return path


def _draw(dataset: Dataset, figure: Figure) -> None:
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.05))
    returns, lengths, actions = (figure.add_subplot(cell) for cell in (grid[0, 0], grid[0, 1], grid[1, :]))

    _histogram(returns, dataset.returns, "episodes")
    returns.axvline(dataset.returns.mean(), color=INK, linewidth=1.2)
    returns.set_xlabel("return")
    mean = f"mean {_number(dataset.returns.mean())}"
    if (reference := dataset.reference) is not None:
        mean += f", normalised {reference.normalise(dataset.returns.mean()):.1f}"
        top = returns.secondary_xaxis("top", functions=(reference.normalise, reference.denormalise))
        top.tick_params(labelsize=7, colors=MUTED)
        top.set_xlabel("normalised", fontsize=8, color=MUTED)
    returns.set_title(f"returns ({mean})", fontsize=10, loc="left")

    _histogram(lengths, dataset.lengths, "episodes")
    share = dataset.terminations[dataset.ends].mean()
    lengths.set_title(f"lengths ({share:.0%} terminated, {1 - share:.0%} truncated)", fontsize=10, loc="left")
    lengths.set_xlabel("steps")

    if dataset.discrete:
        _choices(actions, dataset)
    else:
        _marginals(figure, actions, dataset)

    for axes in (returns, lengths, actions):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.suptitle(
        f"{dataset.name}: {dataset.episodes:,} episodes, {dataset.steps:,} steps", x=0.01, ha="left", fontweight="bold"
    )


def _choices(axes: Any, dataset: Dataset) -> None:
    shares = np.bincount(dataset.actions[:, 0], minlength=dataset.action_dim) / dataset.steps
    axes.bar(np.arange(dataset.action_dim), shares, color=FILL)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("action")
    axes.set_ylabel("share of steps")
    axes.set_title("how often each action was taken", fontsize=10, loc="left")


def _marginals(figure: Figure, actions: Any, dataset: Dataset) -> None:
    """One column per action dimension, shaded by the share of steps; a box of many dimensions stays readable."""
    unit = 2 * (dataset.actions - dataset.action_low) / (dataset.action_high - dataset.action_low) - 1
    bins = np.linspace(-1, 1, 42)
    counts = [np.histogram(np.clip(column, -1, 1), bins)[0] for column in unit.T]
    share_of_steps = np.stack(counts, axis=1) / dataset.steps
    image = actions.pcolormesh(
        np.arange(dataset.actions.shape[1] + 1) - 0.5,
        bins,
        np.sqrt(share_of_steps),
        cmap="Blues",
        vmin=0,
        edgecolors="none",
    )
    ticks = np.linspace(0, np.sqrt(share_of_steps.max()), 5)
    bar = figure.colorbar(image, ax=actions, ticks=ticks, pad=0.01)
    bar.ax.set_yticklabels([f"{tick**2:.1%}" for tick in ticks], fontsize=8)
    bar.set_label("share of steps", fontsize=8)
    actions.set_xticks(range(0, dataset.actions.shape[1], max(1, dataset.actions.shape[1] // 30)))
    actions.set_xlabel("action dimension")
    actions.set_ylabel("place in the action box")
    actions.set_yticks([-1, 0, 1], ["low", "middle", "high"])
    actions.set_title("action marginals", fontsize=10, loc="left")


def _histogram(axes: Any, values: np.ndarray, unit: str) -> None:
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    axes.hist(values, bins=np.linspace(low, high, 41), color=FILL)
    axes.set_ylabel(unit)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if (values == np.round(values)).all():  # lengths, say
        axes.xaxis.get_major_locator().set_params(integer=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
