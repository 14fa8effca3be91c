"""Does an algorithm file keep the contract? `python -m offrl.check algo=path/to/new.py`"""

from __future__ import annotations

import sys

import offrl.algorithm
from offrl.algorithm import described
from offrl.errors import UserError, run_command
from offrl.learning import contract

USAGE = "usage: python -m offrl.check algo=NAME|path/to/new.py"


def command() -> None:
    arguments = sys.argv[1:]
    if any(argument in ("-h", "--help") for argument in arguments):
        print(f"{USAGE}\n\n{contract.__doc__}")
        return
    if len(arguments) != 1 or not arguments[0].removeprefix("algo="):
        raise UserError(USAGE)
    algorithm = offrl.algorithm.load(arguments[0].removeprefix("algo="))
    found = contract.problems(algorithm)
    for problem in found:
        print(problem)
    if found:
        sys.exit(1)
    phases = ", ".join(phase.name for phase in algorithm.phases(contract.small_config(algorithm)))
    spaces = described(algorithm.supports)
    print(f"{algorithm.name} keeps the contract ({len(algorithm.options())} options; phases: {phases}; with {spaces})")


def main() -> None:
    run_command(command)


if __name__ == "__main__":
    main()
