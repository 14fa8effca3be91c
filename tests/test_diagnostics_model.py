"""Rollouts in a learned model: values, doubts, and the bound by which TOReL selects."""

from functools import partial

import numpy as np
import pytest
from pools import linear, linear_quadratic, made_pool, made_run

from offrl.diagnostics import evaluation, model
from offrl.diagnostics.evaluation import DISCOUNT


def test_truncated_value_by_hand():
    """Two members, one rollout: one lives on, the other ended in its second step."""
    rewards = np.array([[[1.0], [1.0]], [[2.0], [0.0]]])
    value = model.truncated_value(rewards, np.array([[10.0], [10.0]]), np.array([[True], [False]]))
    np.testing.assert_allclose(value, [[1 + 2 * DISCOUNT + 10 * DISCOUNT**2], [1.0]])


def test_torel_by_hand():
    values = np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 4.0]])  # of 4 at most: means 0.5, 0.5, 0.75
    uncertainty = 2 * np.sqrt(np.var([0.5, 0.5, 0.75]) + (0.0625 + 0 + 0.0625) / 3)
    weights = np.array([[1.0, 1.0], [2.0, 0.0]])
    found = model.torel(values, weights, 0.0, 4.0)
    assert found[0] == pytest.approx(max(uncertainty, 0.5))
    assert found[1] == pytest.approx(max(2 * np.std([0.25, 0.5, 0.5]), 0.5))
    assert (model.torel(values, weights, -1000.0, 4.0) <= 1).all()


@pytest.fixture(scope="module")
def small():
    """Smaller networks, and behaviour values that are fitted to the little that there is."""
    with pytest.MonkeyPatch.context() as patch:
        options = {"ensemble_size": 3, "elites": 3, "dynamics_hidden_dims": (32, 32), "dynamics_updates": 800}
        patch.setattr(model, "imagine", partial(model.imagine, short=10, horizon=20))
        patch.setattr(model, "SHORT", 10)
        patch.setattr(model, "STARTS", 40)
        patch.setattr(model, "CONFIG", model.CONFIG.replace(**options, termination_hidden_dims=(16,)))
        patch.setattr(evaluation, "HIDDEN_DIMS", (16, 16))
        patch.setattr(evaluation, "fit_behaviour", partial(evaluation.fit_behaviour, updates=300))
        yield


@pytest.fixture(scope="module")
def pool(small):
    states = [linear(-0.9), linear(0.0), linear(1.0), linear(np.nan)]
    dataset = linear_quadratic(episodes=40, length=50, noise=0.05)
    return made_pool(dataset, made_run(dataset, {1: states}))


@pytest.fixture(scope="module")
def found(pool):
    return model.measure_model(pool)


def test_rollouts_tell_good_from_bad(found):
    """a = s drives the state to the edge of the data; a = 0 lets it decay."""
    for name in ("model_value", "model_value_min", "model_advantage"):
        value = found[name].value
        assert value[0] > value[1] > value[2]
        assert (found[name].standard_error[:3] > 0).all()
        assert found[name].replicates.shape == (4, 200)
    assert (found["model_value_min"].value[:3] <= found["model_value"].value[:3]).all()
    assert found["model_advantage"].value[0] > 0 > found["model_advantage"].value[2]
    assert found["torel"].value[0] < found["torel"].value[2]


def test_the_model_doubts_what_is_far_from_the_data(found):
    for name in ("penalty_ensemble_std", "penalty_max_pairwise", "penalty_max_mean_distance"):
        assert found[name].value[0] < 1
        assert found[name].value[0] < found[name].value[2]


def test_what_is_not_finite_has_a_reason(found):
    for scores in found.values():
        assert np.isnan(scores.value[3])
        assert scores.reasons == ["", "", "", evaluation.NOT_FINITE]


def test_without_held_out_episodes_there_are_values_and_no_doubts(pool, found):
    everything = made_pool(pool.dataset, made_run(pool.dataset, {1: [linear(-0.9)]}, validation_fraction=0))
    everything._made = pool._made  # fitted once
    again = model.measure_model(everything)
    assert again["model_value"].value[0] == found["model_value"].value[0]
    for name in model.NEED_HELD_OUT:
        assert np.isnan(again[name].value[0])
        assert "held out" in again[name].reasons[0]
