"""The built-in datasets: made on first use, by rollouts of policies that ship, and kept in the local Minari store.

    from offrl.datasets import builtin
    minari.load_dataset(builtin.ensure("hopper", "medium"))      # "offrl/hopper/medium-v0"

A dataset is determined by its recipe, its size and the policies' weights: it is the same on every run and for any
number of processes (up to the rounding of another MuJoCo or numpy). It appears in the store complete or not at all.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minari
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from offrl.data.recipes import ENVIRONMENTS, RECIPES, VERSION, Reference, dataset_id
from offrl.datasets.environments import specification
from offrl.datasets.policies import load_policies
from offrl.datasets.rollout import Episode, Part, Workers, collect
from offrl.devices import cores
from offrl.errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows, where two processes may then both roll out: the first to finish wins
    fcntl = None  # type: ignore[assignment]

SEED = 0


def reference(env: str) -> Reference | None:
    """The returns that normalise scores: D4RL's, or those measured with the policies that ship; None without either."""
    policies = load_policies(env)
    return ENVIRONMENTS[env].reference or (policies.reference if policies else None)


def plan(env: str, recipe: str, steps: int | None = None) -> list[Part]:
    """What each policy contributes to a dataset.

    Raises:
        UserError: the recipe needs policies, and none ship for this environment.
    """
    chosen, policies = RECIPES[recipe], load_policies(env)
    shares: list[tuple[str, float]] = []
    for name, share in chosen.parts:
        if name != "random" and policies is None:
            raise UserError(f"{env}/{recipe}: no policies ship for {env} yet, only {env}/random; train some with "
                            f"`python -m offrl.datasets.train_behaviour {env} --out DIR` and pick from them with "
                            f"`python -m offrl.datasets.policies {env} DIR`")  # fmt: skip
        shares += policies.ladder if name == "ladder" and policies else [(name, share)]
    total = steps or ENVIRONMENTS[env].steps
    whole = sum(share for _, share in shares)
    parts, taken, given = [], 0, 0.0
    for name, share in shares:
        if policies and name != "random" and name not in policies.weights:
            raise UserError(f"{env}/{recipe}: {env} has no policy {name!r}, only {', '.join(policies.weights)}")
        weights = policies.weights[name] if policies and name != "random" else {}
        if chosen.episodes:
            parts.append(Part(name, weights, chosen.mean_actions, episodes=chosen.episodes))
            continue
        given += share
        until = round(total * given / whole)
        if until > taken:
            parts.append(Part(name, weights, chosen.mean_actions, steps=until - taken))
        taken = until
    return parts


def made(env: str) -> list[str]:
    """The ids of this environment's datasets in the local store."""
    return sorted(minari.list_local_datasets(prefix=f"offrl/{env}"))


def ensure(env: str, recipe: str, steps: int | None = None, workers: int | None = None) -> str:
    """The Minari id of a built-in dataset, which is made first if the local store lacks it.

    Args:
        env: a name in `recipes.ENVIRONMENTS`, such as "hopper".
        recipe: a name in `recipes.RECIPES`, such as "medium-replay".
        steps: size in steps; by default the environment's. A dataset of another size has another id.
        workers: simulator processes, by default one per core. The dataset does not depend on it.

    A dataset that was made by other policies or an older recipe is replaced. Of two processes at once, one waits.

    Raises:
        UserError: an unknown name, an impossible size, or a recipe whose policies do not ship yet.
    """
    identifier = dataset_id(env, recipe, steps)
    if workers is not None and workers < 1:
        raise UserError(f"workers={workers}: must be 1 or more")
    parts = plan(env, recipe, steps)
    policies, scores = load_policies(env), reference(env)
    origin = {
        "environment": env, "recipe": recipe, "version": VERSION, "seed": SEED,
        "reference": list(scores) if scores else None,
        "parts": [[part.policy, policies.digest(part.policy) if part.weights and policies else "uniform",
                   part.mean_actions, part.steps, part.episodes] for part in parts],
    }  # fmt: skip
    path = get_dataset_path(identifier)
    if _origin(path) == origin:
        return identifier
    path.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(path.parent, identifier) as locked:
        if locked:  # so the processes that left these have died
            for rest in path.parent.glob(f".{path.name}.*"):
                shutil.rmtree(rest, ignore_errors=True)
        if _origin(path) != origin:
            _make(identifier, path, origin, parts, scores, workers or cores())
    return identifier


