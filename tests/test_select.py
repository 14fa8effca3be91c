"""offrl.select: its answer, its files, what it refuses, and that neither simulator nor returns can reach it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pools import linear, linear_quadratic, made_pool, made_run

from offrl import select
from offrl.errors import UserError

QUICK = "finite,range,action_distances,lstd,neighbours"
TRAIN = """
import sys
from offrl.train import main
for algo in ("bc", "td3_bc"):
    sys.argv = ["offrl.train", f"algo={algo}", "dataset=file:log.npz", "env=null", "seeds=2", "runs=runs",
                "algo.hidden_dims=[16,16]", "algo.batch_size=16", "protocol.updates=40", "protocol.checkpoint_every=20",
                "protocol.log_every=20", "protocol.validation_fraction=0.25"]
    main()
"""
SEALED = """
import sys

class Sealed:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gymnasium", "mujoco", "minari") or name in ("offrl.simulators", "offrl.evaluate"):
            raise ImportError(f"{name} is sealed")

sys.meta_path.insert(0, Sealed())
from offrl.select import main
main()
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Path:
    """A folder with a log of a linear-quadratic task and two small trained runs on it, no simulator anywhere."""
    folder = tmp_path_factory.mktemp("pool")
    data = linear_quadratic(episodes=24, length=12)
    np.savez(
        folder / "log.npz",
        observations=data.observations[data.observation_rows],
        next_observations=data.observations[data.observation_rows + 1],
        actions=data.actions,
        rewards=data.rewards,
        terminals=data.terminations,
        timeouts=data.truncations,
    )
    subprocess.run([sys.executable, "-c", TRAIN], cwd=folder, check=True, capture_output=True)
    return folder


def answer(folder: Path, *arguments: str, code: str = SEALED) -> dict:
    """What the command prints with --json, but for the time it took."""
    command = [sys.executable, "-c", code, *map(str, sorted(folder.glob("runs/*/*-*"))), "--json", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.replace(str(folder), "FOLDER"))  # candidates and verdicts name their runs
    del found["seconds"]
    return found


def test_the_choice_needs_no_environment_and_does_not_change_with_what_the_simulator_said(pool, tmp_path):
    first = answer(pool, f"diagnostics={QUICK}", "out=first")
    assert first["deploy"]
    assert len(first["candidates"]) == 8
    told = tmp_path / "told"
    shutil.copytree(pool, told)
    for run in told.glob("runs/*/*-*"):  # measured anew, beside an oracle that nobody could read
        shutil.rmtree(run / "diagnostics")
        (run / "oracle").mkdir(exist_ok=True)
        (run / "oracle" / "returns.csv").write_text("not a table")
    assert answer(told, f"diagnostics={QUICK}", "out=second") == first


def test_what_was_measured_is_kept_and_what_a_kill_left_half_written_is_measured_again(pool):
    before = answer(pool, "diagnostics=action_distances", "selector=support_only", "out=kept")
    kept = sorted(pool.glob("runs/*/*/diagnostics/*.json"))
    times = {file: file.stat().st_mtime_ns for file in kept}
    kept[0].write_text(kept[0].read_text()[:20])
    assert answer(pool, "diagnostics=action_distances", "selector=support_only", "out=kept") == before
    changed = [file for file in kept if file.stat().st_mtime_ns != times[file]]
    assert changed == [kept[0]]
    written = {file.name for file in (pool / "kept").iterdir()}
    assert written == {"candidates.csv", "diagnostics.csv", "selection.json", "selection.png"}
    table = pd.read_csv(pool / "kept" / "diagnostics.csv")
    assert {"candidate", "diagnostic", "value", "standard_error", "seconds", "reason"} <= set(table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no run here"),
        ([], "no run given"),
        (["RUN", "selektor=x"], "no such option; did you mean selector"),
        (["RUN", "selector=suport_only", "diagnostics=action_distances"], "did you mean support_only"),
        (["RUN", "diagnostics=fqee"], "diagnostic 'fqee' is unknown; did you mean fqe"),
        (["RUN", "checkpoints=0"], "checkpoints=0: must be a whole number, 1 or more"),
        (["RUN", "RUN"], "a run is given twice"),
    ],
)
def test_a_mistake_is_answered_in_one_line(pool, monkeypatch, capsys, arguments, message):
    run = str(next(pool.glob("runs/*/bc-*")))
    monkeypatch.chdir(pool)
    monkeypatch.setattr(sys, "argv", ["offrl.select", *(run if item == "RUN" else item for item in arguments)])
    if not arguments:
        sys.argv.append("out=x")
    with pytest.raises(SystemExit) as end:
        select.main()
    assert end.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


def test_data_that_have_changed_since_are_refused(pool, tmp_path, monkeypatch):
    folder = tmp_path / "changed"
    shutil.copytree(pool, folder)
    with np.load(folder / "log.npz") as file:
        arrays = dict(file)
    arrays["rewards"] = arrays["rewards"] + 1
    np.savez(folder / "log.npz", **arrays)
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="give back the data it was trained on"):
        select.select(sorted(folder.glob("runs/*/*-*")), names=["action_distances"])


def test_builtin_data_that_are_not_here_are_asked_for_and_never_rolled_out(pool, tmp_path, monkeypatch):
    folder = tmp_path / "moved"
    shutil.copytree(pool, folder)
    for file in folder.glob("runs/*/*-*/run.json"):
        file.write_text(file.read_text().replace("file:log.npz", "builtin:pendulum/expert"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "empty"))
    message = "fingerprint [0-9a-f]+; builtin:pendulum/expert is not on this machine; make it again with `python"
    with pytest.raises(UserError, match=message):
        select.select(sorted(folder.glob("runs/*/*-*")), names=["action_distances"])
    assert not (tmp_path / "empty").exists()


def test_the_chance_of_beating_the_data_follows_from_the_resampled_episodes():
    data = linear_quadratic(episodes=40)
    pool = made_pool(data, made_run(data, {1: [linear(-0.9), linear(0.9)]}))
    episodes = pool.dataset.episodes
    scores = pd.DataFrame({"behaviour_advantage": [1.0, -1.0]}, index=list(pool.table["candidate"]))
    replicates = {"behaviour_advantage": np.array([[1.0] * 150 + [-1.0] * 50, [-1.0] * 200])}
    choice = select.Choice(pd.Series([1.0], index=scores.index[:1]), [scores.index[0]], 1, "", [scores.index[0]], [])
    found = select.chances(pool, choice, scores, replicates).iloc[0]
    assert found["beats_behaviour"] == pytest.approx((150 + 0.5) / 201)
    assert np.isnan(found["beats_bc"])  # there is none in the pool
    assert pool.episode_weights.shape == (200, episodes)
