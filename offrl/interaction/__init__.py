"""Collecting with a policy in its environment; what has done so is no longer offline, and its run says so."""
