"""wandb: nothing when off, the report's tables and media at the end when on, and never a reason to fail."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
from made_runs import make_run, make_selection

from offrl.playing.returns import read_returns
from offrl.reporting import report
from offrl.runs.tracking import Tracker

EACH = {i: {10: [20.0, 40.0], 20: [100.0, 140.0], 30: [60.0, 60.0]} for i in range(2)}


class FakeRun:
    def __init__(self, fails: bool = False):
        self.logged: dict = {}
        self.summary: dict = {}
        self.finished, self.fails = False, fails

    def log(self, values, step=None):
        if self.fails:
            raise OSError("the disk is full\nand more")
        self.logged |= values

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package, whose run keeps what it is given; the media are what they were made of."""
    fake = ModuleType("wandb")
    fake.run = FakeRun()
    fake.init = lambda **options: fake.run
    fake.Settings = SimpleNamespace
    fake.Table = lambda dataframe: dataframe
    fake.Image = lambda file: Path(file).read_bytes()
    fake.Html = lambda text, inject: text
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_off_imports_nothing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)  # an import would fail
    run = make_run(tmp_path / "run", EACH)
    tracker = Tracker("off", "offrl", run.path, {}, run.info)
    tracker.log(1, {"member0/loss": 1.0})
    tracker.finish(read_returns(run))


def test_the_reports_tables_and_media_are_logged_at_the_end(wandb, tmp_path):
    run = make_run(tmp_path / "run", EACH)
    make_selection(tmp_path / "selection", [(run, 0, 20, 1.0), (run, 1, 10, 0.5)])
    (run.path / "summary.png").write_bytes(b"picture")
    tracker = Tracker("offline", "offrl", run.path, {}, run.info)
    tracker.log(30, {"member0/loss": 1.0})
    tracker.finish(read_returns(run), run.path / "summary.png", partial(report.make, [run.path]))
    logged = wandb.run.logged
    assert len(logged["evaluation"]) == 12
    scores = pd.DataFrame(logged["scores"]).set_index("kind")["estimate"]
    assert scores.to_dict() == pytest.approx({"last": 30.0, "selected": 37.5, "best": 60.0})
    assert wandb.run.summary == pytest.approx({"score last": 30.0, "score selected": 37.5, "score best": 60.0})
    assert "best in hindsight" in logged["report"]
    assert logged["report/learning-curves-0"].startswith(b"\x89PNG")
    assert logged["summary"] == b"picture"
    assert wandb.run.finished
    assert not list(run.path.glob("report*"))


def test_a_run_without_an_environment_has_no_tables(wandb, tmp_path):
    run = make_run(tmp_path / "run", {}, env=None, reference=None)
    Tracker("offline", "offrl", run.path, {}, run.info).finish(None, None)
    assert (wandb.run.logged, wandb.run.finished) == ({}, True)


def test_a_report_that_cannot_be_made_leaves_the_rest(wandb, tmp_path, capsys):
    run = make_run(tmp_path / "run", EACH)
    (make_selection(tmp_path / "selection", [(run, 0, 20, 1.0)]) / "selection.json").write_text("{")
    Tracker("offline", "offrl", run.path, {}, run.info).finish(
        read_returns(run), report=partial(report.make, [run.path])
    )
    assert set(wandb.run.logged) == {"evaluation"}
    assert wandb.run.finished
    assert "no report in wandb" in capsys.readouterr().err


def test_wandb_that_fails_is_one_line_and_the_run_goes_on(wandb, tmp_path, capsys):
    run = make_run(tmp_path / "run", EACH)
    wandb.run = FakeRun(fails=True)
    tracker = Tracker("offline", "offrl", run.path, {}, run.info)
    for _ in range(2):
        tracker.log(1, {"member0/loss": 1.0})
    tracker.finish(read_returns(run))
    assert capsys.readouterr().err == "warning: wandb is off for this run (the disk is full)\n"


def test_an_offline_run_of_the_real_thing_is_written_to_the_run(tmp_path, capsys, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = make_run(tmp_path / "run", EACH)
    tracker = Tracker("offline", "offrl", run.path, {"seed": 0}, run.info)
    tracker.log(30, {"member0/loss": 1.0})
    tracker.finish(read_returns(run), report=partial(report.make, [run.path]))
    assert "warning" not in capsys.readouterr().err
    assert list(run.path.glob("wandb/offline-run-*/run-*.wandb"))
    media = [file.name for file in run.path.glob("wandb/offline-run-*/files/media/**/*") if file.is_file()]
    assert any(name.endswith(".html") for name in media)
    assert any(name.startswith("scores") for name in media)
