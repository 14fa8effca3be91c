"""Collecting in an environment: every step once, and the run marked before the first of them."""

import json

import numpy as np
import pytest
from test_evaluation import ENV, lasts, make_run

from offrl.errors import UserError
from offrl.interaction.collection import Buffer, collect
from offrl.playing.simulators import Simulators
from offrl.runs.run import Run


def test_steps_go_into_the_buffer_and_the_run_is_marked_before_the_first(tmp_path):
    path = make_run(tmp_path / "run")
    seeds, marks = np.array([3, 4]), []

    def act(observations):
        marks.append(json.loads((path / "run.json").read_text())["interacted"])
        return np.full((len(observations), 2), 0.25)

    with Simulators(ENV, count=2, workers=1) as simulators:
        run, buffer = Run.open(path), Buffer.empty(100, 2, 2)
        with pytest.raises(UserError, match="holds 30 steps, up to 40 may be collected"):
            collect(run, act, simulators, seeds, Buffer.empty(30, 2, 2))
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
