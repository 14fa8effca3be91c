"""The progress of training: a bar on a terminal, elsewhere a line per report."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rich.progress


@contextmanager
def progress_bar(total: int, done: int) -> Iterator[Any]:
    """A function (phase, step, updates per second, losses) that shows progress: a bar on a terminal, else lines."""
    started, first = time.monotonic(), done
    if sys.stdout.isatty():
        columns = [
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[losses]}"),
        ]
        with rich.progress.Progress(*columns) as bar:
            task = bar.add_task("training", total=total, completed=done, losses="compiling")

            def show(phase: str, step: int, rate: float, losses: dict[str, float]) -> None:
                text = f"{rate:.0f} updates/s  " + "  ".join(f"{name} {value:.3g}" for name, value in losses.items())
                bar.update(task, description=phase, completed=step, losses=text)

            yield show
    else:

        def line(phase: str, step: int, rate: float, losses: dict[str, float]) -> None:
            left = (total - step) * (time.monotonic() - started) / max(step - first, 1)
            text = "  ".join(f"{name} {value:.4g}" for name, value in losses.items())
            print(f"{phase} {step}/{total}  {rate:.0f} updates/s  {left:.0f} s left  {text}", flush=True)

        yield line
