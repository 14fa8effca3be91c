"""Health and critic diagnostics against numpy, on candidates whose critics are written down."""

from types import SimpleNamespace

import numpy as np
import pools
import pytest
from plain import mlp, random_state

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.data.transforms import Preprocessing
from offrl.selection.diagnostics import critic, health, support

GOOD = pools.exact_q(-0.9)


@pytest.fixture(scope="module")
def dataset():
    return pools.linear_quadratic(terminal=True)


@pytest.fixture(scope="module")
def pool(dataset):
    """An exact critic, one of nothing, one that has diverged; then a policy of another algorithm without a critic."""
    toy = offrl.algorithm.load(str(pools.QUADRATIC))
    states = [pools.linear(-0.9, quadratic=GOOD), pools.linear(0.5), pools.linear(-0.9, quadratic=-1000 * GOOD)]
    states[0].quadratic[1] -= 0.1 * np.eye(5)  # the two critics differ, the second is the lower
    plain = pools.linear(-0.9, critics=0)
    return pools.made_pool(
        dataset,
        pools.made_run(dataset, {1: states}, preprocessing=Preprocessing(reward_scale=1.0)),
        pools.made_run(dataset, {1: [plain]}, config=toy.Config(critics=0)),
    )


def parts(pool, split="validation"):
    """(q, policy q, target) of the first candidate's lower critic, float64, and the rows."""
    rows = getattr(pool, split)
    p = np.asarray(GOOD, np.float64) - 0.1 * np.eye(5)

    def q(s, a):
        z = np.concatenate([np.ones((len(s), 1)), s, a], 1).astype(np.float64)
        return ((z @ p) * z).sum(1)

    policy = np.clip(-0.9 * rows.observations, -1, 1)
    following = q(rows.next_observations, np.clip(-0.9 * rows.next_observations, -1, 1))
    target = rows.rewards + 0.9 * (1 - rows.terminations) * following
    return q(rows.observations, rows.actions), q(rows.observations, policy), target, rows


def test_td_error_is_that_of_the_lowest_critic_masked_and_over_the_variance_of_its_target(pool):
    found = critic.td_error(pool)
    q, _, target, _ = parts(pool)
    q_train, _, target_train, _ = parts(pool, "train")
    expected = ((q - target) ** 2).mean()
    np.testing.assert_allclose(found["td_error"].value[0], expected / target.var(), rtol=1e-4)
    ratio = expected / ((q_train - target_train) ** 2).mean()
    np.testing.assert_allclose(found["td_error_ratio"].value[0], ratio, rtol=1e-4)
    assert found["td_error"].standard_error[0] > 0
    assert np.isnan(found["td_error"].value[3])
    assert "no critic" in found["td_error"].reasons[3]
    assert found["td_error"].reasons[0] == ""


def test_values_gap_and_disagreement(pool, dataset):
    found = critic.values(pool)
    q, policy, _, rows = parts(pool)
    np.testing.assert_allclose(found["average_value"].value[0], policy.mean(), rtol=1e-4)
    np.testing.assert_allclose(found["advantage_gap"].value[0], (policy - q).mean() / q.std(), rtol=1e-4)
    first = rows.timesteps == 0
    np.testing.assert_allclose(found["initial_value"].value[0], policy[first].mean(), rtol=1e-4)
    assert first.sum() == pool.held_out.sum()
    z = np.concatenate([np.ones((len(rows), 1)), rows.observations, np.clip(-0.9 * rows.observations, -1, 1)], 1)
    np.testing.assert_allclose(
        found["critic_disagreement"].value[0], (0.05 * (z**2).sum(1)).mean() / q.std(), rtol=1e-3
    )


def test_values_are_in_raw_rewards_whatever_the_critic_was_trained_in(dataset):
    scaled = Preprocessing(reward_scale=4.0, reward_shift=-1.0)
    shift = np.zeros((5, 5))
    shift[0, 0] = -1 / (1 - 0.9)
    pool = pools.made_pool(
        dataset,
        pools.made_run(dataset, {1: [pools.linear(-0.9, quadratic=GOOD)]}),
        pools.made_run(dataset, {1: [pools.linear(-0.9, quadratic=4 * GOOD + shift)]}, preprocessing=scaled),
    )
    found = critic.values(pool)
    for name in ("average_value", "initial_value", "advantage_gap"):
        np.testing.assert_allclose(found[name].value[1], found[name].value[0], rtol=1e-4)


