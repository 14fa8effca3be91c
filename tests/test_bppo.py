"""BPPO: its losses written out, the returns across time limits, what replaces the old policy, and clip 0."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from plain import mlp, random_batch, random_dataset, random_state

from offrl.algorithm import Spec
from offrl.algorithms import bppo
from offrl.errors import UserError

KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)


def small(**options) -> bppo.Config:
    return bppo.Config(hidden_dims=(16, 16), value_hidden_dims=(16,), batch_size=8, **options)


def start(config: bppo.Config, seed: int = 0) -> bppo.State:
    """Every network with parameters of its own, the old policy and the target critic too."""
    return random_state(bppo, config, SPEC, ("actor", "old_actor", "value", "critic", "critic_target"), seed)


def gaussian(params, observations) -> tuple[np.ndarray, np.ndarray]:
    mean, log_std = np.split(np.tanh(mlp(params["params"]["MLP_0"], observations)), 2, -1)
    return mean, -5 + 2.5 * (log_std + 1)


def log_prob(mean, log_std, actions) -> np.ndarray:
    return (-0.5 * ((actions - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)


def q_of(params, observations, actions) -> np.ndarray:
    return mlp(params["params"]["MLP_0"], np.concatenate([observations, actions], -1))[:, 0]


def v_of(params, observations) -> np.ndarray:
    return mlp(params["params"], observations)[:, 0]


def rows(data: bppo.Data) -> bppo.Batch:
    """All of the data as one batch."""
    return bppo.Batch(data.transitions, data.returns, data.bootstrap, data.final_observations[data.episodes])


@pytest.mark.parametrize("lost", [False, True])
def test_returns_end_at_terminal_states_and_go_on_with_v_at_time_limits(lost):
    dataset, config = random_dataset(lengths=(5, 4, 6), terminal=(True, False, True)), small(discount=0.9)
    if lost:  # the observation after the second episode's last action: a copy of the one before
        observations = dataset.observations.copy()
        observations[10] = observations[9]
        known = np.array([True, False, True])
        dataset = replace(dataset, observations=observations, final_observation_known=known)
    state = start(config)
    targets = []
    for first, length, terminal in ((0, 5, True), (5, 4, False), (9, 6, True)):
        used = length - 1 if lost and not terminal else length
        value = 0.0 if terminal else v_of(state.value, dataset.observations[[6 + used]])[0]
        backwards = []
        for reward in dataset.rewards[first : first + used][::-1]:
            value = reward + 0.9 * value
            backwards.append(value)
        targets += backwards[::-1]
    data = bppo.prepare(dataset, config)
    assert len(data.returns) == (14 if lost else 15)
    v = v_of(state.value, data.transitions.observations)
    loss, metrics = jax.jit(partial(bppo.value_loss, config=config))(state.value, rows(data))
    np.testing.assert_allclose(loss, ((v - targets) ** 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["value"], v.mean(), rtol=1e-5)


def test_v_is_not_moved_through_its_own_bootstrap():
    config = small(discount=0.9)
    state, batch = start(config), rows(bppo.prepare(random_dataset(terminal=(False, False, False)), config))
    target = batch.returns + batch.bootstrap * v_of(state.value, batch.final_observations)
    fixed = batch._replace(returns=target.astype(np.float32), bootstrap=np.zeros_like(batch.bootstrap))
    gradient = jax.jit(jax.grad(lambda params, batch: bppo.value_loss(params, batch, config)[0]))
    for ours, expected in zip(
        jax.tree.leaves(gradient(state.value, batch)), jax.tree.leaves(gradient(state.value, fixed)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_q_bootstraps_from_the_next_action_of_the_data_and_from_v_at_time_limits():
    dataset, config = random_dataset(lengths=(5, 4, 6), terminal=(True, False, True)), small(discount=0.9)
    state, batch = start(config), dataset.transitions()
    next_actions = np.concatenate([dataset.actions[1:], np.zeros((1, 2))])
    next_value = q_of(state.critic_target, batch.next_observations, next_actions)
    next_value[8] = v_of(state.value, batch.next_observations)[8]  # the end of the second episode, a time limit
    alive = np.ones(15)
    alive[[4, 14]] = 0
    q = q_of(state.critic, batch.observations, batch.actions)
    expected = ((q - dataset.rewards - 0.9 * alive * next_value) ** 2).mean()
    loss, metrics = jax.jit(partial(bppo.critic_loss, config=config))(state.critic, state, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["data_q"], q.mean(), rtol=1e-4, atol=1e-6)
    assert (q < 0).any()  # no ReLU at the output


def test_the_clone_maximises_the_likelihood_of_the_data():
    config, batch = small(), random_batch()
    state = start(config)
    expected = -log_prob(*gaussian(state.actor, batch.observations), batch.actions).mean()
    loss, _ = jax.jit(partial(bppo.behaviour_loss, config=config))(state.actor, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_policy_loss_clips_ratios_and_weighs_normalised_advantages_by_their_sign():
    config, batch, clip = small(entropy_weight=0.3, omega=0.9), random_batch(rows=64), 0.25
    state = start(config)
    # a policy near the old one, so that ratios fall inside the range and on both sides of it
    actor = jax.tree.map(lambda old, new: old + 0.02 * new, state.old_actor, state.actor)
    old_mean, old_log_std = gaussian(state.old_actor, batch.observations)
    actions = old_mean + np.exp(old_log_std) * np.asarray(jax.random.normal(KEY, (64, 2)))
    q = q_of(state.critic, batch.observations, np.clip(actions, -1, 1))
    advantage = q - v_of(state.value, batch.observations)
    advantage = (advantage - advantage.mean()) / advantage.std(ddof=1)
    advantage *= np.where(advantage > 0, 0.9, 0.1)
    mean, log_std = gaussian(actor, batch.observations)
    ratio = np.exp(log_prob(mean, log_std, actions) - log_prob(old_mean, old_log_std, actions))
    assert min((ratio < 0.75).sum(), (ratio > 1.25).sum(), (abs(ratio - 1) < 0.25).sum()) > 3
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.75, 1.25) * advantage)
    entropy = (log_std + 0.5 * np.log(2 * np.pi * np.e)).sum(-1)
    loss, metrics = jax.jit(partial(bppo.policy_loss, config=config))(actor, KEY, clip, state, batch)
    np.testing.assert_allclose(loss, -(surrogate + 0.3 * entropy).mean(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], entropy.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["kl"], -np.log(ratio).mean(), rtol=1e-3, atol=1e-5)


def test_clip_0_keeps_the_behaviour_policy_and_clip_and_step_size_decay_for_201_updates():
    step = jax.jit(bppo.improve_batch)
    state = start(small())
    zeros = jax.tree.map(np.zeros_like, state.actor_opt)
    state, batch = state.replace(old_actor=state.actor, actor_opt=zeros), random_batch()

    kept = state
    for i in range(3):
        kept, _ = step(jax.random.key(i), kept, batch, small(clip=0.0, learning_rate=0.1))
    for ours, before in zip(jax.tree.leaves(kept.actor), jax.tree.leaves(state.actor), strict=True):
        np.testing.assert_array_equal(ours, before)

    sizes, clips = {}, {}
    for i in (0, 1, 2, 200, 201, 999):
        moved, metrics = step(KEY, state.replace(improvement_step=np.int32(i)), batch, small(learning_rate=0.1))
        # the first of Adam's steps: as long as the step size wherever the gradient is well above epsilon
        sizes[i] = max(
            np.abs(new - old).max()
            for new, old in zip(jax.tree.leaves(moved.actor), jax.tree.leaves(state.actor), strict=True)
        )
        clips[i] = float(metrics["clip"])
    expected = {0: 0.96, 1: 0.96**2, 2: 0.96**3, 200: 0.96**201, 201: 0.96**201, 999: 0.96**201}
    for i, factor in expected.items():
        np.testing.assert_allclose(clips[i], 0.25 * factor, rtol=1e-4)
    for i, power in {1: 0, 2: 1, 200: 100, 201: 100, 999: 100}.items():
        np.testing.assert_allclose(sizes[i], sizes[0] * 0.98**power, rtol=2e-2)


def gate_data(**options) -> tuple[bppo.Config, bppo.Data]:
    config = small(gate="advantage", gate_fraction=0.5, old_policy_every=2, **options)
    return config, bppo.prepare(random_dataset(lengths=(5, 4, 6, 3, 7, 5), terminal=(True, False) * 3), config)


def test_states_of_the_gate_are_held_out_of_training_by_whole_episodes():
    dataset = random_dataset(lengths=(5, 4, 6, 3, 7, 5), terminal=(True, False) * 3)
    _, data = gate_data()
    train = {tuple(row) for row in data.transitions.observations}
    held_out = {tuple(row) for row in data.held_out.observations}
    for episode, first in enumerate(dataset.starts):
        states = {tuple(dataset.observations[first + episode + t]) for t in range(dataset.lengths[episode])}
        assert states <= train or states <= held_out
    assert len(train) + len(held_out) == dataset.steps
    assert data.held_out.sizes.tolist() == np.bincount(data.held_out.episodes).tolist()
    assert len(data.held_out.sizes) == 3
    with pytest.raises(UserError, match="needs two"):
        bppo.prepare(dataset, small(gate="advantage", gate_fraction=0.1))
    assert bppo.prepare(dataset, small()).held_out is None


def test_the_gate_replaces_the_old_policy_by_a_better_one_and_drops_the_others():
    config, data = gate_data()
    state, held_out = start(config), data.held_out
    noise = np.asarray(jax.random.normal(KEY, (len(held_out.observations), 2)))

    def q(params):
        mean, log_std = gaussian(params, held_out.observations)
        return q_of(state.critic, held_out.observations, np.clip(mean + np.exp(log_std) * noise, -1, 1))

    gains = q(state.actor) - q(state.old_actor)
    sums = np.array([(gains - gains.mean())[held_out.episodes == episode].sum() for episode in range(3)])
    error = np.sqrt(3 / 2 * (sums**2).sum()) / len(gains)

    judge = jax.jit(bppo.replace_old_policy)
    threshold = gains.mean() / error
    for factor, accepted in ((-0.1, True), (0.1, False)):  # just below what was gained, and just above
        config = config.replace(gate_threshold=threshold + factor * abs(threshold))
        judged = judge(KEY, state, data, config)
        np.testing.assert_allclose(judged.gain, gains.mean(), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(judged.gain_error, error, rtol=1e-3)
        assert judged.replaced == accepted
        jax.tree.map(np.testing.assert_array_equal, judged.actor, state.actor if accepted else state.old_actor)
        jax.tree.map(np.testing.assert_array_equal, judged.actor, judged.old_actor)


def test_without_a_gate_the_old_policy_is_replaced_on_schedule():
    config = small(old_policy_every=3)
    data = jax.tree.map(np.asarray, bppo.prepare(random_dataset(), config))
    step = jax.jit(bppo.improve)
    state = start(config)
    state = state.replace(actor=state.old_actor)
    for i in range(1, 7):
        before = state.old_actor
        state, metrics = step(jax.random.key(i), state, data, config)
        jax.tree.map(np.testing.assert_array_equal, state.old_actor, state.actor if i % 3 == 0 else before)
        assert metrics["replaced"] == i // 3


def test_phases_share_the_updates_of_the_protocol_and_have_the_published_lengths_at_their_sum():
    def lengths(updates: int) -> list[tuple[str, int]]:
        return [(phase.name, phase.length(updates)) for phase in bppo.phases(bppo.Config())]

    published = [("behaviour", 500_000), ("value", 2_000_000), ("critic", 2_000_000), ("improvement", 1000)]
    assert lengths(4_500_000) == published
    assert [length for _, length in lengths(30_000)] == [3333, 13_333, 13_333, 1000]
    assert [length for _, length in lengths(90)] == [10, 40, 40, 90]
    with pytest.raises(UserError, match="must be three numbers"):
        bppo.phases(bppo.Config(proportions=(1, 2)))
