"""Minari datasets: from the local store, downloaded into it first where they are missing.

HDF5 stores are read directly through h5py's low level: five times as fast as episode by episode through Minari, and
without importing an environment. Other storage formats go through Minari.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.dataset import Reference
from offrl.data.episodes import Episodes, from_rows
from offrl.data.files import Columns, extra, names
from offrl.data.flatten import flat_layout, flatten_observations, is_image, space_of
from offrl.errors import UserError, nearest

Episode = dict[str, Any]


def store() -> Path:
    """The local Minari store: MINARI_DATASETS_PATH or ~/.minari/datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def local_ids() -> list[str]:
    """The ids of the datasets in the local store."""
    root = store()
    found = root.glob("**/data/metadata.json") if root.is_dir() else ()
    return sorted(path.parent.parent.relative_to(root).as_posix() for path in found)


def local_id(dataset_id: str) -> str:
    """The id in the local store of a dataset that may be named with its remote, `hf://OWNER/ID`."""
    return dataset_id.split("://", 1)[1].split("/", 1)[-1] if "://" in dataset_id else dataset_id


def is_local(dataset_id: str) -> bool:
    return (store() / local_id(dataset_id) / "data" / "metadata.json").is_file()


def read(dataset_id: str, name: str | None = None, columns: Columns | None = None) -> Episodes:
    """The episodes of a Minari dataset, as `name` (default "minari:ID"); `hf://OWNER/ID` names a server.

    columns: infos to load as further columns, e.g. {"costs": "cost"}, as `Episodes.extra`; those of the steps, without
    that of the reset.
    Observations of several parts are flattened, and discrete ones made one-hot, as in `offrl.data.flatten`. Raises
    `UserError` for spaces that are not supported, a dataset that is neither local nor to be downloaded, and files that
    cannot be read.
    """
    name = name or f"minari:{dataset_id}"
    folder = store() / local_id(dataset_id) / "data"
    if not is_local(dataset_id):
        _download(dataset_id)
    try:
        metadata = json.loads((folder / "metadata.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{name}: {folder / 'metadata.json'} cannot be read ({error}); remove {folder.parent}"
        ) from error
    env_spec = json.loads(metadata["env_spec"]) if metadata.get("env_spec") else {}
    spaces = {key: _space(name, key, metadata, env_spec) for key in ("observation_space", "action_space")}
    action_low, action_high = _action_box(name, spaces["action_space"])
    observation_space = None
    if (described := spaces["observation_space"]) is not None:
        _check_observation_space(name, described)
        observation_space = space_of(described)

    if metadata.get("data_format", "hdf5") == "hdf5":
        path = folder / "main_data.hdf5"
        try:
            parts = list(_hdf5_episodes(name, path, int(metadata.get("total_episodes", 0)), names(columns or {})))
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            raise UserError(
                f"{name}: {path} cannot be read, it is truncated or damaged ({_line(error)}); remove {folder.parent} "
                "and load it again"
            ) from error
    else:
        try:
            parts = list(_minari_episodes(folder, names(columns or {})))
        except Exception as error:  # Minari lets through whatever its storage raises
            raise UserError(f"{name}: Minari cannot read {folder} ({_line(error)})") from error
    if not parts:
        raise UserError(f"{name} is empty: {folder} has no episodes")

    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    episodes = _assemble(name, parts, observation_space)
    episodes.extra = _extra(name, parts, columns or {}, episodes.lengths)
    episodes.action_low, episodes.action_high = action_low, action_high
    episodes.env_id = env_spec.get("id")
    episodes.env_kwargs = env_spec.get("kwargs") or {}
    episodes.time_limit = env_spec.get("max_episode_steps")
    if low is not None and high is not None:
        episodes.reference = Reference(
            float(low), float(high), f"ref_min_score and ref_max_score of Minari's {local_id(dataset_id)}"
        )
    if isinstance(parts[0]["observations"], (dict, list, tuple)):
        whole = _first_row(parts[0]["observations"]) if observation_space is None else observation_space
        episodes.observation_layout = flat_layout(whole)
    return episodes


def _download(dataset_id: str) -> None:
    """Downloads into the local store through Minari, or says what is missing."""
    known, wanted = local_ids(), local_id(dataset_id)
    here = f"in the local store {store()}" + (f" {nearest(wanted, known)}" if known else " there is no dataset")
    try:
        import minari

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every retry
        print(f"minari:{wanted} is not in the local store {store()}; downloading it", file=sys.stderr)
        minari.download_dataset(dataset_id)
    except Exception as error:  # every remote raises its own kinds
        raise UserError(
            f"minari:{dataset_id} is not in the local store and could not be downloaded ({_line(error)}); {here}; "
            f"with a network run `minari download {dataset_id}`, or set MINARI_DATASETS_PATH to a store that has "
            f"{wanted}"
        ) from error


def _space(name: str, key: str, metadata: dict[str, Any], env_spec: dict[str, Any]) -> Any:
    """The space as Minari's JSON, decoded; of datasets without one, Minari takes the environment's: None here."""
    value = metadata.get(key)
    if value is None and key == "action_space":
        raise UserError(
            f"{name}: its metadata has no action_space; re-save it with a current Minari ({env_spec.get('id')})"
        )
    return _decode(value) if value is not None else None


def _decode(value: Any) -> Any:
    """Minari writes the spaces inside a Dict or Tuple space as JSON strings."""
    space = json.loads(value) if isinstance(value, str) else value
    if isinstance(space.get("subspaces"), dict):
        space["subspaces"] = {key: _decode(part) for key, part in space["subspaces"].items()}
    elif isinstance(space.get("subspaces"), list):
        space["subspaces"] = [_decode(part) for part in space["subspaces"]]
    return space


def _action_box(name: str, space: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    kind = space["type"]
    if kind == "Discrete":
        if space.get("start", 0) != 0:
            raise UserError(f"{name} has discrete actions that count from {space['start']}; only from 0 is supported")
        return np.zeros(1, np.float32), np.array([space["n"] - 1], np.float32)
    if kind != "Box":
        raise UserError(f"{name} has actions that are not supported ({kind}); the action space must be Box or Discrete")
    shape = tuple(space["shape"])
    low, high = (np.broadcast_to(np.asarray(space[side], np.float32), shape).reshape(-1) for side in ("low", "high"))
    return low.copy(), high.copy()


def _check_observation_space(name: str, space: dict[str, Any], within: bool = False) -> None:
    parts = space.get("subspaces")
    if parts is not None:
        for part in parts.values() if isinstance(parts, dict) else parts:
            _check_observation_space(name, part, within=True)
    elif space["type"] not in ("Box", "Discrete"):
        raise UserError(
            f"{name} has observations of the space {space['type']}; supported are Box and Discrete, and Dict or Tuple "
            "of them"
        )
    elif space["type"] == "Box" and len(space["shape"]) > 2 and (within or not is_image(space_of(space))):
        where = " within others" if within else ""
        raise UserError(
            f"{name} has observations {tuple(space['shape'])} of {space['dtype']}{where}; supported are vectors, and "
            "on their own images of uint8 (height, width, channels)"
        )


def _hdf5_episodes(name: str, path: Path, count: int, infos: Sequence[str]) -> Iterator[Episode]:
    if not path.exists() or path.stat().st_size == 0:
        raise UserError(f"{name}: {path} is missing or empty; remove {path.parent.parent} and load it again")
    with h5py.File(path, "r") as file:
        if len(file) != count:
            raise UserError(
                f"{name}: its metadata says {count} episodes but {path} has {len(file)}; "
                "the dataset is incomplete, remove it and load it again"
            )
        for index in range(count):
            group = h5py.h5g.open(file.id, f"episode_{index}".encode())
            episode: Episode = {
                key: _read(group, key) for key in ("observations", "actions", "rewards", "terminations", "truncations")
            }
            if b"infos" in group:
                logged = h5py.h5g.open(group, b"infos")
                known = [child.decode() for child in logged]
                episode["infos"] = {key: _read(logged, key) for key in ("success", *infos) if key in known}
                episode["known"] = known
            yield episode


def _read(group: Any, key: str) -> Any:
    """A dataset as an array, a group as a dict of them, a tuple's as a list; through h5py's low level, for speed."""
    node = h5py.h5o.open(group, key.encode())
    if isinstance(node, h5py.h5g.GroupID):
        children = [child.decode() for child in node]
        if all(child.startswith("_index_") for child in children):
            return [_read(node, f"_index_{index}") for index in range(len(children))]
        return {child: _read(node, child) for child in children}
    values = np.empty(node.shape, node.dtype)
    if values.size:
        node.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def _minari_episodes(folder: Path, infos: Sequence[str]) -> Iterator[Episode]:
    import minari

    for episode in minari.MinariDataset(folder).iterate_episodes():
        part: Episode = {
            key: getattr(episode, key) for key in ("observations", "actions", "rewards", "terminations", "truncations")
        }
        if episode.infos:
            part["infos"] = {key: episode.infos[key] for key in ("success", *infos) if key in episode.infos}
            part["known"] = list(episode.infos)
        yield part


def _extra(name: str, parts: list[Episode], columns: Columns, lengths: np.ndarray) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for info in names(columns):
        for index, part in enumerate(parts):
            if info not in part.get("infos", {}):
                known = part.get("known", [])
                raise UserError(
                    f"{name}: episode {index} has no info {info!r} to take as a column; "
                    + (nearest(info, known) if known else "it has no infos at all")
                )
        arrays[info] = np.concatenate([_of_steps(part, part["infos"][info]) for part in parts])
    return extra(name, arrays, columns, lengths)


def _of_steps(part: Episode, info: Any) -> np.ndarray:
    """The info of every step of an episode; where there is one of the reset as well, that comes first."""
    return np.asarray(info)[-len(part["rewards"]) :]


def _assemble(name: str, parts: list[Episode], observation_space: Any) -> Episodes:
    observations: list[np.ndarray] = []
    for index, part in enumerate(parts):
        block = part["observations"]
        if not is_image(observation_space):
            block = flatten_observations(block, observation_space)
        sizes = {key: len(part[key]) for key in ("actions", "rewards", "terminations", "truncations")}
        if len(set(sizes.values())) > 1 or len(block) != sizes["actions"] + 1:
            raise UserError(
                f"{name}: episode {index} has {len(block)} observations, "
                + ", ".join(f"{size} {key}" for key, size in sizes.items())
                + "; observations must be one more than all others"
            )
        if observations and block.shape[1:] != observations[0].shape[1:]:
            raise UserError(
                f"{name}: episode {index} has observations of size {block.shape[1:]}, episode 0 of "
                f"{observations[0].shape[1:]}"
            )
        observations.append(block)
    lengths = np.array([len(part["rewards"]) for part in parts], np.int64)
    if (lengths == 0).any():
        raise UserError(f"{name}: episode {int(np.argmin(lengths))} has no step")
    flat = {
        key: np.concatenate([part[key] for part in parts])
        for key in ("actions", "rewards", "terminations", "truncations")
    }
    actions = flat["actions"].reshape(len(flat["actions"]), -1)
    actions = actions.astype(np.int32 if actions.dtype.kind in "iu" else np.float32)
    terminations, truncations = flat["terminations"].astype(bool), flat["truncations"].astype(bool)
    has_success = all("success" in part.get("infos", {}) for part in parts)

    last = np.zeros(len(actions), bool)
    last[np.cumsum(lengths) - 1] = True
    inside = (terminations | truncations) & ~last
    if inside.any():  # the episode goes on after its end: cut it there, so that no view crosses the end
        row = int(np.argmax(inside))
        episode = int(np.searchsorted(np.cumsum(lengths), row, side="right"))
        steps_success = (
            [np.resize(_of_steps(part, part["infos"]["success"]), len(part["rewards"])) for part in parts]
            if has_success
            else None
        )
        result = from_rows(
            name,
            np.concatenate([block[:-1] for block in observations]),
            actions,
            flat["rewards"],
            terminations,
            truncations,
            next_observations=np.concatenate([block[1:] for block in observations]),
            ends=last,
            successes=None if steps_success is None else np.concatenate(steps_success),
        )
        result.warnings.append(
            f"{int(inside.sum())} steps inside an episode are marked as its end, the first in episode {episode}, step "
            f"{row - int(lengths[:episode].sum())}; the episodes are cut there"
        )
        return result
    return Episodes(
        name=name,
        observations=np.concatenate(observations),
        actions=actions,
        rewards=flat["rewards"].astype(np.float32).reshape(-1),
        terminations=terminations.reshape(-1),
        truncations=truncations.reshape(-1),
        lengths=lengths,
        final_observation_known=np.ones(len(parts), bool),
        successes=np.array([bool(np.any(part["infos"]["success"])) for part in parts]) if has_success else None,
    )


def _first_row(observations: Any) -> Any:
    if isinstance(observations, dict):
        return {key: _first_row(value) for key, value in observations.items()}
    if isinstance(observations, (list, tuple)):
        return [_first_row(value) for value in observations]
    return observations[0]


def _line(error: BaseException) -> str:
    """The error's first line, shortened, for a message of one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
