"""The contract of an algorithm file, and loading one by name or by path.

An algorithm file defines

    Config                                      frozen flax.struct.dataclass, every field made by `option`
    init(key, config, spec) -> State            parameters, optimiser state, targets, in one pytree
    update(key, state, dataset, config) -> (State, metrics)     one gradient step; it samples its batch on the device
    policy(config, spec) -> offrl.learning.policies.Policy

and, where it needs them,

    phases(config) -> tuple[Phase, ...]         several stages in one run; by default one, called "train"
    prepare(dataset, config) -> pytree          what `update` sees as its dataset; by default `dataset.transitions()`
    from_data(dataset, config) -> dict          numeric options to be taken from the training data; run.json keeps them
    SUPPORTS                                    the SPACES that it supports; by default ("continuous",), no images

Continuous actions are in [-1, 1]; discrete ones are one-hot vectors [..., action_dim], both in the data that the
algorithm sees and from its policy. Images are uint8 [..., H, W, C], which a network divides by 255.

`state` must have the field `step`, the number of updates made. All of it runs under `jax.vmap` and `jax.lax.map` over
members (seeds and settings trained in parallel) and under `jax.lax.scan` over steps: no side effects, no global state,
no environment. Metrics are a flat dict of scalars; a non-finite one marks the member as diverged and stops it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import offrl.algorithms
from offrl.data.dataset import Dataset
from offrl.data.transforms import Preprocessing
from offrl.errors import UserError, nearest

SPACES = {"continuous": "continuous actions", "discrete": "discrete actions", "image": "image observations"}
"""The names that a file's SUPPORTS may hold, and how messages call them."""

State = Any
Metrics = dict[str, jax.Array]
Update = Callable[[jax.Array, State, Any, Any], tuple[State, Metrics]]


