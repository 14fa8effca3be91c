"""The workflow: the peak test on curves made up, the verdicts on members whose critics are written down."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pools
import pytest

import offrl.algorithm
from offrl.selection import diagnostics
from offrl.selection.diagnostics import curves, workflow


def replicates(curve, random, error=0.01):
    """Bootstrap samples with an error that all checkpoints share, and a little of their own."""
    shared = random.normal(0, 1, (1, 200))
    return curve[:, None] + shared + random.normal(0, error, (len(curve), 200))


def test_smoothing_leaves_a_line_alone_and_ignores_an_outlier():
    line = 3 - 0.5 * np.arange(20)
    np.testing.assert_allclose(workflow.smooth(line), line, atol=1e-9)
    with_outlier = line + 0.01 * np.sin(np.arange(20))
    with_outlier[8] += 50
    assert np.abs(workflow.smooth(with_outlier) - line)[:6].max() < 0.1
    assert abs(workflow.smooth(with_outlier)[12] - line[12]) < 0.1


@pytest.mark.parametrize("checkpoints", [8, 10, 40])
def test_a_curve_that_rises_and_falls_has_a_peak(checkpoints):
    random = np.random.default_rng(0)
    t = np.linspace(0, 1, checkpoints)
    for scale in (1.0, 1e4, -1.0):  # the third one falls and rises: no peak but at an end
        curve = scale * (-((t - 0.4) ** 2) + 0.01 * random.normal(size=checkpoints))
        peak = workflow.find_peak(curve, replicates(curve, random, abs(scale) * 0.01))
        assert peak.declines == (scale > 0)
        if scale > 0:
            assert abs(t[peak.at] - 0.4) < 0.2


@pytest.mark.parametrize("checkpoints", [6, 10, 20, 50])
def test_noise_and_saturation_have_none(checkpoints):
    random = np.random.default_rng(checkpoints)
    t = np.arange(checkpoints) / checkpoints
    fired = 0
    for _ in range(200):
        noise = random.normal(size=checkpoints)
        fired += workflow.find_peak(noise, replicates(noise, random)).declines
        rise = 10 * (1 - np.exp(-4 * t)) + 0.2 * noise
        assert not workflow.find_peak(rise, replicates(rise, random)).declines
    assert fired / 200 < 0.08


def test_a_fall_within_the_error_of_episodes_is_none():
    random = np.random.default_rng(0)
    curve = -((np.linspace(0, 1, 12) - 0.4) ** 2)
    assert workflow.find_peak(curve, replicates(curve, random)).declines
    assert not workflow.find_peak(curve, replicates(curve, random, error=1.0)).declines


STEPS = range(1, 11)


def member(levels, gap=1.0, fits=True):
    """A state per checkpoint: Q = level - gap |a - pi(s)|^2 around the good policy, or a critic that fits nothing."""
    states = []
    for level in levels:
        quadratic = np.zeros((5, 5))
        if fits:
            quadratic += 0.02 * pools.exact_q(-0.9)
        quadratic[0, 0] = level
        c = np.zeros((2, 5))
        c[0, 3] = c[1, 4] = 1
        c[0, 1] = c[1, 2] = 0.9
        states.append(pools.linear(-0.9, quadratic=quadratic - gap * c.T @ c))
    return states


@pytest.fixture(scope="module")
def dataset():
    return pools.linear_quadratic(episodes=24)


@pytest.fixture
def conservative(monkeypatch):
    monkeypatch.setattr(curves, "not_conservative", lambda candidate: "")


def pool_of(dataset, *members, **options):
    states = {step: [levels[i] for levels in members] for i, step in enumerate(STEPS)}
    return pools.made_pool(dataset, pools.made_run(dataset, states, **options))


RISE, FALL = np.linspace(-3, 0, 10), np.concatenate([np.linspace(-3, 0, 6), [-0.5, -1, -1.5, -2]])


def test_verdicts(dataset, conservative):
    pool = pool_of(dataset, member(FALL), member(RISE), member(RISE, gap=-8.0), diverged_at=[None, 9, None])
    table = workflow.workflow(pool)
    assert table["verdict"].tolist() == ["overfitted", "well-fitted", "underfitted"]
    assert table["step"].tolist() == [6, 8, 10]
    assert "diverged" in table["reason"][1]
    assert table["conservative_gap"][2] > 0
    assert (table["td_explained"] < 1).all()
    assert np.isfinite(table["decline_validation"]).all()
    assert table["advice"].map(len).gt(0).all()
    score = workflow.dataset_q_peak(pool)["dataset_q_peak"].value.reshape(3, 10)
    assert score[0].tolist() == [5, 4, 3, 2, 1, 0, 1, 2, 3, 4]
    assert score[2].tolist() == list(range(9, -1, -1))


def test_no_claim_where_the_rule_is_not_valid(dataset):
    toy = offrl.algorithm.load(str(pools.QUADRATIC))
    blind = pools.made_run(dataset, {s: [pools.linear(-0.9, critics=0)] for s in STEPS}, config=toy.Config(critics=0))
    other = pools.made_run(dataset, {s: [state] for s, state in zip(STEPS, member(FALL), strict=True)})
    assert "no critic" in workflow.workflow(pools.made_pool(dataset, blind))["reason"][0]
    table = workflow.workflow(pools.made_pool(dataset, blind, other))
    assert table["verdict"].tolist() == ["unknown", "unknown"]
    assert table["step"].tolist() == [10, 10]
    assert "no critic" in table["reason"][0]
    assert "what its critic learns from is not known" in table["reason"][1]
    assert table["peak_step"][1] == 6  # the number stands without a claim


FALLS, RISES = np.geomspace(0.1, 0.01, 10), np.concatenate([np.geomspace(0.1, 0.01, 5), np.geomspace(0.02, 0.2, 5)])

BARELY = 0.01 * np.array([1.03, 1.01, 1, 1, 1, 1.01, 1.015, 1.02, 1.025, 1.03])


@pytest.mark.parametrize(
    ("algorithm", "training", "held_out", "verdict", "reason"),
    [
        ("td3_bc", FALLS, FALLS, "well-fitted", "explains 99%"),
        ("td3_bc", FALLS, 20 * FALLS, "well-fitted", "does not rise"),  # far above the training error, and falling
        ("td3_bc", FALLS, RISES, "overfitted", "held-out TD error rises by"),
        ("td3_bc", RISES, RISES, None, "so does that on training rows"),
        ("td3_bc", np.full(10, 0.9), np.full(10, 0.9), "underfitted", "explains 10%"),
        ("bc", FALLS, RISES, "overfitted", "held-out action distance rises by"),
        ("bc", FALLS, BARELY, None, "does not rise by 5%"),  # a significant rise of 3 %
        ("bc", FALLS, FALLS, None, "whether it underfits is not known"),
    ],
)
def test_other_algorithms_are_judged_by_their_error_on_held_out_rows(
    dataset, algorithm, training, held_out, verdict, reason
):
    pool = pool_of(dataset, member(RISE))
    values = {"fit_error": training, "fit_error_validation": held_out}
    if algorithm == "bc":
        values = {"action_distance": held_out, "action_distance_ratio": held_out / training}
    noise = np.random.default_rng(0).normal(1, 0.01, (10, 200))
    replicates = {name: (curve[:, None] * noise).astype(np.float32) for name, curve in values.items()}
    row = {"algorithm": algorithm, "fit_error": training[-2:].mean()}
    found = workflow._fit_verdict(pool, list(range(10)), pd.DataFrame(values), replicates, row)
    assert found.get("verdict") == verdict
    assert reason in found["reason"]
    assert "step" not in found  # a verdict on the fit prefers no checkpoint


def test_an_error_is_that_to_the_critics_own_target(dataset, monkeypatch):
    run = pools.made_run(dataset, {1: [pools.linear(-0.9, quadratic=0.5 * pools.exact_q(-0.9))]})
    pool = pools.made_pool(dataset, run)
    assert "not known here" in curves.fit(pool)["fit_error"].reasons[0]
    monkeypatch.setattr(curves, "POLICY_TARGET", ("quadratic",))
    by_policy = curves.fit(pool)
    np.testing.assert_allclose(by_policy["fit_error"].value, 1 - curves.underfit(pool)["td_explained"].value)
    monkeypatch.setattr(curves, "VALUE_TARGET", ("quadratic",))
    monkeypatch.setattr(pool, "value", lambda candidate, observations: -(observations**2).sum(-1))
    rows = pool.validation
    q = pool.q(pool.candidates[0], rows.observations, rows.actions).min(0)
    target = rows.rewards - 0.9 * (1 - rows.terminations) * (rows.next_observations**2).sum(-1)
    expected = ((q - target) ** 2).mean() / target.var()
    np.testing.assert_allclose(curves.fit(pool)["fit_error_validation"].value, expected, rtol=1e-4)


def test_every_algorithm_has_a_rule_or_a_reason_that_names_what_is_missing():
    for name in offrl.algorithm.names():
        algorithm = offrl.algorithm.load(name)
        config = algorithm.Config()
        run = SimpleNamespace(algorithm=algorithm, policy=algorithm.policy(config, offrl.algorithm.Spec(3, 2, 10)))
        candidate = SimpleNamespace(run=run, config=config, discount=getattr(config, "discount", None))
        reason = curves.no_rule(candidate)
        assert "not known here" not in reason, name
        assert (name in (*curves.OTHER_TARGET, "dt")) == bool(reason), name


def test_too_few_checkpoints_make_no_curve(dataset, conservative):
    states = {s: [state] for s, state in zip(range(1, 4), member(FALL[:3]), strict=True)}
    table = workflow.workflow(pools.made_pool(dataset, pools.made_run(dataset, states)))
    assert table["verdict"].tolist() == ["unknown"]
    assert "needs 6" in table["reason"][0]


def test_points_of_the_curve_and_the_underfit_pair_against_numpy(dataset):
    pool = pool_of(dataset, member(RISE)).subset([9])
    found = {**curves.dataset_q(pool), **curves.underfit(pool)}
    p = np.asarray(member(RISE)[9].quadratic[0], np.float64)

    def q(s, a):
        z = np.concatenate([np.ones((len(s), 1)), s, a], 1).astype(np.float64)
        return ((z @ p) * z).sum(1)

    for name, rows in (("dataset_q", pool.train), ("dataset_q_validation", pool.validation)):
        np.testing.assert_allclose(found[name].value[0], q(rows.observations, rows.actions).mean(), rtol=1e-4)
    rows = pool.train
    following = q(rows.next_observations, np.clip(-0.9 * rows.next_observations, -1, 1))
    target, data = rows.rewards + 0.9 * (1 - rows.terminations) * following, q(rows.observations, rows.actions)
    np.testing.assert_allclose(
        found["td_explained"].value[0], 1 - ((data - target) ** 2).mean() / target.var(), rtol=1e-3
    )
    grid = np.stack(np.meshgrid(*[np.linspace(-0.95, 0.95, 20)] * 2), -1).reshape(-1, 2)
    soft = [np.log(np.exp(q(np.tile(s, (len(grid), 1)), grid)).mean()) for s in rows.observations]
    expected = (np.array(soft) - data).mean() / data.std()
    assert abs(found["conservative_gap"].value[0] - expected) < 0.1  # ten draws against a grid


def test_all_registered_diagnostics_have_a_name_of_their_own():
    names = [d.name for m in diagnostics.measurements().values() for d in m.diagnostics]
    assert len(names) == len(set(names))
