"""Choose a policy from the data alone: `python -m offrl.select RUN...`"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from offrl import command_line, devices
from offrl.errors import UserError, run_command
from offrl.reporting.console import terminal
from offrl.reporting.progress import measuring
from offrl.reporting.selection import as_json, report, write
from offrl.reporting.selection_splits import report_configurations, write_configurations
from offrl.selection import selectors
from offrl.selection.decision import select
from offrl.selection.splits import select_configuration, split_seeds

WRITTEN = ("selection.json", "configurations.json")
"""Files by which a folder that this command wrote is recognised and skipped, as `runs/*` names it among the runs."""
OPTIONS = {
    "selector": f"what ranks the candidates: {', '.join(selectors.SELECTORS)}, any diagnostic, or FILE.py:FUNCTION",
    "diagnostics": "names with commas; default: all that need the data alone",
    "checkpoints": "maximum number per member, evenly spaced and with the last; default: all",
    "average": "K: the mean of the weights of the last K checkpoints is one more candidate of every member",
    "rows": "transitions of each split that are used; default 20000",
    "out": "folder for the tables, the picture and selection.json; default: selection, next to the first run",
}


def main() -> None:
    def command() -> None:
        parsed = command_line.parse(
            sys.argv[1:],
            "select",
            "Choose a policy from the data alone. The candidates are all checkpoints of all members of the runs,\n"
            "which must be on one dataset. No environment is opened, and no evaluation of the runs is read. What was\n"
            "measured is kept with the runs (RUN/diagnostics), so an interrupted command continues where it was.\n\n"
            "Split-select-retrain: of runs with several values of protocol.split_seed the answer is a configuration,\n"
            "the best on average over what the splits hold out, and the command that trains it on all data.",
            OPTIONS,
            "  python -m offrl.select runs/builtin-hopper-medium-replay/*\n"
            "  python -m offrl.select runs/file-log/* selector=support_only checkpoints=5\n"
            "  python -m offrl.select RUN diagnostics=behaviour_advantage,action_distance --json\n\n"
            "  python -m offrl.train -m algo=iql,td3_bc,bc dataset=file:log.h5 env=null runs=splits \\\n"
            "    protocol.validation_fraction=0.5 protocol.split_seed=0,1,2\n"
            "  python -m offrl.select splits/file-log/*                 split-select-retrain",
        )
        devices.set_up()
        options = parsed.options
        runs = [path for path in parsed.paths if not any((path / name).is_file() for name in WRITTEN)]
        names = options["diagnostics"].split(",") if options.get("diagnostics") else None
        numbers = {name: command_line.whole_number(name, options[name])
                   for name in ("checkpoints", "rows", "average") if name in options}  # fmt: skip
        console = terminal(stderr=parsed.json)
        folder = Path(options.get("out") or parsed.paths[0].parent / "selection")
        selector = options.get("selector", selectors.DEFAULT)
        if len(split_seeds(runs)) > 1:
            for name in {"checkpoints", "average"} & set(numbers):
                raise UserError(
                    f"{name}=: with several splits every member's last checkpoint is used; leave this option out"
                )
            with measuring(terminal(stderr=True)) as show:
                configurations = select_configuration(runs, selector, names, progress=show, **numbers)
            answer = write_configurations(configurations, folder)
            if parsed.json:
                print(json.dumps(answer, indent=1))
            else:
                report_configurations(configurations, console)
                console.print(f"  written to {folder}", soft_wrap=True)
            return
        with measuring(terminal(stderr=True)) as show:
            found = select(runs, selector, names, progress=show, **numbers)
        write(found, folder)
        if parsed.json:
            print(json.dumps(as_json(found), indent=1))
        else:
            report(found, console)
            console.print(f"  written to {folder}", soft_wrap=True)

    run_command(command)


if __name__ == "__main__":
    main()
