"""python -m offrl.train: compose a run from options, train its members in one program, and show their scores."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from offrl import devices

devices.set_up()

import hydra
import pandas as pd
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.data.checks import check_environment
from offrl.data.preprocessing import preprocess
from offrl.datasets.loading import load
from offrl.errors import run_command
from offrl.learning.population import Population
from offrl.playing import simulators
from offrl.reporting import progress
from offrl.reporting.console import terminal
from offrl.reporting.training_help import print_help
from offrl.runs import configuration
from offrl.runs.description import describe, info_of
from offrl.runs.folder import alone_in, open_or_create
from offrl.runs.identity import identity, run_directory, take_published, unpacked
from offrl.runs.options import check_options, load_dataset
from offrl.runs.run import Run
from offrl.runs.tracking import Tracker
from offrl.runs.training import optimise


def train(config: dict[str, Any], chosen: set[str]) -> Run:
    """One run, from its configuration: trained to its end, or continued to it.

    Args:
        config: as Hydra composed it. chosen: keys that the user set, which published values do not replace.

    Raises:
        UserError: something in the configuration or the data is wrong.
    """
    check_options(config)
    algorithm = offrl.algorithm.load(config["algo"]["file"] or config["algo"]["name"])
    seeds = configuration.member_seeds(config["seed"], config["seeds"])
    configuration.member_configs(algorithm, config["algo"], seeds)  # reports wrong values before loading data
    dataset, env_id, env_kwargs = load_dataset(config, load)
    config["dataset"] = dataset.name
    spec = Spec.of(dataset, config["protocol"]["updates"])
    algorithm.check_spaces(spec, dataset.name)
    values, source = take_published(config, chosen)
    if values:
        print(f"published values for {dataset.name}: {values} ({source}); tuned=false keeps the defaults")
    warnings = list(dataset.warnings)
    if env_id is not None:
        warnings += check_environment(dataset, simulators.spaces(env_id, env_kwargs), env_id)

    members = configuration.member_configs(algorithm, config["algo"], seeds)
    configs = [member_config for member_config, _, _ in members]
    protocol = config["protocol"]
    train_split = dataset
    if protocol["validation_fraction"] > 0:
        train_split, _ = dataset.split(protocol["validation_fraction"], protocol["split_seed"])
    train_split = preprocess(train_split, algorithm.preprocessing(configs[0]))

    from_data = algorithm.from_data(train_split, configs[0])
    configs = [member_config.replace(**from_data) for member_config in configs]

    run_identity = identity(config, algorithm)
    path = run_directory(config, dataset.name, run_identity)
    described = describe(dataset, train_split, env_id, env_kwargs, warnings)
    info = info_of(config, algorithm, spec, members, run_identity, described, from_data)
    with alone_in(path):
        run = open_or_create(path, info, config)
        print(f"{algorithm.name} on {dataset.name}: {len(members)} member(s), {protocol['updates']} updates, in {path}")
        if not run.complete:
            tracker = Tracker(config["wandb"], config["wandb_project"], path, config, run.info)
            seeds = [seed for _, seed, _ in members]
            population = Population(algorithm, configs, seeds, spec, algorithm.prepare(train_split, configs[0]))
            optimise(run, population, tracker, partial(progress.training, terminal()))
            tracker.finish(*show_evaluation(run, protocol), partial(report_of, run))
        else:
            show_evaluation(run, protocol)
    return run


def show_evaluation(run: Run, protocol: dict[str, Any]) -> tuple[pd.DataFrame | None, Path | None]:
    """Score every checkpoint in the run's environment: returns the table and the picture, or prints why not."""
    if protocol["episodes"] == 0:
        return None, None
    if run.info["dataset"]["env_id"] is None:
        print("no environment to score the policy in (env.id=ID names one)")
        return None, None
    if all(run.last_checkpoint(member) is None for member in range(len(run.members))):
        print("no member has a checkpoint to score", file=sys.stderr)
        return None, None
    # imported here: drawing and simulators would delay the first update
    from offrl.playing.evaluation import evaluate_run
    from offrl.reporting.run_scores import summarize

    console = terminal(stderr=True)
    shown = partial(progress.evaluation, console)
    episodes, seed = protocol["episodes"], protocol["evaluation_seed"]
    table = evaluate_run(run.path, "all", episodes, seed, warn=console.print, progress=shown)
    return table, summarize(run.path, table)


def report_of(run: Run, page: Path) -> dict[str, Any]:
    """The run's report, written to `page`: its scores and pictures."""
    from offrl.reporting import report  # imported here: drawing would delay the first update

    return report.make([run.path], page)


@hydra.main(version_base="1.3", config_path="pkg://offrl.configs", config_name="train")
def compose_and_train(composed: DictConfig) -> None:
    whole = OmegaConf.merge({"hydra": HydraConfig.get()}, composed)
    assert isinstance(whole, DictConfig)
    run_command(lambda: train(*unpacked(whole)))


def main() -> None:
    def command() -> None:
        if any(argument in ("--help", "-h") for argument in sys.argv[1:]):
            arguments = [argument for argument in sys.argv[1:] if argument not in ("--help", "-h")]
            print_help(arguments, terminal())
            return
        sys.argv[1:] = configuration.prepare_arguments(sys.argv[1:], "train")
        compose_and_train()

    run_command(command)


if __name__ == "__main__":
    main()
