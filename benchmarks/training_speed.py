"""Updates per second of each algorithm's phases on one core, against what the matrix products alone would allow.

The bound is the measured rate of a float32 matrix product at the size of the networks' largest layer, divided by the
floating point operations in the matrix products of one update, which are counted in its jaxpr. All is measured in one
process, in short interleaved rounds, and in seconds of processor time, so that other load on the machine affects it
only through shared caches and memory.

Loops whose number of iterations depends on the data or the step are part of the time but not of the bound: rollouts in
a model, and RAMBO's adversary. Work that is done every so many updates is scaled down to once per round, so that each
round has its share of it.

    python benchmarks/training_speed.py                                 about a minute
    python benchmarks/training_speed.py --algorithms td3_bc --rounds 30
    python benchmarks/training_speed.py --algorithms all --rounds 5 --updates 20
    python benchmarks/training_speed.py --torch                         also torch, if it is installed
    python benchmarks/training_speed.py --torch-python /path/to/bin/python     ... in another environment
    python benchmarks/training_speed.py --json > speed.json
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import common

common.one_core()

from offrl import devices

devices.set_up()

import jax
import jax.numpy as jnp
import numpy as np

import offrl.algorithm
from offrl.algorithm import Phase, Spec
from offrl.errors import run_command
from offrl.learning.population import Population

TORCH = Path(__file__).with_name("torch_updates.py")
TORCH_ALGORITHMS = ("td3_bc", "iql")


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among an equation's parameters: what it calls or repeats."""
    for value in params.values():
        jaxpr = getattr(value, "jaxpr", value)
        if hasattr(jaxpr, "eqns"):
            yield jaxpr


