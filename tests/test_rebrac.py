"""ReBRAC: the authors' numbers, its losses written out, and what it reduces to."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from plain import golden_batch, random_batch, random_dataset, random_state, tanh_actor, twin_q

from offrl.algorithm import Spec
from offrl.algorithms import rebrac
from offrl.runs.configuration import tuned_values

GOLDEN = Path(__file__).parent / "golden" / "rebrac.npz"
KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)


def small(**options) -> rebrac.Config:
    return rebrac.Config(hidden_dims=(16, 16), **options)


def start(config: rebrac.Config) -> rebrac.State:
    """Targets differ from the learned networks, as they do in the middle of training."""
    return random_state(rebrac, config, SPEC, ("actor", "actor_target", "critic", "critic_target"))


def test_ten_updates_match_the_authors_implementation():
    golden = np.load(GOLDEN)

    def layers(network: str, *names: str) -> dict:
        parts = {name: ("scale", "bias") if "Norm" in name else ("kernel", "bias") for name in names}
        leaves = {
            name: {leaf: jnp.asarray(golden[f"init/{network}/{name}/{leaf}"]) for leaf in parts[name]} for name in names
        }
        return {"params": {"MLP_0": leaves}}

    config, spec = rebrac.Config(actor_penalty=0.05, critic_penalty=0.01, policy_noise=0.0), Spec(11, 3, 10)
    state = random_state(rebrac, config, spec, networks=())
    dense, norms = [f"Dense_{i}" for i in range(4)], [f"LayerNorm_{i}" for i in range(3)]
    actor, critic = layers("actor", *dense), layers("critics/VmapCritic_0", *dense, *norms)
    for ours, theirs in ((state.actor, actor), (state.critic, critic)):
        assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)
    state = state.replace(actor=actor, actor_target=actor, critic=critic, critic_target=critic)
    observations, actions = golden["probe/observations"], golden["probe/actions"]
    policy = rebrac.policy(config, spec)

    @jax.jit
    def step(state, batch):
        state, metrics = rebrac.update_batch(KEY, state, batch, config)
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
        assert np.isnan(golden["expect/actor_loss"][i]) == (i % 2 == 1)  # the actor moves on updates 0, 2, 4, ...
        if i % 2 == 1:
            del seen["actor_loss"]
        for name, value in seen.items():
            expected = golden[f"expect/{name}"][i]
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} after update {i + 1}")


def test_the_target_is_penalised_by_the_distance_to_the_datas_next_action_within_the_episode():
    data, config = random_dataset(lengths=(5, 4, 6), terminal=(True, False, True)), small(critic_penalty=0.7)
    state = start(config)
    after = np.r_[1:6, 7:11, 12:18]  # the row of the observation after every step, as the episodes are stored
    noise = np.clip(0.2 * np.asarray(jax.random.normal(KEY, (15, 2))), -0.5, 0.5)
    next_actions = np.clip(tanh_actor(state.actor_target, data.observations[after]) + noise, -1, 1)
    penalty = np.zeros(15)
    for row in set(range(15)) - {
        4,
        8,
        14,
    }:  # the ends of the episodes: at a terminal state, a time limit, a terminal one
        penalty[row] = 0.7 * ((next_actions[row] - data.actions[row + 1]) ** 2).sum()
    next_value = twin_q(state.critic_target, data.observations[after], next_actions).min(0) - penalty
    next_value[[4, 14]] = 0  # the second episode ends at a time limit and bootstraps, with no penalty
    target = data.rewards + 0.99 * next_value
    expected = ((twin_q(state.critic, data.observations[after - 1], data.actions) - target) ** 2).mean(1).sum()
    loss, metrics = rebrac.critic_loss(state.critic, KEY, state, data.transitions(), config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["next_distance"], penalty.mean() / 0.7, rtol=1e-5)


def test_the_actor_weighs_the_smaller_critic_by_its_mean_size_and_sums_the_penalty_over_action_dimensions():
    batch, config = random_batch(), small(actor_penalty=0.3)
    state = start(config)
    actions = tanh_actor(state.actor, batch.observations)
    q = twin_q(state.critic, batch.observations, actions).min(0)
    expected = 0.3 * ((actions - batch.actions) ** 2).sum(-1).mean() - q.mean() / np.abs(q).mean()
    loss, metrics = rebrac.actor_loss(state.actor, state, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["lambda"], 1 / np.abs(q).mean(), rtol=1e-5)


def test_without_penalties_it_is_td3_with_these_networks():
    """TD3 written out, whose actor ascends the smaller of both critics, divided by its mean size."""
    config = small(actor_penalty=0.0, critic_penalty=0.0, target_lag=False)
    actor_network, critic_network = rebrac.actor_network(config, 2), rebrac.critic_network(config)
    adam = optax.adam(1e-3)

    def polyak(new, old):
        return jax.tree.map(lambda a, b: 0.005 * a + 0.995 * b, new, old)

    @jax.jit
    def td3(key, networks, batch, move_actor):
        actor, actor_target, critic, critic_target, actor_opt, critic_opt = networks
        noise = jnp.clip(0.2 * jax.random.normal(key, batch.actions.shape), -0.5, 0.5)
        next_actions = jnp.clip(actor_network.apply(actor_target, batch.next_observations) + noise, -1, 1)
        next_q = jnp.minimum(*critic_network.apply(critic_target, batch.next_observations, next_actions))
        target = batch.rewards + 0.99 * (1 - batch.terminations) * next_q

        def critic_loss(params):
            q1, q2 = critic_network.apply(params, batch.observations, batch.actions)
            return jnp.mean((q1 - target) ** 2) + jnp.mean((q2 - target) ** 2)

        def actor_loss(params):
            actions = actor_network.apply(params, batch.observations)
            q = jnp.minimum(*critic_network.apply(critic, batch.observations, actions))
            return -q.mean() / jax.lax.stop_gradient(jnp.abs(q).mean())

        changes, critic_opt = adam.update(jax.grad(critic_loss)(critic), critic_opt)
        critic = optax.apply_updates(critic, changes)
        changes, new_actor_opt = adam.update(jax.grad(actor_loss)(actor), actor_opt)
        new_actor = optax.apply_updates(actor, changes)
        moved = (new_actor, polyak(new_actor, actor_target), critic, polyak(critic, critic_target), new_actor_opt)
        kept = (actor, actor_target, critic, critic_target, actor_opt)
        return (*jax.tree.map(lambda a, b: jnp.where(move_actor, a, b), moved, kept), critic_opt)

    state = start(config)
    networks = (state.actor, state.actor_target, state.critic, state.critic_target)
    networks = (*networks, adam.init(state.actor), adam.init(state.critic))
    step = jax.jit(rebrac.update_batch)
    for i in range(6):
        batch, key = random_batch(seed=i), jax.random.key(i)
        state, _ = step(key, state, batch, config)
        networks = td3(key, networks, batch, i % 2 == 0)
    ours = (state.actor, state.actor_target, state.critic, state.critic_target)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(networks[:4]), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-6)


def test_initial_parameters_are_as_published():
    state = rebrac.init(KEY, rebrac.Config(hidden_dims=(8, 8)), SPEC)
    for network, bound in ((state.actor, 1e-3), (state.critic, 3e-3)):
        layers = network["params"]["MLP_0"]
        np.testing.assert_array_equal(layers["Dense_1"]["bias"], np.float32(0.1))
        for leaf in layers["Dense_2"].values():
            assert 0 < np.abs(leaf).max() <= bound
    assert "LayerNorm_0" in state.critic["params"]["MLP_0"]
    assert "LayerNorm_0" not in state.actor["params"]["MLP_0"]


def test_published_values_cover_the_papers_datasets():
    hopper, _ = tuned_values("rebrac", "d4rl:hopper-medium-replay-v2")
    assert hopper == {"actor_penalty": 0.05, "critic_penalty": 0.5}
    maze, source = tuned_values("rebrac", "d4rl:antmaze-large-play-v2")
    assert (maze["actor_penalty"], maze["critic_penalty"], maze["discount"]) == (0.002, 0.001, 0.999)
    assert (maze["critic_learning_rate"], maze["preprocessing.reward_scale"]) == (5e-5, 100.0)
    assert "ReBRAC" in source
    pen, _ = tuned_values("rebrac", "minari:D4RL/pen/cloned-v2")
    assert (pen["actor_penalty"], pen["critic_penalty"], pen["batch_size"]) == (0.05, 0.5, 256)
