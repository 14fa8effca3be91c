"""*Assisted*: do a run's penalties know where its model is wrong? `python -m offrl.penalty_study RUN...`."""

from __future__ import annotations

import sys

from offrl import devices
from offrl.command_line import parse, whole_number
from offrl.errors import run_command
from offrl.reporting.console import terminal
from offrl.reporting.dynamics import study

OPTIONS = {
    "episodes": "episodes that the policy plays; default: 10",
    "step": "the checkpoint to measure; default: each member's last healthy one",
}


def main() -> None:
    def command() -> None:
        devices.set_up()
        given = parse(
            sys.argv[1:],
            "penalty_study",
            "Assisted: steps the run's environment with the deployed policy, and compares every penalty with the true\n"
            "error of the model (rank correlations), there and on held-out episodes of the data. For study only.",
            OPTIONS,
            "  python -m offrl.penalty_study runs/builtin-hopper-medium/mopo-1a2b3c4d episodes=20",
        )
        options = {name: whole_number(name, value) for name, value in given.options.items()}
        for path in given.paths:
            table = study(path, options.get("episodes", 10), options.get("step"), terminal(quiet=given.json))
            if given.json:
                print(table.to_json(orient="records"))

    run_command(command)


if __name__ == "__main__":
    main()
