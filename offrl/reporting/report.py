"""One HTML page about runs, and its pictures.

The page is one file that works from disk and fetches nothing: scores of three kinds that are never mixed, learning
curves, aggregates, profiles, the regret of selections, selections with their scoreboards, the workflow's verdicts and
the data. A section without content is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import offrl
from offrl import statistics
from offrl.reporting import pictures
from offrl.reporting.collect import Material, common, gather, half_width, normalised, summaries
from offrl.reporting.page import Html, Section, decimal, joined, number, page, tag, tiles
from offrl.reporting.pictures import Save
from offrl.reporting.sections import aggregates_section, curves_section, data_section, regret_section, scores_section
from offrl.reporting.selection_sections import selections_section, workflow_section
from offrl.runs.run import write_whole


def make(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write the page to `out` and its pictures beside it.

    Raises:
        UserError: nothing to report on, or something damaged.
    """
    material = gather(paths)
    folder = out.with_name(f"{out.stem}_pictures")
    saved: list[str] = []

    def save(name: str, drawn: Any) -> Html:
        saved.extend(str(folder / f"{name}.{kind}") for kind in ("svg", "png"))
        return pictures.save(drawn, folder, name)

    out.parent.mkdir(parents=True, exist_ok=True)
    with pictures.style():
        sections = build(material, save)
    title, lead = summary(material)
    versions = ", ".join(sorted({f"offrl {run.info['offrl']}" for run in material.runs})) or "other machines"
    given = " ".join(map(str, paths))
    footer = f"Made by offrl {offrl.__version__} of runs of {versions}: python -m offrl.report {given}"
    write_whole(out, page(f"{title} · offrl", lead, sections, footer))
    every = summaries(material)
    every["dataset"] = [material.labels[place] for place in every["place"]]
    every["unit"] = [material.unit(material.parts[place]) for place in every["place"]]
    return {
        "page": str(out),
        "pictures": saved,
        "sections": [section.name for section in sections],
        "messages": material.messages,
        "scores": json.loads(every.drop(columns=["place", "name"]).to_json(orient="records", double_precision=12)),
    }


def build(material: Material, save: Save) -> list[Section]:
    found = [
        ("scores", "Scores", scores_section(material)),
        ("curves", "Learning curves", curves_section(material, save)),
        ("aggregates", "Aggregates and profiles", aggregates_section(material, save)),
        ("regret", "Selected against best", regret_section(material, save)),
        ("selection", "Selection", selections_section(material, save)),
        ("workflow", "Training-curve workflow", workflow_section(material, save)),
        ("data", "Data", data_section(material, save)),
    ]
    return [Section(*section) for section in found if section[2]]


def summary(material: Material) -> tuple[str, Html]:
    """The title and the head of the page: what it is about, and the most important numbers."""
    every = summaries(material)
    last = every[(every["kind"] == "last") & every["estimate"].notna()]
    names = list(dict.fromkeys(part["dataset"].iloc[0] for part in material.parts))
    title = names[0] if len(names) == 1 else f"{len(names)} datasets"
    members = int(material.table.drop_duplicates(["run", "member"]).shape[0])
    episodes = sum(map(len, material.returns.values()))
    checkpoints = sum(rows.drop_duplicates(["member", "step"]).shape[0] for rows in material.returns.values())
    algorithms = list(dict.fromkeys(material.table["algorithm"]))
    protocols = list(dict.fromkeys(run.info["protocol"]["name"] for run in material.runs))
    text = (f"{', '.join(algorithms)} under the protocol{'s' if len(protocols) > 1 else ''} {', '.join(protocols)}: "
            f"{checkpoints:,} checkpoints played {episodes:,} episodes."
            if protocols else f"{', '.join(algorithms)}, from a table of scores.")  # fmt: skip
    figures: list[tuple[str, Any, Any]] = [("runs", f"{material.table['run'].nunique()}", f"{members} members")]
    digits = material.digits(material.parts[0]) if len(material.parts) == 1 else 1
    if len(material.parts) == 1 and len(last):
        row = last.iloc[int(last["estimate"].argmax())]
        figures.append(("best last checkpoint", number(row["estimate"], half_width(row), digits).text, row["name"]))
    elif len(material.parts) > 1:
        places, found = common(material)
        figures.append(("datasets", f"{len(names)}", f"{len(material.parts)} tables" if len(material.parts) > len(names)
                        else ""))  # fmt: skip
        if len(found) > 1:
            means = {name: statistics.interquartile_mean(np.concatenate(values)) for name, values in found.items()}
            top = max(means, key=lambda name: means[name])
            figures.append(
                (
                    "highest interquartile mean",
                    decimal(means[top]),
                    f"{top}, on {len(places)} dataset{'s' if len(places) > 1 else ''}",
                )
            )
    if len(material.parts) == 1:
        part = material.parts[0]
        figures.append(("data, mean episode", decimal(part["data"].iloc[0], digits), material.unit(part)))
    wide = pd.concat([part.pivot(index=["run", "member"], columns="kind", values="score") for part in material.parts
                      if normalised(part) or len(material.parts) == 1])  # fmt: skip
    wide = wide.dropna(subset=["best", "selected"]) if {"best", "selected"} <= set(wide) else wide.iloc[:0]
    if len(wide):
        figures.append(("regret of the selection", decimal((wide["best"] - wide["selected"]).mean(), digits),
                        f"of {len(wide)} members; their last checkpoints’ is "
                        f"{decimal((wide['best'] - wide['last']).mean(), digits)}"))  # fmt: skip
    for selected in material.selections if len(material.selections) == 1 else []:
        deploy = (selected.answer.get("deploy") or [None])[0]
        chosen = selected.candidates[selected.candidates["candidate"] == deploy]
        if len(chosen):
            row = chosen.iloc[0]
            figures.append(("deploy", row["algorithm"], f"step {row['step']:,}, seed {row['seed']}"))
    return title, joined([tag("h1", title), tag("p", text), tiles(figures)])
