"""Compare a new algorithm with those of the zoo under one protocol: `python -m offrl.compare algo=path/to/new.py`.

Everything that is not there yet is trained and scored, as `offrl.reproduce` does, and the new one becomes a column of
the table. Then, over the datasets: the probability that a run of the new algorithm beats one of each other,
performance profiles, and p-values with Holm's correction for having made several comparisons.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from offrl import command_line, statistics
from offrl.errors import UserError, run_command
from offrl.protocol import reproduce, scores
from offrl.protocol.reproduce import Plan

COLUMNS = ["against", "datasets", "difference", "wins", "probability", "low", "high", "p", "p_holm", "test", "reason"]
FEW = 6
"""Datasets below which the p-value is of the members within each dataset, and not of the datasets."""


class Sample(NamedTuple):
    """The scores [members] of one algorithm on one group of comparable runs."""

    values: np.ndarray
    normalised: bool


def samples(table: pd.DataFrame, algorithm: str) -> dict[str, Sample]:
    """Scores of an algorithm's last checkpoints on each group of comparable runs; groups without any are left out.

    Raises:
        UserError: the algorithm is there in several settings, which must not be taken for one.
    """
    found = {}
    parts, _ = scores.groups(table)
    for part, label in zip(parts, scores.labels(parts), strict=True):
        mine = part[(part["algorithm"] == algorithm) & (part["kind"] == "last")].dropna(subset="score")
        if mine["setting"].nunique() > 1:
            raise UserError(
                f"{label}: {algorithm} is there in several settings ({'; '.join(mine['setting'].unique())})"
            )
        if len(mine):
            found[label] = Sample(mine["score"].to_numpy(), bool(pd.notna(part["reference_expert"].iloc[0])))
    return found


def compare(table: pd.DataFrame, new: str, against: list[str]) -> pd.DataFrame:
    """One row per opponent: datasets, difference (mean over datasets of the difference of means, in points), wins,
    probability (that a run of the new one is above), low, high, p, p_holm, test, reason.

    The p-value: with FEW or more datasets the exact sign-flip test of the differences per dataset; with fewer, a
    permutation test of the members within each dataset, which says something of these datasets alone. Datasets whose
    scores are returns, for want of references, are left out beside normalised ones: their points are others.
    """
    ours = samples(table, new)
    rows = []
    for other in against:
        theirs = samples(table, other)
        shared = [key for key in ours if key in theirs]
        reasons = []
        if len(shared) > 1 and (returns := [key for key in shared if not ours[key].normalised]):
            shared = [key for key in shared if key not in returns]
            reasons.append(f"left out, for returns without references have no common scale: {', '.join(returns)}")
        row: dict[str, object] = {"against": other, "datasets": len(shared)}
        if not shared:
            rows.append({**row, "reason": "; ".join(reasons) or "no dataset has a score of both"})
            continue
        x, y = [ours[key].values for key in shared], [theirs[key].values for key in shared]
        differences = np.array([a.mean() - b.mean() for a, b in zip(x, y, strict=True)])
        interval = statistics.improvement_interval(x, y)
        if len(shared) >= FEW:
            p, test = statistics.sign_flip_p(differences), "sign flip over datasets"
        else:
            p, test = statistics.permutation_p(x, y), "permutation of members"
        reasons.append(interval.warning)
        rows.append({**row, "difference": differences.mean(), "wins": int((differences > 0).sum()),
                     "probability": interval.estimate, "low": interval.low, "high": interval.high, "p": p, "test": test,
                     "reason": "; ".join(filter(None, reasons))})  # fmt: skip
    result = pd.DataFrame(rows).reindex(columns=COLUMNS)
    result["p_holm"] = statistics.holm(result["p"].to_numpy(float))
    return result


def draw(table: pd.DataFrame, algorithms: list[str], comparison: pd.DataFrame, file: Path) -> None:
    """Performance profiles of all, and the probabilities of improvement of the new one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    profile, bars = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.3, 1]})
    found = {name: sample for name in algorithms if (sample := samples(table, name))}
    common = [key for key in next(iter(found.values()), {}) if all(key in sample for sample in found.values())]
    if len(common) > 1:
        common = [key for key in common if all(sample[key].normalised for sample in found.values())]
    if common:
        values = {name: [sample[key].values for key in common] for name, sample in found.items()}
        every = np.concatenate([value for sample in values.values() for value in sample])
        thresholds = np.linspace(min(every.min(), 0), every.max(), 200)
        for i, (name, scored) in enumerate(values.items()):
            share, low, high = statistics.profile_band(scored, thresholds)
            profile.plot(thresholds, share, color=f"C{i}", label=name, linewidth=2 if i == 0 else 1.2)
            profile.fill_between(thresholds, low, high, color=f"C{i}", alpha=0.15, linewidth=0)
        profile.legend(frameon=False, fontsize=8)
    profile.set_title(f"{len(common)} datasets on which all have a score", fontsize=10)
    profile.set_xlabel("score of the last checkpoint")
    profile.set_ylabel("share of runs above it")
    known = comparison.dropna(subset="probability")
    bars.axvline(0.5, color="#666666", linewidth=1, linestyle=":")
    for place, (_, row) in enumerate(known.iterrows()):
        if np.isfinite(row["low"]):
            bars.plot([row["low"], row["high"]], [place, place], color="#1f5fa8")
        bars.plot(row["probability"], place, "o", color="#1f5fa8")
    bars.set_yticks(range(len(known)), known["against"])
    bars.invert_yaxis()
    bars.set_xlim(-0.02, 1.02)
    bars.set_title(f"P({algorithms[0]} above)", fontsize=10)
    for axes in (profile, bars):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def show(new: str, comparison: pd.DataFrame, console: Console) -> None:
    table = Table(title=f"{new} against the zoo, last checkpoints", title_justify="left", box=None)
    for name in ("against", "datasets", "difference", f"P({new} above)", "p (Holm)", "test"):
        table.add_column(name, justify="left" if name in ("against", "test") else "right")
    for _, row in comparison.iterrows():
        if np.isnan(row["probability"]):
            table.add_row(row["against"], str(row["datasets"]), "-", "-", "-", row["reason"])
            continue
        interval = f" [{row['low']:.2f}, {row['high']:.2f}]" if np.isfinite(row["low"]) else ""
        probability, p = f"{row['probability']:.2f}{interval}", f"{row['p']:.3g} ({row['p_holm']:.3g})"
        table.add_row(row["against"], str(row["datasets"]), f"{row['difference']:+.1f}", probability, p, row["test"])
    console.print(table)


