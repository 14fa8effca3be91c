"""Off-policy evaluation against values that are known."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pools import CONTROL, DYNAMICS, linear, linear_quadratic, made_pool, made_run
from scipy import stats

from offrl.selection.diagnostics import (
    behaviour_value,
    cost,
    doubly_robust,
    fitted_q_evaluation,
    fitting,
    importance_sampling,
    lstd,
    measure,
)
from offrl.selection.diagnostics.features import RandomFeatures, Standardiser
from offrl.selection.diagnostics.fitted_q_evaluation import combine_heads
from offrl.selection.diagnostics.fitting import Transitions
from offrl.selection.diagnostics.importance_sampling import weighted_importance_sampling
from offrl.selection.diagnostics.lstd import lstd_q

GAINS = (-0.9, -0.5, -0.2, 0.0)
NOISE = 0.05


def true_value(gain, states, noise=NOISE, discount=fitting.DISCOUNT):
    """Infinite-horizon value of the policy a = gain s on the linear-quadratic task."""
    c = DYNAMICS + CONTROL * gain
    v = (c**2 + 0.1 * gain**2) / (1 - discount * c**2)
    return -(v * (states**2).sum(-1) + 2 * noise**2 * (1 + discount * v) / (1 - discount))


@pytest.fixture(scope="module")
def pool():
    dataset = linear_quadratic(episodes=40, length=50, noise=NOISE)
    return made_pool(dataset, made_run(dataset, {1: [linear(gain) for gain in GAINS]}))


@pytest.fixture(autouse=True, scope="module")
def short():
    """Fewer updates than by default, and faster ones: the task is small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "HIDDEN_DIMS", (32, 32))
        patch.setattr(fitting, "BATCH_SIZE", 64)
        patch.setattr(fitting, "TARGET_RATE", 0.3)
        patch.setattr(fitted_q_evaluation, "LEARNING_RATE", 1e-3)
        patch.setattr(behaviour_value, "fit_behaviour", partial(behaviour_value.fit_behaviour, updates=1500))
        patch.setattr(fitted_q_evaluation, "fitted_values", partial(fitted_q_evaluation.fitted_values, updates=1500))
        patch.setattr(importance_sampling, "fit_clone", partial(importance_sampling.fit_clone, updates=1500))
        yield


# Fitted Q evaluation


def test_targets_bootstrap_over_truncations_not_terminations_and_stay_within_the_bounds():
    data = Transitions(
        inputs=jnp.zeros((3, 1)),
        next_inputs=jnp.zeros((3, 1)),
        rewards=jnp.array([1.0, 1.0, 2.0]),
        discounts=jnp.array([0.9, 0.0, 0.9]),
        low=jnp.asarray(1.0),
        high=jnp.asarray(15.0),
        center=jnp.asarray(10.0),
        scale=jnp.asarray(2.0),
    )
    targets = data.center + data.scale * data.target(jnp.arange(3), jnp.array([1.0, 1.0, 3.0]))
    np.testing.assert_allclose(targets, [1 + 0.9 * 12, 1, 15], rtol=1e-6)


def test_bounds_of_values():
    rewards, never, ends = np.array([1.0, 2.0]), np.zeros(2), np.array([0.0, 1.0])
    assert fitting.value_bounds(rewards, never, 0.9) == pytest.approx((10, 20))
    assert fitting.value_bounds(rewards, ends, 0.9) == pytest.approx((1, 20))
    assert fitting.value_bounds(-rewards, ends, 0.9) == pytest.approx((-20, -1))
    with pytest.raises(ValueError, match="below 1"):
        fitting.value_bounds(rewards, ends, 1.0)


