"""How good a run's learned model and its penalties are: files, pictures, tables on the terminal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from offrl.protocol import dynamics_report, penalty_study
from offrl.reporting.canvas import picture
from offrl.reporting.console import terminal
from offrl.reporting.page import significant
from offrl.runs.run import Run, write_whole


def report(run_path: str | Path, step: int | None = None, console: Console | None = None) -> pd.DataFrame:
    """Measure, write RUN/dynamics/report.csv and report.png, print a table.

    The picture has the coverage of all central intervals, and the open-loop error at every horizon.

    Raises:
        UserError: no such run or checkpoint, no dynamics in it, or no held-out episode.
    """
    run, console = Run.open(run_path), console or terminal()
    measured = dynamics_report.measure(run, step)
    folder = run.path / "dynamics"
    folder.mkdir(exist_ok=True)
    write_whole(folder / "report.csv", measured.table.to_csv(index=False))
    draw(run, measured.curves, folder / "report.png")
    printed = Table(
        "part", "quantity", "after steps", title=f"{run.path}: {measured.episodes} held-out episodes", box=None
    )
    for member in range(len(run.members)):
        printed.add_column(f"member {member}", justify="right")
    for (part, quantity, horizon), values in measured.table.groupby(["part", "quantity", "horizon"], sort=False)[
        "value"
    ]:
        printed.add_row(str(part), str(quantity), str(horizon), *map(significant, values))
    console.print(printed)
    console.print(f"written: {folder / 'report.csv'}, {folder / 'report.png'}", soft_wrap=True)
    return measured.table


def draw(run: Run, curves: list[tuple[int, np.ndarray, np.ndarray]], file: Path) -> None:
    with picture(file, 9, 3.6) as figure:
        _draw(figure, run, curves)


def _draw(figure: Figure, run: Run, curves: list[tuple[int, np.ndarray, np.ndarray]]) -> None:
    coverage, error = figure.subplots(1, 2)
    levels = np.linspace(0, 1, 51)
    coverage.plot([0, 1], [0, 1], color="#999999", linestyle=":", label="calibrated")
    for member, centred, errors in curves:
        coverage.plot(levels, [(centred < level).mean() for level in levels], label=f"member {member}")
        error.plot(1 + np.arange(len(errors)), errors[:, 0], label=f"member {member}")
    if len(curves[0][2]):
        error.plot(
            1 + np.arange(len(curves[0][2])),
            curves[0][2][:, 1],
            color="#999999",
            linestyle=":",
            label="predicting no change",
        )
    coverage.set(xlabel="central interval of the mixture", ylabel="share of true observations inside")
    error.set(xlabel="steps, open loop", ylabel="error / std of observations", ylim=(0, None))
    for axes in (coverage, error):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{run.algorithm.name}'s dynamics on held-out episodes of {run.info['dataset']['name']}", fontsize=10
    )


def study(
    run_path: str | Path, episodes: int = 10, step: int | None = None, console: Console | None = None
) -> pd.DataFrame:
    """Measure, write RUN/assisted/penalty_study.csv, print a table.

    Raises:
        UserError: no such run or checkpoint, no dynamics in it, no environment, or no held-out episode.
    """
    run, console = Run.open(run_path), console or terminal()
    table = penalty_study.study(run, episodes, step, console.print)
    folder = run.path / "assisted"
    folder.mkdir(exist_ok=True)
    write_whole(folder / "penalty_study.csv", table.to_csv(index=False))
    printed = Table("member", "penalty", "error", title=f"{run.path}: rank correlation of penalty and true error "
                    "(assisted)", box=None)  # fmt: skip
    places_named = list(table["states"].unique())
    for place in places_named:
        printed.add_column(place, justify="right")
    for (number, penalty, error), group in table.groupby(["member", "penalty", "error"], sort=False):
        by_place = group.set_index("states")
        cells = [
            f"{by_place['rank_correlation'][place]:.3f} ± {by_place['standard_error'][place]:.3f}"
            for place in places_named
        ]
        printed.add_row(str(number), str(penalty), str(error), *cells)
    console.print(printed)
    console.print(f"written: {folder / 'penalty_study.csv'}", soft_wrap=True)
    return table
