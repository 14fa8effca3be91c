"""The run directory: what a run is, its configuration, checkpoints, tracking, averages."""
