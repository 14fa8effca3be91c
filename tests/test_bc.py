"""BC: its loss written out, and %BC, which keeps the best whole trajectories."""

from dataclasses import replace

import numpy as np
import pytest
from plain import random_batch, random_dataset, random_state, tanh_actor

from offrl.algorithm import Spec
from offrl.algorithms import bc
from offrl.data import Dataset
from offrl.errors import UserError

SPEC = Spec(observation_dim=3, action_dim=2, updates=100)


def late_and_early() -> Dataset:
    """Returns 1, 5, 3, 4; the 5 comes at the end of its episode, the 4 at the start."""
    data = random_dataset(lengths=(4, 4, 4, 4), terminal=(True,) * 4)
    rewards = np.zeros((4, 4), np.float32)
    rewards[0, 0], rewards[1, 3], rewards[2, 1], rewards[3, 0] = 1, 5, 3, 4
    return replace(data, rewards=rewards.reshape(-1))


def kept_episodes(data: Dataset, **options) -> list[int]:
    """The episodes that the training data consists of; fails if one is not complete."""
    view, everything = bc.prepare(data, bc.Config(**options)), data.transitions()
    blocks = view.observations.reshape(-1, 4, 3)
    kept = [int(np.argmax((everything.observations.reshape(-1, 4, 3) == block).all((1, 2)))) for block in blocks]
    for column, all_rows in zip(view[:-1], everything[:-1], strict=True):  # the last are the user's own columns, none
        assert (column == np.concatenate([all_rows[4 * episode : 4 * episode + 4] for episode in kept])).all()
    return kept


def test_the_loss_is_the_squared_error_over_rows_and_action_dimensions():
    batch, config = random_batch(), bc.Config(hidden_dims=(16, 16))
    state = random_state(bc, config, SPEC, ("actor",))
    expected = np.mean((tanh_actor(state.actor, batch.observations) - batch.actions) ** 2)
    np.testing.assert_allclose(bc.actor_loss(state.actor, batch, config)[0], expected, rtol=1e-5)


def test_by_default_every_episode_is_cloned():
    assert kept_episodes(late_and_early()) == [0, 1, 2, 3]


def test_a_fraction_keeps_exactly_the_whole_trajectories_of_highest_return():
    assert kept_episodes(late_and_early(), fraction=0.5) == [1, 3]
    assert kept_episodes(late_and_early(), fraction=0.75) == [1, 2, 3]
    assert kept_episodes(late_and_early(), fraction=0.01) == [1]  # never nothing


def test_the_ranking_may_discount():
    assert kept_episodes(late_and_early(), fraction=0.25, ranking_discount=0.9) == [3]


def test_a_fraction_of_nothing_is_refused():
    with pytest.raises(UserError, match="fraction"):
        bc.prepare(late_and_early(), bc.Config(fraction=0.0))
