"""Built-in data with discrete actions and with images: CartPole, ICU-Sepsis, Pendulum drawn in 64 x 64 pixels."""

import importlib.util
import json
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest
import yaml

import offrl.configs
from offrl.data.recipes import ENVIRONMENTS, recipes_of
from offrl.datasets import builtin, environments, scripted
from offrl.datasets.policies import load_policies
from offrl.errors import UserError
from offrl.playing import simulators
from offrl.runs.trust import environment_of

needs_tables = pytest.mark.skipif(
    importlib.util.find_spec("icu_sepsis") is None, reason="needs the tables of icu-sepsis"
)
IMAGES = ENVIRONMENTS["pendulum_images"].env_id
SEPSIS = ENVIRONMENTS["icu_sepsis"].env_id


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty Minari store."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    return tmp_path / "store"


def episodes_of(env, recipe, steps):
    return list(minari.load_dataset(builtin.ensure(env, recipe, steps, workers=1)))


def test_cartpole_logs_discrete_actions_of_policies_of_several_levels(store):
    found = {recipe: episodes_of("cartpole", recipe, 2_000) for recipe in ("random", "medium", "expert")}
    returns = {recipe: np.mean([e.rewards.sum() for e in episodes]) for recipe, episodes in found.items()}
    assert returns["random"] + 50 < returns["medium"] < returns["expert"] - 150
    for episode in found["medium"]:
        assert episode.actions.dtype == np.int64
        assert episode.actions.shape == (len(episode),)
        assert set(episode.actions) == {0, 1}
    assert all(episode.terminations[-1] for episode in found["random"][:-1])
    replay = minari.load_dataset(builtin.ensure("cartpole", "medium-replay", 1_200, workers=1))
    makers = [metadata["policy"] for metadata in replay.storage.get_episode_metadata(range(replay.total_episodes))]
    assert list(dict.fromkeys(makers)) == [name for name, _ in load_policies("cartpole").ladder]
    assert replay.storage.metadata["algorithm_name"] == "scripted"


@pytest.mark.parametrize("env", ["cartpole", "icu_sepsis", "pendulum_images"])
def test_the_configuration_names_the_environment_and_a_recipe_of_it(env):
    config = yaml.safe_load((Path(offrl.configs.__file__).parent / "env" / f"{env}.yaml").read_text())
    assert config["id"] == ENVIRONMENTS[env].env_id
    assert config["dataset"] in recipes_of(env)


def test_recipes_of_one_environment_only():
    assert "clinicians" in recipes_of("icu_sepsis")
    with pytest.raises(UserError, match="cartpole has no recipe 'clinicians'"):
        builtin.dataset_id("cartpole", "clinicians")


def test_a_rod_and_a_torque_are_drawn():
    upright, left = environments.draw_pendulum(0.0, 0.0), environments.draw_pendulum(np.pi / 2, 0.0)
    assert upright.shape == (64, 64)
    assert upright.dtype == np.uint8
    assert upright[10, 31:33].min() == 255  # above the middle
    assert upright[50].max() == 0
    assert left[31:33, 10].min() == 255  # angles grow counter-clockwise
    np.testing.assert_allclose(np.rot90(upright).astype(int), left, atol=1)
    full, half = environments.draw_pendulum(0.0, 1.0)[61], environments.draw_pendulum(0.0, -0.5)[61]
    assert (full[:32].max(), full[32:].min()) == (0, 128)
    assert (half[32:].max(), half[17:32].min(), half[:15].max()) == (0, 128, 0)
    # one angle, one image: neighbouring angles can be told apart
    assert (environments.draw_pendulum(1.0, 0.0) != environments.draw_pendulum(1.02, 0.0)).sum() > 20


def test_pendulum_images_are_of_the_same_pendulum():
    plain, drawn = gymnasium.make("Pendulum-v1"), gymnasium.make(IMAGES)
    vector, _ = plain.reset(seed=3)
    image, _ = drawn.reset(seed=3)
    np.testing.assert_array_equal(image[..., 0], image[..., 1])
    for action in np.linspace(-2, 2, 9, dtype=np.float32)[:, None]:
        before = image
        vector, reward, *_ = plain.step(action)
        image, same_reward, *_ = drawn.step(action)
        assert reward == same_reward
        assert drawn.observation_space.contains(image)
        np.testing.assert_array_equal(image[..., 0], before[..., 1])
        np.testing.assert_array_equal(vector, drawn.unwrapped.policy_observation())
        np.testing.assert_array_equal(
            image[..., 1], environments.draw_pendulum(np.arctan2(vector[1], vector[0]), action[0] / 2)
        )