def test_fqe_finds_known_values(pool):
    table, replicates = measure(pool, ["fqe_heads"])
    heads = table.value.to_numpy().reshape(fitting.HEADS, len(GAINS))
    truth = [true_value(gain, pool.initial_observations, noise=NOISE).mean() for gain in GAINS]
    np.testing.assert_allclose(heads.mean(0), truth, atol=0.6)  # the data's own value is about -14
    assert (np.argsort(heads.mean(0)) == np.argsort(truth)).all()
    assert replicates["fqe_head_1"].shape == (4, 200)
    assert (table.standard_error > 0).all()
    again = fitted_q_evaluation.measure_fqe_heads(pool.subset([2]))
    assert again["fqe_head_1"].value[0] == heads[0, 2]  # whoever else is in the pool


def test_fqe_is_the_mean_of_heads_that_agree():
    value = np.array([[1.0, 2, 3, 4, 9], [1, 2, 4, 3, 0], [1, 2, 3, 4, 5]])
    replicates = np.broadcast_to(value[:, :, None], (3, 5, 200))
    healthy = np.array([True] * 4 + [False])
    found = combine_heads(value, replicates, healthy, [""] * 5, 0)
    np.testing.assert_allclose(found["fqe"].value, value.mean(0))
    np.testing.assert_allclose(found["fqe_sd"].value, value.std(0, ddof=1))
    np.testing.assert_allclose(found["fqe_lcb"].value, value.mean(0) - value.std(0, ddof=1))
    assert found["fqe_stability"].value[0] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert found["fqe"].standard_error[0] == 0 < found["fqe"].standard_error[2]


def test_fqe_refuses_when_heads_disagree():
    value = np.array([[1.0, 2, 3, 4], [4, 3, 2, 1], [1, 2, 3, 4]])
    replicates = np.broadcast_to(value[:, :, None], (3, 4, 200))
    found = combine_heads(value, replicates, np.ones(4, bool), ["", "x", "", ""], 0)
    assert found["fqe_stability"].value[0] == pytest.approx(-1 / 3)
    for name in ("fqe", "fqe_sd", "fqe_lcb"):
        assert np.isnan(found[name].value).all()
        assert "tau -0.33 < 0.5" in found[name].reasons[0]
        assert found[name].reasons[1] == "x"


def test_few_policies_are_not_judged_by_the_agreement_of_heads():
    value = np.array([[1.0, 2], [2, 1], [1, 2]])
    found = combine_heads(value, np.broadcast_to(value[:, :, None], (3, 2, 200)), np.ones(2, bool), [""] * 2, 0)
    assert np.isnan(found["fqe_stability"].value).all()
    assert "too few" in found["fqe_stability"].reasons[0]
    assert np.isfinite(found["fqe"].value).all()


def test_the_command_keeps_heads_and_judges_the_pool(pool):
    table, replicates = measure(pool, ["fqe", "behaviour_advantage"])
    wide = table.pivot(index="candidate", columns="diagnostic", values="value")
    assert (wide.fqe_stability > 0.5).all()
    assert wide.fqe.argmax() == 0
    np.testing.assert_allclose(wide.fqe_lcb, wide.fqe - wide.fqe_sd)
    assert replicates["fqe"].shape == replicates["fqe_lcb"].shape == (4, 200)


def test_what_is_not_finite_has_a_reason(pool):
    broken = made_pool(pool.dataset, made_run(pool.dataset, {1: [linear(np.nan), linear(-0.9)]}))
    for function in (
        fitted_q_evaluation.measure_fqe_heads,
        lstd.measure_lstd,
        behaviour_value.measure_behaviour_advantage,
        importance_sampling.measure_importance_sampling,
    ):
        for scores in function(broken).values():
            assert np.isnan(scores.value[0])
            assert scores.reasons[0] == fitting.NOT_FINITE
            assert scores.reasons[1] != fitting.NOT_FINITE


# LSTD-Q


