"""Bellman errors against direct calculations, and whom they prefer where the true Q is known."""

import numpy as np
import pytest
from pools import QUADRATIC, exact_q, linear, linear_quadratic, made_pool, made_run

import offrl.algorithm
from offrl.data.transforms import SCALE_SHIFT
from offrl.selection.diagnostics import bellman, critic
from offrl.selection.diagnostics.features import RandomFeatures, Standardiser


@pytest.fixture(scope="module")
def dataset():
    return linear_quadratic(terminal=True)


@pytest.fixture(scope="module")
def pool(dataset):
    """The true Q, one that is shifted, one that is doubled, one of another policy, and a candidate without critics."""
    true = exact_q(-0.9)
    shifted = true.copy()
    shifted[0, 0] += 1.0
    states = [linear(-0.9, quadratic=q) for q in (true, shifted, 2 * true, exact_q(0.5))]
    none = offrl.algorithm.load(str(QUADRATIC)).Config(critics=0)
    return made_pool(
        dataset,
        made_run(dataset, {1: states}),
        made_run(dataset, {1: [linear(-0.9, critics=0)]}, config=none),
    )


def test_ridge_is_the_solution_of_its_equations_and_its_penalty_the_best_of_gcv():
    random = np.random.default_rng(0)
    features = random.normal(size=(80, 12))
    y = features[:, 0] + random.normal(size=80)
    coefficients, penalty = bellman.Ridge.of(features).fit(y)
    gram = features.T @ features
    direct = np.linalg.solve(gram + 80 * penalty * np.eye(12), features.T @ y)
    np.testing.assert_allclose(coefficients, direct, rtol=1e-8)

    def gcv(penalty):
        hat = features @ np.linalg.solve(gram + 80 * penalty * np.eye(12), features.T)
        return ((y - hat @ y) ** 2).mean() / (1 - np.trace(hat) / 80) ** 2

    scale = np.trace(gram) / 80 / 12
    scores = [gcv(p * scale) for p in bellman.PENALTIES]
    assert penalty == pytest.approx(bellman.PENALTIES[np.argmin(scores)] * scale)
    assert bellman.PENALTIES[0] * scale < penalty < bellman.PENALTIES[-1] * scale


def test_ridge_bellman_error_and_ibes_are_what_a_direct_calculation_gives(pool):
    found = bellman.measure_ridge(pool)
    train, held = pool.train, pool.validation
    inputs = Standardiser.of(train)
    features = RandomFeatures.of(inputs(train.observations, train.actions), pool.seed)
    phi = features(inputs(train.observations, train.actions)).astype(np.float64)
    phi_held = features(inputs(held.observations, held.actions)).astype(np.float64)
    matrix = exact_q(0.5)

    def q(s, a):
        z = np.concatenate([np.ones((len(s), 1)), s, a], 1)
        return np.einsum("ni,ij,nj->n", z, matrix, z)

    def target(rows):
        following = q(rows.next_observations, np.clip(-0.9 * rows.next_observations, -1, 1))
        return rows.rewards + 0.9 * (1 - rows.terminations) * following

    def regress(y):
        _, penalty = bellman.Ridge.of(phi.astype(np.float32)).fit(y)
        gram = phi.T @ phi + len(y) * penalty * np.eye(phi.shape[1])
        return phi_held @ np.linalg.solve(gram, phi.T @ y)

    y, y_held, q_held = target(train), target(held), q(held.observations, held.actions)
    backup = y.mean() + regress(y - y.mean())
    g, delta = regress(q(train.observations, train.actions) - y), q_held - y_held
    ridge, ibes = found["ridge_bellman_error"], found["ibes"]
    assert ridge.value[3] == pytest.approx(((q_held - backup) ** 2).mean() / y_held.var(), rel=1e-4)
    assert ibes.value[3] == pytest.approx((2 * g * delta - g**2).mean() / y_held.var(), rel=1e-4)


@pytest.mark.parametrize("name", ["ridge_bellman_error", "ibes"])
def test_regressions_prefer_the_true_critic(pool, name):
    scores = bellman.measure_ridge(pool)[name]
    assert np.argmin(scores.value[:4]) == 0
    assert scores.value[0] < 0.05  # over six seeds of the data at most 0.031; of the others at least 0.157
    assert (scores.value[1:4] > 3 * abs(scores.value[0])).all()
    assert (scores.standard_error[:4] > 0).all()
    assert scores.replicates.shape == (5, 200)
    assert scores.replicates[1].mean() == pytest.approx(scores.value[1], rel=0.3)


