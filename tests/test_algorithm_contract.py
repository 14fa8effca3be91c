"""Algorithm files: what is found by name and by path, what is refused, and what all that come with offrl share."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from plain import random_dataset

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.errors import UserError

LINEAR = Path(__file__).parent / "toys" / "linear.py"


def written(path: Path, old: str, new: str) -> str:
    """A copy of the linear toy with one thing changed."""
    text = LINEAR.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return str(path)


def test_the_algorithms_that_come_with_offrl_are_found_by_name():
    assert {"bc", "iql", "td3_bc"} <= set(offrl.algorithm.names())
    assert offrl.algorithm.load("iql").name == "iql"


def test_a_wrong_name_answers_with_the_nearest():
    with pytest.raises(UserError, match=r"algo=iqll.*did you mean iql"):
        offrl.algorithm.load("iqll")


def test_a_file_is_an_algorithm_called_after_it_and_loading_it_again_gives_the_same_classes():
    first, second = (offrl.algorithm.load(str(LINEAR)) for _ in range(2))
    assert first.name == "linear"
    assert first.summary.startswith("Linear cloning")
    assert first.Config is second.Config


def test_a_file_that_was_changed_is_loaded_anew(tmp_path):
    first = offrl.algorithm.load(written(tmp_path / "mine.py", "0.1", "0.1"))
    second = offrl.algorithm.load(written(tmp_path / "mine.py", "0.1", "0.2"))
    assert (first.Config().learning_rate, second.Config().learning_rate) == (0.1, 0.2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def update", "def updat", "must define update"),
        ("def init", "def initialise", "must define init"),
        ("class Config", "class Configuration", "must define Config"),
        ('option(0.1, "step size")', "0.1", "make Config's learning_rate with"),
        ("import flax", "import flaxx", "cannot be imported: No module named 'flaxx'"),
        ("def init(", "def init((", "cannot be imported"),
        ("def init(", "Config = Config()\n\n\ndef init(", "Config must be a flax.struct.dataclass"),
    ],
)
def test_a_file_that_breaks_the_contract_is_refused_with_the_reason(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message):
        offrl.algorithm.load(written(tmp_path / "mine.py", old, new))


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"algo=nowhere\.py: no such file"):
        offrl.algorithm.load("nowhere.py")


@pytest.mark.parametrize("name", offrl.algorithm.names())
def test_every_algorithm_describes_its_options_and_keeps_the_shapes_of_its_state_and_policy(name):
    """By abstract evaluation, so that it costs no compilation: what the loop and the checkpoints rely on."""
    algorithm, spec = offrl.algorithm.load(name), Spec(observation_dim=3, action_dim=2, updates=10)
    config = algorithm.Config(batch_size=8)
    assert all(field.metadata["help"] for field in dataclasses.fields(config))
    data = jax.tree.map(jnp.asarray, algorithm.prepare(random_dataset(), config))
    observations = jnp.zeros((5, 3))
    key = jax.random.key(0)

    def run(key):
        state = algorithm.init(key, config, spec)
        policy = algorithm.policy(config, spec)
        results = {"act": policy.act(state, observations)}
        for phase in algorithm.phases(config):
            if phase.begin is not None:
                state = phase.begin(key, state, data, config)
            new, metrics = phase.update(key, state, data, config)
            assert jax.tree.structure(new) == jax.tree.structure(state)
            assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), new) == jax.tree.map(
                lambda leaf: (leaf.shape, leaf.dtype), state
            )
            assert all(value.shape == () for value in metrics.values())
            assert any("loss" in metric for metric in metrics)
            state = new
        if policy.sample is not None:
            results["sample"] = policy.sample(key, state, observations)
        if policy.log_prob is not None:
            results["log_prob"] = policy.log_prob(state, observations, results["act"])
        if policy.q_values is not None:
            results["q_values"] = policy.q_values(state, observations, results["act"])
        if policy.value is not None:
            results["value"] = policy.value(state, observations)
        return results

    shapes = {"act": (5, 2), "sample": (5, 2), "log_prob": (5,), "value": (5,)}
    for part, result in jax.eval_shape(run, key).items():
        if part == "q_values":
            assert result.shape[1:] == (5,)
        else:
            assert result.shape == shapes[part]
