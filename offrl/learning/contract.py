"""Does an algorithm file keep the contract? `python -m offrl.check algo=path/to/new.py`, or `problems(algorithm)`.

Makes a few updates of tiny networks on random data, in every phase, and checks that shapes are as promised, that the
same key gives the same result, that members trained in parallel do not influence each other, that a restored state
continues as if training had not been interrupted, and that numbers stay finite. Whether the algorithm learns is for
its own tests to show.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offrl.algorithm import Algorithm, Spec, described
from offrl.data.dataset import Dataset
from offrl.data.preprocessing import preprocess
from offrl.learning.policies import Policy
from offrl.learning.population import Population

SPEC = Spec(observation_dim=3, action_dim=2, updates=8)
IMAGE_SHAPE = (8, 8, 1)
STRETCH = 2  # updates after which states are saved and compared; each phase makes two such stretches
SEEDS = (0, 1)
# batched over members, matrix products round differently; Adam enlarges that, as its first steps depend on the sign of
# a gradient that is nearly 0
MEMBER_TOLERANCE = 5e-3


def random_dataset(episodes: int = 8, seed: int = 0, spec: Spec = SPEC) -> Dataset:
    """Episodes of random numbers; every second one ends in a terminal state, the others at a time limit."""
    random = np.random.default_rng(seed)
    lengths = random.integers(6, 12, episodes)
    steps, ends = int(lengths.sum()), np.cumsum(lengths) - 1
    terminations, truncations = np.zeros(steps, bool), np.zeros(steps, bool)
    terminations[ends[::2]] = truncations[ends[1::2]] = True
    low, high = np.full(spec.action_dim, -1, np.float32), np.full(spec.action_dim, 1, np.float32)
    observations: np.ndarray = random.normal(size=(steps + episodes, spec.observation_dim)).astype(np.float32)
    actions: np.ndarray = random.uniform(-1, 1, (steps, spec.action_dim)).astype(np.float32)
    if spec.observation_shape:
        observations = random.integers(0, 256, (steps + episodes, *spec.observation_shape), dtype=np.uint8)
    if spec.discrete:
        low, high = np.zeros(1, np.float32), np.full(1, spec.action_dim - 1, np.float32)
        actions = random.integers(0, spec.action_dim, (steps, 1), dtype=np.int32)
    return Dataset(
        name="random",
        observations=observations,
        actions=actions,
        rewards=random.normal(size=steps).astype(np.float32),
        terminations=terminations,
        truncations=truncations,
        lengths=lengths,
        final_observation_known=np.ones(episodes, bool),
        action_low=low,
        action_high=high,
    )


def small_config(algorithm: Algorithm) -> Any:
    """The default options, but for narrow layers (options named *hidden_dims) and small batches (*batch_size)."""
    small: dict[str, Any] = {}
    for name, field in algorithm.options().items():
        if name.endswith("hidden_dims"):
            small[name] = (8,) * len(field.default)  # type: ignore[arg-type]
        elif name.endswith("batch_size"):
            small[name] = 8
    return algorithm.Config(**small)


def supported_specs(algorithm: Algorithm) -> list[Spec]:
    """Of vectors with each kind of actions that the algorithm supports; of images with the last of these."""
    specs = [
        SPEC._replace(discrete=kind == "discrete") for kind in ("continuous", "discrete") if kind in algorithm.supports
    ]
    if "image" in algorithm.supports and specs:
        size = int(np.prod(IMAGE_SHAPE))
        specs.append(specs[-1]._replace(observation_dim=size, observation_shape=IMAGE_SHAPE))
    return specs


def problems(algorithm: Algorithm, alone: bool = True) -> list[str]:
    """What is wrong with it, one line each; once a check fails, later ones are left out.

    Args:
        alone: also compile the program of a single member and compare with it, which takes half of the total time;
            with the first of the supported spaces.
    """
    found = option_problems(algorithm)
    if not (specs := supported_specs(algorithm)):
        found.append("spaces: SUPPORTS names no actions; name continuous, discrete or both")
    for spec in specs:
        if found:
            break
        config = small_config(algorithm)
        dataset = preprocess(random_dataset(spec=spec), algorithm.preprocessing(config))
        config = config.replace(**algorithm.from_data(dataset, config))
        data = algorithm.prepare(dataset, config)
        found = shape_problems(algorithm, config, data, spec)
        found = found or run_problems(algorithm, config, data, spec, alone and spec is specs[0])
        if spec is not specs[0]:
            found = [f"with {described(spec.spaces)}: {problem}" for problem in found]
    return found


def option_problems(algorithm: Algorithm) -> list[str]:
    found = []
    for name, field in algorithm.options().items():
        if not field.metadata["help"]:
            found.append(f"options: {name} has no help text; write option(default, meaning)")
        if field.metadata["pytree_node"] and type(field.default) not in (int, float):
            found.append(f"options: {name}={field.default} is not a number; make it static=True")
    return found


def shape_problems(algorithm: Algorithm, config: Any, data: Any, spec: Spec) -> list[str]:
    """Checks what the training loop and checkpoints rely on, by abstract evaluation: nothing is compiled."""
    found = []
    rows = 5
    observations = jnp.repeat(spec.observations, rows, 0)
    policy = algorithm.policy(config, spec)
    key = jax.random.key(0)
    state = jax.eval_shape(lambda: algorithm.init(key, config, spec))
    if not hasattr(state, "step"):
        return ["shapes: the state has no field `step`, the number of updates made"]
    for phase in algorithm.phases(config):
        if phase.begin is not None:
            begun = jax.eval_shape(phase.begin, key, state, data, config)
            found += changed(state, begun, f"begin of phase {phase.name}")
        after, metrics = jax.eval_shape(phase.update, key, state, data, config)
        found += changed(state, after, f"update of phase {phase.name}")
        found += [
            f"shapes: metric {name} of phase {phase.name} has shape {value.shape}, but must be a scalar"
            for name, value in metrics.items()
            if value.shape != ()
        ]
        if not any("loss" in name for name in metrics):
            found.append(
                f"shapes: no metric of phase {phase.name} has `loss` in its name; the progress bar shows only these"
            )

    expected = {
        "act": (rows, spec.action_dim),
        "sample": (rows, spec.action_dim),
        "log_prob": (rows,),
        "value": (rows,),
    }
    for name, result in jax.eval_shape(lambda state: used(policy, state, observations), state).items():
        if name == "q_values":
            if len(result.shape) != 2 or result.shape[1] != rows:
                found.append(f"shapes: the policy's q_values have shape {result.shape}, not (critics, {rows})")
        elif result.shape != expected[name]:
            found.append(f"shapes: the policy's {name} has shape {result.shape}, not {expected[name]}")
    return found


def used(policy: Policy, state: Any, observations: jax.Array) -> dict[str, jax.Array]:
    """The result of each function that the policy has, by its name."""
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


def run_problems(algorithm: Algorithm, config: Any, data: Any, spec: Spec, alone: bool) -> list[str]:
    together = Population(algorithm, [config] * len(SEEDS), list(SEEDS), spec, data, "vmap")
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
    found += acting_problems(algorithm, config, end, spec)
    made = len(metrics) * STRETCH
    if (end["states"].step != made).any():
        found.append(f"step: the states count {end['states'].step.tolist()} updates, but {made} were made")
    if not differences(member(end, 0), member(end, 1), 0.0, ""):
        found.append("members: two seeds give the same state")
    if found:
        return found

    together.restore(begun)
    found += differences(end, trained(together)[0][-1], 0.0, "determinism: with the same keys, two trainings differ in")
    half = len(whole) // 2  # in the middle of a phase, or between two
    for stop in sorted({1, half}):
        together.restore(whole[stop - 1])
        resumed = trained(together, from_stretch=stop)[0][-1]
        what = f"resume: restored after stretch {stop}, training ends with a difference in"
        found += differences(end, resumed, 0.0, what)
    # the second member again, in parallel with a different first one
    together.restore({**begun, "states": jax.tree.map(lambda leaf: leaf[[1, 1]], begun["states"])})
    beside = trained(together)[0][-1]
    what = "members: in parallel with a different member, a member differs in"
    found += differences(member(end, 1), member(beside, 1), 0.0, what)
    if alone and not found:
        single = Population(algorithm, [config], [SEEDS[1]], spec, data, "map")
        ours = trained(single)[0][-1]
        what = "members: under vmap, a member differs from the same one trained alone in"
        found += differences(ours, member(end, 1), MEMBER_TOLERANCE, what)
    return found


def member(saved: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i : i + 1], saved)


def trained(population: Population, from_stretch: int = 0) -> tuple[list[Any], list[tuple[str, dict[str, np.ndarray]]]]:
    """Trains two stretches of every phase; returns what `save` gave after each, and (phase, metrics) of each."""
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


def acting_problems(algorithm: Algorithm, config: Any, saved: Any, spec: Spec) -> list[str]:
    policy = algorithm.policy(config, spec)
    state = jax.tree.map(lambda leaf: leaf[0], saved["states"])
    observations = 3 * jax.random.normal(jax.random.key(0), (16, spec.observation_dim))
    if spec.observation_shape:
        observations = jax.random.randint(jax.random.key(0), (16, *spec.observation_shape), 0, 256).astype(jnp.uint8)

    found = []
    for name, result in jax.jit(lambda state: used(policy, state, observations))(state).items():
        if not np.isfinite(result).all():
            found.append(f"finite: the policy's {name} is not finite")
        elif spec.discrete and name in ("act", "sample"):
            if not (((result == 0) | (result == 1)).all() and (result.sum(-1) == 1).all()):
                found.append(f"policy: {name} returns discrete actions that are not one-hot")
        elif name in ("act", "sample") and np.abs(result).max() > 1:
            found.append(f"policy: {name} returns actions outside [-1, 1]; clip them, or end in a tanh")
    return found


def not_finite(tree: Any) -> list[str]:
    return [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all()
    ]


def differences(ours: Any, theirs: Any, tolerance: float, what: str) -> list[str]:
    """The first three leaves of the states that differ by more than the tolerance: absolute, or relative above 1."""
    found = []
    paths = jax.tree_util.tree_leaves_with_path(ours["states"])
    for (path, a), b in zip(paths, jax.tree.leaves(theirs["states"]), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        gap = np.abs(a - b) / np.maximum(1, np.abs(a))
        if not (gap <= tolerance).all():
            found.append(f"{what} {jax.tree_util.keystr(path)} (by {gap.max():.2g})")
    return found[:3]
