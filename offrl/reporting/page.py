"""The building blocks of the report's HTML page: one file that needs nothing else, works from disk and on a phone.

Every string that comes from outside goes through `escaped`; blocks are `Html`, so that what is escaped already cannot
be taken for text. The colours are CSS variables, light and dark, which inlined pictures share.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Html(str):
    """Markup: what `escaped` leaves as it is."""

    __slots__ = ()


def escaped(value: Any) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, *content: Any, **attributes: Any) -> Html:
    """`<name attributes>content</name>`; `class_` is class, `data_v` is data-v; what is None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{''.join(map(escaped, content))}</{name}>")


def joined(blocks: Iterable[Any], between: str = "") -> Html:
    return Html(escaped(between).join(map(escaped, blocks)))


class Cell(NamedTuple):
    """One cell of a table: what is shown, what it is sorted by, and a remark in small print."""

    text: Any
    value: float | str | None = None
    note: Any = ""
    kind: str = ""
    """A CSS class: good, bad, muted."""
    hint: str = ""
    """What is shown where the pointer rests."""


def number(value: float | None, error: float | None = None, digits: int = 1, reason: str = "") -> Cell:
    """`value ± error`, or a dash with its reason, cut short: all of it is where the pointer rests."""
    if value is None or math.isnan(value):
        short = dict.fromkeys(part.split(": ")[0] for part in reason.split("; "))
        return Cell("–", None, "; ".join(short), "muted", reason)
    text = decimal(value, digits)
    spread = Html(f' <span class="pm">± {decimal(error, digits)}</span>') if error and math.isfinite(error) else ""
    return Cell(joined([text, spread]), value)


def decimal(value: float, digits: int = 1) -> str:
    """With a true minus, so that columns of digits stay aligned."""
    return f"{value:,.{digits}f}".replace("-", "−")


def digits_of(values: Iterable[float]) -> int:
    """How many decimals show three digits of the largest of these numbers; one decimal from 10 to 1000."""
    size = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if not 0 < size < 10:
        return int(size < 1000)
    return min(2 - math.floor(math.log10(size)), 9)


def significant(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.2e}".replace("-", "−")
    if abs(value) >= 1000:  # "g" would write 12,135 as 1.214e+04
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


class Column(NamedTuple):
    title: str
    numeric: bool = False
    hint: str = ""
    group: str = ""
    """Neighbouring columns of one group stand under its name."""


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], marked: Sequence[int] = (), limit: int = 400
) -> Html:
    """A table that sorts by a click on a heading and, from six rows on, is filtered by a text field.

    Args:
        rows: of `Cell`, or of what becomes one.
        marked: places of the rows to stand out.
        limit: rows shown; the page says how many there are.
    """
    heads = joined(
        tag("th", tag("button", column.title, type="button", title=column.hint or None), scope="col",
            class_="n" if column.numeric else None, aria_sort="none")
        for column in columns
    )  # fmt: skip
    groups = Html("")
    if any(column.group for column in columns):
        spans: list[tuple[str, int]] = []
        for column in columns:
            if spans and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        groups = tag(
            "tr", *(tag("th", name, colspan=n, scope="colgroup", class_="g" if name else None) for name, n in spans)
        )
    lines = []
    for place, row in enumerate(rows[:limit]):
        cells = []
        for column, item in zip(columns, row, strict=True):
            cell = item if isinstance(item, Cell) else Cell(item)
            classes = " ".join(filter(None, ["n" if column.numeric else "", cell.kind]))
            note = tag("small", cell.note) if cell.note else ""
            cells.append(tag("td", cell.text, note, class_=classes or None, title=cell.hint or None,
                             data_v="" if cell.value is None and column.numeric else cell.value))  # fmt: skip
        lines.append(tag("tr", *cells, class_="marked" if place in marked else None))
    body = tag("div", tag("table", tag("thead", groups, tag("tr", heads)), tag("tbody", *lines)),
               class_="scroll tall" if len(lines) > 16 and not groups else "scroll", tabindex="0")  # fmt: skip
    cut = tag("p", f"The first {limit} of {len(rows)} rows.", class_="muted") if len(rows) > limit else ""
    tools = ""
    if len(rows) > 5:
        tools = tag("div", Html('<input type="search" placeholder="filter rows" aria-label="filter rows">'),
                    tag("output"), class_="tools")  # fmt: skip
    return tag("div", tools, body, cut, class_="table")


def tiles(items: Sequence[tuple[str, Any, Any]]) -> Html:
    """Large figures: (what, figure, remark)."""
    return tag("dl", *(tag("div", tag("dt", what), tag("dd", figure), tag("p", note) if note else "")
                       for what, figure, note in items), class_="tiles")  # fmt: skip


def figure(svg: Html, caption: Any = "", title: Any = "") -> Html:
    return tag("figure", tag("h4", title) if title else "", svg, tag("figcaption", caption) if caption else "")


def grid(figures: Sequence[Html]) -> Html:
    return tag("div", *figures, class_="grid" if len(figures) > 1 else "grid one")


