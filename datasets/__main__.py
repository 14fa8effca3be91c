"""Built-in datasets: what there is, and making one before it is needed."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from offrl.data.recipes import ENVIRONMENTS, RECIPES
from offrl.datasets import builtin
from offrl.datasets.policies import load_policies
from offrl.errors import run_command

DESCRIPTION = """\
Built-in datasets: made once, by rollouts of policies that ship with offrl, and kept in the local Minari store
(MINARI_DATASETS_PATH, or ~/.minari/datasets). Training names one, and makes it if it is missing:

    python -m offrl.train algo=iql env=hopper dataset=medium-replay
    python -m offrl.data info builtin:hopper/medium-replay
"""

MAKE = """\
Make a dataset if the local Minari store lacks it, and print its id. It is the same on every run and for any number of
processes; a run that is interrupted leaves nothing behind.

    python -m offrl.datasets make hopper medium                     offrl/hopper/medium-v0
    python -m offrl.datasets make pendulum random --steps 5000      offrl/pendulum/random-5k-v0

recipes:
""" + "\n".join(f"  {name:20}{recipe.summary}" for name, recipe in RECIPES.items())


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2f}"


def show() -> None:
    """Print the environments with their policies, the recipes, and what is in the local store."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a pipe has no width to wrap at
    table = Table(title="Environments", title_justify="left")
    for heading in ("name", "environment", "steps", "medium", "expert", "reference", "in the local store"):
        table.add_column(heading, overflow="fold")
    for name, environment in ENVIRONMENTS.items():
        policies, reference = load_policies(name), builtin.reference(name)
        scores = ["not yet trained"] * 2
        if policies and reference:
            found = [policies.metadata["policies"][policy]["deterministic"]["mean"] for policy in ("medium", "expert")]
            scores = [f"{_rounded(mean)} ({reference.normalise(mean):.0f})" for mean in found]
        limits = f"{_rounded(reference.random)} to {_rounded(reference.expert)}" if reference else ""
        here = [identifier.removeprefix(f"offrl/{name}/") for identifier in builtin.made(name)]
        table.add_row(name, environment.env_id, f"{environment.steps:,}", *scores, limits, "\n".join(here) or "none")
    console.print(table)
    console.print("Scores: mean return without noise (normalised by the reference). Cards: datasets/cards.\n")
    table = Table(title="Recipes", title_justify="left")
    table.add_column("name")
    table.add_column("what acts")
    for name, recipe in RECIPES.items():
        table.add_row(name, recipe.summary)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m offrl.datasets", description=DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="environments, scores of their policies, recipes, datasets in the local store")
    make = commands.add_parser("make", help="make a dataset now", description=MAKE,
                               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    make.add_argument("env", metavar="ENV", help=", ".join(ENVIRONMENTS))
    make.add_argument("recipe", metavar="RECIPE", help="see below")
    make.add_argument("--steps", type=int, help="size in steps (default: see `list`); another size has another id")
    make.add_argument("--workers", type=int, help="simulator processes (default: one per core)")
    arguments = parser.parse_args()
    if arguments.command == "list":
        show()
    else:
        print(builtin.ensure(arguments.env, arguments.recipe, arguments.steps, arguments.workers))


if __name__ == "__main__":
    run_command(main)
