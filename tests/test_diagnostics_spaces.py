"""Selection with discrete actions, against values that are known, and with images: measured, or left out and why."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from pools import made_pool, made_run

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.data.dataset import Dataset
from offrl.selection import diagnostics
from offrl.selection.diagnostics import (
    behaviour_value,
    curves,
    data,
    doubly_robust,
    fitted_q_evaluation,
    fitting,
    importance_sampling,
    keeping,
    lstd,
    support,
)

TABULAR = str(Path(__file__).parent / "toys" / "tabular.py")
ENDS = 0.3
"""Probability that a step ends the episode."""
BEHAVIOUR = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
NEXT = np.array(
    [
        [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]],
        [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]],
        [[0.1, 0.1, 0.8], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1]],
    ]
)
"""[states, actions, states], where the episode goes on."""
REWARDS = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 0.5], [2.0, 1.0, 0.0]])
POLICIES = ([2, 0, 0], [0, 0, 2], [1, 2, 1], [0, 2, 1])


def logged(episodes: int = 1500) -> Dataset:
    """Three states, three actions, drawn by the behaviour."""
    random = np.random.default_rng(0)
    states, actions, lengths = [], [], []
    for _ in range(episodes):
        state, length, over = random.integers(3), 0, False
        while not over:
            action = random.choice(3, p=BEHAVIOUR[state])
            states.append(state)
            actions.append(action)
            over, length = random.random() < ENDS, length + 1
            if not over:
                state = random.choice(3, p=NEXT[state, action])
        states.append(state)
        lengths.append(length)
    before = np.setdiff1d(np.arange(len(states)), np.cumsum(np.add(lengths, 1)) - 1)
    ends = np.zeros(len(actions), bool)
    ends[np.cumsum(lengths) - 1] = True
    return Dataset(
        name="tabular",
        observations=np.eye(3, dtype=np.float32)[states],
        actions=np.array(actions, np.int32)[:, None],
        rewards=REWARDS[np.array(states)[before], actions].astype(np.float32),
        terminations=ends,
        truncations=np.zeros(len(actions), bool),
        lengths=np.array(lengths),
        final_observation_known=np.ones(episodes, bool),
        action_low=np.zeros(1, np.float32),
        action_high=np.full(1, 2, np.float32),
    )


def action_values(policy: np.ndarray, discount: float = fitting.DISCOUNT) -> np.ndarray:
    """Q [states, actions] of a policy's probabilities [states, actions]."""
    moves = (1 - ENDS) * discount * np.einsum("sa,sat->st", policy, NEXT)
    v = np.linalg.solve(np.eye(3) - moves, (policy * REWARDS).sum(1))
    return REWARDS + (1 - ENDS) * discount * NEXT @ v


def tables(policy: list[int], values: np.ndarray | None = None):
    State = offrl.algorithm.load(TABULAR).init.__globals__["State"]
    preferences = np.eye(3, dtype=np.float32)[policy]
    return State(np.int32(1), preferences, (np.zeros((3, 3)) if values is None else values).astype(np.float32))


@pytest.fixture(scope="module")
def pool():
    dataset = logged()
    values = [REWARDS] + [None] * (len(POLICIES) - 1)
    states = {1: [tables(policy, q) for policy, q in zip(POLICIES, values, strict=True)]}
    return made_pool(dataset, made_run(dataset, states, algorithm=TABULAR))


