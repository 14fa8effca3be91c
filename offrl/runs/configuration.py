"""From the command line to configurations: Hydra's groups, and checks that suggest the nearest valid name."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.resources
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import offrl.algorithm
from offrl.algorithm import Algorithm
from offrl.errors import UserError, nearest

GROUPS = ("algo", "env", "protocol")
FREE = ("data.columns", "env.kwargs")  # mappings whose keys are the user's
HYDRA_VALUE_FLAGS = ("--cfg", "-c", "--info", "-i", "--package", "-p")  # each takes the next argument as its value
MAX_MEMBERS = 1024


def choices(group: str) -> list[str]:
    """The names that a group of the configuration offers."""
    if group == "algo":
        return offrl.algorithm.names()
    folder = importlib.resources.files("offrl.configs") / group
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def option_defaults(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm's options as plain values, nested dataclasses as dicts."""
    defaults = {}
    for name, field in algorithm.options().items():
        value = field.default
        if dataclasses.is_dataclass(value):
            value = dataclasses.asdict(value)  # type: ignore[arg-type]
        defaults[name] = list(value) if isinstance(value, tuple) else value
    return defaults


def register(algorithm: Algorithm, file: str | None = None) -> None:
    """Make `algo=NAME` a choice, its options the fields of the algorithm's Config."""
    node = {"name": algorithm.name, "file": file, **option_defaults(algorithm)}
    ConfigStore.instance().store(group="algo", name=algorithm.name, node=node)


def check(value: Any, field: dataclasses.Field[Any], name: str) -> Any:
    """`value`, converted to the type of the option's default.

    Raises:
        UserError: it is of another type, not finite, below 1 for a count or a width, out of range, or not a choice.
    """
    default = field.default
    counts = not field.metadata.get("pytree_node", True)  # static whole numbers are counts or widths
    allowed = field.metadata.get("choices", ())
    if allowed and value not in allowed:
        raise UserError(f"{name}={value}: not a choice; {nearest(str(value), allowed)}")
    if isinstance(default, bool):
        valid = isinstance(value, bool)
    elif isinstance(default, int):
        valid = isinstance(value, int) and not isinstance(value, bool)
    elif isinstance(default, float):
        valid = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if valid else value
        if valid and not math.isfinite(value):
            raise UserError(f"{name}={value}: must be finite")
    elif isinstance(default, tuple):
        of = type(default[0])
        if of is float and isinstance(value, list | tuple):  # [0,1e-4] is one of floats, too
            value = [float(item) if type(item) is int else item for item in value]
        valid = isinstance(value, list | tuple) and all(type(item) is of for item in value)
        value = tuple(value) if valid else value
    elif isinstance(default, str):
        valid = isinstance(value, str)
    else:
        raise TypeError(f"{name}: an option of type {type(default).__name__} cannot be configured")
    if not valid:
        kind = f"a list of {type(default[0]).__name__}" if isinstance(default, tuple) else type(default).__name__
        raise UserError(f"{name}={value}: must be {kind}, like its default {default}")
    for item in value if isinstance(value, tuple) else (value,):
        if counts and isinstance(item, int) and not isinstance(item, bool) and item < 1:
            raise UserError(f"{name}={value}: must be 1 or more")
    low, high = field.metadata.get("low"), field.metadata.get("high")
    if (low is not None and value < low) or (high is not None and value > high):
        allowed_range = (
            f"{low:g} or more" if high is None else f"{high:g} or less" if low is None else f"from {low:g} to {high:g}"
        )
        raise UserError(f"{name}={value}: must be {allowed_range}")
    return value


def member_configs(
    algorithm: Algorithm, options: dict[str, Any], seeds: Sequence[int]
) -> list[tuple[Any, int, dict[str, Any]]]:
    """Config, seed and swept values of each member: every combination of listed values, with every seed.

    A list given for an option that is a number means one member per value; only pytree leaves may differ so.

    Raises:
        UserError: a value is of the wrong type, or a list is given for an option that all members must share.
    """
    fields = algorithm.options()
    shared: dict[str, Any] = {}
    swept: dict[str, list[Any]] = {}
    for name, field in fields.items():
        value = options[name]
        if dataclasses.is_dataclass(field.default):
            nested = {inner.name: inner for inner in dataclasses.fields(field.default)}
            values = {key: check(value[key], inner, f"algo.{name}.{key}") for key, inner in nested.items()}
            shared[name] = dataclasses.replace(field.default, **values)  # type: ignore[type-var]
        elif isinstance(value, list | tuple) and not isinstance(field.default, tuple):
            if not field.metadata["pytree_node"]:
                raise UserError(f"algo.{name}={list(value)}: all members of a run share it; sweep it with -m instead")
            if not value:
                raise UserError(f"algo.{name}=[]: an empty list; give at least one value")
            swept[name] = [check(item, field, f"algo.{name}") for item in value]
        else:
            shared[name] = check(value, field, f"algo.{name}")
    members = []
    for values, seed in itertools.product(itertools.product(*swept.values()), seeds):
        differing = dict(zip(swept, values, strict=True))
        members.append((algorithm.Config(**shared, **differing), seed, differing))
    return members


