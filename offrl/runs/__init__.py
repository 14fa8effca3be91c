"""The run directory: what a run is, its configuration, checkpoints, tracking, averages."""

from offrl.runs.run import Run

__all__ = ["Run"]
