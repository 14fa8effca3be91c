"""How good is a run's dynamics ensemble on held-out episodes: `python -m offrl.dynamics_report RUN...`."""

from __future__ import annotations

import sys

from offrl import devices
from offrl.command_line import parse, whole_number
from offrl.errors import run_command
from offrl.reporting.console import terminal
from offrl.reporting.dynamics import report

OPTIONS = {"step": "the checkpoint to measure; default: each member's last healthy one"}


def main() -> None:
    def command() -> None:
        devices.set_up()
        given = parse(
            sys.argv[1:],
            "dynamics_report",
            "How good the dynamics ensemble of a model-based run is on held-out episodes:\n"
            "likelihood and coverage of one step, open-loop error, precision and recall of terminations.\n"
            "Opens no environment.",
            OPTIONS,
            "  python -m offrl.dynamics_report runs/builtin-hopper-medium/mopo-1a2b3c4d",
        )
        step = whole_number("step", given.options["step"]) if "step" in given.options else None
        for path in given.paths:
            table = report(path, step, terminal(quiet=given.json))
            if given.json:
                print(table.to_json(orient="records"))

    run_command(command)


if __name__ == "__main__":
    main()
