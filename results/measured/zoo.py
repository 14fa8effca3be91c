"""Collect evaluated runs into zoo.csv (every episode of every last checkpoint) and zoo.md (the table).

python results/measured/zoo.py RUN...
"""

import sys
from pathlib import Path

import pandas as pd

from offrl.data.dataset import Reference
from offrl.playing.returns import read_returns
from offrl.runs.run import Run

HERE = Path(__file__).parent


def last_checkpoint_rows(run: Run) -> pd.DataFrame:
    rows = read_returns(run)
    last = [
        rows[(rows["member"] == m["member"]) & (rows["step"] == run.last_checkpoint(m["member"]))] for m in run.members
    ]
    return pd.concat(last)


def data_score(run: Run, reference: Reference | None) -> str:
    mean = run.info["dataset"]["returns"]["mean"]
    return f"{mean:,.0f}" if reference is None else f"{reference.normalise(mean):.1f}"


def main() -> None:
    runs = [Run.open(path) for path in sys.argv[1:]]
    rows = pd.concat([last_checkpoint_rows(run) for run in runs], ignore_index=True)
    rows.to_csv(HERE / "zoo.csv", index=False, float_format="%.6g")
    per_member = (
        rows.groupby(["dataset", "algorithm", "member"])["normalized_score"].agg(["mean", "size"]).reset_index()
    )
    algorithms = ["bc", "td3_bc", "iql"]
    lines = [
        "| dataset | data | " + " | ".join(algorithms) + " |",
        "|---|---|" + "---|" * len(algorithms),
    ]
    for dataset, group in per_member.groupby("dataset", sort=False):
        run = next(run for run in runs if run.info["dataset"]["name"] == dataset)
        row = rows[rows["dataset"] == dataset].iloc[0]
        reference = Reference(row["reference_random"], row["reference_expert"], "")
        cells = []
        for algorithm in algorithms:
            found = group[group["algorithm"] == algorithm]
            if found.empty:
                cells.append("not run")
                continue
            seeds = ", ".join(f"{mean:.1f}" for mean in found["mean"])
            cells.append(f"**{found['mean'].mean():.1f}** ({seeds})")
        lines.append(f"| `{dataset}` | {data_score(run, reference)} | {' | '.join(cells)} |")
    (HERE / "zoo.md").write_text(
        "Normalised score of the **last** checkpoint after 50,000 updates: mean of two seeds (each seed's mean of 20 "
        "episodes). *data*: mean return of the dataset's episodes.\n\n" + "\n".join(lines) + "\n\nMade by "
        "`bash results/measured/zoo.sh RUNS_DIR`; every episode is in `zoo.csv`.\n"
    )
    print((HERE / "zoo.md").read_text())


if __name__ == "__main__":
    main()