def count_products(jaxpr: Any, shares: Iterator[float]) -> float:
    """Floating point operations in a jaxpr's matrix products; `shares`: how often its conditions hold, in order."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
            total += 2 * inner * np.prod(equation.outvars[0].aval.shape)
        elif equation.primitive.name == "cond":
            branches = equation.params["branches"]
            share = next(shares, 1.0)
            otherwise, holds = (count_products(branch.jaxpr, shares) for branch in branches)
            total += (1 - share) * otherwise + share * holds
        else:
            inner_total = sum(count_products(inner, shares) for inner in inner_jaxprs(equation.params))
            if equation.primitive.name == "scan":
                inner_total *= equation.params["length"]
            elif equation.primitive.name == "while":
                inner_total = 0.0  # the number of iterations is not in the jaxpr
            total += inner_total
    return total


def products_per_update(update: Any, state: Any, dataset: Any, config: Any) -> float:
    """Floating point operations in the matrix products of one update, on average over updates."""
    jaxpr = jax.make_jaxpr(update)(jax.random.key(0), state, dataset, config)
    if hasattr(config, "policy_frequency"):
        shares = [1 / config.policy_frequency]
    else:  # the dynamics: still training, evaluation on held-out steps
        shares = [1, 1 / getattr(config, "holdout_every", 1)]
    return count_products(jaxpr.jaxpr, iter(shares))


def spread(config: Any, updates: int) -> Any:
    """The configuration with its periodic work done once in `updates` updates, and made smaller in proportion."""
    changed = {}
    for every, amount in (("rollout_every", "rollout_batch_size"), ("adversary_every", "adversary_updates")):
        if hasattr(config, every):
            share = updates / getattr(config, every)
            changed |= {every: updates, amount: max(1, round(getattr(config, amount) * share))}
    return dataclasses.replace(config, **changed)


def timed_updates(population: Population, phase: Phase, count: int) -> Callable[[], float]:
    """A function that makes `count` updates and returns how many of them fit in a second of processor time."""
    step = 0

    def run() -> float:
        nonlocal step
        start = time.process_time()
        population.train(phase, step, count)
        step += count
        return count / (time.process_time() - start)

    run()  # compiles
    return run


def timed_product(rows: int, width: int) -> Callable[[], float]:
    """A function that returns the rate of the product [rows, width] x [width, width], in operations per second."""
    count = 200
    rng = np.random.default_rng(0)
    # an orthogonal matrix: the values stay as large as they are
    matrix = jnp.asarray(np.linalg.qr(rng.standard_normal((width, width)))[0], jnp.float32)
    start_values = jnp.asarray(rng.standard_normal((rows, width)), jnp.float32)
    products = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda i, x: x @ matrix, x))

    def run() -> float:
        start = time.process_time()
        products(start_values).block_until_ready()
        return count * 2 * rows * width**2 / (time.process_time() - start)

    run()
    return run


def timed_torch(python: str, count: int) -> dict[str, Callable[[], float]] | str:
    """The same in torch, in a separate process: functions by algorithm, or the reason why there are none."""
    has_torch = [python, "-c", "import torch"]
    try:
        check = subprocess.run(has_torch, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"torch is left out: {error}"
    if check.returncode:
        reason = check.stderr.strip().splitlines()[-1]
        return f"torch is left out: {python}: {reason}; --torch-python PATH names an interpreter that has it"
    process = subprocess.Popen([python, str(TORCH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    requests, answers = process.stdin, process.stdout
    assert requests is not None
    assert answers is not None

    def run(name: str) -> float:
        print(name, count, file=requests, flush=True)
        return count / float(answers.readline())

    functions: dict[str, Callable[[], float]] = {}
    for name in TORCH_ALGORITHMS:
        functions[name] = partial(run, name)
        run(name)
    return functions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", default="bc,td3_bc,iql", help="names or files, or all; default %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="rounds to take medians of; default %(default)s")
    parser.add_argument("--updates", type=int, default=100, help="updates per algorithm and round; default %(default)s")
    parser.add_argument("--torch", action="store_true", help="also time updates written in torch")
    parser.add_argument("--torch-python", metavar="PATH", help="the interpreter that has torch; default this one")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    arguments = parser.parse_args()

    dataset = common.random_dataset()
    spec = Spec(common.OBSERVATION_DIM, common.ACTION_DIM, updates=1_000_000)
    timed: dict[str, Callable[[], float]] = {}
    operations: dict[str, float] = {}
    sizes = set()
    every = offrl.algorithm.names() if arguments.algorithms == "all" else arguments.algorithms.split(",")
    for name in every:
        algorithm = offrl.algorithm.load(name)
        config = spread(algorithm.Config(), arguments.updates)
        data = algorithm.prepare(dataset, config)
        state = jax.eval_shape(partial(algorithm.init, config=config, spec=spec), jax.random.key(0))
        phases = algorithm.phases(config)
        for number, phase in enumerate(phases):
            label = name if len(phases) == 1 else f"{name} {phase.name}"
            population = Population(algorithm, [config], [0], spec, data)
            for begun in phases[: number + 1]:
                population.begin(begun, 0)
            timed[label] = timed_updates(population, phase, arguments.updates)
            operations[label] = products_per_update(phase.update, state, data, config)
        sizes.add((config.batch_size, max(config.hidden_dims)))
    rows, width = max(sizes)
    timed["product"] = timed_product(rows, width)
    notes = []
    if arguments.torch or arguments.torch_python:
        functions = timed_torch(arguments.torch_python or sys.executable, arguments.updates)
        if isinstance(functions, str):
            notes.append(functions)
        else:
            timed.update({f"torch {name}": function for name, function in functions.items() if name in timed})
    values = common.interleave(timed, arguments.rounds)

    result: dict[str, Any] = {
        "machine": common.machine(),
        "product_gflops": statistics.median(values["product"]) / 1e9,
        "product_shape": [rows, width, width],
        "algorithms": {},
    }
    lines = []
    for name, count in operations.items():
        speed = statistics.median(values[name])
        share = common.median_ratio(values[name], [rate / count for rate in values["product"]])
        row = {"updates_per_second": speed, "share_of_bound": share, "mflop_per_update": count / 1e6}
        line = [name, f"{speed:.0f}", f"{speed / share:.0f}", f"{share:.0%}", f"{count / 1e6:.0f}"]
        if f"torch {name}" in values:
            row["torch_updates_per_second"] = statistics.median(values[f"torch {name}"])
            row["ratio_to_torch"] = common.median_ratio(values[name], values[f"torch {name}"])
            line += [f"{row['torch_updates_per_second']:.0f}", f"{row['ratio_to_torch']:.2f}"]
        result["algorithms"][name] = row
        lines.append(line)
    columns = ["algorithm", "updates/s", "bound", "share", "MFLOP/update"]
    if any(len(line) > len(columns) for line in lines):
        columns += ["torch updates/s", "times torch"]
    notes.append(
        f"Bound: {rows}x{width}x{width} float32 products at {result['product_gflops']:.1f} GFLOP/s. One core, "
        f"processor time; medians of {arguments.rounds} rounds of {arguments.updates} updates."
    )
    common.report("Training speed", columns, lines, notes, result, arguments.json)


if __name__ == "__main__":
    run_command(main)
