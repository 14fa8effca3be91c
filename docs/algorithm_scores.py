"""Write docs/algorithm_scores.md: what was measured here beside what was published, from the two tables of results/.

python docs/algorithm_scores.py
"""

from pathlib import Path

import pandas as pd

import offrl.algorithm

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PUBLISHED = pd.read_csv(RESULTS / "published" / "scores.csv")
HEADER = """# Measured and published scores

Written by `python docs/algorithm_scores.py` from [`zoo.csv`](../results/measured/zoo.csv) and
[`scores.csv`](../results/published/scores.csv). Normalised scores of the last checkpoint.

*measured*: mean over seeds, each seed's mean of its episodes in brackets.
*published*: the lowest and the highest mean that our sources give for the last checkpoint on D4RL's dataset of the same
name. The built-in datasets are like D4RL's, not the same data, and the published runs made 1,000,000 updates or more:
the two columns do not compare, they stand here for the pattern. An empty cell is a score that nobody has measured or
that none of our sources has. A changed dataset has another fingerprint, and a table of its own.
"""


def published_range(published: pd.DataFrame, algorithm: str, dataset: str) -> str:
    source, _, rest = dataset.partition(":")
    name = f"{rest.replace('/', '-')}-v2" if source == "builtin" else rest
    rows = published[
        (published["name"] == algorithm) & (published["dataset"] == name) & (published["protocol"] == "last")
    ]
    if rows.empty:
        return ""
    low, high = rows["score"].min(), rows["score"].max()
    return f"{low:.1f}" if round(low, 1) == round(high, 1) else f"{low:.1f} to {high:.1f}"


def measured_rows(measured: pd.DataFrame, algorithm: str, dataset: str) -> list[str]:
    """One line for each number of updates, or one with an empty cell."""
    compared = published_range(PUBLISHED, algorithm, dataset)
    lines = []
    for step, rows in measured[measured["algorithm"] == algorithm].groupby("step"):
        seeds = rows.groupby(["member", "seed"])["normalized_score"].mean()
        score = f"**{seeds.mean():.1f}** ({', '.join(f'{seed:.1f}' for seed in seeds)})"
        lines.append(f"| `{algorithm}` | {step:,} | {score} | {compared} |")
    return lines or [f"| `{algorithm}` |  |  | {compared} |"]


def page() -> str:
    measured = pd.read_csv(RESULTS / "measured" / "zoo.csv")
    lines = [HEADER]
    for (dataset, fingerprint), rows in measured.groupby(["dataset", "fingerprint"], sort=False):
        lines += [f"\n## `{dataset}` (fingerprint {fingerprint})\n", "| algorithm | updates | measured | published |"]
        lines.append("|---|---|---|---|")
        for algorithm in offrl.algorithm.names():
            lines += measured_rows(rows, algorithm, str(dataset))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "algorithm_scores.md").write_text(page())