def test_images_are_logged_in_bytes_by_pendulums_policies(store):
    episodes = episodes_of("pendulum_images", "medium-expert", 800)
    assert all(e.observations.dtype == np.uint8 and e.observations.shape == (201, 64, 64, 2) for e in episodes)
    assert builtin.reference("pendulum_images") == builtin.reference("pendulum")
    by_states = episodes_of("pendulum", "medium-expert", 800)  # the same policies on the same seeds
    for drawn, plain in zip(episodes, by_states, strict=True):
        np.testing.assert_array_equal(drawn.rewards, plain.rewards)
        np.testing.assert_array_equal(drawn.actions, plain.actions)
    identifier = builtin.dataset_id("pendulum_images", "medium-expert", 800)
    metadata = json.loads((store / identifier / "data" / "metadata.json").read_text())
    assert json.loads(metadata["env_spec"])["id"] == IMAGES
    minari.load_dataset(identifier).recover_environment().reset(seed=0)


@pytest.mark.parametrize("env_id", [IMAGES, SEPSIS])
def test_the_ids_make_an_environment_anywhere_and_runs_that_name_them_are_trusted(tmp_path, env_id):
    assert environment_of(tmp_path, env_id) == env_id
    assert environments.specification(env_id).id == env_id
    assert environments.specification(env_id).max_episode_steps


def test_without_the_tables_one_line_says_what_to_install(store, monkeypatch):
    environments.sepsis_tables.cache_clear()
    environments._sepsis_cumulative.cache_clear()
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: None)
    for attempt in (lambda: simulators.make(SEPSIS, {}), lambda: builtin.ensure("icu_sepsis", "medium", 100)):
        with pytest.raises(UserError, match=r"^ICU-Sepsis: .*missing; pip install 'offrl\[sepsis\]'$"):
            attempt()
    assert minari.list_local_datasets() == {}


@needs_tables
def test_the_optimum_of_icu_sepsis_is_the_expert_that_ships():
    tables = environments.sepsis_tables()
    values = scripted.optimum(tables)
    best = float(tables.starts @ values.max(axis=1))
    assert best == pytest.approx(0.875, abs=5e-4)  # 0.88 in its paper
    policies = load_policies("icu_sepsis")
    assert policies.reference.expert == pytest.approx(best, abs=1e-6)
    shipped = policies.weights["expert"]["preferences"].argmax(axis=1)
    assert scripted.expected_return(tables, np.eye(25)[shipped]) == pytest.approx(best, abs=1e-6)
    assert scripted.expected_return(tables, tables.clinicians) == pytest.approx(0.782, abs=5e-4)
    assert policies.reference.random == pytest.approx(0.780, abs=5e-4)


@needs_tables
def test_icu_sepsis_steps_as_its_tables_say():
    tables = environments.sepsis_tables()
    env = gymnasium.make(SEPSIS)
    random = np.random.default_rng(0)
    outcomes = []
    for seed in range(300):
        observation, _ = env.reset(seed=seed)
        assert tables.starts[observation.argmax()] > 0
        terminated = False
        while not terminated:
            state, action = observation.argmax(), random.integers(25)
            observation, reward, terminated, _, _ = env.step(action)
            assert observation.sum() == 1
            assert tables.transitions[state, action, observation.argmax()] > 0
            assert terminated == (observation.argmax() in (environments.DEATH, environments.SURVIVAL))
        outcomes.append(reward)
    assert abs(np.mean(outcomes) - 0.780) < 4 * 0.414 / np.sqrt(300)


@needs_tables
def test_icu_sepsis_is_logged_by_clinicians_and_by_ever_better_policies(store):
    for recipe in ("clinicians", "medium-replay"):
        dataset = minari.load_dataset(builtin.ensure("icu_sepsis", recipe, 600, workers=1))
        assert dataset.total_steps == 600
        for episode in dataset:
            assert episode.observations.dtype == np.uint8
            assert (episode.observations.sum(axis=1) == 1).all()
            assert episode.rewards[:-1].sum() == 0
            assert episode.actions.max() < 25
