"""What the benchmarks share: a random dataset, a description of the machine, interleaved rounds.

It does not import jax, because each benchmark first decides on how many cores and devices it runs.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from offrl.data.dataset import Dataset

OBSERVATION_DIM, ACTION_DIM = 11, 3  # hopper's sizes; the values do not affect the time


def random_dataset(episodes: int = 100, length: int = 1_000) -> Dataset:
    """Standard normal observations and rewards, actions in (-1, 1); one in ten episodes terminates."""
    rng = np.random.default_rng(0)
    steps = episodes * length

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    ends = np.arange(1, steps + 1) % length == 0
    terminations = ends & (np.arange(steps) // length % 10 == 0)
    return Dataset(
        name="random numbers",
        observations=normal(steps + episodes, OBSERVATION_DIM),
        actions=np.tanh(normal(steps, ACTION_DIM)),
        rewards=normal(steps),
        terminations=terminations,
        truncations=ends & ~terminations,
        lengths=np.full(episodes, length),
        final_observation_known=np.ones(episodes, bool),
        action_low=np.full(ACTION_DIM, -1, np.float32),
        action_high=np.ones(ACTION_DIM, np.float32),
    )


def one_core() -> None:
    """Keep this process, and the threads that it starts, on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def machine() -> dict[str, Any]:
    """Where and when something was measured, ready for JSON. `load`: how busy the machine was with other work."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in ("jax", "jaxlib", "flax", "optax")},
    }


def interleave(timed: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each function returns, in `rounds` rounds of one call each, so that other load affects all of them alike."""
    values: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, function in timed.items():
            values[name].append(function())
    return values


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    """The median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def report(
    title: str, columns: list[str], rows: list[list[str]], notes: list[str], result: dict, as_json: bool
) -> None:
    """Print a table for people or, if `as_json`, one JSON object for programs."""
    if as_json:
        print(json.dumps(result, indent=2))
        return
    console = Console()
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False)
    described = result["machine"]
    versions = ", ".join(f"{key} {described[key]}" for key in ("python", "jax", "jaxlib", "flax", "optax"))
    console.print(
        f"{described['cpu']}, {described['cores']} cores, load {described['load']}, {described['date']}; {versions}",
        highlight=False,
    )