def notes(messages: Sequence[Any], kind: str = "warn") -> Html:
    return tag("ul", *(tag("li", message) for message in messages), class_=f"notes {kind}") if messages else Html("")


class Section(NamedTuple):
    name: str
    """Of its anchor."""
    title: str
    content: Html


def page(title: str, lead: Html, sections: Sequence[Section], footer: Any) -> str:
    """The whole document."""
    links = tag(
        "nav", *(tag("a", section.title, href=f"#{section.name}") for section in sections), aria_label="sections"
    )
    body = joined(tag("section", tag("h2", section.title), section.content, id=section.name) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # nothing is fetched, whatever a name or a setting holds
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{escaped(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"<header>{lead}</header>\n{links if len(sections) > 1 else ''}\n<main>{body}</main>\n"
        f"<footer>{escaped(footer)}</footer>\n<script>{JS}</script>\n</body>\n</html>\n"
    )


SERIES = 10
"""Colours of lines, --c0 to --c9, each legible on both backgrounds."""

CSS = """
:root {
  --paper: #ffffff; --raised: #f7f8fa; --ink: #1b1f24; --soft: #5c6570; --rule: #e4e7eb; --accent: #1f5fa8;
  --good: #1a7f4b; --bad: #b3372f; --warn: #8a5a00; --warn-paper: #fff8e6; --mark: #eaf2fb;
  --c0: #1f5fa8; --c1: #c2571a; --c2: #2c8a4b; --c3: #8a4fb0; --c4: #b8860b; --c5: #c23b6e; --c6: #12808c;
  --c7: #7a5c3e; --c8: #5a6acf; --c9: #6b7280;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --raised: #1b1f25; --ink: #e6e9ed; --soft: #98a2ad; --rule: #2b3139; --accent: #7db4f0;
    --good: #5ec48d; --bad: #f0867d; --warn: #e8b75a; --warn-paper: #272113; --mark: #1b2a3b;
    --c0: #6ea8e8; --c1: #f09a5e; --c2: #6cc488; --c3: #c093e0; --c4: #e0b94a; --c5: #ee7fa6; --c6: #56c2cc;
    --c7: #c4a484; --c8: #98a4f0; --c9: #a3abb5;
  }
}
* { box-sizing: border-box }
html { scroll-padding-top: 3.5rem; -webkit-text-size-adjust: 100% }
body { margin: 0; overflow-wrap: break-word; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
header, main, footer { max-width: 76rem; margin: 0 auto; padding: 0 1.5rem }
header { padding-top: 2.75rem; padding-bottom: 1rem }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.02em; margin: 0 0 .35rem; font-weight: 680;
  overflow-wrap: anywhere }
h2 { font-size: 1.3rem; letter-spacing: -0.01em; margin: 0 0 .4rem; font-weight: 650 }
h3 { font-size: 1.02rem; margin: 1.8rem 0 .4rem; font-weight: 620; overflow-wrap: anywhere }
h4 { font-size: .9rem; margin: 0 0 .3rem; font-weight: 620; overflow-wrap: anywhere }
p { margin: .4rem 0 .8rem; max-width: 46rem }
header p, .muted, figcaption, footer { color: var(--soft) }
code { font: .88em ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--raised);
  padding: .1em .3em; border-radius: 4px; overflow-wrap: anywhere }
a { color: var(--accent); text-decoration: none }
a:hover { text-decoration: underline }
nav { position: sticky; top: 0; z-index: 2; background: var(--paper); border-bottom: 1px solid var(--rule);
  padding: .6rem max(1.5rem, calc((100vw - 76rem) / 2 + 1.5rem)); display: flex; gap: 1.3rem; overflow-x: auto;
  white-space: nowrap; font-size: .9rem; scrollbar-width: none }
section { padding: 2.2rem 0 .6rem }
section + section { border-top: 1px solid var(--rule); margin-top: 1.6rem }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: 1px; margin: 1.2rem 0 0;
  border: 1px solid var(--rule); border-radius: 10px; overflow: hidden }
.tiles > div { box-shadow: 0 0 0 1px var(--rule); padding: .85rem 1rem }
.tiles dt { font-size: .8rem; color: var(--soft) }
.tiles dd { margin: .1rem 0 0; font-size: 1.5rem; font-weight: 640; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; line-height: 1.25 }
.tiles p { margin: .15rem 0 0; font-size: .8rem; color: var(--soft); line-height: 1.35 }
.pm { color: var(--soft); font-size: .86em; font-weight: 400 }
.table { margin: .8rem 0 1.2rem }
.scroll { overflow-x: auto; border-top: 1px solid var(--ink); border-bottom: 1px solid var(--rule) }
.tall { max-height: 34rem }
.tall thead th { position: sticky; top: 0; background: var(--paper); box-shadow: 0 1px 0 var(--rule); z-index: 1 }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
table { border-collapse: collapse; width: 100%; font-size: .885rem; font-variant-numeric: tabular-nums lining-nums }
th, td { padding: .42rem .65rem; text-align: left; vertical-align: baseline }
th:first-child, td:first-child { padding-left: .15rem }
td { border-top: 1px solid var(--rule) }
td.n { text-align: right; white-space: nowrap }
td small { display: block; color: var(--soft); font-size: .78rem; line-height: 1.35; white-space: normal;
  max-width: 22rem }
td.n small { margin-left: auto; max-width: 11rem }
td:first-child { white-space: nowrap } td:first-child small { min-width: 12rem }
td.top { font-weight: 650 }
td.good { color: var(--good) } td.bad { color: var(--bad) } td.muted { color: var(--soft) }
tr.marked td { background: var(--mark) }
tbody tr:hover td { background: var(--raised) }
th { font-weight: 600; color: var(--soft); font-size: .8rem; white-space: nowrap; padding-top: .5rem;
  padding-bottom: .5rem }
th.n { text-align: right }
th.g { text-align: center; padding-bottom: 0; font-weight: 500 }
th.g::after { content: ""; display: block; height: 1px; background: var(--rule); margin-top: .3rem }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; margin: 0; cursor: pointer }
th button:hover { color: var(--ink) }
th button:focus-visible, input:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
th button::after, th.n button::before { content: "\\2195"; opacity: 0; display: inline-block; width: 1em;
  text-align: center }
th.n button::after { display: none }
th button:hover::after, th button:hover::before { opacity: .5 }
th[aria-sort=ascending] button::after, th[aria-sort=ascending] button::before { content: "\\2191"; opacity: 1 }
th[aria-sort=descending] button::after, th[aria-sort=descending] button::before { content: "\\2193"; opacity: 1 }
th[aria-sort=ascending], th[aria-sort=descending] { color: var(--ink) }
.tools { display: flex; align-items: baseline; gap: .9rem; margin-bottom: .5rem }
.tools input { font: inherit; font-size: .885rem; color: inherit; background: var(--raised); width: 15rem;
  max-width: 100%; border: 1px solid var(--rule); border-radius: 7px; padding: .3rem .6rem }
.tools output { font-size: .8rem; color: var(--soft); white-space: nowrap }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1.6rem 2rem;
  margin: 1rem 0 1.2rem }
.grid.one { grid-template-columns: minmax(0, 40rem) }
figure { margin: 0; min-width: 0 }
figure svg { display: block; width: 100%; height: auto; overflow: visible }
figure img { display: block; width: 100%; height: auto; border-radius: 8px; background: #fff }
figcaption { font-size: .82rem; line-height: 1.45; margin-top: .3rem }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; font-size: .85rem; margin: .6rem 0 }
.key span { display: inline-flex; align-items: center; gap: .4rem }
.key i { width: 1.1rem; height: 3px; border-radius: 2px }
.notes { list-style: none; margin: .8rem 0; padding: .7rem 1rem; border-radius: 8px; font-size: .885rem;
  background: var(--raised); border-left: 3px solid var(--rule); overflow-wrap: anywhere }
.notes.warn { background: var(--warn-paper); border-left-color: var(--warn) }
.notes li + li { margin-top: .3rem }
.verdict { font-size: 1.02rem; border-left: 3px solid var(--accent); padding: .2rem 0 .2rem 1rem; margin: .9rem 0 }
.verdict p { margin: .15rem 0 }
footer { font-size: .8rem; border-top: 1px solid var(--rule); margin-top: 2.5rem; padding-top: 1rem;
  padding-bottom: 2.5rem; overflow-wrap: anywhere }
@media (max-width: 40rem) {
  header, main, footer { padding-left: 1rem; padding-right: 1rem }
  header { padding-top: 1.6rem }
  nav { padding-left: 1rem; padding-right: 1rem }
  h1 { font-size: 1.5rem }
  .tiles { grid-template-columns: 1fr 1fr }
  .tiles dd { font-size: 1.2rem }
  th, td { padding-left: .55rem; padding-right: .55rem }
  td:first-child { white-space: normal; min-width: 8.5rem }
}
@media print {
  nav, .tools { display: none }
  .scroll { overflow: visible; max-height: none }
  section, figure, tr { break-inside: avoid }
}
"""

JS = """
"use strict";
for (const box of document.querySelectorAll(".table")) {
  const body = box.querySelector("tbody"), rows = [...body.rows];
  const heads = [...box.querySelectorAll("th[aria-sort]")];
  const key = (row, i, numeric) => {
    const cell = row.cells[i], value = cell.dataset.v ?? cell.textContent.trim();
    return numeric ? (value === "" || isNaN(value) ? null : Number(value)) : value.toLowerCase();
  };
  heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
    const numeric = head.classList.contains("n"), was = head.getAttribute("aria-sort");
    const down = was === "none" ? numeric : was === "ascending";
    heads.forEach(other => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = rows.map(row => [key(row, i, numeric), row]);
    order.sort(([a], [b]) => a === b ? 0 : a === null || a === "" ? 1 : b === null || b === "" ? -1
      : (numeric ? a - b : a.localeCompare(b, "en", {numeric: true})) * (down ? -1 : 1));
    body.append(...order.map(([, row]) => row));
  }));
  const field = box.querySelector("input"), count = box.querySelector("output");
  if (!field) continue;
  const filter = () => {
    const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
  };
  field.addEventListener("input", filter);
  filter();
}
"""
