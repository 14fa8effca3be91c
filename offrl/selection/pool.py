"""The pool: every (member, checkpoint) of runs on one dataset, and what each of them would do on logged states.

Nothing here opens an environment or the oracle table. A candidate takes and returns plain arrays, so a diagnostic
does not know which algorithm it looks at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from offrl.algorithm import Algorithm, Spec
from offrl.data.dataset import Dataset
from offrl.data.transforms import actions_to_unit_box, transform_observations, transform_rewards
from offrl.errors import UserError
from offrl.runs.configuration import option_defaults, tuned_values
from offrl.runs.run import Run, differing_names, differing_options, flat, labels

CHUNK = 8192
"""Rows per call of a policy: one compiled program per algorithm, whatever the number of rows."""
IMAGES_AT_ONCE = 256
"""Rows per call where observations are images."""
RESAMPLES = 200
STATES_IN_MEMORY = 2_000_000_000
"""Bytes of restored checkpoints kept."""


@dataclass(frozen=True)
class Candidate:
    """One policy to choose from."""

    run: Run
    member: int
    step: int
    label: str = ""
    """What tells the run from others of its pool; by default its folder's name."""

    @property
    def name(self) -> str:
        return f"{self.label or self.run.path.name}/{self.member}/{self.step}"

    @property
    def config(self) -> Any:
        return self.run.member_configs[self.member]

    @property
    def discount(self) -> float | None:
        """The discount of its critic, None for an algorithm that has none."""
        discount = getattr(self.config, "discount", None)
        return None if discount is None else float(discount)

    @property
    def diverged(self) -> bool:
        diverged_at = self.run.members[self.member]["diverged_at"]
        return diverged_at is not None and self.step >= diverged_at


