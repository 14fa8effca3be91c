"""Score the policies of a run in its environment: `python -m offrl.evaluate RUN...`, or `evaluate_run`.

Nothing else writes RUN/oracle/returns.csv, and nothing that trains or selects reads it. Every policy
plays exactly N episodes, from the reset seeds `seed`, `seed + 1`, ...: the same for all policies, each to its end.
One row is kept for every episode, and an episode that has its row is not played again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import offrl
from offrl import command_line, devices
from offrl.data.dataset import Reference
from offrl.data.transforms import actions_from_unit_box, observation_statistics
from offrl.errors import UserError, run_command
from offrl.learning.population import stack
from offrl.playing.memory import RememberingPolicies
from offrl.playing.simulators import Simulators
from offrl.reporting.figures import draw_run
from offrl.runs.run import Run, write_whole
from offrl.statistics import episode_error, member_spread, standard_error

DTYPES = {
    "algorithm": str,
    "dataset": str,
    "fingerprint": str,
    "env": str,
    "member": np.int64,
    "seed": np.int64,
    "step": np.int64,
    "episode": np.int64,
    "reset_seed": np.int64,
    "return": np.float64,
    "length": np.int64,
    "success": np.float64,
    "normalized_score": np.float64,
    "reference_random": np.float64,
    "reference_expert": np.float64,
    "protocol": str,
    "version": str,
}
"""Columns of the oracle table. `success` is 1 or 0, empty where the environment reports none; `return` is empty where
the policy's action was not finite; score and references are empty where no references are known."""
KEY = ["env", "step", "member", "episode", "reset_seed"]
EPISODES_AT_ONCE = 32
SIMULATORS_AT_ONCE = 128
MAX_POLICY_ROWS = 24
"""Of the printed table; beyond it, means over members alone."""

Act = Callable[[np.ndarray], np.ndarray]


class Episodes(NamedTuple):
    """What was played, [members, episodes]; nan and 0 where nothing was."""

    returns: np.ndarray
    """Undiscounted; nan where the policy's action was not finite."""
    lengths: np.ndarray
    successes: np.ndarray
    """1 if info["success"] was true at any step, 0 if at none, nan where the environment does not report it."""


def evaluate_policies(
    act: Act, simulators: Simulators, seeds: np.ndarray, wanted: np.ndarray, slots: int = EPISODES_AT_ONCE
) -> Episodes:
    """Play the wanted episodes, each exactly once and to its end.

    Episode e always has place e modulo `slots` in a batch of one size. So what it comes to does not depend, not even
    in the last bit of a matrix product, on which others are played beside it or on how many workers there are.

    Args:
        act: observations [members, slots, observation_dim] -> actions [members, slots, action_dim] in the
            environment's units; called once per step. Policies with memory also learn the rewards.
        seeds: reset seed of each episode, [episodes].
        wanted: which to play, bool [members, episodes]; `simulators` must hold as many as are wanted of any `slots`.
    """
    members, episodes = wanted.shape
    result = Episodes(np.full(wanted.shape, np.nan), np.zeros(wanted.shape, np.int64), np.full(wanted.shape, np.nan))
    observations = np.zeros((members, slots, simulators.spaces.observation_dim), np.float32)
    rewards = np.zeros((members, slots))
    for first in range(0, episodes, slots):
        member, slot = np.nonzero(wanted[:, first : first + slots])
        count = len(member)
        if not count:
            continue
        returns, lengths = np.zeros(count), np.zeros(count, np.int64)
        simulators.reset(seeds[first + slot])
        if isinstance(act, RememberingPolicies):
            act.begin(slots)
        while simulators.active.any():
            observations[member, slot] = simulators.observations[:count]
            actions = act(observations)[member, slot]
            active = simulators.active[:count]
            broken = active & ~np.isfinite(actions).all(1)
            returns[broken] = np.nan
            simulators.stop(np.flatnonzero(broken))
            lengths += active
            simulators.step(actions)
            returns += simulators.rewards[:count]
            if isinstance(act, RememberingPolicies):
                rewards[member, slot] = simulators.rewards[:count]
                act.observe(rewards)
        result.returns[member, first + slot] = returns
        result.lengths[member, first + slot] = lengths
        result.successes[member, first + slot] = simulators.successes[:count]
    return result


