"""python -m offrl.reproduce: the whole path on a tiny table, what it says where something is missing, the pages."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from made_runs import make_run
from test_data_checks import log
from test_data_download import Server, server  # noqa: F401

from offrl import reproduce as reproduce_command
from offrl.data import d4rl
from offrl.protocol import published, reproduce, scores
from offrl.protocol.reproduce import Plan
from offrl.reporting import published_table
from offrl.reporting.console import terminal
from offrl.runs import configuration
from offrl.runs.identity import identity_of

MEDIUM, REPLAY = "d4rl:hopper-medium-v2", "d4rl:hopper-medium-replay-v2"
TABLE = {"summary": "a tiny one", "datasets": [MEDIUM, REPLAY], "algorithms": ["bc"], "seeds": 2, "protocol": "smoke"}


def hopper_file() -> bytes:
    """Four short episodes in D4RL's layout, of Hopper's sizes."""
    random = np.random.default_rng(0)
    arrays = log((10, 10, 10, 10), observations=random.normal(size=(40, 11)), next_observations=None)
    arrays["actions"] = random.uniform(-1, 1, (40, 3))
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for key, value in arrays.items():
            file[key] = value
    return content.getvalue()


@pytest.fixture
def served(server: Server, tmp_path, monkeypatch):  # noqa: F811
    """D4RL's medium dataset at a loopback address; its replay dataset where nobody listens."""
    server.content = hopper_file()
    monkeypatch.setenv("OFFRL_CACHE", str(tmp_path / "cache"))
    entries = dict(d4rl.entries())
    for name, url in (("hopper-medium-v2", server.url), ("hopper-medium-replay-v2", "http://127.0.0.1:9/no.hdf5")):
        entries[name] = d4rl.Entry(name, url, entries[name].reference)
    monkeypatch.setattr(d4rl, "entries", lambda: entries)
    monkeypatch.setattr(reproduce, "tables", lambda: {"tiny": TABLE})
    return server


