"""Logs in files: HDF5 with flat arrays, NPZ, and Parquet or CSV with one row per step."""

from __future__ import annotations

import difflib
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.episodes import Episodes, as_extra, as_matrix, as_vector, from_rows
from offrl.errors import UserError, nearest

# What a column may be called where `columns` does not say it; the first that is there is taken.
ALIASES: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rew", "rews"),
    "terminations": ("terminations", "termination", "terminated", "terminals", "terminal", "dones", "done"),
    "truncations": ("truncations", "truncation", "truncated", "timeouts", "timeout"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "next_states", "next_state"),
    "episode_ends": ("episode_terminals", "episode_ends", "episode_end"),
    "episode_lengths": ("episode_lengths", "episode_length"),
    "episode_ids": ("episode_ids", "episode_id", "episode"),
    "successes": ("successes", "success", "infos/success"),
}
REQUIRED = ("observations", "actions", "rewards")
SUFFIXES = (".hdf5", ".h5", ".hdf", ".npz", ".parquet", ".pq", ".csv")

Columns = Mapping[str, "str | list[str]"]
Arrays = dict[str, np.ndarray]


def read(path: str | Path, name: str | None = None, columns: Columns | None = None) -> Episodes:
    """The episodes of a flat log.

    columns: {"observations": "s", "actions": ["torque", "brake"], ...} names the columns that are called otherwise than
    usual (`ALIASES`); a list joins several columns. Other keys, such as {"costs": "cost"}, are further columns,
    `Episodes.extra`. In tables a vector is a column of lists or the columns NAME_0, NAME_1, ... Observations of
    several parts, in an HDF5 group or under names such as observations/position, are one vector, sorted by name.
    """
    path = Path(path).expanduser()
    name = name or f"file:{path}"
    columns = columns or {}
    wanted = {*names(columns), *(alias for aliases in ALIASES.values() for alias in aliases)}
    return from_arrays(name, read_arrays(path, name, wanted), columns)


def from_arrays(name: str, arrays: Arrays, columns: Columns) -> Episodes:
    """The episodes of flat arrays under their names in the file."""
    found = {key: _column(name, arrays, key, columns.get(key)) for key in ALIASES}
    for key in REQUIRED:
        if found[key] is None:
            raise UserError(
                f"{name} has no column for {key} (looked for {', '.join(ALIASES[key])}); it has "
                f"{', '.join(arrays) or 'none'}: name it with columns.{key}=..."
            )
    layouts = {key: _flatten_parts(name, key, found) for key in ("observations", "next_observations")}
    if found["next_observations"] is not None and layouts["next_observations"] != layouts["observations"]:
        raise UserError(
            f"{name}: observations are {', '.join(layouts['observations']) or 'one array'}, but next_observations "
            f"{', '.join(layouts['next_observations']) or 'one array'}; they must be alike"
        )
    observations, actions, rewards = found["observations"], found["actions"], found["rewards"]
    assert observations is not None
    assert actions is not None
    assert rewards is not None
    discrete = arrays.get("discrete_action")
    if discrete is not None and bool(np.all(discrete)) and actions.dtype.kind == "f":
        if not np.array_equal(actions, np.round(actions)):
            raise UserError(f"{name}: discrete_action is set, but its actions are not whole numbers; remove that flag")
        actions = actions.astype(np.int32)
    rows = len(rewards)
    ends = _ends(name, found, rows)
    terminations = found["terminations"]
    if terminations is None:
        if ends is None and found["truncations"] is None and found["next_observations"] is None:
            raise UserError(
                f"{name} does not say where its episodes end: it has no terminations, truncations, episode_ends, "
                f"episode_lengths or episode_ids; name one with columns (the file has {', '.join(arrays)})"
            )
        terminations = np.zeros(rows, bool)
    result = from_rows(
        name,
        observations,
        actions,
        rewards,
        terminations,
        found["truncations"],
        found["next_observations"],
        ends,
        found["successes"],
    )
    result.observation_layout = layouts["observations"]
    result.extra = extra(name, arrays, columns, result.lengths)
    if found["terminations"] is None:
        result.warnings.insert(0, "no column marks terminations: every episode is taken to end by a time limit")
    return result


def _flatten_parts(name: str, key: str, found: dict[str, Any]) -> tuple[str, ...]:
    """Joins observations in several parts to one array; returns the parts with their sizes, () for a single array."""
    if not isinstance(found[key], dict):
        return ()
    parts = {part: as_matrix(name, f"{key}/{part}", values) for part, values in found[key].items()}
    if len({len(values) for values in parts.values()}) > 1:
        rows = ", ".join(f"{part} {len(values)}" for part, values in parts.items())
        raise UserError(f"{name}: the parts of {key} differ in their rows ({rows})")
    found[key] = np.concatenate([values.astype(np.float32) for values in parts.values()], axis=1)
    return tuple(f"{part}[{values.shape[1]}]" for part, values in parts.items())


def _column(name: str, arrays: Arrays, key: str, chosen: str | list[str] | None) -> Any:
    if chosen is None:
        candidates = (_named(arrays, alias) for alias in ALIASES[key])
        return next((values for values in candidates if values is not None), None)
    return _chosen(name, arrays, key, chosen)


def check_keys(name: str, columns: Columns) -> None:
    """Refuses keys that look like a misspelt one of `ALIASES`: a further column needs another name."""
    for key in columns:
        alike = [known for known, aliases in ALIASES.items() if key in aliases]
        alike += difflib.get_close_matches(key, ALIASES, cutoff=0.9)
        if alike and key not in ALIASES:
            raise UserError(
                f"{name}: columns names {key!r}: did you mean {alike[0]}? A further column needs another name"
            )


