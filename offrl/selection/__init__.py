"""Choosing a policy from the data alone: the pool, diagnostics, selectors, the decision."""
