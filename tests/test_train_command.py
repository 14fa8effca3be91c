"""python -m offrl.train: what it refuses, what it continues, and that a killed run ends as an uninterrupted one."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import hydra
import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from offrl.configuration import prepare_arguments
from offrl.errors import UserError
from offrl.runs import Run
from offrl.train import differences, train

TOYS = Path(__file__).parent / "toys"
LINEAR = f"algo={TOYS / 'linear.py'}"
SHORT = ["env=null", "protocol.updates=60", "protocol.checkpoint_every=20", "protocol.log_every=10"]


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Six episodes of thirty steps in an NPZ file."""
    generator = np.random.default_rng(0)
    rows = 180
    np.savez(
        tmp_path / "log.npz",
        observations=generator.normal(size=(rows, 3)),
        actions=np.clip(generator.normal(size=(rows, 2)), -1, 1),
        rewards=generator.normal(size=rows),
        terminals=np.arange(rows) % 30 == 29,
        timeouts=np.zeros(rows, bool),
    )
    return f"dataset=file:{tmp_path / 'log.npz'}"


def configuration(arguments: list[str]) -> dict:
    """As the command composes it."""
    prepared = prepare_arguments(arguments, "train")
    with hydra.initialize_config_module("offrl.configs", version_base="1.3"):
        config = OmegaConf.to_container(hydra.compose("train", overrides=prepared), resolve=True)
    env = next((argument.partition("=")[2] for argument in arguments if argument.startswith("env=")), "from_dataset")
    return {**config, "env_name": env}


def run(*arguments: str) -> Run:
    return train(configuration(list(arguments)), {argument.partition("=")[0] for argument in arguments})


def final_state(found: Run) -> list[np.ndarray]:
    import jax

    return jax.tree.leaves(found.restore(found.checkpoints()[-1]))


def metrics_without_time(path: Path) -> pd.DataFrame:
    return pd.read_csv(path / "metrics.csv").drop(columns="seconds")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("algo=iqll", "did you mean iql"),
        ("algo=none.py", "no such file"),
        ("env=hoper", "did you mean hopper"),
        ("protocol=quik", "did you mean quick"),
        ("algo.expectil=0.9", "did you mean algo.expectile"),
        ("protocol.update=3", "did you mean protocol.updates"),
        ("algo=iql,td3_bc", "add -m"),
        ("iql", "not of the form key=value"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(argument, message):
    with pytest.raises(UserError, match=message) as error:
        prepare_arguments([argument], "train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("algo.learning_rate=fast", "must be float"),
        ("algo.batch_size=2.5", "must be int"),
        ("algo.batch_size=[2,4]", "sweep it with -m"),
        ("algo.flavour=sweet", "not a choice"),
        ("seeds=[1,1]", "stands there twice"),
        ("seeds=0", "must be a number of members"),
        ("seed=-1", "0 or more"),
        ("protocol.updates=0", "1 or more"),
        ("protocol.validation_fraction=1.0", "below 1"),
        ("resume=perhaps", "must be true or false"),
        ("wandb=maybe", "not a choice"),
        ("dataset=medium", "short name needs a built-in env"),
    ],
)
def test_wrong_values_are_refused_in_one_line(tmp_path, log, argument, message):
    with pytest.raises(UserError, match=message) as error:
        run(LINEAR, log, "env=from_dataset", f"runs={tmp_path}", argument)
    assert "\n" not in str(error.value)