AGAINST = ("bc", "td3_bc", "iql", "rebrac")
OPTIONS = {
    "algo": "the new algorithm: a .py file, or a name",
    "against": f"what to compare it with, with commas; default: {','.join(AGAINST)}",
    **{name: text for name, text in reproduce.OPTIONS.items() if name not in ("algorithms", "dry_run")},
}


def main() -> None:
    def command() -> None:
        parsed = command_line.parse(
            sys.argv[1:],
            "compare",
            "Train and score a new algorithm and others under one protocol, and say how sure the difference is.\n"
            "TABLE is one of offrl.reproduce's tables; default: builtin.",
            OPTIONS,
            "  python -m offrl.compare algo=path/to/new.py against=iql,td3_bc protocol=quick\n"
            "  python -m offrl.compare d4rl-mujoco algo=rebrac against=iql seeds=8",
            "TABLE",
            "the name of a table",
            optional=True,
        )
        if "algo" not in parsed.options:
            raise UserError("no algo given; name the algorithm to compare: algo=path/to/new.py")
        new = parsed.options["algo"]
        others = [name for name in AGAINST if name != new]
        if "against" in parsed.options:
            others = parsed.options["against"].split(",")
        if new in others:
            raise UserError(f"against={','.join(others)}: holds algo={new} itself")
        plan: Plan = reproduce.make_plan(parsed._replace(paths=parsed.paths or [Path("builtin")]), [new, *others])
        console = command_line.page(stderr=parsed.json)
        reasons = reproduce.run_missing(plan, parsed.options.get("launcher"), console)
        reproduce.finish(plan, reasons, console)
        table, _, _ = reproduce.collect(plan, reasons)
        if table.empty or table[table["kind"] == "last"]["score"].isna().all():
            raise UserError("nothing to compare: no run has a score; the reasons stand above")
        names = [Path(name).stem for name in [new, *others]]
        comparison = compare(table, names[0], names[1:])
        show(names[0], comparison, console)
        comparison.to_csv(plan.folder / f"compare-{names[0]}.csv", index=False)
        draw(table, names, comparison, plan.folder / f"compare-{names[0]}.png")
        console.print(f"written to {plan.folder}: compare-{names[0]}.csv, compare-{names[0]}.png", highlight=False,
                      soft_wrap=True)  # fmt: skip
        if parsed.json:
            print(json.dumps(json.loads(comparison.to_json(orient="records")), indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
