"""The TRPO ladders: snapshots are read right, their densities are those of what is logged, and values follow."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from pools import made_pool, made_run
from scipy import stats

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.selection.diagnostics.fitting import DISCOUNT

ROOT = Path(__file__).resolve().parents[1]
TRPO = ROOT / "tests" / "toys" / "trpo.py"
SHARED = ROOT.parent / "shared" / "data" / "policies"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not here")


@pytest.fixture(scope="module")
def ladders():
    """The script whose figures are in results/measured/selection."""
    spec = importlib.util.spec_from_file_location("ladders", ROOT / "results/measured/selection/ladders.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The policy


def made_policy(action_dim, seed=0):
    """A policy with random weights, its state, and random observations, ten of its eleven columns."""
    algorithm = offrl.algorithm.load(str(TRPO))
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.normal(size=shape).astype(np.float32)

    config, spec = algorithm.Config(), Spec(10, action_dim, 0)
    state = algorithm.init(jax.random.key(0), config, spec)
    state = state.replace(
        mean=np.append(normal(10), 0),
        deviation=np.append(np.exp(0.3 * normal(10)), 0),
        weights=tuple(normal(*w.shape) / np.sqrt(w.shape[0]) for w in state.weights),
        biases=tuple(0.3 * normal(*b.shape) for b in state.biases),
        log_std=np.linspace(-1, 0.3, action_dim).astype(np.float32),
    )
    return algorithm.policy(config, spec), state, normal(40, 10)


def mean_action(state, observations):
    """In numpy: the last entry, which is left out, is 0."""
    x = (observations - state.mean[:10]) / state.deviation[:10]
    x = np.tanh(x @ state.weights[0][:10] + state.biases[0])
    x = np.tanh(x @ state.weights[1] + state.biases[1])
    return x @ state.weights[2] + state.biases[2]


def test_log_prob_is_of_actions_that_were_drawn_and_clipped():
    policy, state, observations = made_policy(action_dim=2)
    actions = np.asarray(jax.jit(policy.sample)(jax.random.key(1), state, observations))
    means, std = mean_action(state, observations), np.exp(state.log_std)
    at_bound = np.abs(actions) == 1
    assert 5 < at_bound.sum() < at_bound.size - 5
    expected = np.where(
        at_bound, stats.norm.logsf(1, means * np.sign(actions), std), stats.norm.logpdf(actions, means, std)
    )
    found = jax.jit(policy.log_prob)(state, observations, actions)
    np.testing.assert_allclose(found, expected.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(jax.jit(policy.act)(state, observations), np.clip(means, -1, 1), atol=1e-5)


def test_all_actions_together_have_probability_1():
    policy, state, observations = made_policy(action_dim=1)
    inside = (np.arange(500) + 0.5) / 250 - 1
    actions = np.append(inside, [-1, 1]).astype(np.float32)
    rows = np.repeat(observations[:10], len(actions), 0)
    log_prob = jax.jit(policy.log_prob)(state, rows, np.tile(actions, 10)[:, None])
    probability = np.exp(log_prob).reshape(10, -1) * np.where(np.abs(actions) < 1, 1 / 250, 1)
    np.testing.assert_allclose(probability.sum(1), 1, atol=1e-4)
    assert (probability[:, -2:].sum(1) > 1e-3).all()


# The snapshots


@needs_shared
def test_snapshots_score_what_is_known_of_them(ladders):
    """../shared/data/README.md: the last one of hopper 3,728, snapshot 0 28 with drawn actions; the run's own log ends
    with -3.94 on reacher."""
    hopper = ladders.snapshots(ladders.LADDERS["hopper"])
    reacher = ladders.snapshots(ladders.LADDERS["reacher"])
    assert list(hopper) == list(reacher) == list(range(0, 501, 20))

    def mean_return(env_id, state, episodes, limit, action_dim):
        return ladders.play(env_id, state, np.arange(episodes), limit, noise=(0.0,) * action_dim).returns(limit).mean()

    assert mean_return("Hopper-v5", hopper[500], 2, 1000, 3) == pytest.approx(3728, abs=30)
    assert mean_return("Hopper-v5", hopper[0], 2, 1000, 3) < 200
    assert mean_return("Reacher-v5", reacher[500], 10, 50, 2) == pytest.approx(-3.9, abs=1)


# Importance sampling


def test_the_behaviour_is_a_mixture_of_episodes_not_of_actions(ladders):
    """Two policies over two actions, two steps: p(beginning) is w_1 pi_1 pi_1 + w_2 pi_2 pi_2."""
    probabilities = np.array([[[0.9, 0.8], [0.1, 0.3]], [[0.2, 0.4], [0.7, 0.5]]])  # [policies, episodes, steps]
    ratios, shares = ladders.exact_ratios(np.log(probabilities), [0, 1])
    first, whole = probabilities[:, :, 0], probabilities.prod(2)
    np.testing.assert_allclose(np.exp(ratios[:, :, 0]), first / (shares @ first), rtol=1e-6)
    np.testing.assert_allclose(np.exp(ratios.sum(-1)), whole / (shares @ whole), rtol=1e-6)
    # where episodes tell the policies apart, the shares are counts
    np.testing.assert_allclose(ladders.mixture_weights(np.array([[0.0, -50, -50, -50], [-50, 0, 0, 0]])), [0.25, 0.75])


@needs_shared
def test_exact_densities_give_the_measured_value_near_the_data_and_a_refusal_far_away(ladders, monkeypatch):
    monkeypatch.setattr(ladders, "IN_DATA", (20, 60))
    ladder = ladders.LADDERS["reacher"]
    states = ladders.snapshots(ladder)
    # with less noise snapshot 20 gains what its noise costs: the mean of no set of logged episodes
    states[21] = states[20].replace(log_std=states[20].log_std - 0.1)
    dataset = ladders.log(ladder, states, episodes=60, at_once=60)
    chosen = {k: [states[k]] for k in (20, 21, 60, 500)}
    pool = made_pool(dataset, made_run(dataset, chosen, algorithm=str(TRPO)))
    found = ladders.exact_importance_sampling(pool)
    value = found[found.estimator == "exact_importance_sampling"].set_index("snapshot")
    # from the log's own reset seeds, so that where the targets lie makes no difference
    true = ladders.play("Reacher-v5", states[21], ladders.LOG_SEED + np.arange(60), 50).returns(50, DISCOUNT).mean()
    assert value.value[21] == pytest.approx(true, abs=3 * value.standard_error[21])
    assert value.value[20] < true - 3 * value.standard_error[20]
    logged = dataset.returns_to_go(DISCOUNT)[dataset.starts].reshape(2, 60).mean(1)
    np.testing.assert_allclose(value.value[[20, 60]], logged, rtol=0.01)  # episodes tell the snapshots apart
    assert np.isnan(value.value[500])
    assert "effective sample size 1.0 of 120 episodes at step 49" in value.reason[500]


# What the page says


def test_the_summary_by_hand(ladders):
    true = ladders.pd.DataFrame(
        [(k, "mean", name, v, 0.1, 9) for k, v in ((0, 1.0), (20, 5.0), (40, 3.0)) for name in ("return", "for_ever")],
        columns=["snapshot", "acting", "sum", "value", "standard_error", "episodes"],
    )
    rows = [(0, True, 1.5, 0.1), (20, True, 4.9, 0.1), (40, False, 6.0, 0.1)]
    found = ladders.pd.DataFrame(
        [(k, seen, "lstd", v, se, "", t, 0.0) for (k, seen, v, se), t in zip(rows, (1.0, 5.0, 3.0), strict=True)],
        columns=["snapshot", "in_data", *ladders.COLUMNS[1:], "truth", "truth_se"],
    )
    row = SimpleNamespace(**ladders.summarise(found, true).set_index("estimator").loc["lstd"])
    assert row.given == 3
    assert row.spearman == pytest.approx(0.5)
    assert row.error == pytest.approx((0.5 - 0.1 + 3) / 3)
    assert vars(row)["error in data"] == pytest.approx(0.2)
    assert row.covered == pytest.approx(1 / 3)
    assert vars(row)["regret@1"] == pytest.approx(0.5)