def test_a_finished_run_is_left_as_it_is_and_resume_false_begins_again(tmp_path, log, capsys):
    arguments = [LINEAR, log, *SHORT, f"run_dir={tmp_path / 'run'}"]
    first = run(*arguments)
    written = (first.path / "metrics.csv").read_bytes()
    assert first.info["finished"]
    assert first.checkpoints() == [20, 40, 60]
    assert run(*arguments).info["finished"]
    assert (first.path / "metrics.csv").read_bytes() == written
    again = run(*arguments, "resume=false")
    assert again.checkpoints() == [20, 40, 60]
    for ours, theirs in zip(final_state(first), final_state(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_folder_that_holds_another_run_or_other_files_is_not_touched(tmp_path, log):
    run(LINEAR, log, *SHORT, f"run_dir={tmp_path / 'run'}")
    with pytest.raises(UserError, match=r"holds another run \(algo.learning_rate was 0.1, is 0.2"):
        run(LINEAR, log, *SHORT, f"run_dir={tmp_path / 'run'}", "algo.learning_rate=0.2")
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="files that are not of a run"):
        run(LINEAR, log, *SHORT, f"run_dir={tmp_path / 'mine'}", "resume=false")
    assert (tmp_path / "mine" / "checkpoints").exists()


def test_data_that_changed_under_a_run_are_refused(tmp_path, log):
    arguments = [LINEAR, log, *SHORT, f"run_dir={tmp_path / 'run'}"]
    run(*arguments)
    file = Path(log.removeprefix("dataset=file:"))
    with np.load(file) as arrays:
        changed = {name: arrays[name].copy() for name in arrays.files}
    changed["rewards"][3] += 1
    np.savez(file, **changed)
    with pytest.raises(UserError, match="the data changed"):
        run(*arguments)


def test_swept_numbers_and_seeds_make_the_members(tmp_path, log):
    found = run(LINEAR, log, *SHORT, f"runs={tmp_path}", "algo.learning_rate=[0.1,0.2]", "seeds=[3,5]")
    made = [(item["values"]["learning_rate"], item["seed"]) for item in found.members]
    assert made == [(0.1, 3), (0.1, 5), (0.2, 3), (0.2, 5)]
    assert set(found.metrics()["member"]) == {0, 1, 2, 3}


def test_a_member_that_diverges_is_stopped_and_told_while_the_others_go_on(tmp_path, log, capsys):
    found = run(LINEAR, log, *SHORT, f"runs={tmp_path}", "algo.fails_at=[-1,33]")
    assert [item["diverged_at"] for item in found.members] == [None, 33]
    assert "diverged: a metric was not finite at step 33" in capsys.readouterr().err
    assert [found.last_checkpoint(number) for number in (0, 1)] == [60, 20]
    alone = run(LINEAR, log, *SHORT, f"runs={tmp_path}")
    for together, single in zip(final_state(found), final_state(alone), strict=True):
        np.testing.assert_array_equal(together[0], single[0])


def test_a_damaged_checkpoint_is_named_and_refused(tmp_path, log):
    found = run(LINEAR, log, *SHORT, f"run_dir={tmp_path / 'run'}")
    for file in (found.path / "checkpoints" / "60").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match="checkpoints/60: checkpoint cannot be read"):
        found.restore(60)


def test_differences_name_dotted_keys_with_both_values():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ["a.c was 2, is 3"]


def test_a_run_killed_at_random_moments_ends_bit_for_bit_as_an_uninterrupted_one(tmp_path, log):
    protocol = [
        "env=null",
        "protocol.updates=1500",
        "protocol.checkpoint_every=100",
        "protocol.log_every=50",
        "seeds=2",
    ]
    command = [sys.executable, "-m", "offrl.train", LINEAR, log, *protocol]
    subprocess.run([*command, f"run_dir={tmp_path / 'whole'}"], check=True, stdout=subprocess.DEVNULL)
    whole = Run.open(tmp_path / "whole")
    killed = tmp_path / "killed"
    generator = random.Random(0)
    kills = 0
    for _ in range(3):
        process = subprocess.Popen([*command, f"run_dir={killed}"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:  # at work: kill it somewhere in the next moments
            if "updates/s" in line:
                break
        time.sleep(generator.uniform(0.0, 0.3))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.stdout.close()
        process.wait()
    assert kills > 0
    last = subprocess.run([*command, f"run_dir={killed}"], capture_output=True, text=True, check=True)
    assert "continuing from step" in last.stdout
    resumed = Run.open(killed)
    assert resumed.info["finished"]
    assert resumed.checkpoints() == whole.checkpoints()
    for ours, theirs in zip(final_state(resumed), final_state(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    pd.testing.assert_frame_equal(metrics_without_time(killed), metrics_without_time(whole.path), check_exact=True)


def test_the_command_line_answers_mistakes_without_a_traceback_and_teaches_with_help():
    command = [sys.executable, "-m", "offrl.train"]
    wrong = subprocess.run([*command, "algo=iqll"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.strip().splitlines() == ["error: algo=iqll: unknown; did you mean iql?"]
    taught = subprocess.run([*command, "algo=td3_bc", "--help"], capture_output=True, text=True, check=True)
    for word in ("algo.alpha", "protocol", "seeds", "hopper", "dataset"):
        assert word in taught.stdout
