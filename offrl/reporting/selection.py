"""A selection: on the terminal, as a picture and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offrl.reporting.canvas import picture, short
from offrl.runs.run import write_whole
from offrl.selection import diagnostics, selectors
from offrl.selection.decision import Selection

LOW_AGREEMENT = 0.3
"""Kendall's W below which the disagreement of the diagnostics is itself a warning."""
SHOWN = 12
"""Rows of the table of candidates."""


def report(selection: Selection, console: Console) -> None:
    """What the terminal shows of a selection."""
    pool = selection.pool
    about = (
        f" of {pool.table['run'].nunique()} runs on {pool.dataset.name}; "
        f"{int(pool.held_out.sum())} of {pool.dataset.episodes} episodes held out"
    )
    if np.isfinite(selection.scores.attrs["coverage"]):
        about += f"; coverage {selection.scores.attrs['coverage']:.2f}"
    console.print(Text.assemble((f"{len(pool)} candidates", "bold"), about))
    if not pool.held_out.any():
        missing = "no episode is held out: nothing that needs held-out data was measured"
        console.print(Text.assemble((missing, "yellow"), "; train with protocol.validation_fraction=0.1"))
    checks = selection.checks
    for _, check in checks[checks["level"] != "ok"].iterrows():
        console.print(Text.assemble((f"data: {check['check']}", "yellow"), f" {check['message']}"))
    console.print(_candidates_table(selection))
    vetoed = selection.candidates[selection.candidates["veto"] != ""]
    for reason, group in vetoed.groupby("veto"):
        named = f"{', '.join(group['candidate'][:4])}{', ...' if len(group) > 4 else ''}"
        console.print(Text.assemble(("vetoed", "red"), f" {len(group)}: {named}: {reason}"))
    if len(selection.workflow):
        table = Table(title="workflow: what the curves say of each member", title_justify="left", box=None)
        for name in ("run", "member", "verdict", "step", "advice"):
            table.add_column(name)
        for _, row in selection.workflow.iterrows():
            table.add_row(Path(row["run"]).name, str(row["member"]), row["verdict"], f"{row['step']:,}", row["advice"])
        console.print(table)
    _print_decision(selection, console)


def _candidates_table(selection: Selection) -> Table:
    shown = [name for name in ("behaviour_advantage", "fqe_lcb", "lstd", "action_distance", "ood_fraction", "td_error")
             if name in selection.scores and selection.scores[name].notna().any()]  # fmt: skip
    swept = (selection.candidates["setting"] != "").any()
    table = Table(title=f"by {selection.selector}", title_justify="left", box=None)
    for name in ("", "candidate", *(["setting"] if swept else []), "score", *shown):
        table.add_column(name.replace("_", " "), justify="left" if name in ("candidate", "setting") else "right")
    errors = selection.scores.attrs["standard_error"]
    for place, (_, row) in enumerate(selection.candidates.head(SHOWN).iterrows(), 1):
        cells = [row["setting"]] if swept else []
        cells.append("veto" if row["veto"] else "-" if np.isnan(row["score"]) else f"{row['score']:.3f}")
        for name in shown:
            value, error = (float(source.loc[row["candidate"], name]) for source in (selection.scores, errors))  # type: ignore[arg-type]
            cells.append("-" if np.isnan(value) else f"{value:.3g}" + (f"±{error:.2g}" if error == error else ""))
        style = "bold" if row["candidate"] in selection.choice.deploy else "red" if row["veto"] else ""
        table.add_row(str(place), row["candidate"], *cells, style=style)
    if len(selection.candidates) > SHOWN:
        table.caption = f"and {len(selection.candidates) - SHOWN} more in candidates.csv"
    return table


def _print_decision(selection: Selection, console: Console) -> None:
    choice, lines = selection.choice, []
    console.print()
    if choice.abstains:
        target = f"behaviour cloning, {choice.deploy[0]}" if choice.deploy else (
            "behaviour cloning: the pool has none, train one with algo=bc on this dataset")  # fmt: skip
        console.print(f"deploy {target}", style="bold", soft_wrap=True)
        lines.append(f"  the selector abstains: {choice.abstains}")
    elif choice.deploy:
        ties = f" (shares the first place with {choice.tied - 1} more)" if choice.tied > 1 else ""
        console.print(Text.assemble((f"deploy {choice.deploy[0]}", "bold"), ties), soft_wrap=True)
    if choice.top:
        lines.append(f"  top {len(choice.top)}: {', '.join(choice.top)}; ranked by {'; '.join(choice.notes)}")
    lines.append(
        f"  {selection.distinct} of {len(selection.pool)} candidates act differently; if some can be tried, try them "
        f"in this order: {', '.join(selection.to_try) or 'none'}"
    )
    if choice.deploy:
        row = selection.candidates.set_index("candidate").loc[choice.deploy[0]]
        lines.append(
            f"  in Python: act = offrl.runs.Run.open({row['run']!r}).actor(step={row['step']}, member={row['member']})"
        )
    for _, row in selection.chances.iterrows():
        known = [
            f"P(beats {what}) = {row[column]:.2f}"
            for what, column in (("BC", "beats_bc"), ("the logged behaviour", "beats_behaviour"))
            if np.isfinite(row[column])
        ]
        lines.append(f"  if {row['estimate']} is right: {', '.join(known)}")
    if not len(selection.chances):
        lines.append("  how likely it beats BC or the data is not known: no value estimate applies")
    if choice.deploy and not len(selectors.cloning(selection.candidates.set_index("candidate"), selection.scores)):
        lines.append("  no behaviour cloning among the candidates to compare with: train algo=bc, and select again")
    if not np.isnan(selection.agreement):
        warning = ": they contradict each other, trust the order little" if selection.agreement < LOW_AGREEMENT else ""
        lines.append(f"  agreement of the diagnostics: Kendall's W {selection.agreement:.2f}{warning}")
    others = selection.dissent
    if len(others):
        against = others[~others["agrees"]]
        lines.append(f"  {len(others) - len(against)} of {len(others)} other selectors would deploy the same")
        for _, row in against.head(6).iterrows():
            place = row["place_of_choice"]
            rank = f"it ranks the choice {place:.0f} of {row['of']}" if np.isfinite(place) else "the choice has no rank"
            lines.append(f"    {row['selector']} would choose {row['would_choose']}; {rank}")
    costs = diagnostics.seconds_spent(selection.table)
    dearest = ", ".join(f"{name} {costs[name]:.0f}" for name in sorted(costs, key=costs.__getitem__)[-3:][::-1])
    total = sum(costs.values())
    lines.append(f"  {selection.seconds:.0f} s; measuring, now or in earlier calls, took {total:.0f} s: {dearest}, ...")
    console.print("\n".join(lines), soft_wrap=True)