@pytest.fixture(autouse=True, scope="module")
def short():
    """Fewer updates than by default, and faster ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "HIDDEN_DIMS", (32, 32))
        patch.setattr(fitting, "TARGET_RATE", 0.3)
        patch.setattr(fitted_q_evaluation, "LEARNING_RATE", 1e-3)
        patch.setattr(behaviour_value, "fit_behaviour", partial(behaviour_value.fit_behaviour, updates=1000))
        patch.setattr(fitted_q_evaluation, "fitted_values", partial(fitted_q_evaluation.fitted_values, updates=1000))
        yield


def values_by_counting(pool) -> np.ndarray:
    """Values of the policies at first states under the empirical model of the training rows (some actions are rare)."""
    rows, following = pool.train, np.zeros((3, 3, 3))
    states, actions, nexts = (x.argmax(1) for x in (rows.observations, rows.actions, rows.next_observations))
    np.add.at(following, (states, actions, nexts), 1 - rows.terminations)
    counts = np.zeros((3, 3))
    np.add.at(counts, (states, actions), 1)
    found = []
    for policy in POLICIES:
        at = (np.arange(3), policy)
        v = np.linalg.solve(np.eye(3) - fitting.DISCOUNT * following[at] / counts[at][:, None], REWARDS[at])
        found.append(pool.initial_observations.mean(0) @ v)
    return np.array(found)


def test_fitted_q_and_lstd_find_the_values_of_discrete_policies(pool):
    known = values_by_counting(pool)
    heads = fitted_q_evaluation.measure_fqe_heads(pool)
    found = np.mean([scores.value for scores in heads.values()], axis=0)
    np.testing.assert_allclose(found, known, atol=0.15)
    np.testing.assert_allclose(lstd.measure_lstd(pool)["lstd"].value, known, atol=0.15)
    assert np.ptp(known) > 2


def test_the_advantage_over_the_behaviour_is_that_of_its_own_value(pool):
    q = action_values(BEHAVIOUR)
    v = (BEHAVIOUR * q).sum(1)
    share = pool.validation.observations.mean(0)
    expected = [share @ (q[np.arange(3), policy] - v) for policy in POLICIES]
    found = behaviour_value.measure_behaviour_advantage(pool)["behaviour_advantage"].value
    np.testing.assert_allclose(found, expected, atol=0.15)


def test_importance_weights_are_those_of_the_data_s_probabilities(pool):
    found = importance_sampling.measure_importance_sampling(pool)["importance_sampling"].value
    logged = importance_sampling.logged_episodes(pool)
    states, actions = logged.observations.argmax(1), logged.actions.argmax(1)
    for value, policy in zip(found, POLICIES, strict=True):
        ratios = np.zeros(logged.rewards.shape)
        agree = np.array(policy)[states] == actions
        ratios[logged.inside] = np.where(agree, -np.log(BEHAVIOUR[states, actions]), -np.inf)
        known = importance_sampling.weighted_importance_sampling(
            ratios, logged.rewards, logged.lengths, logged.terminated, fitting.DISCOUNT
        )
        np.testing.assert_allclose(value, known.value[0], rtol=0.05)
    # the last policy acts often enough as the data do
    discounted = action_values(np.eye(3)[POLICIES[3]])[np.arange(3), POLICIES[3]]
    robust = doubly_robust.measure_doubly_robust(pool.subset([3]))["doubly_robust"].value[0]
    assert robust == pytest.approx(pool.initial_observations.mean(0) @ discounted, abs=0.2)


def test_a_clone_of_discrete_actions_knows_their_probabilities(pool):
    clone, states = support.behaviour_clone(pool), np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(clone.expected(states), BEHAVIOUR, atol=0.05)
    found = [np.exp(clone.log_prob(states, np.tile(action, (3, 1)))) for action in states]
    np.testing.assert_allclose(np.stack(found, 1), clone.expected(states), atol=2e-3)  # but for its uniform part
    rows = pool.validation
    likelihood = np.log(BEHAVIOUR)[rows.observations.argmax(1), rows.actions.argmax(1)].mean()
    expected = [
        np.log(BEHAVIOUR)[rows.observations.argmax(1), np.array(policy)[rows.observations.argmax(1)]].mean()
        for policy in POLICIES
    ]
    found = support.behaviour_log_prob(pool)["behaviour_log_prob"].value
    np.testing.assert_allclose(found, np.array(expected) - likelihood, atol=0.15)


def test_distances_of_discrete_actions_count_the_differences(pool):
    rows, motion = pool.validation, support.motion(pool)
    differs = np.array(POLICIES[0])[rows.observations.argmax(1)] != rows.actions.argmax(1)
    found = support.action_distances(pool)["action_distance"].value[0]
    np.testing.assert_allclose(found, 2 * differs.mean())
    assert set(motion["saturation"].reasons) == {"discrete actions have no bounds"}
    assert np.isfinite(motion["jerk"].value).all()


def test_the_conservative_gap_is_over_all_discrete_actions(pool):
    rows = pool.train
    thin = np.linspace(0, len(rows) - 1, curves.GAP_ROWS).astype(int)
    at = (rows.observations[thin].argmax(1), rows.actions[thin].argmax(1))
    spread = REWARDS[rows.observations.argmax(1), rows.actions.argmax(1)].std()
    expected = (np.log(np.exp(REWARDS).mean(1))[at[0]] - REWARDS[at]).mean() / spread
    np.testing.assert_allclose(curves.underfit(pool)["conservative_gap"].value[0], expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("probabilities", "expected"), [([1 / 3] * 3, 1.0), ([1.0, 0, 0], 0.0), ([0.8, 0.1, 0.1], 0.51)]
)
def test_coverage_is_how_often_two_actions_differ_over_that_of_uniform_ones(probabilities, expected):
    random = np.random.default_rng(0)
    rows = data.Sample(
        observations=random.normal(size=(3000, 2)).astype(np.float32),
        actions=np.eye(3, dtype=np.float32)[random.choice(3, 3000, p=probabilities)],
        rewards=np.zeros(3000, np.float32),
        next_observations=np.zeros((3000, 2), np.float32),
        episodes=np.repeat(np.arange(100), 30),
        discrete=True,
    )
    assert data.action_coverage(rows) == pytest.approx(expected, abs=0.03)


def test_the_checks_of_the_data_hold_for_discrete_actions(pool):
    checks = data.checks(pool.dataset).set_index("check")["value"]
    assert checks["behaviour_predictability"] == pytest.approx(0.27, abs=0.06)  # of one-hot vectors, by their means
    assert np.isfinite(checks).all()


# Images


@pytest.fixture(scope="module")
def image_pool():
    random = np.random.default_rng(0)
    episodes, length = 30, 8
    dataset = Dataset(
        name="images",
        observations=random.integers(0, 256, (episodes * (length + 1), 8, 8, 1), dtype=np.uint8),
        actions=random.integers(0, 2, (episodes * length, 1), dtype=np.int32),
        rewards=random.normal(size=episodes * length).astype(np.float32),
        terminations=np.zeros(episodes * length, bool),
        truncations=np.tile(np.arange(length) == length - 1, episodes),
        lengths=np.full(episodes, length),
        final_observation_known=np.ones(episodes, bool),
        action_low=np.zeros(1, np.float32),
        action_high=np.ones(1, np.float32),
    )
    spec, runs = Spec.of(dataset, 2), []
    for name in ("bc", "iql", "cql"):
        algorithm = offrl.algorithm.load(name)
        config = algorithm.Config(hidden_dims=(8,))
        init = jax.jit(algorithm.init, static_argnums=2)
        states = [jax.device_get(init(jax.random.key(seed), config, spec)) for seed in range(4)]
        runs.append(made_run(dataset, {1: states[:2], 2: states[2:]}, algorithm=name, config=config))
    return made_pool(dataset, *runs)


def test_of_images_what_needs_vectors_is_left_out_and_the_rest_is_measured(image_pool):
    table, _ = diagnostics.measure(image_pool)
    unmeasured = table[table["value"].isna()]
    assert (unmeasured["reason"] != "").all()
    left_out = set(table.loc[table["reason"] == keeping.SEES_IMAGES, "diagnostic"])
    assert {"fqe", "lstd", "behaviour_log_prob", "ood_fraction", "model_value", "ridge_bellman_error"} <= left_out
    measured = set(table.loc[table["value"].notna(), "diagnostic"])
    assert {"action_distance", "policy_drift", "td_error", "initial_value", "bvft", "dormant_fraction"} <= measured
    assert not measured & left_out
    assert data.checks(image_pool.dataset)["check"].tolist()[0] == "return_mean"
    assert np.isnan(data.coverage(image_pool))
