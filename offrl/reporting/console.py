"""The terminal. Names come from outside: no text is read as markup, and what is bold or coloured is so by its style."""

from __future__ import annotations

from rich.console import Console

WIDTH = 150
"""Letters of a line where there is no terminal (a pipe, a file): wide enough for the tables."""


def terminal(stderr: bool = False, quiet: bool = False) -> Console:
    """A console on which text is shown letter by letter, `[bold]` and `:smile:` too."""
    console = Console(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console
