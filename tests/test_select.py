"""offrl.select: its answer, its files, what it refuses, and that it reads no returns.

That nothing it imports plays a policy is an import contract in pyproject.toml.
"""

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import hydra
import jax
import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from pools import linear, linear_quadratic, made_pool, made_run

from offrl import select as command
from offrl.errors import UserError
from offrl.playing.evaluation import evaluate_run
from offrl.runs import configuration
from offrl.runs.run import Run, labels
from offrl.selection import decision, selectors, splits, verdicts

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


def answer(folder: Path, *arguments: str) -> dict:
    """What the command prints with --json, but for the times."""
    command = [sys.executable, "-m", "offrl.select", *map(str, sorted(folder.glob("runs/*/*-*"))), "--json", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.replace(str(folder), "FOLDER"))  # candidates and verdicts name their runs
    del found["seconds"]
    assert min(found.pop("measuring_seconds").values()) >= 0
    return found


def test_the_choice_does_not_change_with_what_the_simulator_said(pool, tmp_path):
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


def test_a_pool_without_cloning_is_told_that_its_baseline_is_missing(pool, monkeypatch, capsys):
    monkeypatch.chdir(pool)

    def told(pattern: str, diagnostics: str = "action_distances,lstd") -> str:
        runs = map(str, sorted(pool.glob(pattern)))
        monkeypatch.setattr(sys, "argv", ["offrl.select", *runs, f"diagnostics={diagnostics}", "out=told"])
        command.main()
        return " ".join(capsys.readouterr().out.split())

    missing = "no behaviour cloning among the candidates"
    assert missing in told("runs/*/td3_bc-*")
    everything = told("runs/*/*-*", "action_distances,lstd,initial_value")
    assert missing not in everything
    assert "nan" not in everything.partition("deploy")[2]  # cloning is deployed, and has no critic to rank it by
    assert "initial_value would choose td3_bc" in everything


def test_what_was_measured_is_kept_and_what_a_kill_left_half_written_is_measured_again(pool):
    before = answer(pool, "diagnostics=action_distances", "selector=support_only", "out=kept")
    kept = sorted(pool.glob("runs/*/*/diagnostics/*.json"))
    times = {file: file.stat().st_mtime_ns for file in kept}
    kept[0].write_text(kept[0].read_text()[:20])
    again = answer(pool, "kept", "diagnostics=action_distances", "selector=support_only", "out=kept")  # as by a glob
    assert again == before
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
        command.main()
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
        decision.select(sorted(folder.glob("runs/*/*-*")), names=["action_distances"])


def test_runs_that_have_interacted_are_refused_in_one_line(pool, tmp_path, monkeypatch):
    folder = tmp_path / "online"
    shutil.copytree(pool, folder)
    file = sorted(folder.glob("runs/*/*-*/run.json"))[0]
    interacted = {"env": "Hopper-v5", "steps": 1000, "episodes": 7}
    file.write_text(json.dumps({**json.loads(file.read_text()), "interacted": interacted}))
    monkeypatch.chdir(folder)
    with pytest.raises(
        UserError, match=r"have interacted with Hopper-v5 \(1000 steps, 7 episodes\).*leave it out"
    ) as told:
        decision.select(sorted(folder.glob("runs/*/*-*")), names=["action_distances"])
    assert str(file.parent) in str(told.value)
    assert "\n" not in str(told.value)


def test_builtin_data_that_are_not_here_are_asked_for_and_never_rolled_out(pool, tmp_path, monkeypatch):
    folder = tmp_path / "moved"
    shutil.copytree(pool, folder)
    for file in folder.glob("runs/*/*-*/run.json"):
        file.write_text(file.read_text().replace("file:log.npz", "builtin:pendulum/expert"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "empty"))
    message = "fingerprint [0-9a-f]+; builtin:pendulum/expert is not on this machine; make it with `python"
    with pytest.raises(UserError, match=message):
        decision.select(sorted(folder.glob("runs/*/*-*")), names=["action_distances"])
    assert not (tmp_path / "empty").exists()


def test_an_average_of_checkpoints_is_one_more_candidate_and_a_run_like_any(pool, tmp_path, monkeypatch):
    folder = tmp_path / "averaged"
    shutil.copytree(pool, folder)
    plain = sorted(folder.glob("runs/*/*-*"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(decision.data, "checks", lambda dataset: pd.DataFrame())
    found = decision.select(plain, "action_distance", ["action_distances"], average=2)
    assert len(found.candidates) == 8 + 4
    everything = sorted(folder.glob("runs/*/*-*"))  # beside the runs now lie those that it wrote
    again = decision.select(everything, "action_distance", ["action_distances"], average=2)
    assert again.candidates["candidate"].tolist() == found.candidates["candidate"].tolist()
    for run in map(Run.open, plain):
        averaged = Run.open(run.path.with_name(f"{run.path.name}-average2"))
        assert averaged.checkpoints() == [40]
        first, last, mean = run.restore(20), run.restore(40), averaged.restore(40)
        assert (mean.step == last.step).all()
        halves = jax.tree.map(lambda a, b: 0.5 * (a + b), first.actor, last.actor)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), mean.actor, halves)
        observations = np.float32([[0.3, -0.2], [0.1, 0.5]])
        actions = [r.actor(step, 1)(observations) for r, step in ((averaged, 40), (run, 40), (run, 20))]
        assert np.isfinite(actions).all()
        assert not np.allclose(actions[0], actions[1])
    returns = evaluate_run(averaged.path, episodes=2, seed=0, env="tiny_environments:Tiny-v0", workers=1)["return"]
    assert np.isfinite(returns).all()
    with pytest.raises(UserError, match=r"average=3: must be 2 or more, and .* has 2 policy checkpoints"):
        decision.select(plain, average=3)


