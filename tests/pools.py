"""Pools for tests of diagnostics: a task with known structure, and candidates whose parameters a test writes down."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.data.dataset import Dataset
from offrl.data.preprocessing import preprocess
from offrl.data.transforms import Preprocessing
from offrl.runs.checkpoints import checksum
from offrl.runs.run import Run
from offrl.selection.pool import Candidate, Pool, held_out_episodes

QUADRATIC = Path(__file__).parent / "toys" / "quadratic.py"
DYNAMICS, CONTROL = 0.8, 0.3
GOOD_GAIN, GOOD_NOISE = -0.9, 0.1


def linear_quadratic(
    episodes: int = 60, length: int = 20, noise: float = 0.02, seed: int = 0, terminal: bool = False
) -> Dataset:
    """s' = 0.8 s + 0.3 a + noise in two dimensions, reward -|s'|^2 - 0.1 |a|^2.

    Even episodes follow a = -0.9 s with a little noise, odd ones draw their actions uniformly from the box. Episodes
    are cut off after `length` steps; with `terminal`, every third one ends in a terminal state after half of them.
    """
    random = np.random.default_rng(seed)
    lengths = np.where(terminal & (np.arange(episodes) % 3 == 0), length // 2, length)
    observations, actions, rewards = [], [], []
    for episode in range(episodes):
        s = random.normal(0, 0.5, 2)
        observations.append(s)
        for _ in range(lengths[episode]):
            if episode % 2 == 0:
                a = np.clip(GOOD_GAIN * s + random.normal(0, GOOD_NOISE, 2), -1, 1)
            else:
                a = random.uniform(-1, 1, 2)
            s = DYNAMICS * s + CONTROL * a + random.normal(0, noise, 2)
            observations.append(s)
            actions.append(a)
            rewards.append(-(s @ s) - 0.1 * (a @ a))
    ends = np.cumsum(lengths) - 1
    terminations = np.zeros(lengths.sum(), bool)
    terminations[ends] = lengths < length
    truncations = np.zeros(lengths.sum(), bool)
    truncations[ends] = lengths == length
    return Dataset(
        name="linear_quadratic",
        observations=np.array(observations, np.float32),
        actions=np.array(actions, np.float32),
        rewards=np.array(rewards, np.float32),
        terminations=terminations,
        truncations=truncations,
        lengths=lengths.astype(np.int64),
        final_observation_known=np.ones(episodes, bool),
        action_low=np.full(2, -1, np.float32),
        action_high=np.full(2, 1, np.float32),
    )


class MadeRun(Run):
    """A run whose states a test has written down: restored from memory, everything else as any run."""

    def __init__(self, path: Path, info: dict[str, Any], configs: Sequence[Any], states: Mapping[int, Sequence[Any]]):
        super().__init__(path, info)
        self.__dict__["member_configs"] = list(configs)
        self.states = states
        store = SimpleNamespace(checksum=lambda step: checksum(states[step]))
        self.__dict__["checkpoint_store"] = store

    def checkpoints(self) -> list[int]:
        return sorted(self.states)

    def restore(self, step: int) -> Any:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *self.states[step])


def made_run(
    dataset: Dataset,
    states: Mapping[int, Sequence[Any]],
    *,
    algorithm: str = str(QUADRATIC),
    config: Any = None,
    preprocessing: Preprocessing | None = None,
    validation_fraction: float = 0.25,
    diverged_at: Sequence[int | None] | None = None,
    path: str | Path | None = None,
) -> MadeRun:
    """A run with checkpoints `states`: step -> one state per member."""
    path = Path(path or tempfile.mkdtemp(prefix="made-run-"))
    path.mkdir(parents=True, exist_ok=True)
    loaded = offrl.algorithm.load(algorithm)
    config = config or loaded.Config()
    members = len(next(iter(states.values())))
    train = dataset.split(validation_fraction, 0)[0] if validation_fraction else dataset
    info = {
        "algorithm": {"name": loaded.name, "file": algorithm if algorithm.endswith(".py") else None},
        "phases": [{"name": "train", "updates": 30}],
        "spec": Spec.of(dataset, max(states))._asdict(),
        "protocol": {"validation_fraction": validation_fraction, "split_seed": 0},
        "identity": {"algo": {"name": loaded.name}, "path": str(path)},
        "dataset": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "transforms": list(preprocess(train, preprocessing or loaded.preprocessing(config)).transforms),
        },
        "members": [
            {"member": i, "seed": i, "values": {}, "diverged_at": diverged_at[i] if diverged_at else None}
            for i in range(members)
        ],
        "finished": True,
    }
    return MadeRun(path, info, [config] * members, states)


def made_pool(dataset: Dataset, *runs: MadeRun, rows: int = 20_000, checkpoints: int = 0) -> Pool:
    """What `Pool.open` makes of runs on `dataset`; of the last `checkpoints`, or all."""
    held_out = np.ones(dataset.episodes, bool)
    for run in runs:
        held_out &= held_out_episodes(run, dataset)
    candidates = [
        Candidate(run, member, step)
        for run in runs
        for member in range(len(run.members))
        for step in run.checkpoints()[-checkpoints:]
    ]
    return Pool(dataset, candidates, held_out, rows, 0)


def linear(gain: float | np.ndarray = 0.0, offset: float = 0.0, quadratic: np.ndarray | None = None, critics: int = 2):
    """A state of the toy `quadratic` for two observations and two actions: a = gain s + offset, Q = z' P z."""
    State = offrl.algorithm.load(str(QUADRATIC)).init.__globals__["State"]
    matrices = np.zeros((critics, 5, 5), np.float32)
    if quadratic is not None:
        matrices = np.broadcast_to(np.asarray(quadratic, np.float32), (critics, 5, 5)).copy()
    return State(
        step=np.int32(1),
        gain=(np.asarray(gain) * np.eye(2)).astype(np.float32),
        offset=np.full(2, offset, np.float32),
        quadratic=matrices,
    )


def exact_q(gain: float, discount: float = 0.9) -> np.ndarray:
    """P [5, 5] of Q(s, a) = z' P z of the policy a = gain s (unclipped, without noise) on the task, z = (1, s, a).

    V(s) = -v |s|^2 with v = (c^2 + 0.1 gain^2) / (1 - discount c^2), c = 0.8 + 0.3 gain.
    """
    c = DYNAMICS + CONTROL * gain
    v = (c**2 + 0.1 * gain**2) / (1 - discount * c**2)
    following = np.array([0, DYNAMICS, CONTROL])
    weight = 1 + discount * v
    p = np.zeros((5, 5))
    for d in range(2):
        index = [0, 1 + d, 3 + d]
        p[np.ix_(index, index)] -= weight * np.outer(following, following)
        p[3 + d, 3 + d] -= 0.1
    return p
