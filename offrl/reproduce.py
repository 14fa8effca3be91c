"""Run a named table and set it beside the published numbers: `python -m offrl.reproduce TABLE`.

A table (configs/tables/NAME.yaml) is every algorithm on every dataset with so many seeds, with the settings published
for each dataset. Runs that exist are gone on with or kept; what cannot be run is an empty cell with its reason.
"""

from __future__ import annotations

import importlib.resources
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from rich.console import Console
from rich.table import Table

import offrl.algorithm
import offrl.data
from offrl import commands, configuration, scores
from offrl.errors import UserError, nearest, run_command
from offrl.runs import Run, write_whole


class Plan(NamedTuple):
    """What a table consists of."""

    name: str
    datasets: list[str]
    algorithms: list[str]
    """Names, or paths of algorithm files."""
    seeds: int
    protocol: str
    folder: Path
    overrides: list[str]
    """Further options of offrl.train, the same for every run."""

    def cells(self) -> list[tuple[str, str]]:
        return [(dataset, algorithm) for dataset in self.datasets for algorithm in self.algorithms]

    def run_folder(self, dataset: str, algorithm: str) -> Path:
        return self.folder / dataset.replace(":", "-").replace("/", "-") / Path(algorithm).stem

    def finished(self, dataset: str, algorithm: str) -> bool:
        folder = self.run_folder(dataset, algorithm)
        return (folder / "run.json").is_file() and Run.open(folder).info["finished"]

    def command(self, datasets: Sequence[str], algorithms: Sequence[str]) -> list[str]:
        """The arguments of offrl.train for these cells."""
        folder = self.run_folder(datasets[0], algorithms[0])
        name = folder.name if len(algorithms) == 1 else "${algo.name}"
        return [f"algo={','.join(algorithms)}", f"dataset={datasets[0]}", f"seeds={self.seeds}",
                f"protocol={self.protocol}", f"run_dir={folder.parent / name}", *self.overrides]  # fmt: skip


def tables() -> dict[str, dict[str, Any]]:
    """Name -> summary, datasets, algorithms, seeds, protocol."""
    folder = importlib.resources.files("offrl.configs") / "tables"
    return {Path(file.name).stem: yaml.safe_load(file.read_text()) for file in folder.iterdir() if "yaml" in file.name}


def run_missing(plan: Plan, launcher: str | None, console: Console) -> dict[tuple[str, str], str]:
    """Train and score what is not there; (dataset, algorithm) -> the reason why it could not be."""
    reasons: dict[tuple[str, str], str] = {}
    missing = [cell for cell in plan.cells() if not plan.finished(*cell)]
    console.print(f"{plan.name}: {len(plan.cells())} runs of {plan.seeds} members, {len(missing)} to do", style="bold")
    seconds: list[float] = []
    for dataset in plan.datasets:
        todo = [algorithm for d, algorithm in missing if d == dataset]
        if not todo:
            continue
        try:
            offrl.data.load(dataset, quiet=True)  # once, before anything is started: a download shows its progress
        except UserError as error:
            console.print(f"{dataset}: {error}", style="yellow", highlight=False)
            reasons |= {(dataset, algorithm): f"no data: {error}" for algorithm in todo}
            continue
        for algorithms in [todo] if launcher else [[algorithm] for algorithm in todo]:
            flags = ["-m", f"hydra/launcher={launcher}"] if launcher else []
            if seconds:
                left = np.mean(seconds) * sum(cell in missing and cell not in reasons for cell in plan.cells())
                console.print(f"about {left / 60:.0f} min left", highlight=False)
            command = [sys.executable, "-m", "offrl.train", *flags, *plan.command([dataset], algorithms)]
            console.print(" ".join(["python", *command[1:]]), style="dim", highlight=False, soft_wrap=True)
            started = time.monotonic()
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
            for algorithm in algorithms:
                missing.remove((dataset, algorithm))
                if not plan.finished(dataset, algorithm):
                    lines = done.stderr.strip().splitlines() or [f"offrl.train ended with status {done.returncode}"]
                    reasons[dataset, algorithm] = lines[-1]
                    console.print(f"{dataset}, {algorithm}: {lines[-1]}", style="yellow", highlight=False)
            seconds.append((time.monotonic() - started) / len(algorithms))
    return reasons


