"""Seconds from the start of `python -m offrl.train` to its first update, with and without compiled programs on disk.

Runs the command on a small file dataset (2,000 steps of hopper's sizes), once with an empty cache of compiled programs
and once more with what the first run left there, and stops the clock at the line that reports the first update (of the
first phase, if there are several). The processor time of the command until then (nan without /proc) is an estimate for
a machine without other load.

    python benchmarks/startup.py                        half a minute
    python benchmarks/startup.py --algorithms td3_bc,iql,bc --rounds 3
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np

EPISODE, EPISODES = 100, 20


def write_dataset(path: Path) -> None:
    """Episodes of random numbers."""
    data = common.random_dataset(EPISODES, EPISODE)
    observations = np.arange(data.steps) + data.episode_of_step  # each episode has one more row
    np.savez(
        path,
        observations=data.observations[observations],
        next_observations=data.observations[observations + 1],
        actions=data.actions,
        rewards=data.rewards,
        terminations=data.terminations,
        truncations=data.truncations,
    )


def processor_seconds(pid: int) -> float:
    """Processor time of a running process; nan if there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_update(algorithm: str, dataset: Path, cache: Path) -> tuple[float, float]:
    """Seconds of the wall clock, and of the processor, until the command reports its first update."""
    with tempfile.TemporaryDirectory() as runs:
        choices = [f"algo={algorithm}", f"dataset=file:{dataset}", "env=null", f"runs={runs}", "protocol=smoke"]
        once = [f"protocol.{name}=1" for name in ("updates", "log_every", "checkpoint_every")]
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "offrl.train", *choices, *once],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OFFRL_CACHE": str(cache)},
        )
        assert process.stdout is not None
        for line in process.stdout:
            if re.match(r"\w+ 1/", line):  # phase, update, of how many
                seconds, busy = time.perf_counter() - start, processor_seconds(process.pid)
                process.kill()  # a model-based algorithm has 100,000 updates of its dynamics before it
                process.communicate()
                return seconds, busy
        assert process.stderr is not None
        raise SystemExit(f"python -m offrl.train ended before its first update:\n{process.stderr.read()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", default="iql", help="names or files; default %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="rounds to take medians of; default %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    arguments = parser.parse_args()

    result: dict[str, Any] = {"machine": common.machine(), "algorithms": {}}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "small.npz"
        write_dataset(dataset)
        for algorithm in arguments.algorithms.split(","):
            cold, warm = [], []
            for _ in range(arguments.rounds):
                with tempfile.TemporaryDirectory() as cache:
                    cold.append(first_update(algorithm, dataset, Path(cache)))
                    warm.append(first_update(algorithm, dataset, Path(cache)))
            row = {
                f"{name}_{kind}seconds": statistics.median(value[i] for value in values)
                for name, values in (("cold", cold), ("warm", warm))
                for i, kind in enumerate(("", "processor_"))
            }
            result["algorithms"][algorithm] = row
            lines.append([algorithm, *(f"{value:.1f}" for value in row.values())])
    columns = ["algorithm", "first start, s", "processor, s", "second start, s", "processor, s"]
    notes = [f"Until the first update is reported; medians of {arguments.rounds}. Target: a first start below 15 s."]
    common.report("Start-up", columns, lines, notes, result, arguments.json)


if __name__ == "__main__":
    main()
