"""CRR and CRR+: the losses written out, and what they reduce to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plain import mlp, random_batch, random_state, twin_q
from scipy import stats

from offrl.algorithm import Spec
from offrl.algorithms import crr

KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)
NOISE = np.random.default_rng(1).normal(size=(5, 32, 2)).astype(np.float32)  # four samples for V, one for the target
PLAIN = {
    "tanh_squash": False,
    "state_dependent_std": False,
    "actor_layer_norm": False,
    "critic_layer_norm": False,
    "critic_expectile": 0.5,
}


def small(**options) -> crr.Config:
    return crr.Config(hidden_dims=(16, 16), samples=4, **options)


def start(config: crr.Config) -> crr.State:
    """Targets differ from the learned networks, as they do in the middle of training."""
    return random_state(crr, config, SPEC, ("actor", "actor_target", "critic", "critic_target"))


def gaussian(params, observations: np.ndarray, config: crr.Config) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, in double precision."""
    outputs = mlp(params["params"]["MLP_0"], observations)
    if config.state_dependent_std:
        mean, log_std = outputs[:, :2], outputs[:, 2:]
    else:
        mean, log_std = outputs, np.broadcast_to(np.asarray(params["params"]["log_std"], np.float64), outputs.shape)
    mean = np.clip(mean, -9, 9) if config.tanh_squash else np.tanh(mean)
    return mean, np.exp(np.clip(log_std - 1, -5, 2))


def sampled(params, observations, noise, config) -> np.ndarray:
    mean, std = gaussian(params, observations, config)
    return np.tanh(mean + std * noise) if config.tanh_squash else np.clip(mean + std * noise, -1, 1)


def density(params, batch, config) -> np.ndarray:
    mean, std = gaussian(params, batch.observations, config)
    actions = batch.actions.astype(np.float64)
    if config.tanh_squash:
        return (stats.norm.logpdf(np.arctanh(actions), mean, std) - np.log(1 - actions**2)).sum(-1)
    return stats.norm.logpdf(actions, mean, std).sum(-1)


@pytest.mark.parametrize("options", [{}, PLAIN], ids=["crr+", "crr"])
def test_the_critics_follow_the_target_policy_with_the_expectile_loss(options):
    batch, config = random_batch(), small(discount=0.9, **options)
    state = start(config)
    next_actions = sampled(state.actor_target, batch.next_observations, NOISE[0], config)
    next_q = twin_q(state.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + 0.9 * (1 - batch.terminations) * next_q
    error = twin_q(state.critic, batch.observations, batch.actions) - target
    weight = np.where(error > 0, config.critic_expectile, 1 - config.critic_expectile)  # above the target: pessimistic
    assert (error > 0).any()
    assert (error < 0).any()
    loss, _ = crr.critic_loss(state.critic, NOISE[0], state, batch, config)
    np.testing.assert_allclose(loss, (weight * error**2).mean(1).sum(), rtol=1e-4)


@pytest.mark.parametrize("options", [{}, PLAIN], ids=["crr+", "crr"])
@pytest.mark.parametrize(("weight", "value"), [("exp", "mean"), ("indicator", "max")])
def test_the_policys_likelihood_is_weighed_by_advantages_over_its_own_actions(options, weight, value):
    batch, config = random_batch(), small(temperature=0.3, weight=weight, value=value, **options)
    state = start(config)
    values = [
        twin_q(state.critic, batch.observations, sampled(state.actor, batch.observations, noise, config)).min(0)
        for noise in NOISE[1:]
    ]
    advantage = twin_q(state.critic, batch.observations, batch.actions).min(0)
    advantage = advantage - (np.mean(values, 0) if value == "mean" else np.max(values, 0))
    weights = np.minimum(np.exp(advantage / 0.3), 20) if weight == "exp" else advantage > 0
    assert 0 < (advantage > 0).mean() < 1
    loss, metrics = crr.actor_loss(state.actor, NOISE[1:], state, batch, config)
    np.testing.assert_allclose(loss, -(weights * density(state.actor, batch, config)).mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["weight"], weights.mean(), rtol=1e-4)


def test_at_infinite_temperature_the_policy_is_maximum_likelihood_cloning():
    config = small(temperature=float("inf"), actor_learning_rate=3e-4)
    state = start(config)
    params, optimiser = state.actor, optax.adam(3e-4)
    opt_state = optimiser.init(params)

    def negative_log_likelihood(params, batch):
        mean, log_std = crr.actor_network(config, 2).apply(params, batch.observations)
        density = jax.scipy.stats.norm.logpdf(jnp.arctanh(batch.actions), mean, jnp.exp(log_std))
        return -(density - jnp.log(1 - batch.actions**2)).sum(-1).mean()

    step, gradient = jax.jit(crr.update_batch), jax.jit(jax.grad(negative_log_likelihood))
    for i in range(10):
        batch = random_batch(seed=i)
        batch = batch._replace(actions=0.99 * batch.actions)  # off the bounds, where arctanh is exact enough
        state, _ = step(KEY, state, batch, config)
        changes, opt_state = optimiser.update(gradient(params, batch), opt_state)
        params = optax.apply_updates(params, changes)
    for ours, expected in zip(jax.tree.leaves(state.actor), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


def test_both_losses_see_the_parameters_from_before_the_update_and_both_targets_move_after_it():
    batch, config = random_batch(), small()
    state = start(config)
    new, metrics = jax.jit(crr.update_batch)(KEY, state, batch, config)
    noise = jax.random.normal(KEY, (5, 32, 2))
    _, expected = jax.jit(crr.actor_loss)(state.actor, noise[1:], state, batch, config)
    np.testing.assert_allclose(metrics["advantage"], expected["advantage"], rtol=1e-5, atol=1e-6)
    for name in ("actor", "critic"):
        learned, before, after = getattr(new, name), getattr(state, f"{name}_target"), getattr(new, f"{name}_target")
        for a, b, c in zip(*map(jax.tree.leaves, (learned, before, after)), strict=True):
            np.testing.assert_allclose(c, 0.005 * a + 0.995 * b, rtol=1e-5, atol=1e-6)


def test_the_deployed_action_is_the_mode_and_the_policys_density_is_that_of_its_samples():
    batch = random_batch()
    for options in ({}, PLAIN):
        config = small(**options)
        state, policy = start(config), crr.policy(config, SPEC)
        mean, _ = gaussian(state.actor, batch.observations, config)
        expected = np.tanh(mean) if config.tanh_squash else mean
        np.testing.assert_allclose(policy.act(state, batch.observations), expected, rtol=1e-4, atol=1e-5)
        log_prob = policy.log_prob(state, batch.observations, batch.actions)
        np.testing.assert_allclose(log_prob, density(state.actor, batch, config), rtol=1e-3, atol=1e-3)
