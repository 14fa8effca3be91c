"""Environments in separate processes, stepped together, each for exactly one episode per reset.

No jax here: a worker process imports this module and must start fast. Arrays travel through shared memory; a step
costs one message of one byte to each worker and one back.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from offrl.data.flatten import flat_dimension, flat_layout, flatten_observation, is_discrete, is_image, leaves
from offrl.data.transforms import Transform, actions_from_unit_box
from offrl.devices import cores
from offrl.errors import UserError

ROBOTICS = ("Adroit", "AntMaze", "PointMaze", "FrankaKitchen", "Fetch", "HandReach", "HandManipulate")
"""Prefixes of the names of gymnasium_robotics' environments."""

RESET, STEP, OK = b"r", b"s", b""


class SimulatorError(UserError):
    """An environment raised an error, or its process died."""


class Spaces(NamedTuple):
    """An environment's observations and actions."""

    observation_dim: int
    """Length of an observation; of an image, H * W * C."""
    action_low: np.ndarray
    """[action_dim], float32; of n discrete actions [0], and `action_high` [n - 1]."""
    action_high: np.ndarray
    max_steps: int
    """Steps after which an episode is truncated."""
    discrete: bool = False
    """Actions are 0 to n - 1, each as a vector of one number."""
    observation_shape: tuple[int, ...] = ()
    """(H, W, C) where observations are images, uint8; empty where they are vectors, float32."""
    observation_layout: tuple[str, ...] = ()
    """If observations have several parts, what is where in their vector: see `Dataset`."""

    @property
    def action_dim(self) -> int:
        """Length of a policy's action; of discrete actions, how many there are."""
        return int(self.action_high[0]) + 1 if self.discrete else len(self.action_low)

    def observations(self, *axes: int) -> np.ndarray:
        """Zeros in the shape of observations, [*axes, ...]."""
        if self.observation_shape:
            return np.zeros((*axes, *self.observation_shape), np.uint8)
        return np.zeros((*axes, self.observation_dim), np.float32)

    def actions(self, transforms: Iterable[Transform], actions: np.ndarray) -> np.ndarray:
        """A policy's actions [..., action_dim] in the environment's units, within its box; nan where not finite."""
        known = np.isfinite(actions).all(-1, keepdims=True)
        clipped = np.clip(actions_from_unit_box(transforms, actions), self.action_low, self.action_high)
        return np.where(known, clipped, np.float32(np.nan))