def test_lstd_is_exact_on_a_tabular_task():
    """Two states, two actions; action 1 in state 1 terminates. One-hot features, the constant in place of the last."""
    discount = 0.9
    rewards = np.array([-1.0, 2.0, 0.5, -3.0])  # of (s, a) = (0, 0), (0, 1), (1, 0), (1, 1)
    following = np.array([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [0.0, 0.0]])
    policy = np.array([1, 0])
    transition = np.zeros((4, 4))
    for s in range(2):
        transition[:, 2 * s + policy[s]] = following[:, s]
    q = np.linalg.solve(np.eye(4) - discount * transition, rewards)
    rows, nexts, masks = [], [], []
    for pair in range(4):
        for s, count in enumerate((10 * following[pair]).round().astype(int)):
            rows += [pair] * count
            nexts += [2 * s + policy[s]] * count
            masks += [discount] * count
    rows, nexts, masks = [*rows, 3, 3], [*nexts, 0, 1], [*masks, 0.0, 0.0]
    features = np.eye(4)
    features[:, 3] = 1.0
    fit = lstd_q(features[rows], features[nexts], rewards[rows], np.array(masks), ridge=0)
    np.testing.assert_allclose(features @ fit.theta, q, rtol=1e-8)


def test_lstd_finds_known_values_and_its_errors_are_those_of_fitting_again(pool):
    found = lstd.measure_lstd(pool)["lstd"]
    truth = [true_value(gain, pool.initial_observations, noise=NOISE).mean() for gain in GAINS]
    np.testing.assert_allclose(found.value, truth, rtol=0.2)
    assert (found.value[:2] > found.value[2:]).all()
    rows, inputs = pool.train, Standardiser.of(pool.train)
    features = RandomFeatures.of(inputs(rows.observations, rows.actions), pool.seed)
    phi = features(inputs(rows.observations, rows.actions))
    next_phi = features(inputs(rows.next_observations, pool.actions("train_next")[0]))
    phi_0 = features(inputs(pool.initial_observations, pool.actions("initial")[0]))
    refitted = []
    for weights in pool.episode_weights[:40]:
        drawn = np.repeat(np.arange(len(rows)), weights[rows.episodes].astype(int))
        discounts = fitting.DISCOUNT * (1 - rows.terminations[drawn])
        fit = lstd_q(phi[drawn], next_phi[drawn], rows.rewards[drawn], discounts)
        refitted.append(weights @ (phi_0 @ fit.theta) / weights.sum())
    assert stats.pearsonr(refitted, found.replicates[0, :40])[0] > 0.9
    assert found.standard_error[0] == pytest.approx(np.std(refitted, ddof=1), rel=0.4)
    lcb = lstd.measure_lstd(pool)["lstd_lcb"]
    np.testing.assert_allclose(lcb.value, found.value - found.standard_error)


def test_lstd_grows_with_rewards_as_values_do():
    random = np.random.default_rng(0)
    features = np.concatenate([random.normal(size=(200, 5)), np.ones((200, 1))], 1)
    following = np.concatenate([random.normal(size=(200, 5)), np.ones((200, 1))], 1)
    rewards, discounts = random.normal(size=200), np.full(200, 0.9)
    q = features @ lstd_q(features, following, rewards, discounts, 0.1).theta
    moved = features @ lstd_q(features, following, 3 * rewards + 2, discounts, 0.1).theta
    np.testing.assert_allclose(moved, 3 * q + 2 / (1 - 0.9), rtol=1e-8)


# Importance sampling


def test_importance_sampling_by_hand():
    """Episode 0 is truncated after one step, 1 terminates after one, 2 has two steps."""
    log_ratios = np.log([[2.0, 9.0], [1.0, 9.0], [3.0, 2.0]])
    rewards = np.array([[1.0, 7.0], [2.0, 7.0], [4.0, 5.0]])
    found = weighted_importance_sampling(log_ratios, rewards, np.array([1, 1, 2]), np.array([False, True, False]), 0.5)
    first = (2 * 1 + 1 * 2 + 3 * 4) / 6
    second = (1 * 0 + 6 * 5) / 7  # the dead weigh what they weighed, the truncated nothing
    assert found.value == pytest.approx(first + 0.5 * second)
    np.testing.assert_allclose(found.effective_sample_size, [[36 / 14, 49 / 37]])


