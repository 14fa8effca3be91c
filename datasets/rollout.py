"""Policies acting in simulators, in numpy only: the worker processes behind the built-in datasets.

A worker is `python -m offrl.datasets.rollout`, a plain subprocess rather than one of `multiprocessing`: it never
imports the caller's main module (which may have no guard, or import jax), and it ends by itself when its caller ends,
for whatever reason. Messages are whole NPZ files, each after its length in eight bytes.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from offrl.datasets.environments import specification

LOG_STD_RANGE = (-5.0, 2.0)  # as in train_behaviour.py
CHUNK = 8  # episodes stepped together: one matrix product for all of them


class SquashedGaussian:
    """tanh of a Gaussian whose mean and log standard deviation are two halves of a network's output.

    `arrays` holds "0/w", "0/b", "1/w", ...: weights [in, out] and biases [out], in any float type.
    """

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.layers = [
            (arrays[f"{i}/w"].astype(np.float32), arrays[f"{i}/b"].astype(np.float32)) for i in range(len(arrays) // 2)
        ]

    def __call__(self, observations: np.ndarray, mean_actions: float, generator: np.random.Generator) -> np.ndarray:
        """Actions [n, action_dim] in [-1, 1]; each row is the mean with probability `mean_actions`, else a sample."""
        x = observations.astype(np.float32)
        for weight, bias in self.layers[:-1]:
            x = np.maximum(x @ weight + bias, 0)
        weight, bias = self.layers[-1]
        mean, log_std = np.split(x @ weight + bias, 2, axis=1)
        low, high = LOG_STD_RANGE
        std = np.exp(low + 0.5 * (high - low) * (np.tanh(log_std) + 1))
        sampled = generator.random((len(mean), 1)) >= mean_actions
        return np.tanh(mean + sampled * std * generator.standard_normal(mean.shape, np.float32))


class SoftmaxLinear:
    """Discrete actions from a softmax of linear preferences, mixed with uniform ones.

    `arrays` holds "preferences" [observation_dim, actions] and "uniform" [], the share of uniformly random actions.
    """

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.preferences, self.uniform = arrays["preferences"].astype(np.float32), float(arrays["uniform"])

    def __call__(self, observations: np.ndarray, mean_actions: float, generator: np.random.Generator) -> np.ndarray:
        """Actions [n], int64; each is the most preferred one with probability `mean_actions`, else a sample."""
        preferences = observations.astype(np.float32) @ self.preferences
        count = preferences.shape[1]
        probabilities = np.exp(preferences - preferences.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        probabilities = (1 - self.uniform) * probabilities + self.uniform / count
        draws = generator.random((len(preferences), 2))
        sampled = (np.cumsum(probabilities, axis=1) <= draws[:, :1]).sum(axis=1).clip(max=count - 1)
        return np.where(draws[:, 1] < mean_actions, preferences.argmax(axis=1), sampled)


class Uniform:
    """Uniform over the action box, or over discrete actions."""

    def __init__(self, space: gymnasium.Space):
        self.space = space

    def __call__(self, observations: np.ndarray, mean_actions: float, generator: np.random.Generator) -> np.ndarray:
        if isinstance(self.space, Discrete):
            return generator.integers(self.space.n, size=len(observations))
        assert isinstance(self.space, Box)
        return generator.uniform(-1, 1, (len(observations), self.space.shape[0])).astype(np.float32)


class Episode(NamedTuple):
    """One episode as Minari stores it: observations [length + 1, ...], all else [length, ...], environment's units."""

    policy: str
    seed: int  # of the reset
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray

    def cut(self, steps: int) -> Episode:
        """The first `steps` steps, truncated there unless the episode had ended anyway."""
        if steps >= len(self.rewards):
            return self
        truncations = self.truncations[:steps].copy()
        truncations[-1] = True
        return Episode(
            self.policy, self.seed, self.observations[: steps + 1], self.actions[:steps], self.rewards[:steps],
            self.terminations[:steps], truncations,
        )  # fmt: skip


