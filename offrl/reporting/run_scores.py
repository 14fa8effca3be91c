"""The scores of one run and the returns of its data: on the terminal, as a picture and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from offrl.playing.evaluation import plan_checkpoints
from offrl.playing.returns import Request, read_returns, run_reference
from offrl.protocol.run_scores import policy_scores, population_scores
from offrl.reporting.console import terminal
from offrl.reporting.run_picture import draw_run
from offrl.runs.run import Run

MAX_POLICY_ROWS = 24
"""Of the printed table; if there are more, it has only the means over members."""


def summarize(run_path: str | Path, rows: pd.DataFrame, console: Console | None = None) -> Path:
    """Print and draw the scores of a run and the returns of its data.

    Args:
        rows: what `evaluate_run` returned. The picture's learning curve has every checkpoint that was ever scored on
            the same episodes.

    Returns:
        The picture, RUN/summary.png.
    """
    run = Run.open(run_path)
    console = console or terminal()
    print_scores(run, rows, console)
    env, episodes, seed = rows["env"].iloc[0], rows["episode"].max() + 1, rows["reset_seed"].min()
    everything = plan_checkpoints(run, "all")
    curve = Request(env, episodes, seed, everything).rows(read_returns(run))
    complete = curve.groupby(["step", "member"])["episode"].transform("size") == episodes
    picture = run.path / "summary.png"
    draw_run(run.info, curve[complete], run_reference(run, env), picture)
    console.print(f"picture: {picture}", soft_wrap=True)
    return picture


def print_scores(run: Run, rows: pd.DataFrame, console: Console) -> None:
    """The table of a run's scores: every policy where they are few, means over members where they are many."""
    dataset, env = run.info["dataset"], rows["env"].iloc[0]
    reference = run_reference(run, env)
    episodes, first_seed = rows["episode"].max() + 1, rows["reset_seed"].min()
    last = not rows.drop_duplicates(["step", "member"])["member"].duplicated().any()
    policies, means = policy_scores(rows), population_scores(rows, last)
    has_success = rows["success"].notna().any()

    table = Table(title=f"{run.info['algorithm']['name']} on {dataset['name']}", title_justify="left", box=None)
    table.add_column("step", justify="right")
    table.add_column("member")
    for name in ["return", *(["normalised"] if reference else []), "length", *(["success"] if has_success else [])]:
        table.add_column(name, justify="right")

    def add(label: str, score: pd.Series, style: str) -> None:
        cells = [_plus_minus(score["return"], score["return_standard_error"])]
        if reference:
            error = score["normalized_score_standard_error"]
            cells.append(f"{score['normalized_score']:.1f}" + (f" ± {error:.1f}" if np.isfinite(error) else ""))
        cells.append(f"{score['length']:.0f}")
        if has_success:
            cells.append(f"{100 * score['success_rate']:.0f} %")
        table.add_row(f"{score['step']:,.0f}", label, *cells, style=style)

    many = len(run.members) > 1
    for _, mean in means.iterrows():
        if len(policies) <= MAX_POLICY_ROWS or not many:
            for _, score in policies.iterrows():
                if last or score["step"] == mean["step"]:
                    member = run.members[int(score["member"])]
                    swept = "".join(f" {name}={value}" for name, value in member["values"].items())
                    add(f"{member['member']} (seed {member['seed']}{swept})", score, "")
        if mean["members"] > 1:
            normalized = f"{mean['normalized_score_member_deviation']:.1f}"
            deviation = normalized if reference else _number(mean["return_member_deviation"], like=mean["return"])
            add(f"mean of {mean['members']:.0f} (sd {deviation})", mean, "bold")
    console.print(table)

    returns = dataset["returns"]
    data = [f"{name} {_number(returns[key])}" + (f" ({reference.normalise(returns[key]):.1f})" if reference else "")
            for name, key in (("mean", "mean"), ("best", "max"))]  # fmt: skip
    lines = [
        f"{env}: every policy played the same {episodes} episodes (reset seeds {first_seed} to "
        f"{first_seed + episodes - 1}); "
        f"± standard error over episodes"
        + (f"; sd of the members' {'normalised scores' if reference else 'returns'}" if many else ""),
        f"data: {dataset['episodes']} episodes, return {', '.join(data)}",
        f"normalised: 0 is {_number(reference.random)} and 100 is {_number(reference.expert)} ({reference.source})"
        if reference
        else "no reference returns are known for this environment and data: nothing is normalised",
    ]
    if run.interacted:
        lines.append(f"not an offline run: its policies have {run.interacted}")
    if (broken := rows["return"].isna().sum()) > 0:
        lines.append(f"{broken} episodes ended because the policy's action was not finite: their returns are nan")
    console.print("\n".join(lines), soft_wrap=True)


def _number(value: float, like: float | None = None) -> str:
    """With as many decimals as a number of the size of `like` needs."""
    size = abs(value if like is None else like)
    return f"{value:,.{0 if size >= 1000 else 1 if size >= 10 else 3}f}"


def _plus_minus(mean: float, error: float) -> str:
    return f"{_number(mean)} ± {_number(error, like=mean)}" if np.isfinite(error) else _number(mean)


def as_json(run: Run, rows: pd.DataFrame, picture: Path) -> dict[str, Any]:
    """What `--json` prints for one run. nan becomes null."""
    dataset, env = run.info["dataset"], rows["env"].iloc[0]
    reference = run_reference(run, env)
    last = not rows.drop_duplicates(["step", "member"])["member"].duplicated().any()

    def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
        return json.loads(frame.to_json(orient="records", double_precision=15))

    return {
        "run": str(run.path),
        "algorithm": run.info["algorithm"]["name"],
        "dataset": dataset["name"],
        "fingerprint": dataset["fingerprint"],
        "env": env,
        "reset_seeds": sorted(int(seed) for seed in rows["reset_seed"].unique()),
        "data_returns": dataset["returns"],
        "reference": {"random": reference.random, "expert": reference.expert, "source": reference.source}
        if reference
        else None,
        "policies": records(policy_scores(rows)),
        "means": records(population_scores(rows, last)),
        "table": str(run.path / "oracle" / "returns.csv"),
        "picture": str(picture),
    }