def beside_published(plan: Plan, table: pd.DataFrame, reasons: dict[tuple[str, str], str]) -> pd.DataFrame:
    """One row per dataset, algorithm and kind of score: ours with its interval, beside each published number of it.

    Columns: dataset, algorithm, kind, ours, low, high, members, data, published_low, published_high (over the sources
    that report this kind; all sources where none says which), sources, difference (to the nearer end; 0 within),
    disagrees (the published range lies outside our interval), reason.
    """
    rows: list[dict[str, Any]] = []
    parts, _ = scores.groups(table) if len(table) else ([], [])
    for part in parts:
        dataset, data = part["dataset"].iloc[0], part["data"].iloc[0]
        for _, ours in scores.summarize(part).iterrows():
            found = scores.published_scores(dataset, ours["algorithm"])
            same = found[found["protocol"] == ours["kind"]]
            used = same if len(same) else found[found["protocol"] == "other"]
            if ours["kind"] == "selected":  # nobody has published a score that was selected offline
                used = found.iloc[:0]
            low, high = used["score"].min(), used["score"].max()
            difference = ours["estimate"] - np.clip(ours["estimate"], low, high) if len(used) else np.nan
            rows.append(
                {
                    "dataset": dataset,
                    "algorithm": ours["algorithm"],
                    "kind": ours["kind"],
                    "ours": ours["estimate"],
                    "low": ours["low"],
                    "high": ours["high"],
                    "members": ours["members"],
                    "data": data,
                    "published_low": low,
                    "published_high": high,
                    "sources": len(used),
                    "difference": difference,
                    "disagrees": bool(len(used) and (high < ours["low"] or low > ours["high"])),
                    "reason": ours["reason"],
                }
            )
    have = {(row["dataset"], row["algorithm"]) for row in rows}
    for (dataset, algorithm), reason in reasons.items():
        if (dataset, Path(algorithm).stem) not in have:
            rows.append({"dataset": dataset, "algorithm": Path(algorithm).stem, "kind": "last", "ours": np.nan,
                         "members": 0, "disagrees": False, "reason": reason})  # fmt: skip
    return pd.DataFrame(rows)


def cell(row: pd.Series) -> str:
    """`ours ± half-width (published low-high)`, with a mark where they disagree; the reason where there is nothing."""
    if np.isnan(row["ours"]):
        return "-"
    text = f"{row['ours']:.1f}"
    if np.isfinite(row["high"]):
        text += f" ± {(row['high'] - row['low']) / 2:.1f}"
    if row["sources"]:
        low, high = row["published_low"], row["published_high"]
        text += f" ({low:.1f})" if high - low < 0.05 else f" ({low:.1f} to {high:.1f})"
    return text + (" ≠" if row["disagrees"] else "")


def as_markdown(plan: Plan, comparison: pd.DataFrame, messages: Sequence[str]) -> str:
    """The table of each kind of score, with a legend and the reasons of empty cells."""
    legend = (
        f"{plan.seeds} seeds, protocol `{plan.protocol}`. Ours ± half of the 95 % interval over seeds (Student's t: "
        "wide for two), and in brackets the range of the published scores of the same kind; ≠ where that range lies "
        "outside our interval. Sources: `results/published/scores.csv`."
    )
    lines = [f"# {plan.name}", "", legend]
    titles = {"last": "Last checkpoint", "selected": "Selected from the data alone", "best": "Best in hindsight"}
    for kind, title in titles.items():
        part = comparison[comparison["kind"] == kind]
        if part["ours"].isna().all() and kind != "last":
            continue
        algorithms = list(dict.fromkeys(part["algorithm"]))
        lines += [
            "",
            f"## {title}",
            "",
            f"| dataset | data | {' | '.join(algorithms)} |",
            "|---" * (len(algorithms) + 2) + "|",
        ]
        for dataset, rows in part.groupby("dataset", sort=False):
            cells = {row["algorithm"]: cell(row) for _, row in rows.iterrows()}
            data = rows["data"].dropna() if "data" in rows else rows.iloc[:0]
            lines.append(f"| `{dataset}` | {f'{data.iloc[0]:.1f}' if len(data) else '-'} | "
                         + " | ".join(cells.get(a, "-") for a in algorithms) + " |")  # fmt: skip
    empty = comparison[comparison["ours"].isna() & (comparison["kind"] == "last")]
    if len(empty):
        lines += ["", "Empty cells:", ""]
        lines += [f"- {row['dataset']}, {row['algorithm']}: {row['reason']}" for _, row in empty.iterrows()]
    if messages:
        lines += ["", *[f"- {message}" for message in messages]]
    return "\n".join(lines) + "\n"


def show(plan: Plan, comparison: pd.DataFrame, console: Console) -> None:
    """The table of last checkpoints, on the terminal."""
    part = comparison[comparison["kind"] == "last"]
    algorithms = list(dict.fromkeys(part["algorithm"]))
    table = Table(title=f"{plan.name}: last checkpoint, ours ± 95 % (published)", title_justify="left", box=None)
    table.add_column("dataset")
    table.add_column("data", justify="right")
    for name in algorithms:
        table.add_column(name, justify="right")
    for dataset, rows in part.groupby("dataset", sort=False):
        cells = {row["algorithm"]: cell(row) for _, row in rows.iterrows()}
        data = rows["data"].dropna() if "data" in rows else rows.iloc[:0]
        table.add_row(
            str(dataset), f"{data.iloc[0]:.1f}" if len(data) else "-", *(cells.get(a, "-") for a in algorithms)
        )
    console.print(table)
    for reason, rows in part[part["ours"].isna()].groupby("reason"):
        console.print(f"empty: {', '.join(rows['dataset'] + ' ' + rows['algorithm'])}: {reason}", style="yellow",
                      highlight=False)  # fmt: skip


