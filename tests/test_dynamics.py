"""The dynamics ensemble: its losses and penalties written out, what it learns, rollouts, and their buffer."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import mlp, random_dataset

from offrl.algorithm import Spec
from offrl.data import Dataset
from offrl.data.preprocessing import preprocess
from offrl.data.transforms import Preprocessing
from offrl.errors import UserError
from offrl.learning.models import dynamics, penalties, rollouts
from offrl.learning.models.dynamics import DynamicsConfig
from offrl.learning.models.rollouts import Steps

KEY = jax.random.key(0)
NOISE = np.array([0.05, 0.2])  # of the toy's two dimensions


def small(**options) -> DynamicsConfig:
    return DynamicsConfig(
        **{
            "ensemble_size": 3,
            "elites": 2,
            "dynamics_hidden_dims": (16, 16),
            "termination_hidden_dims": (16,),
            "holdout_every": 50,
            **options,
        }
    )


def stacked(seed: int, config: DynamicsConfig, spec: Spec) -> dynamics.Ensemble:
    """An ensemble with random parameters and biases, all members different."""
    random = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: dynamics.init_ensemble(KEY, config, spec))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    statistics = zeros.statistics._replace(
        input_std=np.ones_like(zeros.statistics.input_std),
        observation_std=np.ones_like(zeros.statistics.observation_std),
    )
    params = jax.tree.map(lambda leaf: 0.4 * random.normal(size=leaf.shape).astype(np.float32), shapes.params)
    for name, bound in zip(("lowest_log_var", "highest_log_var"), dynamics.LOG_VAR_BOUNDS, strict=True):
        params["dynamics"]["params"][name] += np.float32(bound)
    return zeros.replace(params=params, statistics=statistics)


def swish_mlp(layers, x: np.ndarray) -> np.ndarray:
    for i in range(len(layers)):
        kernel, bias = (np.asarray(layers[f"Dense_{i}"][name], np.float64) for name in ("kernel", "bias"))
        x = x @ kernel + bias
        if i < len(layers) - 1:
            x = x / (1 + np.exp(-x))
    return x


def softplus(x):
    return np.log1p(np.exp(x))


def gaussian(params, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and log-variance of one member, written out."""
    params = params["params"]
    mean, log_var = np.split(swish_mlp(params["MLP_0"], x), 2, -1)
    low, high = (np.asarray(params[name], np.float64) for name in ("lowest_log_var", "highest_log_var"))
    log_var = high - softplus(high - log_var)
    return mean, low + softplus(log_var - low)


def member(tree, i: int):
    return jax.tree.map(lambda leaf: leaf[i], tree)


# The data


