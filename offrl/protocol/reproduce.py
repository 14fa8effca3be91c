"""Run a named table and set it beside the published numbers: `python -m offrl.reproduce TABLE`.

A table (configs/tables/NAME.yaml) is every algorithm on every dataset with so many seeds, with the settings published
for each dataset. Runs that exist are gone on with or kept; what cannot be run is an empty cell with its reason.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import offrl.algorithm
import offrl.data
import offrl.data.d4rl
import offrl.train
from offrl import command_line
from offrl.errors import UserError, nearest, run_command
from offrl.protocol import scores
from offrl.runs import configuration
from offrl.runs.run import Run, write_whole


class Plan(NamedTuple):
    """What a table consists of."""

    name: str
    datasets: list[str]
    algorithms: list[str]
    """Names, or paths of algorithm files."""
    seeds: int
    protocol: str
    folder: Path
    settings: Mapping[str, list[str]] = MappingProxyType({})
    """Overrides of the published settings: of every run under "all", of one algorithm under its name."""

    def cells(self) -> list[tuple[str, str]]:
        return [(dataset, algorithm) for dataset in self.datasets for algorithm in self.algorithms]

    def run_folder(self, dataset: str, algorithm: str) -> Path:
        """Where that cell's run is or will be. A changed algorithm file, or another number of seeds, is another run."""
        name = algorithm
        if algorithm.endswith(".py"):
            file = Path(algorithm).expanduser()
            name = f"{file.stem}-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}"
        return self.folder / dataset.replace(":", "-").replace("/", "-") / f"{name}-{self.seeds}seeds"

    def run(self, dataset: str, algorithm: str) -> Run | None:
        """The cell's run, or None where there is none."""
        found = self._found(dataset, algorithm)
        return None if found is None or self.obstacle(dataset, algorithm) else found

    def obstacle(self, dataset: str, algorithm: str) -> str:
        """What is wrong with a run that lies in the cell's folder without being the cell's: of other settings, say."""
        found = self._found(dataset, algorithm)
        if found is None:
            return ""
        expected = offrl.train.identity_of(*self.command(dataset, [algorithm]))
        differing = offrl.train.differences(found.info["identity"], expected)
        if not differing:
            return ""
        return f"{found.path} holds another run ({'; '.join(differing[:3])}); move it away and run this again"

    def _found(self, dataset: str, algorithm: str) -> Run | None:
        folder = self.run_folder(dataset, algorithm)
        return Run.open(folder) if (folder / "run.json").is_file() else None

    def finished(self, dataset: str, algorithm: str) -> bool:
        """Whether the cell's run is trained to its end and scored."""
        run = self.run(dataset, algorithm)
        return run is not None and run.complete and scores.fully_scored(run)

    def command(self, dataset: str, algorithms: Sequence[str]) -> list[str]:
        """The arguments of offrl.train for these cells."""
        folder = self.run_folder(dataset, algorithms[0])
        if len(algorithms) > 1:
            folder = folder.with_name(f"${{algo.name}}-{self.seeds}seeds")
        own = self.settings.get(algorithms[0], []) if len(algorithms) == 1 else []
        return [
            f"algo={','.join(algorithms)}",
            f"dataset={dataset}",
            f"seeds={self.seeds}",
            f"protocol={self.protocol}",
            f"run_dir={configuration.quoted(str(folder))}",
            *self.settings.get("all", []),
            *own,
        ]


def tables() -> dict[str, dict[str, Any]]:
    """Name -> summary, datasets, algorithms, seeds, protocol."""
    folder = importlib.resources.files("offrl.configs") / "tables"
    return {Path(file.name).stem: yaml.safe_load(file.read_text()) for file in folder.iterdir() if "yaml" in file.name}


