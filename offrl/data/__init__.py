"""What was logged: `load(name)` reads and checks a dataset; `Dataset` keeps whole episodes, and derives views."""

from offrl.data.checks import check_environment
from offrl.data.dataset import Dataset, Dynamics, Reference, Transitions
from offrl.data.preprocessing import apply_transforms, preprocess
from offrl.data.sources import load
from offrl.data.transforms import Preprocessing, observation_statistics
from offrl.data.views import (
    EpisodeSteps,
    Preferences,
    Windows,
    episode_labels,
    episode_steps,
    preferences,
    windows_from,
    windows_until,
)

__all__ = [
    "Dataset",
    "Dynamics",
    "EpisodeSteps",
    "Preferences",
    "Preprocessing",
    "Reference",
    "Transitions",
    "Windows",
    "apply_transforms",
    "check_environment",
    "episode_labels",
    "episode_steps",
    "load",
    "observation_statistics",
    "preferences",
    "preprocess",
    "windows_from",
    "windows_until",
]
