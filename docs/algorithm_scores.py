"""Write docs/algorithm_scores.md, measured scores next to published ones, from the tables of results/.

python docs/algorithm_scores.py
"""

from pathlib import Path

import pandas as pd

import offrl.algorithm

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PUBLISHED = pd.read_csv(RESULTS / "published" / "scores.csv")
HEADER = """# Measured and published scores

Written by `python docs/algorithm_scores.py` from [`zoo.csv`](../results/measured/zoo.csv), the table
[`small`](../results/tables/small/table.md) and [`scores.csv`](../results/published/scores.csv). Normalised scores of
the last checkpoint.

*50,000 updates*: networks as published; mean over two seeds, each seed's mean of 20 episodes in brackets.
*small*: 20,000 updates of 2x128 networks, one seed, 20 episodes (`python -m offrl.reproduce small`; its page says what
else is scaled down): what a small machine can do for all algorithms. One seed cannot rank scores that are close.
*published*: the lowest and the highest mean that our sources give for the last checkpoint on D4RL's dataset of the same
name. The built-in datasets are similar to D4RL's, but not the same data, and published runs made 1,000,000 updates or
more: compare patterns, not values. An empty cell was not measured here, or is in none of our sources. A changed dataset
has another fingerprint and its own table.
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


def measured_cell(measured: pd.DataFrame, algorithm: str) -> str:
    seeds = measured[measured["algorithm"] == algorithm].groupby(["member", "seed"])["normalized_score"].mean()
    return f"**{seeds.mean():.1f}** ({', '.join(f'{seed:.1f}' for seed in seeds)})" if len(seeds) else ""


def small_cell(small: pd.DataFrame, algorithm: str) -> str:
    scores = small[small["algorithm"] == algorithm]["score"].dropna()
    return f"{scores.mean():.1f}" if len(scores) else ""


def page() -> str:
    measured = pd.read_csv(RESULTS / "measured" / "zoo.csv")
    small = pd.read_csv(RESULTS / "tables" / "small" / "scores.csv")
    small = small[small["kind"] == "last"]
    of_data = ["dataset", "fingerprint"]
    lines = [HEADER]
    datasets = pd.concat([measured[of_data], small[of_data]]).drop_duplicates()
    for dataset, fingerprint in datasets.itertuples(index=False):
        lines.append(f"\n## `{dataset}` (fingerprint {fingerprint})\n")
        lines += ["| algorithm | 50,000 updates | small | published |", "|---|---|---|---|"]
        parts = [rows[rows["fingerprint"] == fingerprint] for rows in (measured, small)]
        for algorithm in offrl.algorithm.names():
            cells = (measured_cell(parts[0], algorithm), small_cell(parts[1], algorithm),
                     published_range(PUBLISHED, algorithm, str(dataset)))  # fmt: skip
            lines.append(f"| `{algorithm}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "algorithm_scores.md").write_text(page())
