"""Dict observations as one vector: the rule shared by the dataset sources and the simulators.

Keys are taken in sorted order, nested dicts likewise, tuples in their own order, and every array is unrolled in C
order. A goal-conditioned observation is therefore `achieved_goal, desired_goal, observation`. A part that is one of n
things (Gymnasium's Discrete) becomes a one-hot vector [n].
"""

from __future__ import annotations

from typing import Any

import numpy as np


def flatten_observation(observation: Any, space: Any) -> np.ndarray:
    """One observation (array, or a dict or tuple of them, nested) of a Gymnasium space, float32 [observation_dim]."""
    parts = zip(_leaves(observation), leaves(space), strict=True)
    return np.concatenate([_numbers(leaf, part).reshape(-1) for (_, leaf), part in parts])


def _numbers(observation: Any, space: Any) -> np.ndarray:
    if is_discrete(space):
        return (np.arange(space.n) == observation - space.start).astype(np.float32)
    return np.asarray(observation, np.float32)


def flatten_observations(observations: Any) -> np.ndarray:
    """A batch of observations (every array has a leading axis [rows]) as float32 [rows, observation_dim]."""
    leaves = [np.asarray(leaf, np.float32) for _, leaf in _leaves(observations)]
    return np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def flat_dimension(space: Any) -> int:
    """Length of the flattened observation of a Gymnasium space (Box or Discrete, Dict or Tuple of them)."""
    return sum(int(part.n) if is_discrete(part) else int(np.prod(part.shape)) for part in leaves(space))


def leaves(space: Any) -> list[Any]:
    """The parts of a Gymnasium space that are not made of others, in the order of the flattened observation."""
    return [part for _, part in _leaves(space)]


def is_discrete(space: Any) -> bool:
    """Whether it is Gymnasium's Discrete, without importing Gymnasium; MultiBinary also has an n, and a shape."""
    return hasattr(space, "n") and space.shape == ()


def flat_layout(tree: Any) -> tuple[str, ...]:
    """What stands where in a flattened space or observation, e.g. ("achieved_goal[2]", "observation[4]")."""
    return tuple(f"{name or 'observation'}[{int(np.prod(np.shape(leaf)))}]" for name, leaf in _leaves(tree))


def _leaves(tree: Any, name: str = "") -> list[tuple[str, Any]]:
    children = getattr(tree, "spaces", tree)  # Gymnasium's Dict and Tuple spaces keep their parts in `spaces`
    if hasattr(children, "keys"):
        items = [(str(key), children[key]) for key in sorted(children.keys())]
    elif isinstance(children, (tuple, list)) and not all(np.isscalar(child) for child in children):
        items = [(str(index), child) for index, child in enumerate(children)]
    else:
        return [(name, tree)]
    return [leaf for key, child in items for leaf in _leaves(child, f"{name}/{key}" if name else key)]
