"""Write one HTML page about runs and selections: `python -m offrl.report RUN-or-folder...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from offrl import command_line
from offrl.errors import UserError, run_command
from offrl.reporting.console import terminal
from offrl.reporting.report import make

OPTIONS = {"out": "the page; its pictures go into a folder next to it; default: report.html"}


def main() -> None:
    def command() -> None:
        parsed = command_line.parse(
            sys.argv[1:],
            "report",
            "Write one HTML page about runs and selections, and its pictures as SVG and PNG. The page is one\n"
            "file that needs no network. Selections (folders that offrl.select wrote) at, below or next to the runs\n"
            "are included automatically.",
            OPTIONS,
            "  python -m offrl.report runs/builtin-hopper-medium-replay\n"
            "  python -m offrl.report runs/reproduce/builtin-quick out=table.html\n"
            "  python -m offrl.report results/tables/small/scores.csv\n"
            "  python -m offrl.report RUN RUN runs/hopper/selection --json",
            "RUN",
            "a run directory or a folder of them, a folder that offrl.select wrote, or a scores.csv of offrl.reproduce",
        )
        out = Path(parsed.options.get("out", "report.html"))
        if out.suffix not in (".html", ".htm") or out.is_dir():
            raise UserError(f"out={out}: must be the name of an .html file")
        found = make(parsed.paths, out)
        console = terminal(stderr=parsed.json)
        for message in found["messages"]:
            console.print(message, style="yellow", soft_wrap=True)
        pictures = f"{len(found['pictures']) // 2} pictures in {out.stem}_pictures"
        console.print(f"written to {out}: {', '.join(found['sections'])}; {pictures}", soft_wrap=True)
        if parsed.json:
            print(json.dumps(found, indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
