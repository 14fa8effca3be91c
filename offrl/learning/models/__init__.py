"""Learned models of the environment: ensembles, what ends a rollout, penalties for uncertainty, rollouts."""