def names(columns: Columns) -> list[str]:
    """What the columns are called in the file."""
    return [name for value in columns.values() for name in ([value] if isinstance(value, str) else value)]


def extra(name: str, arrays: Arrays, columns: Columns, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The further columns, those whose keys are not in `ALIASES`, for episodes of these lengths."""
    further = {key: chosen for key, chosen in columns.items() if key not in ALIASES}
    return {key: as_extra(name, key, _chosen(name, arrays, key, chosen), lengths) for key, chosen in further.items()}


def _chosen(name: str, arrays: Arrays, key: str, chosen: str | list[str]) -> Any:
    parts = []
    for column in [chosen] if isinstance(chosen, str) else chosen:
        values = _named(arrays, column)
        if values is None:
            raise UserError(f"{name}: columns.{key}={column!r} is not in the file; {nearest(column, arrays)}")
        parts.append(values)
    if len(parts) == 1 and isinstance(chosen, str):
        return parts[0]
    return np.concatenate([as_matrix(name, f"columns.{key}", part) for part in parts], axis=1)


def _named(arrays: Arrays, column: str) -> Any:
    """The array of that name, the columns NAME_0, NAME_1, ... joined, or the arrays NAME/PART by their sorted parts."""
    if column in arrays:
        return arrays[column]
    if parts := [key for key in arrays if key.startswith(f"{column}/")]:
        return {key.removeprefix(f"{column}/"): arrays[key] for key in sorted(parts, key=lambda key: key.split("/"))}
    numbered = {int(match[1]): key for key in arrays if (match := re.fullmatch(re.escape(column) + r"[_.](\d+)", key))}
    if not numbered or sorted(numbered) != list(range(len(numbered))):
        return None
    return np.stack([arrays[numbered[index]] for index in range(len(numbered))], axis=1)


def _ends(name: str, found: dict[str, np.ndarray | None], rows: int) -> np.ndarray | None:
    """bool [rows] from any of the three ways to mark episodes, or None."""
    if (flags := found["episode_ends"]) is not None:
        return flags
    if (lengths := found["episode_lengths"]) is not None and len(lengths) != rows:  # a length per row is a statistic
        lengths = as_vector(name, "episode_lengths", lengths).astype(np.int64)
        if lengths.sum() != rows or (lengths < 1).any():
            raise UserError(
                f"{name}: episode_lengths sum to {lengths.sum()} (smallest {lengths.min()}) but there are {rows} rows"
            )
        ends = np.zeros(rows, bool)
        ends[np.cumsum(lengths) - 1] = True
        return ends
    if (ids := found["episode_ids"]) is not None and len(ids) == rows:
        ids = np.asarray(ids).reshape(-1)
        change = ids[1:] != ids[:-1]
        ends = np.append(change, True)
        if len(np.unique(ids)) != ends.sum():
            first = ids[:-1][change]
            again = next(value for index, value in enumerate(ids[np.flatnonzero(ends)]) if value in first[:index])
            raise UserError(f"{name}: the rows of episode {again} are not together; sort the file by episode and step")
        return ends
    return None


def read_arrays(path: Path, name: str, wanted: Collection[str] = ()) -> Arrays:
    """The arrays of a file by name; nested HDF5 names (infos/qpos) only where they, or their group, are `wanted`.

    Raises `UserError` where the file is missing, empty or damaged.
    """
    if not path.exists():
        raise UserError(f"{name}: there is no file {path}")
    if path.is_dir():
        raise UserError(f"{name}: {path} is a folder; name a file ({', '.join(SUFFIXES)})")
    if path.stat().st_size == 0:
        raise UserError(f"{name}: {path} is empty (0 bytes)")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"{name}: files that end in {suffix or 'nothing'} are not understood; {nearest(suffix, SUFFIXES)}"
        )
    try:
        if suffix in (".hdf5", ".h5", ".hdf"):
            return _read_hdf5(path, name, wanted)
        if suffix == ".npz":
            if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
                raise zipfile.BadZipFile("not an NPZ archive")
            with np.load(path, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        return _read_table(path)
    except UserError:
        raise
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise UserError(
                f"{name}: {path} contains pickled objects, which are not opened; save plain arrays"
            ) from error
        raise UserError(f"{name}: {path} cannot be read ({_line(error)})") from error
    except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise UserError(f"{name}: {path} cannot be read, it is truncated or damaged ({_line(error)})") from error


def _read_hdf5(path: Path, name: str, wanted: Collection[str]) -> Arrays:
    import h5py

    arrays: Arrays = {}

    def visit(key: str, node: object) -> None:
        groups = {key[:place] for place in range(len(key)) if key[place] == "/"}
        if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiub" and (not groups or {key, *groups} & {*wanted}):
            arrays[key] = node[()]

    with h5py.File(path, "r") as file:
        if "episode_0" in file:
            raise UserError(
                f"{name}: {path} is a Minari file; put its dataset into the Minari store and load minari:ID"
            )
        file.visititems(visit)
    return arrays


def _read_table(path: Path) -> Arrays:
    import pandas as pd

    table = pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    arrays: Arrays = {}
    for column in table.columns:
        values = table[column].to_numpy()
        if values.dtype == object and len(values) and isinstance(values[0], (list, tuple, np.ndarray)):
            values = np.stack([np.asarray(value) for value in values])
        arrays[str(column)] = values
    return arrays


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
