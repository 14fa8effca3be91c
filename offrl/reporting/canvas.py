"""What pictures are drawn on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PLAIN: dict[Any, Any] = {"text.parse_math": False}
"""Settings under which a name with dollars is a name, and no mathematics."""
MAX_LABEL = 30


@contextmanager
def picture(file: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, which is written to `file` (PNG) when it has been drawn."""
    with matplotlib.rc_context(PLAIN):
        figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)  # no pyplot: it would pick a display and keep the figure
        yield figure
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Software": "offrl"})


def short(name: str) -> str:
    """A name of any length as a label. Legends leave out what begins with `_`: a space goes before it."""
    name = f" {name}" if name.startswith("_") else name
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"