def run_episodes(envs: Sequence[gymnasium.Env], policy, mean_actions: float, generator, name: str) -> list[Episode]:
    """One whole episode in each environment, in lock step; the result depends only on the generator's state."""
    space = envs[0].action_space
    # where policies see something else than what is recorded, such as the state behind an image
    seen = [getattr(env.unwrapped, "policy_observation", None) for env in envs]
    seeds = [int(seed) for seed in generator.integers(2**31, size=len(envs))]
    observations: list[list[Any]] = [[env.reset(seed=seed)[0]] for env, seed in zip(envs, seeds, strict=True)]
    steps: list[list[tuple]] = [[] for _ in envs]
    active = list(range(len(envs)))
    while active:
        inputs = np.stack([see() if (see := seen[i]) else observations[i][-1] for i in active])
        actions = _in_units_of(space, policy(inputs, mean_actions, generator))
        running = []
        for i, action in zip(active, actions, strict=True):
            observation, reward, terminated, truncated, _ = envs[i].step(action)
            observations[i].append(observation)
            steps[i].append((action, float(reward), bool(terminated), bool(truncated)))
            if not (terminated or truncated):
                running.append(i)
        active = running
    return [
        Episode(name, seed, np.stack(rows), *(np.array(column) for column in zip(*taken, strict=True)))
        for seed, rows, taken in zip(seeds, observations, steps, strict=True)
    ]


def _in_units_of(space: gymnasium.Space, actions: np.ndarray) -> np.ndarray:
    """A policy's actions, which for a box are in [-1, 1], in the environment's units."""
    if not isinstance(space, Box):
        return actions
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    return np.clip(middle + half * actions, space.low, space.high).astype(space.dtype)


class Task(NamedTuple):
    """A chunk of episodes, the same on every run: its generator is seeded by policy and first episode."""

    env_id: str
    policy: str
    mean_actions: float
    first: int
    last: int
    seed: int

    def run(self, envs: list[gymnasium.Env], weights: dict[str, np.ndarray]) -> list[Episode]:
        while len(envs) < self.last - self.first:
            envs.append(gymnasium.make(self.env_id, disable_env_checker=True))
        policy: Callable[..., np.ndarray]
        if not weights:
            policy = Uniform(envs[0].action_space)
        else:
            policy = SoftmaxLinear(weights) if "preferences" in weights else SquashedGaussian(weights)
        key = [self.seed, zlib.crc32(f"{self.policy} {self.mean_actions}".encode()), self.first]
        generator = np.random.default_rng(key)
        return run_episodes(envs[: self.last - self.first], policy, self.mean_actions, generator, self.policy)


