"""Does an algorithm file keep the contract? `python -m offrl.check algo=path/to/new.py`, or `problems(algorithm)`.

A few updates of tiny networks on random data, with every phase begun and cut in the middle: shapes, the same key the
same result, members beside each other what they are alone, a restored state going on as if nothing had happened, and
numbers that stay finite. Whether the algorithm learns is for tests of its own.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offrl.algorithm import Algorithm, Spec
from offrl.data.dataset import Dataset
from offrl.data.preprocessing import preprocess
from offrl.learning.policies import Policy
from offrl.learning.population import Population

SPEC = Spec(observation_dim=3, action_dim=2, updates=8)
STRETCH = 2  # updates between two looks at the states; each phase makes two stretches
SEEDS = (0, 1)
# members beside each other are other matrix products: what rounding makes of a few steps of Adam, in which the
# sign of a gradient that is nearly 0 decides
MEMBER_TOLERANCE = 5e-3


def random_dataset(episodes: int = 8, seed: int = 0) -> Dataset:
    """Episodes of random numbers; every second one ends in a terminal state, the others at a time limit."""
    random = np.random.default_rng(seed)
    lengths = random.integers(6, 12, episodes)
    steps, ends = int(lengths.sum()), np.cumsum(lengths) - 1
    terminations, truncations = np.zeros(steps, bool), np.zeros(steps, bool)
    terminations[ends[::2]] = truncations[ends[1::2]] = True
    return Dataset(
        name="random",
        observations=random.normal(size=(steps + episodes, SPEC.observation_dim)).astype(np.float32),
        actions=random.uniform(-1, 1, (steps, SPEC.action_dim)).astype(np.float32),
        rewards=random.normal(size=steps).astype(np.float32),
        terminations=terminations,
        truncations=truncations,
        lengths=lengths,
        final_observation_known=np.ones(episodes, bool),
        action_low=np.full(SPEC.action_dim, -1, np.float32),
        action_high=np.full(SPEC.action_dim, 1, np.float32),
    )


def small_config(algorithm: Algorithm) -> Any:
    """The defaults, with narrow layers and small batches where the options are called so."""
    small: dict[str, Any] = {}
    for name, field in algorithm.options().items():
        if name.endswith("hidden_dims"):
            small[name] = (8,) * len(field.default)  # type: ignore[arg-type]
        elif name.endswith("batch_size"):
            small[name] = 8
    return algorithm.Config(**small)


def problems(algorithm: Algorithm, alone: bool = True) -> list[str]:
    """What is wrong with it, one line each; the later checks are left out where an earlier one fails.

    Args:
        alone: also compile the program of a single member, and compare: half of the time that all of this takes.
    """
    config = small_config(algorithm)
    data = algorithm.prepare(preprocess(random_dataset(), algorithm.preprocessing(config)), config)
    found = option_problems(algorithm) or shape_problems(algorithm, config, data)
    return found or run_problems(algorithm, config, data, alone)


def option_problems(algorithm: Algorithm) -> list[str]:
    found = []
    for name, field in algorithm.options().items():
        if not field.metadata["help"]:
            found.append(f"options: {name} has no meaning; option(default, meaning)")
        if field.metadata["pytree_node"] and type(field.default) not in (int, float):
            found.append(f"options: {name}={field.default} is not a number; make it static=True")
    return found


def shape_problems(algorithm: Algorithm, config: Any, data: Any) -> list[str]:
    """By abstract evaluation, so that it costs no compilation: what the loop and the checkpoints rely on."""
    found = []
    rows = 5
    observations = jnp.zeros((rows, SPEC.observation_dim))
    policy = algorithm.policy(config, SPEC)
    key = jax.random.key(0)
    state = jax.eval_shape(lambda: algorithm.init(key, config, SPEC))
    if not hasattr(state, "step"):
        return ["shapes: the state has no field `step`, the number of updates made"]
    for phase in algorithm.phases(config):
        if phase.begin is not None:
            begun = jax.eval_shape(phase.begin, key, state, data, config)
            found += changed(state, begun, f"begin of phase {phase.name}")
        after, metrics = jax.eval_shape(phase.update, key, state, data, config)
        found += changed(state, after, f"update of phase {phase.name}")
        found += [
            f"shapes: metric {name} of phase {phase.name} is of shape {value.shape}, not a scalar"
            for name, value in metrics.items()
            if value.shape != ()
        ]
        if not any("loss" in name for name in metrics):
            found.append(
                f"shapes: no metric of phase {phase.name} has `loss` in its name: the progress bar shows these"
            )

    expected = {
        "act": (rows, SPEC.action_dim),
        "sample": (rows, SPEC.action_dim),
        "log_prob": (rows,),
        "value": (rows,),
    }
    for name, result in jax.eval_shape(lambda state: used(policy, state, observations), state).items():
        if name == "q_values":
            if len(result.shape) != 2 or result.shape[1] != rows:
                found.append(f"shapes: the policy's q_values are {result.shape}, not (critics, {rows})")
        elif result.shape != expected[name]:
            found.append(f"shapes: the policy's {name} is {result.shape}, not {expected[name]}")
    return found


def used(policy: Policy, state: Any, observations: jax.Array) -> dict[str, jax.Array]:
    """All that the policy offers, once."""
    results = {"act": policy.act(state, observations)}
    if policy.sample is not None:
        results["sample"] = policy.sample(jax.random.key(1), state, observations)
    if policy.log_prob is not None:
        results["log_prob"] = policy.log_prob(state, observations, results["act"])
    if policy.q_values is not None:
        results["q_values"] = policy.q_values(state, observations, results["act"])
    if policy.value is not None:
        results["value"] = policy.value(state, observations)
    return results


def changed(old: Any, new: Any, where: str) -> list[str]:
    """How two states' structures differ."""
    if str(jax.tree.structure(old)) != str(jax.tree.structure(new)):
        return [f"shapes: {where} changes the structure of the state"]
    return [
        f"shapes: {where} changes {jax.tree_util.keystr(path)} from {a.dtype}{a.shape} to {b.dtype}{b.shape}"
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True)
        if (a.shape, a.dtype) != (b.shape, b.dtype)
    ]


