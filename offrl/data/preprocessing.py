"""From options to transforms: statistics come from the training split and travel with the dataset and the run.

Applying the training split's transforms to validation data is copying the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from offrl.data.dataset import Dataset
from offrl.data.transforms import (
    RETURN_RANGE,
    REWARD_STD,
    SCALE_SHIFT,
    STANDARDIZE,
    Preprocessing,
    Transform,
)
from offrl.errors import UserError


def preprocess(train: Dataset, preprocessing: Preprocessing) -> Dataset:
    """`train` with the transforms that `preprocessing` asks for, their statistics computed from `train` alone."""
    transforms: list[Transform] = [train.action_transform(preprocessing.action_margin)]
    images = train.observations.dtype == np.uint8
    if preprocessing.observations == "standardize" and not images:  # a network scales those
        observations = train.observations[train.observation_rows].astype(np.float64)
        transforms.append(
            {
                "name": STANDARDIZE,
                "mean": observations.mean(axis=0).tolist(),
                "std": observations.std(axis=0).tolist(),
                "epsilon": float(preprocessing.observation_epsilon),
            }
        )
    if preprocessing.rewards == "return_range":
        low, high = float(train.returns.min()), float(train.returns.max())
        if high <= low:
            raise UserError(
                f"preprocessing: rewards=return_range, but all {train.episodes} episodes of {train.name} "
                f"have the return {low:g}; use rewards=none or standardize"
            )
        transforms.append({"name": RETURN_RANGE, "smallest": low, "largest": high, "factor": 1000.0 / (high - low)})
    elif preprocessing.rewards in ("standardize", "z_score"):
        mean, std = (float(statistic(train.rewards.astype(np.float64))) for statistic in (np.mean, np.std))
        if std == 0:
            raise UserError(
                f"preprocessing: rewards={preprocessing.rewards}, but the reward of {train.name} is constant; "
                "use rewards=none"
            )
        if preprocessing.rewards == "standardize":
            transforms.append({"name": REWARD_STD, "std": std, "factor": 1.0 / std})
        else:
            transforms.append({"name": SCALE_SHIFT, "scale": 1.0 / std, "shift": -mean / std})
    if preprocessing.reward_scale != 1.0 or preprocessing.reward_shift != 0.0:
        transforms.append(
            {
                "name": SCALE_SHIFT,
                "scale": float(preprocessing.reward_scale),
                "shift": float(preprocessing.reward_shift),
            }
        )
    return replace(train, transforms=tuple(transforms))


def apply_transforms(dataset: Dataset, transforms: Iterable[Transform]) -> Dataset:
    """`dataset` (validation data, say) with the recorded transforms of another; no statistics are computed from it."""
    return replace(dataset, transforms=tuple(transforms))
