"""Training a run's members from its last checkpoint, or from the start, to the end of its schedule."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pandas as pd

from offrl.algorithm import Phase
from offrl.errors import writing
from offrl.learning.population import NEVER, Population
from offrl.runs.folder import cut_metrics
from offrl.runs.run import METRIC_COLUMNS, Run
from offrl.runs.tracking import Tracker


def schedule(phases: tuple[Phase, ...], protocol: dict[str, Any]) -> list[tuple[Phase, int, int, bool]]:
    """(phase, first step, updates, checkpoint after it?) of every stretch between two reports, over the whole run."""
    stretches, start = [], 0
    for phase in phases:
        end = start + phase.length(protocol["updates"])
        step = start
        while step < end:
            stop = min(
                end,
                (step // protocol["log_every"] + 1) * protocol["log_every"],
                (step // protocol["checkpoint_every"] + 1) * protocol["checkpoint_every"],
            )
            stretches.append((phase, step, stop - step, stop % protocol["checkpoint_every"] == 0 or stop == end))
            step = stop
        start = end
    return stretches


Show = Callable[[str, int, float, dict[str, float]], None]
"""Called with (phase, step, updates per second, mean loss by name) after each stretch of updates."""


def optimise(
    run: Run, population: Population, tracker: Tracker, progress: Callable[[int, int], AbstractContextManager[Show]]
) -> None:
    """Train from the last checkpoint, or from the start, to the end of the run's schedule.

    Args:
        progress: a function of (updates of the run, updates made before); its context gives the function to call.
    """
    stretches = schedule(population.phases, run.info["protocol"])
    total = stretches[-1][1] + stretches[-1][2]
    resumed_at = 0
    if run.checkpoints():
        resumed_at = run.checkpoints()[-1]
        population.restore(run.checkpoint_store.restore(resumed_at, run.saved_like()))
        print(f"continuing from step {resumed_at}")
    for member, diverged_at in zip(run.members, np.asarray(population.diverged_at), strict=False):
        member["diverged_at"] = None if diverged_at == NEVER else int(diverged_at)
    seconds_before = cut_metrics(run.path / "metrics.csv", resumed_at)

    started = last = time.monotonic()
    phase_begun = None
    with progress(total, resumed_at) as show, (run.path / "metrics.csv").open("a", newline="") as table:
        for phase, first, count, is_checkpoint in stretches:
            if first < resumed_at:
                phase_begun = phase.name
                continue
            if phase.name != phase_begun:
                population.begin(phase, first)
                phase_begun = phase.name
            values = population.train(phase, first, count)
            step = first + count
            now = time.monotonic()
            report_divergence(run, population)
            rows = [
                (phase.name, step, i, member["seed"], name, array[i], round(seconds_before + now - started, 3))
                for i, member in enumerate(run.members)
                for name, array in values.items()
                if np.isfinite(array[i])
            ]
            with writing(run.path / "metrics.csv"):
                pd.DataFrame(rows, columns=METRIC_COLUMNS).to_csv(table, header=False, index=False)
                table.flush()
            tracker.log(step, {f"member{row[2]}/{row[4]}": float(row[5]) for row in rows})
            healthy = [i for i, member in enumerate(run.members) if member["diverged_at"] is None]
            losses = {
                name: float(array[healthy].mean()) for name, array in values.items() if "loss" in name and healthy
            }
            show(phase.name, step, count / max(now - last, 1e-9), losses)
            last = now
            if is_checkpoint:
                run.checkpoint_store.save(step, population.save())
            if not healthy:
                print("every member has diverged: training stops here", file=sys.stderr)
                break
    run.checkpoint_store.finish()
    run.info["finished"] = True
    run.write_info()


def report_divergence(run: Run, population: Population) -> None:
    """Record and report the members that diverged in the last stretch."""
    for member, diverged_at in zip(run.members, np.asarray(population.diverged_at), strict=False):
        if diverged_at != NEVER and member["diverged_at"] is None:
            member["diverged_at"] = int(diverged_at)
            print(
                f"warning: member {member['member']} (seed {member['seed']}) diverged: a metric was not finite at step "
                f"{diverged_at}; its training stops there",
                file=sys.stderr,
            )
            run.write_info()