def _origin(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads((path / "data" / "metadata.json").read_text()).get("offrl")
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _one_at_a_time(folder: Path, identifier: str) -> Iterator[bool]:
    """Yields whether others are locked out. The system drops the lock of a process that dies."""
    with (folder / ".lock").open("w") as file:
        try:
            if fcntl is None:
                raise OSError
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for another process that makes {identifier.rpartition('/')[0]}", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
            locked = True
        except OSError:  # a file system without locks: the rename alone keeps the dataset whole
            locked = False
        yield locked


def _make(identifier: str, path: Path, origin: dict, parts: list[Part], scores: Reference | None, workers: int) -> None:
    env_id = ENVIRONMENTS[origin["environment"]].env_id
    _environment(env_id).close()  # if something is missing, say so here, in one line
    in_episodes = parts[0].steps is None
    total = sum((part.episodes if in_episodes else part.steps) or 0 for part in parts)
    with _progress(identifier, total, "episodes" if in_episodes else "steps", workers) as (rolled, written):
        with Workers(workers) as pool:
            collected = collect(pool, env_id, parts, SEED, lambda s, e: rolled(e if in_episodes else s, total))
        episodes = [episode for part in collected for episode in part]
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            _write(Path(folder) / "new", identifier, env_id, origin, episodes, scores, written)
            if path.exists() and _origin(path) != origin:
                print(f"{identifier} was made by other policies or an older recipe: replaced", file=sys.stderr)
                path.rename(Path(folder) / "old")
            try:
                (Path(folder) / "new").rename(path)
            except OSError:
                if _origin(path) != origin:  # else another process was first
                    raise


def _write(
    folder: Path, identifier: str, env_id: str, origin: dict, episodes: list[Episode], scores: Reference | None,
    written: Callable[[int, int], None],
) -> None:  # fmt: skip
    """A Minari dataset in `folder`."""
    (folder / "data").mkdir(parents=True)
    env = _environment(env_id)
    storage = MinariStorage.new(
        folder / "data", env_spec=specification(env_id), observation_space=env.observation_space,
        action_space=env.action_space, jpeg_encoding=False,  # training sees what the environment shows, to the bit
    )  # fmt: skip
    env.close()

    def buffers() -> Iterator[EpisodeBuffer]:
        for i, episode in enumerate(episodes):
            values: dict[str, Any] = episode._asdict()
            del values["policy"]
            yield EpisodeBuffer(**values, infos={})
            written(i + 1, len(episodes))

    storage.update_episodes(buffers())
    storage.update_episode_metadata([{"policy": episode.policy} for episode in episodes])
    environment, recipe = origin["environment"], origin["recipe"]
    policies = load_policies(environment)
    makers = ", ".join(f"{name} ({digest})" for name, digest, *_ in origin["parts"])
    metadata: dict[str, Any] = {
        "dataset_id": identifier,
        "minari_version": minari.__version__,
        "author": {"offrl"},
        "algorithm_name": policies.metadata.get("algorithm", "SAC") if policies else "SAC",
        "description": f"Built-in dataset of offrl, {environment}/{recipe}, version {VERSION}: "
        f"{RECIPES[recipe].summary}. "
        f"Policies (digest of the weights): {makers}. Every episode's metadata names its policy.",
        "offrl": origin,
    }
    if scores:
        metadata |= {"ref_min_score": scores.random, "ref_max_score": scores.expert}
    storage.update_metadata(metadata)


def _environment(env_id: str) -> gymnasium.Env:
    """The environment, without MuJoCo's warnings of Gymnasium's model files, on stderr and in a file where we run."""
    if "mujoco" not in str(specification(env_id).entry_point):
        return gymnasium.make(env_id)
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        return gymnasium.make(env_id)
    finally:
        mujoco.set_mju_user_warning(before)


@contextlib.contextmanager
def _progress(identifier: str, total: int, unit: str, workers: int) -> Iterator[tuple[Callable, Callable]]:
    """Functions of (done, total) for the rollouts and for writing: bars on a terminal, else lines."""
    console = Console(stderr=True)
    started = time.monotonic()
    print(f"making {identifier}, once: {total:,} {unit} on {workers} processes", file=sys.stderr, flush=True)
    if not console.is_terminal:
        yield (lambda done, total: None), (lambda done, total: None)
    else:
        columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bars:
            rolling = bars.add_task(unit, total=total)
            writing = bars.add_task("writing", total=None, visible=False)
            yield (
                lambda done, total: bars.update(rolling, completed=done, total=total),
                lambda done, total: bars.update(writing, completed=done, total=total, visible=True),
            )
    print(f"{identifier} is in the local Minari store after {time.monotonic() - started:.0f} s", file=sys.stderr)
