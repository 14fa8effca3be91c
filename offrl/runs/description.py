"""What run.json says about a run: versions, algorithm, protocol, data and their preprocessing, members."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import jax

import offrl
from offrl.algorithm import Algorithm, Spec
from offrl.data.dataset import Dataset

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gymnasium", "mujoco", "minari", "numpy")


def describe(
    dataset: Dataset, train: Dataset, env_id: str | None, env_kwargs: dict[str, Any], warnings: list[str]
) -> dict[str, Any]:
    """What run.json records about the data, ready for JSON."""
    reference = dataset.reference
    return {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "episodes": dataset.episodes,
        "steps": dataset.steps,
        "train_episodes": train.episodes,
        "env_id": env_id,
        "env_kwargs": env_kwargs,
        "time_limit": dataset.time_limit,
        "reference": None
        if reference is None
        else {"random": reference.random, "expert": reference.expert, "source": reference.source},
        "action_low": dataset.action_low.tolist(),
        "action_high": dataset.action_high.tolist(),
        "observation_layout": list(dataset.observation_layout),
        "transforms": list(train.transforms),
        "returns": {
            "mean": float(dataset.returns.mean()),
            "min": float(dataset.returns.min()),
            "max": float(dataset.returns.max()),
        },
        "warnings": warnings,
    }


def info_of(
    config: dict[str, Any],
    algorithm: Algorithm,
    spec: Spec,
    members: list[tuple[Any, int, dict[str, Any]]],
    identity: dict[str, Any],
    dataset: dict[str, Any],
    from_data: dict[str, float],
) -> dict[str, Any]:
    """What run.json says when a run begins. `members` come from `configuration.member_configs`, `dataset` from
    `describe`, `from_data` from the algorithm's function of that name."""
    protocol = config["protocol"]
    return {
        "offrl": offrl.__version__,
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "algorithm": {
            "name": algorithm.name,
            "file": config["algo"]["file"],
            "options": config["algo"],
            "from_data": from_data,
        },
        "spec": spec._asdict(),
        "phases": [
            {"name": phase.name, "updates": phase.length(protocol["updates"])}
            for phase in algorithm.phases(members[0][0])
        ],
        "protocol": protocol,
        "identity": identity,
        "dataset": dataset,
        "members": [
            {"member": i, "seed": seed, "values": values, "diverged_at": None}
            for i, (_, seed, values) in enumerate(members)
        ],
        "finished": False,
    }
