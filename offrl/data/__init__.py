"""Datasets: `load(name)` reads and checks one; `Dataset` holds whole episodes and derives the views."""

from offrl.data.checks import check_environment
from offrl.data.dataset import Dataset, Dynamics, Reference, Sequences, Transitions
from offrl.data.preprocessing import apply_transforms, preprocess
from offrl.data.sources import load
from offrl.data.transforms import Preprocessing, observation_statistics

__all__ = [
    "Dataset",
    "Dynamics",
    "Preprocessing",
    "Reference",
    "Sequences",
    "Transitions",
    "apply_transforms",
    "check_environment",
    "load",
    "observation_statistics",
    "preprocess",
]
