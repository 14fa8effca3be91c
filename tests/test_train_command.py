"""python -m offrl.train: what it refuses, what it makes, and that an interrupted run ends as an uninterrupted one."""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import absl.logging
import filelock
import h5py
import jax
import numpy as np
import pandas as pd
import pytest
import yaml

from offrl import algorithm, train
from offrl.errors import UserError
from offrl.protocol import scores
from offrl.runs import configuration
from offrl.runs.checkpoints import Checkpoints
from offrl.runs.folder import LOCK
from offrl.runs.run import Run
from offrl.selection.pool import load_dataset

ROOT = Path(__file__).parents[1]
TOYS = Path(__file__).parent / "toys"
LINEAR, TWO_PHASES = f"algo={TOYS / 'linear.py'}", f"algo={TOYS / 'two_phases.py'}"
SHORT = ("env=null", "protocol.updates=60", "protocol.checkpoint_every=20", "protocol.log_every=10")


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The option that names a file of six episodes, thirty steps each."""
    generator, rows = np.random.default_rng(0), 180
    np.savez(
        tmp_path / "log.npz",
        observations=generator.normal(size=(rows, 3)),
        actions=np.clip(generator.normal(size=(rows, 2)), -1, 1),
        rewards=generator.normal(size=rows),
        terminals=np.arange(rows) % 30 == 29,
    )
    return f"dataset=file:{tmp_path / 'log.npz'}"


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """The command line, in this process and an empty folder: exit status, output, lines on stderr."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*arguments: str) -> tuple[int, str, list[str]]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["offrl.train", *arguments])
        # Hydra resets logging, at which absl closes its stream where that is not the present stderr: pytest's own
        monkeypatch.setattr(absl.logging.get_absl_handler().python_handler, "stream", sys.stderr)
        status = 0
        try:
            train.main()
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return call


@pytest.fixture
def run(command, log, tmp_path):
    """A run that ends well, of the linear toy where no other is named."""

    def call(*arguments: str, run_dir: str = "run") -> Run:
        toy = () if any(argument.startswith("algo=") for argument in arguments) else (LINEAR,)
        status, _, err = command(*toy, log, *SHORT, *arguments, f"run_dir={tmp_path / run_dir}")
        assert status == 0, "\n".join(err)
        return Run.open(tmp_path / run_dir)

    return call


def state(run: Run, step: int = -1) -> list[np.ndarray]:
    """What the checkpoint at that step holds, by default the last."""
    return jax.tree.leaves(run.restore(run.checkpoints()[-1] if step < 0 else step))


def rows(run: Run) -> list[str]:
    """The table of metrics to the letter, but for the seconds."""
    return [line.rpartition(",")[0] for line in (run.path / "metrics.csv").read_text().splitlines()]