def as_json(selection: Selection) -> dict[str, Any]:
    """Everything that was decided and why; nan becomes null."""
    pool, choice = selection.pool, selection.choice

    def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
        return json.loads(frame.to_json(orient="records", double_precision=12))

    return {
        "dataset": pool.dataset.name,
        "fingerprint": pool.dataset.fingerprint,
        "held_out_episodes": int(pool.held_out.sum()),
        "coverage": None if np.isnan(selection.scores.attrs["coverage"]) else selection.scores.attrs["coverage"],
        "selector": selection.selector,
        "deploy": choice.deploy,
        "abstains": choice.abstains,
        "top": choice.top,
        "notes": choice.notes,
        "chances": records(selection.chances),
        "agreement": None if np.isnan(selection.agreement) else selection.agreement,
        "dissent": records(selection.dissent),
        "distinct": selection.distinct,
        "to_try": selection.to_try,
        "workflow": records(selection.workflow),
        "data_checks": records(selection.checks),
        "candidates": records(selection.candidates),
        "seconds": round(selection.seconds, 1),
        "measuring_seconds": diagnostics.seconds_spent(selection.table),
    }


def draw(selection: Selection, file: Path) -> None:
    """Two pictures: every candidate by value and by support, and where each selector places the choice."""
    with picture(file, 11, 4.8) as figure:
        _draw(figure, selection)


def _draw(figure: Figure, selection: Selection) -> None:
    scores, described = selection.scores, selection.candidates.set_index("candidate")
    eligible = described["veto"].reindex(scores.index) == ""
    value, value_names = selectors.group_rank(scores, selectors.VALUE, eligible)
    support, support_names = selectors.group_rank(scores, selectors.SUPPORT, eligible)
    scatter, bars = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.3, 1]})
    if value is not None and support is not None:
        for i, (algorithm, group) in enumerate(described.groupby("algorithm")):
            names = group.index[eligible[group.index]]
            scatter.scatter(support[names], value[names], s=26, color=f"C{i}", alpha=0.75, label=short(str(algorithm)))
        chosen = [name for name in selection.choice.deploy if eligible[name]]
        scatter.scatter(support[chosen], value[chosen], s=170, facecolors="none", edgecolors="black",
                        linewidths=1.6, label="deployed")  # fmt: skip
        scatter.legend(frameon=False, fontsize=8, loc="best")
    scatter.set_xlabel(f"support rank ({', '.join(support_names)})", fontsize=8)
    scatter.set_ylabel(f"value rank ({', '.join(value_names)})", fontsize=8)
    scatter.set_title("1 is the best of the pool", fontsize=9)
    others = selection.dissent.dropna(subset=["place_of_choice"]) if len(selection.dissent) else selection.dissent
    if len(others):
        share = 1 - (others["place_of_choice"] - 1) / np.maximum(others["of"] - 1, 1)
        bars.barh(others["selector"].map(short), share, color="#1f5fa8")
        bars.invert_yaxis()
        bars.tick_params(axis="y", labelsize=7)
        bars.set_xlim(0, 1)
        bars.set_title("rank of the choice by the other selectors (1: first, 0: last)", fontsize=9)
    figure.suptitle(f"selection on {selection.pool.dataset.name}", fontsize=11, x=0.01, ha="left", fontweight="bold")
    for axes in (scatter, bars):
        axes.spines[["top", "right"]].set_visible(False)


def write(selection: Selection, folder: Path) -> None:
    """candidates.csv, diagnostics.csv, selection.json, selection.png."""
    folder.mkdir(parents=True, exist_ok=True)
    selection.candidates.to_csv(folder / "candidates.csv", index=False)
    dataset, coverage = selection.pool.dataset, selection.scores.attrs["coverage"]
    of_data = {"dataset": dataset.name, "fingerprint": dataset.fingerprint, "diagnostic": "coverage", "value": coverage}
    table = pd.concat([selection.table, pd.DataFrame([of_data])], ignore_index=True)
    table.to_csv(folder / "diagnostics.csv", index=False)
    write_whole(folder / "selection.json", json.dumps(as_json(selection), indent=1))
    draw(selection, folder / "selection.png")
