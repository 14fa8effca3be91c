"""Errors that are the user's to mend: one line, no traceback."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """A mistake in what the user gave. The message is one line: what was wrong, the value, and what to do."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """'did you mean a, b?' with the closest of the known names, or the known names where none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=count, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else f"choose from {', '.join(known)}"


def run_command(command: Callable[[], object]) -> None:
    """Run a command line's main function; a `UserError` becomes one line on stderr and exit status 2."""
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
