"""Named, recorded transforms, and the options that choose them; `preprocessing.py` takes their statistics from data.

A transform is a JSON-able dict `{"name": ..., statistics}`. A `Dataset` keeps its arrays raw and lists its transforms;
the derived views apply them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from offrl.errors import UserError, nearest

Transform = dict[str, Any]
UNIT_BOX = "actions to unit box"
ONE_HOT = "one-hot actions"
STANDARDIZE = "standardize observations"
RETURN_RANGE = "rewards by return range"
REWARD_STD = "rewards by standard deviation"
SCALE_SHIFT = "reward scale and shift"

ObservationChoice = Literal["none", "standardize"]
RewardChoice = Literal["none", "return_range", "standardize", "z_score"]


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Preprocessing:
    """What is done to the data before training. The defaults do nothing beyond mapping actions to [-1, 1].

    observations: "none" | "standardize": (x - mean) / (std + observation_epsilon), over the observations that have an
      action (the one after an episode's last action is transformed but not counted), as in TD3+BC.
    rewards: "none" | "return_range": r * 1000 / (largest - smallest undiscounted episode return), as in IQL;
      "standardize": r / standard deviation of all rewards (the mean stays, so that the sign of a reward does);
      "z_score": (r - mean) / standard deviation, as EDAC does on Adroit.
    reward_scale, reward_shift: r * reward_scale + reward_shift, after the above (AntMaze in IQL: shift -1).
    action_margin: unit-box actions are clipped to +-(1 - action_margin) (IQL: 1e-5).
    """

    observations: ObservationChoice = _option("none", "none, or standardize: (x - mean) / (std + observation_epsilon)")
    observation_epsilon: float = _option(1e-3, "added to the standard deviation that observations are divided by")
    rewards: RewardChoice = _option(
        "none", "none, return_range: 1000 r / (max - min return), standardize: r / std, z_score"
    )
    reward_scale: float = _option(1.0, "factor of the rewards, after what `rewards` does")
    reward_shift: float = _option(0.0, "added to the rewards, after reward_scale")
    action_margin: float = _option(0.0, "actions, in [-1, 1], are clipped to +-(1 - action_margin)")

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("observations", self.observations, get_args(ObservationChoice)),
            ("rewards", self.rewards, get_args(RewardChoice)),
        ):
            if value not in choices:
                raise UserError(f"preprocessing: {name}={value!r} is unknown; {nearest(str(value), choices)}")
        if not self.observation_epsilon >= 0:
            raise UserError(f"preprocessing: observation_epsilon={self.observation_epsilon} must be 0 or more")
        if not 0 <= self.action_margin < 1:
            raise UserError(f"preprocessing: action_margin={self.action_margin} must be in [0, 1)")


def unit_box(low: np.ndarray, high: np.ndarray, margin: float = 0.0) -> Transform:
    """The transform that maps the action box [low, high] to [-1, 1]; every dataset carries one."""
    return {
        "name": UNIT_BOX,
        "low": np.asarray(low, np.float64).tolist(),
        "high": np.asarray(high, np.float64).tolist(),
        "margin": float(margin),
    }


def one_hot(count: int) -> Transform:
    """The transform that makes a vector of `count` zeros and a one of a discrete action; in place of the unit box."""
    return {"name": ONE_HOT, "count": int(count)}


def find(transforms: Iterable[Transform], name: str) -> Transform | None:
    """The recorded transform of that name, or None."""
    return next((transform for transform in transforms if transform["name"] == name), None)


def observation_statistics(transforms: Iterable[Transform], observation_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """`mean, std`, float32 [observation_dim] each: policies see (x - mean) / std. Zeros and ones where nothing is done.

    `std` includes the epsilon.
    """
    transform = find(transforms, STANDARDIZE)
    if transform is None:
        return np.zeros(observation_dim, np.float32), np.ones(observation_dim, np.float32)
    std = np.asarray(transform["std"], np.float64) + transform["epsilon"]
    return np.asarray(transform["mean"], np.float32), std.astype(np.float32)


def transform_observations(transforms: Iterable[Transform], observations: Any) -> Any:
    """Raw observations [..., observation_dim] as the policy sees them, float32; images (uint8) as they are.

    Of numpy or jax, as the result is.
    """
    if observations.dtype == np.uint8:  # a network divides by 255: a quarter of the memory until then
        return observations
    mean, std = observation_statistics(transforms, observations.shape[-1])
    return ((observations - mean) / std).astype(np.float32)


def transform_rewards(transforms: Iterable[Transform], rewards: np.ndarray) -> np.ndarray:
    """Raw rewards as the algorithm sees them, float32, the transforms in the order recorded."""
    result = rewards.astype(np.float64)
    for transform in transforms:
        if transform["name"] in (RETURN_RANGE, REWARD_STD):
            result = result * transform["factor"]
        elif transform["name"] == SCALE_SHIFT:
            result = result * transform["scale"] + transform["shift"]
    return result.astype(np.float32)


def actions_to_unit_box(transforms: Iterable[Transform], actions: np.ndarray) -> np.ndarray:
    """Actions in the source's units [..., action_dim] to [-1, 1] (clipped there, or to +-(1 - margin)), float32.

    Discrete actions [..., 1] become one-hot vectors [..., count].
    """
    if (discrete := find(transforms, ONE_HOT)) is not None:
        return (actions == np.arange(discrete["count"])).astype(np.float32)
    transform = find(transforms, UNIT_BOX)
    assert transform is not None, "every dataset records its action box"
    low, high = np.asarray(transform["low"]), np.asarray(transform["high"])
    limit = 1.0 - transform["margin"]
    return np.clip(2.0 * (actions - low) / (high - low) - 1.0, -limit, limit).astype(np.float32)


def actions_from_unit_box(transforms: Iterable[Transform], actions: np.ndarray) -> np.ndarray:
    """Actions in [-1, 1] (clipped to it) back to the source's units, float32: what the environment is given.

    One-hot vectors [..., count] (or preferences: the largest counts) become discrete actions, int32 [..., 1].
    """
    if find(transforms, ONE_HOT) is not None:
        return np.argmax(actions, axis=-1)[..., None].astype(np.int32)
    transform = find(transforms, UNIT_BOX)
    assert transform is not None, "every dataset records its action box"
    low, high = np.asarray(transform["low"]), np.asarray(transform["high"])
    return (low + (np.clip(actions, -1.0, 1.0) + 1.0) / 2.0 * (high - low)).astype(np.float32)
