"""Support diagnostics: order as designed, and against numpy."""

from dataclasses import replace

import numpy as np
import pools
import pytest

from offrl.learning.policies import Memory
from offrl.selection import distinct
from offrl.selection.diagnostics import support


@pytest.fixture(scope="module")
def dataset():
    return pools.linear_quadratic(episodes=80)


@pytest.fixture(scope="module")
def pool(dataset):
    """The good behaviour; nothing; its opposite at the bounds; then the good one again, a step later."""
    states = {
        1: [pools.linear(-0.9), pools.linear(0.0), pools.linear(30.0)],
        2: [pools.linear(-0.9), pools.linear(0.1), pools.linear(30.0)],
    }
    return pools.made_pool(dataset, pools.made_run(dataset, states))


def test_action_distances_against_numpy(pool, dataset):
    found = support.action_distances(pool)
    rows = pool.validation
    distance = ((np.clip(-0.9 * rows.observations, -1, 1) - rows.actions) ** 2).sum(1)
    np.testing.assert_allclose(found["action_distance"].value[0], distance.mean(), rtol=1e-5)
    weight = np.exp(dataset.returns / dataset.returns.std())[rows.episodes]
    np.testing.assert_allclose(
        found["return_weighted_action_distance"].value[0], (weight * distance).sum() / weight.sum(), rtol=1e-5
    )
    train = ((np.clip(-0.9 * pool.train.observations, -1, 1) - pool.train.actions) ** 2).sum(1)
    np.testing.assert_allclose(found["action_distance_ratio"].value[0], distance.mean() / train.mean(), rtol=1e-5)
    # the good behaviour made half of the data, and the better half
    share = found["return_weighted_action_distance"].value / found["action_distance"].value
    assert share[0] < share[2]


def test_a_policy_that_is_the_data_has_distance_zero_and_is_rarely_out(pool, monkeypatch):
    rows = pool.validation
    logged = np.broadcast_to(rows.actions, (len(pool), *rows.actions.shape))
    of_policies = pool.actions
    monkeypatch.setattr(pool, "actions", lambda where: logged if where == "validation" else of_policies(where))
    assert (support.action_distances(pool)["action_distance"].value == 0).all()
    assert np.abs(support.behaviour_log_prob(pool)["behaviour_log_prob"].value).max() < 1e-5
    assert (np.abs(support.ood_fraction(pool)["ood_fraction"].value - 0.05) < 0.03).all()


def test_neighbours_are_those_of_brute_force(pool):
    near = support.neighbourhood(pool.train)
    rows = pool.train
    x = near.whiten(rows.observations, rows.actions).astype(np.float64)
    np.testing.assert_allclose(np.cov(x.T), np.eye(4), atol=1e-3)
    squared = ((x[:, None] - x) ** 2).sum(-1)
    squared[rows.episodes[:, None] == rows.episodes] = np.inf
    fifth = np.sort(squared, 1)[:, 4]
    np.testing.assert_allclose(near.squared_radius, np.quantile(fifth, 0.95), rtol=1e-2)
    held_out = pool.validation
    queries = near.whiten(held_out.observations, pool.actions("validation")[2]).astype(np.float64)
    far = np.sort(((queries[:, None] - x) ** 2).sum(-1), 1)[:, 4] > near.squared_radius
    found = support.ood_fraction(pool)["ood_fraction"].value
    np.testing.assert_allclose(found[2], far.mean(), atol=0.01)
    assert found[0] < found[4]


def test_a_clone_knows_the_behaviour(pool):
    found = support.behaviour_log_prob(pool)["behaviour_log_prob"]
    assert found.value[0] > found.value[2] > found.value[4]
    assert found.standard_error[0] > 0
    clone = support.behaviour_clone(pool)
    assert clone is support.behaviour_clone(pool.subset([1]))
    # half a narrow Gaussian (0.1), half uniform: the entropy of the mixture is near this
    assert 0.0 < clone.nll < 1.4
    grid = np.stack(np.meshgrid(*[np.linspace(-1.995, 1.995, 400)] * 2), -1).reshape(-1, 2)
    states = np.broadcast_to(np.float32([0.3, -0.4]), grid.shape)
    density = np.exp(clone.log_prob(states, grid.astype(np.float32)))
    assert abs(density.sum() * 0.01**2 - 1) < 0.05  # but for what lies beyond and the uniform part


def test_saturation_and_jerk(pool):
    found = support.motion(pool)
    rows = pool.validation
    np.testing.assert_allclose(
        found["saturation"].value[4], (np.abs(30 * rows.observations) > 0.99).mean(), atol=1e-6
    )  # fmt: skip
    step = np.linalg.norm(
        np.clip(-0.9 * rows.next_observations, -1, 1) - np.clip(-0.9 * rows.observations, -1, 1), axis=1
    )
    np.testing.assert_allclose(found["jerk"].value[0], step.mean(), rtol=1e-5)
    assert found["saturation"].value[2] == 0


def test_drift_is_from_the_checkpoint_before(pool):
    found = support.policy_drift(pool)["policy_drift"]
    assert np.isnan(found.value[[0, 2, 4]]).all()
    assert "first" in found.reasons[0]
    assert found.value[1] == 0
    np.testing.assert_allclose(found.value[3], (0.01 * pool.validation.observations**2).sum(1).mean(), rtol=1e-4)


def test_duplicates_go_to_the_first_of_their_kind(pool):
    distances = distinct.policy_distances(pool)
    np.testing.assert_allclose(distances, distances.T)
    assert (np.diag(distances) == 0).all()
    expected = np.linalg.norm(0.1 * pool.validation.observations, axis=1).mean()
    np.testing.assert_allclose(distances[2, 3], expected, rtol=1e-4)
    assert distinct.duplicates(distances).tolist() == [0, 0, 2, 3, 4, 4]


def test_a_policy_with_memory_is_like_no_other_and_is_not_made_to_act(dataset, monkeypatch):
    plain, remembering = (pools.made_run(dataset, {1: [pools.linear(-0.9)] * 2}) for _ in range(2))
    monkeypatch.setitem(
        remembering.__dict__, "policy", replace(remembering.policy, memory=Memory(*[lambda *_: None] * 3))
    )
    distances = distinct.policy_distances(pools.made_pool(dataset, plain, remembering))
    np.testing.assert_array_equal(distances, np.where(np.outer([1, 1, 0, 0], [1, 1, 0, 0]), 0, np.nan))
    assert distinct.duplicates(distances).tolist() == [0, 0, 2, 3]
    assert distinct.diverse(distances[2:, 2:], [], 3) == []


def test_what_to_try_next_is_the_best_ranked_that_differ():
    places = np.array([0.0, 0.01, 1.0, 1.1, 3.0])
    distances = np.abs(places[:, None] - places)  # the median over pairs is 1.1
    assert distinct.diverse(distances, [1, 0, 2, 3, 4], 3) == [1, 2, 4]
    assert distinct.diverse(distances, [3, 2, 0], 5) == [3, 0]
    assert distinct.diverse(np.zeros((1, 1)), [0], 3) == [0]


def test_nothing_is_said_without_held_out_rows_but_of_the_policy_alone(dataset):
    pool = pools.made_pool(dataset, pools.made_run(dataset, {1: [pools.linear(-0.9)]}, validation_fraction=0.0))
    for measure in (support.action_distances, support.behaviour_log_prob, support.ood_fraction):
        for scores in measure(pool).values():
            assert "held out" in scores.reasons[0]
    assert np.isfinite(support.motion(pool)["jerk"].value).all()