def run_missing(plan: Plan, launcher: str | None, console: Console) -> dict[tuple[str, str], str]:
    """Train and score what is not there; (dataset, algorithm) -> the reason why it could not be."""
    reasons: dict[tuple[str, str], str] = {}
    with console.status("looking at the runs that are there"):
        reasons |= {cell: obstacle for cell in plan.cells() if (obstacle := plan.obstacle(*cell))}
    for (dataset, algorithm), obstacle in reasons.items():
        console.print(f"{dataset}, {algorithm}: {obstacle}", style="yellow", highlight=False, markup=False,
                      soft_wrap=True)  # fmt: skip
    missing = [cell for cell in plan.cells() if cell not in reasons and not plan.finished(*cell)]
    about = f"{plan.name}: {len(plan.cells())} runs of {plan.seeds} member(s), {len(missing)} to do"
    console.print(about, style="bold")
    seconds: list[float] = []
    for dataset in plan.datasets:
        todo = [algorithm for d, algorithm in missing if d == dataset]
        if not todo:
            continue
        try:
            offrl.data.load(dataset, quiet=True)  # once, before anything is started: a download shows its progress
        except UserError as error:
            reason = f"no data: {error}"
            if dataset.startswith("d4rl:"):
                file = offrl.data.d4rl.cached_path(dataset.removeprefix("d4rl:"))
                reason += f"; or put that file at {file} and run this again"
            console.print(f"{dataset}: {reason}", style="yellow", highlight=False, markup=False, soft_wrap=True)
            reasons |= {(dataset, algorithm): reason for algorithm in todo}
            missing = [cell for cell in missing if cell not in reasons]
            continue
        for algorithms in _batches(plan, todo, launcher):
            if seconds:
                left = np.mean(seconds) * len(missing)
                console.print(f"about {left / 60:.0f} min left", highlight=False)
            flags = ["-m", f"hydra/launcher={launcher}"] if launcher else []
            command = [*flags, *plan.command(dataset, algorithms)]
            console.print(" ".join(["python -m offrl.train", *command]), style="dim", highlight=False, markup=False,
                          soft_wrap=True)  # fmt: skip
            started = time.monotonic()
            last_words = train(command, sys.stderr if console.stderr else None)
            for algorithm in algorithms:
                missing.remove((dataset, algorithm))
                if not plan.finished(dataset, algorithm):
                    reasons[dataset, algorithm] = last_words
                    console.print(f"{dataset}, {algorithm}: {last_words}", style="yellow", highlight=False,
                                  markup=False, soft_wrap=True)  # fmt: skip
            seconds.append((time.monotonic() - started) / len(algorithms))
    return reasons


def _batches(plan: Plan, algorithms: list[str], launcher: str | None) -> list[list[str]]:
    """What one command trains: with a launcher all named algorithms without settings of their own, side by side."""
    named = [name for name in algorithms if not name.endswith(".py") and name not in plan.settings]
    if not launcher or not named:
        return [[algorithm] for algorithm in algorithms]
    return [named, *([algorithm] for algorithm in algorithms if algorithm not in named)]


def train(arguments: list[str], output: IO[str] | None = None) -> str:
    """Run offrl.train in a process of its own; what it says goes to the terminal.

    Args:
        output: where its standard output goes, by default to ours.

    Returns:
        The last line of its standard error, or how it ended.
    """
    last = ""
    command = [sys.executable, "-m", "offrl.train", *arguments]
    with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            last = line.strip() or last
    return last.removeprefix("error: ") or f"offrl.train ended with status {process.returncode}"


def beside_published(plan: Plan, table: pd.DataFrame, reasons: dict[tuple[str, str], str]) -> pd.DataFrame:
    """One row per dataset, algorithm, setting and kind of score: ours with its interval, beside the published numbers.

    Columns: dataset, row (the dataset and what tells it from others of that name that do not compare), algorithm,
    setting, kind, ours, low, high, method, members, data, published_low, published_high (over the sources that report
    this kind; over those that do not say which where none does), sources, difference (to the nearer end; 0 within),
    disagrees (the published range lies outside our interval over members), reason.
    """
    rows: list[dict[str, Any]] = []
    parts, _ = scores.groups(table) if len(table) else ([], [])
    for part, label in zip(parts, scores.labels(parts), strict=True):
        dataset, data = part["dataset"].iloc[0], part["data"].iloc[0]
        normalised = pd.notna(part["reference_expert"].iloc[0])  # a return does not compare with a normalised score
        for _, ours in scores.summarize(part).iterrows():
            low, high, sources = published_range(dataset, ours["algorithm"], ours["kind"]) if normalised else NOTHING
            difference = ours["estimate"] - np.clip(ours["estimate"], low, high) if sources else np.nan
            sure = ours["method"] != "episodes"
            rows.append(
                {
                    "dataset": dataset,
                    "row": label,
                    "algorithm": ours["algorithm"],
                    "setting": ours["setting"],
                    "kind": ours["kind"],
                    "ours": ours["estimate"],
                    "low": ours["low"],
                    "high": ours["high"],
                    "method": ours["method"],
                    "members": ours["members"],
                    "data": data,
                    "published_low": low,
                    "published_high": high,
                    "sources": sources,
                    "difference": difference,
                    "disagrees": bool(sources and sure and (high < ours["low"] or low > ours["high"])),
                    "reason": ours["reason"],
                }
            )
    for (dataset, algorithm), reason in reasons.items():
        name = Path(algorithm).stem
        mine = [row for row in rows if row["dataset"] == dataset and row["algorithm"] == name]
        for row in mine:  # a run that is there but came to nothing: why says more than that
            row["reason"] = reason if np.isnan(row["ours"]) else row["reason"]
        if not mine:
            low, high, sources = published_range(dataset, name, "last")
            row = {"dataset": dataset, "row": dataset, "algorithm": name, "setting": "", "kind": "last", "members": 0,
                   "published_low": low, "published_high": high, "sources": sources, "disagrees": False,
                   "reason": reason}  # fmt: skip
            rows.append(row)
    comparison = pd.DataFrame(rows, columns=COLUMNS)
    place = {cell: i for i, cell in enumerate((d, Path(a).stem) for d, a in plan.cells())}
    order = [place.get(cell, len(place)) for cell in zip(comparison["dataset"], comparison["algorithm"], strict=True)]
    return comparison.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


