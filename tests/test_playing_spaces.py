"""Playing with discrete actions, and observing images and named parts: real small environments."""

import gymnasium
import numpy as np

from offrl.data.transforms import one_hot, unit_box
from offrl.playing.evaluation import evaluate_policies
from offrl.playing.simulators import Simulators, spaces

PENDULUM = "offrl.datasets.environments:PendulumImages-v0"
PARTS = "tiny_environments:Parts-v0"


def test_of_discrete_actions_the_one_of_the_highest_number_is_played():
    found = spaces("CartPole-v1", {})
    assert (found.observation_dim, found.action_dim, found.discrete, found.observation_shape) == (4, 2, True, ())
    scores = np.array([[0.2, 0.1], [-1.0, 0.0], [np.nan, 0.0], [np.inf, 0.0]])
    np.testing.assert_array_equal(found.actions([one_hot(2)], scores), [[0], [1], [np.nan], [np.nan]])
    box = spaces("Pendulum-v1", {})
    np.testing.assert_allclose(box.actions([unit_box(*np.array([[-4.0], [4.0]]))], scores[:2, :1]), [[0.8], [-2.0]])


def pushes(observations):
    """Towards where the pole falls."""
    return (observations[..., 2:3] + observations[..., 3:4] > 0).astype(np.float32)


def test_cartpole_is_played_as_in_this_process():
    seeds = np.arange(3)
    with Simulators("CartPole-v1", count=3, workers=1) as simulators:
        result = evaluate_policies(pushes, simulators, seeds, np.ones((1, 3), bool), slots=3)
    for seed, reward in zip(seeds, result.returns[0], strict=True):
        env = gymnasium.make("CartPole-v1")
        observation, total, over = env.reset(seed=int(seed))[0], 0.0, False
        while not over:
            observation, one, terminated, truncated, _ = env.step(int(pushes(observation)[0]))
            total, over = total + one, terminated or truncated
        assert reward == total


def test_images_arrive_in_bytes_as_the_environment_shows_them():
    env = gymnasium.make(PENDULUM)
    with Simulators(PENDULUM, count=2, workers=1) as simulators:
        assert simulators.spaces.observation_shape == (64, 64, 2)
        assert simulators.spaces.observation_dim == 64 * 64 * 2
        images = simulators.reset(np.array([5, 6]))
        assert images.dtype == np.uint8
        np.testing.assert_array_equal(images[1], env.reset(seed=6)[0])
        simulators.step(np.full((2, 1), 0.5, np.float32))
        np.testing.assert_array_equal(images[1], env.step(np.full(1, 0.5, np.float32))[0])


def test_named_parts_are_one_vector_sorted_by_name_in_which_discrete_ones_are_one_hot():
    seen = []

    def act(observations):
        seen.append(observations.copy())
        return np.full((*observations.shape[:2], 1), (len(seen) - 1) % 3, np.float32)

    with Simulators(PARTS, count=1, workers=1) as simulators:
        assert (simulators.spaces.observation_dim, simulators.spaces.action_dim) == (6, 3)
        result = evaluate_policies(act, simulators, np.array([0]), np.ones((1, 1), bool), slots=1)
    assert result.returns == 6
    rooms = np.eye(4)[np.arange(6) % 4]
    expected = np.concatenate([np.outer(np.arange(6) / 10, [1, -1]), rooms], axis=1)
    np.testing.assert_allclose(np.concatenate(seen)[:, 0], expected, rtol=1e-6)
