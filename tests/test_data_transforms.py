"""Preprocessing: named, recorded, with statistics of the training split only."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from test_data_views import make

from offrl.data import Preprocessing, apply_transforms, observation_statistics, preprocess
from offrl.data.transforms import actions_from_unit_box
from offrl.errors import UserError


def test_by_default_only_actions_are_mapped_and_that_is_recorded():
    data = preprocess(make(), Preprocessing())
    assert [transform["name"] for transform in data.transforms] == ["actions to unit box"]
    np.testing.assert_array_equal(data.transitions().rewards, data.rewards[data.transition_rows])
    assert make().transforms == data.transforms


def test_standardised_observations_use_the_observations_that_have_an_action():
    data = preprocess(make(), Preprocessing(observations="standardize", observation_epsilon=0.5))
    with_action = make().observations[make().observation_rows].astype(float)
    mean, std = with_action.mean(axis=0), with_action.std(axis=0)
    view = data.transitions()
    np.testing.assert_allclose(view.observations, (with_action[data.transition_rows] - mean) / (std + 0.5), rtol=1e-4)
    np.testing.assert_allclose(
        view.next_observations, (with_action[data.transition_rows] + 1 - mean) / (std + 0.5), rtol=1e-4
    )
    recorded_mean, recorded_std = observation_statistics(data.transforms, 2)
    np.testing.assert_allclose(recorded_mean, mean, rtol=1e-6)
    np.testing.assert_allclose(recorded_std, std + 0.5, rtol=1e-6)


def test_observation_statistics_are_zeros_and_ones_where_nothing_is_done():
    mean, std = observation_statistics(make().transforms, 2)
    assert mean.tolist() == [0, 0]
    assert std.tolist() == [1, 1]


def test_rewards_by_return_range_then_scale_and_shift():
    data = preprocess(make(), Preprocessing(rewards="return_range", reward_scale=2.0, reward_shift=-1.0))
    returns = make().returns
    expected = make().rewards[data.transition_rows] * 1000 / (returns.max() - returns.min()) * 2 - 1
    np.testing.assert_allclose(data.transitions().rewards, expected, rtol=1e-6)
    np.testing.assert_array_equal(data.returns, returns)  # of raw rewards, whatever the views do


def test_rewards_by_standard_deviation_keep_their_mean():
    data = preprocess(make(), Preprocessing(rewards="standardize"))
    np.testing.assert_allclose(data.transitions().rewards, make().rewards[:8] / make().rewards.std(), rtol=1e-6)


def test_the_z_score_of_rewards_takes_their_mean_away_too():
    data, rewards = preprocess(make(), Preprocessing(rewards="z_score")), make().rewards.astype(float)
    expected = (rewards[:8] - rewards.mean()) / rewards.std()
    np.testing.assert_allclose(data.transitions().rewards, expected, rtol=1e-5, atol=1e-6)


def test_a_margin_keeps_actions_off_the_border_and_actions_come_back():
    raw = replace(make(), actions=np.linspace(-2, 2, 9, dtype=np.float32)[:, None])
    data = preprocess(raw, Preprocessing(action_margin=1e-2))
    actions = data.transitions().actions
    assert actions.min() == np.float32(-0.99)
    np.testing.assert_allclose(actions_from_unit_box(data.transforms, actions[1:]), raw.actions[1:8], atol=1e-6)


def test_validation_data_take_the_statistics_of_the_training_split():
    train, validation = make(lengths=(3,) * 6, terminal=(False,) * 6, known=(True,) * 6).split(0.3, seed=0)
    train = preprocess(train, Preprocessing(observations="standardize", rewards="return_range"))
    other = apply_transforms(validation, train.transforms)
    assert other.transforms == train.transforms
    mean, std = observation_statistics(train.transforms, 2)
    expected = (validation.observations[validation.observation_rows] - mean) / std
    np.testing.assert_allclose(other.transitions().observations, expected, rtol=1e-5)


def test_transforms_survive_json():
    data = preprocess(make(), Preprocessing(observations="standardize", rewards="return_range", reward_shift=-1))
    again = apply_transforms(make(), json.loads(json.dumps(data.transforms)))
    for one, other in zip(data.transitions(), again.transitions(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_subsets_keep_the_transforms():
    data = preprocess(make(), Preprocessing(observations="standardize"))
    assert data.top_fraction(0.4).transforms == data.transforms


def test_impossible_preprocessing_is_refused():
    with pytest.raises(UserError, match="did you mean standardize"):
        Preprocessing(observations="standardise")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="action_margin"):
        Preprocessing(action_margin=1.0)
    constant = replace(make(lengths=(2, 2, 2)), rewards=np.ones(6, np.float32))
    with pytest.raises(UserError, match="all 3 episodes of test have the return 2"):
        preprocess(constant, Preprocessing(rewards="return_range"))
    with pytest.raises(UserError, match="constant"):
        preprocess(constant, Preprocessing(rewards="standardize"))