def test_the_dynamics_hold_out_whole_episodes_and_train_on_steps_with_a_known_next_observation():
    data = random_dataset(lengths=(5, 4, 6, 3), terminal=(True, False, True, False))
    object.__setattr__(data, "final_observation_known", np.array([True, False, False, True]))
    prepared = dynamics.prepare(data, small(holdout_fraction=0.25))
    _, held_out = data.split_indices(0.25, 0)
    episode = data.episode_of_step[data.transition_rows]
    assert set(episode[prepared.holdout_rows]) == set(held_out)
    assert not set(episode[prepared.train_rows]) & set(held_out)
    both = np.sort(np.concatenate([prepared.train_rows, prepared.holdout_rows]))
    assert len(both) == len(data.dynamics_rows) == 16
    assert len(prepared.transitions.rewards) == 17  # with the terminal step whose next observation is lost
    np.testing.assert_array_equal(prepared.transitions.next_observations[both], data.dynamics().next_observations)
    inputs = np.concatenate([prepared.transitions.observations, prepared.transitions.actions], 1)[prepared.train_rows]
    np.testing.assert_allclose(prepared.input_mean, inputs.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(prepared.input_std, inputs.std(0), rtol=1e-5)


def test_one_episode_or_too_many_elites_are_refused():
    with pytest.raises(UserError, match="one episode"):
        dynamics.prepare(random_dataset(lengths=(5,), terminal=(True,)), small())
    with pytest.raises(UserError, match=r"algo\.elites=4"):
        dynamics.prepare(random_dataset(), small(elites=4))


# Losses


def test_the_loss_is_the_likelihood_with_decay_by_layer_and_the_bounds_regulariser():
    config = small(dynamics_weight_decay=(0.1, 0.2, 0.3))
    params = member(stacked(0, config, Spec(3, 2, 1)).params["dynamics"], 1)
    random = np.random.default_rng(1)
    inputs, targets = random.normal(size=(8, 5)).astype(np.float32), random.normal(size=(8, 4)).astype(np.float32)
    mean, log_var = gaussian(params, inputs)
    expected = np.mean((mean - targets) ** 2 / np.exp(log_var)) + log_var.mean()
    for i, weight in enumerate((0.1, 0.2, 0.3)):
        expected += weight / 2 * np.sum(np.asarray(params["params"]["MLP_0"][f"Dense_{i}"]["kernel"], float) ** 2)
    bounds = np.sum(params["params"]["highest_log_var"] - params["params"]["lowest_log_var"])
    expected += 0.01 / 3 * bounds
    loss = jax.jit(dynamics.dynamics_loss)
    np.testing.assert_allclose(loss(params, inputs, targets, config), expected, rtol=1e-5)
    deeper = small(dynamics_hidden_dims=(4, 4, 4), dynamics_weight_decay=(0.0, 0.5, 0.0))
    params = member(stacked(0, deeper, Spec(3, 2, 1)).params["dynamics"], 0)
    without = small(dynamics_hidden_dims=(4, 4, 4), dynamics_weight_decay=(0.0, 0.0, 0.0))
    decay = sum(0.25 * np.sum(np.asarray(params["params"]["MLP_0"][f"Dense_{i}"]["kernel"]) ** 2) for i in (1, 2))
    difference = loss(params, inputs, targets, deeper) - loss(params, inputs, targets, without)
    np.testing.assert_allclose(difference, decay, rtol=1e-3)


def test_predictions_terminations_and_their_loss_are_those_of_the_networks_written_out():
    config, spec = small(), Spec(3, 2, 1)
    random = np.random.default_rng(2)

    def normal(*shape):
        return random.normal(size=shape).astype(np.float32)

    statistics = dynamics.Statistics(normal(5), np.exp(normal(5)), np.zeros(3, "f4"), np.ones(3, "f4"))
    ensemble = stacked(0, config, spec).replace(statistics=statistics, elites=jnp.array([2, 0]))
    observations, actions, following = normal(6, 3), normal(6, 2), normal(6, 3)
    inputs = (np.concatenate([observations, actions], 1) - statistics.input_mean) / statistics.input_std
    mean, log_var = jax.jit(dynamics.predict)(ensemble, observations, actions, config)
    for i in range(3):
        expected = gaussian(member(ensemble.params["dynamics"], i), inputs)
        np.testing.assert_allclose(mean[i], expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(log_var[i], expected[1], rtol=1e-4, atol=1e-5)
    scaled = (following - statistics.input_mean[:3]) / statistics.input_std[:3]
    inputs = np.concatenate([inputs, scaled], 1)
    probabilities = []
    for i in (2, 0):
        params = member(ensemble.params["termination"], i)
        probabilities.append(1 / (1 + np.exp(-mlp(params["params"], inputs)[:, 0])))
        ends = np.array([1, 0, 0, 1, 0, 1.0])
        loss = -np.mean(ends * np.log(probabilities[-1]) + (1 - ends) * np.log(1 - probabilities[-1]))
        ours = jax.jit(dynamics.termination_loss)(params, inputs.astype(np.float32), ends.astype(np.float32), config)
        np.testing.assert_allclose(ours, loss, rtol=1e-4)
    result = jax.jit(dynamics.termination_probability)(ensemble, observations, actions, following, config)
    np.testing.assert_allclose(result, np.mean(probabilities, 0), rtol=1e-4)


# Penalties


def test_every_penalty_is_its_formula():
    random = np.random.default_rng(3)
    mean, std = random.normal(size=(4, 5, 3)), np.exp(random.normal(size=(4, 5, 3)))
    log_var = 2 * np.log(std)
    expected = {name: np.zeros(5) for name in penalties.PENALTIES}
    for n in range(5):
        m, s = mean[:, n], std[:, n]
        expected["max_aleatoric"][n] = max(np.sqrt(np.sum(s[i] ** 2)) for i in range(4))
        centre = m[:, :2].mean(0)
        expected["max_mean_distance"][n] = max(np.sqrt(np.sum((m[i, :2] - centre) ** 2)) for i in range(4))
        expected["max_pairwise"][n] = max(np.sqrt(np.sum((m[i] - m[j]) ** 2)) for i in range(4) for j in range(4))
        expected["ensemble_std"][n] = np.sqrt(np.mean([np.var(m[:, d]) for d in range(2)]))
        variances = np.mean(s**2 + m**2, 0) - m.mean(0) ** 2
        expected["mixture_std"][n] = np.sqrt(variances.sum())
        divergences = []
        for i in range(4):
            rest = [j for j in range(4) if j != i]
            q_mean = m[rest].mean(0)
            q_var = np.mean(s[rest] ** 2 + m[rest] ** 2, 0) - q_mean**2
            kl = np.log(np.sqrt(q_var) / s[i]) + (s[i] ** 2 + (m[i] - q_mean) ** 2) / (2 * q_var) - 0.5
            divergences.append(kl.sum())
        expected["loo_kl"][n] = np.mean(divergences)
    key_member, key_noise = jax.random.split(KEY)
    chosen = np.asarray(jax.random.randint(key_member, (5,), 0, 4))
    sample = mean[chosen, np.arange(5)] + std[chosen, np.arange(5)] * np.asarray(jax.random.normal(key_noise, (5, 3)))
    log_prob = np.sum(-0.5 * ((sample - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi), -1)
    expected["log_prob_spread"] = log_prob.std(0)
    for name, penalty in penalties.PENALTIES.items():
        result = jax.jit(penalty)(KEY, jnp.asarray(mean, jnp.float32), jnp.asarray(log_var, jnp.float32))
        np.testing.assert_allclose(result, expected[name], rtol=1e-4, err_msg=name)


# Learning


def linear_system() -> Dataset:
    """s' = s + [a, -s0] / 5 + noise, reward s1; an episode ends where s1' > 1, or after twelve steps."""
    random = np.random.default_rng(0)
    observations, actions, rewards, terminations, lengths = [], [], [], [], []
    for _ in range(600):
        states = [random.uniform(-1, 1, 2)]
        while len(states) <= 12 and states[-1][1] <= 1:
            s, a = states[-1], random.uniform(-1, 1)
            states.append(s + np.array([a, -s[0]]) / 5 + random.normal(size=2) * NOISE)
            actions.append([a])
            rewards.append(s[1])
            terminations.append(states[-1][1] > 1)
        lengths.append(len(states) - 1)
        observations += states
    ends = np.cumsum(lengths) - 1
    truncations = np.zeros(len(actions), bool)
    truncations[ends] = ~np.array(terminations)[ends]
    return Dataset(
        name="test",
        observations=np.array(observations, np.float32),
        actions=np.array(actions, np.float32),
        rewards=np.array(rewards, np.float32),
        terminations=np.array(terminations),
        truncations=truncations,
        lengths=np.array(lengths),
        final_observation_known=np.ones(len(lengths), bool),
        action_low=np.array([-1], np.float32),
        action_high=np.array([1], np.float32),
    )


LEARNER = small(dynamics_weight_decay=(0.0,), dynamics_learning_rate=3e-3, dynamics_batch_size=128, patience=1000)
SPEC = Spec(2, 1, 1)


@cache
def run():
    @jax.jit
    def run(key, ensemble, data, config, first, count):
        def one(i, carry):
            ensemble, _ = carry
            return dynamics.update_ensemble(jax.random.fold_in(key, i), ensemble, data, config)

        shapes = jax.eval_shape(lambda: dynamics.update_ensemble(key, ensemble, data, config))[1]
        metrics = {name: jnp.zeros(()) for name in shapes}
        return jax.lax.fori_loop(first, first + count, one, (ensemble, metrics))

    return run


@cache
def learned():
    data = dynamics.prepare(linear_system(), LEARNER)
    ensemble = jax.jit(dynamics.init_ensemble, static_argnums=2)(KEY, LEARNER, SPEC)
    ensemble = dynamics.begin_ensemble(ensemble, data)
    ensemble, metrics = run()(KEY, ensemble, data, LEARNER, 0, 2000)
    held_out = dynamics.rows_of(data.transitions, data.holdout_rows)

    @jax.jit
    def predict(ensemble):
        ends = dynamics.termination_probability(ensemble, *held_out[:2], held_out[3], LEARNER)
        return dynamics.predict(ensemble, *held_out[:2], LEARNER), ends

    return data, ensemble, metrics, held_out, *predict(ensemble)


def test_it_learns_a_linear_system_and_its_noise():
    _, ensemble, metrics, held_out, predicted, _ = learned()
    mean, log_var = jax.device_get(predicted)
    truth = np.stack([held_out.actions[:, 0] / 5, -held_out.observations[:, 0] / 5, held_out.observations[:, 1]], 1)
    for i in np.asarray(ensemble.elites):
        np.testing.assert_allclose(np.sqrt(np.mean((mean[i] - truth) ** 2, 0)), 0, atol=0.04)
        np.testing.assert_allclose(np.exp(0.5 * log_var[i]).mean(0)[:2], NOISE, rtol=0.15)
        targets = np.asarray(dynamics.targets_of(held_out))
        inside = np.abs(targets - mean[i])[:, :2] < 0.6745 * np.exp(0.5 * log_var[i])[:, :2]
        assert 0.42 < inside.mean() < 0.58
    assert metrics["holdout_mse"] == pytest.approx(np.mean(np.r_[NOISE**2, 0]), rel=0.1)


def test_it_learns_where_episodes_end():
    _, _, _, held_out, _, probability = learned()
    ends = np.asarray(probability) > 0.5
    truth = held_out.terminations > 0
    assert truth.sum() > 10
    assert (ends & truth).sum() / truth.sum() > 0.8
    assert (ends & truth).sum() / ends.sum() > 0.8


def test_each_members_best_snapshot_predicts_and_elites_have_the_lowest_errors():
    _, ensemble, _, held_out, (mean, _), _ = learned()
    error = ((np.asarray(mean) - dynamics.targets_of(held_out)) ** 2).mean((1, 2))
    np.testing.assert_allclose(error, ensemble.holdout_error, rtol=1e-4)
    assert list(ensemble.elites) == list(np.argsort(error)[:2])
    broken = jax.tree.map(lambda leaf: leaf.at[1].set(1e3), ensemble.training)
    worse = jax.jit(dynamics.holdout_step)(ensemble.replace(training=broken, stale=jnp.int32(4)), held_out, LEARNER)
    np.testing.assert_array_equal(worse.holdout_error[1], ensemble.holdout_error[1])
    for new, old in zip(jax.tree.leaves(worse.params), jax.tree.leaves(ensemble.params), strict=True):
        np.testing.assert_array_equal(new[1], old[1])


def test_training_stops_when_no_member_improves_any_more():
    data, ensemble, *_ = learned()
    stopped = ensemble.replace(stale=jnp.int32(5))
    config = LEARNER.replace(patience=5)
    after, metrics = run()(KEY, stopped, data, config, 0, 3)
    for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(stopped), strict=True):
        np.testing.assert_array_equal(new, old)
    assert metrics["still_training"] == 0
    assert metrics["dynamics_loss"] == ensemble.metrics["dynamics_loss"]


# Rollouts


def test_a_step_is_a_sample_of_an_elite():
    config, spec = small(ensemble_size=3, elites=1), Spec(2, 1, 1)
    ensemble = stacked(5, config, spec).replace(elites=jnp.array([2]))
    observations, actions = jnp.tile(jnp.array([[0.3, -0.2]]), (4000, 1)), jnp.full((4000, 1), 0.5)
    predicted = jax.jit(dynamics.step)(KEY, ensemble, observations, actions, config)
    mean, std = predicted.mean[2, 0], np.exp(0.5 * predicted.log_var[2, 0])
    samples = np.concatenate([predicted.next_observations - observations, predicted.rewards[:, None]], 1)
    np.testing.assert_allclose((samples.mean(0) - mean) / std, 0, atol=0.08)
    np.testing.assert_allclose(samples.std(0) / std, 1, atol=0.08)


def test_rollouts_stop_at_terminations():
    def model(key, observations, actions):
        following = observations + actions
        return following, following[:, 0], (following[:, 0] >= 3).astype(jnp.float32)

    start = jnp.array([[0.0], [2.0], [1.0]])
    rows, valid = jax.jit(lambda start: rollouts.rollout(KEY, start, lambda key, x: jnp.ones((3, 1)), model, 4))(start)
    np.testing.assert_array_equal(np.asarray(valid).T, [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
    ends = np.asarray(rows.terminations * valid).T
    np.testing.assert_array_equal(ends, [[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(rows.observations[:3, 0, 0], [0, 1, 2])
    np.testing.assert_array_equal(rows.next_observations[:3, 0, 0], [1, 2, 3])


def test_assisted_terminations_are_the_tasks_rules_in_raw_units():
    data = preprocess(random_dataset(), Preprocessing(observations="standardize"))
    prepared = dynamics.prepare(data, small())
    raw = np.tile([1.0, 0.0, 0.0], (4, 1))
    raw[1, 0], raw[2, 1], raw[3, 2] = 0.69, 0.21, 101
    scaled = (raw - prepared.observation_mean) / prepared.observation_std
    config = small(terminations="assisted:hopper")
    ensemble = dynamics.begin_ensemble(stacked(0, config, Spec(3, 2, 1)), prepared)
    result = dynamics.termination_probability(ensemble, scaled, jnp.zeros((4, 2)), scaled, config)
    np.testing.assert_array_equal(result, [0, 1, 1, 1])


def test_the_buffer_keeps_the_newest_valid_rows():
    buffer, kept = rollouts.init_buffer(5, Spec(1, 1, 1)), []
    add = jax.jit(rollouts.add)
    random = np.random.default_rng(0)
    for round in range(6):
        numbers, valid = np.arange(4) + 10.0 * round, random.uniform(size=4) < 0.7
        kept = (kept + list(numbers[valid]))[-5:]
        column = jnp.asarray(numbers, jnp.float32)
        buffer = add(buffer, Steps(column[:, None], column[:, None], column, column[:, None], column), valid)
        assert buffer.size == len(kept)
        assert sorted(np.asarray(buffer.rows.rewards)[: len(kept)]) == kept
        drawn = rollouts.sample(jax.random.key(round), buffer, 200)
        assert set(np.asarray(drawn.rewards)) == set(kept)
        np.testing.assert_array_equal(drawn.observations[:, 0], drawn.rewards)
