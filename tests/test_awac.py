"""AWAC: the reference implementation's numbers, its losses written out, and what it reduces to."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from plain import mlp, random_batch, random_state, twin_q
from scipy import stats

from offrl.algorithm import Spec
from offrl.algorithms import awac

GOLDEN = Path(__file__).parent / "golden" / "awac.npz"
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)
NOISE = np.random.default_rng(1).normal(size=(2, 32, 2)).astype(np.float32)
STD = np.exp([-0.7, 0.4])


def small(**options) -> awac.Config:
    return awac.Config(hidden_dims=(16, 16), **options)


def start(config: awac.Config) -> awac.State:
    """Targets differ from the critics and the policy has a width, as in the middle of training."""
    state = random_state(awac, config, SPEC, ("actor", "critic", "critic_target"))
    return state.replace(actor={"params": {**state.actor["params"], "log_std": np.log(STD).astype(np.float32)}})


def mean(state: awac.State, observations: np.ndarray) -> np.ndarray:
    return mlp(state.actor["params"]["MLP_0"], observations)


def test_six_updates_match_the_reference_implementation():
    golden = np.load(GOLDEN)

    def layers(network: str) -> dict:
        names = ("w", "kernel"), ("b", "bias")
        return {
            f"Dense_{i}": {ours: jnp.asarray(golden[f"init/{network}/{i}/{theirs}"]) for theirs, ours in names}
            for i in range(4)
        }

    config, spec = awac.Config(hidden_dims=(64, 64, 64), temperature=1.0), Spec(11, 3, 6)
    state = random_state(awac, config, spec, networks=())
    actor = {"params": {"MLP_0": layers("actor"), "log_std": jnp.asarray(golden["init/actor/log_std"])}}
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), layers("critic1"), layers("critic2"))
    critic = {"params": {"MLP_0": both}}
    for ours, theirs in ((state.actor, actor), (state.critic, critic)):
        assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)
    state = state.replace(actor=actor, critic=critic, critic_target=critic)
    observations, actions = golden["probe/observations"], golden["probe/actions"]
    policy = awac.policy(config, spec)

    @jax.jit
    def step(noise, state, batch):
        state, metrics = awac.update_batch(noise, state, batch, config)
        q = policy.q_values(state, observations, actions)
        return state, {
            "critic_loss": metrics["critic_loss"],
            "actor_loss": metrics["actor_loss"],
            "q1": q[0],
            "q2": q[1],
            "q1_target": policy.q_values(state.replace(critic=state.critic_target), observations, actions)[0],
            "pi": awac.actor_network(config, 3).apply(state.actor, observations)[0],
        }

    for i in range(6):
        columns = {name: golden[f"batch/{name}"][i] for name in awac.Transitions._fields if f"batch/{name}" in golden}
        batch = awac.Transitions(**columns, next_actions=columns["actions"], next_action_known=columns["rewards"])
        state, seen = step(golden["draw/eps"][i], state, batch)
        for name, value in seen.items():
            expected = golden[f"expect/{name}"][i]
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} after update {i + 1}")


def test_the_critics_bootstrap_from_one_clipped_action_of_the_policy():
    batch, config = random_batch(), small(discount=0.9)
    state = start(config)
    next_actions = mean(state, batch.next_observations) + STD * NOISE[0]
    assert (np.abs(next_actions) > 1).any()
    next_q = twin_q(state.critic_target, batch.next_observations, np.clip(next_actions, -1, 1)).min(0)
    target = batch.rewards + 0.9 * (1 - batch.terminations) * next_q
    expected = ((twin_q(state.critic, batch.observations, batch.actions) - target) ** 2).mean(1).sum()
    loss, _ = awac.critic_loss(state.critic, NOISE[0], state, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_policys_likelihood_is_weighed_by_bounded_exponential_advantages():
    batch, config = random_batch(), small(temperature=0.1, max_weight=2.0)
    state = start(config)
    actions = np.clip(mean(state, batch.observations) + STD * NOISE[1], -1, 1)
    advantage = twin_q(state.critic, batch.observations, batch.actions).min(0)
    advantage = advantage - twin_q(state.critic, batch.observations, actions).min(0)
    weight = np.exp(advantage / 0.1)
    assert (weight > 2).any()
    density = stats.norm.logpdf(batch.actions, mean(state, batch.observations), STD).sum(-1)
    expected = -(np.minimum(weight, 2) * density).mean()
    loss, metrics = awac.actor_loss(state.actor, NOISE[1], state, batch, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["advantage"], advantage.mean(), rtol=1e-4, atol=1e-6)


def test_at_infinite_temperature_the_policy_is_maximum_likelihood_cloning():
    config = small(temperature=float("inf"))
    state = start(config)
    params, optimiser = state.actor, optax.adam(3e-4)
    opt_state = optimiser.init(params)

    def negative_log_likelihood(params, batch):
        mean, log_std = awac.actor_network(config, 2).apply(params, batch.observations)
        return -jax.scipy.stats.norm.logpdf(batch.actions, mean, jnp.exp(log_std)).sum(-1).mean()

    step, gradient = jax.jit(awac.update_batch), jax.jit(jax.grad(negative_log_likelihood))
    for i in range(10):
        batch = random_batch(seed=i)
        state, _ = step(NOISE, state, batch, config)
        changes, opt_state = optimiser.update(gradient(params, batch), opt_state)
        params = optax.apply_updates(params, changes)
    for ours, expected in zip(jax.tree.leaves(state.actor), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


def test_the_deployed_action_is_the_mean_within_the_box():
    config, batch = small(), random_batch()
    state = start(config)
    actions = awac.policy(config, SPEC).act(state, batch.observations)
    assert (np.abs(mean(state, batch.observations)) > 1).any()
    np.testing.assert_allclose(actions, np.clip(mean(state, batch.observations), -1, 1), rtol=1e-4, atol=1e-5)
