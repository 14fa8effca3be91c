"""Algorithm files: loading by name and by path, what is refused, and that all of offrl's keep the contract."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain import random_dataset

import offrl.algorithm
import offrl.learning.contract
from offrl.algorithm import Spec
from offrl.errors import UserError

LINEAR = Path(__file__).parent / "toys" / "linear.py"
TEMPLATE = Path(__file__).parent.parent / "docs" / "new_algorithm.py"


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


@pytest.mark.parametrize("supports", [(), ("pixels",)])
def test_a_file_that_supports_no_known_space_is_refused(tmp_path, supports):
    with pytest.raises(UserError, match=r"SUPPORTS=.*: name some of continuous, discrete, image"):
        offrl.algorithm.load(written(tmp_path / "mine.py", "def init(", f"SUPPORTS = {supports}\n\n\ndef init("))


def test_spaces_that_an_algorithm_does_not_support_are_refused_in_one_line(tmp_path):
    pong = Spec(observation_dim=12, action_dim=6, updates=10, discrete=True, observation_shape=(2, 2, 3))
    vectors = pong._replace(discrete=False, observation_shape=())
    plain = offrl.algorithm.load(str(LINEAR))
    plain.check_spaces(vectors, "a log")
    with pytest.raises(UserError) as refusal:
        plain.check_spaces(pong, "file:pong.npz")
    start = "algo=linear: supports continuous actions, but file:pong.npz has discrete actions and image observations; "
    assert str(refusal.value).startswith(start)
    discrete = offrl.algorithm.load(
        written(tmp_path / "mine.py", "def init(", 'SUPPORTS = ("discrete", "image")\n\n\ndef init(')
    )
    discrete.check_spaces(pong, "a log")
    with pytest.raises(UserError, match=r"but a log has continuous actions; choose algo=.*td3_bc"):
        discrete.check_spaces(vectors, "a log")


def test_the_spec_of_a_dataset_says_which_spaces_it_has_and_survives_json():
    vectors = random_dataset(lengths=(3, 2), terminal=(True, False))
    assert Spec.of(vectors, 10) == Spec(observation_dim=3, action_dim=2, updates=10)
    images = np.zeros((7, 4, 5, 3), np.uint8)
    spec = Spec.of(replace(vectors, observations=images, actions=np.zeros((5, 2), np.int32)), 10)
    assert (spec.observation_dim, spec.observation_shape, spec.discrete) == (60, (4, 5, 3), True)
    assert Spec.recorded(json.loads(json.dumps(spec._asdict()))) == spec
    assert Spec.recorded({"observation_dim": 3, "action_dim": 2, "updates": 10}) == Spec(3, 2, 10)  # of an older run


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"algo=nowhere\.py: no such file"):
        offrl.algorithm.load("nowhere.py")


def with_cost(name: str):
    """Programs take long to compile: of the one-phase algorithms a few stand for all in the quick tests, bc
    for those with discrete actions and images."""
    return pytest.param(name, marks=() if name in ("bc", "rebrac", "td3_bc") else pytest.mark.slow)


@pytest.mark.parametrize("name", [with_cost(name) for name in offrl.algorithm.names()])
def test_every_algorithm_keeps_the_contract_on_random_data(name):
    assert offrl.learning.contract.problems(offrl.algorithm.load(name), alone=False) == []


def test_the_template_keeps_the_contract_and_its_vmapped_members_equal_those_trained_alone():
    assert offrl.learning.contract.problems(offrl.algorithm.load(str(TEMPLATE))) == []


def test_the_template_is_short_enough_to_read():
    assert len(TEMPLATE.read_text().splitlines()) <= 120


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"step size")', '"")', "options: learning_rate has no help text"),
        ('{"loss": loss}', '{"error": loss}', "no metric of phase train has `loss` in its name"),
        ("jnp.tanh(observations @ state.weights)", "observations[:, 0]", "act has shape (5,), not (5, 2)"),
        ("step=step,", "step=step.astype(float),", "changes .step from int32() to float32()"),
        (
            "loss = jnp.where(step",
            "loss = loss.repeat(2) + jnp.where(step",
            "metric loss of phase train has shape (2,)",
        ),
        ("jnp.tanh(observations", "(9 + observations", "policy: act returns actions outside [-1, 1]"),
        ('option(-1.0, "the update', 'option(3.0, "the update', "finite: loss of phase train is not finite"),
        ("step = state.step + 1", "step = state.step + 2", "the states count [8, 8] updates, but 4 were made"),
    ],
)
def test_a_file_that_breaks_the_contract_is_told_how(tmp_path, old, new, problem):
    path = Path(
        written(tmp_path / "mine.py", "observations @ state.weights)", "jnp.tanh(observations @ state.weights))")
    )
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    found = offrl.learning.contract.problems(offrl.algorithm.load(str(path)), alone=False)
    assert any(problem in line for line in found), found


@pytest.mark.parametrize(
    ("supports", "problem"),
    [
        ("continuous", None),
        ("discrete", "policy: act returns discrete actions that are not one-hot"),
        ("continuous discrete", "with discrete actions: policy: act returns discrete actions that are not one-hot"),
        ("image", "SUPPORTS names no actions"),
    ],
)
def test_an_algorithm_is_checked_with_all_that_it_supports(tmp_path, supports, problem):
    text = f"SUPPORTS = {tuple(supports.split())}\n\n\ndef init("
    path = Path(written(tmp_path / "mine.py", "def init(", text))
    path.write_text(
        path.read_text().replace("observations @ state.weights)", "jnp.tanh(observations @ state.weights))")
    )
    found = offrl.learning.contract.problems(offrl.algorithm.load(str(path)), alone=False)
    assert found == [] if problem is None else any(problem in line for line in found), found
