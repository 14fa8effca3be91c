"""The terminal. Names come from outside: no text is read as markup, and what is bold or coloured is so by its style."""

from __future__ import annotations

from rich.console import Console
from rich.theme import Theme

WIDTH = 150
"""Characters per line where there is no terminal (a pipe, a file): wide enough for the tables."""


THEME = Theme({"heading": "bold", "warning": "yellow", "command": "dim"})
"""Styles by the kind of a line."""


def terminal(stderr: bool = False, quiet: bool = False) -> Console:
    """A console on which text is shown letter by letter, `[bold]` and `:smile:` too."""
    console = Console(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False, theme=THEME)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def line(console: Console, text: str, kind: str = "") -> None:
    """One line, however long; `kind` is one of THEME's styles."""
    console.print(text, style=kind, soft_wrap=True)
