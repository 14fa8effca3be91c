"""SPOT: both losses written out, the frozen autoencoder, and what it reduces to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plain import mlp, random_batch, random_state, tanh_actor, twin_q

from offrl.algorithm import Spec
from offrl.algorithms import spot

KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)
NETWORKS = ("vae", "actor", "actor_target", "critic", "critic_target")


def small(**options) -> spot.Config:
    return spot.Config(hidden_dims=(16, 16), vae_hidden_dims=(16, 16), **options)


def start(config: spot.Config) -> spot.State:
    return random_state(spot, config, SPEC, NETWORKS)


def vae_loss(params, key, observations: np.ndarray, actions: np.ndarray, beta: float) -> float:
    layers = params["params"]
    encoded = mlp(layers["encoder"], np.concatenate([observations, actions], -1))
    mean, std = encoded[:, :4], np.exp(np.clip(encoded[:, 4:], -4, 15))
    latent = mean + std * np.asarray(jax.random.normal(key, mean.shape))
    decoded = np.tanh(mlp(layers["decoder"], np.concatenate([observations, latent], -1)))
    divergence = -0.5 * (1 + np.log(std**2) - mean**2 - std**2)
    return np.mean((decoded - actions) ** 2) + beta * divergence.mean()


def test_the_autoencoders_loss_is_its_squared_error_and_divergence_each_a_mean_over_dimensions():
    batch, config = random_batch(), small(kl_weight=0.3)
    state = start(config)
    loss, _ = spot.vae_loss(state.vae, KEY, batch.observations, batch.actions, config)
    np.testing.assert_allclose(loss, vae_loss(state.vae, KEY, batch.observations, batch.actions, 0.3), rtol=1e-5)


def test_the_actor_ascends_the_normalised_first_critic_within_the_support():
    batch, config = random_batch(), small(penalty=0.7, dropout=0.0)
    state = start(config)
    actions = tanh_actor(state.actor, batch.observations)
    q = twin_q(state.critic, batch.observations, actions)[0]
    support = vae_loss(state.vae, jax.random.split(KEY)[1], batch.observations, actions, 0.5)
    loss, metrics = spot.actor_loss(state.actor, KEY, state, batch, config)
    np.testing.assert_allclose(loss, -q.mean() / np.abs(q).mean() + 0.7 * support, rtol=1e-5)
    np.testing.assert_allclose(metrics["support_loss"], support, rtol=1e-5)


def test_the_penalty_draws_the_actor_towards_the_data_through_the_frozen_autoencoder():
    batch, config = random_batch(), small(penalty=1.0, dropout=0.0)
    state = start(config)

    def support(params):
        actions = spot.actor_network(config, 2).apply(params, batch.observations)
        return spot.vae_loss(state.vae, jax.random.split(KEY)[1], batch.observations, actions, config)[0]

    def weighed(penalty):
        config = small(penalty=penalty, dropout=0.0)
        return jax.grad(lambda params: spot.actor_loss(params, KEY, state, batch, config)[0])(state.actor)

    expected = jax.tree.map(jnp.add, weighed(0.0), jax.grad(support)(state.actor))
    for ours, theirs in zip(*map(jax.tree.leaves, (weighed(1.0), expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_the_critics_follow_the_target_actor_with_clipped_noise():
    batch, config = random_batch(), small(policy_noise=3.0, dropout=0.0)
    state = start(config)
    key_noise, _ = jax.random.split(KEY)
    noise = np.clip(3.0 * np.asarray(jax.random.normal(key_noise, batch.actions.shape)), -0.5, 0.5)
    next_actions = np.clip(tanh_actor(state.actor_target, batch.next_observations) + noise, -1, 1)
    next_q = twin_q(state.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + 0.99 * (1 - batch.terminations) * next_q
    expected = ((twin_q(state.critic, batch.observations, batch.actions) - target) ** 2).mean(1).sum()
    loss, _ = spot.critic_loss(state.critic, KEY, state, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_without_the_penalty_it_is_td3_and_each_phase_leaves_the_others_networks_alone():
    """TD3 written out, whose actor's loss is divided by the mean size of the value."""
    config = small(penalty=0.0, dropout=0.0)
    first = start(config)
    state, metrics = jax.jit(spot.update_vae_batch)(KEY, first, random_batch(), config)
    assert "vae_loss" in metrics
    assert state.step == 1
    for name in ("actor", "critic", "actor_target", "critic_target"):
        jax.tree.map(np.testing.assert_array_equal, getattr(state, name), getattr(first, name))

    actor_network, critic_network, adam = spot.actor_network(config, 2), spot.critic_network(config), optax.adam(3e-4)

    @jax.jit
    def td3(key, networks, batch, move_actor):
        actor, actor_target, critic, critic_target, actor_opt, critic_opt = networks
        key_noise, _ = jax.random.split(jax.random.split(key)[0])
        noise = jnp.clip(0.2 * jax.random.normal(key_noise, batch.actions.shape), -0.5, 0.5)
        next_actions = jnp.clip(actor_network.apply(actor_target, batch.next_observations) + noise, -1, 1)
        next_q = jnp.minimum(*critic_network.apply(critic_target, batch.next_observations, next_actions))
        target = batch.rewards + 0.99 * (1 - batch.terminations) * next_q

        def critic_loss(params):
            q1, q2 = critic_network.apply(params, batch.observations, batch.actions)
            return jnp.mean((q1 - target) ** 2) + jnp.mean((q2 - target) ** 2)

        def actor_loss(params):
            q = critic_network.apply(critic, batch.observations, actor_network.apply(params, batch.observations))[0]
            return -q.mean() / jax.lax.stop_gradient(jnp.abs(q).mean())

        def polyak(new, old):
            return jax.tree.map(lambda a, b: 0.005 * a + 0.995 * b, new, old)

        changes, critic_opt = adam.update(jax.grad(critic_loss)(critic), critic_opt)
        critic = optax.apply_updates(critic, changes)
        changes, new_actor_opt = adam.update(jax.grad(actor_loss)(actor), actor_opt)
        new_actor = optax.apply_updates(actor, changes)
        moved = (new_actor, polyak(new_actor, actor_target), critic, polyak(critic, critic_target), new_actor_opt)
        kept = (actor, actor_target, critic, critic_target, actor_opt)
        return (*jax.tree.map(lambda a, b: jnp.where(move_actor, a, b), moved, kept), critic_opt)

    networks = (state.actor, state.actor_target, state.critic, state.critic_target)
    networks = (*networks, adam.init(state.actor), adam.init(state.critic))
    step, vae = jax.jit(spot.update_batch), state.vae
    state = state.replace(step=jnp.asarray(100, jnp.int32))
    for i in range(6):
        batch, key = random_batch(seed=i), jax.random.key(i)
        state, _ = step(key, state, batch, config)
        networks = td3(key, networks, batch, i % 2 == 1)
    ours = (state.actor, state.actor_target, state.critic, state.critic_target)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(networks[:4]), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, state.vae, vae)


def test_dropout_acts_in_training_and_never_in_the_deployed_policy():
    config, batch = small(dropout=0.5), random_batch()
    state = start(config)
    first, second = (spot.act(state.actor, jax.random.key(i), batch.observations, 2, config) for i in range(2))
    assert (first != second).any()
    actions = spot.policy(config, SPEC).act(state, batch.observations)
    np.testing.assert_allclose(actions, tanh_actor(state.actor, batch.observations), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("protocol", "expected"), [(1_000_000, 100_000), (500, 500)])
def test_the_first_phase_is_no_longer_than_the_second(protocol, expected):
    first, second = spot.phases(spot.Config())
    assert (first.length(protocol), second.length(protocol)) == (expected, protocol)
