"""The help of `python -m offrl.train`: its choices, and the options of the algorithm that the user named."""

from __future__ import annotations

import dataclasses
import importlib.resources

from rich.console import Console
from rich.table import Table

import offrl.algorithm
from offrl.algorithm import Algorithm
from offrl.runs.configuration import GROUPS, choices, prepare_arguments

EXAMPLES = (
    ("algo=iql env=hopper", "a built-in dataset, and its simulator"),
    ("dataset=minari:D4RL/door/human-v2", "a published dataset"),
    ("dataset=file:log.h5 env=null", "your own log, without any simulator"),
    ("algo=td3_bc env=hopper seeds=4 algo.alpha=[1,2.5]", "8 members in one program"),
    ("-m algo=iql,td3_bc env=hopper seed=0,1", "one run after the other"),
)


def print_help(arguments: list[str], console: Console) -> None:
    """What can be chosen and what it means: the command, its groups, and the options of `algo=NAME`.

    Args:
        arguments: those beside `--help`.
    """
    folder = importlib.resources.files("offrl.configs")
    named = [argument for argument in arguments if argument.split("=")[0] in GROUPS]
    chosen = dict(argument.split("=", 1) for argument in prepare_arguments(named, "train"))
    protocol = chosen.get("protocol", "quick")
    algo = next((argument.partition("=")[2] for argument in named if argument.startswith("algo=")), "iql")
    algorithm = offrl.algorithm.load(algo)

    console.print("python -m offrl.train [KEY=VALUE]...   train a policy on a fixed dataset\n", style="bold")
    for example, meaning in EXAMPLES:
        console.print(f"  python -m offrl.train {example:<58} {meaning}", soft_wrap=True)
    console.print()
    table = Table("choice", "values", box=None, pad_edge=False)
    table.add_row("algo", ", ".join([*choices("algo"), "path/to/yours.py"]))
    table.add_row("env", ", ".join([*choices("env"), "null"]))
    table.add_row("protocol", ", ".join(choices("protocol")))
    console.print(table)
    console.print("\nRun", style="bold")
    _print_file((folder / "train.yaml").read_text().split("\nhydra:")[0], "dataset:", console)
    console.print(f"\nprotocol={protocol}   (protocol.updates=... and so on)", style="bold")
    _print_file((folder / "protocol" / f"{protocol}.yaml").read_text(), "updates:", console)
    console.print(f"\nalgo={algo}   {algorithm.summary}", style="bold", soft_wrap=True)
    console.print(_options(algorithm))
    console.print("\nNumbers may be lists, one member for each: algo.NAME=[1,2]. Hydra's own flags: --hydra-help.")


def _options(algorithm: Algorithm) -> Table:
    table = Table("option", "default", "meaning", box=None, pad_edge=False)
    for name, field in algorithm.options().items():
        default = field.default
        if dataclasses.is_dataclass(default):
            for inner in dataclasses.fields(default):
                table.add_row(f"algo.{name}.{inner.name}", str(getattr(default, inner.name)), inner.metadata["help"])
            continue
        allowed = f" ({', '.join(field.metadata['choices'])})" if field.metadata["choices"] else ""
        table.add_row(f"algo.{name}", str(default), field.metadata["help"] + allowed)
    return table


def _print_file(text: str, first: str, console: Console) -> None:
    """The text from the line on that begins with `first`."""
    console.print(text[text.index(f"\n{first}") + 1 :].rstrip(), soft_wrap=True)