def test_importance_sampling_finds_the_value_of_a_bandit():
    """Actions from N(0, 1), reward a^2; under N(0.5, 0.8) its mean is 0.25 + 0.64."""
    actions = np.random.default_rng(0).normal(size=(20_000, 1))
    log_ratios = stats.norm.logpdf(actions, 0.5, 0.8) - stats.norm.logpdf(actions)
    ones = np.ones(len(actions), int)
    found = weighted_importance_sampling(log_ratios, actions**2, ones, ones == 1, 0.99)
    assert found.value == pytest.approx(0.89, abs=0.02)
    assert 0.5 * len(actions) < found.effective_sample_size[0, 0] < len(actions)


@pytest.fixture(scope="module")
def one_mode():
    """Only the episodes of the good policy, so the behaviour has one mode; a candidate equal to it, and another."""
    dataset = linear_quadratic(episodes=600, length=5)
    good = np.arange(600) % 2 == 0
    steps = good[dataset.episode_of_step]
    dataset = replace(
        dataset,
        observations=dataset.observations.reshape(600, 6, 2)[good].reshape(-1, 2),
        **{name: getattr(dataset, name)[steps] for name in ("actions", "rewards", "terminations", "truncations")},
        lengths=dataset.lengths[good],
        final_observation_known=dataset.final_observation_known[good],
    )
    return made_pool(dataset, made_run(dataset, {1: [linear(-0.9), linear(1.0)]}, validation_fraction=0.5))


def test_importance_sampling_of_the_datas_own_policy_and_its_refusal_of_others(one_mode):
    found = importance_sampling.measure_importance_sampling(one_mode)
    value, size = found["importance_sampling"], found["effective_sample_size"]
    dataset = one_mode.dataset
    logged = dataset.returns_to_go(fitting.DISCOUNT)[dataset.starts[one_mode.held_out]].mean()
    assert value.value[0] == pytest.approx(logged, rel=0.5)  # the clone, and so the density, is an estimate
    assert value.standard_error[0] > 0
    assert size.value[0] > 10 > 5 > size.value[1]
    assert np.isnan(value.value[1])
    assert "of 150 episodes at step 4" in value.reasons[1]


def test_doubly_robust_with_the_true_critic_is_the_true_value_and_is_refused_as_importance_sampling_is(
    one_mode, monkeypatch
):
    """For the policy a = -0.9 s with the data's noise; the true critic takes the place of one that FQE would fit."""
    discount, gain, noise = fitting.DISCOUNT, -0.9, 0.02
    importance = importance_sampling.measure_importance_sampling(one_mode)["importance_sampling"]
    (sigma,) = {*one_mode._made["held-out episodes with behaviour density"].deviations.round(2)}
    c = DYNAMICS + CONTROL * gain
    v = (c**2 + 0.1 * gain**2) / (1 - discount * c**2)
    k = (2 * (CONTROL**2 * sigma**2 + noise**2) * (1 + discount * v) + 0.2 * sigma**2) / (1 - discount)

    def critic(key, params, data, inputs):
        s, a = np.split(Standardiser.of(one_mode.train).mean + inputs * Standardiser.of(one_mode.train).deviation, 2, 1)
        to = ((DYNAMICS * s + CONTROL * a) ** 2).sum(1) + 2 * noise**2
        return np.tile(-(1 + discount * v) * to - 0.1 * (a**2).sum(1) - discount * k, (fitting.HEADS, 1))

    start = behaviour_value.Behaviour(Transitions(*[None] * len(Transitions._fields)), None, None)
    monkeypatch.setattr(behaviour_value, "behaviour", lambda pool: start)
    monkeypatch.setattr(fitted_q_evaluation, "fitted_values", critic)
    found = doubly_robust.measure_doubly_robust(one_mode)["doubly_robust"]
    truth = -v * (one_mode.initial_observations[one_mode.held_out] ** 2).sum(1).mean() - k
    assert found.value[0] == pytest.approx(truth, rel=0.03)
    assert 0 < found.standard_error[0] < 0.1 * abs(truth)
    assert np.isnan(found.value[1])
    assert found.reasons == importance.reasons


