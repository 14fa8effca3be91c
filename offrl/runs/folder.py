"""The folder of a run during training: created or continued, locked by one process, never one with other files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
from omegaconf import OmegaConf

from offrl.errors import UserError
from offrl.runs.identity import differences
from offrl.runs.run import METRIC_COLUMNS, Run, write_whole

LOCK = ".lock"  # in the folder of a run, held while it is trained


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Creates the folder of a run, and locks it against other processes during training.

    Raises:
        UserError: it holds files that are not a run's (they are left alone), or another process is training there.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"run_dir={path}: is a file; choose an empty or a new folder")
    if path.is_dir() and any(path.iterdir()) and not is_run(path):
        raise UserError(f"run_dir={path}: holds files that do not belong to a run; choose an empty or a new folder")
    path.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(path / LOCK, blocking=False):
            yield
    except filelock.Timeout:
        raise UserError(
            f"{path}: another process is training in it; wait for that one, or choose another run_dir"
        ) from None


def is_run(path: Path) -> bool:
    """Whether that folder holds a run, complete or damaged, or what is left of one that was killed as it began."""
    if {file.name for file in path.iterdir()} <= {LOCK, "metrics.csv.part"}:
        return True
    try:
        Run.open(path)
        return True
    except UserError:
        file = path / "metrics.csv"
        return file.is_file() and file.read_bytes().startswith(",".join(METRIC_COLUMNS).encode())


def open_or_create(path: Path, info: dict[str, Any], config: dict[str, Any]) -> Run:
    """The run in `path`, to be continued, or else a new one there."""
    if config["resume"] and (path / "run.json").exists():
        run = Run.open(path)
        old, new = run.info["identity"], json.loads(json.dumps(info["identity"]))
        if old != new:
            raise UserError(
                f"run_dir={path}: holds another run ({'; '.join(differences(old, new)[:3])}); "
                f"choose another run_dir, or resume=false to replace it"
            )
        old_print, new_print = run.info["dataset"]["fingerprint"], info["dataset"]["fingerprint"]
        if old_print != new_print:
            raise UserError(
                f"{path}: was trained on {info['dataset']['name']} with fingerprint {old_print}, which now has "
                f"{new_print}: the data changed; resume=false starts again"
            )
        return run
    for part in ("checkpoints", "oracle"):
        shutil.rmtree(path / part, ignore_errors=True)
    write_whole(path / "metrics.csv", ",".join(METRIC_COLUMNS) + "\n")
    write_whole(path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    run = Run(path, info)
    run.write_info()
    return run


def cut_metrics(file: Path, last_step: int) -> float:
    """Cuts the table after that step and leaves the rows before untouched; returns the seconds trained until then.

    Raises:
        UserError: the table is missing or damaged.
    """
    try:
        header, *lines = file.read_text().splitlines(keepends=True)
        rows = [line.split(",") for line in lines]
        # a killed run may have left a partial row, of a step after the last checkpoint
        whole = [row for row in rows if len(row) == len(METRIC_COLUMNS) and row[-1].endswith("\n")]
        kept = [row for row in whole if int(row[METRIC_COLUMNS.index("step")]) <= last_step]
        seconds = float(kept[-1][METRIC_COLUMNS.index("seconds")]) if kept else 0.0
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: missing or damaged ({error}); train again with resume=false") from error
    write_whole(file, header + "".join(",".join(row) for row in kept))
    return seconds