def assert_same(run: Run, whole: Run) -> None:
    """Bit for bit: every checkpoint and every number."""
    assert run.info["finished"]
    assert run.checkpoints() == whole.checkpoints()
    for step in whole.checkpoints():
        for ours, theirs in zip(state(run, step), state(whole, step), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert rows(run) == rows(whole)


def interrupt(run: Run, step: int) -> None:
    """Leave the folder as a kill after that checkpoint leaves it."""
    for later in run.checkpoints():
        if later > step:
            shutil.rmtree(run.path / "checkpoints" / str(later))
    run.info["finished"] = False
    run.write_info()


# What is refused


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("algo=iqll", "algo=iqll: unknown; did you mean iql"),
        ("algo=none.py", "algo=none.py: no such file"),
        ("env=hoper", "env=hoper: unknown; did you mean hopper"),
        ("protocol=quik", "protocol=quik: unknown; did you mean quick?"),
        ("algo.expectil=0.9", "there is no algo.expectil; did you mean algo.expectile"),
        ("protocol.update=3", "there is no protocol.update; did you mean protocol.updates"),
        ("+seedz=3", "there is no seedz; did you mean seed, seeds?"),
        ("algo=iql,td3_bc", "algo=iql,td3_bc: several values; add -m"),
        ("seed=0,1", "seed=0,1: several values; add -m"),
        ("env=null,hopper", "env=null,hopper: several values; add -m"),
        ("iql", "iql: not of the form key=value"),
        ("~algo", "~algo: not of the form key=value"),
        ("seeds=[1", "seeds=[1: cannot be read"),
        ("seed=1", "dataset=null: nothing to train on"),
    ],
)
def test_unknown_names_are_refused_in_one_line_with_the_nearest(command, argument, message):
    status, out, err = command(argument)
    assert (status, out, len(err)) == (2, "", 1)
    assert err[0].startswith("error: ")
    assert message in err[0]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("algo.learning_rate=fast", "algo.learning_rate=fast: must be float, like its default 0.1"),
        ("algo.learning_rate=[0.1,fast]", "algo.learning_rate=fast: must be float"),
        ("algo.learning_rate=nan", "must be finite"),
        ("algo.fails_at=-2", "algo.fails_at=-2.0: must be -1 or more"),
        ("algo.batch_size=2.5", "must be int"),
        ("algo.batch_size=0", "must be 1 or more"),
        ("algo.batch_size=[2,4]", "sweep it with -m"),
        ("algo.flavour=sweet", "not a choice; choose from plain, salty"),
        ("seeds=[1,1]", "is given twice"),
        ("seeds=0", "must be a number of members"),
        ("seed=-1", "0 or more"),
        ("protocol.updates=0", "1 or more"),
        ("protocol.log_every=true", "must be a whole number"),
        ("protocol.split_seed=-1", "0 or more"),
        ("protocol.validation_fraction=1.0", "below 1"),
        ("resume=perhaps", "must be true or false"),
        ("wandb=on", "not a choice; did you mean online"),
        ("run_dir=7", "run_dir=7: must be text"),
        ("dataset=5", "dataset=5: must be text"),
        ("dataset=medium", "a short name needs a built-in env"),
        ("dataset=file:nothing.npz", "there is no file nothing.npz"),
        ("data.steps=many", "data.steps=many: must be a whole number"),
        ("data.columns=7", "data.columns=7: must be a mapping"),
        ("data.columns.rewards=gain", "columns.rewards='gain' is not in the file"),
    ],
)
def test_wrong_values_are_refused_in_one_line_and_leave_nothing_behind(command, log, argument, message):
    status, out, err = command(LINEAR, log, "env=null", argument)
    assert (status, out, len(err)) == (2, "", 1)
    assert message in err[0]
    assert not list(Path.cwd().iterdir())


def test_a_wrong_value_is_told_before_the_data_are_made(command, monkeypatch):
    monkeypatch.setattr("offrl.train.load", lambda *_, **__: pytest.fail("data were loaded"))
    assert command("env=hopper", "algo.expectile=abc")[0] == 2


def test_an_option_that_one_algorithm_of_a_sweep_lacks_is_refused_before_the_first_run(command, log):
    status, _, err = command("-m", "algo=iql,td3_bc", "algo.expectile=0.8", log)
    assert (status, len(err)) == (2, 1)
    assert "there is no algo.expectile with algo=td3_bc" in err[0]


# What a run makes


def test_a_run_writes_its_configuration_its_metrics_and_a_checkpoint_at_every_interval(run):
    made = run()
    assert made.info["finished"]
    assert made.checkpoints() == [20, 40, 60]
    assert yaml.safe_load((made.path / "config.yaml").read_text())["algo"]["learning_rate"] == 0.1
    table = made.metrics()
    assert table["step"].tolist() == [10, 20, 30, 40, 50, 60]
    assert set(table["metric"]) == {"loss"}
    assert table["seconds"].is_monotonic_increasing
    assert table["value"].iloc[-1] < table["value"].iloc[0]


def test_swept_numbers_and_seeds_make_the_members(run):
    made = run("algo.learning_rate=[0.1,0.2]", "seeds=[3,5]")
    members = [(item["values"]["learning_rate"], item["seed"]) for item in made.members]
    assert members == [(0.1, 3), (0.1, 5), (0.2, 3), (0.2, 5)]
    assert [config.learning_rate for config in made.member_configs] == [0.1, 0.1, 0.2, 0.2]
    single = run("algo.learning_rate=0.2", "seed=3", run_dir="single")
    for together, alone in zip(state(made), state(single), strict=True):
        np.testing.assert_array_equal(together[2], alone[0])


def test_without_a_held_out_share_every_episode_is_trained_on(run):
    assert run("protocol.validation_fraction=0.0").info["dataset"]["train_episodes"] == 6
    assert run("protocol.validation_fraction=0.5", run_dir="half").info["dataset"]["train_episodes"] == 3


