"""Collecting data with a policy in its environment; a run that has done so is no longer offline, and is marked."""
