"""python -m offrl.train: compose a run from choices, train its members in one program, and show what they achieved."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offrl import devices

devices.set_up()

import filelock
import hydra
import jax
import numpy as np
import pandas as pd
import rich.progress
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import offrl
import offrl.algorithm
import offrl.data
from offrl.algorithm import Phase, Spec
from offrl.data.checks import check_environment
from offrl.data.dataset import Dataset
from offrl.data.preprocessing import preprocess
from offrl.datasets.recipes import RECIPES
from offrl.errors import UserError, run_command, writing
from offrl.learning.population import NEVER, Population
from offrl.playing import simulators
from offrl.runs import configuration
from offrl.runs.run import METRIC_COLUMNS, Run, write_whole
from offrl.runs.tracking import Tracker, check_mode

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gymnasium", "mujoco", "minari", "numpy")
# what a run may be continued with: none of it changes the numbers that training makes
NOT_IDENTITY = ("runs", "run_dir", "resume", "wandb", "wandb_project")
LOCK = ".lock"  # in the folder of a run, held while it is trained


def load_dataset(config: dict[str, Any]) -> tuple[Dataset, str | None, dict[str, Any]]:
    """The dataset that the configuration names, its environment's id (None: no simulator), and that one's kwargs."""
    env, name = config.get("env"), config["dataset"]
    name = name or (env or {}).get("dataset")
    if name is None:
        raise UserError(
            "dataset=null: nothing to train on; give env=hopper, or dataset=minari:ID, d4rl:NAME, file:PATH"
        )
    environments = [item for item in configuration.choices("env") if item != "from_dataset"]
    short = config["env_name"]
    # the name of a recipe is that also where a file happens to be called so
    if ":" not in name and ((short in environments and name in RECIPES) or not Path(name).exists()):
        if short not in environments:
            raise UserError(
                f"dataset={name}: no such file, and a short name needs a built-in env={'|'.join(environments)}; "
                f"other datasets are builtin:ENV/NAME, minari:ID, d4rl:NAME, file:PATH"
            )
        name = f"builtin:{short}/{name}"
    data = config["data"]
    # the environment, where one is named, knows what a log does not say: its action box and its time limit
    named = {"env_id": env["id"], "env_kwargs": env["kwargs"]} if env and env["id"] else {}
    dataset = offrl.data.load(
        name, steps=data["steps"], columns=data["columns"] or None, clip_actions=data["clip_actions"], **named
    )
    if env is None:
        return dataset, None, {}
    return dataset, dataset.env_id, dataset.env_kwargs


def take_published(config: dict[str, Any], chosen: set[str]) -> tuple[dict[str, Any], str]:
    """Put what was published for the dataset in the place of defaults the user left: those values, their source."""
    if not config["tuned"]:
        return {}, ""
    values, source = configuration.tuned_values(config["algo"]["name"], config["dataset"])
    for key, value in values.items():
        if f"algo.{key}" in chosen:
            continue
        node = config["algo"]
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    return values, source


@functools.cache
def identity_of(*arguments: str) -> dict[str, Any]:
    """The identity of the run that offrl.train makes of these arguments, which name the dataset in full."""
    prepared = configuration.prepare_arguments(list(arguments), "train")
    with hydra.initialize_config_module("offrl.configs", version_base="1.3"):
        config, chosen = unpacked(hydra.compose("train", prepared, return_hydra_config=True))
    take_published(config, chosen)
    algorithm = offrl.algorithm.load(config["algo"]["file"] or config["algo"]["name"])
    return json.loads(json.dumps(identity(config, algorithm)))


def identity(config: dict[str, Any], algorithm: offrl.algorithm.Algorithm) -> dict[str, Any]:
    """What decides the numbers of a run: two runs alike in it are the same run."""
    kept = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    kept["protocol"] = {
        key: value for key, value in kept["protocol"].items() if key not in ("name", "episodes", "evaluation_seed")
    }
    if kept["algo"]["file"]:
        kept["algo"] = {**kept["algo"], "file": hashlib.sha256(algorithm.file.read_bytes()).hexdigest()}
    return kept


def run_directory(config: dict[str, Any], dataset: str, run_identity: dict[str, Any]) -> Path:
    if config["run_dir"]:
        return Path(config["run_dir"]).expanduser()
    source, _, rest = dataset.partition(":")
    slug = "-".join([source, *(Path(rest).stem if source == "file" else rest).split("/")])
    digest = hashlib.sha256(json.dumps(run_identity, sort_keys=True).encode()).hexdigest()[:8]
    return Path(config["runs"]).expanduser() / slug / f"{config['algo']['name']}-{digest}"


def schedule(phases: tuple[Phase, ...], protocol: dict[str, Any]) -> list[tuple[Phase, int, int, bool]]:
    """(phase, first step, updates, checkpoint after it?) of every stretch between two reports, over the whole run."""
    stretches, start = [], 0
    for phase in phases:
        end = start + phase.length(protocol["updates"])
        step = start
        while step < end:
            stop = min(
                end,
                (step // protocol["log_every"] + 1) * protocol["log_every"],
                (step // protocol["checkpoint_every"] + 1) * protocol["checkpoint_every"],
            )
            stretches.append((phase, step, stop - step, stop % protocol["checkpoint_every"] == 0 or stop == end))
            step = stop
        start = end
    return stretches


def check_options(config: dict[str, Any]) -> None:
    """Refuses values of the wrong kind among the options outside `algo`, before anything is loaded."""
    data, env, protocol = config["data"], config.get("env") or {}, config["protocol"]
    minimum = {
        "updates": 1,
        "checkpoint_every": 1,
        "log_every": 1,
        "episodes": 0,
        "evaluation_seed": 0,
        "split_seed": 0,
    }
    for name, least in minimum.items():
        if type(protocol[name]) is not int or protocol[name] < least:
            raise UserError(f"protocol.{name}={protocol[name]}: must be a whole number, {least} or more")
    fraction = protocol["validation_fraction"]
    if type(fraction) not in (int, float) or not 0 <= fraction < 1:
        raise UserError(f"protocol.validation_fraction={fraction}: must be from 0 to below 1")
    for name in ("resume", "tuned", "data.clip_actions"):
        value = data["clip_actions"] if name.startswith("data.") else config[name]
        if not isinstance(value, bool):
            raise UserError(f"{name}={value}: must be true or false")
    texts = {name: config[name] for name in ("runs", "wandb_project")}
    optional = {"dataset": config["dataset"], "run_dir": config["run_dir"], "env.id": env.get("id")}
    texts |= {name: value for name, value in optional.items() if value is not None}
    for name, value in texts.items():
        if not isinstance(value, str) or not value:
            raise UserError(f"{name}={value}: must be text")
    if data["steps"] is not None and (type(data["steps"]) is not int or data["steps"] < 1):
        raise UserError(f"data.steps={data['steps']}: must be a whole number, 1 or more, or null")
    for name, value in {"data.columns": data["columns"], "env.kwargs": env.get("kwargs", {})}.items():
        if not isinstance(value, dict):
            raise UserError(f"{name}={value}: must be a mapping, such as {name}.NAME=VALUE makes")
    check_mode(config["wandb"])


def describe(
    dataset: Dataset, train: Dataset, env_id: str | None, env_kwargs: dict[str, Any], warnings: list[str]
) -> dict[str, Any]:
    """What a run keeps of its data, JSON-able."""
    reference = dataset.reference
    return {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "episodes": dataset.episodes,
        "steps": dataset.steps,
        "train_episodes": train.episodes,
        "env_id": env_id,
        "env_kwargs": env_kwargs,
        "time_limit": dataset.time_limit,
        "reference": None
        if reference is None
        else {"random": reference.random, "expert": reference.expert, "source": reference.source},
        "action_low": dataset.action_low.tolist(),
        "action_high": dataset.action_high.tolist(),
        "transforms": list(train.transforms),
        "returns": {
            "mean": float(dataset.returns.mean()),
            "min": float(dataset.returns.min()),
            "max": float(dataset.returns.max()),
        },
        "warnings": warnings,
    }


@contextmanager
def progress_bar(total: int, done: int) -> Iterator[Any]:
    """A function (step, updates per second, losses) that shows how far training is: a bar on a terminal, else lines."""
    started, first = time.monotonic(), done
    if sys.stdout.isatty():
        columns = [
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[losses]}"),
        ]
        with rich.progress.Progress(*columns) as bar:
            task = bar.add_task("training", total=total, completed=done, losses="compiling")

            def show(phase: str, step: int, rate: float, losses: dict[str, float]) -> None:
                text = f"{rate:.0f} updates/s  " + "  ".join(f"{name} {value:.3g}" for name, value in losses.items())
                bar.update(task, description=phase, completed=step, losses=text)

            yield show
    else:

        def line(phase: str, step: int, rate: float, losses: dict[str, float]) -> None:
            left = (total - step) * (time.monotonic() - started) / max(step - first, 1)
            text = "  ".join(f"{name} {value:.4g}" for name, value in losses.items())
            print(f"{phase} {step}/{total}  {rate:.0f} updates/s  {left:.0f} s left  {text}", flush=True)

        yield line


def train(config: dict[str, Any], chosen: set[str]) -> Run:
    """One run, from its configuration: trained to its end, or continued to it.

    Args:
        config: as Hydra composed it. chosen: the keys that the user set, which published values do not replace.

    Raises:
        UserError: something in the configuration or the data is wrong.
    """
    check_options(config)
    algorithm = offrl.algorithm.load(config["algo"]["file"] or config["algo"]["name"])
    seeds = configuration.member_seeds(config["seed"], config["seeds"])
    configuration.member_configs(algorithm, config["algo"], seeds)  # a wrong value is told before the data are made
    dataset, env_id, env_kwargs = load_dataset(config)
    config["dataset"] = dataset.name
    spec = Spec.of(dataset, config["protocol"]["updates"])
    algorithm.check_spaces(spec, dataset.name)
    values, source = take_published(config, chosen)
    if values:
        print(f"published values for {dataset.name}: {values} ({source}); tuned=false leaves the defaults")
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

    run_identity = identity(config, algorithm)
    path = run_directory(config, dataset.name, run_identity)
    info = {
        "offrl": offrl.__version__,
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "algorithm": {"name": algorithm.name, "file": config["algo"]["file"], "options": config["algo"]},
        "spec": spec._asdict(),
        "phases": [
            {"name": phase.name, "updates": phase.length(protocol["updates"])} for phase in algorithm.phases(configs[0])
        ],
        "protocol": protocol,
        "identity": run_identity,
        "dataset": describe(dataset, train_split, env_id, env_kwargs, warnings),
        "members": [
            {"member": i, "seed": seed, "values": values, "diverged_at": None}
            for i, (_, seed, values) in enumerate(members)
        ],
        "finished": False,
    }
    with alone_in(path):
        run = open_or_create(path, info, config)
        print(f"{algorithm.name} on {dataset.name}: {len(members)} member(s), {protocol['updates']} updates, in {path}")
        if not run.complete:
            tracker = Tracker(config["wandb"], config["wandb_project"], path, config, run.info)
            seeds = [seed for _, seed, _ in members]
            population = Population(algorithm, configs, seeds, spec, algorithm.prepare(train_split, configs[0]))
            optimise(run, population, tracker)
            tracker.finish(*show_evaluation(run, protocol))
        else:
            show_evaluation(run, protocol)
    return run


def show_evaluation(run: Run, protocol: dict[str, Any]) -> tuple[pd.DataFrame | None, Path | None]:
    """Score every checkpoint in the run's environment: the table and the picture, or why there are none."""
    if protocol["episodes"] == 0:
        return None, None
    if run.info["dataset"]["env_id"] is None:
        print("no environment: nothing to score the policy in (env=ID names one)")
        return None, None
    if all(run.last_checkpoint(member) is None for member in range(len(run.members))):
        print("no member has a checkpoint to score", file=sys.stderr)
        return None, None
    # here: drawing and simulators would delay the first update
    from offrl.playing.evaluation import evaluate_run
    from offrl.reporting.run_scores import summarize

    table = evaluate_run(run.path, "all", protocol["episodes"], protocol["evaluation_seed"])
    return table, summarize(run.path, table)


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The dotted keys in which two nested dicts differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{prefix}{key}.")]
    return [] if old == new else [f"{prefix[:-1]} was {old}, is {new}"]


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Makes the folder of a run, and keeps other processes out of it while it is trained.

    Raises:
        UserError: it holds other files than a run's, which are left alone, or another process trains there.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"run_dir={path}: is a file; choose an empty or a new folder")
    if path.is_dir() and any(path.iterdir()) and not is_run(path):
        raise UserError(f"run_dir={path}: holds files that are not of a run; choose an empty or a new folder")
    path.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(path / LOCK, blocking=False):
            yield
    except filelock.Timeout:
        raise UserError(
            f"{path}: another process is training in it; wait for that one, or choose another run_dir"
        ) from None