@pytest.fixture
def command(monkeypatch, capfd, tmp_path):
    """The command line in this process, from an empty folder: exit status, output, standard error."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["offrl.reproduce", *arguments])
        status = 0
        try:
            reproduce_command.main()
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def no_training(monkeypatch):
    """Keeps the command from training: `started` are the arguments of the commands it would have run."""
    started: list[list[str]] = []

    def train(arguments, output=None):
        started.append(arguments)
        return "it broke"

    monkeypatch.setattr(reproduce, "train", train)
    monkeypatch.setattr("offrl.protocol.reproduce.load", lambda *arguments, **options: None)
    return started


@pytest.mark.slow
def test_a_table_is_downloaded_trained_scored_and_set_beside_the_published_numbers(served, command):
    status, out, err = command("tiny", "--json")
    assert status == 0, err
    rows = {(row["dataset"], row["kind"]): row for row in json.loads(out)}  # nothing but JSON on standard output
    assert served.asked == [None]
    assert "updates/s" in err

    last = rows[MEDIUM, "last"]
    assert last["members"] == 2
    assert last["reason"] == ""
    assert 0 < last["ours"] < 30  # untrained: it falls at once
    assert last["low"] < last["ours"] < last["high"]
    published = scores.published_scores(MEDIUM, "bc")
    published = published[published["protocol"] == "last"]["score"]
    assert (last["published_low"], last["published_high"]) == (published.min(), published.max())
    assert last["difference"] == pytest.approx(last["ours"] - published.min())
    assert rows[MEDIUM, "best"]["ours"] >= last["ours"]
    assert rows[MEDIUM, "selected"]["ours"] is None

    # what cannot be had: an empty cell that says what is missing and where it would have to be
    missing = rows[REPLAY, "last"]
    assert missing["ours"] is None
    assert "http://127.0.0.1:9/no.hdf5 could not be downloaded" in missing["reason"]
    assert f"put that file at {d4rl.cached_path('hopper-medium-replay-v2')}" in missing["reason"]
    assert "could not be downloaded" in err

    folder = Path("runs/reproduce/tiny-smoke")
    assert {file.name for file in folder.iterdir() if file.is_file()} == {
        "scores.csv", "comparison.csv", "table.md", "table.png",
    }  # fmt: skip
    assert "Empty cells" in (folder / "table.md").read_text()

    # again: nothing is downloaded or trained; a kill before the last episode was played is made good
    oracle = folder / "d4rl-hopper-medium-v2" / "bc-2seeds" / "oracle" / "returns.csv"
    whole = oracle.read_text()
    oracle.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    _, out, err = command("tiny")
    assert "2 runs of 2 member(s), 2 of them to train or score" in out
    assert oracle.read_text() == whole
    _, out, err = command("tiny")
    assert "2 runs of 2 member(s), 1 of them to train or score" in out
    assert "offrl.train" not in out
    assert served.asked == [None]


def test_finished_runs_are_kept_and_only_the_rest_is_run(command, no_training, monkeypatch):
    monkeypatch.setattr(reproduce, "tables", lambda: {"tiny": {**TABLE, "algorithms": ["bc", "iql", "td3_bc"]}})
    folder = Path("runs/reproduce/tiny-smoke/d4rl-hopper-medium-v2")
    each = {step: [60.0, 60.0] for step in (10, 20, 30)}
    makings = {
        "bc": ({0: each, 1: each}, True),
        "iql": ({0: each, 1: each}, False),  # not trained to its end
        "td3_bc": ({0: each, 1: {10: [60.0, 60.0]}}, True),  # not scored to its end
    }
    for name, (returns, finished) in makings.items():
        same = identity_of(*Plan("tiny", [MEDIUM], [name], 2, "smoke", folder.parent).command(MEDIUM, [name]))
        make_run(folder / f"{name}-2seeds", returns, name, MEDIUM, finished=finished, identity=same)
    status, out, _ = command("tiny", "datasets=" + MEDIUM)
    assert status == 0
    assert "3 runs of 2 member(s), 2 of them to train or score" in out
    assert [arguments[0] for arguments in no_training] == ["algo=iql", "algo=td3_bc"]
    assert no_training[0][1:4] == ["dataset=" + MEDIUM, "seeds=2", "protocol=smoke"]
    table = pd.read_csv("runs/reproduce/tiny-smoke/comparison.csv", keep_default_na=False)
    last = table[table["kind"] == "last"].set_index("algorithm")
    assert last.loc["bc", "ours"] == "30.0"
    assert last.loc["iql", ["ours", "reason"]].to_list() == ["", "it broke"]
    assert "min left" in out


def test_a_run_of_other_settings_in_the_folder_of_a_cell_is_named_and_not_taken_for_it(
    command, no_training, monkeypatch
):
    monkeypatch.setattr(reproduce, "tables", lambda: {"tiny": {**TABLE, "algorithms": ["iql"]}})
    folder = Path("runs/reproduce/tiny-smoke/d4rl-hopper-medium-v2/iql-2seeds")
    each = {step: [60.0, 60.0] for step in (10, 20, 30)}
    plan = Plan("tiny", [MEDIUM], ["iql"], 2, "smoke", folder.parent.parent)
    other = identity_of(*plan.command(MEDIUM, ["iql"]), "algo.expectile=0.6")
    make_run(folder, {0: each, 1: each}, "iql", MEDIUM, identity=other)
    _, out, _err = command("tiny", "datasets=" + MEDIUM)
    assert no_training == []
    table = pd.read_csv("runs/reproduce/tiny-smoke/comparison.csv", keep_default_na=False)
    reason = f"{folder} holds another run (algo.expectile was 0.6, is 0.7); move it away and run this again"
    assert set(table["ours"]) == {""}
    assert set(table["reason"]) == {reason}
    assert reason in out
    assert reason in command("tiny", "datasets=" + MEDIUM, "dry_run=true")[2]


def test_a_table_without_any_of_its_data_says_so_once_and_fails(command, served, monkeypatch):
    entries = {name: d4rl.Entry(name, "http://127.0.0.1:9/no.hdf5", None) for name in d4rl.entries()}
    monkeypatch.setattr(d4rl, "entries", lambda: entries)
    status, out, err = command("tiny")
    assert status == 2
    assert [line.partition(": no data")[0] for line in out.splitlines()[1:]] == [MEDIUM, REPLAY]  # and no table
    assert err.splitlines() == [
        "error: tiny: nothing was reproduced, none of its 2 runs has a score: 2 of 2 datasets could not be loaded "
        f"(named above); go online, or put their files into {d4rl.cached_path('').parent}, and run this again"
    ]
    folder = Path("runs/reproduce/tiny-smoke")
    assert [file.name for file in folder.iterdir()] == ["comparison.csv"]


def test_another_number_of_seeds_or_a_changed_file_is_another_run(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("a = 1")
    plan = Plan("tiny", [MEDIUM], ["bc", str(file)], 2, "smoke", tmp_path)
    before = [plan.run_folder(*cell) for cell in plan.cells()]
    file.write_text("a = 2")
    after = [plan.run_folder(*cell) for cell in plan.cells()]
    more = [plan._replace(seeds=4).run_folder(*cell) for cell in plan.cells()]
    assert len({*before, *after, *more}) == 2 * 3 - 1  # bc of two seeds is the same before and after
    assert before[0] == after[0]


def test_a_launcher_gets_all_named_algorithms_at_once(command, no_training, monkeypatch):
    monkeypatch.setattr(reproduce, "tables", lambda: {"tiny": {**TABLE, "algorithms": ["bc", "iql"]}})
    command("tiny", "launcher=joblib", "datasets=" + MEDIUM)
    assert no_training == [
        ["-m", "hydra/launcher=joblib", "algo=bc,iql", "dataset=" + MEDIUM, "seeds=2", "protocol=smoke",
         "run_dir=runs/reproduce/tiny-smoke/d4rl-hopper-medium-v2/${algo.name}-2seeds"],
    ]  # fmt: skip


def test_a_dry_run_prints_what_would_be_run(command, no_training, monkeypatch):
    monkeypatch.setattr(reproduce, "tables", lambda: {"tiny": TABLE})
    status, out, _ = command("tiny", "dry_run=true", "seeds=3", "protocol=quick")
    assert (status, no_training) == (0, [])
    assert out.splitlines()[0] == (
        f"to do  python -m offrl.train algo=bc dataset={MEDIUM} seeds=3 protocol=quick "
        "run_dir=runs/reproduce/tiny-quick/d4rl-hopper-medium-v2/bc-3seeds"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinny"], "table 'tinny': give one of tiny (a tiny one)"),
        (["tiny", "tiny"], "table 'tiny tiny': give one of"),
        (["tiny", "datasets=d4rl:hopper-medium-v0"], "not in tiny; did you mean d4rl:hopper-medium-v2"),
        (["tiny", "algorithms=bcc"], "algo=bcc: unknown algorithm; did you mean bc"),
        (["tiny", "algorithms=bc,bc"], "bc is named twice"),
        (["tiny", "protocol=quik"], "protocol=quik: unknown; did you mean quick"),
        (["tiny", "seeds=none"], "seeds=none: must be a whole number"),
        (["tiny", "dry_run=yes"], "dry_run=yes: must be true or false"),
        (["tiny", "seed=1"], "seed=1: no such option; did you mean seeds"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(command, monkeypatch, arguments, message):
    monkeypatch.setattr(reproduce, "tables", lambda: {"tiny": TABLE})
    status, out, err = command(*arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


def test_the_tables_that_come_with_offrl_can_be_planned():
    for name, table in reproduce.tables().items():
        plan = reproduce.make_plan(name, {})
        assert len(plan.cells()) == len(table["datasets"]) * len(table["algorithms"])
        for dataset in plan.datasets:
            source, _, rest = dataset.partition(":")
            assert source in ("builtin", "minari") or rest in d4rl.entries()


def test_the_settings_of_a_table_reach_its_algorithms_and_are_known_to_them():
    plan = reproduce.make_plan("small", {})
    for algorithm in ["td3_bc", *(plan.settings.keys() - {"all"})]:
        command = plan.command("builtin:hopper/medium", [algorithm])
        own = plan.settings.get(algorithm, [])
        assert command[-len(own) - len(plan.settings["all"]) :] == [*plan.settings["all"], *own]
        configuration.prepare_arguments(command, "train")  # refuses what the algorithm does not have


def test_paths_are_quoted_where_hydra_needs_it():
    assert configuration.quoted("runs/a-b_2.x/${algo.name}") == "runs/a-b_2.x/${algo.name}"
    assert configuration.quoted("my runs/a,b=c") == "'my runs/a,b=c'"
    assert configuration.quoted("it's") == "'it\\'s'"


@pytest.fixture
def compared(tmp_path):
    """bc beside published numbers of its own; the same dataset with other content; iql missing."""
    plan = Plan("tiny", [MEDIUM], ["bc", "iql"], 2, "smoke", tmp_path)
    runs = [
        make_run(tmp_path / "one", {0: {30: [100.0]}, 1: {30: [104.0]}}, "bc", MEDIUM),
        make_run(tmp_path / "two", {0: {30: [2.0]}, 1: {30: [4.0]}}, "bc", MEDIUM, fingerprint="bbbb"),
    ]
    table = scores.scores(runs)
    return plan, table, published.beside_published(plan, table, {(MEDIUM, "iql"): "no data: none"})


def test_many_algorithms_stand_below_each_other(compared, monkeypatch):
    _, _, comparison = compared
    monkeypatch.setattr(published_table, "MOST_ACROSS", 1)
    comparison = comparison[comparison["row"] == MEDIUM]
    comparison = pd.concat([comparison.assign(algorithm=name) for name in ("bc", "awac")])
    headings, rows = published_table.wide(comparison.reset_index(drop=True), "last")
    assert headings == ["dataset", MEDIUM]
    assert [row[0] for row in rows] == ["data", "bc", "awac"]


def test_split_groups_have_rows_of_their_own(compared):
    plan, table, comparison = compared
    last = comparison[comparison["kind"] == "last"]
    assert last["ours"].to_list()[:2] == [51.0, 1.5]
    assert last["row"].to_list() == [f"{MEDIUM}, fingerprint aaaa", f"{MEDIUM}, fingerprint bbbb", MEDIUM]
    headings, rows = published_table.wide(comparison, "last")
    assert headings == ["dataset", "data", "bc", "iql"]
    assert [row[0] for row in rows] == last["row"].to_list()
    assert rows[0][1:3] == ["20.0", rows[0][2]]
    assert rows[0][2].startswith("51.0 ± 12.7 (")
    page = published_table.as_markdown(plan, comparison, scores.groups(table)[1])
    assert f"- {MEDIUM}: iql: no data: none" in page
    assert "these are not comparable" in page


def test_where_we_disagree_is_marked_by_the_nearer_end(compared, monkeypatch):
    plan, table, _ = compared

    def beside(low: float, high: float, kind: str = "last") -> pd.Series:
        rows = pd.DataFrame({"score": [low, high], "protocol": kind, "dataset": "hopper-medium-v2", "name": "bc"})
        monkeypatch.setattr(scores, "published", lambda: rows)
        return published.beside_published(plan, table, {}).iloc[0]  # 51, from 38.3 to 63.7

    for low, high, difference, disagrees in (
        (50, 60, 0, False),
        (55, 60, -4, False),
        (20, 40, 11, False),
        (64, 70, -13, True),
        (20, 38, 13, True),
    ):
        row = beside(low, high)
        assert (row["difference"], row["disagrees"], row["sources"]) == (pytest.approx(difference), disagrees, 2)
        assert published_table.cell(row).endswith(" ≠") == disagrees
    assert beside(64, 70, "other")["sources"] == 2  # who does not say which score it is may mean this one
    assert beside(64, 70, "best")["sources"] == 0  # a best score is never set beside a last one


def test_one_member_has_too_narrow_an_interval_to_disagree(tmp_path):
    run = make_run(tmp_path / "run", {0: {30: [1.0, 2.0]}}, "bc", MEDIUM)
    row = published.beside_published(Plan("", [MEDIUM], ["bc"], 1, "smoke", tmp_path), scores.scores([run]), {}).iloc[0]
    assert row["method"] == "episodes"
    assert row["difference"] < -10
    assert not row["disagrees"]


def test_a_return_is_not_set_beside_a_published_normalised_score(tmp_path):
    run = make_run(tmp_path / "run", {0: {30: [1.0]}}, "bc", MEDIUM, reference=None)
    row = published.beside_published(Plan("", [MEDIUM], ["bc"], 1, "smoke", tmp_path), scores.scores([run]), {}).iloc[0]
    assert row["sources"] == 0


def test_the_terminal_and_the_picture_take_a_table_without_a_single_score(tmp_path, compared, capsys):
    plan, _, _ = compared
    comparison = published.beside_published(plan, pd.DataFrame(), {cell: "no [data]" for cell in plan.cells()})
    published_table.show(plan, comparison, terminal())
    assert "no [data]" in capsys.readouterr().out
    published_table.draw(comparison, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    assert "| - |" in published_table.as_markdown(plan, comparison, []) or "- (" in published_table.as_markdown(
        plan, comparison, []
    )


def test_a_process_that_fails_leaves_its_last_words(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", shutil.which("sh"))
    script = tmp_path / "sh"
    script.write_text("#!/bin/sh\necho out; echo one >&2; echo 'error: two' >&2; exit 2\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert reproduce.train([]) == "two"
    out, err = capfd.readouterr()
    assert (out, err) == ("out\n", "one\nerror: two\n")
    script.write_text("#!/bin/sh\nexit 3\n")
    assert reproduce.train([]) == "offrl.train ended with status 3"
