"""Small data, and networks written out in numpy: what the losses of our algorithms are checked against."""

from types import ModuleType
from typing import Any

import jax
import numpy as np

from offrl.algorithm import Spec
from offrl.data.dataset import Dataset, Transitions


def random_state(algorithm: ModuleType, config: Any, spec: Spec, networks: tuple[str, ...], seed: int = 0) -> Any:
    """A state of an algorithm in which those networks have different random parameters; everything else is 0.

    What the algorithm's `init` would make up to the numbers: compiling that takes longer than all the test.
    """
    random = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), config, spec))

    def parameters(shape: Any) -> np.ndarray:
        return (random.normal(size=shape.shape) / max(1, shape.shape[-2] if shape.ndim > 1 else 4) ** 0.5).astype("f4")

    state = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes)
    return state.replace(**{name: jax.tree.map(parameters, getattr(shapes, name)) for name in networks})


def random_batch(rows: int = 32, observation_dim: int = 3, action_dim: int = 2, seed: int = 0) -> Transitions:
    """A third of the rows terminal."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    def actions() -> np.ndarray:
        return random.uniform(-1, 1, (rows, action_dim)).astype(np.float32)

    return Transitions(
        observations=normal(rows, observation_dim),
        actions=actions(),
        rewards=normal(rows),
        next_observations=normal(rows, observation_dim),
        terminations=(np.arange(rows) % 3 == 0).astype(np.float32),
        next_actions=actions(),
        next_action_known=np.ones(rows, np.float32),
    )


def golden_batch(golden, i: int) -> Transitions:
    """The i-th batch of a file of reference numbers, which lacks the columns that its algorithm does not read."""
    columns = {name: golden[f"batch/{name}"][i] for name in Transitions._fields if f"batch/{name}" in golden}
    columns.setdefault("next_actions", np.zeros_like(columns["actions"]))
    return Transitions(**columns, next_action_known=np.ones_like(columns["rewards"]))


def random_dataset(lengths=(5, 4, 6), terminal=(True, False, True), action_dim=2, seed=0) -> Dataset:
    """Episodes that end in a terminal state, or else at a time limit; observations [_, 3], actions in [-1, 1]."""
    random = np.random.default_rng(seed)
    lengths, steps, ends = np.array(lengths), sum(lengths), np.cumsum(lengths) - 1
    terminations, truncations = np.zeros(steps, bool), np.zeros(steps, bool)
    terminations[ends], truncations[ends] = terminal, ~np.array(terminal)
    return Dataset(
        name="test",
        observations=random.normal(size=(steps + len(lengths), 3)).astype(np.float32),
        actions=random.uniform(-1, 1, (steps, action_dim)).astype(np.float32),
        rewards=random.normal(size=steps).astype(np.float32),
        terminations=terminations,
        truncations=truncations,
        lengths=lengths,
        final_observation_known=np.ones(len(lengths), bool),
        action_low=np.full(action_dim, -1, np.float32),
        action_high=np.full(action_dim, 1, np.float32),
    )


def mlp(layers, x: np.ndarray) -> np.ndarray:
    """ReLU layers `Dense_0`, `Dense_1`, ... and a linear last one, in double precision.

    A `LayerNorm_i` follows the i-th activation.
    """
    last = sum(name.startswith("Dense") for name in layers) - 1
    for i in range(last + 1):
        kernel, bias = (np.asarray(layers[f"Dense_{i}"][name], np.float64) for name in ("kernel", "bias"))
        x = x @ kernel + bias
        if i < last:
            x = np.maximum(x, 0)
            if f"LayerNorm_{i}" in layers:
                scale, shift = (np.asarray(layers[f"LayerNorm_{i}"][name], np.float64) for name in ("scale", "bias"))
                x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * scale + shift
    return x


def twin_q(params, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Q of both critics, [2, rows]."""
    inputs = np.concatenate([observations, actions], -1)
    stacked = params["params"]["MLP_0"]
    return np.stack([mlp(jax.tree.map(lambda leaf, i=i: leaf[i], stacked), inputs)[:, 0] for i in range(2)])


def tanh_actor(params, observations: np.ndarray) -> np.ndarray:
    return np.tanh(mlp(params["params"]["MLP_0"], observations))


def ensemble_q(params, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Q of all critics, [critics, ...]."""
    stacked, inputs = params["params"]["MLP_0"], np.concatenate([observations, actions], -1)
    count = stacked["Dense_0"]["kernel"].shape[0]
    return np.stack([mlp(jax.tree.map(lambda leaf, i=i: leaf[i], stacked), inputs)[..., 0] for i in range(count)])


def gaussian_actor(params, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of what a tanh-Gaussian actor squashes."""
    mean, log_std = np.split(mlp(params["params"]["MLP_0"], observations), 2, -1)
    return mean, np.exp(np.clip(log_std, -5, 2))


def tanh_gaussian_density(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Log-density of tanh(x) where x is Gaussian, summed over the last axis."""
    gaussian = -0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return (gaussian - np.log(1 - np.tanh(x) ** 2)).sum(-1)