@pytest.fixture(scope="module")
def tabular():
    """Two states, two actions; action 1 in state 1 may terminate. 4,000 episodes of a uniform policy, cut off after 12
    steps; the target prefers action 1 in state 0. Its infinite-horizon Q and V are exact."""
    random, discount, episodes, length = np.random.default_rng(0), 0.8, 4000, 12
    rewards = np.array([[-1.0, 2.0], [0.5, -3.0]])
    following = np.array([[[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.5], [0.2, 0.3]]])  # what is left of 1 is termination
    target = np.array([[0.3, 0.7], [0.6, 0.4]])
    transition = (following[:, :, :, None] * target[None, None]).reshape(4, 4)
    q = np.linalg.solve(np.eye(4) - discount * transition, rewards.ravel()).reshape(2, 2)
    s, alive = np.zeros(episodes, int), np.ones(episodes, bool)
    states, actions, lengths = [s], [], np.zeros(episodes, int)
    for _ in range(length):
        a, u = random.integers(0, 2, episodes), random.random(episodes)
        to = following[s, a]
        lengths += alive
        alive = alive & (u < to.sum(1))
        s = np.where(u < to[:, 0], 0, 1)
        states.append(s)
        actions.append(a)
    states, actions = np.array(states).T, np.array(actions).T
    first = states[:, :-1]
    return {
        "discount": discount,
        "states": states,
        "actions": actions,
        "target": target,
        "rewards": rewards[first, actions],
        "log_ratios": np.log(target[first, actions] / 0.5),
        "lengths": lengths,
        "terminated": ~alive,
        "q": q,
        "truth": (target * q).sum(1)[0],
    }


def doubly_robust_on(task, q, log_ratios):
    weights = np.random.default_rng(1).multinomial(len(task["lengths"]), np.full(len(task["lengths"]), 1 / 4000), 50)
    v = (task["target"] * q).sum(1)
    found = doubly_robust.doubly_robust(
        log_ratios,
        task["rewards"],
        q[task["states"][:, :-1], task["actions"]],
        v[task["states"]],
        task["lengths"],
        task["terminated"],
        task["discount"],
        np.concatenate([np.ones((1, len(task["lengths"]))), weights]),
    ).value
    return found[0], found[1:].std(ddof=1)


def test_doubly_robust_is_right_when_either_the_critic_or_the_ratios_are(tabular):
    truth, wrong = tabular["truth"], tabular["q"] + np.array([[2.0, -1.0], [1.0, 3.0]])
    uniform = np.zeros_like(tabular["log_ratios"])
    both, error_of_both = doubly_robust_on(tabular, tabular["q"], tabular["log_ratios"])
    by_ratios, error_by_ratios = doubly_robust_on(tabular, wrong, tabular["log_ratios"])
    by_critic, error_by_critic = doubly_robust_on(tabular, tabular["q"], uniform)
    neither, error_of_neither = doubly_robust_on(tabular, wrong, uniform)
    assert abs(both - truth) < 3 * error_of_both
    assert abs(by_ratios - truth) < 3 * error_by_ratios
    assert abs(by_critic - truth) < 3 * error_by_critic
    assert abs(neither - truth) > 10 * error_of_neither
    assert error_of_both < error_by_ratios  # what a control variate is for
    names = ("log_ratios", "rewards", "lengths", "terminated", "discount")
    assert abs(weighted_importance_sampling(*(tabular[name] for name in names)).value[0] - truth) < 0.2


