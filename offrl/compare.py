"""Compare a new algorithm with those of the zoo under one protocol: `python -m offrl.compare algo=path/to/new.py`.

Runs that are missing are trained and scored, as by `offrl.reproduce`, and the new algorithm becomes a column of the
table.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from offrl import command_line, devices
from offrl.errors import UserError, run_command
from offrl.protocol import reproduce
from offrl.protocol.compare import compare
from offrl.protocol.published import collect
from offrl.reporting.comparison import draw, show
from offrl.reporting.console import line, terminal
from offrl.reporting.published_table import finish

AGAINST = ("bc", "td3_bc", "iql", "rebrac")
OPTIONS = {
    "algo": "the new algorithm: a .py file, or a name",
    "against": f"algorithms to compare it with, separated by commas; default: {','.join(AGAINST)}",
    **{name: text for name, text in reproduce.OPTIONS.items() if name not in ("algorithms", "dry_run")},
}


def main() -> None:
    def command() -> None:
        parsed = command_line.parse(
            sys.argv[1:],
            "compare",
            "Train and score a new algorithm and others under one protocol, and say how certain their difference is.\n"
            "TABLE is one of offrl.reproduce's tables; default: builtin.",
            OPTIONS,
            "  python -m offrl.compare algo=path/to/new.py against=iql,td3_bc protocol=quick\n"
            "  python -m offrl.compare d4rl-mujoco algo=rebrac against=iql seeds=8",
            "TABLE",
            "the name of a table",
            optional=True,
        )
        devices.set_up()
        if "algo" not in parsed.options:
            raise UserError("no algo given; name the algorithm to compare: algo=path/to/new.py")
        new = parsed.options["algo"]
        others = [name for name in AGAINST if name != new]
        if "against" in parsed.options:
            others = parsed.options["against"].split(",")
        if new in others:
            raise UserError(f"against={','.join(others)}: holds algo={new} itself")
        table_name = " ".join(map(str, parsed.paths)) or "builtin"
        seeds = command_line.whole_number("seeds", parsed.options["seeds"]) if "seeds" in parsed.options else None
        plan = reproduce.make_plan(table_name, parsed.options, seeds, [new, *others])
        console = terminal(stderr=parsed.json)
        output = sys.stderr if parsed.json else None
        reasons = reproduce.run_missing(plan, parsed.options.get("launcher"), partial(line, console), output)
        finish(plan, reasons, console)
        table, _, _ = collect(plan, reasons)
        names = [Path(name).stem for name in [new, *others]]
        comparison = compare(table, names[0], names[1:])
        show(names[0], comparison, console)
        comparison.to_csv(plan.folder / f"compare-{names[0]}.csv", index=False)
        draw(table, names, comparison, plan.folder / f"compare-{names[0]}.png")
        console.print(f"written to {plan.folder}: compare-{names[0]}.csv, compare-{names[0]}.png", soft_wrap=True)
        if parsed.json:
            print(json.dumps(json.loads(comparison.to_json(orient="records")), indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
