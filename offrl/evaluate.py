"""Score the policies of runs in their environment: `python -m offrl.evaluate RUN...`.

Nothing else writes RUN/oracle/returns.csv, and nothing that trains or selects reads it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from offrl import command_line, devices
from offrl.errors import UserError, run_command
from offrl.playing.evaluation import evaluate_run
from offrl.reporting.console import terminal
from offrl.reporting.progress import evaluation
from offrl.reporting.run_scores import as_json, summarize
from offrl.runs.run import Run

OPTIONS = {
    "checkpoints": "last (every member's last healthy one; the default), all, or steps such as 5000,10000",
    "episodes": "number of episodes that every policy plays; default: as in the run's protocol",
    "seed": "reset seed of the first episode, the others count up; default: as in the run's protocol",
    "env": "another environment than that of the run's dataset",
    "workers": "simulator processes; default: one per core",
}


def parse(arguments: Sequence[str]) -> tuple[list[Path], dict[str, Any], bool]:
    """Run directories, options for `evaluate_run`, and whether to print JSON.

    Raises:
        UserError: an unknown option, or a value that cannot be read.
    """
    parsed = command_line.parse(
        arguments,
        "evaluate",
        "Score the policies of finished or running runs in their environment. Every policy plays the same\n"
        "episodes (same reset seeds), each to its end; RUN/oracle/returns.csv keeps one row per episode, and\n"
        "an episode that has its row is not played again.",
        OPTIONS,
        "  python -m offrl.evaluate runs/builtin-hopper-medium/iql-1a2b3c4d episodes=100\n"
        "  python -m offrl.evaluate runs/*/* checkpoints=all        all checkpoints of every run\n"
        "  python -m offrl.evaluate RUN --json | jq .means          for another program",
    )
    return parsed.paths, {name: _option(name, value) for name, value in parsed.options.items()}, parsed.json


def _option(name: str, value: str) -> Any:
    if name == "env" or (name == "checkpoints" and value in ("last", "all")):
        return value
    try:
        numbers = [int(part) for part in value.strip("[]").split(",")]
    except ValueError:
        numbers = []
    if name == "checkpoints" and numbers:
        return numbers
    if len(numbers) == 1 and numbers[0] >= (0 if name == "seed" else 1):
        return numbers[0]
    raise UserError(f"{name}={value}: cannot be read; give {OPTIONS[name]}")


def main() -> None:
    def command() -> None:
        devices.set_up()
        runs, options, wants_json = parse(sys.argv[1:])
        results = []
        console = terminal(stderr=True)
        shown = partial(evaluation, console)
        for path in runs:
            rows = evaluate_run(path, **options, warn=console.print, progress=shown)
            picture = summarize(path, rows, terminal(quiet=wants_json))
            results.append(as_json(Run.open(path), rows, picture))
        if wants_json:
            print(json.dumps(results, indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
