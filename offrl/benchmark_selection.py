"""How well do selectors select? `python -m offrl.benchmark_selection POOL...`"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from offrl.errors import UserError, run_command
from offrl.reporting.console import terminal
from offrl.reporting.selection_benchmark import as_json, show, write
from offrl.selection import benchmark, selectors
from offrl.selection.benchmark import REPLICATES, RESAMPLES


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m offrl.benchmark_selection",
        usage="%(prog)s POOL... [options]\n"
        "       %(prog)s --table FILE --return COLUMN --score NAME=COLUMN... [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="How well do selectors select? Score them on pools of policies whose returns are known.\n"
        "A POOL is a folder that offrl.select has written: its runs' returns are looked up, unless oracle.csv\n"
        "is next to its diagnostics.csv. Or DIAGNOSTICS.csv,ORACLE.csv: tidy tables, which may hold several\n"
        "datasets (each is a pool). Or any table with one row per policy.",
        epilog="""reported for each selector:
  regret@k   best return of the pool minus best of the k it puts first, as a share of the pool's range
  ρ, τ       rank correlation with returns: within run (which checkpoint?), within algorithm (which
             setting?), across algorithms (which algorithm?)
  safe@1     how often it is not below behaviour cloning    harm   how often below the last checkpoint
  EOP@B      best of the first B policies of its order, were they tried online (random pick: in any order)
  B*         how many online trials of random policies would do as well as its one choice
  s          seconds that the diagnostics it ranks by took for a pool, where the table has them

examples:
  python -m offrl.benchmark_selection runs/builtin-hopper-medium/selection runs/builtin-pendulum-medium/selection
  python -m offrl.benchmark_selection --table neorl_policies.csv --pool task --algorithm algorithm \\
      --setting config_id --seed-column seed --return online_return \\
      --score fqe=fqe_0,fqe_1,fqe_2 --score fqe_lcb=lcb:fqe_0,fqe_1,fqe_2 --output neorl
  python -m offrl.benchmark_selection POOL --selectors rank_mean,fqe_lcb,mine.py:my_selector --json""",
    )
    result.add_argument("pools", nargs="*", metavar="POOL", help="folder, or DIAGNOSTICS.csv,ORACLE.csv")
    table = result.add_argument_group("a plain table instead")
    table.add_argument("--table", type=Path, metavar="FILE", help="CSV, one row per policy")
    table.add_argument("--return", dest="returns", metavar="COLUMN", help="its online return")
    table.add_argument("--return-error", metavar="COLUMN", help="standard error of it")
    table.add_argument(
        "--score",
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="a score; NAME=-COLUMN: lower is better; NAME=A,B,C: their mean; NAME=lcb:A,B,C: mean minus standard "
        "deviation (also median:, min:, max:). Composite selectors use those named as a diagnostic (fqe_lcb, ...)",
    )
    table.add_argument("--pool", default="", metavar="COLUMNS", help="what identifies a pool, e.g. env,level")
    table.add_argument("--policy", default="", metavar="COLUMNS", help="what names a policy; default: its row")
    table.add_argument("--algorithm", default="", metavar="COLUMNS")
    table.add_argument("--setting", default="", metavar="COLUMNS", help="its hyper-parameters")
    table.add_argument("--seed-column", metavar="COLUMN", help="training seed")
    table.add_argument("--step", metavar="COLUMN", help="checkpoint, if there are several per run")
    result.add_argument(
        "--selectors", metavar="NAMES", help="default: all that the scores suffice for; file.py:function for your own"
    )
    result.add_argument("--baseline", metavar="NAME", help=f"compared with all others; default: {selectors.DEFAULT}")
    result.add_argument("--direction", action="append", default=[], metavar="DIAGNOSTIC=high|low")
    result.add_argument("--resamples", type=int, default=RESAMPLES, help="over pools (default: %(default)s)")
    result.add_argument("--within", type=int, default=REPLICATES, help="within each pool (default: %(default)s)")
    result.add_argument("--seed", type=int, default=0, help="of the resampling (default: %(default)s)")
    result.add_argument("--output", type=Path, metavar="FOLDER", help="write tables (CSV, JSON) and a picture there")
    result.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return result


def command(arguments: Sequence[str]) -> benchmark.Result:
    """The command line.

    Raises:
        UserError: files, columns, options or values that cannot be used.
    """
    options = parser().parse_args(arguments)
    messages = terminal(stderr=True)

    def warn(text: str) -> None:
        messages.print(f"warning: {text}", soft_wrap=True)

    if options.resamples < 1 or options.within < 1:
        raise UserError(f"--resamples {options.resamples} --within {options.within}: at least 1")
    if bool(options.pools) == bool(options.table):
        raise UserError("give either pools or --table FILE; --help shows examples")
    directions = {}
    for text in options.direction:
        name, _, direction = text.partition("=")
        if direction not in ("high", "low"):
            raise UserError(f"--direction {text}: write DIAGNOSTIC=high or DIAGNOSTIC=low")
        directions[name] = direction
    pools: list[benchmark.ScoredPool] = []
    if options.table:
        if not options.returns or not options.score:
            raise UserError("--table needs --return COLUMN and at least one --score NAME=COLUMN")
        scores = [benchmark.Score.parse(text) for text in options.score]
        if len({score.name for score in scores}) < len(scores):
            raise UserError("--score: two scores have the same name")
        directions |= {score.name: score.direction for score in scores}
        pools = benchmark.read_table(
            options.table,
            scores,
            options.returns,
            **{name: _columns(getattr(options, name)) for name in ("pool", "policy", "algorithm", "setting")},
            seed=options.seed_column,
            step=options.step,
            error=options.return_error,
            warn=warn,
        )
    for text in options.pools:
        diagnostics, comma, oracle = text.partition(",")
        if comma:
            pools += benchmark.read_pools(Path(diagnostics), Path(oracle), warn)
        else:
            beside = Path(text, "oracle.csv")
            pools += benchmark.read_pools(Path(text, "diagnostics.csv"), beside if beside.exists() else None, warn)
    names = options.selectors.split(",") if options.selectors else None
    sizes = {name: getattr(options, name) for name in ("resamples", "within", "seed")}
    result = benchmark.benchmark(pools, names, options.baseline, directions, **sizes)
    if options.output:
        write(result, options.output)
    if options.json:
        print(json.dumps(as_json(result), indent=1))
    else:
        show(result, terminal())
    return result


def _columns(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    run_command(lambda: command(sys.argv[1:]))


if __name__ == "__main__":
    main()
