"""The original D4RL datasets: HDF5 files by name, their addresses and reference scores in d4rl.csv.

Differences from D4RL's own `qlearning_dataset`, on purpose: the step before a time limit is kept where its next
observation is stored, `next_observations` is used where stored, and no next observation is taken from the following
episode.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data import download, files
from offrl.data.dataset import Reference
from offrl.data.episodes import Episodes, from_rows
from offrl.errors import UserError, nearest

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
TELEPORT = 2.0  # metres in one step of 0.1 s, further than an ant runs
COLUMNS = {
    "observations": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "terminals": "terminations",
    "timeouts": "truncations",
    "next_observations": "next_observations",
}


@dataclass(frozen=True)
class Entry:
    """One line of d4rl.csv."""

    name: str
    url: str
    reference: Reference | None


@dataclass(frozen=True)
class Environment:
    """D4RL's environment: the Gymnasium one that observes the same (else why there is none), and D4RL's step limit."""

    env_id: str | None
    time_limit: int | None
    sizes: tuple[int, int] | None = None  # (observation, action) of env_id
    problem: str = ""


_ANT_MAZE = "D4RL observes 29 numbers without the goal, AntMaze of gymnasium-robotics a dict of 27 or 105 with the goal"
_POINT_MAZE = "D4RL observes 4 numbers without the goal, PointMaze of gymnasium-robotics a dict of 4 and two goals"
_KITCHEN = (
    "D4RL observes 60 numbers (positions and goal), FrankaKitchen of gymnasium-robotics 59 (positions and velocities)"
)
_ANT = "D4RL observes 111 numbers, Ant-v5 105 (without the contact forces of the world body)"
_UNAVAILABLE = "Gymnasium has no such environment"

# Prefixes of the names, the more special before the more general.
_ENVIRONMENTS: tuple[tuple[str, Environment], ...] = (
    ("hopper", Environment("Hopper-v5", 1000, (11, 3))),
    ("halfcheetah", Environment("HalfCheetah-v5", 1000, (17, 6))),
    ("walker2d", Environment("Walker2d-v5", 1000, (17, 6))),
    ("antmaze-umaze", Environment(None, 700, problem=_ANT_MAZE)),
    ("antmaze", Environment(None, 1000, problem=_ANT_MAZE)),
    ("ant", Environment(None, 1000, problem=_ANT)),
    ("pen", Environment("AdroitHandPen-v1", 100, (45, 24))),
    ("door", Environment("AdroitHandDoor-v1", 200, (39, 28))),
    ("hammer", Environment("AdroitHandHammer-v1", 200, (46, 26))),
    ("relocate", Environment("AdroitHandRelocate-v1", 200, (39, 30))),
    ("kitchen", Environment(None, 280, problem=_KITCHEN)),
    ("maze2d-open", Environment(None, 150, problem=_POINT_MAZE)),
    ("maze2d-umaze", Environment(None, 300, problem=_POINT_MAZE)),
    ("maze2d-eval-umaze", Environment(None, 300, problem=_POINT_MAZE)),
    ("maze2d-medium", Environment(None, 600, problem=_POINT_MAZE)),
    ("maze2d-eval-medium", Environment(None, 600, problem=_POINT_MAZE)),
    ("maze2d-large", Environment(None, 800, problem=_POINT_MAZE)),
    ("maze2d-eval-large", Environment(None, 800, problem=_POINT_MAZE)),
    ("bullet-maze2d", Environment(None, None, problem=_UNAVAILABLE)),
    ("bullet", Environment(None, 1000, problem=_UNAVAILABLE)),
    ("", Environment(None, None, problem=_UNAVAILABLE)),
)
_UNIT_BOX = (
    "hopper",
    "halfcheetah",
    "walker2d",
    "ant",
    "pen",
    "door",
    "hammer",
    "relocate",
    "kitchen",
    "maze2d",
    "bullet",
)


@cache
def entries() -> dict[str, Entry]:
    """All D4RL datasets by name."""
    table = {}
    with (Path(__file__).parent / "d4rl.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            reference = None
            if row["ref_min_score"] and row["ref_max_score"]:
                low, high = float(row["ref_min_score"]), float(row["ref_max_score"])
                reference = Reference(low, high, f"D4RL's {row['name']} (measured in D4RL's own environment)")
            table[row["name"]] = Entry(row["name"], row["url"], reference)
    return table


def cached_path(name: str) -> Path:
    """Where the file of that dataset is or will be."""
    return download.cache() / "d4rl" / f"{name}.hdf5"


def environment_reference(env_id: str | None) -> Reference | None:
    """D4RL's reference scores for a Gymnasium environment of any version (Hopper-v4, Hopper-v5, ...), or None."""
    base = (env_id or "").rpartition("-v")[0]
    known = {"Hopper": "hopper", "HalfCheetah": "halfcheetah", "Walker2d": "walker2d", "Ant": "ant"}
    return entries()[f"{known[base]}-medium-v2"].reference if base in known else None


