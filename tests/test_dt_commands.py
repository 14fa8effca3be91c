"""Decision Transformer through the commands: trained, played in a simulator, left out of selection, and resumed."""

import json
import shutil
import sys

import absl.logging
import numpy as np
import pytest
from test_train_command import assert_same, interrupt

from offrl import train
from offrl.playing.returns import read_returns
from offrl.runs.run import Run
from offrl.selection.decision import select

SMALL = ("algo.context=3", "algo.layers=1", "algo.width=16", "algo.dropout=0", "algo.batch_size=32", "algo.warmup=20",
         "algo.learning_rate=3e-3", "algo.return_scale=5")  # fmt: skip
SHORT = ("protocol=smoke", "protocol.updates=300", "protocol.checkpoint_every=150", "protocol.log_every=50")
HIGH, LOW = 0.8, -0.4


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that trains by the command line: arguments -> Run; on a log of episodes that play HIGH or LOW."""
    folder = tmp_path_factory.mktemp("dt")
    episodes, length = 40, 5
    actions = np.where(np.arange(episodes) % 2, HIGH, LOW).repeat(length)
    np.savez(
        folder / "log.npz",
        observations=np.tile(np.arange(length) / length, episodes)[:, None],
        actions=actions[:, None],
        rewards=actions,
        terminals=np.zeros(episodes * length),
        timeouts=np.arange(episodes * length) % length == length - 1,
    )

    def call(name: str, *arguments: str) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(absl.logging.get_absl_handler().python_handler, "stream", sys.stderr)  # Hydra closes others
            log = ("dataset=file:log.npz", "env.id=tiny_environments:Paying-v0")
            patch.setattr(sys, "argv", ["offrl.train", *log, *SHORT, *arguments, f"run_dir={folder / name}"])
            train.main()
        return Run.open(folder / name)

    return call


@pytest.fixture(scope="module")
def aiming(trained) -> Run:
    """Two members that differ in the return that they aim for: that of the good episodes, and of the others."""
    return trained("aiming", "algo=dt", *SMALL, "algo.target=given", f"algo.target_return=[{5 * HIGH},{5 * LOW}]")


def test_whoever_aims_for_more_gets_more_in_the_simulator(aiming):
    last = read_returns(aiming).query("step == 300").groupby("member")["return"]
    assert (last.count() == 2).all()
    np.testing.assert_allclose(last.mean(), [5 * HIGH, 5 * LOW], atol=0.3)
    assert [config.target_return for config in aiming.member_configs] == pytest.approx([5 * HIGH, 5 * LOW])


def test_the_best_return_of_the_data_is_a_number_in_run_json_before_a_simulator_is_opened(trained, monkeypatch):
    described = []

    def instead_of_a_simulator(run, protocol):
        described.append(json.loads((run.path / "run.json").read_text())["algorithm"]["from_data"])
        return None, None

    monkeypatch.setattr(train, "show_evaluation", instead_of_a_simulator)
    run = trained("best", "algo=dt", *SMALL, "protocol.updates=2")
    assert described == [{"target_return": pytest.approx(5 * HIGH)}]
    assert run.member_configs[0].target_return == pytest.approx(5 * HIGH)
    assert run.restore(2).target_return.tolist() == pytest.approx([5 * HIGH])


def test_an_interrupted_run_ends_bit_for_bit_as_an_uninterrupted_one(trained, aiming):
    shutil.copytree(aiming.path, aiming.path.with_name("resumed"))
    interrupt(Run.open(aiming.path.with_name("resumed")), 150)
    options = ("algo.target=given", f"algo.target_return=[{5 * HIGH},{5 * LOW}]")
    assert_same(trained("resumed", "algo=dt", *SMALL, *options), aiming)


def test_selection_leaves_it_out_and_says_why(trained, aiming, monkeypatch):
    cloning = trained("cloning", "algo=bc", "algo.hidden_dims=[16]", "protocol.updates=40", "protocol.episodes=0",
                      "protocol.checkpoint_every=40")  # fmt: skip
    monkeypatch.chdir(aiming.path.parent)
    names = ["finite", "action_distances", "neighbours"]
    found = select([cloning.path, aiming.path], "support_only", names, rows=100)
    assert found.candidates["run"][0] == str(cloning.path)
    assert found.choice.deploy == ["cloning/0/40"]
    left_out = found.candidates.query("algorithm == 'dt'")
    assert len(left_out) == 4
    assert left_out["score"].isna().all()
    assert set(left_out["veto"]) == {"not applicable: the policy has memory"}