class Request(NamedTuple):
    """Which rows of the oracle table are asked for."""

    env: str
    episodes: int
    seed: int
    """Reset seed of episode 0; the others count up from it."""
    plan: dict[int, list[int]]
    """The members to score at each step."""

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Those of them that the table has, by step, member, episode."""
        pairs = [(step, member) for step, members in self.plan.items() for member in members]
        table = table[(table["env"] == self.env) & (table["episode"] < self.episodes)]
        table = table[table["reset_seed"] == self.seed + table["episode"]]
        return table.merge(pd.DataFrame(pairs, columns=["step", "member"])).sort_values(KEY, ignore_index=True)

    def missing(self, table: pd.DataFrame, members: int, slots: int) -> list[tuple[int, np.ndarray]]:
        """What is left to play: (step, bool [members, episodes]), in parts of at most `slots` episodes per member."""
        present = self.rows(table)
        parts = []
        for step, scored in self.plan.items():
            wanted = np.zeros((members, self.episodes), bool)
            wanted[scored] = True
            at_step = present[present["step"] == step]
            wanted[at_step["member"], at_step["episode"]] = False
            for first in range(0, self.episodes, slots):
                part = np.zeros_like(wanted)
                part[:, first : first + slots] = wanted[:, first : first + slots]
                if part.any():
                    parts.append((step, part))
        return parts


def evaluate_run(
    run_path: str | Path,
    checkpoints: str | Sequence[int] = "last",
    episodes: int | None = None,
    seed: int | None = None,
    *,
    env: str | None = None,
    workers: int | None = None,
    console: Console | None = None,
) -> pd.DataFrame:
    """Score checkpoints of a run; what the oracle table holds already is not played again.

    Args:
        checkpoints: "last" (the last healthy one of every member), "all" (the pool), or steps.
        episodes, seed: exactly so many episodes of every policy, from reset seeds seed, seed + 1, ...; by default
            as the run's protocol says.
        env: another environment than the one of the run's dataset; its scores are not normalised.
        workers: simulator processes; by default one per core.
        console: where progress goes; by default standard error.

    Returns:
        The rows of the oracle table that were asked for, by step, member, episode.

    Raises:
        UserError: no such run, checkpoint or environment, or one whose sizes differ from the data's.
        SimulatorError: the environment failed. What was finished before is kept.
    """
    run = Run.open(run_path)
    console = console or Console(stderr=True)
    protocol, dataset = run.info["protocol"], run.info["dataset"]
    env = env or dataset["env_id"]
    if env is None:
        raise UserError(f"{run.path}: this run has no environment (env=null); name one with env=ID, e.g. env=Hopper-v5")
    request = Request(
        env=env,
        episodes=protocol["episodes"] if episodes is None else episodes,
        seed=protocol["evaluation_seed"] if seed is None else seed,
        plan=plan_checkpoints(run, checkpoints, console),
    )
    if request.episodes < 1 or request.seed < 0:
        raise UserError(f"episodes={request.episodes} seed={request.seed}: at least 1 episode, and a seed of 0 or more")

    slots = max(1, min(EPISODES_AT_ONCE, SIMULATORS_AT_ONCE // len(run.members)))
    parts = request.missing(read_returns(run), len(run.members), slots)
    if parts:
        env_kwargs = dataset["env_kwargs"] if request.env == dataset["env_id"] else {}
        counts = [int(part.sum()) for _, part in parts]
        simulators = Simulators(request.env, env_kwargs, max(counts), workers)
        check_spaces(run, simulators, console)
        remembering = None if run.policy.memory is None else RememberingPolicies(run, simulators.spaces)
        act = deployed_policies(run, simulators)
        seeds = request.seed + np.arange(request.episodes)
        restored: int | None = None
        with simulators, _progress(console, sum(counts)) as played:
            for (step, part), count in zip(parts, counts, strict=True):
                if step != restored:
                    states, restored = jax.device_put(run.restore(step)), step
                if remembering is not None:
                    remembering.states = states
                played_by = remembering or partial(act, states)
                result = evaluate_policies(played_by, simulators, seeds, part, slots)
                # kept as soon as it is finished
                write_returns(run, oracle_rows(run, request, step, part, result))
                played(step, count, int(result.lengths.sum()))
    return request.rows(read_returns(run))


def plan_checkpoints(run: Run, checkpoints: str | Sequence[int], console: Console) -> dict[int, list[int]]:
    """The members to score at each step; a member is left out once it has diverged.

    Raises:
        UserError: the run has no checkpoint at one of the steps, or no healthy one at all.
    """
    steps = run.checkpoints()
    last = {number: run.last_checkpoint(number) for number in range(len(run.members))}
    plan: dict[int, list[int]] = {}
    if checkpoints == "last":
        for number, step in last.items():
            if step is not None:
                plan.setdefault(step, []).append(number)
    else:
        for step in run.policy_checkpoints() if checkpoints == "all" else map(int, checkpoints):
            if step not in steps:
                raise UserError(f"{run.path}: no checkpoint at step {step}; there are {', '.join(map(str, steps))}")
            healthy = [number for number, final in last.items() if final is not None and step <= final]
            if healthy:
                plan[step] = healthy
    if not plan:
        raise UserError(
            f"{run.path}: no checkpoint of a healthy member to score; train it first, or look at its metrics"
        )
    for member in run.members:
        if member["diverged_at"] is not None:
            number = member["member"]
            until = "not scored" if last[number] is None else f"scored up to step {last[number]}"
            console.print(f"member {number} diverged at step {member['diverged_at']}: {until}")
    return dict(sorted(plan.items()))


def check_spaces(run: Run, simulators: Simulators, console: Console) -> None:
    """Refuse an environment whose sizes are not those of the data; tell of another action box."""
    dataset, spaces = run.info["dataset"], simulators.spaces
    for what, size, found in (
        ("observations", run.spec.observation_dim, spaces.observation_dim),
        ("actions", run.spec.action_dim, len(spaces.action_low)),
    ):
        if size != found:
            raise UserError(
                f"env={simulators.env_id}: {what} of size {found}, but the policies of {run.path} were trained on "
                f"{dataset['name']} with size {size}; name the environment of the data with env=ID"
            )
    ours = np.array([dataset["action_low"], dataset["action_high"]])
    theirs = np.array([spaces.action_low, spaces.action_high])
    if not np.allclose(ours, theirs, rtol=0, atol=1e-5):
        console.print(
            f"warning: the action box of {dataset['name']} is not that of {simulators.env_id}: "
            f"actions are in the data's units, clipped to the environment's box"
        )


def deployed_policies(run: Run, simulators: Simulators) -> Callable[[Any, np.ndarray], np.ndarray]:
    """One compiled program for all members: (states, observations [members, n, dim]) -> actions for the environment."""
    transforms = run.info["dataset"]["transforms"]
    mean, std = observation_statistics(transforms, run.spec.observation_dim)
    configs = stack(run.member_configs)

    @jax.jit
    def unit_box_actions(states: Any, observations: jax.Array) -> jax.Array:
        def member(config: Any, state: Any, observations: jax.Array) -> jax.Array:
            return run.algorithm.policy(config, run.spec).act(state, observations)

        return jax.vmap(member)(configs, states, (observations - mean) / std)

    def act(states: Any, observations: np.ndarray) -> np.ndarray:
        actions = actions_from_unit_box(transforms, np.asarray(unit_box_actions(states, observations)))
        return np.clip(actions, simulators.spaces.action_low, simulators.spaces.action_high)

    return act


def oracle_rows(run: Run, request: Request, step: int, played: np.ndarray, result: Episodes) -> pd.DataFrame:
    """The rows of the oracle table for the episodes that were played, bool [members, episodes]."""
    dataset = run.info["dataset"]
    member, episode = np.nonzero(played)
    returns = result.returns[played]
    reference = run_reference(run, request.env)
    return pd.DataFrame(
        {
            "algorithm": run.info["algorithm"]["name"],
            "dataset": dataset["name"],
            "fingerprint": dataset["fingerprint"],
            "env": request.env,
            "member": member,
            "seed": np.array([item["seed"] for item in run.members])[member],
            "step": step,
            "episode": episode,
            "reset_seed": request.seed + episode,
            "return": returns,
            "length": result.lengths[played],
            "success": result.successes[played],
            "normalized_score": reference.normalise(returns) if reference else np.nan,
            "reference_random": reference.random if reference else np.nan,
            "reference_expert": reference.expert if reference else np.nan,
            "protocol": run.info["protocol"]["name"],
            "version": offrl.__version__,
        }
    ).astype(DTYPES)


def run_reference(run: Run, env: str) -> Reference | None:
    """What makes 0 and 100 of the normalised score in `env`; None where nobody has said."""
    dataset = run.info["dataset"]
    return Reference(**dataset["reference"]) if dataset["reference"] and env == dataset["env_id"] else None


def read_returns(run: Run) -> pd.DataFrame:
    """The oracle table of the run; empty where nothing has been scored.

    Raises:
        UserError: the table cannot be read.
    """
    file = run.path / "oracle" / "returns.csv"
    if not file.exists():
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in DTYPES.items()})
    try:
        # numbers by way of Python's own reading, which gives back the very float that was written
        table = pd.read_csv(file, dtype=str, keep_default_na=False)[list(DTYPES)]
        floats = [name for name, kind in DTYPES.items() if kind is np.float64]
        table[floats] = table[floats].replace("", "nan")
        return table.astype(DTYPES)
    except (ValueError, KeyError) as error:
        raise UserError(f"{file}: damaged ({error}); delete it to score again") from error


def episodes_played(run: Run) -> pd.DataFrame:
    """`read_returns`, in which no policy has a reset seed twice, as where it was asked for from two first seeds."""
    return read_returns(run).drop_duplicates(["env", "step", "member", "reset_seed"], ignore_index=True)


def write_returns(run: Run, rows: pd.DataFrame) -> None:
    """Add rows to the oracle table, the whole file at once."""
    table = pd.concat([read_returns(run), rows]).drop_duplicates(KEY, ignore_index=True).sort_values(KEY)
    (run.path / "oracle").mkdir(exist_ok=True)
    write_whole(run.path / "oracle" / "returns.csv", table.to_csv(index=False))


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[int, int, int], None]]:
    """A bar over episodes on a terminal; a line for each part elsewhere."""
    began = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} episodes"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("evaluate", total=total)
        done = 0

        def played(step: int, episodes: int, environment_steps: int) -> None:
            nonlocal done, began
            done += episodes
            seconds, began = time.perf_counter() - began, time.perf_counter()
            rate = f"{environment_steps / seconds:,.0f} steps/s"
            bar.update(task, completed=done, description=f"evaluate step {step:,} ({rate})")
            if not console.is_terminal:
                console.print(f"evaluated step {step}: {done}/{total} episodes, {rate}", highlight=False)

        yield played


def as_matrix(rows: pd.DataFrame, column: str) -> np.ndarray:
    """[members, episodes] of one checkpoint's rows."""
    return rows.pivot(index="member", columns="episode", values=column).to_numpy()