def test_options_name_the_columns_of_a_file(run, log, tmp_path):
    with np.load(tmp_path / "log.npz") as arrays:
        renamed = {"gain" if name == "rewards" else name: arrays[name] for name in arrays.files}
    np.savez(tmp_path / "log.npz", **renamed)
    assert run("data.columns.rewards=gain").info["finished"]
    assert run("data.columns={rewards: gain}").info["finished"]


def test_data_without_a_usable_row_are_refused_in_one_line(command, tmp_path):
    """Every row of the file is a timeout: 600 episodes of one step."""
    generator, rows = np.random.default_rng(0), 600
    columns = {"observations": generator.normal(size=(rows, 3)), "actions": generator.uniform(-1, 1, (rows, 2))}
    columns |= {"rewards": np.arange(rows) * 1.0, "terminals": np.zeros(rows, bool), "timeouts": np.ones(rows, bool)}
    with h5py.File(tmp_path / "one_step.hdf5", "w") as file:
        for name, values in columns.items():
            file[name] = values
    status, _, err = command("algo=iql", f"dataset=file:{tmp_path / 'one_step.hdf5'}", "env=null", "protocol=smoke")
    assert (status, len(err)) == (2, 1)
    assert "no row is left to learn from: all 600 episodes have one step" in err[0]


def test_shifted_next_observations_are_warned_of_and_kept_only_where_the_user_says_so(run, log, tmp_path):
    path = tmp_path / "log.npz"
    with np.load(path) as file:
        arrays = dict(file)
    arrays["timeouts"] = arrays.pop("terminals")
    arrays |= {"terminals": np.zeros(180, bool), "next_observations": np.roll(arrays["observations"], -1, axis=0)}
    np.savez(path, **arrays)
    careful, trusting = run(), run("data.trust_next_observations=true", run_dir="trusting")
    assert any("at 6 of 6 episode ends (100.0%)" in warning for warning in careful.info["dataset"]["warnings"])
    assert careful.info["dataset"]["fingerprint"] != trusting.info["dataset"]["fingerprint"]
    assert "trust_next_observations" not in careful.info["identity"]["data"]  # the folder is the one it has always been
    for made in (careful, trusting):
        assert load_dataset(made).fingerprint == made.info["dataset"]["fingerprint"]
    assert len(load_dataset(trusting).transition_rows) == 180


def test_a_multirun_makes_one_run_after_the_other_and_litters_no_folder_of_the_user(command, log):
    status, _, err = command("-m", LINEAR, log, *SHORT, "seed=0,1", "algo.flavour=plain,salty")
    assert status == 0, err
    assert len(list(Path.cwd().glob("runs/file-log/linear-*/run.json"))) == 4
    assert [path.name for path in Path.cwd().iterdir()] == ["runs"]


def test_published_values_replace_defaults_and_not_what_the_user_chose(command, log, monkeypatch):
    published = {"learning_rate": 0.5, "batch_size": 2}
    monkeypatch.setattr(configuration, "tuned_values", lambda *_: (published, "a paper"))

    def options(*arguments: str) -> tuple[float, int]:
        status, _, err = command(LINEAR, log, *SHORT, *arguments)
        assert status == 0, "\n".join(err)
        used = yaml.safe_load(
            max(Path.cwd().glob("runs/*/*/config.yaml"), key=lambda file: file.stat().st_mtime).read_text()
        )
        return used["algo"]["learning_rate"], used["algo"]["batch_size"]

    assert options() == (0.5, 2)
    assert options("algo.learning_rate=0.1") == (0.1, 2)
    assert options("tuned=false") == (0.1, 4)


def test_every_published_value_is_an_option_of_its_algorithm():
    for file in (ROOT / "configs" / "published").glob("*.yaml"):
        defaults = configuration.option_defaults(algorithm.load(file.stem))
        for entry in yaml.safe_load(file.read_text()):
            options = json.loads(json.dumps(defaults))
            for key, value in entry["values"].items():
                *parents, leaf = key.split(".")
                node = options
                for parent in parents:
                    node = node[parent]
                assert leaf in node, f"{file.name}: {key}"
                node[leaf] = value
            configuration.member_configs(algorithm.load(file.stem), options, [0])