def _send(stream, header: Any, arrays: dict[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, __header__=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
    stream.write(buffer.tell().to_bytes(8, "little") + buffer.getvalue())
    stream.flush()


def _receive(stream) -> tuple[Any, dict[str, np.ndarray]] | None:
    """The next message, or None where the other end is gone."""
    size = int.from_bytes(stream.read(8), "little")
    data = stream.read(size)
    if not size or len(data) < size:
        return None
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = dict(file)
    return json.loads(str(arrays.pop("__header__"))), arrays


class Workers:
    """Processes that run tasks; a context manager, which ends them."""

    def __init__(self, count: int):
        self.count = count

    def __enter__(self) -> Workers:
        # MuJoCo writes MUJOCO_LOG.TXT and its warnings wherever it runs: neither belongs to the user's folder or screen
        self._folder = tempfile.TemporaryDirectory(prefix="offrl-rollout-")
        self._errors = open(os.path.join(self._folder.name, "stderr"), "w+b")
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "offrl.datasets.rollout"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=self._folder.name,
                env={**os.environ, **threads, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is the caller's to handle
            )
            for _ in range(self.count)
        ]
        self._idle: SimpleQueue[subprocess.Popen] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(self.count)
        return self

    def __exit__(self, *_) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()
        self._errors.close()
        self._folder.cleanup()

    def submit(self, task: Task, weights: dict[str, np.ndarray]) -> Future[list[Episode]]:
        return self._threads.submit(self._run, task, weights)

    def _run(self, task: Task, weights: dict[str, np.ndarray]) -> list[Episode]:
        process = self._idle.get()
        try:
            _send(process.stdin, task, weights)
            answer = _receive(process.stdout)
        except BrokenPipeError:
            answer = None
        finally:
            self._idle.put(process)
        if answer is None:
            self._errors.seek(0)
            tail = self._errors.read().decode(errors="replace")[-2_000:]
            raise RuntimeError(f"a rollout process ended unexpectedly (exit status {process.wait()})\n{tail}")
        header, arrays = answer
        if header["error"]:
            raise RuntimeError(f"a rollout failed: {header['error']}")
        episodes = []
        rows = step = 0
        for seed, length in zip(header["seeds"], header["lengths"], strict=True):
            columns = [arrays[name][step : step + length] for name in Episode._fields[3:]]
            episodes.append(Episode(task.policy, seed, arrays["observations"][rows : rows + length + 1], *columns))
            rows, step = rows + length + 1, step + length
        return episodes


class Part(NamedTuple):
    """What one policy contributes: a number of steps (its last episode is cut there), or of whole episodes.

    `weights` is empty for the uniform policy.
    """

    policy: str
    weights: dict[str, np.ndarray]
    mean_actions: float
    steps: int | None = None
    episodes: int | None = None


class _Stretch:
    """A part being collected. Chunks finish in any order but are taken in sequence: the result is always the same."""

    def __init__(self, part: Part, env_id: str, seed: int):
        limit = specification(env_id).max_episode_steps
        assert limit is not None, f"{env_id} has no time limit"
        self.part, self.env_id, self.seed = part, env_id, seed
        self.least = part.episodes or -(-(part.steps or 0) // limit)  # fewest episodes that it can need
        self.mean_length = float(limit)  # of the episodes so far; only a guide to how many chunks to start
        self.first = 0
        self.pending: deque[tuple[int, Future[list[Episode]]]] = deque()
        self.episodes: list[Episode] = []
        self.steps = 0

    @property
    def done(self) -> bool:
        if self.part.steps is None:
            return len(self.episodes) == self.part.episodes
        return self.steps == self.part.steps

    def wants_more(self) -> bool:
        expected = sum(count for count, _ in self.pending)
        if self.part.steps is None:
            return len(self.episodes) + expected < self.least
        return self.steps + expected * self.mean_length < self.part.steps

    def start_chunk(self, workers: Workers) -> None:
        last = self.first + CHUNK
        if self.first < self.least:  # where all episodes have full length, this ends exactly at the budget
            last = min(last, self.least)
        task = Task(self.env_id, self.part.policy, self.part.mean_actions, self.first, last, self.seed)
        self.pending.append((last - self.first, workers.submit(task, self.part.weights)))
        self.first = last

    def take_finished(self) -> None:
        while self.pending and self.pending[0][1].done():
            for episode in self.pending.popleft()[1].result():
                if self.done:
                    break
                if self.part.steps is not None:
                    episode = episode.cut(self.part.steps - self.steps)
                self.episodes.append(episode)
                self.steps += len(episode.rewards)
            self.mean_length = self.steps / len(self.episodes)


def collect(
    workers: Workers, env_id: str, parts: Sequence[Part], seed: int, report: Callable[[int, int], object] | None = None
) -> list[list[Episode]]:
    """The episodes of each part, in order. The same for a seed whatever the number of workers.

    `report` is called with the steps and the episodes taken so far, over all parts.
    """
    stretches = [_Stretch(part, env_id, seed) for part in parts]

    def running() -> list[Future]:
        return [future for stretch in stretches for _, future in stretch.pending if not future.done()]

    while not all(stretch.done for stretch in stretches):
        while len(running()) <= workers.count:  # one more than there are workers, so that none waits
            wanting = next((stretch for stretch in stretches if not stretch.done and stretch.wants_more()), None)
            if wanting is None:
                break
            wanting.start_chunk(workers)
        wait(running(), return_when=FIRST_COMPLETED)
        for stretch in stretches:
            stretch.take_finished()
        if report:
            report(sum(stretch.steps for stretch in stretches), sum(len(stretch.episodes) for stretch in stretches))
    return [stretch.episodes for stretch in stretches]


def main() -> None:
    """Answer tasks from stdin on stdout until stdin ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a simulator prints must not get between two messages
    envs: list[gymnasium.Env] = []
    env_id = None
    while message := _receive(source):
        task, weights = Task(*message[0]), message[1]
        if task.env_id != env_id:
            envs, env_id = [], task.env_id
        try:
            episodes = task.run(envs, weights)
        except Exception:
            _send(sink, {"error": traceback.format_exc()}, {})
            continue
        header = {"error": None, "seeds": [e.seed for e in episodes], "lengths": [len(e.rewards) for e in episodes]}
        _send(
            sink, header, {name: np.concatenate([getattr(e, name) for e in episodes]) for name in Episode._fields[2:]}
        )


if __name__ == "__main__":
    main()
