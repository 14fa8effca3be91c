"""Checks of the options outside `algo`, and the dataset that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from offrl.data.dataset import Dataset
from offrl.data.recipes import RECIPES
from offrl.errors import UserError
from offrl.runs import configuration
from offrl.runs.tracking import check_mode


def check_options(config: dict[str, Any]) -> None:
    """Refuses values of the wrong kind among the options outside `algo`, before anything is loaded."""
    data, env, protocol = config["data"], config.get("env") or {}, config["protocol"]
    minimum = {
        "updates": 1,
        "checkpoint_every": 1,
        "log_every": 1,
        "episodes": 0,
        "evaluation_seed": 0,
        "split_seed": 0,
    }
    for name, least in minimum.items():
        if type(protocol[name]) is not int or protocol[name] < least:
            raise UserError(f"protocol.{name}={protocol[name]}: must be a whole number, {least} or more")
    fraction = protocol["validation_fraction"]
    if type(fraction) not in (int, float) or not 0 <= fraction < 1:
        raise UserError(f"protocol.validation_fraction={fraction}: must be from 0 to below 1")
    flags = {name: config[name] for name in ("resume", "tuned")}
    flags |= {f"data.{name}": data[name] for name in ("clip_actions", "trust_next_observations")}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise UserError(f"{name}={value}: must be true or false")
    texts = {name: config[name] for name in ("runs", "wandb_project")}
    optional = {"dataset": config["dataset"], "run_dir": config["run_dir"], "env.id": env.get("id")}
    texts |= {name: value for name, value in optional.items() if value is not None}
    for name, value in texts.items():
        if not isinstance(value, str) or not value:
            raise UserError(f"{name}={value}: must be text")
    if data["steps"] is not None and (type(data["steps"]) is not int or data["steps"] < 1):
        raise UserError(f"data.steps={data['steps']}: must be a whole number, 1 or more, or null")
    for name, value in {"data.columns": data["columns"], "env.kwargs": env.get("kwargs", {})}.items():
        if not isinstance(value, dict):
            raise UserError(f"{name}={value}: must be a mapping; set it by {name}.NAME=VALUE")
    check_mode(config["wandb"])


def load_dataset(config: dict[str, Any], load: Callable[..., Dataset]) -> tuple[Dataset, str | None, dict[str, Any]]:
    """The dataset that the configuration names, its environment's id (None: no simulator), and the id's kwargs.

    `load`: `offrl.datasets.loading.load`, a room above this one.
    """
    env, name = config.get("env"), config["dataset"]
    name = name or (env or {}).get("dataset")
    if name is None:
        raise UserError(
            "dataset=null: nothing to train on; give env=hopper, or dataset=minari:ID, d4rl:NAME, file:PATH"
        )
    environments = [item for item in configuration.choices("env") if item != "from_dataset"]
    short = config["env_name"]
    # a recipe's name means the recipe, even if a file happens to have that name
    if ":" not in name and ((short in environments and name in RECIPES) or not Path(name).exists()):
        if short not in environments:
            raise UserError(
                f"dataset={name}: no such file, and a short name needs a built-in env={'|'.join(environments)}; "
                f"other datasets are builtin:ENV/NAME, minari:ID, d4rl:NAME, file:PATH"
            )
        name = f"builtin:{short}/{name}"
    data = config["data"]
    # the environment, where one is named, knows what a log does not say: its action box and its time limit
    named = {"env_id": env["id"], "env_kwargs": env["kwargs"]} if env and env["id"] else {}
    dataset = load(
        name,
        steps=data["steps"],
        columns=data["columns"] or None,
        clip_actions=data["clip_actions"],
        trust_next_observations=data["trust_next_observations"],
        **named,
    )
    if env is None:
        return dataset, None, {}
    return dataset, dataset.env_id, dataset.env_kwargs