def make(env_id: str, env_kwargs: Mapping[str, Any]) -> Any:
    """`gymnasium.make`, with gymnasium_robotics registered when the name asks for it.

    `env_id` may be "module:Name-v0" for an environment that a module registers on import.

    Raises:
        UserError: no such environment, a package is missing, or the environment does not take these arguments.
    """
    import gymnasium

    name = env_id.rpartition(":")[2]
    if name.startswith(ROBOTICS) and name not in gymnasium.registry:
        try:
            import gymnasium_robotics
        except ImportError as error:
            raise UserError(f"env={env_id}: gymnasium_robotics is missing; pip install 'offrl[robotics]'") from error
        gymnasium.register_envs(gymnasium_robotics)
    try:
        # the checker's wrapper costs time at every step
        return gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
    except (gymnasium.error.Error, ImportError, TypeError, AssertionError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        given = f" with {dict(env_kwargs)}" if env_kwargs else ""
        raise UserError(f"env={env_id}: cannot be made{given}: {message}") from error


def spaces(env_id: str, env_kwargs: Mapping[str, Any]) -> Spaces:
    """The environment's observations and actions; dictionaries are flattened, discrete observations one-hot vectors.

    Raises:
        UserError: it cannot be made, its observations or actions are of a kind that is not supported, or it has no time
            limit.
    """
    from gymnasium.spaces import Box, Discrete

    environment = make(env_id, env_kwargs)
    try:
        observations, actions = environment.observation_space, environment.action_space
        images = is_image(observations)
        if not images and not all(
            isinstance(part, Discrete) or (isinstance(part, Box) and len(part.shape) < 3)
            for part in leaves(observations)
        ):
            raise UserError(
                f"env={env_id}: its observations are {one_line(observations)}; supported are vectors, discrete ones, "
                "dictionaries or tuples of these, and images of uint8 [height, width, channels]"
            )
        if isinstance(actions, Discrete) and actions.start == 0:
            box = Box(0, actions.n - 1, (1,))
        elif isinstance(actions, Box):
            box = actions
        else:
            raise UserError(
                f"env={env_id}: its actions are {one_line(actions)}; supported are a box, and discrete ones from 0"
            )
        if environment.spec is None or environment.spec.max_episode_steps is None:
            raise UserError(f"env={env_id}: it has no time limit; give +env.kwargs.max_episode_steps=STEPS")
        return Spaces(
            observation_dim=flat_dimension(observations),
            discrete=isinstance(actions, Discrete),
            observation_shape=observations.shape if images else (),
            observation_layout=flat_layout(observations) if hasattr(observations, "spaces") else (),
            action_low=box.low.astype(np.float32).ravel(),
            action_high=box.high.astype(np.float32).ravel(),
            max_steps=environment.spec.max_episode_steps,
        )
    finally:
        environment.close()


def one_line(space: Any) -> str:
    return " ".join(str(space).split())


class Buffers:
    """The arrays that all processes see, one row per environment."""

    def __init__(self, count: int, spaces: Spaces) -> None:
        # RawArray: anonymous shared memory, gone with the last process, however that one ends
        context = multiprocessing.get_context("spawn")
        observations = spaces.observations(count)
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "seeds": (np.int64, (count,)),
            "observations": (observations.dtype, observations.shape),
            "actions": (np.float32, (count, len(spaces.action_low))),
            "rewards": (np.float64, (count,)),
            "terminations": (np.bool_, (count,)),
            "truncations": (np.bool_, (count,)),
            "successes": (np.float64, (count,)),
            "active": (np.bool_, (count,)),
        }
        self.memory = {
            name: (context.RawArray("b", max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)), dtype, shape)
            for name, (dtype, shape) in shapes.items()
        }
        self.seeds: np.ndarray
        self.observations: np.ndarray
        self.actions: np.ndarray
        self.rewards: np.ndarray
        self.terminations: np.ndarray
        self.truncations: np.ndarray
        self.successes: np.ndarray
        self.active: np.ndarray
        self.__setstate__(self.memory)

    def __getstate__(self) -> dict[str, Any]:
        return self.memory

    def __setstate__(self, memory: dict[str, Any]) -> None:
        self.memory = memory
        for name, (raw, dtype, shape) in memory.items():
            setattr(self, name, np.frombuffer(raw, dtype, int(np.prod(shape))).reshape(shape))


