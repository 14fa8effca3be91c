"""Exactly N episodes of every policy, the same ones, each to its end; nothing twice; failures in one line."""

import importlib.metadata
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from tiny_environments import episode_length

import offrl.algorithm
from offrl import statistics
from offrl.data.transforms import STANDARDIZE, unit_box
from offrl.errors import UserError
from offrl.evaluate import parse
from offrl.playing import evaluation, returns, simulators
from offrl.playing.evaluation import evaluate_policies, evaluate_run
from offrl.playing.simulators import SimulatorError, Simulators
from offrl.protocol.run_scores import policy_scores, population_scores
from offrl.reporting.run_scores import summarize
from offrl.runs.checkpoints import Checkpoints
from offrl.runs.run import Run

ENV = "tiny_environments:Tiny-v0"
LIMIT = 20  # the time limit Tiny-v0 is registered with
GAINS = {10: [0.1, 0.2], 20: [0.3, 0.4], 30: [0.5, 0.6]}
ALGORITHM = """
from typing import Any
import flax, jax, jax.numpy as jnp
import offrl.algorithm
from offrl.algorithm import option
from offrl.learning.policies import Policy

@flax.struct.dataclass
class Config:
    sign: float = option(1.0, "of the action")

@flax.struct.dataclass
class State:
    step: jax.Array
    gain: jax.Array

def init(key, config, spec):
    return State(step=jnp.zeros((), jnp.int32), gain=jnp.zeros(()))

def update(key, state, dataset, config):
    return state, {}

def policy(config, spec):
    def act(state, observations):
        return config.sign * state.gain * jnp.tanh(observations)[:, :1] * jnp.ones((1, spec.action_dim))
    return Policy(act=act)
"""


def lasts(seeds):
    return np.minimum([episode_length(int(seed)) for seed in seeds], LIMIT)


def make_run(path: Path, **dataset) -> Path:
    """A run of two members whose checkpoints hold the gains above."""
    path.mkdir(parents=True)
    (path / "linear.py").write_text(ALGORITHM)
    offrl.algorithm.load(str(path / "linear.py"))  # named by the user of this process, and so trusted
    transforms = [
        unit_box(np.full(2, -2.0), np.full(2, 2.0)),
        {"name": STANDARDIZE, "mean": [0.5, 1.0], "std": [2.0, 3.0], "epsilon": 0.0},
    ]
    info = {
        "algorithm": {"name": "linear", "file": str(path / "linear.py"), "options": {"sign": [1.0, -1.0]}},
        "phases": [{"name": "train", "updates": 30}],
        "spec": {"observation_dim": 2, "action_dim": 2, "updates": 30},
        "protocol": {"name": "smoke", "episodes": 3, "evaluation_seed": 100},
        "identity": {},
        "finished": True,
        "dataset": {
            "name": "file:log.npz",
            "fingerprint": "0123456789012345",
            "episodes": 7,
            "env_id": ENV,
            "env_kwargs": {},
            "reference": {"random": -10.0, "expert": 40.0, "source": "made up"},
            "action_low": [-2.0, -2.0],
            "action_high": [2.0, 2.0],
            "transforms": transforms,
            "returns": {"mean": 12.0, "min": 3.0, "max": 20.0},
            **dataset,
        },
        "members": [
            {"member": i, "seed": 5, "values": {"sign": sign}, "diverged_at": None}
            for i, sign in enumerate((1.0, -1.0))
        ],
    }
    (path / "run.json").write_text(json.dumps(info))
    store = Checkpoints(path / "checkpoints")
    for step, gains in GAINS.items():
        state = {"step": jnp.full(2, step, jnp.int32), "gain": jnp.array(gains)}
        kind = Run.open(path).algorithm.init(jax.random.key(0), None, None)
        store.save(step, {"states": kind.replace(**state), "diverged_at": jnp.full(2, -1, jnp.int32)})
    store.finish()
    return path


def change(path: Path, **dataset) -> None:
    info = json.loads((path / "run.json").read_text())
    info["dataset"].update(dataset)
    (path / "run.json").write_text(json.dumps(info))