def test_rank_opc_counts_pairs_at_the_same_time(pool, dataset):
    found = critic.off_policy_classification(pool)
    q, _, _, rows = parts(pool)
    held = np.flatnonzero(pool.held_out)
    order = held[np.argsort(-dataset.returns[held], kind="stable")]
    top, bottom = order[: int(0.2 * len(order))], order[-int(0.5 * len(order)) :]
    wins, pairs = 0.0, 0
    for i in np.flatnonzero(np.isin(rows.episodes, top)):
        for j in np.flatnonzero(np.isin(rows.episodes, bottom) & (rows.timesteps == rows.timesteps[i])):
            wins, pairs = wins + (q[i] > q[j]) + 0.5 * (q[i] == q[j]), pairs + 1
    np.testing.assert_allclose(found["rank_opc"].value[0], wins / pairs, atol=2e-3)
    assert found["rank_opc"].value[0] > 0.7
    np.testing.assert_allclose(found["rank_opc"].value[1], 0.5)  # a flat critic only ties
    is_top = np.isin(rows.episodes, top)
    np.testing.assert_allclose(found["soft_opc"].value[0], (q[is_top].mean() - q.mean()) / q.std(), rtol=1e-3)


def test_without_held_out_episodes_there_is_a_reason_and_no_number(dataset):
    run = pools.made_run(dataset, {1: [pools.linear(-0.9, quadratic=GOOD)]}, validation_fraction=0.0)
    pool = pools.made_pool(dataset, run)
    for measurement in critic.MEASUREMENTS:
        if measurement.measure is critic.weight_ess:  # it asks what the policy was fitted to: training rows
            continue
        for scores in measurement.measure(pool).values():
            assert np.isnan(scores.value).all()
            assert "held out" in scores.reasons[0]
    assert health.out_of_range(pool)["out_of_range"].value[0] == 0  # says the same of training rows


def test_a_diverged_critic_is_out_of_range_and_a_sound_one_is_not(pool):
    found = health.out_of_range(pool)["out_of_range"]
    low, high = health.value_range(pool, pool.candidates[0])
    np.testing.assert_allclose((low, high), (pool.dataset.rewards.min() / (1 - 0.9), 0.0), rtol=1e-5)
    assert found.value[0] == 0
    assert found.value[2] > 0.2  # of positive values, where all rewards are negative
    assert np.isnan(found.value[3])


def test_the_range_holds_zero_and_all_horizons_whatever_the_sign_of_rewards(dataset):
    def value_range(shift, discount=0.9):
        toy = offrl.algorithm.load(str(pools.QUADRATIC))
        config, shifted = toy.Config(discount=discount), Preprocessing(reward_shift=shift)
        run = pools.made_run(dataset, {1: [pools.linear()]}, config=config, preprocessing=shifted)
        pool = pools.made_pool(dataset, run)
        return health.value_range(pool, pool.candidates[0])

    low, high = dataset.rewards.min(), dataset.rewards.max()
    np.testing.assert_allclose(value_range(10.0), (0.0, (high + 10) * 10), rtol=1e-5)
    np.testing.assert_allclose(value_range(0.5), ((low + 0.5) * 10, (high + 0.5) * 10), rtol=1e-5)
    np.testing.assert_allclose(value_range(0.0, discount=1.0), (low * dataset.lengths.max(), 0.0), rtol=1e-5)


