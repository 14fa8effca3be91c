"""Score the policies of a run in its environment: `evaluate_run`, which `python -m offrl.evaluate` calls.

Every policy plays exactly N whole episodes, from the reset seeds `seed`, `seed + 1`, ..., which are the same for all
policies. Each episode has one row in the table of returns, and an episode that has its row is not played again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from offrl.algorithm import Spec
from offrl.data.transforms import transform_observations
from offrl.errors import UserError
from offrl.learning.population import stack
from offrl.playing.memory import RememberingPolicies
from offrl.playing.returns import Episodes, Request, oracle_rows, read_returns, write_returns
from offrl.playing.simulators import Simulators, Spaces
from offrl.runs.run import Run
from offrl.runs.trust import environment_of

EPISODES_AT_ONCE = 32
SIMULATORS_AT_ONCE = 128

Act = Callable[[np.ndarray], np.ndarray]
Played = Callable[[int, int, int], None]
"""Called with (step, episodes, environment steps) whenever some episodes of a checkpoint have been played."""


def warn_on_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def evaluate_policies(
    act: Act, simulators: Simulators, seeds: np.ndarray, wanted: np.ndarray, slots: int = EPISODES_AT_ONCE
) -> Episodes:
    """Play the wanted episodes, each exactly once and to its end.

    Episode e always has place e modulo `slots` in a batch of fixed size. So its result does not depend, not even in the
    last bit of a matrix product, on which others are played at the same time or on the number of workers.

    Args:
        act: observations [members, slots, ...] -> actions [members, slots, ...] in the environment's units, both as
            in `Spaces`; called once per step. Policies with memory also learn the rewards.
        seeds: reset seed of each episode, [episodes].
        wanted: which to play, bool [members, episodes]; `simulators` must have room for those of any `slots` episodes.
    """
    members, episodes = wanted.shape
    result = Episodes(np.full(wanted.shape, np.nan), np.zeros(wanted.shape, np.int64), np.full(wanted.shape, np.nan))
    observations = simulators.spaces.observations(members, slots)
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


def evaluate_run(
    run_path: str | Path,
    checkpoints: str | Sequence[int] = "last",
    episodes: int | None = None,
    seed: int | None = None,
    *,
    env: str | None = None,
    workers: int | None = None,
    warn: Callable[[str], None] = warn_on_stderr,
    progress: Callable[[int], AbstractContextManager[Played]] | None = None,
) -> pd.DataFrame:
    """Score checkpoints of a run; episodes that the oracle table has already are not played again.

    Args:
        checkpoints: "last" (the last healthy one of every member), "all" (the pool), or steps.
        episodes, seed: number of episodes of every policy, from reset seeds seed, seed + 1, ...; by default those of
            the run's protocol.
        env: another environment than that of the run's dataset; its scores are not normalised.
        workers: simulator processes; by default one per core.
        warn: called with what the user should know: a member that diverged, another action box.
        progress: a function of the number of episodes to play; its context gives the function to report progress to.

    Returns:
        The requested rows of the oracle table, by step, member, episode.

    Raises:
        UserError: no such run, checkpoint or environment, or one whose sizes differ from the data's.
        SimulatorError: the environment failed. What was finished before is kept.
    """
    run = Run.open(run_path)
    protocol, dataset = run.info["protocol"], run.info["dataset"]
    if env is None and dataset["env_id"] is not None:
        env = environment_of(run.path, dataset["env_id"])
    if env is None:
        raise UserError(f"{run.path}: this run has no environment (env=null); name one with env=ID, e.g. env=Hopper-v5")
    request = Request(
        env=env,
        episodes=protocol["episodes"] if episodes is None else episodes,
        seed=protocol["evaluation_seed"] if seed is None else seed,
        plan=plan_checkpoints(run, checkpoints),
    )
    for text in diverged_members(run):
        warn(text)
    if request.episodes < 1 or request.seed < 0:
        raise UserError(f"episodes={request.episodes} seed={request.seed}: at least 1 episode, and a seed of 0 or more")

    slots = max(1, min(EPISODES_AT_ONCE, SIMULATORS_AT_ONCE // len(run.members)))
    parts = request.missing(read_returns(run), len(run.members), slots)
    if parts:
        env_kwargs = dataset["env_kwargs"] if request.env == dataset["env_id"] else {}
        counts = [int(part.sum()) for _, part in parts]
        simulators = Simulators(request.env, env_kwargs, max(counts), workers)
        check_spaces(run, simulators, warn)
        remembering = None if run.policy.memory is None else RememberingPolicies(run, simulators.spaces)
        act = deployed_policies(run, simulators)
        seeds = request.seed + np.arange(request.episodes)
        restored: int | None = None
        with simulators, progress(sum(counts)) if progress else nullcontext() as played:
            for (step, part), count in zip(parts, counts, strict=True):
                if step != restored:
                    states, restored = jax.device_put(run.restore(step)), step
                if remembering is not None:
                    remembering.states = states
                played_by = remembering or partial(act, states)
                result = evaluate_policies(played_by, simulators, seeds, part, slots)
                # kept as soon as it is finished
                write_returns(run, oracle_rows(run, request, step, part, result))
                if played:
                    played(step, count, int(result.lengths.sum()))
    return request.rows(read_returns(run))


def plan_checkpoints(run: Run, checkpoints: str | Sequence[int]) -> dict[int, list[int]]:
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
    return dict(sorted(plan.items()))


def diverged_members(run: Run) -> list[str]:
    """A line for each member that diverged, with the step up to which it is scored."""
    lines = []
    for member in run.members:
        if member["diverged_at"] is not None:
            last = run.last_checkpoint(member["member"])
            until = "not scored" if last is None else f"scored up to step {last}"
            lines.append(f"member {member['member']} diverged at step {member['diverged_at']}: {until}")
    return lines


def check_spaces(run: Run, simulators: Simulators, warn: Callable[[str], None]) -> None:
    """Warn if the environment's action box, or the layout of its observations, is not that of the data.

    Raises:
        UserError: its observations or actions are of other sizes than the data's.
    """
    dataset, spaces = run.info["dataset"], simulators.spaces
    for what, size, found in zip(("observations", "actions"), sizes(run.spec), sizes(spaces), strict=True):
        if size != found:
            raise UserError(
                f"env={simulators.env_id}: {what} of {found}, but the policies of {run.path} were trained on "
                f"{dataset['name']} with {size}; name the environment of the data with env=ID"
            )
    ours = np.array([dataset["action_low"], dataset["action_high"]])
    theirs = np.array([spaces.action_low, spaces.action_high])
    if not np.allclose(ours, theirs, rtol=0, atol=1e-5):
        warn(
            f"warning: the action box of {dataset['name']} is not that of {simulators.env_id}: "
            f"actions are in the data's units, clipped to the environment's box"
        )
    layout = tuple(dataset.get("observation_layout", ()))
    if layout and layout != spaces.observation_layout:
        warn(
            f"warning: the observations of {dataset['name']} are {', '.join(layout)}, those of {simulators.env_id} "
            f"{', '.join(spaces.observation_layout) or 'have no parts'}"
        )


def deployed_policies(run: Run, simulators: Simulators) -> Callable[[Any, np.ndarray], np.ndarray]:
    """One compiled program for all members: (states, observations [members, n, ...]) -> actions for the environment."""
    transforms = run.info["dataset"]["transforms"]
    configs = stack(run.member_configs)

    @jax.jit
    def unit_box_actions(states: Any, observations: jax.Array) -> jax.Array:
        def member(config: Any, state: Any, observations: jax.Array) -> jax.Array:
            return run.algorithm.policy(config, run.spec).act(state, observations)

        return jax.vmap(member)(configs, states, transform_observations(transforms, observations))

    def act(states: Any, observations: np.ndarray) -> np.ndarray:
        return simulators.spaces.actions(transforms, np.asarray(unit_box_actions(states, observations)))

    return act


def sizes(spaces: Spec | Spaces) -> tuple[str, str]:
    """Observations and actions in words."""
    return (
        f"size {' x '.join(map(str, spaces.observation_shape or (spaces.observation_dim,)))}",
        f"{spaces.action_dim} choices" if spaces.discrete else f"size {spaces.action_dim}",
    )