def run_problems(algorithm: Algorithm, config: Any, data: Any, alone: bool) -> list[str]:
    together = Population(algorithm, [config] * len(SEEDS), list(SEEDS), SPEC, data, "vmap")
    begun = together.save()
    whole, metrics = trained(together)
    end = whole[-1]
    found = [
        f"finite: {name} of phase {phase} is not finite"
        for phase, values in metrics
        for name, value in values.items()
        if not np.isfinite(value).all()
    ]
    found += [f"finite: {name} is not finite" for name in not_finite(end["states"])]
    found += acting_problems(algorithm, config, end)
    made = len(metrics) * STRETCH
    if (end["states"].step != made).any():
        found.append(f"step: the states say {end['states'].step.tolist()} updates, {made} were made")
    if not differences(member(end, 0), member(end, 1), 0.0, ""):
        found.append("members: two seeds give the same state")
    if found:
        return found

    together.restore(begun)
    found += differences(end, trained(together)[0][-1], 0.0, "determinism: the same key gives another")
    half = len(whole) // 2  # in the middle of a phase, or between two
    for stop in sorted({1, half}):
        together.restore(whole[stop - 1])
        resumed = trained(together, from_stretch=stop)[0][-1]
        found += differences(end, resumed, 0.0, f"resume: restored after stretch {stop}, it ends with another")
    # the second member beside another first one
    together.restore({**begun, "states": jax.tree.map(lambda leaf: leaf[[1, 1]], begun["states"])})
    beside = trained(together)[0][-1]
    found += differences(member(end, 1), member(beside, 1), 0.0, "members: beside another one, a member has another")
    if alone and not found:
        single = Population(algorithm, [config], [SEEDS[1]], SPEC, data, "map")
        ours = trained(single)[0][-1]
        found += differences(ours, member(end, 1), MEMBER_TOLERANCE, "members: vmapped, a member has another")
    return found


def member(saved: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i : i + 1], saved)


def trained(population: Population, from_stretch: int = 0) -> tuple[list[Any], list[tuple[str, dict[str, np.ndarray]]]]:
    """Two stretches of every phase: what was saved after each of them, and the metrics."""
    saved, metrics, stretch = [], [], 0
    for phase in population.phases:
        for i in range(2):
            if stretch >= from_stretch:
                if i == 0:
                    population.begin(phase, stretch * STRETCH)
                metrics.append((phase.name, population.train(phase, stretch * STRETCH, STRETCH)))
                saved.append(population.save())
            stretch += 1
    return saved, metrics


def acting_problems(algorithm: Algorithm, config: Any, saved: Any) -> list[str]:
    policy = algorithm.policy(config, SPEC)
    state = jax.tree.map(lambda leaf: leaf[0], saved["states"])
    observations = 3 * jax.random.normal(jax.random.key(0), (16, SPEC.observation_dim))

    found = []
    for name, result in jax.jit(lambda state: used(policy, state, observations))(state).items():
        if not np.isfinite(result).all():
            found.append(f"finite: the policy's {name} is not finite")
        elif name in ("act", "sample") and np.abs(result).max() > 1:
            found.append(f"policy: {name} leaves [-1, 1]; clip it, or end in a tanh")
    return found


def not_finite(tree: Any) -> list[str]:
    return [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all()
    ]


def differences(ours: Any, theirs: Any, tolerance: float, what: str) -> list[str]:
    """Parts of the states that differ by more than the tolerance, relative above 1; the first three."""
    found = []
    paths = jax.tree_util.tree_leaves_with_path(ours["states"])
    for (path, a), b in zip(paths, jax.tree.leaves(theirs["states"]), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        gap = np.abs(a - b) / np.maximum(1, np.abs(a))
        if not (gap <= tolerance).all():
            found.append(f"{what} {jax.tree_util.keystr(path)} (by {gap.max():.2g})")
    return found[:3]