def is_run(path: Path) -> bool:
    """Whether that folder holds a run, whole or damaged, or what is left of one that was killed as it began."""
    if {file.name for file in path.iterdir()} <= {LOCK, "metrics.csv.part"}:
        return True
    try:
        Run.open(path)
        return True
    except UserError:
        file = path / "metrics.csv"
        return file.is_file() and file.read_bytes().startswith(",".join(METRIC_COLUMNS).encode())


def open_or_create(path: Path, info: dict[str, Any], config: dict[str, Any]) -> Run:
    """The run in `path`, to be continued, or a new one there."""
    if config["resume"] and (path / "run.json").exists():
        run = Run.open(path)
        old, new = run.info["identity"], json.loads(json.dumps(info["identity"]))
        if old != new:
            raise UserError(
                f"run_dir={path}: holds another run ({'; '.join(differences(old, new)[:3])}); "
                f"choose another run_dir, or resume=false to replace it"
            )
        old_print, new_print = run.info["dataset"]["fingerprint"], info["dataset"]["fingerprint"]
        if old_print != new_print:
            raise UserError(
                f"{path}: was trained on {info['dataset']['name']} with fingerprint {old_print}, which now has "
                f"{new_print}: the data changed; resume=false begins again"
            )
        return run
    for part in ("checkpoints", "oracle"):
        shutil.rmtree(path / part, ignore_errors=True)
    write_whole(path / "metrics.csv", ",".join(METRIC_COLUMNS) + "\n")
    write_whole(path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    run = Run(path, info)
    run.write_info()
    return run


def cut_metrics(file: Path, last_step: int) -> float:
    """Leave the table's rows up to that step, to the letter; returns the seconds that training took until then.

    Raises:
        UserError: there is no such table, or it is damaged.
    """
    try:
        header, *lines = file.read_text().splitlines(keepends=True)
        rows = [line.split(",") for line in lines]
        # a kill may have left a part of a row, of a step after the last checkpoint
        whole = [row for row in rows if len(row) == len(METRIC_COLUMNS) and row[-1].endswith("\n")]
        kept = [row for row in whole if int(row[METRIC_COLUMNS.index("step")]) <= last_step]
        seconds = float(kept[-1][METRIC_COLUMNS.index("seconds")]) if kept else 0.0
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: missing or damaged ({error}); train again with resume=false") from error
    write_whole(file, header + "".join(",".join(row) for row in kept))
    return seconds


def optimise(run: Run, population: Population, tracker: Tracker) -> None:
    """Train from the last checkpoint, or from the start, to the end of the run's schedule."""
    stretches = schedule(population.phases, run.info["protocol"])
    total = stretches[-1][1] + stretches[-1][2]
    resumed_at = 0
    if run.checkpoints():
        resumed_at = run.checkpoints()[-1]
        population.restore(run.checkpoint_store.restore(resumed_at, run.saved_like()))
        print(f"continuing from step {resumed_at}")
    for member, diverged_at in zip(run.members, np.asarray(population.diverged_at), strict=False):
        member["diverged_at"] = None if diverged_at == NEVER else int(diverged_at)
    seconds_before = cut_metrics(run.path / "metrics.csv", resumed_at)

    started = last = time.monotonic()
    phase_begun = None
    with progress_bar(total, resumed_at) as show, (run.path / "metrics.csv").open("a", newline="") as table:
        for phase, first, count, is_checkpoint in stretches:
            if first < resumed_at:
                phase_begun = phase.name
                continue
            if phase.name != phase_begun:
                population.begin(phase, first)
                phase_begun = phase.name
            values = population.train(phase, first, count)
            step = first + count
            now = time.monotonic()
            report_divergence(run, population)
            rows = [
                (phase.name, step, i, member["seed"], name, array[i], round(seconds_before + now - started, 3))
                for i, member in enumerate(run.members)
                for name, array in values.items()
                if np.isfinite(array[i])
            ]
            with writing(run.path / "metrics.csv"):
                pd.DataFrame(rows, columns=METRIC_COLUMNS).to_csv(table, header=False, index=False)
                table.flush()
            tracker.log(step, {f"member{row[2]}/{row[4]}": float(row[5]) for row in rows})
            healthy = [i for i, member in enumerate(run.members) if member["diverged_at"] is None]
            losses = {
                name: float(array[healthy].mean()) for name, array in values.items() if "loss" in name and healthy
            }
            show(phase.name, step, count / max(now - last, 1e-9), losses)
            last = now
            if is_checkpoint:
                run.checkpoint_store.save(step, population.save())
            if not healthy:
                print("every member has diverged: training stops here", file=sys.stderr)
                break
    run.checkpoint_store.finish()
    run.info["finished"] = True
    run.write_info()


def report_divergence(run: Run, population: Population) -> None:
    """Write down and report the members that diverged in the last stretch."""
    for member, diverged_at in zip(run.members, np.asarray(population.diverged_at), strict=False):
        if diverged_at != NEVER and member["diverged_at"] is None:
            member["diverged_at"] = int(diverged_at)
            print(
                f"warning: member {member['member']} (seed {member['seed']}) diverged: a metric was not finite at step "
                f"{diverged_at}; it is stopped there",
                file=sys.stderr,
            )
            run.write_info()


def unpacked(composed: DictConfig) -> tuple[dict[str, Any], set[str]]:
    """What Hydra composed, its own part (`hydra`) with it: (the configuration, the keys that the user set)."""
    own = composed.hydra
    config: dict[str, Any] = OmegaConf.to_container(  # type: ignore[assignment]
        OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]), resolve=True
    )
    config["env_name"] = own.runtime.choices.get("env")
    return config, {str(override).partition("=")[0].lstrip("+") for override in own.overrides.task}


@hydra.main(version_base="1.3", config_path="pkg://offrl.configs", config_name="train")
def compose_and_train(composed: DictConfig) -> None:
    whole = OmegaConf.merge({"hydra": HydraConfig.get()}, composed)
    assert isinstance(whole, DictConfig)
    run_command(lambda: train(*unpacked(whole)))


def main() -> None:
    def command() -> None:
        if any(argument in ("--help", "-h") for argument in sys.argv[1:]):
            arguments = [argument for argument in sys.argv[1:] if argument not in ("--help", "-h")]
            configuration.print_help("train", arguments)
            return
        sys.argv[1:] = configuration.prepare_arguments(sys.argv[1:], "train")
        compose_and_train()

    run_command(command)


if __name__ == "__main__":
    main()
