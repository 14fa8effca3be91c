"""A snapshot of a published TRPO run: a Gaussian policy whose weights are given and not learned.

What was logged are actions drawn and then clipped to the box, so an action at a bound has a probability, that of the
tail beyond it, and one inside has a density.
"""

from itertools import pairwise

import flax
import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from offrl.algorithm import option
from offrl.learning.policies import Policy

DIM, WIDTH = 11, 64  # of what both ladders see, and of their hidden layers


@flax.struct.dataclass
class Config:
    epsilon: float = option(1e-6, "added to the standard deviations of observations; one of them is 0 on reacher")


@flax.struct.dataclass
class State:
    step: jax.Array
    mean: jax.Array  # of the observations that the run saw
    deviation: jax.Array
    weights: tuple[jax.Array, ...]  # of three layers, [in, out]
    biases: tuple[jax.Array, ...]
    log_std: jax.Array  # [action_dim]


def init(key, config, spec):
    dims = (DIM, WIDTH, WIDTH, spec.action_dim)
    return State(
        step=jnp.zeros((), jnp.int32),
        mean=jnp.zeros(DIM),
        deviation=jnp.ones(DIM),
        weights=tuple(jnp.zeros(shape) for shape in pairwise(dims)),
        biases=tuple(jnp.zeros(dim) for dim in dims[1:]),
        log_std=jnp.zeros(spec.action_dim),
    )


def update(key, state, dataset, config):
    return state.replace(step=state.step + 1), {}


def policy(config, spec):
    def mean(state, observations):
        # reacher had the vertical distance to the target as its last entry, which is always 0; Reacher-v5 leaves it out
        seen = jnp.pad(observations, ((0, 0), (0, DIM - observations.shape[1])))
        x = (seen - state.mean) / (state.deviation + config.epsilon)
        for w, b in zip(state.weights[:-1], state.biases[:-1], strict=True):
            x = jnp.tanh(x @ w + b)
        return x @ state.weights[-1] + state.biases[-1]

    def sample(key, state, observations):
        means = mean(state, observations)
        return jnp.clip(means + jnp.exp(state.log_std) * jax.random.normal(key, means.shape), -1, 1)

    def log_prob(state, observations, actions):
        means, std = mean(state, observations), jnp.exp(state.log_std)
        below, above = norm.logcdf(-1, means, std), norm.logsf(1, means, std)
        inside = norm.logpdf(actions, means, std)
        return jnp.where(actions <= -1, below, jnp.where(actions >= 1, above, inside)).sum(-1)

    return Policy(
        act=lambda state, observations: jnp.clip(mean(state, observations), -1, 1), sample=sample, log_prob=log_prob
    )


def snapshots(file):
    """Iteration -> State, in order; of a file of ../shared/data/policies."""
    found = {}
    with h5py.File(file) as stored:
        for name, group in sorted(stored["snapshots"].items()):
            values = group["GaussianPolicy"]
            seen = values["obsnorm/Standardizer"]
            center = seen["mean_1_D"][0]
            layers = [values[f"{place}/AffineLayer"] for place in
                      ("hidden/FeedforwardNet/layer_0", "hidden/FeedforwardNet/layer_2", "out")]  # fmt: skip
            iteration = int(name.removeprefix("iter"))
            found[iteration] = State(
                step=np.int32(iteration),
                mean=center.astype(np.float32),
                # float64: the difference of two numbers that may be nearly equal
                deviation=np.sqrt(np.maximum(seen["meansq_1_D"][0] - center**2, 0)).astype(np.float32),
                weights=tuple(layer["W"][()].astype(np.float32) for layer in layers),
                biases=tuple(layer["b"][0].astype(np.float32) for layer in layers),
                log_std=values["logstdevs_1_Da"][0].astype(np.float32),
            )
    return found