def policy_scores(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per policy (step, member): means over episodes, and their standard errors."""
    scores = []
    for (step, member, seed), group in rows.groupby(["step", "member", "seed"]):
        scale = _scale(group)
        scores.append(
            {
                "step": step,
                "member": member,
                "seed": seed,
                "episodes": len(group),
                "return": group["return"].mean(skipna=False),
                "return_standard_error": standard_error(group["return"].to_numpy()),
                "normalized_score": group["normalized_score"].mean(skipna=False),
                "normalized_score_standard_error": scale * standard_error(group["return"].to_numpy()),
                "length": group["length"].mean(),
                "success_rate": group["success"].mean(),
            }
        )
    return pd.DataFrame(scores)


def population_scores(rows: pd.DataFrame, last: bool) -> pd.DataFrame:
    """One row per step, or one for every member's only checkpoint (`last`): means over members and episodes.

    `..._standard_error` is over episodes, for these very members; `..._member_deviation` is the standard deviation
    over members of their means.
    """
    scores = []
    for step, group in [(rows["step"].max(), rows)] if last else rows.groupby("step"):
        returns, scale = as_matrix(group, "return"), _scale(group)
        scores.append(
            {
                "step": step,
                "members": len(returns),
                "episodes": returns.shape[1],
                "return": returns.mean(),
                "return_standard_error": episode_error(returns),
                "return_member_deviation": member_spread(returns),
                "normalized_score": group["normalized_score"].mean(skipna=False),
                "normalized_score_standard_error": scale * episode_error(returns),
                "normalized_score_member_deviation": scale * member_spread(returns),
                "length": group["length"].mean(),
                "success_rate": group["success"].mean(),
            }
        )
    return pd.DataFrame(scores)


def _scale(rows: pd.DataFrame) -> float:
    """Normalised points per unit of return; nan without references. A deviation is scaled by it and never shifted."""
    return float(100.0 / (rows["reference_expert"].iloc[0] - rows["reference_random"].iloc[0]))


def summarize(run_path: str | Path, rows: pd.DataFrame, console: Console | None = None) -> Path:
    """Print the scores of a run beside the returns of its data, and draw them.

    Args:
        rows: what `evaluate_run` returned. The picture's learning curve has every checkpoint that was ever scored on
            the same episodes.

    Returns:
        The picture, RUN/summary.png.
    """
    run = Run.open(run_path)
    console = console or Console()
    print_scores(run, rows, console)
    env, episodes, seed = rows["env"].iloc[0], rows["episode"].max() + 1, rows["reset_seed"].min()
    everything = plan_checkpoints(run, "all", Console(quiet=True))
    curve = Request(env, episodes, seed, everything).rows(read_returns(run))
    complete = curve.groupby(["step", "member"])["episode"].transform("size") == episodes
    picture = run.path / "summary.png"
    draw_run(run.info, curve[complete], run_reference(run, env), picture)
    console.print(f"picture: {picture}", soft_wrap=True)
    return picture


def print_scores(run: Run, rows: pd.DataFrame, console: Console) -> None:
    """The table of a run's scores: every policy where they are few, means over members where they are many."""
    dataset, env = run.info["dataset"], rows["env"].iloc[0]
    reference = run_reference(run, env)
    episodes, first_seed = rows["episode"].max() + 1, rows["reset_seed"].min()
    last = not rows.drop_duplicates(["step", "member"])["member"].duplicated().any()
    policies, means = policy_scores(rows), population_scores(rows, last)
    has_success = rows["success"].notna().any()

    table = Table(title=f"{run.info['algorithm']['name']} on {dataset['name']}", title_justify="left", box=None)
    table.add_column("step", justify="right")
    table.add_column("member")
    for name in ["return", *(["normalized"] if reference else []), "length", *(["success"] if has_success else [])]:
        table.add_column(name, justify="right")

    def add(label: str, score: pd.Series, style: str) -> None:
        cells = [_plus_minus(score["return"], score["return_standard_error"])]
        if reference:
            error = score["normalized_score_standard_error"]
            cells.append(f"{score['normalized_score']:.1f}" + (f" ± {error:.1f}" if np.isfinite(error) else ""))
        cells.append(f"{score['length']:.0f}")
        if has_success:
            cells.append(f"{100 * score['success_rate']:.0f} %")
        table.add_row(f"{score['step']:,.0f}", label, *cells, style=style)

    many = len(run.members) > 1
    for _, mean in means.iterrows():
        if len(policies) <= MAX_POLICY_ROWS or not many:
            for _, score in policies.iterrows():
                if last or score["step"] == mean["step"]:
                    member = run.members[int(score["member"])]
                    swept = "".join(f" {name}={value}" for name, value in member["values"].items())
                    add(f"{member['member']} (seed {member['seed']}{swept})", score, "")
        if mean["members"] > 1:
            normalized = f"{mean['normalized_score_member_deviation']:.1f}"
            deviation = normalized if reference else _number(mean["return_member_deviation"], like=mean["return"])
            add(f"mean of {mean['members']:.0f} (sd {deviation})", mean, "bold")
    console.print(table)

    returns = dataset["returns"]
    data = [f"{name} {_number(returns[key])}" + (f" ({reference.normalise(returns[key]):.1f})" if reference else "")
            for name, key in (("mean", "mean"), ("best", "max"))]  # fmt: skip
    lines = [
        f"{env}: exactly {episodes} episodes of every policy, reset seeds {first_seed} to {first_seed + episodes - 1}; "
        f"± standard error over episodes"
        + (f"; sd of the members' {'normalized scores' if reference else 'returns'}" if many else ""),
        f"data: {dataset['episodes']} episodes, return {', '.join(data)}",
        f"normalized: 0 is {_number(reference.random)} and 100 is {_number(reference.expert)} ({reference.source})"
        if reference
        else "no reference returns are known for this environment and data: nothing is normalized",
    ]
    if (broken := rows["return"].isna().sum()) > 0:
        lines.append(f"{broken} episodes ended because the policy's action was not finite: their returns are nan")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _number(value: float, like: float | None = None) -> str:
    """With the decimals that suit a number as large as `like`."""
    size = abs(value if like is None else like)
    return f"{value:,.{0 if size >= 1000 else 1 if size >= 10 else 3}f}"


def _plus_minus(mean: float, error: float) -> str:
    return f"{_number(mean)} ± {_number(error, like=mean)}" if np.isfinite(error) else _number(mean)


def as_json(run: Run, rows: pd.DataFrame, picture: Path) -> dict[str, Any]:
    """What `--json` prints for one run. nan becomes null."""
    dataset, env = run.info["dataset"], rows["env"].iloc[0]
    reference = run_reference(run, env)
    last = not rows.drop_duplicates(["step", "member"])["member"].duplicated().any()

    def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
        return json.loads(frame.to_json(orient="records", double_precision=15))

    return {
        "run": str(run.path),
        "algorithm": run.info["algorithm"]["name"],
        "dataset": dataset["name"],
        "fingerprint": dataset["fingerprint"],
        "env": env,
        "reset_seeds": sorted(int(seed) for seed in rows["reset_seed"].unique()),
        "data_returns": dataset["returns"],
        "reference": {"random": reference.random, "expert": reference.expert, "source": reference.source}
        if reference
        else None,
        "policies": records(policy_scores(rows)),
        "means": records(population_scores(rows, last)),
        "table": str(run.path / "oracle" / "returns.csv"),
        "picture": str(picture),
    }


OPTIONS = {
    "checkpoints": "last (of every member, while healthy; the default), all (the pool), or steps such as 5000,10000",
    "episodes": "how many episodes every policy plays, exactly; default: what the run's protocol says",
    "seed": "reset seed of the first episode, the others count up; default: what the run's protocol says",
    "env": "another environment than the one of the run's dataset",
    "workers": "simulator processes; default: one per core",
}


def parse(arguments: Sequence[str]) -> tuple[list[Path], dict[str, Any], bool]:
    """Run directories, options for `evaluate_run`, and whether to print JSON.

    Raises:
        UserError: an unknown option, or a value that cannot be read.
    """
    parsed = command_line.parse(
        arguments,
        "evaluate",
        "Score the policies of finished or running runs in their environment. Every policy plays the same\n"
        "episodes (same reset seeds), each to its end; RUN/oracle/returns.csv keeps one row per episode, and\n"
        "an episode that has its row is not played again.",
        OPTIONS,
        "  python -m offrl.evaluate runs/builtin-hopper-medium/iql-1a2b3c4d episodes=100\n"
        "  python -m offrl.evaluate runs/*/* checkpoints=all        the whole pool of every run\n"
        "  python -m offrl.evaluate RUN --json | jq .means          for another program",
    )
    return parsed.paths, {name: _option(name, value) for name, value in parsed.options.items()}, parsed.json


def _option(name: str, value: str) -> Any:
    if name == "env" or (name == "checkpoints" and value in ("last", "all")):
        return value
    try:
        numbers = [int(part) for part in value.strip("[]").split(",")]
    except ValueError:
        numbers = []
    if name == "checkpoints" and numbers:
        return numbers
    if len(numbers) == 1 and numbers[0] >= (0 if name == "seed" else 1):
        return numbers[0]
    raise UserError(f"{name}={value}: cannot be read; give {OPTIONS[name]}")


def main() -> None:
    def command() -> None:
        devices.set_up()
        runs, options, wants_json = parse(sys.argv[1:])
        results = []
        for path in runs:
            rows = evaluate_run(path, **options)
            picture = summarize(path, rows, Console(quiet=wants_json))
            results.append(as_json(Run.open(path), rows, picture))
        if wants_json:
            print(json.dumps(results, indent=1))

    run_command(command)


if __name__ == "__main__":
    main()