def option(
    default: Any,
    help: str,
    *,
    static: bool = False,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A field of an algorithm's Config.

    Numbers are pytree leaves, so that members of one compiled program may differ in them; `static` marks structure
    (widths, counts, names), which all members of a run share. `choices` lists the allowed values of a string;
    `low` and `high` are the smallest and the largest allowed value of a number.
    """
    metadata = {"pytree_node": not static, "help": help, "choices": choices, "low": low, "high": high}
    return dataclasses.field(default=default, metadata=metadata)


class Spec(NamedTuple):
    """What an algorithm may know about its data and its run. Static: the compiled program depends on it."""

    observation_dim: int
    """Length of an observation; of an image, H * W * C."""
    action_dim: int
    """Length of an action; of discrete actions, how many there are to choose from."""
    updates: int
    """The protocol's number of gradient steps, at which learning-rate schedules end."""
    discrete: bool = False
    """Whether actions are one-hot vectors instead of points in [-1, 1]^action_dim."""
    observation_shape: tuple[int, ...] = ()
    """(H, W, C) where observations are uint8 images; empty where they are vectors."""

    @classmethod
    def of(cls, dataset: Dataset, updates: int) -> Spec:
        """The spec of a run on this dataset."""
        shape = dataset.observations.shape[1:]
        return cls(
            observation_dim=int(np.prod(shape)),
            action_dim=dataset.action_dim,
            updates=updates,
            discrete=dataset.actions.dtype.kind in "iu",
            observation_shape=tuple(shape) if len(shape) > 1 else (),
        )

    @classmethod
    def recorded(cls, fields: dict[str, Any]) -> Spec:
        """The spec whose `_asdict()` was read from JSON, which turns tuples into lists."""
        return cls(**{**fields, "observation_shape": tuple(fields.get("observation_shape", ()))})

    @property
    def observations(self) -> jax.Array:
        """A batch of one observation, all zeros, [1, ...], to initialise networks with."""
        if self.observation_shape:
            return jnp.zeros((1, *self.observation_shape), jnp.uint8)
        return jnp.zeros((1, self.observation_dim))

    @property
    def spaces(self) -> tuple[str, ...]:
        """Which of SPACES the data need."""
        actions = "discrete" if self.discrete else "continuous"
        return (actions, "image") if self.observation_shape else (actions,)


class Phase(NamedTuple):
    """One stage of training: an update function, called `updates` times.

    `updates` None means the protocol's number of updates; a function maps that number to the phase's own.
    `begin(key, state, dataset, config) -> State`, where given, runs once when the phase starts.
    """

    name: str
    update: Update
    updates: int | Callable[[int], int] | None = None
    begin: Callable[[jax.Array, State, Any, Any], State] | None = None

    def length(self, protocol_updates: int) -> int:
        """The number of updates of this phase, given the protocol's."""
        if self.updates is None:
            return protocol_updates
        return self.updates(protocol_updates) if callable(self.updates) else self.updates


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An algorithm file, checked against the contract."""

    name: str
    file: Path
    Config: type
    init: Callable[[jax.Array, Any, Spec], State]
    policy: Callable[[Any, Spec], Any]
    phases: Callable[[Any], tuple[Phase, ...]]
    prepare: Callable[[Dataset, Any], Any]
    from_data: Callable[[Dataset, Any], dict[str, float]]
    supports: tuple[str, ...]
    summary: str
    """The first line of the file's docstring."""

    def options(self) -> dict[str, dataclasses.Field[Any]]:
        return {field.name: field for field in dataclasses.fields(self.Config)}

    def preprocessing(self, config: Any) -> Preprocessing:
        return getattr(config, "preprocessing", Preprocessing())

    def check_spaces(self, spec: Spec, dataset: str) -> None:
        """Refuses data whose actions or observations the algorithm does not support.

        Raises:
            UserError: one line, which names the algorithms that support them.
        """
        unknown = [space for space in spec.spaces if space not in self.supports]
        if unknown:
            able = [name for name in names() if set(spec.spaces) <= set(load(name).supports)]
            raise UserError(
                f"algo={self.name}: supports {described(self.supports)}, but {dataset} has {described(unknown)}; "
                + (f"choose algo={'|'.join(able)}" if able else "no algorithm here does")
            )


def described(spaces: Iterable[str]) -> str:
    return " and ".join(SPACES[space] for space in spaces)


def names() -> list[str]:
    """The algorithms that come with offrl."""
    return sorted(module.name for module in pkgutil.iter_modules(offrl.algorithms.__path__))


def bundled(content: bytes) -> str | None:
    """The name of the algorithm of offrl whose file has exactly this content; None if there is none."""
    files = ((name, Path(folder) / f"{name}.py") for folder in offrl.algorithms.__path__ for name in names())
    return next((name for name, file in files if file.is_file() and file.read_bytes() == content), None)


def module_name(path: Path) -> str:
    """One module per path and content: a file loaded twice gives the same classes, so states stay one pytree type."""
    return f"offrl_algorithm_{hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:16]}"


def load(name_or_path: str) -> Algorithm:
    """The algorithm of that name, or the one in that .py file.

    Raises:
        UserError: there is no such algorithm or file, or the file breaks the contract.
    """
    if name_or_path.endswith(".py"):
        path = Path(name_or_path).expanduser().resolve()
        if not path.is_file():
            raise UserError(f"algo={name_or_path}: no such file; give the path of an algorithm file")
        module_id = module_name(path)
        if module_id in sys.modules:
            module = sys.modules[module_id]
        else:
            module_spec = importlib.util.spec_from_file_location(module_id, path)
            assert module_spec is not None
            assert module_spec.loader is not None
            module = importlib.util.module_from_spec(module_spec)
            sys.modules[module_id] = module  # dataclasses look their module up there
            try:
                module_spec.loader.exec_module(module)
            except Exception as error:
                del sys.modules[module_id]
                if isinstance(error, SyntaxError | ImportError):
                    raise UserError(f"algo={name_or_path}: cannot be imported: {error}") from error
                raise
        name = path.stem
    elif name_or_path in names():
        module = importlib.import_module(f"offrl.algorithms.{name_or_path}")
        name = name_or_path
    else:
        raise UserError(f"algo={name_or_path}: unknown algorithm; {nearest(name_or_path, names())}")

    missing = [item for item in ("Config", "init", "policy") if not hasattr(module, item)]
    if not hasattr(module, "update") and not hasattr(module, "phases"):
        missing.append("update")
    if missing:
        raise UserError(
            f"{module.__file__}: must define {', '.join(missing)} to be an algorithm; see offrl/algorithm.py"
        )
    if not (isinstance(module.Config, type) and dataclasses.is_dataclass(module.Config)):
        raise UserError(f"{module.__file__}: Config must be a flax.struct.dataclass; see offrl/algorithm.py")
    undescribed = [field.name for field in dataclasses.fields(module.Config) if "help" not in field.metadata]
    if undescribed:
        raise UserError(f"{module.__file__}: make Config's {', '.join(undescribed)} with offrl.algorithm.option")
    supports = tuple(getattr(module, "SUPPORTS", ("continuous",)))
    if not supports or not set(supports) <= set(SPACES):
        raise UserError(f"{module.__file__}: SUPPORTS={supports}: name some of {', '.join(SPACES)}")
    return Algorithm(
        name=name,
        file=Path(str(module.__file__)),
        Config=module.Config,
        init=module.init,
        policy=module.policy,
        phases=getattr(module, "phases", None) or (lambda config: (Phase("train", module.update),)),
        prepare=getattr(module, "prepare", None) or (lambda dataset, config: dataset.transitions()),
        from_data=getattr(module, "from_data", None) or (lambda dataset, config: {}),
        supports=supports,
        summary=(module.__doc__ or "").strip().splitlines()[0] if module.__doc__ else "",
    )
