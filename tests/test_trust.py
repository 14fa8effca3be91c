"""A run is data: nothing that its run.json names is executed, unless it is ours or the user says trust=true."""

import shutil
from pathlib import Path

import pytest
from made_runs import make_run

import offrl.algorithm
from offrl import command_line
from offrl.errors import UserError
from offrl.playing.evaluation import evaluate_run
from offrl.runs.run import Run
from offrl.runs.trust import environment_of, trust_runs


@pytest.fixture(autouse=True)
def nothing_trusted():
    yield
    trust_runs(False)


@pytest.fixture
def hostile(tmp_path):
    """A valid algorithm file that leaves a trace where it is executed, and whether it did."""
    file, trace = tmp_path / "evil.py", tmp_path / "executed"
    ours = offrl.algorithm.load("bc").file.read_text()
    file.write_text(f"{ours}\nopen({str(trace)!r}, 'w').close()\n")
    return file, trace.exists


def run_of(folder: Path, **algorithm) -> Run:
    run = make_run(folder, {0: {30: [1.0]}})
    run.info["algorithm"] |= algorithm
    run.write_info()
    return Run.open(folder)


@pytest.mark.parametrize("where", ["absolute", "relative", "name", "traversal"])
def test_a_file_that_a_run_names_is_not_executed(tmp_path, monkeypatch, hostile, where):
    file, executed = hostile
    monkeypatch.chdir(tmp_path)
    named = {
        "absolute": {"file": str(file)},
        "relative": {"file": "evil.py"},
        "name": {"name": str(file)},
        "traversal": {"file": f"{tmp_path}/runs/../evil.py"},
    }[where]
    run = run_of(tmp_path / "run", **named)
    with pytest.raises(UserError, match=r"evil\.py.*would be executed.*trust=true") as caught:
        _ = run.algorithm
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(UserError, match="trust=true"):
        run.restore(30)
    assert not executed()


@pytest.mark.parametrize("name", ["../evil", "..evil", "os", "__init__", "/tmp/evil"])
def test_a_name_is_looked_up_among_the_algorithms_of_offrl_only(tmp_path, name):
    with pytest.raises(UserError, match="unknown algorithm"):
        _ = run_of(tmp_path / "run", name=name).algorithm


@pytest.mark.parametrize("value", [["evil.py"], 3, {"a": 1}])
def test_a_description_of_another_kind_is_damaged(tmp_path, value):
    with pytest.raises(UserError, match="damaged"):
        _ = run_of(tmp_path / "run", file=value).algorithm


def test_what_is_ours_by_content_is_taken_from_offrl(tmp_path):
    copy = tmp_path / "mine.py"
    shutil.copy(offrl.algorithm.load("bc").file, copy)
    assert run_of(tmp_path / "run", file=str(copy)).algorithm.file == offrl.algorithm.load("bc").file


def test_what_the_user_named_is_trusted_until_its_content_changes(tmp_path, hostile):
    file, executed = hostile
    file.write_text(offrl.algorithm.load("bc").file.read_text() + "\n# mine\n")
    offrl.algorithm.load(str(file))
    assert run_of(tmp_path / "run", file=str(file)).algorithm.name == "evil"
    file.write_text(file.read_text() + f"\nopen({str(tmp_path / 'executed')!r}, 'w').close()\n")
    with pytest.raises(UserError, match="trust=true"):
        _ = Run.open(tmp_path / "run").algorithm
    assert not executed()


def test_trust_true_executes_it_in_every_command(tmp_path, hostile):
    file, executed = hostile
    run = run_of(tmp_path / "run", file=str(file))
    assert "trust" not in command_line.parse([str(run.path), "trust=true"], "evaluate", "", {}, "").options
    assert run.algorithm.name == "evil"
    assert executed()
    with pytest.raises(UserError, match="trust=yes: must be true or false"):
        command_line.parse([str(run.path), "trust=yes"], "evaluate", "", {}, "")


def test_an_environments_module_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = make_run(tmp_path / "run", {0: {30: [1.0]}}, env="evil_module:Evil-v0")
    with pytest.raises(UserError, match=r"evil_module:Evil-v0.*import.*trust=true"):
        evaluate_run(run.path)
    assert environment_of(run.path, "Hopper-v5") == "Hopper-v5"