def test_what_is_not_finite_is_flagged(dataset):
    bad = pools.linear(-0.9)
    bad.gain[0, 0] = np.nan
    huge = pools.linear(0.1, quadratic=np.full((5, 5), 1e38))
    states = [pools.linear(-0.9), bad, huge, pools.linear(0.1)]
    run = pools.made_run(dataset, {1: states, 2: states}, diverged_at=[None, None, None, 2])
    pool = pools.made_pool(dataset, run)
    found = health.non_finite(pool)["non_finite"].value
    assert found.reshape(4, 2).tolist() == [[0, 0], [1, 1], [1, 1], [0, 1]]


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_look_into_a_real_critic_finds_its_hidden_layers(dataset, layer_norm):
    name = "rebrac" if layer_norm else "td3_bc"
    algorithm = offrl.algorithm.load(name)
    module = __import__(f"offrl.algorithms.{name}", fromlist=["init"])
    config = algorithm.Config(hidden_dims=(16, 12), preprocessing=Preprocessing())
    state = random_state(module, config, Spec(2, 2, 1), ("actor", "critic"))
    layers = state.critic["params"]["MLP_0"]
    layers["Dense_1"]["kernel"][:, :, :3] = 0
    layers["Dense_1"]["bias"][:, :3] = -1  # three of the second layer's neurons are dead, in both critics
    run = pools.made_run(dataset, {1: [state]}, algorithm=name, config=config)
    pool = pools.made_pool(dataset, run)
    found = {key: scores.value[0] for key, scores in health.features(pool).items()}

    rows = pool.validation
    following = pool.actions("validation_next")[0]

    def inside(s, a):
        x, hidden = np.concatenate([s, a], 1).astype(np.float64), []
        for depth in (1, 2):  # the layers up to that depth, with an identity on top
            for i in range(2):
                width = (16, 12)[depth - 1]
                part = {k: {n: v[i] for n, v in layers[k].items()} for k in layers if int(k[-1]) < depth}
                part[f"Dense_{depth}"] = {"kernel": np.eye(width), "bias": np.zeros(width)}
                hidden.append(mlp(part, x))
        return hidden  # layer 1 of both critics, layer 2 of both

    at, after = inside(rows.observations, rows.actions), inside(rows.next_observations, following)
    dot = np.mean([(at[i] * after[i]).sum(1).mean() for i in (2, 3)])
    np.testing.assert_allclose(found["feature_dot"], dot, rtol=1e-3)
    singular = [np.linalg.svd(at[i], compute_uv=False) for i in (2, 3)]
    ranks = [np.searchsorted(s.cumsum() / s.sum(), 0.99) + 1 for s in singular]
    assert found["effective_rank"] == np.mean(ranks)
    assert -1 <= found["feature_cosine"] <= 1
    if layer_norm:
        assert found["dormant_fraction"] >= 6 / 56  # seen before the normalisation
    else:
        activity = [np.abs(h).mean(0) for h in at]
        dormant = np.concatenate([a <= 0.025 * a.mean() for a in activity])
        np.testing.assert_allclose(found["dormant_fraction"], dormant.mean())


def test_a_critic_without_layers_has_a_reason(pool):
    scores = health.features(pool)["effective_rank"]
    assert "no hidden layer" in scores.reasons[0]
    assert "no critic" in scores.reasons[3]


def test_the_order_of_candidates_and_a_diverged_one_change_nothing(pool):
    order = [2, 0, 3, 1]
    measures = [m for family in (health, critic, support) for m in family.MEASUREMENTS]
    for measurement in measures:
        whole, alone = measurement.measure(pool), measurement.measure(pool.subset([0, 1]))
        permuted = measurement.measure(pool.subset(order))
        for name, scores in whole.items():
            np.testing.assert_array_equal(scores.value[order], permuted[name].value)
            np.testing.assert_array_equal(scores.value[:2], alone[name].value)


def test_advantages_are_summed_over_whole_episodes(pool):
    q, policy, _, rows = parts(pool)
    sums = np.bincount(rows.episodes, 0.9**rows.timesteps * (q - policy), pool.dataset.episodes)[pool.held_out]
    found = critic.discounted_advantages(pool)["discounted_advantages"]
    np.testing.assert_allclose(found.value[0], sums.mean(), rtol=1e-4)
    assert found.standard_error[0] > 0
    assert "no critic" in found.reasons[3]


def test_the_effective_share_of_rows_under_advantage_weights(pool, monkeypatch):
    assert "does not weight" in critic.weight_ess(pool)["weight_ess"].reasons[0]
    monkeypatch.setattr(critic, "no_advantage_weights", critic.no_critic)
    monkeypatch.setattr(critic, "advantage_weights", lambda candidate, advantage: np.exp(np.minimum(advantage, 1.0)))
    q, policy, _, _ = parts(pool, "train")
    weights = np.exp(np.minimum(q - policy, 1.0))
    found = critic.weight_ess(pool)["weight_ess"]
    np.testing.assert_allclose(found.value[0], weights.sum() ** 2 / (len(q) * (weights**2).sum()), rtol=1e-4)
    np.testing.assert_allclose(found.value[1], 1.0)  # a critic that holds all actions for equal
    assert np.isnan(found.value[3])


def test_advantage_weights_are_those_that_the_algorithms_train_with():
    advantage = np.array([-1.0, 0.0, 0.5, 1e4])
    for name, options, expected in (
        ("iql", {"temperature": 3.0}, [np.exp(-3), 1, np.exp(1.5), 100]),
        ("awac", {"temperature": 0.5, "max_weight": 50.0}, [np.exp(-2), 1, np.e, 50]),
        ("crr", {"temperature": 1.0, "max_weight": 20.0}, [np.exp(-1), 1, np.exp(0.5), 20]),
        ("crr", {"weight": "indicator"}, [0, 0, 1, 1]),
    ):
        algorithm = offrl.algorithm.load(name)
        candidate = SimpleNamespace(run=SimpleNamespace(algorithm=algorithm), config=algorithm.Config(**options))
        np.testing.assert_allclose(critic.advantage_weights(candidate, advantage), expected)
