"""Refactoring leaves the numbers of training as they are: digests of every algorithm's run at protocol=smoke."""

import pytest
import training_digests

import offrl.algorithm

STORED = training_digests.stored().get(training_digests.machine(), {})


def with_cost(name: str):
    """A start and a compilation each: two stand for all in the quick tests."""
    return pytest.param(name, marks=() if name in ("bc", "td3_bc") else pytest.mark.slow)


@pytest.mark.parametrize("name", [with_cost(name) for name in offrl.algorithm.names()])
def test_training_makes_the_numbers_that_it_made_before(name):
    if name not in STORED:
        pytest.skip(f"no digest of {name} for {training_digests.machine()}: tests/training_digests.py --write")
    assert training_digests.digest(name) == STORED[name]
