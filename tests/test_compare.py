"""python -m offrl.compare: numbers worked by hand, nothing averaged that does not compare, and the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_runs import make_run

from offrl import compare as compare_command
from offrl import statistics
from offrl.errors import UserError
from offrl.protocol import compare, reproduce, scores
from offrl.reporting.comparison import draw
from offrl.runs.identity import identity_of

MANY = [f"builtin:env{i}/medium" for i in range(6)]


def table_of(folder: Path, returns: dict[str, dict[str, list[float]]], **options) -> pd.DataFrame:
    """Scores of algorithm -> dataset -> the return of each member."""
    runs = []
    for algorithm, datasets in returns.items():
        for dataset, values in datasets.items():
            each = {i: {30: [value]} for i, value in enumerate(values)}
            place = folder / algorithm / dataset.replace("/", "-")
            runs.append(make_run(place, each, algorithm, dataset, **{"fingerprint": dataset, **options}))
    return scores.scores(runs)


def test_probability_difference_and_holm_worked_by_hand(tmp_path):
    # of 200: new 50, 60; a 40, 55; b 10, 20; c 55, 60
    one = {"new": [100.0, 120.0], "a": [80.0, 110.0], "b": [20.0, 40.0], "c": [110.0, 120.0]}
    result = compare.compare(
        table_of(tmp_path, {n: {"builtin:x/y": v} for n, v in one.items()}), "new", ["a", "b", "c"]
    )
    result = result.set_index("against")
    # above a in 3 of 4 pairs; above all of b's; above c in one, equal in one (a half)
    assert result["probability"].to_list() == [0.75, 1.0, 0.375]
    np.testing.assert_allclose(result["difference"], [7.5, 40.0, -2.5])
    assert result["wins"].to_list() == [1, 1, 0]
    # two against two can be relabelled in six ways; b: 2 of 6 are as extreme. Drawn, so near it
    assert result.loc["b", "p"] == pytest.approx(1 / 3, abs=0.02)
    assert (result["test"] == "permutation of members").all()
    p = np.sort(result["p"])
    expected = np.minimum(np.maximum.accumulate(p * [3, 2, 1]), 1)
    np.testing.assert_allclose(np.sort(result["p_holm"]), expected)


def test_over_many_datasets_the_signs_of_the_differences_are_flipped(tmp_path):
    returns = {"new": {d: [100.0, 120.0] for d in MANY}, "a": {d: [80.0, 100.0] for d in MANY}, "b": {}}
    returns["b"] = {d: [100.0 + (20 if i else -20), 120.0] for i, d in enumerate(MANY)}
    result = compare.compare(table_of(tmp_path, returns), "new", ["a", "b"]).set_index("against")
    assert result.loc["a", ["datasets", "wins", "test"]].to_list() == [6, 6, "sign flip over datasets"]
    assert result.loc["a", "p"] == 2 / 2**6  # all six the same way
    assert result.loc["a", "p_holm"] == 4 / 2**6
    assert result.loc["b", "wins"] == 1
    assert result.loc["b", "p"] == 14 / 2**6  # five or six of one sign


def test_permutations_find_a_difference_and_none(tmp_path):
    random = np.random.default_rng(0)
    same = [random.normal(size=10) for _ in range(3)]
    assert statistics.permutation_p(same, same) == 1.0
    assert statistics.permutation_p([x + 5 for x in same], same) < 0.001
    p = [
        statistics.permutation_p([random.normal(size=5)], [random.normal(size=5)], draws=99, seed=i) for i in range(300)
    ]
    assert np.mean(np.array(p) <= 0.1) == pytest.approx(0.1, abs=0.05)  # a test at level 10 % errs in 10 % of the cases


def test_only_what_compares_is_compared(tmp_path):
    table = pd.concat(
        [
            table_of(tmp_path / "1", {"new": {"builtin:x/y": [100.0, 120.0]}}, fingerprint="aaaa"),
            table_of(tmp_path / "2", {"old": {"builtin:x/y": [1.0, 2.0]}}, fingerprint="bbbb"),
            table_of(tmp_path / "3", {"older": {"builtin:z/y": [1.0, 2.0]}}),
        ]
    )
    result = compare.compare(table, "new", ["old", "older"])
    assert result["datasets"].to_list() == [0, 0]
    assert result["probability"].isna().all()
    assert result["p_holm"].isna().all()
    assert (result["reason"] == "no dataset has a score of both").all()


def test_returns_of_several_datasets_have_no_common_scale(tmp_path):
    raw = table_of(
        tmp_path / "1", {n: {"file:a": [1.0, 2.0], "file:b": [5.0, 7.0]} for n in ("new", "old")}, reference=None
    )
    result = compare.compare(raw, "new", ["old"]).iloc[0]
    assert np.isnan(result["probability"])
    assert result["reason"].startswith("left out, for returns without references have no common scale: file:a, file:b")
    one = compare.compare(raw[raw["dataset"] == "file:a"], "new", ["old"]).iloc[0]
    assert one["probability"] == 0.5  # by itself it has one
    mixed = pd.concat([raw, table_of(tmp_path / "2", {n: {"builtin:x/y": [1.0, 2.0]} for n in ("new", "old")})])
    result = compare.compare(mixed, "new", ["old"]).iloc[0]
    assert result["datasets"] == 1
    assert "left out" in result["reason"]


def test_settings_do_not_count_as_one_and_a_single_member_has_no_interval(tmp_path):
    runs = [
        make_run(tmp_path / str(w), {0: {30: [w]}}, "new", options={"w": w}, seeds=[0]) for w in (1.0, 2.0)
    ] + [make_run(tmp_path / "old", {0: {30: [1.5]}}, "old")]  # fmt: skip
    with pytest.raises(UserError, match="new is there in several settings"):
        compare.compare(scores.scores(runs), "new", ["old"])
    result = compare.compare(scores.scores(runs[1:]), "new", ["old"]).iloc[0]
    assert result["probability"] == 1.0
    assert np.isnan(result["low"])
    assert "no spread" in result["reason"]


def test_the_picture_shows_all_on_the_datasets_that_all_have(tmp_path):
    returns = {"new": {d: [100.0, 120.0] for d in MANY}, "a": {d: [80.0, 100.0] for d in MANY[:2]}, "none": {}}
    table = table_of(tmp_path, returns)
    comparison = compare.compare(table, "new", ["a", "none"])
    draw(table, ["new", "a", "none"], comparison, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["offrl.compare", *arguments])
        status = 0
        try:
            compare_command.main()
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


def test_the_command_trains_what_is_missing_and_writes_the_comparison(command, monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text((Path(__file__).parent / "toys" / "linear.py").read_text())
    table = {
        "summary": "",
        "datasets": ["builtin:hopper/medium"],
        "algorithms": ["bc"],
        "seeds": 2,
        "protocol": "smoke",
    }
    monkeypatch.setattr(reproduce, "tables", lambda: {"tiny": table})
    monkeypatch.setattr("offrl.protocol.reproduce.load", lambda *arguments, **options: None)
    score = {"mine": 120.0, "bc": 60.0, "iql": 80.0}

    def train(arguments, output=None):  # as offrl.train would, had it the time
        folder = Path(arguments[-1].removeprefix("run_dir="))
        name = folder.name.split("-")[0]
        if name != "iql":
            each = {i: {s: [score[name] + i] * 2 for s in (10, 20, 30)} for i in range(2)}
            make_run(folder, each, name, identity=identity_of(*arguments))
        return "out of memory"

    monkeypatch.setattr(reproduce, "train", train)
    status, out, _ = command("tiny", "algo=mine.py", "against=bc,iql", "--json")
    assert status == 0
    mine, iql = json.loads(out)
    assert (mine["against"], mine["probability"], mine["difference"]) == ("bc", 1.0, 30.0)
    assert (iql["against"], iql["datasets"], iql["probability"]) == ("iql", 0, None)
    folder = tmp_path / "runs" / "reproduce" / "tiny-smoke"
    assert pd.read_csv(folder / "compare-mine.csv")["p_holm"].notna().sum() == 1
    assert (folder / "compare-mine.png").exists()
    comparison = pd.read_csv(folder / "comparison.csv")
    assert list(comparison[comparison["kind"] == "last"]["algorithm"]) == ["mine", "bc", "iql"]  # a column of the table
    assert "out of memory" in (folder / "table.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["against=bc"], "no algo given"),
        (["algo=bc", "against=bc,iql"], "holds algo=bc itself"),
        (["algo=mine.py"], "algo=mine.py: no such file"),
        (["algo=bc", "against=iqll"], "did you mean iql"),
        (["nope", "algo=bc"], "table 'nope': give one of"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(command, arguments, message):
    status, out, err = command(*arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
