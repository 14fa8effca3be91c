"""The report's pictures, drawn by matplotlib and inlined as SVG.

Why matplotlib and not Vega-Altair or Plotly: it is a dependency already, its SVG is markup that needs no script (a
JavaScript plotting library would be 1 to 4 MB in every page, and could not be read without running it), it prints, and
the same figure is the PNG that goes into a paper. What interaction would add, exact numbers, the tables beside give.

The few colours stand for CSS variables of the page, so that an inlined picture is light or dark as the page is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from offrl.reporting.canvas import PLAIN, short
from offrl.reporting.page import CSS, SERIES, Html

COLOURS: dict[str, str] = {}
"""The light theme's colours by the name of their CSS variable."""
for _name in ("paper", "ink", "soft", "rule", *(f"c{i}" for i in range(SERIES))):
    _found = re.search(rf"--{_name}: (#[0-9a-f]{{6}})", CSS)
    assert _found is not None
    COLOURS[_name] = _found[1]
INK, SOFT, RULE, PAPER = COLOURS["ink"], COLOURS["soft"], COLOURS["rule"], COLOURS["paper"]
WIDTH, HEIGHT = 4.7, 3.0
"""Inches: narrow, so that the letters stay legible on a phone."""
STYLE: dict[Any, Any] = {
    **PLAIN,
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.7,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: small, found by search, in the page's font
    "svg.hashsalt": "offrl",
}


Save = Callable[[str, Figure], Html]
"""Keeps a picture under a name and returns its markup."""


@contextmanager
def style() -> Iterator[None]:
    with matplotlib.rc_context(STYLE):
        yield


def colour(place: int) -> str:
    return COLOURS[f"c{place % SERIES}"]


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def save(figure: Figure, folder: Path, name: str) -> Html:
    """Write NAME.svg and NAME.png into the folder; returns the markup to inline."""
    with style():
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{name}.png", dpi=160, metadata={"Software": "offrl"})
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "offrl"})
    (folder / f"{name}.svg").write_text(buffer.getvalue())
    return inlined(buffer.getvalue(), name)


def inlined(svg: str, name: str) -> Html:
    """An SVG file as markup within a page: ids of its own, colours by CSS variable, as wide as there is room."""
    markup = svg[svg.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.DOTALL)
    markup = re.sub(r'\bid="', f'id="{name}-', markup)
    markup = re.sub(r'(url\(#|href="#)', rf"\1{name}-", markup)
    head, rest = markup.split(">", 1)
    head = re.sub(r'\b(width|height)="[^"]*" ?', "", head)
    for variable, value in COLOURS.items():
        rest = rest.replace(value, f"var(--{variable})")
    rest = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 system-ui, sans-serif", rest)
    return Html(f'{head} role="img">{rest}'.rstrip())


