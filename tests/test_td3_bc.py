"""TD3+BC: the reference implementation's numbers, its losses written out, and what it reduces to."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from plain import golden_batch, random_batch, random_dataset, random_state, tanh_actor, twin_q

from offrl.algorithm import Spec
from offrl.algorithms import bc, td3_bc

GOLDEN = Path(__file__).parent / "golden" / "td3_bc.npz"
KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)


def small(**options) -> td3_bc.Config:
    return td3_bc.Config(hidden_dims=(16, 16), **options)


def start(config: td3_bc.Config) -> td3_bc.State:
    """Targets differ from the learned networks, as they do in the middle of training."""
    return random_state(td3_bc, config, SPEC, ("actor", "actor_target", "critic", "critic_target"))


def test_ten_updates_match_the_reference_implementation():
    golden = np.load(GOLDEN)

    def layers(network: str) -> dict:
        names = ("w", "kernel"), ("b", "bias")
        return {
            f"Dense_{i}": {ours: jnp.asarray(golden[f"init/{network}/{i}/{theirs}"]) for theirs, ours in names}
            for i in range(3)
        }

    config, spec = td3_bc.Config(policy_noise=0.0), Spec(11, 3, 10)
    state = random_state(td3_bc, config, spec, networks=())
    actor = {"params": {"MLP_0": layers("actor")}}
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), layers("critic1"), layers("critic2"))
    critic = {"params": {"MLP_0": both}}
    for ours, theirs in ((state.actor, actor), (state.critic, critic)):
        assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)
    state = state.replace(actor=actor, actor_target=actor, critic=critic, critic_target=critic)
    observations, actions = golden["probe/observations"], golden["probe/actions"]
    policy = td3_bc.policy(config, spec)

    @jax.jit
    def step(state, batch):
        state, metrics = td3_bc.update_batch(KEY, state, batch, config)
        targets = state.replace(actor=state.actor_target, critic=state.critic_target)
        q = policy.q_values(state, observations, actions)
        return state, {
            "critic_loss": metrics["critic_loss"],
            "actor_loss": metrics["actor_loss"],
            "q1": q[0],
            "q2": q[1],
            "q1_target": policy.q_values(targets, observations, actions)[0],
            "pi": policy.act(state, observations),
            "pi_target": policy.act(targets, observations),
        }

    for i in range(10):
        state, seen = step(state, golden_batch(golden, i))
        if np.isnan(golden["expect/actor_loss"][i]):
            del seen["actor_loss"]
        for name, value in seen.items():
            expected = golden[f"expect/{name}"][i]
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} after update {i + 1}")


def test_the_critics_bootstrap_at_time_limits_and_not_at_terminal_states():
    data, config = random_dataset(lengths=(5, 4, 6), terminal=(True, False, True)), small(policy_noise=0.0)
    state = start(config)
    after = np.r_[1:6, 7:11, 12:18]  # the row of the observation after every step, as the episodes are stored
    before = after - 1
    alive = np.ones(15)
    alive[[4, 14]] = 0  # the ends of the first and the third episode; the second one ends at a time limit
    next_actions = tanh_actor(state.actor_target, data.observations[after])
    next_q = twin_q(state.critic_target, data.observations[after], next_actions).min(0)
    target = data.rewards + 0.99 * alive * next_q
    q = twin_q(state.critic, data.observations[before], data.actions)
    expected = np.mean((q[0] - target) ** 2) + np.mean((q[1] - target) ** 2)
    loss, metrics = td3_bc.critic_loss(state.critic, KEY, state, data.transitions(), config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["data_q"], q.mean(), rtol=1e-5, atol=1e-6)


def test_the_target_policy_is_smoothed_with_clipped_noise_within_the_action_box():
    batch, config = random_batch(), small(policy_noise=3.0, noise_clip=0.5, discount=0.9)
    state = start(config)
    state = state.replace(actor_target=jax.tree.map(lambda leaf: 3 * leaf, state.actor_target))  # actions near the box
    noise = np.clip(3.0 * np.asarray(jax.random.normal(KEY, batch.actions.shape)), -0.5, 0.5)
    next_actions = np.clip(tanh_actor(state.actor_target, batch.next_observations) + noise, -1, 1)
    assert (np.abs(noise) == 0.5).any()
    assert (np.abs(next_actions) == 1).any()
    next_q = twin_q(state.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + 0.9 * (1 - batch.terminations) * next_q
    expected = ((twin_q(state.critic, batch.observations, batch.actions) - target) ** 2).mean(1).sum()
    loss, _ = td3_bc.critic_loss(state.critic, KEY, state, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_actor_weighs_the_first_critic_by_alpha_over_its_mean_size_and_clones_beside_it():
    batch, config = random_batch(), small(alpha=2.5)
    state = start(config)
    actions = tanh_actor(state.actor, batch.observations)
    q = twin_q(state.critic, batch.observations, actions)[0]
    weight = 2.5 / np.abs(q).mean()
    expected = -weight * q.mean() + np.mean((actions - batch.actions) ** 2)  # over rows and action dimensions
    loss, metrics = td3_bc.actor_loss(state.actor, state, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["lambda"], weight, rtol=1e-5)


def test_no_gradient_flows_through_the_weight_of_the_value_term():
    batch, config = random_batch(), small(alpha=2.5)
    state = start(config)
    weight = float(td3_bc.actor_loss(state.actor, state, batch, config)[1]["lambda"])

    def with_constant_weight(params):
        actions = td3_bc.actor_network(config, 2).apply(params, batch.observations)
        q = td3_bc.critic_network(config).apply(state.critic, batch.observations, actions)[0]
        return -weight * q.mean() + ((actions - batch.actions) ** 2).mean()

    gradient = jax.grad(lambda params: td3_bc.actor_loss(params, state, batch, config)[0])(state.actor)
    for ours, expected in zip(
        jax.tree.leaves(gradient), jax.tree.leaves(jax.grad(with_constant_weight)(state.actor)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_without_the_value_term_it_is_behaviour_cloning():
    config, clone = small(alpha=0.0, policy_frequency=1), bc.Config(hidden_dims=(16, 16))
    state = start(config)
    cloned = random_state(bc, clone, SPEC, networks=()).replace(actor=state.actor)
    step, clone_step = jax.jit(td3_bc.update_batch), jax.jit(bc.update_batch)
    for i in range(20):
        batch = random_batch(seed=i)
        state, metrics = step(jax.random.key(i), state, batch, config)
        cloned, clone_metrics = clone_step(cloned, batch, clone)
        np.testing.assert_allclose(metrics["actor_loss"], clone_metrics["bc_loss"], rtol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(state.actor), jax.tree.leaves(cloned.actor), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