def test_doubly_robust_goes_on_with_the_critic_after_a_truncation(tabular):
    """From episodes of two steps, with the true critic, the value is still the infinite-horizon one."""
    short = tabular | {name: tabular[name][:, :2] for name in ("actions", "rewards", "log_ratios")}
    lengths = np.minimum(tabular["lengths"], 2)
    short |= {"states": tabular["states"][:, :3], "lengths": lengths}
    short["terminated"] = tabular["terminated"] & (tabular["lengths"] <= 2)
    value, error = doubly_robust_on(short, tabular["q"], short["log_ratios"])
    assert abs(value - tabular["truth"]) < 3 * error


# Behaviour advantage


def test_behaviour_advantage_tells_better_from_worse_than_the_data(pool):
    found = behaviour_value.measure_behaviour_advantage(pool)
    advantage = found["behaviour_advantage"]
    bad = made_pool(pool.dataset, made_run(pool.dataset, {1: [linear(1.0)]}))
    bad._made = pool._made  # fitted once
    assert advantage.value[0] > 0 > behaviour_value.measure_behaviour_advantage(bad)["behaviour_advantage"].value[0]
    assert (np.diff(advantage.value) < 0).all()
    np.testing.assert_allclose(found["behaviour_advantage_lcb"].value, advantage.value - advantage.standard_error)
    assert advantage.replicates.shape == (4, 200)


def test_nothing_held_out_is_a_reason(pool):
    everything = made_pool(pool.dataset, made_run(pool.dataset, {1: [linear(-0.9)]}, validation_fraction=0))
    for function in (
        behaviour_value.measure_behaviour_advantage,
        importance_sampling.measure_importance_sampling,
        doubly_robust.measure_doubly_robust,
    ):
        for scores in function(everything).values():
            assert np.isnan(scores.value[0])
            assert "held out" in scores.reasons[0]


def test_behaviour_values_are_those_of_the_data(pool):
    """Their mean over first states is the discounted return of the data, continued beyond the time limit."""
    fit = behaviour_value.behaviour(pool)
    inputs = Standardiser.of(pool.train)
    rows = pool.train
    q = fit.data.center + fit.data.scale * fitting.values_of(fit.q, inputs(rows.observations, rows.actions)).mean(0)
    v = fit.data.center + fit.data.scale * fitting.values_of(fit.v, inputs(rows.observations)).mean(0)
    following = fit.data.center + fit.data.scale * fitting.values_of(fit.v, inputs(rows.next_observations)).mean(0)
    residual = np.asarray(rows.rewards + fit.data.discounts * following - q)
    assert abs(residual.mean()) < 0.1 * np.std(rows.rewards)
    assert abs(float((q - v).mean())) < 0.1 * np.std(rows.rewards)
    assert jax.tree.leaves(fit.q)[0].shape[0] == fitting.HEADS


def test_what_a_selector_costs_counts_each_measurement_once():
    spent = {"fqe_heads": 9.0, "fqe": 1.0, "lstd": 2.0}
    assert cost(["fqe", "fqe_lcb", "lstd"], spent) == 12
    assert cost(["fqe"], {"fqe": 1.0}) == 1  # the heads were measured within it
    assert np.isnan(cost(["ood_fraction", "lstd"], spent))


@pytest.mark.filterwarnings("error")
def test_a_bootstrap_draw_of_no_episode_has_no_value():
    ratios, rewards, lengths = np.zeros((2, 3)), np.ones((2, 3)), np.array([3, 2])
    weights, terminated = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([True, False])
    found = weighted_importance_sampling(ratios, rewards, lengths, terminated, 0.5, weights).value
    np.testing.assert_allclose(found, [np.nan, 1.75])
    q, v = np.zeros((2, 3)), np.zeros((2, 4))
    found = doubly_robust.doubly_robust(ratios, rewards, q, v, lengths, terminated, 0.5, weights).value
    np.testing.assert_allclose(found, [np.nan, 1.75])
