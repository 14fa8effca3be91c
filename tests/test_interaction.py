"""Collecting in an environment: every step once, and the run marked before the first of them."""

import json

import numpy as np
import pytest
from made_runs import make_run as described_run
from rich.console import Console
from test_evaluation import ENV, lasts, make_run

from offrl.data.transforms import one_hot
from offrl.errors import UserError
from offrl.interaction.collection import Buffer, collect
from offrl.playing.evaluation import evaluate_run
from offrl.playing.simulators import Simulators
from offrl.reporting.collect import gather
from offrl.reporting.run_scores import summarize
from offrl.runs.run import Run
from offrl.selection.pool import Pool


def test_steps_go_into_the_buffer_and_the_run_is_marked_before_the_first(tmp_path):
    path = make_run(tmp_path / "run")
    seeds, marks = np.array([3, 4]), []

    def act(observations):
        marks.append(json.loads((path / "run.json").read_text())["interacted"])
        return np.full((len(observations), 2), 0.25)

    with Simulators(ENV, count=2, workers=1) as simulators:
        run, buffer = Run.open(path), Buffer.empty(100, simulators.spaces)
        with pytest.raises(UserError, match="holds 30 steps, up to 40 may be collected"):
            collect(run, act, simulators, seeds, Buffer.empty(30, simulators.spaces))
        assert "interacted" not in json.loads((path / "run.json").read_text())
        first = collect(run, act, simulators, seeds, buffer)
        both = collect(run, act, simulators, seeds[:1], first)
    steps = int(lasts(seeds).sum())
    assert (first.size, both.size) == (steps, steps + int(lasts(seeds[:1])[0]))
    assert marks[0] == {"env": ENV, "steps": 0, "episodes": 0}
    interacted = json.loads((path / "run.json").read_text())["interacted"]
    assert interacted == {"env": ENV, "steps": both.size, "episodes": 3}
    np.testing.assert_array_equal(both.rewards[: both.size], 1.5)
    assert not both.rewards[both.size :].any()
    assert both.terminations.sum() == 1  # the time limit ends the other seed's episodes
    # time, in tenths, goes on by one step
    np.testing.assert_allclose((both.next_observations - both.observations)[: both.size, 0], 0.1, rtol=1e-5)


def test_what_was_collected_is_preprocessed_as_the_runs_data_were(tmp_path):
    run = Run.open(make_run(tmp_path / "run"))
    with Simulators(ENV, count=1, workers=1) as simulators:
        buffer = collect(run, run.actor(30), simulators, np.array([3]), Buffer.empty(20, simulators.spaces))
    seen, size = buffer.transitions(run.info["dataset"]["transforms"]), buffer.size
    assert all(len(column) == 20 for column in seen[:7])
    mean, std = np.array([0.5, 1.0]), np.array([2.0, 3.0])
    np.testing.assert_allclose(seen.observations[:size], (buffer.observations[:size] - mean) / std, rtol=1e-5)
    np.testing.assert_allclose(seen.next_observations[:size], (buffer.next_observations[:size] - mean) / std, rtol=1e-5)
    np.testing.assert_allclose(seen.actions[:size], 0.5 * np.tanh(seen.observations[:size, :1]) * [[1, 1]], rtol=1e-5)
    np.testing.assert_array_equal(seen.rewards[:size], buffer.rewards[:size])
    assert not seen.next_action_known.any()


def test_discrete_actions_become_one_hot_vectors(tmp_path):
    run = Run.open(make_run(tmp_path / "run"))
    with Simulators("tiny_environments:Parts-v0", count=2, workers=1) as simulators:
        buffer = Buffer.empty(12, simulators.spaces)
        buffer = collect(run, lambda observations: np.full(len(observations), 2), simulators, np.arange(2), buffer)
    assert buffer.observations.shape == (12, simulators.spaces.observation_dim)
    np.testing.assert_array_equal(buffer.actions, np.full((12, 1), 2))
    np.testing.assert_array_equal(buffer.rewards, [0, 0, 0, 0, 1, 1] * 2)  # pays the time modulo 3
    np.testing.assert_array_equal(buffer.transitions([one_hot(3)]).actions, np.eye(3)[[2] * 12])


def test_a_run_that_has_interacted_is_evaluated_and_reported_as_such_and_never_selected(tmp_path):
    path = make_run(tmp_path / "run")
    assert Run.open(path).interacted == ""
    with Simulators(ENV, count=1, workers=1) as simulators:
        run = Run.open(path)
        collect(run, run.actor(30), simulators, np.array([3]), Buffer.empty(20, simulators.spaces))
    mark = f"interacted with {ENV} ({int(lasts([3])[0])} steps, 1 episodes)"
    console = Console(record=True, width=200)
    summarize(path, evaluate_run(path, "last", episodes=1, workers=1), console)
    assert f"not an offline run: its policies have {mark}" in console.export_text()
    reported = described_run(tmp_path / "reported", {0: {10: [1.0, 2.0], 20: [1.0, 2.0], 30: [1.0, 2.0]}})
    reported.info["interacted"] = run.info["interacted"]
    reported.write_info()
    assert any(mark in message for message in gather([reported.path]).messages)
    with pytest.raises(UserError) as refused:
        Pool.open([path])
    assert f"{mark}, so choosing among them is not offline" in str(refused.value)
    assert "\n" not in str(refused.value)
