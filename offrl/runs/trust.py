"""A run directory is data, not code: code that run.json names is executed only if it is offrl's or the user says so.

Two things in run.json name code: the algorithm's file, and an environment of the form "module:Name", whose module is
imported. Always allowed are the algorithms and environments that come with offrl (an algorithm by name, or as a file of
exactly that content), and what this process has already executed because the user named it
(`offrl.train algo=mine.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import offrl.algorithm
from offrl.errors import UserError

OUR_ENVIRONMENTS = "offrl.datasets.environments"
_everything = False


def trust_runs(trusted: bool = True) -> None:
    """From now on, in this process, execute any code that runs name: what `trust=true` on a command line does."""
    global _everything
    _everything = trusted


def algorithm_of(run: Path, described: Any) -> str:
    """The name or file to load the algorithm of a run from, given `algorithm` of its run.json.

    Raises:
        UserError: it is a file that is not part of offrl, and the user has not said that it may be executed.
    """
    named = (described.get("file") or described.get("name")) if isinstance(described, dict) else described
    if not isinstance(named, str) or not named:
        raise UserError(f"{run / 'run.json'}: damaged (algorithm: {named}); train again with resume=false")
    if _everything or not named.endswith(".py"):  # a name is looked up among the algorithms of offrl, nowhere else
        return named
    path = Path(named).expanduser().resolve()
    if path.is_file():
        if ours := offrl.algorithm.bundled(path.read_bytes()):
            return ours
        if offrl.algorithm.module_name(path) in sys.modules:
            return named
    raise UserError(
        f"{run}: its algorithm is the file {named}, which is not one of offrl's and would be executed; read that file, "
        "and say trust=true if you trust it"
    )


def environment_of(run: Path, env_id: Any) -> str:
    """The id of the environment that a run names, if it may be created.

    Raises:
        UserError: it would import a module, and the user has not said that this may be executed.
    """
    if not isinstance(env_id, str):
        raise UserError(f"{run / 'run.json'}: damaged (env_id: {env_id}); name an environment with env=ID")
    module, colon, _ = env_id.rpartition(":")
    if colon and not _everything and module != OUR_ENVIRONMENTS and module not in sys.modules:
        raise UserError(
            f"{run}: its environment {env_id} would import and execute the module {module}; say trust=true if you "
            "trust it"
        )
    return env_id
