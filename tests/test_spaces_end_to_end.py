"""Built-in CartPole and Pendulum in images: by the commands, from the data to a policy that plays."""

import json
import sys

import absl.logging
import gymnasium
import numpy as np
import pandas as pd
import pytest

from offrl import evaluate, report, select, train
from offrl.data.recipes import ENVIRONMENTS
from offrl.runs.run import Run

SMALL = ("seed=0", "protocol=smoke", "protocol.validation_fraction=0.2", "algo.hidden_dims=[32,32]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("spaces")


@pytest.fixture
def command(monkeypatch, capsys, folder):
    """A command in this process, which has to succeed; what it prints."""
    monkeypatch.chdir(folder)

    def call(module, *arguments) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        # Hydra resets logging, at which absl closes its stream where that is not the present stderr: pytest's own
        monkeypatch.setattr(absl.logging.get_absl_handler().python_handler, "stream", sys.stderr)
        module.main()
        return capsys.readouterr().out

    return call


def played(env: gymnasium.Env, act) -> float:
    """What one episode of a deployed policy returns."""
    observation, total, over = env.reset(seed=3)[0], 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        total, over = total + reward, terminated or truncated
    return total


def test_cartpole_from_the_data_to_a_policy_that_balances(command, folder):
    options = ("env=cartpole", "data.steps=4000", *SMALL, "algo.batch_size=64")
    said = command(train, "algo=bc", *options, "algo.learning_rate=0.003", f"run_dir={folder / 'bc'}")
    assert "CartPole-v1: every policy played the same 2 episodes" in said
    for name in ("iql", "cql"):
        command(train, f"algo={name}", *options, "protocol.episodes=0", f"run_dir={folder / name}")
    runs = [folder / name for name in ("bc", "iql", "cql")]
    command(evaluate, folder / "cql", "episodes=3")
    assert len(pd.read_csv(folder / "cql" / "oracle" / "returns.csv")) == 3
    command(select, *runs, "diagnostics=action_distance,lstd,td_error,non_finite", f"out={folder}")
    chosen = json.loads((folder / "selection.json").read_text())
    assert len(chosen["deploy"]) == 1
    assert 0 < chosen["coverage"] < 1
    assert "written to" in command(report, *runs)
    act = Run.open(runs[0]).actor(200)
    observation = np.array([0.0, 0.0, 0.1, 0.5])
    assert act(observation).shape == ()
    np.testing.assert_array_equal(act(np.stack([observation, -observation])), [1, 0])  # it follows the pole
    assert played(gymnasium.make("CartPole-v1"), act) > 100


def test_an_algorithm_without_support_says_which_have_it(command, capsys, monkeypatch, folder):
    monkeypatch.setattr(absl.logging.get_absl_handler().python_handler, "stream", sys.stderr)
    monkeypatch.setattr(sys, "argv", ["offrl.train", "algo=td3_bc", "env=cartpole", "data.steps=4000"])
    with pytest.raises(SystemExit):
        train.main()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: algo=td3_bc: supports continuous actions, but builtin:cartpole/medium-expert has discrete actions; "
        "choose algo=bc|cql|dt|iql"
    )


def test_pendulum_in_images_from_the_data_to_a_policy(command, folder):
    run = folder / "images"
    said = command(
        *(train, "algo=bc", "env=pendulum_images", "data.steps=1000", *SMALL, "algo.batch_size=32"),
        *("protocol.updates=40", "protocol.checkpoint_every=20", "protocol.episodes=1", f"run_dir={run}"),
    )
    assert "every policy played the same" in said
    assert Run.open(run).spec.observation_shape == (64, 64, 2)
    names = "action_distance,policy_drift,fqe,ood_fraction,non_finite"
    said = command(select, run, f"diagnostics={names}", "rows=200", f"out={folder / 'chosen'}")
    assert "coverage" not in said
    table = pd.read_csv(folder / "chosen" / "diagnostics.csv").set_index("diagnostic")
    assert table.loc["action_distance", "value"].notna().all()
    assert set(table.loc["fqe", "reason"]) == {"not applicable: observations are images, this needs vectors"}
    chosen = json.loads((folder / "chosen" / "selection.json").read_text())
    assert chosen["coverage"] is None
    assert "no value diagnostic" in chosen["notes"]
    assert len(chosen["deploy"]) == 1
    assert played(gymnasium.make(ENVIRONMENTS["pendulum_images"].env_id), Run.open(run).actor(40)) < 0
