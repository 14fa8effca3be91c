"""The compiled training loop: updates in sequence, the members of a population in parallel, in one program.

On a CPU the members are spread over one XLA device per core, and those that share a core take turns: a small network
gains more from a core of its own than from threads within its matrix products. On an accelerator they are vectorised.
benchmarks/members.py compares these ways.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from offrl.algorithm import Algorithm, Phase, Spec, Update

NEVER = -1  # `diverged_at` of a member that has not diverged


def member_keys(seed: int) -> tuple[jax.Array, jax.Array]:
    """Keys of one member: for its initial parameters, and for its updates (folded with the step)."""
    key_init, key_updates = jax.random.split(jax.random.key(seed))
    return key_init, key_updates


def stack(trees: list[Any]) -> Any:
    """Pytrees of one structure, stacked leaf by leaf on a new axis 0; in numpy, as jax would compile for each shape."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)


def run_updates(
    update: Update, key: Any, state: Any, diverged_at: Any, dataset: Any, config: Any, first: Any, count: Any
) -> tuple[Any, dict[str, jax.Array], jax.Array]:
    """`count` updates of one member, from step `first`: state, means of the metrics, the step where it diverged.

    A member that diverged earlier is left as it is; one that diverges now keeps the state from before these updates.
    """
    update = jax.jit(update)  # traced once, not once here and once in the loop
    shapes = jax.eval_shape(update, key, state, dataset, config)[1]
    zeros = {name: jnp.zeros((), jnp.float32) for name in shapes}

    def one(i: Any, carry: Any) -> Any:
        state, sums, diverged_at = carry
        state, metrics = update(jax.random.fold_in(key, first + i), state, dataset, config)
        finite = jnp.array([jnp.isfinite(value) for value in metrics.values()], bool).all()
        diverged_at = jnp.where((diverged_at == NEVER) & ~finite, first + i + 1, diverged_at)
        return state, {name: sums[name] + metrics[name] for name in sums}, diverged_at

    def run(state: Any) -> Any:
        last, sums, last_diverged_at = jax.lax.fori_loop(0, count, one, (state, zeros, diverged_at))
        healthy = last_diverged_at == NEVER
        kept = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), last, state)
        return kept, {name: value / count for name, value in sums.items()}, last_diverged_at

    def skip(state: Any) -> Any:
        return state, {name: jnp.full((), jnp.nan) for name in zeros}, diverged_at

    return jax.lax.cond(diverged_at == NEVER, run, skip, state)


class Population:
    """The members of a run: their states, and the compiled programs that train them.

    Args:
        algorithm, configs (one per member, with the same static fields), seeds (one per member), spec
        dataset: what the algorithm's `prepare` made, as numpy arrays; moved to the devices here, once.
        mapping: "devices", "vmap" or "map"; by default the first on a CPU and the second elsewhere.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        configs: list[Any],
        seeds: list[int],
        spec: Spec,
        dataset: Any,
        mapping: str | None = None,
    ):
        self.size = len(configs)
        self.phases = algorithm.phases(configs[0])
        self.mapping = mapping or ("devices" if jax.default_backend() == "cpu" else "vmap")
        devices = jax.devices()[: self.size] if self.mapping == "devices" else jax.devices()[:1]
        self.mesh = Mesh(np.array(devices), ("members",))
        # every device takes the same number: the last places may hold copies that are never trained
        padding = -self.size % len(devices)
        configs, seeds = configs + configs[:1] * padding, seeds + seeds[:1] * padding
        self.per_member = NamedSharding(self.mesh, P("members"))
        keys = [member_keys(seed) for seed in seeds]
        self.keys = jax.device_put(stack([jax.random.key_data(key) for _, key in keys]), self.per_member)
        self.configs = jax.device_put(stack(configs), self.per_member)
        self.dataset = jax.device_put(dataset, NamedSharding(self.mesh, P()))
        # it runs only once: optimising it fully (above all orthogonal initialisers) would be most of the start-up time
        quickly = {"xla_backend_optimization_level": 1}
        init = jax.jit(algorithm.init, static_argnums=2, compiler_options=quickly)
        states = [init(key, config, spec) for (key, _), config in zip(keys, configs, strict=True)]
        self.states = jax.device_put(stack(states), self.per_member)
        diverged_at = np.array([NEVER] * self.size + [0] * padding, np.int32)
        self.diverged_at = jax.device_put(diverged_at, self.per_member)
        self.programs: dict[str, Any] = {}

    def program(self, phase: Phase) -> Any:
        """The compiled updates of a phase: (keys, states, diverged_at, dataset, configs, first, count)."""
        if phase.name not in self.programs:

            def members(keys: Any, states: Any, diverged_at: Any, dataset: Any, configs: Any, first: Any, count: Any):
                def one(key_data: Any, state: Any, diverged_at: Any, config: Any) -> Any:
                    key = jax.random.wrap_key_data(key_data)
                    return run_updates(phase.update, key, state, diverged_at, dataset, config, first, count)

                if self.mapping == "vmap":
                    return jax.vmap(one)(keys, states, diverged_at, configs)
                return jax.lax.map(lambda inputs: one(*inputs), (keys, states, diverged_at, configs))

            if self.mapping == "devices":
                each, shared = P("members"), P()
                members = jax.shard_map(
                    members,
                    mesh=self.mesh,
                    in_specs=(each, each, each, shared, each, shared, shared),
                    out_specs=each,
                    check_vma=False,
                )
            self.programs[phase.name] = jax.jit(members, donate_argnums=1)
        return self.programs[phase.name]

    def begin(self, phase: Phase, step: int) -> None:
        """Run the phase's `begin`, if it has one, at this step of the run."""
        if phase.begin is None:
            return
        begin = phase.begin

        @jax.jit
        def members(keys: Any, states: Any, diverged_at: Any, dataset: Any, configs: Any) -> Any:
            def one(inputs: Any) -> Any:
                key_data, state, diverged_at, config = inputs
                # split once more: the first update of the phase folds in the same step
                key = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key_data), step))[0]
                begun = begin(key, state, dataset, config)
                return jax.tree.map(lambda new, old: jnp.where(diverged_at == NEVER, new, old), begun, state)

            return jax.lax.map(one, (keys, states, diverged_at, configs))

        states = members(self.keys, self.states, self.diverged_at, self.dataset, self.configs)
        self.states = jax.device_put(states, self.per_member)

    def train(self, phase: Phase, first: int, count: int) -> dict[str, np.ndarray]:
        """`count` updates of every healthy member; returns each metric's mean over these updates, [members].

        NaN where a member has diverged; `diverged_at` has the step.
        """
        arguments = (jnp.asarray(first, jnp.int32), jnp.asarray(count, jnp.int32))
        self.states, metrics, self.diverged_at = self.program(phase)(
            self.keys, self.states, self.diverged_at, self.dataset, self.configs, *arguments
        )
        return {name: np.asarray(values)[: self.size] for name, values in metrics.items()}

    def save(self) -> dict[str, Any]:
        """States of all members, stacked on axis 0, and the steps at which they diverged, as numpy arrays."""
        arrays = jax.device_get({"states": self.states, "diverged_at": self.diverged_at})
        return jax.tree.map(lambda leaf: np.asarray(leaf)[: self.size], arrays)

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""

        def place(new: Any, present: Any) -> Any:
            return jax.device_put(np.concatenate([new, np.asarray(present)[self.size :]]), self.per_member)

        self.states = jax.tree.map(place, saved["states"], self.states)
        self.diverged_at = place(saved["diverged_at"], self.diverged_at)