class Simulators:
    """`count` copies of one environment in `workers` processes, stepped in lock step.

    `reset(seeds)` starts one episode in each of the first `len(seeds)`; `step(actions)` advances those whose episode
    has not ended. An environment whose episode has ended waits for the next `reset`: nothing restarts by itself, so
    long and short episodes count alike. The arrays are views of shared memory, valid until the next call:

        observations  as in `Spaces`, [count, ...]   of an ended episode: its last observation
        rewards       float64 [count]   of the last step; 0 where the environment did not step
        terminations, truncations   bool [count]   how an episode ended; both False while it goes on
        successes     float64 [count]   1 if any step of the episode reported info["success"], 0 if none did,
                                        nan if the environment does not report it
        active        bool [count]      episodes that go on

    The processes start on entering the context and end on leaving it.

    Raises (from any method):
        UserError: see `spaces`.
        SimulatorError: an environment raised an error, or a process died; all processes have been ended by then.
    """

    def __init__(
        self, env_id: str, env_kwargs: Mapping[str, Any] | None = None, count: int = 1, workers: int | None = None
    ) -> None:
        self.env_id = env_id
        self.env_kwargs = dict(env_kwargs or {})
        self.count = count
        self.workers = max(1, min(count, workers or cores()))
        self.spaces = spaces(env_id, self.env_kwargs)
        self._buffers = Buffers(count, self.spaces)
        self.observations = self._buffers.observations
        self.rewards = self._buffers.rewards
        self.terminations = self._buffers.terminations
        self.truncations = self._buffers.truncations
        self.successes = self._buffers.successes
        self.active = self._buffers.active
        self._processes: list[Any] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> Simulators:
        context = multiprocessing.get_context("spawn")
        with self._ending_on_error():
            for worker in range(self.workers):
                ours, theirs = context.Pipe()
                # environments are dealt out in turn: neighbouring episodes are often similar in length
                rows = range(worker, self.count, self.workers)
                process = context.Process(
                    target=_work,
                    args=(theirs, self.env_id, self.env_kwargs, rows, self._buffers),
                    name=f"offrl simulator {worker}",
                    daemon=True,
                )
                with _main_module_hidden():
                    process.start()
                theirs.close()
                self._processes.append(process)
                self._connections.append(ours)
            self._wait(range(self.workers))
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes. A worker leaves its loop when its connection closes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
        self._connections, self._processes = [], []

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start an episode with `env.reset(seed=seeds[i])` in environment i, for i < len(seeds); the rest stand still.

        Returns the observations.
        """
        buffers = self._buffers
        buffers.seeds[: len(seeds)] = seeds
        buffers.active[:] = np.arange(self.count) < len(seeds)
        buffers.rewards[:] = 0
        buffers.terminations[:] = buffers.truncations[:] = False
        buffers.successes[:] = np.nan
        self._call(RESET)
        return self.observations

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Advance every active environment by its row of `actions`, as in `Spaces`, [seeds of the reset, ...].

        Returns the observations; see the class for the other arrays.
        """
        self._buffers.actions[: len(actions)] = actions
        self.rewards[:] = 0
        self._call(STEP)
        self.active &= ~(self.terminations | self.truncations)
        return self.observations

    def stop(self, rows: np.ndarray) -> None:
        """End the episodes of these environments (indices or mask) here, neither terminated nor truncated."""
        self.active[rows] = False

    def _call(self, command: bytes) -> None:
        busy = [worker for worker in range(self.workers) if self.active[worker :: self.workers].any()]
        with self._ending_on_error():
            for worker in busy:
                # a dead worker is found, and named, when its answer is awaited
                with contextlib.suppress(OSError):
                    self._connections[worker].send_bytes(command)
            self._wait(busy)

    def _wait(self, workers: Any) -> None:
        for worker in workers:
            try:
                answer = self._connections[worker].recv_bytes()
            except (EOFError, OSError) as error:
                process = self._processes[worker]
                process.join(timeout=2)
                raise SimulatorError(
                    f"env={self.env_id}: simulator process {worker} died (exit code {process.exitcode})"
                ) from error
            if answer != OK:
                raise SimulatorError(f"env={self.env_id}: {answer.decode()}")

    @contextlib.contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep a starting worker from importing the command that starts it.

    A spawned process imports its parent's main module again: for `python -m offrl.train` that would be all of jax, for
    a user's script without an `if __name__ == "__main__"` all of the script.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(connection: Connection, env_id: str, env_kwargs: dict[str, Any], rows: range, buffers: Buffers) -> None:
    """What a worker does: make the environments of `rows`, then obey commands until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt goes to the whole group; the parent decides
    environments: dict[int, Any] = {}
    row = rows[0]
    answer = OK
    try:
        # what the environment prints when it is made, the parent's copy has printed already
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            environments = {row: make(env_id, env_kwargs) for row in rows}
        os.chdir(tempfile.gettempdir())  # MuJoCo writes MUJOCO_LOG.TXT to the current folder
        while (command := _answer(connection, OK)) is not None:
            for row, environment in environments.items():
                if not buffers.active[row]:
                    continue
                if command == RESET:
                    observation, _ = environment.reset(seed=int(buffers.seeds[row]))
                else:
                    action: Any = buffers.actions[row]
                    if is_discrete(environment.action_space):
                        action = int(action[0])
                    else:
                        action = action.reshape(environment.action_space.shape)
                    observation, reward, termination, truncation, info = environment.step(action)
                    buffers.rewards[row] = reward
                    buffers.terminations[row] = termination
                    buffers.truncations[row] = truncation
                    if "success" in info:
                        # fmax: a number wins over the nan of "not reported"
                        buffers.successes[row] = np.fmax(buffers.successes[row], bool(info["success"]))
                space = environment.observation_space
                buffers.observations[row] = observation if is_image(space) else flatten_observation(observation, space)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())
        answer = (
            f"{type(error).__name__}: {message} (reset seed {buffers.seeds[row]}, {where.filename}:{where.lineno})"
        ).encode()
    if answer != OK:
        _answer(connection, answer)
    for environment in environments.values():
        with contextlib.suppress(Exception):
            environment.close()


def _answer(connection: Connection, answer: bytes) -> bytes | None:
    """Send an answer and wait for the next command; None when the parent has closed the connection or is gone."""
    try:
        connection.send_bytes(answer)
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None