class Curve(NamedTuple):
    """A line with its band; arrays of one length."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def learning_curves(curves: Mapping[str, tuple[int, Curve]], data: tuple[float, float], unit: str) -> Figure:
    """Name -> (place of its colour, curve); the data's mean and best episode as lines."""
    figure, axes = new_figure(height=3.2)
    axes.axhline(data[0], color=SOFT, linewidth=1, linestyle=(0, (5, 2)), label="data, mean")
    highest = max(max(np.max(c.y if c.high is None else c.high) for _, c in curves.values()), data[0])
    if data[1] < highest + 0.6 * max(highest - data[0], 1e-9):  # far above all curves it would flatten them
        axes.axhline(data[1], color=SOFT, linewidth=1, linestyle=":", label="data, best episode")
    for name, (place, curve) in curves.items():
        if curve.low is not None and curve.high is not None and len(curve.x) > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour(place), alpha=0.15, linewidth=0)
        elif curve.low is not None and curve.high is not None:
            axes.vlines(curve.x, curve.low, curve.high, color=colour(place), alpha=0.5, linewidth=2)
        axes.plot(curve.x, curve.y, color=colour(place), linewidth=1.7, marker="o", markersize=2.6, label=short(name))
    axes.grid(axis="y")
    axes.set_xlabel("update")
    axes.set_ylabel(unit)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    longest = max(map(len, names), default=1)
    figure.legend(handles, names, loc="outside lower left", ncols=int(np.clip(60 // (longest + 5), 1, 4)))


def intervals(rows: Sequence[tuple[str, int, float, float, float]], unit: str, line: float | None = None) -> Figure:
    """One row per (name, place of its colour, estimate, low, high)."""
    figure, axes = new_figure(height=0.75 + 0.3 * len(rows))
    for place, (_, tone, estimate, low, high) in enumerate(rows):
        if np.isfinite(low) and np.isfinite(high):
            axes.plot([low, high], [place, place], color=colour(tone), linewidth=5, alpha=0.35, solid_capstyle="butt")
        axes.plot([estimate], [place], "o", color=colour(tone), markersize=6)
    if line is not None:
        axes.axvline(line, color=SOFT, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(rows)), [short(row[0]) for row in rows], color=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel(unit)
    return figure


def profiles(curves: Mapping[str, tuple[int, Curve]], unit: str) -> Figure:
    figure, axes = new_figure(height=3.2)
    for name, (place, curve) in curves.items():
        assert curve.low is not None
        assert curve.high is not None
        axes.fill_between(curve.x, curve.low, curve.high, color=colour(place), alpha=0.13, linewidth=0)
        axes.plot(curve.x, curve.y, color=colour(place), linewidth=1.7, label=short(name))
    axes.grid(axis="y")
    axes.set_xlabel(unit)
    axes.set_ylabel("share of members above it")
    axes.set_ylim(-0.02, 1.02)
    _legend(figure, axes)
    return figure


def selected_against_best(points: Mapping[str, tuple[int, np.ndarray, np.ndarray, np.ndarray]], unit: str) -> Figure:
    """Name -> (place of its colour, best, selected, last), one of each per member: below the line is regret."""
    figure, axes = new_figure(height=3.9)
    every = np.concatenate([np.concatenate(values) for _, *values in points.values()])
    low, high = np.nanmin(every), np.nanmax(every)
    margin = 0.06 * max(high - low, 1e-9)
    ends = [low - margin, high + margin]
    axes.plot(ends, ends, color=SOFT, linewidth=0.9)
    for name, (place, best, selected, last) in points.items():
        axes.vlines(best, np.fmin(selected, best), best, color=colour(place), linewidth=0.8, alpha=0.5)
        axes.scatter(best, last, s=26, facecolors="none", edgecolors=colour(place), linewidths=1)
        axes.scatter(best, selected, s=26, color=colour(place), linewidths=0, label=short(name))
    axes.scatter([], [], s=26, facecolors="none", edgecolors=SOFT, linewidths=1, label="last checkpoint")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal", "box")
    axes.grid()
    axes.set_xlabel(f"best in hindsight, {unit}")
    axes.set_ylabel(f"selected (filled) and last, {unit}")
    _legend(figure, axes)
    return figure


def pool(groups: Mapping[str, tuple[int, np.ndarray, np.ndarray]], chosen: tuple[float, float] | None, best: float,
         labels: tuple[str, str]) -> Figure:  # fmt: skip
    """Every candidate: name -> (place of its colour, selector's score, measured score)."""
    figure, axes = new_figure(height=3.3)
    axes.axhline(best, color=SOFT, linewidth=1, linestyle=":", label="best of the pool")
    for name, (place, x, y) in groups.items():
        axes.scatter(x, y, s=20, color=colour(place), alpha=0.8, linewidths=0, label=short(name))
    if chosen is not None:
        axes.scatter([chosen[0]], [chosen[1]], s=130, facecolors="none", edgecolors=INK, linewidths=1.5,
                     label="deployed")  # fmt: skip
    axes.grid()
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    _legend(figure, axes)
    return figure


def workflow(curve: Curve, held_out: Curve | None, peak: int | None, taken: int, tone: int) -> Figure:
    """The average Q over the data by checkpoint, the peak where there is one, and the checkpoint to take."""
    figure, axes = new_figure(height=2.6)
    axes.plot(curve.x, curve.y, color=colour(tone), linewidth=1.7, marker="o", markersize=2.6, label="training rows")
    if held_out is not None:
        axes.plot(held_out.x, held_out.y, color=colour(tone), linewidth=1.2, linestyle=(0, (4, 2)), label="held out")
    axes.axvline(taken, color=INK, linewidth=1, linestyle=":", label="take")
    if peak is not None and peak in curve.x:
        axes.plot([peak], curve.y[curve.x == peak], "v", color=INK, markersize=7, label="peak")
    axes.grid(axis="y")
    axes.set_xlabel("update")
    axes.set_ylabel("average Q(s, a)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _legend(figure, axes)
    return figure


def histogram(values: np.ndarray, label: str) -> Figure:
    figure, axes = new_figure(height=2.4)
    low, high = float(values.min()), float(values.max())
    bins = np.linspace(low, high, 41) if high > low else np.array([low - 0.5, low + 0.5])
    axes.hist(values, bins=bins.tolist(), color=colour(0), alpha=0.8)
    axes.axvline(values.mean(), color=INK, linewidth=1, linestyle=":")
    if (values == np.round(values)).all():  # lengths, say
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel(f"{label} (dotted: mean)")
    axes.set_ylabel("episodes")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure
