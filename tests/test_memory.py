"""Policies with memory: what they have seen of an episode stays in it, and they learn their own rewards."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_evaluation import lasts, make_run

import offrl.algorithm
from offrl.errors import UserError
from offrl.learning.policies import Memory, Policy
from offrl.playing.evaluation import evaluate_run
from offrl.runs.run import Run
from offrl.selection.diagnostics import base, keeping

MEMORY = """
    def start(state, n):
        return {"sum": jnp.zeros(n), "time": jnp.zeros(n)}
    def remember(state, carry, observations):
        actions = config.sign * state.gain * jnp.tanh(carry["sum"] - carry["time"])[:, None] * jnp.ones((1, 2))
        return actions, {**carry, "time": carry["time"] + 1}
    def observe(carry, rewards):
        return {**carry, "sum": carry["sum"] + rewards}
    return Policy(act=act, memory=Memory(start, remember, observe))
"""


def remembering_run(path):
    """Its policies act by the rewards so far and the number of steps, both zero as an episode starts."""
    make_run(path)
    text = (path / "linear.py").read_text()
    text = text.replace("import Policy", "import Memory, Policy").replace("    return Policy(act=act)\n", "")
    (path / "linear.py").write_text(text + MEMORY)
    offrl.algorithm.load(str(path / "linear.py"))  # named by the user of this process, and so trusted
    return path


def test_every_episode_starts_anew_and_the_policy_is_told_its_own_rewards(tmp_path):
    rows = evaluate_run(remembering_run(tmp_path / "run"), [30], episodes=5, seed=7, workers=1)
    for member, gain in enumerate((0.5, -0.6)):
        for episode, length in enumerate(lasts(range(7, 12))):
            total = 0.0
            for step in range(length):
                total += 1 + 2 * 2 * gain * np.tanh(total - step)  # the action box reaches to 2
            row = rows[(rows["member"] == member) & (rows["episode"] == episode)].iloc[0]
            np.testing.assert_allclose(row["return"], total, rtol=1e-4)
            assert row["length"] == length


def test_a_policy_with_memory_is_not_deployed_as_if_it_had_none(tmp_path):
    with pytest.raises(UserError, match="its policies have memory"):
        Run.open(remembering_run(tmp_path / "run")).actor(30)


def test_a_diagnostic_leaves_policies_with_memory_out_and_says_so():
    plain, remembering = (
        SimpleNamespace(run=SimpleNamespace(policy=Policy(act=lambda s, o: o, memory=memory)))
        for memory in (None, Memory(*[lambda *_: None] * 3))
    )

    class Few:
        images = False

        def __init__(self, candidates):
            self.candidates = candidates

        def __len__(self):
            return len(self.candidates)

        def subset(self, indices):
            return Few([self.candidates[i] for i in indices])

    def measure(pool):
        assert all(candidate is plain for candidate in pool.candidates)
        return {"score": base.without_error(np.arange(1.0, len(pool) + 1))}

    measurement = base.Measurement("score", (base.Diagnostic("score", "high", ""),), measure)
    found = keeping.apply(measurement, Few([plain, remembering, plain]))["score"]
    np.testing.assert_array_equal(found.value, [1, np.nan, 2])
    assert found.reasons == ["", "not applicable: the policy has memory", ""]
    only = keeping.apply(measurement, Few([remembering]))["score"]
    assert only.reasons == ["not applicable: the policy has memory"]