def test_rewards_in_other_units_change_no_bellman_error(dataset, pool):
    """A critic of rewards that are all 5 times as large, itself 5 times as large."""
    run = made_run(dataset, {1: [linear(-0.9, quadratic=5 * exact_q(0.5))]})
    run.info["dataset"]["transforms"].append({"name": SCALE_SHIFT, "scale": 5.0, "shift": 0.0})
    scaled = bellman.measure_ridge(made_pool(dataset, run))
    for name, scores in bellman.measure_ridge(pool).items():
        assert scaled[name].value[0] == pytest.approx(scores.value[3], rel=1e-2)


def test_no_critic_no_held_out_rows_and_what_is_not_finite_have_a_reason(dataset, pool):
    for scores in (*bellman.measure_ridge(pool).values(), bellman.measure_bvft(pool)["bvft"]):
        assert scores.reasons[:4] == [""] * 4
        assert "no critic" in scores.reasons[4]
        assert np.isnan(scores.value[4])
        assert np.isfinite(scores.value[:4]).all()
    everything = made_pool(dataset, made_run(dataset, {1: [linear(-0.9)]}, validation_fraction=0))
    broken = made_pool(dataset, made_run(dataset, {1: [linear(-0.9, quadratic=np.full((5, 5), np.nan))]}))
    for bad, word in ((everything, "held out"), (broken, "not finite")):
        for scores in (*bellman.measure_ridge(bad).values(), bellman.measure_bvft(bad)["bvft"]):
            assert np.isnan(scores.value[0])
            assert word in scores.reasons[0]


def test_tournament_by_hand():
    """Four rows; critic 0 tells {0, 1} from {2, 3}, critic 1 tells {0, 2} from {1, 3}: together, every row."""
    q = np.array([[0.0, 0, 2, 2], [0, 2, 0, 2]])
    targets = np.array([[0.0, 2, 2, 4], [0, 2, 0, 2]])
    once = np.ones((1, 1))
    losses = bellman.tournament_losses(q, targets, 1.0, once, np.zeros(4, int))
    # critic 0: cells of its own give means (1, 1, 3, 3), loss 1; of both the targets, mean square (0 + 4 + 0 + 4) / 4
    # critic 1: its targets are its values, whatever the cells
    np.testing.assert_allclose(losses, [[np.sqrt(2 / 2), 0]])
    weights = np.array([[2.0, 0], [0, 2]])  # rows 0 and 1, or 2 and 3
    np.testing.assert_allclose(
        bellman.tournament_losses(q, targets, 1.0, weights, np.array([0, 0, 1, 1])), [[1, 0], [1, 0]]
    )


def test_shares_count_ties_by_half():
    np.testing.assert_allclose(bellman.rank_share(np.array([3.0, 1, 3, 7])), [0.5, 0, 0.5, 1])
    np.testing.assert_allclose(bellman.rank_share(np.array([3.0])), [0])


def test_tournament_prefers_the_true_critic_whatever_diverges_or_comes_first(dataset, pool):
    found = bellman.measure_bvft(pool)["bvft"]
    assert np.argmin(found.value[:4]) == 0
    assert (found.standard_error[:4] >= 0).all()
    order = [3, 1, 4, 0, 2]
    np.testing.assert_array_equal(bellman.measure_bvft(pool.subset(order))["bvft"].value, found.value[order])
    diverged = made_run(dataset, {1: [linear(-0.9, quadratic=1e6 * exact_q(-0.9))]}, diverged_at=[1])
    more = made_pool(dataset, *{c.run.path: c.run for c in pool.candidates}.values(), diverged)
    again = bellman.measure_bvft(more)["bvft"]
    np.testing.assert_array_equal(again.value[:5], found.value)
    assert "diverged" in again.reasons[5]


def test_too_many_critics_are_refused(pool, monkeypatch):
    monkeypatch.setattr(bellman, "MOST_CRITICS", 3)
    assert "at most 3" in bellman.measure_bvft(pool)["bvft"].reasons[0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("measure", [bellman.measure_ridge, bellman.measure_bvft, critic.td_error])
def test_bootstrap_draws_without_any_held_out_episode_say_nothing(dataset, pool, measure):
    weights = pool.episode_weights.copy()
    empty = made_pool(dataset, *dict.fromkeys(c.run for c in pool.candidates))
    for blank in (3, len(weights)):
        weights[:blank, pool.held_out] = 0
        empty.__dict__["episode_weights"] = weights
        for name, scores in measure(empty).items():
            full = measure(pool)[name]
            np.testing.assert_array_equal(scores.value, full.value)
            drawn = scores.replicates[0]
            assert np.isnan(drawn[:blank]).all()
            np.testing.assert_array_equal(drawn[blank:], full.replicates[0][blank:])
            expected = np.nan if blank == len(weights) else np.std(drawn[blank:], ddof=1, dtype=np.float64)
            assert scores.standard_error[0] == pytest.approx(expected, rel=1e-3, nan_ok=True)
