"""Rollouts in a learned model: values, doubts, and the bound by which TOReL selects."""

from functools import partial

import jax
import numpy as np
import pytest
from pools import linear, linear_quadratic, made_pool, made_run
from test_diagnostics_evaluation import true_value

from offrl.learning.models import dynamics
from offrl.selection.diagnostics import behaviour_value, fitting, model
from offrl.selection.diagnostics.fitting import DISCOUNT


def test_an_episode_goes_on_in_the_model_by_its_probability():
    """A world that stands still, pays 3 and ends with probability 0.2 (in state 0) or 0.5 (in state 1) at each step."""
    dataset = linear_quadratic(episodes=2, length=3)
    (candidate,) = made_pool(dataset, made_run(dataset, {1: [linear(-0.9)]})).candidates
    config = model.CONFIG.replace(ensemble_size=2, elites=2, dynamics_hidden_dims=(4,))
    ensemble = dynamics.init_ensemble(jax.random.key(0), config, candidate.run.spec)
    params = jax.tree.map(np.zeros_like, ensemble.params)
    params["dynamics"]["params"] |= {name: np.full((2, 3), -30.0) for name in ("lowest_log_var", "highest_log_var")}
    bounds, ends = np.full(3, np.inf), np.array([-2 * np.log(0.25), 0, 0, 0, 2 * np.log(0.25)])
    fitted = model.Model(ensemble.replace(params=params), 3.0, 1.0, ends, -bounds, bounds, {}, jax.random.key(0))
    x = np.broadcast_to([[0.5, -0.5], [1.0, 1.0]], (2, 2, 2))
    run, keys, seen = candidate.run, jax.random.split(fitted.rollouts, 4), (np.zeros(2), np.ones(2))
    arguments = (run.algorithm, run.spec, candidate.config, run.states[1][0], seen, fitted)
    (last, alive), found = model.imagine(*arguments, (x, np.ones((2, 2))), keys, config)
    np.testing.assert_allclose(last, x, atol=1e-5)
    np.testing.assert_allclose(found.actions, np.broadcast_to(-0.9 * x, (4, 2, 2, 2)), atol=1e-5)
    np.testing.assert_allclose(alive, [[0.8**4, 0.5**4]] * 2, rtol=1e-5)
    value = model.truncated_value(jax.tree.map(np.asarray, found), np.full((2, 2), 10.0), np.asarray(alive))
    for state, stay in enumerate((0.8, 0.5)):
        going_on = DISCOUNT * stay
        truth = 3 * (1 - going_on**4) / (1 - going_on) + 10 * going_on**4
        np.testing.assert_allclose(value[:, state], truth, rtol=1e-5)


def test_rare_ends_are_learned_and_where_there_are_none_nothing_ends():
    random = np.random.default_rng(0)
    following = random.normal(size=(20_000, 3))
    ended = (following[:, 0] < -3) | (np.abs(following[:, 1]) > 3.5)
    train, test = slice(10_000), slice(10_000, None)

    def probability(weights):
        logits = np.concatenate([following, following**2 - 1, np.ones((20_000, 1))], 1)[test] @ weights
        return 1 / (1 + np.exp(-logits))

    def cross_entropy(probability):
        return -np.where(ended[test], np.log(probability), np.log1p(-probability)).mean()

    found = probability(model.fit_ends(following[train], ended[train].astype(float)))
    assert 10 < ended[train].sum() < 30
    assert cross_entropy(found) < 0.5 * cross_entropy(np.full(10_000, ended[train].mean()))
    assert found.mean() == pytest.approx(ended[test].mean(), abs=1e-3)
    assert (probability(model.fit_ends(following[train], np.zeros(10_000))) == 0).all()


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
        options = {"ensemble_size": 3, "elites": 3, "dynamics_hidden_dims": (32, 32)}
        patch.setattr(model, "HORIZON", 400)
        patch.setattr(model, "SHORT", 10)
        patch.setattr(model, "STARTS", 40)
        patch.setattr(model, "CONFIG", model.CONFIG.replace(**options, dynamics_updates=800, holdout_every=200))
        patch.setattr(fitting, "HIDDEN_DIMS", (16, 16))
        patch.setattr(behaviour_value, "fit_behaviour", partial(behaviour_value.fit_behaviour, updates=300))
        yield


@pytest.fixture(scope="module")
def pool(small):
    states = [linear(-0.9), linear(0.0), linear(1.0), linear(np.nan)]
    dataset = linear_quadratic(episodes=40, length=50, noise=0.05)
    return made_pool(dataset, made_run(dataset, {1: states}))


@pytest.fixture(scope="module")
def found(pool):
    return model.measure_model(pool)


def test_values_in_the_model_are_the_true_ones(pool, found):
    """400 steps are nearly an infinite horizon."""
    value = found["model_value"].value[:2]
    truth = np.array([true_value(gain, pool.initial_observations).mean() for gain in (-0.9, 0.0)])
    np.testing.assert_allclose(value, truth, atol=1.2)  # the data's own value is about -14
    np.testing.assert_allclose(value[0] - value[1], truth[0] - truth[1], atol=0.3)


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
        assert scores.reasons == ["", "", "", fitting.NOT_FINITE]


def test_without_held_out_episodes_there_are_values_and_no_doubts(pool, found):
    everything = made_pool(pool.dataset, made_run(pool.dataset, {1: [linear(-0.9)]}, validation_fraction=0))
    everything._made = pool._made  # fitted once
    again = model.measure_model(everything)
    assert again["model_value"].value[0] == found["model_value"].value[0]
    for name in model.NEED_HELD_OUT:
        assert np.isnan(again[name].value[0])
        assert "held out" in again[name].reasons[0]
