"""MCEP: TD3+BC with a second policy, which is the one that acts."""

import jax
import numpy as np
import pytest
from plain import random_batch, random_state, tanh_actor, twin_q

from offrl.algorithm import Spec
from offrl.algorithms import mcep, td3_bc

SPEC = Spec(observation_dim=3, action_dim=2, updates=100)
NETWORKS = ("actor", "actor_target", "critic", "critic_target")


def small(**options) -> mcep.Config:
    return mcep.Config(hidden_dims=(16, 16), **options)


def start(config: mcep.Config) -> mcep.State:
    return random_state(mcep, config, SPEC, (*NETWORKS, "evaluation_actor"))


def test_target_policy_and_critics_are_exactly_those_of_td3_bc_and_the_evaluation_policy_is_another():
    config, parent = small(), td3_bc.Config(hidden_dims=(16, 16))
    state = start(config)
    parent_state = random_state(td3_bc, parent, SPEC, networks=())
    parent_state = parent_state.replace(**{name: getattr(state, name) for name in NETWORKS})
    step, parent_step = jax.jit(mcep.update_batch), jax.jit(td3_bc.update_batch)
    before = state.evaluation_actor
    for i in range(6):
        batch, key = random_batch(seed=i), jax.random.key(i)
        state, metrics = step(key, state, batch, config)
        parent_state, parent_metrics = parent_step(key, parent_state, batch, parent)
        for name, value in parent_metrics.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-5, atol=1e-6)
    for name in NETWORKS:
        for ours, theirs in zip(*(jax.tree.leaves(getattr(s, name)) for s in (state, parent_state)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (state.evaluation_actor, before)), strict=True)]
    assert min(moved) > 1e-5


@pytest.mark.parametrize(("network", "alpha"), [("actor", 2.5), ("evaluation_actor", 10.0)])
def test_each_policy_weighs_the_first_critic_by_its_own_alpha(network, alpha):
    batch, config = random_batch(), small()
    state = start(config)
    params = getattr(state, network)
    actions = tanh_actor(params, batch.observations)
    q = twin_q(state.critic, batch.observations, actions)[0]
    expected = -alpha * q.mean() / np.abs(q).mean() + np.mean((actions - batch.actions) ** 2)
    default = config.alpha if network == "actor" else config.evaluation_alpha
    loss, _ = mcep.actor_loss(params, default, state, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_critics_follow_the_target_policy_whatever_the_evaluation_policy_is():
    batch, config = random_batch(), small(policy_noise=0.0)
    state = start(config)
    next_q = twin_q(
        state.critic_target, batch.next_observations, tanh_actor(state.actor_target, batch.next_observations)
    )
    target = batch.rewards + 0.99 * (1 - batch.terminations) * next_q.min(0)
    expected = ((twin_q(state.critic, batch.observations, batch.actions) - target) ** 2).mean(1).sum()
    loss, _ = mcep.critic_loss(state.critic, jax.random.key(0), state, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_evaluation_policy_acts():
    config, batch = small(), random_batch()
    state = start(config)
    actions = mcep.policy(config, SPEC).act(state, batch.observations)
    np.testing.assert_allclose(actions, tanh_actor(state.evaluation_actor, batch.observations), rtol=1e-4, atol=1e-6)
