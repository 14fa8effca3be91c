"""Checks of the data: each on data made to pass it and to fail it."""

from dataclasses import replace

import numpy as np
import pools
import pytest

from offrl.selection.diagnostics import data


@pytest.fixture(scope="module")
def dataset():
    return pools.linear_quadratic(episodes=100)


def only(dataset, parity):
    return dataset.select_episodes(np.arange(dataset.episodes)[parity::2])


def test_return_profile(dataset):
    found = {check.check: check for check in data.return_profile(dataset)}
    low, median, high = np.quantile(dataset.returns, [0.05, 0.5, 0.95])
    assert found["return_skew"].value == pytest.approx((high - median) / (high - low))
    assert found["return_mean"].value == pytest.approx(dataset.returns.mean())
    assert found["truncated"].value == 1.0
    rewards = np.zeros_like(dataset.rewards)
    flat = {check.check: check for check in data.return_profile(replace(dataset, rewards=rewards))}
    assert flat["return_spread"].level == "warning"


def test_narrow_data_have_little_coverage_and_are_predictable(dataset):
    narrow, broad = data.sample(only(dataset, 0)), data.sample(only(dataset, 1))
    assert data.action_coverage(narrow) < 0.35  # noise of 0.1 and the states' distance, against 0.58
    assert data.action_coverage(broad) > 0.9
    assert data.action_coverage(narrow) < data.action_coverage(data.sample(dataset)) < data.action_coverage(broad)
    explained = data.predictability(narrow)
    variance = narrow.actions.var(0).sum()
    assert explained.value == pytest.approx(1 - 2 * 0.1**2 / variance, abs=0.1)


def test_coverage_of_a_pool_is_that_of_its_data(dataset):
    pool = pools.made_pool(dataset, pools.made_run(dataset, {1: [pools.linear()]}))
    assert data.coverage(pool) == data.action_coverage(data.sample(dataset))


def test_stationarity_sees_a_change_half_way_and_only_that(dataset):
    assert data.stationarity(dataset).value > 0.05
    changed = dataset.rewards.copy()
    changed[len(changed) // 2 :] -= 0.5
    found = data.stationarity(replace(dataset, rewards=changed))
    assert found.value < 0.02
    assert found.level == "note"
    shuffled = replace(dataset, rewards=changed).select_episodes(np.random.default_rng(1).permutation(100))
    assert data.stationarity(shuffled).value > 0.05
    assert np.isnan(data.stationarity(dataset.select_episodes([0, 1, 2])).value)


def test_stationarity_is_of_the_level_it_claims():
    p = [data.stationarity(pools.linear_quadratic(episodes=24, length=10, seed=seed)).value for seed in range(40)]
    assert np.mean(np.array(p) <= 0.1) < 0.25
    assert 0.3 < np.mean(p) < 0.7


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_stochasticity_is_the_share_of_noise_in_the_change(noise):
    dataset = pools.linear_quadratic(episodes=200, noise=noise)
    rows = data.sample(dataset)
    share = (noise**2 / (rows.next_observations - rows.observations).var(0)).mean()
    assert data.stochasticity(rows).value == pytest.approx(share, abs=0.08)


def test_rewards_are_determined_by_state_and_action_up_to_their_noise():
    dataset = pools.linear_quadratic(episodes=200)
    assert data.reward_determined(data.sample(dataset)).value > 0.95
    noise = np.random.default_rng(0).normal(0, 2 * dataset.rewards.std(), dataset.steps)
    noisy = data.reward_determined(data.sample(replace(dataset, rewards=dataset.rewards + noise.astype(np.float32))))
    assert noisy.value == pytest.approx(1 / 5, abs=0.1)
    assert noisy.level == "note"
    flat = data.reward_determined(data.sample(replace(dataset, rewards=np.ones_like(dataset.rewards))))
    assert np.isnan(flat.value)


def test_all_checks_make_one_table(dataset):
    table = data.checks(dataset)
    assert table["check"].is_unique
    assert set(table["level"]) <= {"ok", "note", "warning"}
    assert table["message"].map(len).gt(0).all()
