"""Names that rich or matplotlib would read as markup, mathematics or a hidden label are shown as they are written."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_runs import make_run

from offrl.data.dataset import Reference
from offrl.protocol import published, scores
from offrl.protocol.compare import compare
from offrl.protocol.reproduce import Plan
from offrl.reporting import (
    comparison,
    data_card,
    dynamics,
    published_table,
    run_picture,
    run_scores,
    selection,
    selection_benchmark,
    selection_splits,
)
from offrl.reporting.canvas import picture, short
from offrl.reporting.console import terminal
from offrl.selection.benchmark import PRIMARY
from offrl.selection.splits import Configurations

NAME = r"_[red]$\frac{$[/] :smile:"
"""Mathematics that matplotlib refuses to draw; markup, and an emoji; and legends leave out what begins with `_`."""
DATASET = f"file:{NAME}.npz"
EACH = {0: {10: [1.0, 2.0], 30: [3.0, 4.0]}, 1: {10: [2.0, 2.0], 30: [5.0, 6.0]}}


@pytest.fixture
def shown(capsys):
    """What stands on the terminal, its white space aside: tables break long names."""
    return lambda: "".join(capsys.readouterr().out.split())


WRITTEN = "".join(NAME.split())


def runs_of(folder, **options):
    names = {"new": NAME, "old": "bc"}
    return [make_run(folder / key, EACH, name, DATASET, **options) for key, name in names.items()]


def test_a_run_and_its_scores(tmp_path, shown):
    run = make_run(tmp_path / "run", EACH, NAME, DATASET, env="Hopper[red]$\\frac{$[/]-v5")
    returns = pd.read_csv(run.path / "oracle" / "returns.csv")
    run_scores.print_scores(run, returns, terminal())
    text = shown()
    assert f"{WRITTEN}onfile:{WRITTEN}.npz" in text
    assert "Hopper[red]" in text
    run_picture.draw_run(run.info, returns, Reference(0.0, 200.0, "x"), tmp_path / "run.png")
    assert (tmp_path / "run.png").is_file()


def test_a_comparison_of_algorithms(tmp_path, shown):
    table = scores.scores(runs_of(tmp_path))
    compared = compare(table, NAME, ["bc"])
    comparison.show(NAME, compared, terminal())
    assert f"P({WRITTEN}above)" in shown()
    comparison.draw(table, [NAME, "bc"], compare(table, "bc", [NAME]), tmp_path / "comparison.png")
    assert (tmp_path / "comparison.png").is_file()


def test_a_table_beside_the_published_one(tmp_path, shown):
    plan = Plan(NAME, [DATASET], [NAME, "bc"], 2, "smoke", tmp_path)
    found = published.beside_published(plan, scores.scores(runs_of(tmp_path)), {(DATASET, "iql"): f"no data: {NAME}"})
    published_table.show(plan, found, terminal())
    text = shown()
    assert text.startswith(f"{WRITTEN}:last")
    assert f"nodata:{WRITTEN}" in text
    page = published_table.as_markdown(plan, found.assign(algorithm="a|b"), [])
    assert r"| a\|b |" in page
    published_table.draw(found, tmp_path / "table.png")
    assert (tmp_path / "table.png").is_file()


def test_names_of_datasets(shown):
    data_card.print_names([(f"minari:{NAME}", "in the local store")], terminal())
    assert f"minari:{WRITTEN}" in shown()


def test_a_selection(tmp_path):
    index = [f"{NAME}/0/10", "bc/0/10"]
    table = pd.DataFrame({"fqe": [1.0, 2.0], "action_distance": [0.1, 0.2]}, index=index)
    drawn = SimpleNamespace(
        scores=table,
        candidates=pd.DataFrame({"candidate": index, "algorithm": [NAME, "bc"], "veto": ""}),
        choice=SimpleNamespace(deploy=index[:1]),
        dissent=pd.DataFrame({"selector": [f"{NAME}.py:f"], "place_of_choice": [2.0], "of": [2], "agrees": [False]}),
        pool=SimpleNamespace(dataset=SimpleNamespace(name=DATASET)),
    )
    selection.draw(drawn, tmp_path / "selection.png")
    assert (tmp_path / "selection.png").is_file()


def test_a_selection_over_splits(shown):
    table = pd.DataFrame({"algorithm": [NAME], "setting": [NAME], "score": [1.0], "spread": [0.1], "split 0": [1.0],
                          "reason": [f"vetoed for {NAME}"]})  # fmt: skip
    found = {name: "" for name in Configurations._fields}
    found |= {"table": table, "splits": [0], "dataset": DATASET, "selector": NAME, "agreement": np.nan, "seconds": 1.0}
    selection_splits.report_configurations(Configurations(**found), terminal())
    text = shown()
    assert f"splitsoffile:{WRITTEN}.npz" in text
    assert f"vetoedvetoedfor{WRITTEN}" in text
    assert f"by{WRITTEN}" in text


def test_a_benchmark_of_selectors(tmp_path, shown):
    summary = pd.DataFrame([{"selector": NAME, "metric": PRIMARY, "mean": 0.2, "low": 0.1, "high": 0.3, "worst": 0.4,
                             "median": 0.2, "pools": 2, "kind": "single"}])  # fmt: skip
    points = pd.DataFrame({"selector": [NAME], "metric": [PRIMARY], "value": [0.2]})
    pools = pd.DataFrame({"pool": ["a", NAME], "dropped": ["", NAME], "candidates": 4, "ceiling": np.nan})
    result = SimpleNamespace(summary=summary, points=points, pools=pools, comparisons=pd.DataFrame(), notes=[NAME])
    selection_benchmark.show(result, terminal())
    text = shown()
    assert f"dropped{WRITTEN}:{WRITTEN}" in text
    assert f"note:{WRITTEN}" in text
    selection_benchmark.draw(result, tmp_path / "regret.png")
    assert (tmp_path / "regret.png").is_file()


def test_a_learned_model(tmp_path):
    run = SimpleNamespace(algorithm=SimpleNamespace(name=NAME), info={"dataset": {"name": DATASET}})
    dynamics.draw(run, [(0, np.linspace(0, 1, 9), np.ones((5, 2)))], tmp_path / "dynamics.png")
    assert (tmp_path / "dynamics.png").is_file()


def test_a_label_stays_in_the_legend(tmp_path):
    with picture(tmp_path / "deep" / "legend.png", 3, 2) as figure:
        axes = figure.subplots()
        axes.plot([0, 1], label=short(NAME))
        assert [text.get_text().strip() for text in axes.legend().get_texts()] == [NAME]
    assert (tmp_path / "deep" / "legend.png").is_file()
    assert len(short("x" * 99)) == 30