def draw(comparison: pd.DataFrame, file: Path) -> None:
    """Ours as points with intervals, the published ranges as bars behind them; one panel per dataset."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    part = comparison[(comparison["kind"] == "last") & comparison["ours"].notna()]
    datasets = list(dict.fromkeys(part["dataset"]))
    if not datasets:
        return
    columns = min(3, len(datasets))
    lines = -(-len(datasets) // columns)
    figure = Figure(figsize=(4.2 * columns, 0.6 + 2.6 * lines), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, dataset in zip(figure.subplots(lines, columns, squeeze=False).ravel(), datasets, strict=False):
        rows = part[part["dataset"] == dataset].reset_index(drop=True)
        for place, row in rows.iterrows():
            if row["sources"]:
                axes.barh(place, row["published_high"] - row["published_low"] + 0.4, left=row["published_low"] - 0.2,
                          height=0.6, color="#f0c9a8")  # fmt: skip
            if np.isfinite(row["high"]):
                axes.plot([row["low"], row["high"]], [place, place], color="#1f5fa8", linewidth=1.2)
            axes.plot(row["ours"], place, "o", color="#1f5fa8", markersize=4)
        axes.axvline(rows["data"].iloc[0], color="#666666", linewidth=1, linestyle=":")
        axes.set_yticks(range(len(rows)), rows["algorithm"], fontsize=8)
        axes.invert_yaxis()
        axes.set_title(dataset, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("last checkpoint: ours (blue, 95 %), published (orange), data (dotted)", fontsize=10)
    figure.savefig(file)


def collect(plan: Plan, reasons: dict[tuple[str, str], str]) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """(tidy scores, beside the published ones, messages about what does not compare) of the table's runs."""
    folders = [plan.run_folder(*cell) for cell in plan.cells()]
    runs = [Run.open(folder) for folder in folders if (folder / "run.json").is_file()]
    selections = [folder for folder in {folder.parent / "selection" for folder in folders} if folder.is_dir()]
    table = scores.scores(runs, selections) if runs else pd.DataFrame()
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


def make_plan(parsed: commands.Arguments, algorithms: list[str] | None = None) -> Plan:
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
    for algorithm in algorithms:
        offrl.algorithm.load(algorithm)
    datasets = options["datasets"].split(",") if "datasets" in options else table["datasets"]
    for dataset in datasets:
        if dataset not in table["datasets"]:
            raise UserError(f"datasets={dataset}: not in {name}; {nearest(dataset, table['datasets'])}")
    protocol = options.get("protocol", table["protocol"])
    if protocol not in configuration.choices("protocol"):
        raise UserError(f"protocol={protocol}: unknown; {nearest(protocol, configuration.choices('protocol'))}")
    seeds = commands.whole_number("seeds", options["seeds"]) if "seeds" in options else table["seeds"]
    folder = Path(options.get("runs", "runs")) / "reproduce" / f"{name}-{protocol}"
    return Plan(name, datasets, algorithms, seeds, protocol, folder, [])


def finish(plan: Plan, reasons: dict[tuple[str, str], str], console: Console) -> pd.DataFrame:
    """Collect, print, and write scores.csv, comparison.csv, table.md and table.png into the plan's folder."""
    table, comparison, messages = collect(plan, reasons)
    for message in messages:
        console.print(message, style="yellow", highlight=False)
    plan.folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(plan.folder / "scores.csv", index=False)
    comparison.to_csv(plan.folder / "comparison.csv", index=False)
    write_whole(plan.folder / "table.md", as_markdown(plan, comparison, messages))
    draw(comparison, plan.folder / "table.png")
    show(plan, comparison, console)
    console.print(f"written to {plan.folder}: scores.csv, comparison.csv, table.md, table.png", highlight=False)
    return comparison


def main() -> None:
    def command() -> None:
        parsed = commands.parse(
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
        console = Console(stderr=parsed.json)
        if parsed.options.get("dry_run") == "true":
            for dataset, algorithm in plan.cells():
                state = "done" if plan.finished(dataset, algorithm) else "to do"
                print(f"{state:6} python -m offrl.train {' '.join(plan.command([dataset], [algorithm]))}")
            return
        comparison = finish(plan, run_missing(plan, parsed.options.get("launcher"), console), console)
        if parsed.json:
            print(json.dumps(json.loads(comparison.to_json(orient="records")), indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