NEVER = """
def never(scores, candidates):
    order = scores["action_distance"]
    order.attrs["abstains"] = "it never dares"
    return order
"""


def test_of_several_splits_the_configuration_best_on_average_is_to_be_retrained(monkeypatch, tmp_path):
    data = linear_quadratic(episodes=24)
    runs, expected = [], []
    for split in (0, 1, 2):
        run = made_run(data, {5: [linear(9.0)] * 3, 10: [linear(-0.9), linear(-0.5), linear(3.0)]})  # the last counts
        run.info["protocol"] |= {"split_seed": split, "updates": 30}
        for member, value in zip(run.members, (1, 1, 2), strict=True):  # two seeds of one setting, one of another
            member["values"] = {"strength": value}
        runs.append(run)
        held_out = np.isin(data.episode_of_step, data.split_indices(0.25, split)[1])
        states, actions = data.observations[data.observation_rows][held_out], data.actions[held_out]
        distances = [((np.clip(g * states, -1, 1) - actions) ** 2).sum(1).mean() for g in (-0.9, -0.5, 3.0)]
        expected.append([-(distances[0] + distances[1]) / 2, -distances[2]])

    def answer(selector="action_distance", given=runs):
        monkeypatch.setattr(splits.Pool, "open", lambda *_, **__: made_pool(data, *given, checkpoints=1))
        return splits.select_configuration([], selector, ["action_distances"])

    monkeypatch.setattr(splits, "training_command", lambda run, member: f"train {run.members[member]['values']}")
    found = answer()
    assert found.table["setting"].tolist() == ["strength=1", "strength=2"]
    np.testing.assert_allclose(found.table[["split 0", "split 1", "split 2"]].T, expected, rtol=1e-4)
    np.testing.assert_allclose(found.table["score"], np.mean(expected, 0), rtol=1e-4)
    assert (found.splits, found.agreement, found.command) == ([0, 1, 2], 1.0, "train {'strength': 1}")
    (tmp_path / "mine.py").write_text(NEVER)
    never = answer(f"{tmp_path / 'mine.py'}:never")
    assert (never.abstains, never.command) == ("it never dares", "")  # and there is no clone to train
    runs[1].members[2]["values"] = {"strength": 3}
    with pytest.raises(UserError, match=r"strength=2: not trained with protocol.split_seed=1"):
        answer()
    runs[1].info["protocol"]["validation_fraction"] = 0
    with pytest.raises(UserError, match="holds no episode out"):
        answer()


def test_the_command_that_retrains_is_one_that_train_takes_and_leaves_nothing_out(pool):
    run = Run.open(next(pool.glob("runs/*/td3_bc-*")))
    run.info["identity"]["dataset"] = "file:my log's.npz"
    command = shlex.split(splits.training_command(run, 1))
    assert command[:3] == ["python", "-m", "offrl.train"]
    prepared = configuration.prepare_arguments(command[3:], "train")
    with hydra.initialize_config_module("offrl.configs", version_base="1.3"):
        composed = OmegaConf.to_container(hydra.compose("train", overrides=prepared))
    assert composed["algo"] == run.info["algorithm"]["options"]
    assert composed["protocol"]["validation_fraction"] == 0
    assert composed["protocol"]["updates"] == 40
    assert (composed["dataset"], composed.get("env"), composed["seeds"]) == ("file:my log's.npz", None, [0, 1])


def test_the_chance_of_beating_the_data_follows_from_the_resampled_episodes():
    data = linear_quadratic(episodes=40)
    pool = made_pool(data, made_run(data, {1: [linear(-0.9), linear(0.9)]}))
    episodes = pool.dataset.episodes
    scores = pd.DataFrame({"behaviour_advantage": [1.0, -1.0]}, index=list(pool.table["candidate"]))
    replicates = {"behaviour_advantage": np.array([[1.0] * 150 + [-1.0] * 50, [-1.0] * 200])}
    replicates["behaviour_advantage"][0, 140:150] = np.nan  # draws without any held-out episode say nothing
    choice = selectors.Choice(pd.Series([1.0], index=scores.index[:1]), [scores.index[0]], 1, "", [scores.index[0]], [])
    found = verdicts.chances(pool, choice, scores, replicates).iloc[0]
    assert found["beats_behaviour"] == pytest.approx((140 + 0.5) / 191)
    assert np.isnan(found["beats_bc"])  # there is none in the pool
    assert pool.episode_weights.shape == (200, episodes)


def test_a_policy_like_the_behaviour_beats_it_half_the_time_though_episodes_are_cut_off():
    data = linear_quadratic(episodes=40)
    data = replace(data, rewards=-np.ones_like(data.rewards))  # worth -100 for ever, and -18 until the time limit
    pool = made_pool(data, made_run(data, {1: [linear(-0.9)]}))
    scores = pd.DataFrame({"lstd": [-100.0]}, index=list(pool.table["candidate"]))
    choice = selectors.Choice(pd.Series([1.0], index=scores.index), [scores.index[0]], 1, "", [scores.index[0]], [])
    found = verdicts.chances(pool, choice, scores, {"lstd": np.full((1, 200), -100.0)}).iloc[0]
    assert found["behaviour"] == pytest.approx(-100, abs=1e-3)


def test_runs_of_one_name_in_several_folders_are_told_apart():
    assert labels([Path("/r/a/td3"), Path("/r/b/td3")]) == ["a/td3", "b/td3"]
    assert labels([Path("/r/a/td3"), Path("/r/a/bc")]) == ["td3", "bc"]
