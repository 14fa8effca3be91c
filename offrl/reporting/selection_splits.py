"""A selection over several splits of the data: on the terminal and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offrl.runs.run import write_whole
from offrl.selection.splits import Configurations

SHOWN = 12
"""Rows of the table of configurations."""
LEAST_SPLITS = 3


def report_configurations(found: Configurations, console: Console) -> None:
    """What the terminal shows of several splits."""
    about = f" on {len(found.splits)} splits of {found.dataset}; the last policy of every member counts"
    console.print(Text.assemble((f"{len(found.table)} configurations", "bold"), about))
    table = Table(title=f"by {found.selector}", title_justify="left", box=None)
    columns = [f"split {split}" for split in found.splits]
    for name in ("", "algorithm", "setting", "score", *columns):
        table.add_column(name, justify="left" if name in ("algorithm", "setting") else "right")
    for place, row in found.table.head(SHOWN).iterrows():
        numbers = [f"{row['score']:.3f}±{row['spread']:.2g}", *(f"{row[name]:.3f}" for name in columns)]
        numbers = ["-" if number.startswith("nan") else number for number in numbers]
        table.add_row(str(int(place) + 1), row["algorithm"], row["setting"], *numbers)  # type: ignore[call-overload]
    console.print(table)
    for reason in filter(None, found.table["reason"]):
        console.print(Text.assemble(("vetoed", "red"), f" {reason}"))
    console.print()
    if len(found.splits) < LEAST_SPLITS:
        text = f"{len(found.splits)} splits show little of how much a split decides; take {LEAST_SPLITS} or more"
        console.print(text, style="yellow", soft_wrap=True)
    if not np.isnan(found.agreement):
        console.print(f"  agreement of the splits: Kendall's W {found.agreement:.2f}")
    if found.abstains:
        text = f"  the selector abstains on most splits, in favour of behaviour cloning: {found.abstains}"
        console.print(text, soft_wrap=True)
    if found.command:
        console.print("train the chosen configuration on all data, and deploy its last checkpoint", style="bold")
        console.print(f"  {found.command}", soft_wrap=True)
    else:
        console.print("no configuration can be chosen" + ("; train algo=bc on this dataset" if found.abstains else ""))
    console.print(f"  {found.seconds:.0f} s")


def write_configurations(found: Configurations, folder: Path) -> dict[str, Any]:
    """configurations.csv and configurations.json, whose content is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    found.table.to_csv(folder / "configurations.csv", index=False)
    answer = {
        **found._asdict(),
        "table": json.loads(found.table.to_json(orient="records", double_precision=12)),
        "agreement": None if np.isnan(found.agreement) else found.agreement,
        "seconds": round(found.seconds, 1),
    }
    write_whole(folder / "configurations.json", json.dumps(answer, indent=1))
    return answer