def test_help_lists_choices_and_every_option_with_its_meaning(command):
    status, out, err = command("--help", "algo=td3_bc", "protocol=paper")
    assert (status, err) == (0, [])
    for name, field in algorithm.load("td3_bc").options().items():
        assert f"algo.{name}" in out
        if name != "preprocessing":
            assert " ".join(field.metadata["help"].split()[:2]) in out
    for word in ("algo.preprocessing.observations", "hopper", "smoke", "1000000", "dataset", "seeds", "run_dir"):
        assert word in out


# Divergence


def test_a_member_that_diverges_is_stopped_and_told_while_the_others_go_on(run, command, log, tmp_path):
    arguments = (LINEAR, log, *SHORT, "algo.fails_at=[-1,33]", f"run_dir={tmp_path / 'two'}")
    status, _, err = command(*arguments)
    assert status == 0
    told = [line for line in err if "diverged" in line]
    assert len(told) == 1
    assert "member 1 (seed 0) diverged: a metric was not finite at step 33" in told[0]
    made = Run.open(tmp_path / "two")
    assert [item["diverged_at"] for item in made.members] == [None, 33]
    assert [made.last_checkpoint(member) for member in (0, 1)] == [60, 20]
    alone = run(run_dir="alone")
    for together, single in zip(state(made), state(alone), strict=True):
        np.testing.assert_array_equal(together[0], single[0])
    table = made.metrics()
    assert table[table["member"] == 1]["step"].tolist() == [10, 20, 30]
    assert table[table["member"] == 0]["value"].tolist() == alone.metrics()["value"].tolist()


def test_a_step_size_beyond_all_reason_is_reported_and_not_trained_on(run):
    made = run("algo.learning_rate=[0.1,1e30]")
    assert made.members[0]["diverged_at"] is None
    assert made.members[1]["diverged_at"] <= 3
    assert np.isfinite(state(made)[1]).all()


def test_a_run_whose_members_have_all_diverged_ends_there_also_when_it_was_interrupted(run, capsys):
    whole = run("algo.fails_at=[33,35]")
    assert whole.checkpoints() == [20, 40]
    shutil.copytree(whole.path, whole.path.with_name("resumed"))
    resumed = Run.open(whole.path.with_name("resumed"))
    interrupt(resumed, 20)
    assert_same(run("algo.fails_at=[33,35]", run_dir="resumed"), whole)


# Going on


def test_a_finished_run_is_left_as_it_is_and_resume_false_begins_again(run, command, log):
    made = run()
    before = {file: file.stat().st_mtime_ns for file in made.path.rglob("*") if file.is_file()}
    status, out, err = command(LINEAR, log, *SHORT, f"run_dir={made.path}")
    assert (status, err) == (0, [])
    assert "updates/s" not in out
    assert {file: file.stat().st_mtime_ns for file in made.path.rglob("*") if file.is_file()} == before
    (made.path / "metrics.csv").write_text("phase,step,member,seed,metric,value,seconds\n")
    again = run("resume=false")
    assert [len(again.metrics()), again.checkpoints()] == [6, [20, 40, 60]]


@pytest.mark.parametrize("step", [15, 25, 45])
def test_a_run_of_two_phases_goes_on_bit_for_bit_before_at_and_after_their_boundary(run, step):
    protocol = (TWO_PHASES, "protocol.updates=30", "protocol.checkpoint_every=15")
    whole = run(*protocol, run_dir="whole")
    assert whole.checkpoints() == [15, 25, 30, 45, 55]
    table = whole.metrics()
    assert table[table["phase"] == "mean"][["step", "metric"]].values.tolist()[-1] == [25, "mean_loss"]
    assert table[table["phase"] == "walk"][["step", "metric"]].values.tolist()[0] == [30, "walk_loss"]
    assert whole.restore(25).begun.tolist() == [0]
    assert whole.restore(30).begun.tolist() == [1]
    shutil.copytree(whole.path, whole.path.with_name("resumed"))
    interrupt(Run.open(whole.path.with_name("resumed")), step)
    assert_same(run(*protocol, run_dir="resumed"), whole)