def member_seeds(seed: Any, seeds: Any) -> list[int]:
    """`seeds` (a count, or a list) where it is given, and `seed` otherwise.

    Raises:
        UserError: they are not whole numbers, 0 or more, there are none, or one is given twice.
    """

    def whole(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32

    if seeds is None:
        if not whole(seed):
            raise UserError(f"seed={seed}: must be a whole number, 0 or more")
        return [seed]
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 1 <= seeds <= MAX_MEMBERS:
            raise UserError(f"seeds={seeds}: must be a number of members from 1 to {MAX_MEMBERS}, or a list of seeds")
        return list(range(seeds))
    if not isinstance(seeds, list) or not seeds or not all(whole(item) for item in seeds):
        raise UserError(f"seeds={seeds}: must be a number of members, or a list of seeds such as [0,3,7]")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds={seeds}: a seed is given twice; its members would be copies of each other")
    return seeds


def tuned_values(algorithm: str, dataset: str) -> tuple[dict[str, Any], str]:
    """Published values for a dataset, by dotted name, of the options that differ from the defaults; their source."""
    file = importlib.resources.files("offrl.configs") / "published" / f"{algorithm}.yaml"
    if file.is_file():
        for entry in yaml.safe_load(file.read_text()):
            if any(fnmatch.fnmatch(dataset, pattern) for pattern in entry["datasets"]):
                return entry["values"], entry["source"]
    return {}, ""


def prepare_arguments(arguments: list[str], config_name: str) -> list[str]:
    """Check a command line before Hydra sees it, and let `algo=path/to/file.py` name an algorithm.

    Returns the arguments for Hydra.

    Raises:
        UserError: a key or a choice is unknown (the nearest ones are named), or several values are given without -m.
    """
    flags = [argument for argument in arguments if argument.startswith("-")]
    several = any(flag in ("-m", "--multirun") for flag in flags)
    parser = OverridesParser.create()
    for name in offrl.algorithm.names():
        register(offrl.algorithm.load(name))

    prepared: list[str] = []
    picks: dict[str, list[str]] = {}
    keys = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if argument.startswith("-") or before in HYDRA_VALUE_FLAGS:
            prepared.append(argument)
            continue
        if "=" not in argument or argument.startswith("~"):
            raise UserError(f"{argument}: not of the form key=value; see --help")
        argument = argument.lstrip("+")  # Hydra's + adds new keys; here those are unknown
        key, _, value = argument.partition("=")
        if key in FREE or key.startswith(tuple(f"{free}." for free in FREE)):
            argument = f"++{argument}"  # Hydra's syntax for a key that may not exist yet
        if key == "algo" and ".py" in value:
            names = []
            for part in value.split(","):
                if part.endswith(".py"):
                    algorithm = offrl.algorithm.load(part)
                    if algorithm.name in offrl.algorithm.names():
                        raise UserError(
                            f"algo={part}: {algorithm.name} is a built-in algorithm's name; rename the file"
                        )
                    register(algorithm, str(algorithm.file))
                    part = algorithm.name
                names.append(part)
            argument = f"algo={','.join(names)}"
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{argument}: cannot be read ({reason}); put special characters in quotes") from None
        if override.is_sweep_override() and not several:
            raise UserError(f"{argument}: several values; add -m to run them one after the other")
        key = override.key_or_group
        if key in GROUPS:
            picks[key] = [item.strip() for item in argument.partition("=")[2].split(",")]
            for item in picks[key]:
                known = [*choices(key), *(["null"] if key == "env" else [])]
                registered = ConfigStore.instance().repo.get(key, {})
                if item not in known and f"{item}.yaml" not in registered:
                    raise UserError(f"{key}={item}: unknown; {nearest(item, known)}")
            if picks[key] == ["null"]:
                picks[key] = []
                argument = f"~{key}"  # Hydra's syntax for leaving a group out
            elif "null" in picks[key]:
                raise UserError(f"{argument}: null cannot be one of several values; run it separately")
        elif not key.startswith("hydra"):
            keys.append((key, argument))
        prepared.append(argument)

    for combination in itertools.product(*(picked or [""] for picked in picks.values())):
        groups = [f"{key}={item}" if item else f"~{key}" for key, item in zip(picks, combination, strict=True)]
        known_keys = _known_keys(groups, config_name)
        for key, argument in keys:
            if key not in known_keys and not key.startswith(tuple(f"{free}." for free in FREE)):
                given = f" with {' '.join(groups)}" if several else ""
                raise UserError(f"{argument}: there is no {key}{given}; {nearest(key, known_keys)}")
    return prepared


def quoted(text: str) -> str:
    """The text as an argument for Hydra: in quotes, unless it holds only plain characters and `${...}`."""
    return text if re.fullmatch(r"([\w./:-]|\$\{[\w.]+\})+", text) else "'" + text.replace("'", "\\'") + "'"


def _known_keys(groups: list[str], config_name: str) -> set[str]:
    """Dotted names of the options that exist with these choices of groups."""
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_module("offrl.configs", version_base="1.3"):
            config = hydra.compose(config_name, overrides=groups)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(str(error).splitlines()[0]) from None
    finally:
        GlobalHydra.instance().clear()
    keys: set[str] = set()

    def walk(node: Any, prefix: str) -> None:
        for key, value in node.items():
            keys.add(f"{prefix}{key}")
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")

    walk(OmegaConf.to_container(config), "")
    keys -= {"algo.name", "algo.file"}  # where the options came from, not options
    return keys
