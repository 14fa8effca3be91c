"""Run a named table and compare it with the published numbers: `python -m offrl.reproduce TABLE`."""

from __future__ import annotations

import json
import sys
from functools import partial

from offrl import command_line, devices
from offrl.errors import UserError, run_command
from offrl.protocol import reproduce
from offrl.reporting.console import line, terminal
from offrl.reporting.published_table import finish


def main() -> None:
    def command() -> None:
        parsed = command_line.parse(
            sys.argv[1:],
            "reproduce",
            "Run a named table with the published settings, and compare it with the published numbers. Existing runs\n"
            "are kept; an interrupted command continues where it was. Tables:\n"
            + "\n".join(f"  {name:14}{table['summary']}" for name, table in sorted(reproduce.tables().items())),
            reproduce.OPTIONS,
            "  python -m offrl.reproduce builtin protocol=quick\n"
            "  python -m offrl.reproduce d4rl-mujoco algorithms=td3_bc,iql datasets=d4rl:hopper-medium-v2\n"
            "  python -m offrl.reproduce d4rl-mujoco launcher=submitit_slurm",
            "TABLE",
            "the name of a table, of those above",
        )
        devices.set_up()
        seeds = command_line.whole_number("seeds", parsed.options["seeds"]) if "seeds" in parsed.options else None
        plan = reproduce.make_plan(" ".join(map(str, parsed.paths)), parsed.options, seeds)
        console = terminal(stderr=parsed.json)
        output = sys.stderr if parsed.json else None
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
        reasons = reproduce.run_missing(plan, parsed.options.get("launcher"), partial(line, console), output)
        comparison = finish(plan, reasons, console)
        if parsed.json:
            print(json.dumps(json.loads(comparison.to_json(orient="records")), indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
