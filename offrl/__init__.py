"""Offline reinforcement learning: single-file algorithms, one dataset loader, one evaluation protocol."""

__version__ = "0.1.0"
