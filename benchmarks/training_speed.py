"""Updates per second of each algorithm on one core, beside what the matrix products alone would allow.

The bound is the measured rate of a float32 matrix product at the size of the networks' largest layer, over the floating
point operations in the matrix products of one update, which are counted in its jaxpr. All is measured in one process,
in short rounds one after the other, and in seconds of processor time, so that other work on the machine disturbs it
little; what remains is that it shares caches and memory.

    python benchmarks/training_speed.py                                 about a minute
    python benchmarks/training_speed.py --algorithms td3_bc --rounds 30
    python benchmarks/training_speed.py --torch                         torch beside it, where it is installed
    python benchmarks/training_speed.py --torch-python /path/to/bin/python     ... in an environment of its own
    python benchmarks/training_speed.py --json > speed.json
"""

from __future__ import annotations

import argparse
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
from offrl.algorithm import Algorithm, Spec
from offrl.errors import run_command
from offrl.training import Population

TORCH = Path(__file__).with_name("torch_updates.py")
TORCH_ALGORITHMS = ("td3_bc", "iql")


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among an equation's parameters: what it calls or repeats."""
    for value in params.values():
        jaxpr = getattr(value, "jaxpr", value)
        if hasattr(jaxpr, "eqns"):
            yield jaxpr


def count_products(jaxpr: Any, branch_weights: tuple[float, float]) -> float:
    """Floating point operations in the matrix products of a jaxpr; conditions count their branches with the weights."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
            total += 2 * inner * np.prod(equation.outvars[0].aval.shape)
        elif equation.primitive.name == "cond":
            branches = equation.params["branches"]
            counts = [count_products(branch.jaxpr, branch_weights) for branch in branches]
            total += sum(weight * count for weight, count in zip(branch_weights, counts, strict=True))
        else:
            inner_total = sum(count_products(inner, branch_weights) for inner in inner_jaxprs(equation.params))
            if equation.primitive.name == "scan":
                inner_total *= equation.params["length"]
            elif equation.primitive.name == "while" and inner_total:
                raise ValueError("a matrix product in a while loop: its number of turns is not known")
            total += inner_total
    return total


def products_per_update(algorithm: Algorithm, config: Any, spec: Spec, dataset: Any) -> float:
    """Floating point operations in the matrix products of one update, on average over updates."""
    key = jax.random.key(0)
    state = jax.eval_shape(lambda key: algorithm.init(key, config, spec), key)
    jaxpr = jax.make_jaxpr(algorithm.phases(config)[0].update)(key, state, dataset, config)
    every = getattr(config, "policy_frequency", 1)
    return count_products(jaxpr.jaxpr, (1 - 1 / every, 1 / every))


def timed_updates(algorithm: Algorithm, config: Any, spec: Spec, dataset: Any, count: int) -> Callable[[], float]:
    """A function that makes `count` updates and returns the updates per second of processor time."""
    population = Population(algorithm, [config], [0], spec, dataset)
    phase, step = population.phases[0], 0

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
    """The same in torch, in a process of its own: functions by algorithm, or why there are none."""
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
    parser.add_argument("--algorithms", default="bc,td3_bc,iql", help="names or files; default %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="rounds to take medians of; default %(default)s")
    parser.add_argument("--updates", type=int, default=100, help="updates per algorithm and round; default %(default)s")
    parser.add_argument("--torch", action="store_true", help="time updates written in torch beside them")
    parser.add_argument("--torch-python", metavar="PATH", help="the interpreter that has torch; default this one")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    arguments = parser.parse_args()

    dataset = common.random_transitions()
    spec = Spec(common.OBSERVATION_DIM, common.ACTION_DIM, updates=1_000_000)
    timed: dict[str, Callable[[], float]] = {}
    operations: dict[str, float] = {}
    sizes = set()
    for name in arguments.algorithms.split(","):
        algorithm = offrl.algorithm.load(name)
        config = algorithm.Config()
        timed[name] = timed_updates(algorithm, config, spec, dataset, arguments.updates)
        operations[name] = products_per_update(algorithm, config, spec, dataset)
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
        f"processor time; medians of {arguments.rounds} rounds of {arguments.updates} updates, batch {rows}."
    )
    common.report("Training speed", columns, lines, notes, result, arguments.json)


if __name__ == "__main__":
    run_command(main)
