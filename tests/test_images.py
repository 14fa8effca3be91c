"""Image observations: the encoder written out in numpy, and actions that follow what an image shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import random_state

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.algorithms import cql
from offrl.data.dataset import Transitions
from offrl.learning.networks import ImageEncoder
from offrl.learning.population import Population

SIZE = 12
SPECS = {
    discrete: Spec(SIZE * SIZE, 2 if discrete else 1, 100, discrete=discrete, observation_shape=(SIZE, SIZE, 1))
    for discrete in (True, False)
}


def convolution(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """Of one image [H, W, C] with [size, size, C, channels]: ceil(H / stride) rows, zeros around it."""
    size, rows = len(kernel), [-(-side // stride) for side in x.shape[:2]]
    missing = [max(0, (count - 1) * stride + size - side) for count, side in zip(rows, x.shape[:2], strict=True)]
    x = np.pad(x, [(m // 2, m - m // 2) for m in missing] + [(0, 0)])
    patches = [
        [x[i * stride : i * stride + size, j * stride : j * stride + size] for j in range(rows[1])]
        for i in range(rows[0])
    ]
    return np.einsum("ijabc,abck->ijk", np.array(patches), kernel)


def test_the_encoder_divides_by_255_and_makes_three_convolutions():
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 14, 3), dtype=np.uint8)
    parameters = ImageEncoder().init(jax.random.key(0), images)
    found = jax.jit(ImageEncoder().apply)(parameters, images)
    x = images[1, 2] / 255
    for i, stride in enumerate((4, 2, 2)):
        layer = {name: np.asarray(value, np.float64) for name, value in parameters["params"][f"Dense_{i}"].items()}
        quarters = layer["kernel"].reshape(2, 2, stride, stride, x.shape[-1], -1)
        kernel = quarters.swapaxes(1, 2).reshape(2 * stride, 2 * stride, x.shape[-1], -1)
        x = np.maximum(convolution(x, kernel, stride) + layer["bias"], 0)
    assert found.shape == (2, 3, x.size)
    np.testing.assert_allclose(found[1, 2], x.ravel(), rtol=1e-4, atol=1e-6)


def test_cql_encodes_an_image_once_for_all_actions():
    config, random = cql.Config(hidden_dims=(16,)), np.random.default_rng(0)
    state = random_state(cql, config, SPECS[False], ("critic",))
    images = random.integers(0, 256, (5, SIZE, SIZE, 1), dtype=np.uint8)
    actions = random.uniform(-1, 1, (3, 5, 1)).astype(np.float32)
    repeated = np.broadcast_to(images, (3, *images.shape))
    expected = cql.critic_network(config).apply(state.critic, repeated, actions)
    np.testing.assert_allclose(cql.values(state.critic, images, actions, config), expected, rtol=1e-5, atol=1e-6)


def sides(discrete: bool, rows: int = 512) -> tuple[Transitions, np.ndarray]:
    """Images bright on the left or (True) on the right; the action that goes there pays 1, and all is over."""
    random = np.random.default_rng(0)
    bright, chosen = random.integers(0, 2, (2, rows)).astype(bool)
    images = random.integers(0, 60, (rows, SIZE, SIZE, 1), dtype=np.uint8)
    images[bright, :, SIZE // 2 :] += 190
    images[~bright, :, : SIZE // 2] += 190
    actions = np.eye(2)[chosen.astype(int)] if discrete else random.normal(1.6 * chosen - 0.8, 0.1)[:, None]
    data = Transitions(
        observations=images,
        actions=np.clip(actions, -1, 1).astype(np.float32),
        rewards=(bright == chosen).astype(np.float32),
        next_observations=images,
        terminations=np.ones(rows, np.float32),
        next_actions=np.zeros((rows, SPECS[discrete].action_dim), np.float32),
        next_action_known=np.zeros(rows, np.float32),
    )
    return data, bright


FAST = {"critic_learning_rate": 3e-3, "actor_learning_rate": 3e-3}


@pytest.mark.parametrize(
    ("name", "discrete", "options"),
    [
        ("bc", True, {"learning_rate": 3e-3}),
        ("iql", True, {"value_learning_rate": 3e-3, "temperature": 10.0, "polyak": 0.2, **FAST}),
        ("cql", True, {"weight": 0.1, **FAST}),
        pytest.param(
            *("cql", False, {"weight": 0.1, "sampled_actions": 2, "initial_alpha": 0.1, **FAST}), marks=pytest.mark.slow
        ),
    ],
)
def test_the_action_follows_what_the_image_shows(name, discrete, options):
    data, bright = sides(discrete)
    if name == "bc":  # it repeats what was done: only what was good
        bright = bright[data.rewards == 1]
        data = jax.tree.map(lambda column: column[data.rewards == 1], data)
    algorithm, spec = offrl.algorithm.load(name), SPECS[discrete]
    config = algorithm.Config(hidden_dims=(32,), batch_size=32, **options)
    population = Population(algorithm, [config], [0], spec, data, "map")
    population.train(population.phases[0], 0, 150)
    state = jax.tree.map(lambda leaf: leaf[0], population.save()["states"])
    actions = np.asarray(jax.jit(algorithm.policy(config, spec).act)(state, jnp.asarray(data.observations[:100])))
    right = actions.argmax(1) == 1 if discrete else actions[:, 0] > 0
    np.testing.assert_array_equal(right, bright[:100])
