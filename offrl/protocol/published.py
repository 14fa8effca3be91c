"""Our scores of a table's runs, compared with published scores of the same kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from offrl.protocol import scores
from offrl.protocol.reproduce import Plan

COLUMNS = [
    "dataset", "row", "algorithm", "setting", "kind", "ours", "low", "high", "method", "members", "data",
    "published_low", "published_high", "sources", "difference", "disagrees", "reason",
]  # fmt: skip
NOTHING = (np.nan, np.nan, 0)


def collect(plan: Plan, reasons: dict[tuple[str, str], str]) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """(tidy scores, compared with the published ones, messages about what is not comparable) of the table's runs."""
    runs = [run for run in (plan.run(*cell) for cell in plan.cells()) if run is not None]
    folders = dict.fromkeys(run.path.parent / "selection" for run in runs)
    table = scores.scores(runs, [folder for folder in folders if folder.is_dir()]) if runs else pd.DataFrame()
    messages = scores.groups(table)[1] if runs else []
    return table, beside_published(plan, table, reasons), messages


def beside_published(plan: Plan, table: pd.DataFrame, reasons: dict[tuple[str, str], str]) -> pd.DataFrame:
    """One row per dataset, algorithm, setting and kind of score: ours with its interval, and the published range.

    Columns: dataset, row (the dataset and what tells it from others of that name that do not compare), algorithm,
    setting, kind, ours, low, high, method, members, data, published_low, published_high (over the sources that report
    this kind; over those that do not say which where none does), sources, difference (to the nearer end; 0 within),
    disagrees (the published range lies outside our interval over members), reason.
    """
    rows: list[dict[str, Any]] = []
    parts, _ = scores.groups(table) if len(table) else ([], [])
    for part, label in zip(parts, scores.labels(parts), strict=True):
        dataset, data = part["dataset"].iloc[0], part["data"].iloc[0]
        normalised = pd.notna(part["reference_expert"].iloc[0])  # a return does not compare with a normalised score
        for _, ours in scores.summarize(part).iterrows():
            low, high, sources = published_range(dataset, ours["algorithm"], ours["kind"]) if normalised else NOTHING
            difference = ours["estimate"] - np.clip(ours["estimate"], low, high) if sources else np.nan
            sure = ours["method"] != "episodes"
            rows.append(
                {
                    "dataset": dataset,
                    "row": label,
                    "algorithm": ours["algorithm"],
                    "setting": ours["setting"],
                    "kind": ours["kind"],
                    "ours": ours["estimate"],
                    "low": ours["low"],
                    "high": ours["high"],
                    "method": ours["method"],
                    "members": ours["members"],
                    "data": data,
                    "published_low": low,
                    "published_high": high,
                    "sources": sources,
                    "difference": difference,
                    "disagrees": bool(sources and sure and (high < ours["low"] or low > ours["high"])),
                    "reason": ours["reason"],
                }
            )
    for (dataset, algorithm), reason in reasons.items():
        name = Path(algorithm).stem
        mine = [row for row in rows if row["dataset"] == dataset and row["algorithm"] == name]
        for row in mine:  # a run that is there but came to nothing: why says more than that
            row["reason"] = reason if np.isnan(row["ours"]) else row["reason"]
        if not mine:
            low, high, sources = published_range(dataset, name, "last")
            row = {"dataset": dataset, "row": dataset, "algorithm": name, "setting": "", "kind": "last", "members": 0,
                   "published_low": low, "published_high": high, "sources": sources, "disagrees": False,
                   "reason": reason}  # fmt: skip
            rows.append(row)
    comparison = pd.DataFrame(rows, columns=COLUMNS)
    place = {cell: i for i, cell in enumerate((d, Path(a).stem) for d, a in plan.cells())}
    order = [place.get(cell, len(place)) for cell in zip(comparison["dataset"], comparison["algorithm"], strict=True)]
    return comparison.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


def published_range(dataset: str, algorithm: str, kind: str) -> tuple[float, float, int]:
    """(lowest, highest, number) of the published scores of that kind; of those that do not say where none does."""
    found = scores.published_scores(dataset, algorithm)
    same = found[found["protocol"] == kind]
    used = same if len(same) else found[found["protocol"] == "other"]
    if kind == "selected" or not len(used):  # nobody has published a score that was selected offline
        return NOTHING
    return used["score"].min(), used["score"].max(), len(used)
