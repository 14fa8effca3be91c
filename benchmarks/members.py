"""Members in one program against as many independent processes: do they use the machine's cores equally well?

`Population` can map its members over XLA's devices, one per core ("devices", its default on a CPU), as one vectorised
program ("vmap"), or one after the other ("map"). Each of these is compared with independent single-threaded processes
that train one member each, started together and timed until the last one ends. Each round times every way once, in
wall-clock seconds; reported are medians of the ratios within a round. Other load on the machine slows all of them, and
most those that need several cores at once: look at the load in the last line.

    python benchmarks/members.py                                two members of TD3+BC on two cores, about a minute
    python benchmarks/members.py --algorithm iql --members 4
    python benchmarks/members.py --mappings devices --rounds 30
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import common

from offrl import devices

devices.set_up()

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.errors import run_command
from offrl.learning.population import Population


def trainer(name: str, members: int, mapping: str | None, updates: int) -> Callable[[], None]:
    """A function that makes `updates` updates of every member; compiled already."""
    algorithm = offrl.algorithm.load(name)
    spec = Spec(common.OBSERVATION_DIM, common.ACTION_DIM, updates=1_000_000)
    configs = [algorithm.Config()] * members
    data = algorithm.prepare(common.random_dataset(), configs[0])
    population = Population(algorithm, configs, list(range(members)), spec, data, mapping)
    step = 0

    def train() -> None:
        nonlocal step
        population.train(population.phases[0], step, updates)
        step += updates

    train()
    return train


def work(name: str, updates: int) -> None:
    """One of the independent processes: it trains one member, `updates` updates per line of input."""
    train = trainer(name, 1, None, updates)
    print("ready", flush=True)
    for _ in sys.stdin:
        train()
        print("done", flush=True)


class Processes:
    """Independent single-threaded processes with one member each."""

    def __init__(self, name: str, count: int, updates: int):
        command = [sys.executable, __file__, "--worker", "--algorithm", name, "--updates", str(updates)]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        self.wait()

    def wait(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit("a worker process ended")

    def train(self) -> None:
        for process in self.processes:
            print("go", file=process.stdin, flush=True)
        self.wait()


def timed(train: Callable[[], None]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        train()
        return time.perf_counter() - start

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="td3_bc", help="a name or a file; default %(default)s")
    parser.add_argument("--members", type=int, default=2, help="members, and processes; default %(default)s")
    parser.add_argument("--mappings", default="devices,vmap,map", help="with commas; default %(default)s")
    parser.add_argument("--rounds", type=int, default=12, help="rounds to take medians of; default %(default)s")
    parser.add_argument("--updates", type=int, default=100, help="updates per member and round; default %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.algorithm, arguments.updates)
        return

    runs = {"processes": timed(Processes(arguments.algorithm, arguments.members, arguments.updates).train)}
    for mapping in arguments.mappings.split(","):
        runs[mapping] = timed(trainer(arguments.algorithm, arguments.members, mapping, arguments.updates))
    seconds = common.interleave(runs, arguments.rounds)

    result: dict[str, Any] = {"machine": common.machine(), "algorithm": arguments.algorithm, "ways": {}}
    lines = []
    for name, values in seconds.items():
        speed = arguments.members * arguments.updates / statistics.median(values)
        ratio = common.median_ratio(seconds["processes"], values)
        result["ways"][name] = {"updates_per_second": speed, "ratio_to_processes": ratio}
        lines.append([name, f"{speed:.0f}", f"{ratio:.2f}"])
    notes = [
        f"{arguments.members} members, on a core each if possible; updates/s of all together, wall clock; medians of "
        f"{arguments.rounds} rounds of {arguments.updates} updates. Target: devices at 0.90 of processes or more."
    ]
    title = f"Members together: {arguments.algorithm}"
    common.report(title, ["way", "updates/s", "of processes"], lines, notes, result, arguments.json)


if __name__ == "__main__":
    run_command(main)
