"""The average of the weights of a run's last checkpoints, as a run of its own.

During training the weights fluctuate; their mean is often a better and more stable policy (Izmailov, Podoprikhin,
Garipov, Vetrov & Wilson 2018, arXiv:1803.05407). `average` writes it as a run directory with one checkpoint, next to
the run it comes from, so that it can be used like any run: offrl.select ranks it, offrl.evaluate scores it, and
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
    """Write `RUN-averageCOUNT`: every member's mean over the run's last `count` policy checkpoints.

    All floating-point leaves of the states are averaged, critics included; integer leaves and the step are those of the
    last checkpoint. A member that has diverged stays marked so. An average of the same checkpoints that exists already
    is left as it is.

    Raises:
        UserError: the run has too few checkpoints, or the folder's name is taken.
    """
    steps = run.policy_checkpoints()[-count:]
    if count < 2 or len(steps) < count:
        found = f"{run.path} has {len(run.policy_checkpoints())} policy checkpoints"
        raise UserError(
            f"average={count}: must be 2 or more, and {found}; average fewer, or train with a smaller "
            "protocol.checkpoint_every"
        )
    path = run.path.with_name(f"{run.path.name}-average{count}")
    identity = {
        **run.info["identity"],
        "algo": {**run.info["identity"]["algo"], "average": count},  # a setting of its own
        "average": [[step, run.checkpoint_store.checksum(step)] for step in steps],
    }
    if (path / "run.json").is_file():
        there = Run.open(path)
        if there.info["identity"] == identity and there.checkpoints() == steps[-1:]:
            return path
    if path.exists():
        if not is_average(Run.open(path)):
            raise UserError(f"{path}: the average of {run.path} belongs here, but this is another run; move it")
        shutil.rmtree(path)  # an average of other checkpoints, with its scores
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
    """The mean of each leaf, in double precision; leaves that are not floating-point are those of the last state."""

    def leaf(*leaves: np.ndarray) -> np.ndarray:
        last = np.asarray(leaves[-1])
        if not np.issubdtype(last.dtype, np.floating):
            return last
        return np.mean([np.asarray(each, np.float64) for each in leaves], 0).astype(last.dtype)

    return jax.tree.map(leaf, *states)