def test_what_a_kill_leaves_half_written_is_cleared_away(run):
    whole = run(run_dir="whole")
    shutil.copytree(whole.path, whole.path.with_name("killed"))
    killed = Run.open(whole.path.with_name("killed"))
    interrupt(killed, 40)
    (killed.path / "checkpoints" / "60.orbax-checkpoint-tmp-0").mkdir()
    text = (killed.path / "metrics.csv").read_text()
    (killed.path / "metrics.csv").write_text(text[: text.index("train,60") + 7])  # "train,6": a step long past
    assert_same(run(run_dir="killed"), whole)


def test_a_folder_left_before_the_run_was_described_is_begun_anew(run):
    whole = run(run_dir="whole")
    shutil.copytree(whole.path, whole.path.with_name("killed"))
    (whole.path.with_name("killed") / "run.json").unlink()
    shutil.rmtree(whole.path.with_name("killed") / "checkpoints" / "60")
    assert_same(run(run_dir="killed"), whole)


def test_a_folder_that_holds_another_run_is_not_touched(run, command, log):
    made = run()
    status, _, err = command(LINEAR, log, *SHORT, f"run_dir={made.path}", "algo.learning_rate=0.2")
    assert (status, len(err)) == (2, 1)
    assert "holds another run (algo.learning_rate was 0.1, is 0.2)" in err[0]


