"""Errors that the user can correct: one line, no traceback."""

from __future__ import annotations

import difflib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# errors caused by the place of a file, not by the program
PLACE = {
    getattr(errno, name)
    for name in (
        "EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ENAMETOOLONG", "ELOOP"
    )
}  # fmt: skip


class UserError(Exception):
    """A mistake in what the user gave. The message is one line: what was wrong, the value, and what to do."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """'did you mean a, b?' with the closest of the known names, or the known names where none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=count, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else f"choose from {', '.join(known)}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Adds `path`, which is being written, to errors of the system that lack a file name, such as a full disk's."""
    try:
        yield
    except OSError as error:
        if error.errno in PLACE and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def about_place(error: OSError) -> str | None:
    """The line for the user if the place of a file caused the error, such as a full disk; None for other errors."""
    if error.errno not in PLACE or error.filename is None:
        return None
    return f"{os.fsdecode(error.filename)}: {str(error.strerror).lower()}; choose another place, or fix this one"


def run_command(command: Callable[[], object]) -> None:
    """Run a command line's main function; a `UserError` becomes one line on stderr and exit status 2.

    So does a place where nothing can be written: a full disk, a folder without permission, a name that is taken.
    """
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        line = about_place(error)
        if line is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
