"""The run directory: a run's description, progress and saved states, for every command that comes after training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

import offrl.algorithm
from offrl.algorithm import Algorithm, Spec
from offrl.data.transforms import actions_from_unit_box, transform_observations
from offrl.errors import UserError, writing
from offrl.learning.policies import Policy
from offrl.runs.checkpoints import Checkpoints
from offrl.runs.configuration import member_configs
from offrl.runs.trust import algorithm_of

DESCRIPTION = {"algorithm", "spec", "phases", "protocol", "identity", "dataset", "members", "finished"}
METRIC_COLUMNS = ["phase", "step", "member", "seed", "metric", "value", "seconds"]


def write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it: a killed process leaves the old file or the new one, never a part."""
    part = path.with_name(path.name + ".part")
    with writing(path):
        part.write_text(text)
        part.replace(path)


def differing_names(options: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the options in which the given members differ."""
    names = sorted({name for each in options for name in each})
    return [name for name in names if len({str(each.get(name)) for each in options}) > 1]


def differing_options(options: Sequence[dict[str, Any]]) -> list[str]:
    """For each of the given members, as text, its values of the options in which they differ."""
    differing = differing_names(options)
    return [", ".join(f"{name}={each.get(name)}" for name in differing) for each in options]


def labels(paths: Sequence[Path]) -> list[str]:
    """A name for each of several folders: its own, with as many parent folders as it takes to tell them apart."""
    parts = [path.resolve().parts for path in paths]
    count, found = 1, [path.name for path in paths]
    while len(set(found)) < len(set(parts)):
        count += 1
        found = ["/".join(each[-count:]) for each in parts]
    return found


def flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted name."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


class Run:
    """A run directory that training has made. Open one with `Run.open`."""

    def __init__(self, path: Path, info: dict[str, Any]):
        self.path = path
        self.info = info

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """
        Raises:
            UserError: there is no run at `path`, or its description is damaged.
        """
        path = Path(path)
        file = path / "run.json"
        if not file.is_file():
            inside = sorted(str(found.parent) for found in path.rglob("run.json"))[:3] if path.is_dir() else []
            hint = f"did you mean {', '.join(inside)}?" if inside else "give a folder that offrl.train made"
            raise UserError(f"{path}: no run here (no run.json); {hint}")
        try:
            info = json.loads(file.read_text())
        except ValueError as error:
            raise UserError(f"{file}: damaged ({error}); train again with resume=false") from error
        missing = DESCRIPTION - info.keys() if isinstance(info, dict) else DESCRIPTION
        if missing:
            raise UserError(f"{file}: describes no run of offrl.train (it lacks {', '.join(sorted(missing))})")
        return cls(path, info)

    def write_info(self) -> None:
        write_whole(self.path / "run.json", json.dumps(self.info, indent=1))

    @cached_property
    def algorithm(self) -> Algorithm:
        """
        Raises:
            UserError: it is a file that is not part of offrl, and the user has not said trust=true.
        """
        return offrl.algorithm.load(algorithm_of(self.path, self.info["algorithm"]))

    @cached_property
    def spec(self) -> Spec:
        return Spec.recorded(self.info["spec"])

    @property
    def members(self) -> list[dict[str, Any]]:
        """One dict per member: member, seed, values (what members differ in), diverged_at (a step, or None)."""
        return self.info["members"]

    @property
    def interacted(self) -> str:
        """What the run has collected with its policies, such as "interacted with Hopper-v5 (1000 steps, 7 episodes)".

        Empty for a run that is offline.
        """
        mark = self.info.get("interacted")
        return f"interacted with {mark['env']} ({mark['steps']} steps, {mark['episodes']} episodes)" if mark else ""

    def options(self, member: int) -> dict[str, Any]:
        """Every option of the algorithm, by dotted name, with the member's value."""
        return {**flat(self.info["identity"]["algo"]), **self.members[member]["values"]}

    @cached_property
    def member_configs(self) -> list[Any]:
        """The algorithm's Config of each member."""
        seeds = list(dict.fromkeys(member["seed"] for member in self.members))  # every swept value has all of them
        algorithm = self.info["algorithm"]
        members = member_configs(self.algorithm, algorithm["options"], seeds)
        return [config.replace(**algorithm.get("from_data", {})) for config, _, _ in members]  # older runs have none

    @cached_property
    def policy(self) -> Policy:
        """The policy's functions, each of ONE member's state; `jax.vmap` maps them over a restored population."""
        return self.algorithm.policy(self.member_configs[0], self.spec)

    @cached_property
    def checkpoint_store(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints")

    def checkpoints(self) -> list[int]:
        """Steps at which there is a checkpoint, ascending."""
        return self.checkpoint_store.steps()

    def policy_checkpoints(self) -> list[int]:
        """Checkpoints of the last phase: in earlier ones (of a dynamics model, say) the policy is not trained yet."""
        earlier = sum(phase["updates"] for phase in self.info["phases"][:-1])
        return [step for step in self.checkpoints() if step > earlier]

    def last_checkpoint(self, member: int) -> int | None:
        """The last policy checkpoint before the member diverged, if it did; None if there is none."""
        diverged_at = self.members[member]["diverged_at"]
        healthy = [step for step in self.policy_checkpoints() if diverged_at is None or step < diverged_at]
        return healthy[-1] if healthy else None

    @property
    def complete(self) -> bool:
        """Whether it was trained to its end, and its last checkpoint is still there."""
        end = sum(phase["updates"] for phase in self.info["phases"])
        diverged = all(member["diverged_at"] is not None for member in self.members)  # training stopped before the end
        return self.info["finished"] and (diverged or self.checkpoints()[-1:] == [end])

    def saved_like(self) -> dict[str, Any]:
        """Shapes and dtypes of a checkpoint of this run."""

        config, members = self.member_configs[0], len(self.members)
        state = jax.eval_shape(lambda: self.algorithm.init(jax.random.key(0), config, self.spec))
        states = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((members, *leaf.shape), leaf.dtype), state)
        return {"states": states, "diverged_at": jax.ShapeDtypeStruct((members,), np.int32)}

    def restore(self, step: int) -> Any:
        """States of all members at a checkpoint, stacked on axis 0 (numpy arrays).

        Raises:
            UserError: there is no such checkpoint, or it is damaged.
        """
        if step not in self.checkpoints():
            raise UserError(f"{self.path}: no checkpoint at step {step}; there are {self.checkpoints()}")
        return self.checkpoint_store.restore(step, self.saved_like())["states"]

    def actor(self, step: int, member: int = 0) -> Callable[[np.ndarray], np.ndarray]:
        """The function to deploy: raw observations, one or n of them on axis 0 -> actions in raw units, one or n.

        Observations are vectors [observation_dim] or images [H, W, C]; a discrete action is a whole number.

        Raises:
            UserError: there is no such checkpoint or member, or it is damaged; or the policy has memory.
        """
        if not 0 <= member < len(self.members):
            raise UserError(f"{self.path}: no member {member}; there are 0 to {len(self.members) - 1}")
        if self.policy.memory is not None:
            raise UserError(
                f"{self.path}: its policies have memory, so one observation does not decide the action; "
                "play them with run.policy.memory (start, act, observe)"
            )
        state = jax.device_put(jax.tree.map(lambda leaf: leaf[member], self.restore(step)))
        transforms = self.info["dataset"]["transforms"]
        act = jax.jit(self.algorithm.policy(self.member_configs[member], self.spec).act)

        def actor(observations: np.ndarray) -> np.ndarray:
            observations = np.asarray(observations, np.uint8 if self.spec.observation_shape else None)
            one = observations.ndim == max(1, len(self.spec.observation_shape))
            seen = transform_observations(transforms, observations[None] if one else observations)
            actions = actions_from_unit_box(transforms, np.asarray(act(state, seen)))
            if self.spec.discrete:
                actions = actions[:, 0]
            return actions[0] if one else actions

        return actor

    def metrics(self) -> pd.DataFrame:
        """The metrics table, one row per fact: phase, step, member, seed, metric, value, seconds.

        Raises:
            UserError: it is missing or damaged.
        """
        file = self.path / "metrics.csv"
        try:
            return pd.read_csv(file)[METRIC_COLUMNS]
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{file}: missing or damaged ({error}); train again with resume=false") from error
