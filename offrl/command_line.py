"""How the commands that read runs parse their arguments: RUN... KEY=VALUE... --json."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from offrl.errors import UserError, nearest
from offrl.runs.trust import trust_runs

TRUST = {"trust": "true: execute code that run.json names (algorithm file, environment module); default: false"}


class Arguments(NamedTuple):
    paths: list[Path]
    options: dict[str, str]
    json: bool


def parse(
    arguments: Sequence[str],
    command: str,
    description: str,
    options: Mapping[str, str],
    examples: str,
    what: str = "RUN",
    meaning: str = "a run directory that offrl.train made",
    optional: bool = False,
) -> Arguments:
    """Paths, the options that were given (as text), and whether JSON is wanted. `--help` prints all of it.

    `trust=true`, which each of these commands accepts, takes effect here.

    Raises:
        UserError: an unknown option, or no path.
    """
    options = {**options, **TRUST}
    parser = argparse.ArgumentParser(
        prog=f"python -m offrl.{command}",
        usage=f"%(prog)s {what}... [KEY=VALUE]... [--json]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=description,
        epilog="options:\n"
        + "\n".join(f"  {name + '=':13}{text}" for name, text in options.items())
        + f"\n\nexamples:\n{examples}",
    )
    parser.add_argument("arguments", nargs="*" if optional else "+", metavar=what, help=meaning)
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of tables")
    parsed = parser.parse_intermixed_args(arguments)
    paths, given = [], {}
    for argument in parsed.arguments:
        name, equals, value = argument.partition("=")
        if not equals or "/" in name or Path(argument).exists():
            paths.append(Path(argument))
        elif name not in options:
            raise UserError(f"{argument}: no such option; {nearest(name, options)}")
        else:
            given[name] = value
    trust = given.pop("trust", "false")
    if trust not in ("true", "false"):
        raise UserError(f"trust={trust}: must be true or false")
    trust_runs(trust == "true")
    if not paths and not optional:
        raise UserError(f"no {what.lower()} given; name one or more: {meaning}")
    return Arguments(paths, given, parsed.json)


def whole_number(name: str, value: str, least: int = 1) -> int:
    """
    Raises:
        UserError: it is not a whole number, or below `least`.
    """
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise UserError(f"{name}={value}: must be a whole number, {least} or more")
    return number
