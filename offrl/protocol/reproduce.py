"""Run a named table: what it consists of, which of its runs exist, and training and scoring the others.

A table (configs/tables/NAME.yaml) is every algorithm on every dataset with so many seeds, with the settings published
for each dataset. Finished runs are kept and unfinished ones continued; what cannot be run is an empty cell with its
reason.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numpy as np
import yaml

import offrl.algorithm
import offrl.data
import offrl.data.d4rl
from offrl.datasets.loading import load
from offrl.errors import UserError, nearest
from offrl.protocol import scores
from offrl.runs import configuration
from offrl.runs.identity import differences, identity_of
from offrl.runs.run import Run

OPTIONS = {
    "protocol": "smoke, quick, standard or paper, instead of the table's own: quick for small machines",
    "datasets": "only these, separated by commas",
    "algorithms": "these instead of the table's, separated by commas; names or .py files",
    "seeds": "members of each run: policies trained together, one for each seed",
    "runs": "folder of all runs; default: runs",
    "launcher": "a Hydra launcher (joblib, ray, submitit_slurm, ...), for all algorithms of a dataset in parallel",
    "dry_run": "true: print the commands and run nothing",
}


NO_DATA = "no data: "
"""How the reason of a cell begins whose dataset could not be loaded."""


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
        """Why the run in the cell's folder is not the cell's, if it is not: it has other settings, say."""
        found = self._found(dataset, algorithm)
        if found is None:
            return ""
        expected = identity_of(*self.command(dataset, [algorithm]))
        differing = differences(found.info["identity"], expected)
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


def make_plan(
    name: str, options: Mapping[str, str], seeds: int | None = None, algorithms: list[str] | None = None
) -> Plan:
    """The plan of the table of that name, as a command's `options` change it.

    Args:
        options: of OPTIONS, as text: protocol, datasets, algorithms, runs.
        seeds: members of each run, instead of the table's.
        algorithms: instead of the table's and of those in `options`.

    Raises:
        UserError: an unknown table, dataset, algorithm or protocol.
    """
    known = tables()
    if name not in known:
        listed = "; ".join(f"{each} ({table['summary']})" for each, table in sorted(known.items()))
        raise UserError(f"table {name!r}: give one of {listed}")
    table = known[name]
    if algorithms is None:
        algorithms = options["algorithms"].split(",") if "algorithms" in options else table["algorithms"]
    names = [offrl.algorithm.load(algorithm).name for algorithm in algorithms]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise UserError(f"algorithms={','.join(algorithms)}: {', '.join(twice)} is named twice; rename a file")
    datasets = options["datasets"].split(",") if "datasets" in options else table["datasets"]
    for dataset in datasets:
        if dataset not in table["datasets"]:
            raise UserError(f"datasets={dataset}: not in {name}; {nearest(dataset, table['datasets'])}")
    protocol = options.get("protocol", table["protocol"])
    if protocol not in configuration.choices("protocol"):
        raise UserError(f"protocol={protocol}: unknown; {nearest(protocol, configuration.choices('protocol'))}")
    folder = Path(options.get("runs", "runs")) / "reproduce" / f"{name}-{protocol}"
    return Plan(name, datasets, algorithms, seeds or table["seeds"], protocol, folder, table.get("settings", {}))


def run_missing(
    plan: Plan, launcher: str | None, say: Callable[[str, str], None], output: IO[str] | None = None
) -> dict[tuple[str, str], str]:
    """Train and score what is missing; (dataset, algorithm) -> the reason why it could not be.

    Args:
        say: called with a line and its kind: heading, warning, command, or nothing.
        output: where the standard output of training goes, by default to ours.
    """
    reasons = {cell: obstacle for cell in plan.cells() if (obstacle := plan.obstacle(*cell))}
    for (dataset, algorithm), obstacle in reasons.items():
        say(f"{dataset}, {algorithm}: {obstacle}", "warning")
    missing = [cell for cell in plan.cells() if cell not in reasons and not plan.finished(*cell)]
    say(
        f"{plan.name}: {len(plan.cells())} runs of {plan.seeds} member(s), {len(missing)} of them to train or score",
        "heading",
    )
    seconds: list[float] = []
    for dataset in plan.datasets:
        todo = [algorithm for d, algorithm in missing if d == dataset]
        if not todo:
            continue
        try:
            load(dataset, quiet=True)  # once, before anything is started: a download shows its progress
        except UserError as error:
            reason = f"{NO_DATA}{error}"
            if dataset.startswith("d4rl:"):
                file = offrl.data.d4rl.cached_path(dataset.removeprefix("d4rl:"))
                reason += f"; or put that file at {file} and run this again"
            say(f"{dataset}: {reason}", "warning")
            reasons |= {(dataset, algorithm): reason for algorithm in todo}
            missing = [cell for cell in missing if cell not in reasons]
            continue
        for algorithms in _batches(plan, todo, launcher):
            if seconds:
                say(f"about {np.mean(seconds) * len(missing) / 60:.0f} min left", "")
            flags = ["-m", f"hydra/launcher={launcher}"] if launcher else []
            command = [*flags, *plan.command(dataset, algorithms)]
            say(" ".join(["python -m offrl.train", *command]), "command")
            started = time.monotonic()
            last_words = train(command, output)
            for algorithm in algorithms:
                missing.remove((dataset, algorithm))
                if not plan.finished(dataset, algorithm):
                    reasons[dataset, algorithm] = last_words
                    say(f"{dataset}, {algorithm}: {last_words}", "warning")
            seconds.append((time.monotonic() - started) / len(algorithms))
    return reasons


def _batches(plan: Plan, algorithms: list[str], launcher: str | None) -> list[list[str]]:
    """What one command trains: with a launcher, all named algorithms without settings of their own, in parallel."""
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
