"""`python -m offrl.data`: what datasets there are, and what is in one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offrl.data import d4rl, minari
from offrl.data.card import card
from offrl.data.files import ALIASES
from offrl.data.recipes import ENVIRONMENTS, recipes_of
from offrl.data.sources import SOURCES
from offrl.datasets.loading import load
from offrl.errors import UserError, nearest, run_command
from offrl.reporting.console import terminal
from offrl.reporting.data_card import draw_card, print_card, print_names

NAMES = """\
names of datasets:
  builtin:hopper/medium              made here at first use, by policies that come with offrl
  minari:D4RL/door/human-v2          the local Minari store (MINARI_DATASETS_PATH), else Minari's server
  minari:hf://OWNER/D4RL/pen/human-v2   another server of Minari datasets
  d4rl:hopper-medium-v2              the original D4RL file, downloaded once into OFFRL_CACHE (~/.cache/offrl)
  d4rl:path/to/hopper_medium-v2.hdf5 the same from a file that you have
  file:path/to/log.h5                your own log: .hdf5 .h5 .npz .parquet .csv with one row per step
"""
EXAMPLES = """\
examples:
  python -m offrl.data info minari:D4RL/door/human-v2
  python -m offrl.data info file:log.csv --columns observations=s actions=torque,brake --env-id Pendulum-v1
  python -m offrl.data info d4rl:hopper-medium-v2 --json > hopper.json
  python -m offrl.data list hopper
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; a user's mistake is one line on stderr and exit status 2."""
    run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> None:
    options = _parser().parse_args(arguments)
    if options.command == "list":
        _list(options.words, options.json)
    else:
        _info(options)


def _parser() -> argparse.ArgumentParser:
    form: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(
        prog="python -m offrl.data", description=__doc__, epilog=f"{NAMES}\n{EXAMPLES}", **form
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{info,list}")
    info = commands.add_parser(
        "info",
        help="check a dataset and show its card",
        description="Load a dataset, check it, print its card and draw it to a PNG.",
        epilog=f"{NAMES}\n{EXAMPLES}",
        **form,
    )
    info.add_argument("name", metavar="NAME", help="the dataset, e.g. minari:D4RL/door/human-v2")
    info.add_argument("--json", action="store_true", help="print the card as JSON; draws only with --out")
    info.add_argument("--out", type=Path, metavar="PNG", help="where the picture goes (default: ./NAME.png)")
    info.add_argument("--env-id", metavar="ID", help="the Gymnasium environment, for logs that do not name one")
    info.add_argument("--clip-actions", action="store_true", help="clip actions outside the box, do not refuse them")
    info.add_argument(
        "--keep-terminations", action="store_true", help="leave terminations that mark a time limit as they are"
    )
    info.add_argument(
        "--trust-next-observations",
        action="store_true",
        help="keep next observations at episode ends also where they look like copies of the row before or after",
    )
    info.add_argument("--time-limit", type=int, metavar="STEPS", help="steps after which episodes are cut")
    info.add_argument("--steps", type=int, metavar="STEPS", help="size of a builtin: dataset made at first use")
    info.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="KEY=COLUMN[,COLUMN]",
        help=f"for file: which column is what; the keys are {', '.join(ALIASES)}; other keys name further columns",
    )
    listing = commands.add_parser(
        "list",
        help="names of datasets",
        description="Names of built-in, local Minari and D4RL datasets.",
        epilog=NAMES,
        **form,
    )
    listing.add_argument("words", nargs="*", metavar="WORD", help="show the names that contain every word")
    listing.add_argument("--json", action="store_true", help="print a JSON list of names")
    return parser


def _info(options: argparse.Namespace) -> None:
    dataset = load(
        options.name,
        env_id=options.env_id,
        clip_actions=options.clip_actions,
        keep_terminations=options.keep_terminations,
        trust_next_observations=options.trust_next_observations,
        time_limit=options.time_limit,
        columns=_columns(options.columns),
        steps=options.steps,
        quiet=True,  # the card shows them
    )
    facts = card(dataset)
    picture = options.out
    if picture is None and not options.json:
        slug = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in dataset.name)
        picture = Path(f"{slug.strip('-')}.png")
    if picture is not None and picture.suffix.lower() != ".png":
        raise UserError(f"--out {picture}: the picture is a PNG; give a name that ends in .png")
    if picture is not None:
        draw_card(dataset, picture)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print_card(facts, terminal())
    if picture is not None:
        print(f"picture: {picture}", file=sys.stderr if options.json else sys.stdout)


def _columns(pairs: Sequence[str]) -> dict[str, str | list[str]] | None:
    columns: dict[str, str | list[str]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not value:
            raise UserError(f"--columns {pair!r}: write KEY=COLUMN, e.g. observations=s; {nearest(key, ALIASES)}")
        columns[key] = value.split(",") if "," in value else value
    return columns or None


def _list(words: Sequence[str], as_json: bool) -> None:
    rows: list[tuple[str, str]] = [(f"builtin:{name}", "") for name in _builtin_names()]
    rows += [(f"minari:{name}", "in the local store") for name in minari.local_ids()]
    rows += [(f"d4rl:{name}", "downloaded" if d4rl.cached_path(name).exists() else "") for name in d4rl.entries()]
    rows = [row for row in rows if all(word in row[0] for word in words)]
    if not rows:
        raise UserError(f"no dataset name contains {' and '.join(words)}; sources are {', '.join(SOURCES)}")
    if as_json:
        print(json.dumps([name for name, _ in rows], indent=2))
        return
    print_names(rows, terminal())
    print("file:PATH reads your own log; `python -m offrl.data info NAME` shows a dataset's card")


def _builtin_names() -> list[str]:
    return [f"{environment}/{recipe}" for environment in ENVIRONMENTS for recipe in recipes_of(environment)]


if __name__ == "__main__":
    main()