MOST_ACROSS = 10
"""Algorithms that a table has room for side by side."""
COLUMNS = [
    "dataset", "row", "algorithm", "setting", "kind", "ours", "low", "high", "method", "members", "data",
    "published_low", "published_high", "sources", "difference", "disagrees", "reason",
]  # fmt: skip
NOTHING = (np.nan, np.nan, 0)


def published_range(dataset: str, algorithm: str, kind: str) -> tuple[float, float, int]:
    """(lowest, highest, number) of the published scores of that kind; of those that do not say where none does."""
    found = scores.published_scores(dataset, algorithm)
    same = found[found["protocol"] == kind]
    used = same if len(same) else found[found["protocol"] == "other"]
    if kind == "selected" or not len(used):  # nobody has published a score that was selected offline
        return NOTHING
    return used["score"].min(), used["score"].max(), len(used)


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
        "interval over seeds (Student's t: wide for two; over the episodes alone for one), and in brackets the "
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
        lines += [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]
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
        table.add_column(escape(name), justify="left" if name == headings[0] else "right")
    for cells in rows:
        table.add_row(
            *(escape(text.replace(" (", "\n(")) for text in cells)
        )  # the published ones on a line of their own
    console.print(table)
    for line in empty_cells(comparison):
        console.print(f"empty: {line}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def draw(comparison: pd.DataFrame, file: Path) -> None:
    """Ours as points with intervals, the published ranges as bars behind them; one panel per dataset."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    part = comparison[(comparison["kind"] == "last") & comparison["ours"].notna()]
    datasets = list(dict.fromkeys(part["row"]))
    if not datasets:
        return
    columns = 2 if len(datasets) == 4 else min(3, len(datasets))
    lines = -(-len(datasets) // columns)
    height = max(2.6, 0.6 + 0.16 * part["row"].value_counts().max())
    figure = Figure(figsize=(4.2 * columns, 0.6 + height * lines), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
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
        axes.invert_yaxis()
        axes.set_title(dataset, fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("score of the last checkpoint: ours (blue, 95 %), published (orange), data (dotted)", fontsize=10)
    figure.savefig(file)


def collect(plan: Plan, reasons: dict[tuple[str, str], str]) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """(tidy scores, beside the published ones, messages about what does not compare) of the table's runs."""
    runs = [run for run in (plan.run(*cell) for cell in plan.cells()) if run is not None]
    folders = dict.fromkeys(run.path.parent / "selection" for run in runs)
    table = scores.scores(runs, [folder for folder in folders if folder.is_dir()]) if runs else pd.DataFrame()
    messages = scores.groups(table)[1] if runs else []
    return table, beside_published(plan, table, reasons), messages


OPTIONS = {
    "protocol": "smoke, quick, standard or paper, instead of the table's own: quick for small machines",
    "datasets": "only these, with commas",
    "algorithms": "these instead of the table's, with commas; names or .py files",
    "seeds": "members of each run",
    "runs": "folder of all runs; default: runs",
    "launcher": "a Hydra launcher (joblib, ray, submitit_slurm, ...), given all algorithms of a dataset at once",
    "dry_run": "true prints the commands and runs nothing",
}


def make_plan(parsed: command_line.Arguments, algorithms: list[str] | None = None) -> Plan:
    """The plan that a command's arguments ask for; `algorithms` instead of the table's.

    Raises:
        UserError: an unknown table, dataset, algorithm or protocol.
    """
    known = tables()
    if len(parsed.paths) != 1 or str(parsed.paths[0]) not in known:
        given = " ".join(map(str, parsed.paths))
        listed = "; ".join(f"{name} ({table['summary']})" for name, table in sorted(known.items()))
        raise UserError(f"table {given!r}: give one of {listed}")
    name, options = str(parsed.paths[0]), parsed.options
    table = known[name]
    if algorithms is None:
        algorithms = options["algorithms"].split(",") if "algorithms" in options else table["algorithms"]
    names = [offrl.algorithm.load(algorithm).name for algorithm in algorithms]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"algorithms={','.join(algorithms)}: {', '.join(twice)} stands there twice; rename a file")
    datasets = options["datasets"].split(",") if "datasets" in options else table["datasets"]
    for dataset in datasets:
        if dataset not in table["datasets"]:
            raise UserError(f"datasets={dataset}: not in {name}; {nearest(dataset, table['datasets'])}")
    protocol = options.get("protocol", table["protocol"])
    if protocol not in configuration.choices("protocol"):
        raise UserError(f"protocol={protocol}: unknown; {nearest(protocol, configuration.choices('protocol'))}")
    seeds = command_line.whole_number("seeds", options["seeds"]) if "seeds" in options else table["seeds"]
    folder = Path(options.get("runs", "runs")) / "reproduce" / f"{name}-{protocol}"
    return Plan(name, datasets, algorithms, seeds, protocol, folder, table.get("settings", {}))


