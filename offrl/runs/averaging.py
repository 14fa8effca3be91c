"""The average of the weights of a run's last checkpoints, as a run of its own (B8 of the catalogue).

Along one training the weights wander about; their mean is often the better and steadier policy (Izmailov, Podoprikhin,
Garipov, Vetrov & Wilson 2018, arXiv:1803.05407). `average` writes it as a run directory with one checkpoint, beside the
run it comes from, so that whatever takes a run takes it: offrl.select ranks it, offrl.evaluate scores it, and
`Run.actor` deploys it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from offrl.errors import UserError
from offrl.learning.population import NEVER
from offrl.runs.run import METRIC_COLUMNS, Run, write_whole


def average(run: Run, count: int) -> Path:
    """Write `RUN-averageCOUNT`: every member's mean over the run's last `count` checkpoints of a policy.

    All floating-point leaves of the states are averaged, so critics are too; counts are those of the last checkpoint,
    which also gives the step. A member that has diverged stays marked as such. What is there already, of the same
    checkpoints, is left as it is.

    Raises:
        UserError: the run has fewer checkpoints, or another folder stands in the way.
    """
    steps = run.policy_checkpoints()[-count:]
    if count < 2 or len(steps) < count:
        found = f"{run.path} has {len(run.policy_checkpoints())} checkpoints of a policy"
        raise UserError(f"average={count}: at least 2, and {found}; take fewer, or train with more (checkpoint_every)")
    path = run.path.with_name(f"{run.path.name}-average{count}")
    identity = {
        **run.info["identity"],
        "algo": {**run.info["identity"]["algo"], "average": count},  # tells it apart as a setting
        "average": [[step, run.checkpoint_store.checksum(step)] for step in steps],
    }
    if (path / "run.json").is_file():
        there = Run.open(path)
        if there.info["identity"] == identity and there.checkpoints() == steps[-1:]:
            return path
    if path.exists():
        if not is_average(Run.open(path)):
            raise UserError(f"{path}: in the way of the average of {run.path}; move it")
        shutil.rmtree(path)  # of other checkpoints, and so are its scores
    path.mkdir()
    averaged = Run(path, {**run.info, "identity": identity, "finished": True})
    averaged.write_info()
    write_whole(path / "metrics.csv", ",".join(METRIC_COLUMNS) + "\n")
    diverged_at = [NEVER if member["diverged_at"] is None else member["diverged_at"] for member in run.members]
    saved = {"states": mean([run.restore(step) for step in steps]), "diverged_at": np.array(diverged_at, np.int32)}
    averaged.checkpoint_store.save(steps[-1], saved)
    averaged.checkpoint_store.finish()
    return path


def is_average(run: Run) -> bool:
    return "average" in run.info["identity"]


def mean(states: list[Any]) -> Any:
    """Leaf by leaf, in double precision; leaves that are no floating-point numbers are those of the last."""

    def leaf(*leaves: np.ndarray) -> np.ndarray:
        last = np.asarray(leaves[-1])
        if not np.issubdtype(last.dtype, np.floating):
            return last
        return np.mean([np.asarray(each, np.float64) for each in leaves], 0).astype(last.dtype)

    return jax.tree.map(leaf, *states)
