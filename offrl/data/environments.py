"""What a named Gymnasium environment says that a log does not: its time limit and action box."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np

from offrl.errors import UserError, nearest


def limit(env_id: str) -> int | None:
    """Steps after which the environment cuts an episode, or None; no environment is made."""
    return _spec(env_id).max_episode_steps


def box(env_id: str, env_kwargs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(low, high), float32 [action_dim], of the environment's action space."""
    _spec(env_id)
    environment = gymnasium.make(env_id, **env_kwargs)
    space = environment.action_space
    environment.close()
    if not isinstance(space, gymnasium.spaces.Box):
        raise UserError(f"{env_id} has discrete actions ({space}), which are not supported")
    return space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)


def _spec(env_id: str) -> Any:
    if env_id not in gymnasium.registry and importlib.util.find_spec("gymnasium_robotics"):
        import gymnasium_robotics

        gymnasium.register_envs(gymnasium_robotics)
    if env_id not in gymnasium.registry:
        raise UserError(f"environment {env_id!r} is unknown; {nearest(env_id, gymnasium.registry)}")
    return gymnasium.registry[env_id]
