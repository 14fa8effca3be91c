"""Sections of the report about selections: each with its candidates and scoreboards, and the workflow's verdicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from offrl import statistics
from offrl.reporting import pictures
from offrl.reporting.collect import Material, Selected
from offrl.reporting.page import (
    Cell,
    Column,
    Html,
    decimal,
    figure,
    grid,
    joined,
    notes,
    number,
    significant,
    table,
    tag,
)
from offrl.reporting.pictures import Curve, Save
from offrl.selection import diagnostics

MAX_CURVES = 12
"""Workflow pictures; the table has all verdicts."""


def selections_section(material: Material, save: Save) -> Html:
    blocks = [_selection(material, selected, place, save) for place, selected in enumerate(material.selections)]
    return joined(blocks)


def _selection(material: Material, selected: Selected, place: int, save: Save) -> Html:
    answer, candidates = selected.answer, selected.candidates
    measured = candidates.set_index("candidate")["measured"].astype(float)
    best = measured.max()  # nan where nothing was scored
    deploy = (answer.get("deploy") or [None])[0]
    lines = [tag("p", "Deploy ", tag("strong", deploy)) if deploy else tag("p", tag("strong", "Behaviour cloning"), ", "
             "which is not in the pool: train it with ", tag("code", "algo=bc"))]  # fmt: skip
    if answer.get("abstains"):
        lines.append(tag("p", f"The selector abstains and falls back to behaviour cloning: {answer['abstains']}"))
    for row in answer.get("chances") or []:
        known = [f"P(beats {what}) = {row[key]:.2f}" for key, what in (("beats_bc", "BC"), ("beats_behaviour",
                 "the logged behaviour")) if row.get(key) is not None]  # fmt: skip
        lines.append(tag("p", f"If {row['estimate']} is right: {', '.join(known)}", class_="muted"))
    if deploy in measured.index and np.isfinite(measured[deploy]):
        found, highest, regret = (decimal(value, selected.digits) for value in
                                  (measured[deploy], best, best - measured[deploy]))  # fmt: skip
        text = f"Measured: {found}; the best of the pool {highest}, regret {regret}"
        lines.append(tag("p", text, class_="muted"))
    vetoed = int((candidates["veto"] != "").sum()) if "veto" in candidates else 0
    w = answer.get("agreement")
    agreement = f"Kendall’s W {w:.2f}" if w is not None else "agreement not known"
    about = (f"{len(candidates)} candidates, {vetoed} vetoed; selector {answer.get('selector', 'unknown')}; "
             f"{agreement}; {answer.get('held_out_episodes', 0)} episodes held out")  # fmt: skip
    figures = []
    scored = candidates[np.isfinite(measured.to_numpy()) & candidates["score"].notna()]
    if len(scored) > 1:
        groups = {
            str(name): (material.tone(name), group["score"].to_numpy(float), group["measured"].to_numpy(float))
            for name, group in scored.groupby("algorithm", sort=False)
        }
        chosen = scored[scored["candidate"] == deploy]
        point = (float(chosen["score"].iloc[0]), float(chosen["measured"].iloc[0])) if len(chosen) else None
        drawn = pictures.pool(groups, point, best, ("selector’s score", "measured score"))
        figures.append(
            figure(
                save(f"pool-{place}", drawn), "Every candidate that was scored.", "selector’s score and measured score"
            )
        )
    scoreboard, correlations = _diagnostics(selected, measured, best)
    if correlations:
        rows = [(name, 0, value, np.nan, np.nan) for name, value in correlations]
        drawn = pictures.intervals(rows, "rank correlation with the measured score", 0.0)
        figures.append(figure(save(f"diagnostics-{place}", drawn), "All candidates of the pool.", "diagnostics"))
    checks = [f"{check['check']}: {check['message']}" for check in answer.get("data_checks") or []
              if check.get("level") != "ok"]  # fmt: skip
    return joined([
        tag("h3", answer["dataset"]),
        tag("p", about, "; ", tag("code", selected.folder), class_="muted"),
        tag("div", *lines, class_="verdict"),
        notes(checks),
        grid(figures) if figures else "",
        tag("h3", "Candidates"), _candidates(material, selected, deploy),
        joined([tag("h3", "Scoreboard of selectors"), _dissent(selected, measured, best)])
        if answer.get("dissent") else "",
        joined([tag("h3", "Scoreboard of diagnostics"), scoreboard]) if scoreboard else "",
    ])  # fmt: skip


def _candidates(material: Material, selected: Selected, deploy: str | None) -> Html:
    candidates = selected.candidates
    settings = candidates["setting"].astype(str).str.len().any()
    columns = [
        Column("place", True), Column("candidate"), Column("algorithm"), *([Column("setting")] if settings else []),
        Column("step", True), Column("score", True, "the selector’s: higher is better"),
        Column("measured", True, "mean of its episodes, which the selector has not seen"), Column("veto"),
    ]  # fmt: skip
    rows = []
    for place, (_, row) in enumerate(candidates.iterrows(), 1):
        rows.append([
            Cell(place, float(place)), row["candidate"], row["algorithm"], *([row["setting"]] if settings else []),
            Cell(f"{row['step']:,}", float(row["step"])), number(row["score"], digits=3),
            number(row["measured"], digits=selected.digits),
            Cell(row.get("veto", ""), kind="bad"),
        ])  # fmt: skip
    return table(columns, rows, [i for i, name in enumerate(candidates["candidate"]) if name == deploy])


def _dissent(selected: Selected, measured: pd.Series, best: float) -> Html:
    answer = selected.answer
    columns = [
        Column("selector"), Column("would choose"), Column("algorithm"), Column("deploys the same"),
        Column("rank of the choice", True, "place of the deployed policy in this selector’s order"),
        Column("measured", True), Column("regret", True, "best of the pool minus this choice"),
    ]  # fmt: skip
    own = {"selector": answer.get("selector", ""), "would_choose": (answer.get("top") or [""])[0], "agrees": True,
           "abstains": bool(answer.get("abstains")), "place_of_choice": None}  # fmt: skip
    described = selected.candidates.set_index("candidate")["algorithm"]
    rows = []
    for row in [own, *answer["dissent"]]:
        choice = row["would_choose"]
        score = measured.get(choice, np.nan)
        place = row.get("place_of_choice")
        rows.append([
            Cell(row["selector"], note="the one that chose" if row is own else ""),
            Cell(choice, note="but abstains" if row.get("abstains") else ""), described.get(choice, ""),
            "yes" if row.get("agrees") else "no",
            Cell("–", None, kind="muted") if place is None else Cell(f"{place:.0f} of {row['of']}", float(place)),
            number(score, digits=selected.digits), number(best - score, digits=selected.digits),
        ])  # fmt: skip
    return table(columns, rows, [0])


def _diagnostics(selected: Selected, measured: pd.Series, best: float) -> tuple[Html, list[tuple[str, float]]]:
    """The scoreboard, and the rank correlations of those that have one, highest first."""
    known = diagnostics.diagnostics()
    rows, correlations = [], []
    for name, group in selected.diagnostics.groupby("diagnostic", sort=False):
        better = known[name].better if name in known else "flag"  # type: ignore[index]
        values = group.set_index("candidate")["value"].astype(float)
        usable = values.dropna()
        correlation, regret = np.nan, np.nan
        truth = measured.reindex(values.index)
        if better != "flag" and truth.notna().sum() > 2 and len(usable) > 2:
            signed = values * (-1 if better == "low" else 1)
            both = truth.notna()
            correlation = statistics.spearman(signed[both], truth[both])
            regret = best - statistics.expected_best_of_top(truth[both], signed[both], 1)
            if np.isfinite(correlation):
                correlations.append((str(name), correlation))
        reasons = [reason for reason in group["reason"].unique() if reason] if "reason" in group else []
        seconds = float(group["seconds"].sum()) if "seconds" in group else np.nan
        meaning = known[name].summary if name in known else ""  # type: ignore[index]
        rows.append([
            Cell(name, note=meaning), better if better != "flag" else "–",
            Cell(f"{len(usable)} of {len(values)}", float(len(usable)), "; ".join(reasons[:2])),
            Cell(significant(usable.median()), usable.median()) if len(usable) else number(None),
            number(correlation, digits=2), number(regret, digits=selected.digits), number(seconds),
        ])  # fmt: skip
    columns = [
        Column("diagnostic"), Column("better"), Column("applies to", True, "candidates that it has a value for"),
        Column("median", True), Column("rank correlation", True, "Spearman, with the measured score, better first"),
        Column("regret@1", True, "best of the pool minus the candidate that it ranks first"), Column("seconds", True),
    ]  # fmt: skip
    return table(columns, rows) if rows else Html(""), sorted(correlations, key=lambda pair: -pair[1])


def workflow_section(material: Material, save: Save) -> Html:
    rows, figures, drawn = [], [], 0
    for place, selected in enumerate(material.selections):
        verdicts = selected.answer.get("workflow") or []
        curves = selected.diagnostics[selected.diagnostics["diagnostic"].isin(["dataset_q", "dataset_q_validation"])]
        for row in verdicts:
            run, name = Path(row["run"]).name, f"{row['algorithm']}, seed {row['seed']}"
            kind = {"well-fitted": "good", "overfitted": "bad", "underfitted": "bad"}.get(row["verdict"], "muted")
            rows.append([
                selected.answer["dataset"], Cell(name, note=f"{run}, member {row['member']}"),
                Cell(row["verdict"], kind=kind), Cell(f"{row['step']:,}", float(row["step"])), row["advice"],
                row.get("reason") or "",
            ])  # fmt: skip
        for row in sorted(verdicts, key=lambda verdict: verdict["verdict"] == "unknown"):
            mine = curves[(curves["run"] == row["run"]) & (curves["member"] == row["member"])]
            parts = {kind: _curve(mine[mine["diagnostic"] == kind]) for kind in ("dataset_q", "dataset_q_validation")}
            training = parts["dataset_q"]
            if training is None or drawn == MAX_CURVES:
                continue
            peak = row.get("peak_step")
            claims = row["verdict"] != "unknown"
            picture = pictures.workflow(
                training,
                parts["dataset_q_validation"],
                None if peak is None else int(peak),
                int(row["step"]),
                material.tone(row["algorithm"]),
            )
            title = f"{row['algorithm']}, seed {row['seed']}: {row['verdict'] if claims else 'no verdict'}"
            caption = row.get("reason") or "" if claims else ""
            figures.append(figure(save(f"workflow-{place}-{drawn}", picture), caption, title))
            drawn += 1
    if not rows:
        return Html("")
    columns = [
        Column("dataset"), Column("member"), Column("verdict"), Column("take step", True), Column("what to change"),
        Column("why"),
    ]  # fmt: skip
    text = (
        "What the curves say of each member. Conservative critics (CQL, COMBO, ReBRAC with a critic penalty) go by "
        "their average Q over the data, which the pictures show (Kumar et al. 2021); other critics, and clones, by "
        "their error on held-out rows. Where neither rule holds nothing is claimed."
    )
    return joined([tag("p", text), table(columns, rows), grid(figures) if figures else ""])


def _curve(rows: pd.DataFrame) -> Curve | None:
    rows = rows.dropna(subset="value").sort_values("step")
    return Curve(rows["step"].to_numpy(float), rows["value"].to_numpy(float)) if len(rows) > 1 else None
