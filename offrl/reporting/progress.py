"""The progress of commands: a bar on a terminal, and elsewhere a line for each part that is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from offrl.reporting.console import line


def _text(field: str) -> TextColumn:
    return TextColumn(f"{{task.{field}}}", markup=False)


@contextmanager
def training(console: Console, total: int, done: int) -> Iterator[Callable[[str, int, float, dict[str, float]], None]]:
    """A function (phase, step, updates per second, losses) that shows the progress of training.

    Args:
        total: updates of the whole run. done: those of them that were made before.
    """
    started, first = time.monotonic(), done
    columns = (_text("description"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), _text("fields[losses]"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=total, completed=done, losses="compiling")

        def show(phase: str, step: int, rate: float, losses: dict[str, float]) -> None:
            text = "  ".join(f"{name} {value:.4g}" for name, value in losses.items())
            bar.update(task, description=phase, completed=step, losses=f"{rate:.0f} updates/s  {text}")
            if not console.is_terminal:
                left = (total - step) * (time.monotonic() - started) / max(step - first, 1)
                line(console, f"{phase} {step}/{total}  {rate:.0f} updates/s  {left:.0f} s left  {text}")

        yield show


@contextmanager
def evaluation(console: Console, total: int) -> Iterator[Callable[[int, int, int], None]]:
    """A function (step, episodes, environment steps) to call when so many episodes of a checkpoint are played.

    Args:
        total: episodes to play.
    """
    began, done = time.perf_counter(), 0
    columns = (_text("description"), BarColumn(), MofNCompleteColumn(), TextColumn("episodes"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluate", total=total)

        def played(step: int, episodes: int, environment_steps: int) -> None:
            nonlocal done, began
            done += episodes
            seconds, began = time.perf_counter() - began, time.perf_counter()
            rate = f"{environment_steps / seconds:,.0f} steps/s"
            bar.update(task, completed=done, description=f"evaluate step {step:,} ({rate})")
            if not console.is_terminal:
                console.print(f"evaluated step {step}: {done}/{total} episodes, {rate}")

        yield played


@contextmanager
def measuring(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A function (measurement, done, total) that shows the progress of measuring: bars only."""
    columns = (_text("description"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield show