@pytest.mark.parametrize("resume", ["true", "false"])
@pytest.mark.parametrize("name", ["checkpoints/mine.txt", "metrics.csv", "metrics.csv.bak", "config.yaml", "run.json"])
def test_a_folder_that_holds_other_files_is_not_touched(command, log, tmp_path, name, resume):
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    status, _, err = command(LINEAR, log, *SHORT, f"run_dir={tmp_path / 'mine'}", f"resume={resume}")
    assert status == 2
    assert "files that do not belong to a run" in err[-1]
    assert [path for path in (tmp_path / "mine").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "{}"


def test_only_one_process_trains_in_a_folder(run, command, log):
    made = run(run_dir="run")
    interrupt(made, 20)
    with filelock.FileLock(made.path / LOCK):
        status, _, err = command(LINEAR, log, *SHORT, f"run_dir={made.path}")
    assert status == 2
    assert "another process is training in it" in err[-1]
    assert made.checkpoints() == [20]


def test_a_finished_run_that_lost_its_last_checkpoint_is_trained_to_its_end_again(run, tmp_path):
    whole = run(run_dir="whole")
    shutil.copytree(whole.path, tmp_path / "short")
    shutil.rmtree(tmp_path / "short" / "checkpoints" / "60")
    short = Run.open(tmp_path / "short")
    assert short.info["finished"]
    assert not short.complete
    assert set(scores.scores([short])["reason"]) == {
        "training is not finished (step 40); the same command continues it"
    }
    assert_same(run(run_dir="short"), whole)
    assert short.complete


def test_the_name_of_a_recipe_is_that_also_beside_a_file_called_so(command, monkeypatch):
    asked = []
    monkeypatch.setattr("offrl.train.load", lambda name, **options: asked.append(name))
    Path("medium").mkdir()
    command("algo=iql", "env=hopper", "dataset=medium")
    assert asked == ["builtin:hopper/medium"]


def test_an_algorithm_file_that_changed_is_another_run(command, log, tmp_path):
    file = tmp_path / "mine.py"
    text = (TOYS / "linear.py").read_text()
    for place, factor in enumerate(("** 2", "** 4")):
        file.write_text(text.replace("** 2", factor))
        assert command(f"algo={file}", log, *SHORT)[0] == 0
        assert len(list(Path.cwd().glob("runs/*/mine-*"))) == place + 1


def test_data_that_changed_under_a_run_are_refused(run, command, log, tmp_path):
    made = run()
    with np.load(tmp_path / "log.npz") as arrays:
        changed = {name: arrays[name].copy() for name in arrays.files}
    changed["rewards"][3] += 1
    np.savez(tmp_path / "log.npz", **changed)
    status, _, err = command(LINEAR, log, *SHORT, f"run_dir={made.path}")
    assert (status, len(err)) == (2, 1)
    assert "the data changed" in err[0]


def test_a_damaged_checkpoint_is_named_and_refused_and_the_one_before_it_serves(run, command, log):
    whole = run(run_dir="whole")
    shutil.copytree(whole.path, whole.path.with_name("damaged"))
    damaged = Run.open(whole.path.with_name("damaged"))
    interrupt(damaged, 40)
    folder = damaged.path / "checkpoints" / "40"
    for file in [file for file in folder.rglob("*") if file.is_file() and file.parent.name == "d"]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    status, _, err = command(LINEAR, log, *SHORT, f"run_dir={damaged.path}")
    assert (status, len(err)) == (2, 1)
    assert f"{folder}: checkpoint cannot be read" in err[0]
    assert "delete that folder to continue from the previous one" in err[0]
    shutil.rmtree(folder)
    assert_same(run(run_dir="damaged"), whole)


@pytest.mark.parametrize("text", [None, "", "phase,step,member,seed,metric,value,seconds\na,b,c,d,e,f,g\n"])
def test_a_missing_or_damaged_table_of_metrics_is_named_and_refused(run, command, log, text):
    whole = run()
    shutil.copytree(whole.path, whole.path.with_name("spoilt"))
    spoilt = Run.open(whole.path.with_name("spoilt"))
    interrupt(spoilt, 40)
    file = spoilt.path / "metrics.csv"
    file.unlink() if text is None else file.write_text(text)
    status, _, err = command(LINEAR, log, *SHORT, f"run_dir={spoilt.path}")
    assert (status, len(err)) == (2, 1)
    assert "metrics.csv: missing or damaged" in err[0]


def test_a_checkpoint_without_its_checksum_is_refused(run):
    made = run()
    (made.path / "checkpoints" / "60" / "_CHECKPOINT_METADATA").unlink()  # where Orbax keeps what it was given with it
    with pytest.raises(UserError, match="60: checkpoint cannot be read"):
        made.restore(60)


def test_a_single_changed_byte_in_a_checkpoint_is_noticed(tmp_path):
    tree = {"weights": np.random.default_rng(0).normal(size=(1, 64, 64)).astype(np.float32)}
    store = Checkpoints(tmp_path)
    store.save(5, tree)
    store.finish()
    np.testing.assert_array_equal(store.restore(5, tree)["weights"], tree["weights"])
    file = max((file for file in (tmp_path / "5").rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="5: checkpoint cannot be read"):
        store.restore(5, tree)


def test_a_run_killed_at_random_moments_ends_bit_for_bit_as_an_uninterrupted_one(log, tmp_path):
    """Real processes and SIGKILL, the uninterrupted one among them, so that all start from the same state of mind."""
    protocol = (
        "env=null",
        "protocol.updates=4000",
        "protocol.checkpoint_every=100",
        "protocol.log_every=50",
        "seeds=2",
    )
    arguments = [sys.executable, "-m", "offrl.train", LINEAR, log, *protocol]
    whole, killed = (f"run_dir={tmp_path / name}" for name in ("whole", "killed"))
    subprocess.run([*arguments, whole], capture_output=True, check=True)
    generator, kills = random.Random(0), 0
    for _ in range(3):
        process = subprocess.Popen([*arguments, killed], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        lines = (line for line in process.stdout if "updates/s" in line)
        for _, _ in zip(range(generator.randrange(1, 9)), lines, strict=False):
            pass
        time.sleep(generator.uniform(0.0, 0.05))
        kills += process.poll() is None
        process.kill()
        process.stdout.close()
        process.wait()
    assert kills > 0
    stood = Checkpoints(tmp_path / "killed" / "checkpoints").steps()
    last = subprocess.run([*arguments, killed], capture_output=True, text=True, check=True)
    assert ("continuing from step" in last.stdout) == bool(stood)
    assert_same(Run.open(tmp_path / "killed"), Run.open(tmp_path / "whole"))
    assert len(pd.read_csv(tmp_path / "killed" / "metrics.csv")) == 2 * 80


def test_whole_numbers_in_a_list_of_floats_are_floats_and_other_things_are_named():
    options = algorithm.load("mopo").options()
    field = options["dynamics_weight_decay"]
    assert configuration.check([0, 1e-4], field, "algo.dynamics_weight_decay") == (0.0, 1e-4)
    with pytest.raises(UserError, match=r"algo.dynamics_weight_decay=\['a'\]: must be a list of float"):
        configuration.check(["a"], field, "algo.dynamics_weight_decay")
    with pytest.raises(UserError, match="must be a list of int"):
        configuration.check([0.5], options["hidden_dims"], "algo.hidden_dims")