def read(name: str, label: str | None = None, columns: files.Columns | None = None) -> Episodes:
    """The episodes of a D4RL dataset by name (downloaded into the cache at first use) or of a D4RL file by path.

    columns: further columns to load, e.g. {"costs": "infos/cost"}, as `Episodes.extra`.
    """
    label = label or f"d4rl:{name}"
    entry: Entry | None
    path = Path(name).expanduser()
    if name in entries():
        entry = entries()[name]
        path = download.fetch(entry.url, cached_path(name), HDF5_SIGNATURE)
    elif path.suffix in (".hdf5", ".h5") or path.exists():
        entry = _entry_of_file(path)
    else:
        raise UserError(f"d4rl dataset {name!r} is unknown; {nearest(name, entries())}")
    return _read_file(path, label, entry, columns or {})


def _entry_of_file(path: Path) -> Entry | None:
    for entry in entries().values():
        if path.stem == entry.name or path.name == entry.url.rsplit("/", 1)[-1]:
            return entry
    return None


def _read_file(path: Path, label: str, entry: Entry | None, own: files.Columns) -> Episodes:
    arrays = files.read_arrays(path, label, wanted={*COLUMNS, *files.names(own)})
    missing = [column for column in ("observations", "actions", "rewards", "terminals") if column not in arrays]
    if missing:
        raise UserError(
            f"{label}: {path} is not in D4RL's layout: {', '.join(missing)} missing; try file:{path} with columns"
        )
    columns: dict[str, Any] = {COLUMNS[key]: arrays[key] for key in COLUMNS if key in arrays}
    name = entry.name if entry else path.stem
    environment = next(value for prefix, value in _ENVIRONMENTS if name.startswith(prefix))
    warnings = []
    terminals, ends = columns["terminations"].reshape(-1).astype(bool), None
    if "truncations" not in columns and "next_observations" not in columns and environment.time_limit is not None:
        ends = _cuts_by_counting(terminals, environment.time_limit)
        warnings.append(
            f"the file has no timeouts: episodes are cut every {environment.time_limit} steps, the limit of D4RL's "
            "environment"
        )
    if name.startswith("antmaze") and "next_observations" not in columns:
        ends, teleports = _cuts_at_teleports(columns, terminals, ends)
        if len(teleports):
            warnings.append(
                f"the ant jumps by more than {TELEPORT:g} m in {len(teleports)} rows that no flag marks, the first is "
                f"row {teleports[0]}; episodes are cut there (truncated)"
            )
    episodes = from_rows(label, ends=ends, **columns)
    episodes.extra = files.extra(label, arrays, own, episodes.lengths)
    episodes.warnings = warnings + episodes.warnings
    episodes.time_limit = environment.time_limit
    if name.startswith("maze2d"):
        episodes.time_limit = None  # timeouts mark goal changes
        episodes.warnings.append(
            "timeouts of maze2d mark changes of the goal, not time limits: episodes may be very short"
        )
    if name.startswith(_UNIT_BOX):
        size = episodes.actions.shape[1]
        episodes.action_low, episodes.action_high = np.full(size, -1, np.float32), np.full(size, 1, np.float32)
    sizes = (episodes.observations.shape[1], episodes.actions.shape[1])
    if entry is None:
        episodes.warnings.append(
            f"{path.name} is not the name of a D4RL file: its environment and reference are unknown"
        )
        return episodes
    episodes.reference = entry.reference
    if environment.env_id is None:
        episodes.warnings.append(f"no environment to evaluate in: {environment.problem}")
    elif sizes != environment.sizes:
        episodes.warnings.append(
            f"no environment to evaluate in: observations and actions have the sizes {sizes}, those of "
            f"{environment.env_id} have {environment.sizes}"
        )
    else:
        episodes.env_id = environment.env_id
    return episodes


def _cuts_by_counting(terminals: np.ndarray, limit: int) -> np.ndarray:
    """bool [rows]: every `limit`-th row since the last terminal one."""
    rows = np.arange(len(terminals))
    first = np.r_[True, terminals[:-1]]
    start = np.maximum.accumulate(np.where(first, rows, 0))
    return (rows - start) % limit == limit - 1


def _cuts_at_teleports(
    columns: dict[str, Any], terminals: np.ndarray, ends: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """(bool [rows] with the cuts added, the rows of the unmarked teleports)."""
    place = np.asarray(columns["observations"])[:, :2]
    known = terminals | np.asarray(columns.get("truncations", terminals)).reshape(-1).astype(bool)
    known = known if ends is None else known | ends
    jump = np.append(np.linalg.norm(np.diff(place, axis=0), axis=1) > TELEPORT, False) & ~known
    return (jump if ends is None else ends | jump), np.flatnonzero(jump)
