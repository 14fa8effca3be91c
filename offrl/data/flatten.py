"""Observations of several parts as one vector: the rule shared by the dataset sources and the simulators.

Keys are taken in sorted order, nested dicts likewise, tuples in their own order, and every array is unrolled in C
order. A goal-conditioned observation is therefore `achieved_goal, desired_goal, observation`. A part that is one of n
things (Gymnasium's Discrete) becomes a one-hot vector [n]. Images are no part of a vector: they stay as they are.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def flatten_observation(observation: Any, space: Any) -> np.ndarray:
    """One observation (array, or a dict or tuple of them, nested) of a Gymnasium space, float32 [observation_dim]."""
    parts = zip(_leaves(observation), leaves(space), strict=True)
    return np.concatenate([_numbers(leaf, part).reshape(-1) for (_, leaf), part in parts])


def flatten_observations(observations: Any, space: Any = None) -> np.ndarray:
    """A batch of observations (every array has a leading axis [rows]) as float32 [rows, observation_dim].

    space: None where it is not known, and no part is discrete.
    """
    found = [leaf for _, leaf in _leaves(observations)]
    parts = [None] * len(found) if space is None else leaves(space)
    columns = [_numbers(np.asarray(leaf).reshape(len(leaf), -1), part) for leaf, part in zip(found, parts, strict=True)]
    return np.concatenate(columns, axis=1)


def _numbers(observation: Any, space: Any) -> np.ndarray:
    if is_discrete(space):
        return one_hot_vectors(observation - space.start, space.n)
    return np.asarray(observation, np.float32)


def one_hot_vectors(values: Any, count: int) -> np.ndarray:
    """Whole numbers from 0 as vectors of `count` zeros and a one, float32: a number, or [rows, 1] to [rows, count]."""
    return (np.arange(count) == values).astype(np.float32)


def flat_dimension(space: Any) -> int:
    """Length of the flattened observation of a Gymnasium space (Box or Discrete, Dict or Tuple of them)."""
    return sum(_size(part) for part in leaves(space))


def leaves(space: Any) -> list[Any]:
    """The parts of a Gymnasium space that are not made of others, in the order of the flattened observation."""
    return [part for _, part in _leaves(space)]


def is_discrete(space: Any) -> bool:
    """Whether it is Gymnasium's Discrete, without importing Gymnasium; MultiBinary also has an n, and a shape."""
    return hasattr(space, "n") and space.shape == ()


def is_image(space: Any) -> bool:
    """Whether observations are images: bytes [height, width, channels]."""
    return getattr(space, "dtype", None) == np.uint8 and len(space.shape) == 3


def flat_layout(tree: Any) -> tuple[str, ...]:
    """The parts of a flattened space or observation with their sizes, e.g. ("achieved_goal[2]", "observation[4]")."""
    return tuple(f"{name or 'observation'}[{_size(leaf)}]" for name, leaf in _leaves(tree))


def space_of(description: dict[str, Any]) -> Any:
    """A space of Box, Discrete, Dict and Tuple, as Minari describes it in JSON, for the functions here."""
    parts = description.get("subspaces")
    if isinstance(parts, dict):
        return {key: space_of(part) for key, part in parts.items()}
    if parts is not None:
        return [space_of(part) for part in parts]
    if description["type"] == "Discrete":
        return SimpleNamespace(shape=(), n=int(description["n"]), start=int(description.get("start", 0)))
    return SimpleNamespace(shape=tuple(description["shape"]), dtype=np.dtype(description["dtype"]))


def _size(leaf: Any) -> int:
    """Numbers in a leaf of a flattened space or observation."""
    return int(leaf.n) if is_discrete(leaf) else int(np.prod(getattr(leaf, "shape", ())))


def _leaves(tree: Any, name: str = "") -> list[tuple[str, Any]]:
    children = getattr(tree, "spaces", tree)  # Gymnasium's Dict and Tuple spaces keep their parts in `spaces`
    if hasattr(children, "keys"):
        items = [(str(key), children[key]) for key in sorted(children.keys())]
    elif isinstance(children, (tuple, list)) and not all(np.isscalar(child) for child in children):
        items = [(str(index), child) for index, child in enumerate(children)]
    else:
        return [(name, tree)]
    return [leaf for key, child in items for leaf in _leaves(child, f"{name}/{key}" if name else key)]