@pytest.fixture(scope="module")
def made_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made_run, tmp_path):
    """A copy that nobody has scored yet."""
    import shutil

    return Path(shutil.copytree(made_run, tmp_path / "run"))


class Lasting(Simulators):
    """Simulators that outlive a test: a process takes longer to start than a test does to run."""

    def __enter__(self):
        return self if self._processes else super().__enter__()

    def __exit__(self, *exception):
        pass


@pytest.fixture(scope="module")
def kept():
    kept = {}
    yield kept
    for environments in kept.values():
        environments.close()


@pytest.fixture
def pool(kept, monkeypatch):
    """In place of `Simulators`: those of an earlier test, with room for 16 episodes, in one process."""

    def lasting(env_id, env_kwargs, count, workers=None):
        assert count <= 16
        key = (env_id, *env_kwargs.items())
        if key not in kept:
            kept[key] = Lasting(env_id, env_kwargs, 16, workers=1)
        return kept[key]

    monkeypatch.setattr(evaluation, "Simulators", lasting)
    return lasting


def constant(value):
    return lambda observations: np.full((*observations.shape[:2], 2), value)


def test_every_episode_is_played_once_to_its_end_on_any_number_of_workers():
    seeds = np.arange(50, 61)
    wanted = np.ones((2, 11), bool)
    wanted[1, 4:7] = False

    def act(observations):
        actions = np.tanh(observations[:, :, :1] * [[[0.5]], [[-0.5]]])
        return np.concatenate([actions, actions], -1)

    results = []
    for workers in (1, 2):
        with Simulators(ENV, {}, 8, workers) as environments:
            results.append(evaluate_policies(act, environments, seeds, wanted, slots=4))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)

    environment = gymnasium.make(ENV)
    for member in range(2):
        for episode, seed in enumerate(seeds):
            if not wanted[member, episode]:
                assert np.isnan(results[0].returns[member, episode])
                assert results[0].lengths[member, episode] == 0
                continue
            observation, _ = environment.reset(seed=int(seed))
            total, steps, ended = 0.0, 0, False
            while not ended:
                batch = np.zeros((2, 1, 2), np.float32)
                batch[member] = observation
                observation, reward, termination, truncation, _ = environment.step(
                    act(batch)[member, 0].astype(np.float32)
                )
                total, steps, ended = total + reward, steps + 1, termination or truncation
            assert results[0].returns[member, episode] == total
            assert results[0].lengths[member, episode] == steps
    assert np.isnan(results[0].successes).all(), "this environment reports no success"
    np.testing.assert_array_equal(results[0].lengths[0], lasts(seeds))
    assert len(set(lasts(seeds))) > 3
    assert (lasts(seeds) == LIMIT).any(), "some are cut by the time limit"


def test_environments_wait_after_their_episode(pool):
    with pool(ENV, {}, 3) as environments:
        environments.reset(np.array([0, 1, 2]))
        lengths = np.zeros(3, int)
        for _ in range(LIMIT + 5):
            lengths += environments.active[:3]
            environments.step(np.zeros((3, 2)))
        np.testing.assert_array_equal(lengths, lasts([0, 1, 2]))
        assert environments.terminations[:3].all()
        assert not environments.rewards.any()
        # fewer seeds than environments: the rest stand still
        environments.reset(np.array([9]))
        assert np.flatnonzero(environments.active).tolist() == [0]


def test_success_counts_at_any_step(pool):
    seeds = np.arange(4)
    with pool(ENV, {"success": True}, 4) as environments:
        result = evaluate_policies(constant(0.0), environments, seeds, np.ones((1, 4), bool), slots=4)
    np.testing.assert_array_equal(result.successes, [[1, 0, 1, 0]])


def test_dictionary_observations_are_flattened_in_sorted_order(pool):
    with pool(ENV, {"nested": True}, 1) as environments:
        assert environments.spaces.observation_dim == 4
        length = episode_length(4) / 10
        np.testing.assert_allclose(environments.reset(np.array([4]))[0], [0, -length, 0, length], rtol=1e-6)


