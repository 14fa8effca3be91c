"""`load`: from a name to a checked dataset.

Nothing is rolled out here and no environment is opened: `offrl.datasets.loading.load` does that, on top of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data import d4rl, files, minari
from offrl.data.checks import check
from offrl.data.dataset import Dataset
from offrl.data.episodes import Episodes
from offrl.data.files import Columns
from offrl.data.recipes import dataset_id, split_name
from offrl.errors import UserError, nearest

SOURCES = ("builtin", "minari", "d4rl", "file")
_shown: set[tuple[str, str]] = set()


def load(
    name: str,
    *,
    env_id: str | None = None,
    env_kwargs: dict[str, Any] | None = None,
    clip_actions: bool = False,
    keep_terminations: bool = False,
    time_limit: int | None = None,
    trust_next_observations: bool = False,
    columns: Columns | None = None,
    steps: int | None = None,
    action_low: float | Sequence[float] | None = None,
    action_high: float | Sequence[float] | None = None,
    observation_dim: int | None = None,
    spaces: Callable[[str, Mapping[str, Any]], Any] | None = None,
    at_hand: bool = False,
    quiet: bool = False,
) -> Dataset:
    """Load a dataset and check it.

    name: `builtin:ENV/RECIPE`, `minari:ID` (or `minari:hf://OWNER/ID`), `d4rl:NAME` (or `d4rl:PATH.hdf5`),
      `file:PATH`, or the path of a file.
    env_id, env_kwargs: the Gymnasium environment, where the source names none or another.
    clip_actions: clip actions outside the action box instead of refusing them.
    keep_terminations: leave terminations that mark a time limit as they are.
    time_limit: steps after which the environment cuts an episode; known for named environments.
    trust_next_observations: keep next observations at the ends of episodes also where they look like copies of the
      row before or after.
    columns: for `file:`, which column is what, e.g. {"observations": "s"}; for all sources further columns,
      `Dataset.extra`, e.g. {"costs": "cost"}. See `offrl.data.files.read`; of Minari datasets they are infos.
    steps: for `builtin:`, the size that it was made in, where that is not the usual one.
    action_low, action_high: the action box, a number or one per dimension, where the source has none.
    observation_dim: numbers in an observation, where a file has whole numbers: so many states, one-hot, or 1 number.
      Known for named environments.
    spaces: `offrl.playing.simulators.spaces`, called for what a named environment knows and the source does not
      say: time limit, action box, number of states. None: no environment is opened.
    at_hand: only what lies on this machine: nothing is downloaded.
    quiet: do not print the warnings (they are in `Dataset.warnings`).

    Raises `UserError` (one line) for an unknown name, a damaged file or data that fail a check.
    """
    source, colon, rest = name.partition(":")
    if source not in SOURCES:
        if not Path(name).expanduser().exists():
            known = f"{nearest(source, SOURCES)} " if colon else ""
            raise UserError(
                f"dataset {name!r}: {known}a name starts with builtin:, minari:, d4rl: or file:, or is the path of a "
                "file"
            )
        source, rest = "file", name
        name = f"file:{name}"
    files.check_keys(name, columns or {})
    if source != "file" and (usual := sorted(set(columns or {}) & set(files.ALIASES))):
        raise UserError(f"{name}: columns.{usual[0]} is for file: datasets; elsewhere columns only names further ones")
    if steps is not None and source != "builtin":
        raise UserError(f"{name}: steps is for builtin: datasets")
    if (at_hand or source == "builtin") and (missing := _missing(source, rest, steps)):
        raise UserError(f"{name} is not on this machine; {missing}")
    episodes = _read(source, rest, name, columns, steps)
    if env_id is not None and env_id != episodes.env_id:
        episodes.env_id, episodes.env_kwargs, episodes.time_limit = env_id, env_kwargs or {}, None
    if action_low is not None:
        episodes.action_low = np.asarray(action_low, np.float32)
    if action_high is not None:
        episodes.action_high = np.asarray(action_high, np.float32)
    episodes.observation_count = observation_dim
    if spaces is not None:
        _complete(episodes, time_limit, spaces)
    episodes.reference = episodes.reference or d4rl.environment_reference(episodes.env_id)
    dataset = check(episodes, clip_actions, keep_terminations, time_limit, trust_next_observations)
    if not quiet:
        show_warnings(dataset)
    return dataset


def show_warnings(dataset: Dataset) -> None:
    """Print the dataset's warnings to stderr, each once per process."""
    for warning in dataset.warnings:
        if (dataset.name, warning) not in _shown:
            _shown.add((dataset.name, warning))
            print(f"warning: {dataset.name}: {warning}", file=sys.stderr)


def _missing(source: str, rest: str, steps: int | None) -> str:
    """How to get a dataset that is not on this machine; empty where it is."""
    if source == "builtin":
        env, recipe = split_name(rest)
        size = "" if steps is None else f" --steps {steps}"
        here = minari.is_local(dataset_id(env, recipe, steps))
        return "" if here else f"make it with `python -m offrl.datasets make {env} {recipe}{size}`"
    if source == "minari":
        return "" if minari.is_local(rest) else f"get it with `minari download {rest}`"
    if source == "d4rl" and rest in d4rl.entries():
        file = d4rl.cached_path(rest)
        return "" if file.is_file() else f"`python -m offrl.data info d4rl:{rest}` downloads it to {file}"
    return ""


def _read(source: str, rest: str, name: str, columns: Columns | None, steps: int | None) -> Episodes:
    if not rest:
        raise UserError(f"dataset {name!r} names nothing after {source}:")
    if source == "builtin":
        return minari.read(dataset_id(*split_name(rest), steps), name, columns)
    if source == "minari":
        return minari.read(rest, name, columns)
    if source == "d4rl":
        return d4rl.read(rest, name, columns)
    return files.read(rest, name, columns)


def _complete(episodes: Episodes, time_limit: int | None, spaces: Callable[[str, Mapping[str, Any]], Any]) -> None:
    """Fills in from the environment, where it is named, what is not known: time limit, action box, number of states."""
    needs_box = episodes.action_low is None or episodes.action_high is None
    needs_limit = episodes.time_limit is None and time_limit is None
    needs_count = episodes.observation_count is None and episodes.observations.dtype.kind == "i"
    if episodes.env_id is None or not (needs_box or needs_limit or needs_count):
        return
    environment = spaces(episodes.env_id, episodes.env_kwargs)
    if needs_limit:
        episodes.time_limit = environment.max_steps
    if needs_count:
        episodes.observation_count = environment.observation_dim
    if needs_box:
        episodes.action_low, episodes.action_high = environment.action_low, environment.action_high