@dataclass(frozen=True)
class Rows:
    """Transitions of whole or thinned episodes, raw but for actions, which are in [-1, 1]. `n` rows."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminations: np.ndarray
    """float32, 1 where the episode truly ended."""
    next_actions: np.ndarray
    next_action_known: np.ndarray
    episodes: np.ndarray
    """int [n]: index of the row's episode in the whole dataset."""
    timesteps: np.ndarray
    steps: np.ndarray
    """int [n]: index of the row in the whole dataset."""

    def __len__(self) -> int:
        return len(self.rewards)

    def take(self, rows: np.ndarray) -> Rows:
        return Rows(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@partial(jax.jit, static_argnames=("algorithm", "spec"))
def _act(algorithm: Algorithm, spec: Spec, config: Any, state: Any, observations: jax.Array) -> jax.Array:
    return algorithm.policy(config, spec).act(state, observations)


@partial(jax.jit, static_argnames=("algorithm", "spec"))
def _q_values(
    algorithm: Algorithm, spec: Spec, config: Any, state: Any, observations: jax.Array, actions: jax.Array
) -> jax.Array:
    q_values = algorithm.policy(config, spec).q_values
    assert q_values is not None
    return q_values(state, observations, actions)


@partial(jax.jit, static_argnames=("algorithm", "spec"))
def _value(algorithm: Algorithm, spec: Spec, config: Any, state: Any, observations: jax.Array) -> jax.Array:
    value = algorithm.policy(config, spec).value
    assert value is not None
    return value(state, observations)


class Pool:
    """Candidates on one dataset. Open one with `Pool.open`.

    Args:
        held_out: bool [episodes], the episodes that no run has trained on.
        rows: at most so many transitions of each split are looked at.
    """

    def __init__(self, dataset: Dataset, candidates: Sequence[Candidate], held_out: np.ndarray, rows: int, seed: int):
        self.dataset, self.candidates, self.held_out = dataset, list(candidates), held_out
        self.rows, self.seed = rows, seed
        self._states: OrderedDict[tuple[Path, int], Any] = OrderedDict()
        self._actions: dict[tuple[Path, int, int, str], np.ndarray] = {}
        self._made: dict[str, Any] = {}

    @classmethod
    def open(
        cls,
        paths: Sequence[str | Path],
        checkpoints: int | None = None,
        rows: int = 20_000,
        seed: int = 0,
    ) -> Pool:
        """The pool of some runs.

        Args:
            checkpoints: at most so many per member, evenly spread, the last among them; None takes all.

        Raises:
            UserError: no runs, runs that have interacted with an environment, runs on different data, or data that have
                changed since.
        """
        runs = [Run.open(path) for path in paths]
        if not runs:
            raise UserError("no run given; give one or more folders that offrl.train made")
        if len({run.path.resolve() for run in runs}) < len(runs):
            raise UserError("a run is given twice; give each folder once")
        for run in runs:
            if run.interacted:
                raise UserError(
                    f"{run.path}: its policies have {run.interacted}, so choosing among them is not offline; "
                    "leave it out"
                )
        prints = {run.info["dataset"]["fingerprint"]: run for run in runs}
        if len(prints) > 1:
            first, second, *_ = (f"{run.path} ({run.info['dataset']['name']}, {p})" for p, run in prints.items())
            raise UserError(f"runs on different data: {first} and {second}; select among runs on one dataset")
        dataset = load_dataset(runs[0])
        held_out = np.ones(dataset.episodes, bool)
        for run in runs:
            held_out &= held_out_episodes(run, dataset)
        candidates = []
        for run, label in zip(runs, labels([run.path for run in runs]), strict=True):
            steps = run.policy_checkpoints()
            if not steps:
                raise UserError(f"{run.path}: no checkpoint of a policy yet; train it to its end, or leave it out")
            if checkpoints is not None and len(steps) > checkpoints:
                chosen = np.linspace(len(steps), 0, checkpoints, endpoint=False).round().astype(int)[::-1] - 1
                steps = [steps[i] for i in np.unique(chosen)]
            for member in range(len(run.members)):
                candidates += [Candidate(run, member, step, label) for step in steps]
        return cls(dataset, candidates, held_out, rows, seed)

    def __len__(self) -> int:
        return len(self.candidates)

    def subset(self, indices: Sequence[int] | np.ndarray) -> Pool:
        """The same data, fewer candidates."""
        pool = Pool(self.dataset, [self.candidates[i] for i in indices], self.held_out, self.rows, self.seed)
        pool._states, pool._actions, pool._made = self._states, self._actions, self._made
        for name in ("train", "validation", "episode_weights"):  # the same for any choice of candidates
            if name in self.__dict__:
                pool.__dict__[name] = self.__dict__[name]
        return pool

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per candidate: candidate, run, algorithm, setting, default, member, seed, step, dataset, fingerprint.

        `setting` is what the pool varies of the algorithm, and `default` whether that is as published for the dataset.
        """
        rows = [
            {
                "candidate": candidate.name,
                "run": str(candidate.run.path),
                "algorithm": candidate.run.info["algorithm"]["name"],
                "member": candidate.member,
                "seed": candidate.run.members[candidate.member]["seed"],
                "step": candidate.step,
                "dataset": self.dataset.name,  # one, whatever path each run has its file by
                "fingerprint": self.dataset.fingerprint,
            }
            for candidate in self.candidates
        ]
        table = pd.DataFrame(rows)
        settings: dict[Any, str] = {}
        defaults: dict[Any, bool] = {}
        for name, group in table.groupby("algorithm"):
            members = [self.candidates[i] for i in group.index]
            options = [candidate.run.options(candidate.member) for candidate in members]
            settings |= dict(zip(group.index, differing_options(options), strict=True))
            published = flat(option_defaults(members[0].run.algorithm)) | tuned_values(str(name), self.dataset.name)[0]
            varied = differing_names(options)
            same = [all(each.get(option) == published.get(option) for option in varied) for each in options]
            defaults |= dict(zip(group.index, same, strict=True))
        table.insert(3, "setting", pd.Series(settings, dtype=object))
        table.insert(4, "default", pd.Series(defaults, dtype=bool))
        return table

    # Data

    @cached_property
    def train(self) -> Rows:
        """Rows of the episodes that some run has trained on."""
        return self._rows(~self.held_out)

    @cached_property
    def validation(self) -> Rows | None:
        """Rows of held-out episodes; None where the runs have left none out."""
        return self._rows(self.held_out) if self.held_out.any() else None

    def _rows(self, episodes: np.ndarray) -> Rows:
        dataset = self.dataset
        steps = dataset.transition_rows
        steps = steps[episodes[dataset.episode_of_step[steps]]]
        if len(steps) > self.rows:
            random = np.random.default_rng(self.seed)
            steps = np.sort(random.choice(steps, self.rows, replace=False))
        actions = actions_to_unit_box(dataset.transforms, dataset.actions)
        known = np.ones(dataset.steps, np.float32)
        known[dataset.ends] = 0.0
        following = np.minimum(steps + 1, dataset.steps - 1)
        rows = dataset.observation_rows[steps]
        return Rows(
            observations=dataset.observations[rows],
            actions=actions[steps],
            rewards=dataset.rewards[steps],
            next_observations=dataset.observations[rows + 1],
            terminations=dataset.terminations[steps].astype(np.float32),
            next_actions=actions[following] * known[steps][:, None],
            next_action_known=known[steps],
            episodes=dataset.episode_of_step[steps],
            timesteps=dataset.timesteps[steps],
            steps=steps,
        )

    @property
    def images(self) -> bool:
        """Whether observations are images."""
        return self.dataset.observations.ndim > 2

    @cached_property
    def initial_observations(self) -> np.ndarray:
        """The first observation of every episode of the dataset, [episodes, observation_dim]."""
        return self.dataset.observations[self.dataset.observation_rows[self.dataset.starts]]

    @cached_property
    def episode_weights(self) -> np.ndarray:
        """How often each episode of the dataset occurs in each bootstrap sample, float32 [RESAMPLES, episodes].

        One draw for all diagnostics: what they say of one candidate, and of two, is resampled together.
        """
        episodes = self.dataset.episodes
        random = np.random.default_rng(self.seed)
        return random.multinomial(episodes, np.full(episodes, 1 / episodes), RESAMPLES).astype(np.float32)

    def rewards_of(self, candidate: Candidate, rewards: np.ndarray) -> np.ndarray:
        """Raw rewards in the units that the candidate's critic was trained in."""
        return transform_rewards(candidate.run.info["dataset"]["transforms"], rewards)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make()` returns, made once for this pool and all its subsets: of the data alone, not of candidates."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    # Candidates

    def state(self, candidate: Candidate) -> Any:
        """The state of one candidate (numpy arrays)."""
        key = (candidate.run.path, candidate.step)
        if key not in self._states:
            self._states[key] = candidate.run.restore(candidate.step)
            sizes = {k: sum(leaf.nbytes for leaf in jax.tree.leaves(s)) for k, s in self._states.items()}
            while len(self._states) > 1 and sum(sizes[k] for k in self._states) > STATES_IN_MEMORY:
                self._states.popitem(last=False)
        return jax.tree.map(lambda leaf: leaf[candidate.member], self._states[key])

    def act(self, candidate: Candidate, observations: np.ndarray) -> np.ndarray:
        """Actions [n, action_dim] in [-1, 1] of one candidate at raw observations [n, observation_dim]."""
        run, state = candidate.run, self.state(candidate)
        seen = transform_observations(run.info["dataset"]["transforms"], observations)
        program = partial(_act, run.algorithm, run.spec, candidate.config, state)
        return np.clip(in_chunks(program, seen), -1.0, 1.0)

    def q(self, candidate: Candidate, observations: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        """The candidate's own critics [critics, n] at raw observations and actions in [-1, 1]; None without critics."""
        run, state = candidate.run, self.state(candidate)
        if run.policy.q_values is None:
            return None
        seen = transform_observations(run.info["dataset"]["transforms"], observations)
        program = partial(_q_values, run.algorithm, run.spec, candidate.config, state)
        return in_chunks(lambda o, a: program(o, a).T, seen, actions).T

    def value(self, candidate: Candidate, observations: np.ndarray) -> np.ndarray | None:
        """The candidate's own V [n] at raw observations; None without one."""
        run, state = candidate.run, self.state(candidate)
        if run.policy.value is None:
            return None
        seen = transform_observations(run.info["dataset"]["transforms"], observations)
        return in_chunks(partial(_value, run.algorithm, run.spec, candidate.config, state), seen)

    def actions(self, where: str) -> np.ndarray:
        """What every candidate would do, [candidates, n, action_dim] in [-1, 1]; computed once.

        Args:
            where: "train", "train_next", "validation", "validation_next" or "initial".
        """
        if where == "initial":
            observations = self.initial_observations
        else:
            split, _, following = where.partition("_")
            rows = self.train if split == "train" else self.validation
            assert rows is not None, "no episodes are held out: ask only where `validation` is not None"
            observations = rows.next_observations if following else rows.observations
        found = []
        for candidate in self.candidates:
            key = (candidate.run.path, candidate.member, candidate.step, where)
            if key not in self._actions:
                self._actions[key] = self.act(candidate, observations)
            found.append(self._actions[key])
        return np.stack(found)


def in_chunks(program: Any, *columns: np.ndarray) -> np.ndarray:
    """`program(*rows)` over the rows of `columns`, always as many at a time, so that it is compiled once."""
    results, size = [], IMAGES_AT_ONCE if columns[0].ndim > 2 else CHUNK
    for first in range(0, len(columns[0]), size):
        part = [column[first : first + size] for column in columns]
        count = len(part[0])
        if count < size:
            part = [
                np.concatenate([column, np.zeros((size - count, *column.shape[1:]), column.dtype)]) for column in part
            ]
        results.append(np.asarray(program(*map(jnp.asarray, part)))[:count])
    return np.concatenate(results)


def load_dataset(run: Run) -> Dataset:
    """The dataset of a run, raw, as it lies on this machine: no environment is opened to make it or to learn of it.

    Raises:
        UserError: it is not there, or has changed since the run.
    """
    import offrl.data

    described, options = run.info["dataset"], run.info["identity"]["data"]
    try:
        dataset = offrl.data.load(
            described["name"],
            env_id=described["env_id"],
            env_kwargs=described["env_kwargs"],
            columns=options["columns"] or None,
            clip_actions=options["clip_actions"],
            trust_next_observations=options.get("trust_next_observations", False),
            steps=options["steps"],
            action_low=described["action_low"],
            action_high=described["action_high"],
            observation_dim=run.info["spec"]["observation_dim"],
            time_limit=described.get("time_limit"),
            at_hand=True,
            quiet=True,
        )
    except UserError as error:
        raise UserError(f"{run.path}: trained on data with fingerprint {described['fingerprint']}; {error}") from error
    if dataset.fingerprint != described["fingerprint"]:
        raise UserError(
            f"{run.path}: trained on {described['name']} with fingerprint {described['fingerprint']}, which now has "
            f"{dataset.fingerprint}; give back the data it was trained on"
        )
    return dataset


def held_out_episodes(run: Run, dataset: Dataset) -> np.ndarray:
    """bool [episodes]: those that the run has not trained on."""
    protocol = run.info["protocol"]
    held_out = np.zeros(dataset.episodes, bool)
    if protocol["validation_fraction"] > 0:
        held_out[dataset.split_indices(protocol["validation_fraction"], protocol["split_seed"])[1]] = True
    return held_out