def test_a_policy_that_is_not_finite_spoils_its_own_episodes_only(pool):
    def act(observations):
        actions = np.zeros((*observations.shape[:2], 2))
        actions[1][observations[1, :, 0] > 0.25] = np.nan
        return actions

    with pool(ENV, {}, 4) as environments:
        result = evaluate_policies(act, environments, np.array([0, 1]), np.ones((2, 2), bool), slots=2)
    np.testing.assert_array_equal(result.lengths, [lasts([0, 1]), [3, 3]])
    assert np.isfinite(result.returns[0]).all()
    assert np.isnan(result.returns[1][lasts([0, 1]) > 3]).all()


@pytest.mark.parametrize(("crash", "message"), [("raise", "FileNotFoundError: no such mesh"), ("exit", "exit code 7")])
def test_a_failing_environment_is_one_clear_error_and_leaves_no_process(crash, message):
    with Simulators(ENV, {"crash_at": 1, "crash": crash}, 2, workers=2) as environments:
        processes = list(environments._processes)
        environments.reset(np.array([0, 1]))
        environments.step(np.zeros((2, 2)))
        environments.step(np.zeros((2, 2)))
        with pytest.raises(SimulatorError) as caught:
            environments.step(np.zeros((2, 2)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(process.is_alive() for process in processes)
    assert not set(processes) & set(multiprocessing.active_children())


def test_workers_end_with_a_killed_parent():
    program = f"""
import numpy, time
from offrl.playing.simulators import Simulators
with Simulators({ENV!r}, {{}}, 2, workers=1) as environments:
    print(environments._processes[0].pid, flush=True)
    time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        state = Path(f"/proc/{worker}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the worker outlived its parent")


@pytest.mark.parametrize(
    ("env", "kwargs", "message"),
    [
        ("Hoper-v5", {}, "Did you mean: `Hopper`"),
        ("no_such_module:Hopper-v5", {}, "no_such_module"),
        (ENV, {"colour": "red"}, "colour"),
        ("tiny_environments:Endless-v0", {}, "max_episode_steps"),
        ("tiny_environments:Parts-v0", {"counted_from": 1}, "Discrete(3, start=1)"),
        ("tiny_environments:Parts-v0", {"pixels": np.float32}, "(4, 4, 1)"),
        ("tiny_environments:Parts-v0", {"pixels": np.uint8}, "(4, 4, 1)"),
    ],
)
def test_environments_that_cannot_be_played_are_refused(env, kwargs, message):
    with pytest.raises(UserError) as caught:
        simulators.spaces(env, kwargs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    monkeypatch.setattr(gymnasium, "registry", {})
    with pytest.raises(UserError, match=r"pip install 'offrl\[robotics\]'"):
        simulators.spaces("AdroitHandDoor-v1", {})
    assert "gymnasium-robotics" in " ".join(importlib.metadata.requires("offrl") or [])


def test_all_policies_play_the_same_episodes(run, pool):
    rows = evaluate_run(run, "all", episodes=5, seed=40)
    assert len(rows) == 3 * 2 * 5
    for _, policy in rows.groupby(["step", "member"]):
        assert policy["episode"].tolist() == [0, 1, 2, 3, 4]
        assert policy["reset_seed"].tolist() == [40, 41, 42, 43, 44]
        np.testing.assert_array_equal(policy["length"], lasts(range(40, 45)))
    # the policy sees standardised observations, the environment its own units; each member has its swept value
    for (step, member), policy in rows.groupby(["step", "member"]):
        for _, row in policy.iterrows():
            seen = (np.arange(row["length"]) / 10 - 0.5) / 2
            actions = 2 * (1.0, -1.0)[member] * GAINS[step][member] * np.tanh(seen)
            np.testing.assert_allclose(row["return"], (1 + 2 * actions).sum(), rtol=1e-5)
    np.testing.assert_allclose(rows["normalized_score"], 100 * (rows["return"] + 10) / 50)
    table = pd.read_csv(run / "oracle" / "returns.csv", dtype=returns.DTYPES)
    pd.testing.assert_frame_equal(table[list(returns.DTYPES)], rows[list(returns.DTYPES)])
    assert set(table["fingerprint"]) == {"0123456789012345"}
    assert set(table["version"]) == {importlib.metadata.version("offrl")}


def test_by_default_the_last_checkpoint_by_the_protocol_of_the_run(run, pool):
    rows = evaluate_run(run)
    assert set(rows["step"]) == {30}
    assert rows.groupby("member")["reset_seed"].apply(list).tolist() == [[100, 101, 102]] * 2


def test_nothing_is_played_twice(run, pool, monkeypatch):
    first = evaluate_run(run, "all", episodes=4)
    more = evaluate_run(run, "all", episodes=6)
    pd.testing.assert_frame_equal(more[more["episode"] < 4].reset_index(drop=True), first)
    written = (run / "oracle" / "returns.csv").read_text()

    def refuse(*arguments, **keywords):
        raise AssertionError("no simulator is needed")

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "Simulators", refuse)
        pd.testing.assert_frame_equal(evaluate_run(run, "all", episodes=6), more)
        assert len(evaluate_run(run, [10, 30], episodes=2)) == 2 * 2 * 2

    # rows that are gone are played again, and come out the same to the last bit
    lines = written.splitlines(keepends=True)
    (run / "oracle" / "returns.csv").write_text("".join(lines[:5] + lines[9:20]))
    evaluate_run(run, "all", episodes=6)
    assert (run / "oracle" / "returns.csv").read_text() == written
    assert {path.name for path in (run / "oracle").iterdir()} == {"returns.csv"}


def test_an_interrupted_evaluation_goes_on(run, pool, monkeypatch):
    monkeypatch.setattr(evaluation, "EPISODES_AT_ONCE", 2)
    change(run, env_kwargs={"crash_at": 103})
    with pytest.raises(SimulatorError, match=r"reset seed 103"):
        evaluate_run(run, "last", episodes=6)
    assert returns.read_returns(Run.open(run))["reset_seed"].tolist() == [100, 101, 100, 101]
    change(run, env_kwargs={})
    assert evaluate_run(run, "last", episodes=6)["reset_seed"].tolist() == [100, 101, 102, 103, 104, 105] * 2


def test_a_diverged_member_is_scored_while_it_was_healthy(run, pool, capsys):
    info = json.loads((run / "run.json").read_text())
    info["members"][1]["diverged_at"] = 25
    (run / "run.json").write_text(json.dumps(info))
    rows = evaluate_run(run, "all", episodes=1)
    assert rows.groupby("step")["member"].apply(list).to_dict() == {10: [0, 1], 20: [0, 1], 30: [0]}
    rows = evaluate_run(run, "last", episodes=1)
    assert rows[["step", "member"]].to_numpy().tolist() == [[20, 1], [30, 0]]
    assert "member 1 diverged at step 25: scored up to step 20" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        ({"env_id": None}, {}, r"env=null.*env=ID"),
        ({"env_kwargs": {"nested": True}}, {}, r"observations of size 4.*trained on file:log.npz with size 2"),
        ({}, {"env": "Pendulum-v1"}, r"observations of size 3"),
        ({}, {"checkpoints": [10, 11]}, r"no checkpoint at step 11; there are 10, 20, 30"),
        ({}, {"episodes": 0}, r"at least 1 episode"),
    ],
)
def test_what_cannot_be_scored_is_refused(run, dataset, arguments, message):
    change(run, **dataset)
    with pytest.raises(UserError, match=message):
        evaluate_run(run, **arguments)
    assert not (run / "oracle").exists()


def test_another_environment_is_not_normalised_and_another_action_box_is_told(run, pool, capsys):
    change(run, env_id=None, action_high=[1.0, 2.0], observation_layout=["angle[1]", "speed[1]"])
    rows = evaluate_run(run, env=ENV, episodes=1)
    assert rows["normalized_score"].isna().all()
    said = " ".join(capsys.readouterr().err.split())
    assert "action box" in said
    assert "are angle[1], speed[1], those of" in said
    console = Console(record=True, width=160)
    summarize(run, rows, console)
    assert "nothing is normalised" in console.export_text()


def test_a_damaged_table_is_told(run):
    (run / "oracle").mkdir()
    (run / "oracle" / "returns.csv").write_text("step,member\n1,x\n")
    with pytest.raises(UserError, match=r"returns\.csv: damaged"):
        evaluate_run(run)


def test_errors_are_over_episodes_and_deviations_are_not_shifted(run, pool):
    rows = evaluate_run(run, "all", episodes=5)
    policies, means = policy_scores(rows), population_scores(rows, last=False)
    returns = rows[rows["step"] == 20].pivot(index="member", columns="episode", values="return").to_numpy()
    policy = policies[(policies["step"] == 20) & (policies["member"] == 1)].iloc[0]
    assert policy["return"] == pytest.approx(returns[1].mean())
    assert policy["return_standard_error"] == pytest.approx(returns[1].std(ddof=1) / np.sqrt(5))
    assert policy["normalized_score_standard_error"] == pytest.approx(2 * policy["return_standard_error"])
    mean = means[means["step"] == 20].iloc[0]
    assert mean["normalized_score"] == pytest.approx(2 * (returns.mean() + 10))
    # reset seeds are common to the members: ten returns, but five independent ones
    assert mean["return_standard_error"] == pytest.approx(returns.mean(0).std(ddof=1) / np.sqrt(5))
    assert mean["normalized_score_member_deviation"] == pytest.approx(2 * returns.mean(1).std(ddof=1))


def test_bootstrap_interval_covers_what_it_should():
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        members = random.normal(0, 1, (12, 1))
        values = members + random.normal(0, 1, (1, 15)) + random.normal(0, 1, (12, 15))
        low, high = statistics.bootstrap_interval(values, resamples=400, seed=trial)
        covered += low < 0 < high
    assert 0.86 <= covered / 200 <= 0.99
    low, high = statistics.bootstrap_interval(np.full((1, 4), 3.0))
    assert low == pytest.approx(3.0)
    assert high == pytest.approx(3.0)
    assert np.isnan(statistics.standard_error(np.array([1.0])))


def test_the_command(run):
    """As a user types it; with it, that a worker of a command that imports jax does not."""
    change(run, env_kwargs={"forbid_jax": True, "success": True})
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OFFRL_CACHE": str(run / "cache")}
    command = [sys.executable, "-m", "offrl.evaluate", str(run), "episodes=3", "workers=1", "trust=true"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    assert answer["reset_seeds"] == [100, 101, 102]
    assert [policy["episodes"] for policy in answer["policies"]] == [3, 3]
    assert answer["policies"][0]["success_rate"] == pytest.approx(2 / 3)
    assert answer["means"][0]["members"] == 2
    assert Path(answer["picture"]).read_bytes().startswith(b"\x89PNG")

    console = Console(record=True, width=160)
    summarize(run, evaluate_run(run, episodes=3), console)
    text = console.export_text()
    for part in (
        "success",
        "67 %",
        "± standard error",
        "data: 7 episodes, return mean 12.0 (44.0), best 20.0 (60.0)",
        "made up",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "episode=3"], "did you mean episodes"),
        (["run", "episodes=many"], "cannot be read"),
        (["run", "checkpoints=best"], "steps such as"),
        (["run", "episodes=0"], "cannot be read"),
        (["episodes=3"], "no run given"),
    ],
)
def test_mistakes_on_the_command_line(arguments, message):
    with pytest.raises(UserError, match=message):
        parse(arguments)


def test_the_command_line_is_read(tmp_path):
    odd = tmp_path / "algo=iql"
    odd.mkdir()
    assert parse([str(odd), "runs/a", "checkpoints=5,10", "seed=3", "--json"]) == (
        [odd, Path("runs/a")],
        {"checkpoints": [5, 10], "seed": 3},
        True,
    )
