"""The data card: what is in a dataset, as a table, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from offrl.data.dataset import Dataset

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
SHOWN_DIMENSIONS = 60
INK, MUTED, FILL = "#222222", "#6b6b6b", "#3b6ea5"


def card(dataset: Dataset) -> dict[str, Any]:
    """The facts of a dataset, JSON-able. Returns are undiscounted sums of raw rewards; shares are of episodes."""
    ends = dataset.ends
    terminated = dataset.terminations[ends]
    reference = dataset.reference
    facts: dict[str, Any] = {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "env_id": dataset.env_id,
        "env_kwargs": dataset.env_kwargs,
        "time_limit": dataset.time_limit,
        "episodes": dataset.episodes,
        "steps": dataset.steps,
        "observation_dim": dataset.observation_dim,
        "observation_layout": list(dataset.observation_layout),
        "action_dim": dataset.action_dim,
        "returns": _summary(dataset.returns),
        "normalised_returns": None if reference is None else _summary(reference.normalise(dataset.returns)),
        "reference": None
        if reference is None
        else {"random": reference.random, "expert": reference.expert, "source": reference.source},
        "lengths": _summary(dataset.lengths),
        "rewards": _summary(dataset.rewards),
        "terminated_share": float(terminated.mean()),
        "truncated_share": float((dataset.truncations[ends] & ~terminated).mean()),
        "lost_final_observations": int((~dataset.final_observation_known).sum()),
        "transitions": len(dataset.transition_rows),
        "success_share": None if dataset.successes is None else float(dataset.successes.mean()),
        "observations": _ranges(dataset.observations[dataset.observation_rows]),
        "actions": _ranges(dataset.actions, low=dataset.action_low, high=dataset.action_high),
        "warnings": list(dataset.warnings),
    }
    return facts


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
    table.add_row("sizes", f"observations {facts['observation_dim']}{layout}, actions {facts['action_dim']}")
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
    for heading in ("", "mean", "std", *(f"{_percent(quantile)}" for quantile in QUANTILES)):
        quantiles.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for label, key in (
        ("return", "returns"),
        ("normalised", "normalised_returns"),
        ("length", "lengths"),
        ("reward", "rewards"),
    ):
        if (values := facts[key]) is not None:
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
            console.print(f"  - {warning}", markup=False, highlight=False)
    else:
        console.print("no warnings", style="dim")


def draw_card(dataset: Dataset, path: Path) -> Path:
    """Draw returns, lengths and action marginals to a PNG at `path`, whose folder is made. Returns `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
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

    # One column per action dimension, shaded by the share of steps; a box of many dimensions stays readable.
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

    for axes in (returns, lengths, actions):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.suptitle(
        f"{dataset.name}: {dataset.episodes:,} episodes, {dataset.steps:,} steps", x=0.01, ha="left", fontweight="bold"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": "offrl"})
    return path


def _histogram(axes: Any, values: np.ndarray, unit: str) -> None:
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    axes.hist(values, bins=np.linspace(low, high, 41), color=FILL)
    axes.set_ylabel(unit)
    axes.yaxis.get_major_locator().set_params(integer=True)


def _summary(values: np.ndarray) -> dict[str, Any]:
    values = values.astype(np.float64)
    quantiles = np.quantile(values, QUANTILES)
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "quantiles": {_percent(quantile): float(value) for quantile, value in zip(QUANTILES, quantiles, strict=True)},
    }


def _ranges(values: np.ndarray, **bounds: np.ndarray) -> dict[str, list[float]]:
    wide = values.astype(np.float64)
    columns: dict[str, Sequence[float] | np.ndarray] = {
        "min": wide.min(axis=0),
        "mean": wide.mean(axis=0),
        "max": wide.max(axis=0),
        "std": wide.std(axis=0),
    }
    columns |= {f"box {side}": bound for side, bound in bounds.items()}
    return {key: [float(value) for value in column] for key, column in columns.items()}


def _percent(quantile: float) -> str:
    return {0.0: "min", 0.5: "median", 1.0: "max"}.get(quantile, f"{quantile:.0%}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
