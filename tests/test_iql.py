"""IQL: the official implementation's numbers, its losses written out, and what it reduces to."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from plain import golden_batch, mlp, random_batch, random_dataset, random_state, tanh_actor, twin_q
from scipy import stats

from offrl.algorithm import Spec
from offrl.algorithms import iql
from offrl.data.preprocessing import preprocess

GOLDEN = Path(__file__).parent / "golden" / "iql.npz"
KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)


def small(**options) -> iql.Config:
    return iql.Config(hidden_dims=(16, 16), **options)


def start(config: iql.Config) -> iql.State:
    """Targets differ from the critics and the policy has a width, as in the middle of training."""
    state = random_state(iql, config, SPEC, ("actor", "critic", "critic_target", "value"))
    actor = {"params": {**state.actor["params"], "log_std": np.array([-0.7, 0.4], np.float32)}}
    return state.replace(actor=actor, updates=np.int32(SPEC.updates))


def v(state: iql.State, observations: np.ndarray) -> np.ndarray:
    return mlp(state.value["params"], observations)[:, 0]


def test_ten_updates_match_the_official_implementation():
    golden = np.load(GOLDEN)

    def layers(*paths: str) -> dict:
        return {
            f"Dense_{i}": {name: jnp.asarray(golden[f"init/{path}/{name}"]) for name in ("kernel", "bias")}
            for i, path in enumerate(paths)
        }

    config, spec = iql.Config(), Spec(11, 3, 1000)
    state = random_state(iql, config, spec, networks=())
    inner = ("MLP_0/Dense_0", "MLP_0/Dense_1")
    mean = layers(*(f"actor/{path}" for path in inner), "actor/Dense_0")
    actor = {"params": {"MLP_0": mean, "log_std": jnp.asarray(golden["init/actor/log_stds"])}}
    all_three = (*inner, "MLP_0/Dense_2")
    critics = [layers(*(f"critics/Critic_{i}/{path}" for path in all_three)) for i in range(2)]
    critic = {"params": {"MLP_0": jax.tree.map(lambda *leaves: jnp.stack(leaves), *critics)}}
    value = {"params": layers(*(f"value/{path}" for path in all_three))}
    for ours, theirs in ((state.actor, actor), (state.critic, critic), (state.value, value)):
        assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)
    state = state.replace(actor=actor, critic=critic, critic_target=critic, value=value, updates=np.int32(1000))
    observations, actions = golden["probe/observations"], golden["probe/actions"]
    policy = iql.policy(config, spec)

    @jax.jit
    def step(state, batch):
        state, metrics = iql.update_batch(KEY, state, batch, config)
        targets = state.replace(critic=state.critic_target)
        q = policy.q_values(state, observations, actions)
        return state, {
            **{name: metrics[name] for name in ("critic_loss", "value_loss", "actor_loss")},
            "q1": q[0],
            "q2": q[1],
            "q1_target": policy.q_values(targets, observations, actions)[0],
            "v": policy.value(state, observations),
            "pi": policy.act(state, observations),
            "log_std": state.actor["params"]["log_std"],
        }

    for i in range(10):
        state, seen = step(state, golden_batch(golden, i))
        for name, seen_value in seen.items():
            expected = golden[f"expect/{name}"][i]
            np.testing.assert_allclose(seen_value, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name}, update {i + 1}")


def test_v_weighs_errors_by_the_expectile():
    batch, config = random_batch(), small(expectile=0.8)
    state = start(config)
    error = np.linspace(-2, 3, len(batch.rewards))
    target = jnp.asarray(v(state, batch.observations) + error, jnp.float32)
    loss, metrics = iql.value_loss(state.value, target, batch, config)
    np.testing.assert_allclose(loss, np.where(error > 0, 0.8 * error**2, 0.2 * error**2).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["value"], v(state, batch.observations).mean(), rtol=1e-5, atol=1e-6)


def fitted_v(expectile: float, targets: np.ndarray) -> float:
    """V of one state after regression on many targets."""
    config = small(expectile=expectile)
    batch = random_batch(len(targets))._replace(observations=np.ones((len(targets), 3), np.float32))
    optimiser = optax.adam(3e-3)
    params = start(config).value

    def one(_, carry):
        params, opt_state = carry
        gradient = jax.grad(lambda params: iql.value_loss(params, targets, batch, config)[0])(params)
        changes, opt_state = optimiser.update(gradient, opt_state)
        return optax.apply_updates(params, changes), opt_state

    params, _ = jax.jit(lambda carry: jax.lax.fori_loop(0, 600, one, carry))((params, optimiser.init(params)))
    return float(iql.value_network(config).apply(params, batch.observations[:1])[0, 0])


def test_v_becomes_the_mean_at_expectile_one_half_and_the_expectile_above_it():
    targets = np.random.default_rng(0).exponential(size=64).astype(np.float32)
    np.testing.assert_allclose(fitted_v(0.5, targets), targets.mean(), atol=5e-3)
    np.testing.assert_allclose(fitted_v(0.9, targets), stats.expectile(targets, 0.9), atol=5e-3)


def test_the_critics_bootstrap_at_time_limits_and_not_at_terminal_states():
    data, config = random_dataset(lengths=(5, 4, 6), terminal=(True, False, True)), small()
    state = start(config)
    after = np.r_[1:6, 7:11, 12:18]  # the row of the observation after every step, as the episodes are stored
    alive = np.ones(15)
    alive[[4, 14]] = 0  # the ends of the first and the third episode; the second one ends at a time limit
    target = data.rewards + 0.99 * alive * v(state, data.observations[after])
    q = twin_q(state.critic, data.observations[after - 1], data.actions)
    expected = np.mean((q[0] - target) ** 2) + np.mean((q[1] - target) ** 2)
    batch = data.transitions()
    next_v = iql.policy(config, SPEC).value(state, batch.next_observations)
    np.testing.assert_allclose(iql.critic_loss(state.critic, next_v, batch, config)[0], expected, rtol=1e-5)


def test_the_policy_has_the_density_of_an_unsquashed_gaussian_around_a_tanh_mean():
    batch, config = random_batch(), small()
    state = start(config)
    policy = iql.policy(config, SPEC)
    mean, std = tanh_actor(state.actor, batch.observations), np.exp([-0.7, 0.4])
    np.testing.assert_allclose(policy.act(state, batch.observations), mean, rtol=1e-5, atol=1e-6)
    expected = stats.norm.logpdf(batch.actions, mean, std).sum(-1)
    np.testing.assert_allclose(policy.log_prob(state, batch.observations, batch.actions), expected, rtol=1e-5)


def test_the_log_deviation_is_clipped_to_its_range():
    state = start(small())
    for log_std, clipped in ((-9.0, -5.0), (9.0, 2.0)):
        params = {"params": {**state.actor["params"], "log_std": jnp.full(2, log_std)}}
        assert (iql.actor_network(small(), 2).apply(params, jnp.ones((1, 3)))[1] == clipped).all()


def test_the_policy_regresses_with_exponential_weights_clipped_at_100():
    batch, config = random_batch(), small(temperature=3.0)
    state = start(config)
    advantage = np.linspace(-2, 3, len(batch.rewards)).astype(np.float32)
    weight = np.exp(3.0 * advantage)
    assert (weight > 100).any()
    density = stats.norm.logpdf(batch.actions, tanh_actor(state.actor, batch.observations), np.exp([-0.7, 0.4]))
    expected = -(np.minimum(weight, 100) * density.sum(-1)).mean()
    loss, metrics = iql.actor_loss(state.actor, KEY, advantage, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["weight"], np.minimum(weight, 100).mean(), rtol=1e-5)


def test_with_value_lag_advantage_and_targets_come_from_v_before_its_update_as_in_corl():
    batch = random_batch()
    step = jax.jit(iql.update_batch)
    for lag in (True, False):
        config = small(value_lag=lag, value_learning_rate=0.1)
        state = start(config)
        new, metrics = step(KEY, state, batch, config)
        used = state if lag else new
        target_q = twin_q(state.critic_target, batch.observations, batch.actions).min(0)
        np.testing.assert_allclose(
            metrics["advantage"], (target_q - v(used, batch.observations)).mean(), rtol=1e-4, atol=1e-5
        )
        target = batch.rewards + 0.99 * (1 - batch.terminations) * v(used, batch.next_observations)
        expected = ((twin_q(state.critic, batch.observations, batch.actions) - target) ** 2).mean(1).sum()
        np.testing.assert_allclose(metrics["critic_loss"], expected, rtol=1e-4)


def test_at_temperature_zero_the_policy_is_maximum_likelihood_cloning():
    config = small(temperature=0.0, actor_schedule="constant")
    state = start(config)
    params, optimiser = state.actor, optax.adam(3e-4)
    opt_state = optimiser.init(params)

    def negative_log_likelihood(params, batch):
        mean, log_std = iql.actor_network(config, 2).apply(params, batch.observations)
        return -jax.scipy.stats.norm.logpdf(batch.actions, mean, jnp.exp(log_std)).sum(-1).mean()

    step, gradient = jax.jit(iql.update_batch), jax.jit(jax.grad(negative_log_likelihood))
    for i in range(10):
        batch = random_batch(seed=i)
        state, _ = step(KEY, state, batch, config)
        changes, opt_state = optimiser.update(gradient(params, batch), opt_state)
        params = optax.apply_updates(params, changes)
    for ours, expected in zip(jax.tree.leaves(state.actor), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


def test_the_policys_step_size_follows_a_cosine_to_zero_at_the_end_of_the_run():
    config, batch, step = small(), random_batch(), jax.jit(iql.update_batch)

    def moved(at: int) -> np.ndarray:
        """How far the first step of a fresh Adam moves, which does not depend on the size of the gradient."""
        state = start(config).replace(step=jnp.asarray(at, jnp.int32))
        new, _ = step(KEY, state, batch, config)
        return np.abs(new.actor["params"]["log_std"] - state.actor["params"]["log_std"])

    np.testing.assert_allclose(moved(0), 3e-4, rtol=1e-2)
    np.testing.assert_allclose(moved(50), 1.5e-4, rtol=1e-2)
    np.testing.assert_allclose(moved(SPEC.updates), 0, atol=1e-9)


def test_dropout_acts_in_training_and_never_in_the_deployed_policy():
    config, batch = small(dropout=0.5), random_batch()
    state = start(config)
    losses = {float(iql.actor_loss(state.actor, jax.random.key(i), jnp.zeros(32), batch, config)[0]) for i in range(2)}
    assert len(losses) == 2
    actions = iql.policy(config, SPEC).act(state, batch.observations)
    np.testing.assert_allclose(actions, tanh_actor(state.actor, batch.observations), rtol=1e-5, atol=1e-6)


def test_by_default_rewards_are_scaled_by_the_range_of_returns_and_actions_kept_off_the_edge():
    data = random_dataset()
    batch = preprocess(data, iql.Config().preprocessing).transitions()
    returns = [data.rewards[:5].sum(), data.rewards[5:9].sum(), data.rewards[9:].sum()]
    np.testing.assert_allclose(batch.rewards, data.rewards * 1000 / (max(returns) - min(returns)), rtol=1e-5)
    np.testing.assert_allclose(batch.observations[:5], data.observations[:5], rtol=1e-6)
