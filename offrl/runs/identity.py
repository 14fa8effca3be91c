"""Which run a configuration describes: published values filled in, what determines its numbers, its folder."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

import offrl.algorithm
from offrl.runs import configuration

# options that may change when a run is continued: none of them affects the numbers of training
NOT_IDENTITY = ("runs", "run_dir", "resume", "wandb", "wandb_project")


def unpacked(composed: DictConfig) -> tuple[dict[str, Any], set[str]]:
    """(the configuration, the keys that the user set), of what Hydra composed, including its own node `hydra`."""
    own = composed.hydra
    config: dict[str, Any] = OmegaConf.to_container(  # type: ignore[assignment]
        OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]), resolve=True
    )
    config["env_name"] = own.runtime.choices.get("env")
    return config, {str(override).partition("=")[0].lstrip("+") for override in own.overrides.task}


def take_published(config: dict[str, Any], chosen: set[str]) -> tuple[dict[str, Any], str]:
    """Replaces defaults that the user did not set by the values published for the dataset: those, their source."""
    if not config["tuned"]:
        return {}, ""
    values, source = configuration.tuned_values(config["algo"]["name"], config["dataset"])
    values = {key: value for key, value in values.items() if f"algo.{key}" not in chosen}
    for key, value in values.items():
        node = config["algo"]
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    return values, source


@functools.cache
def identity_of(*arguments: str) -> dict[str, Any]:
    """The identity of the run that offrl.train makes from these arguments, which name the dataset in full."""
    prepared = configuration.prepare_arguments(list(arguments), "train")
    with hydra.initialize_config_module("offrl.configs", version_base="1.3"):
        config, chosen = unpacked(hydra.compose("train", prepared, return_hydra_config=True))
    take_published(config, chosen)
    algorithm = offrl.algorithm.load(config["algo"]["file"] or config["algo"]["name"])
    return json.loads(json.dumps(identity(config, algorithm)))


def identity(config: dict[str, Any], algorithm: offrl.algorithm.Algorithm) -> dict[str, Any]:
    """What determines the numbers of a run: two runs of the same identity are the same run."""
    kept = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    kept["protocol"] = {
        key: value for key, value in kept["protocol"].items() if key not in ("name", "episodes", "evaluation_seed")
    }
    if not kept["data"]["trust_next_observations"]:  # runs from before there was this option are the same runs
        kept["data"] = {key: value for key, value in kept["data"].items() if key != "trust_next_observations"}
    if kept["algo"]["file"]:
        kept["algo"] = {**kept["algo"], "file": hashlib.sha256(algorithm.file.read_bytes()).hexdigest()}
    return kept


def run_directory(config: dict[str, Any], dataset: str, run_identity: dict[str, Any]) -> Path:
    if config["run_dir"]:
        return Path(config["run_dir"]).expanduser()
    source, _, rest = dataset.partition(":")
    slug = "-".join([source, *(Path(rest).stem if source == "file" else rest).split("/")])
    digest = hashlib.sha256(json.dumps(run_identity, sort_keys=True).encode()).hexdigest()[:8]
    return Path(config["runs"]).expanduser() / slug / f"{config['algo']['name']}-{digest}"


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The dotted keys in which two nested dicts differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{prefix}{key}.")]
    return [] if old == new else [f"{prefix[:-1]} was {old}, is {new}"]