def finish(plan: Plan, reasons: dict[tuple[str, str], str], console: Console) -> pd.DataFrame:
    """Collect, print, and write scores.csv, comparison.csv, table.md and table.png into the plan's folder."""
    table, comparison, messages = collect(plan, reasons)
    for message in messages:
        console.print(message, style="yellow", highlight=False, markup=False, soft_wrap=True)
    plan.folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(plan.folder / "scores.csv", index=False)
    comparison.to_csv(plan.folder / "comparison.csv", index=False)
    write_whole(plan.folder / "table.md", as_markdown(plan, comparison, messages))
    draw(comparison, plan.folder / "table.png")
    show(plan, comparison, console)
    console.print(f"written to {plan.folder}: scores.csv, comparison.csv, table.md, table.png", highlight=False,
                  soft_wrap=True)  # fmt: skip
    return comparison


def main() -> None:
    def command() -> None:
        parsed = command_line.parse(
            sys.argv[1:],
            "reproduce",
            "Run a named table with the published settings, and set it beside the published numbers. Runs that are\n"
            "there already are kept; an interrupted command goes on. Tables:\n"
            + "\n".join(f"  {name:14}{table['summary']}" for name, table in sorted(tables().items())),
            OPTIONS,
            "  python -m offrl.reproduce builtin protocol=quick\n"
            "  python -m offrl.reproduce d4rl-mujoco algorithms=td3_bc,iql datasets=d4rl:hopper-medium-v2\n"
            "  python -m offrl.reproduce d4rl-mujoco launcher=submitit_slurm",
            "TABLE",
            "the name of a table",
        )
        plan = make_plan(parsed)
        console = command_line.page(stderr=parsed.json)
        dry_run = parsed.options.get("dry_run", "false")
        if dry_run not in ("true", "false"):
            raise UserError(f"dry_run={dry_run}: must be true or false")
        if dry_run == "true":
            for dataset, algorithm in plan.cells():
                state = "done" if plan.finished(dataset, algorithm) else "to do"
                if obstacle := plan.obstacle(dataset, algorithm):
                    print(f"warning: {dataset}, {algorithm}: {obstacle}", file=sys.stderr)
                print(f"{state:6} python -m offrl.train {' '.join(plan.command(dataset, [algorithm]))}")
            return
        comparison = finish(plan, run_missing(plan, parsed.options.get("launcher"), console), console)
        if parsed.json:
            print(json.dumps(json.loads(comparison.to_json(orient="records")), indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
