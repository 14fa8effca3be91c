"""Uni-O4: the clones' loss written out, its parent with one member, the gate in a made-up model, what is deployed."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import random_batch, random_dataset, random_state
from test_bppo import gaussian, log_prob, q_of

from offrl.algorithm import Spec
from offrl.algorithms import bppo, uni_o4

KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)
NETWORKS = ("actor", "old_actor", "value", "critic", "critic_target")


def small(**options) -> uni_o4.Config:
    options = {"ensemble_policies": 2, "ensemble_size": 2, "elites": 1, "gate_rollouts": 6, "gate_length": 4, **options}
    widths = {name: (8,) for name in ("hidden_dims", "critic_hidden_dims", "value_hidden_dims", "dynamics_hidden_dims")}
    return uni_o4.Config(batch_size=8, termination_hidden_dims=(4,), dynamics_weight_decay=(0.0,), **widths, **options)


def start(config: uni_o4.Config) -> uni_o4.State:
    return random_state(uni_o4, config, SPEC, NETWORKS)


def member(tree, i: int):
    return jax.tree.map(lambda leaf: np.asarray(leaf[i]), tree)


@pytest.mark.parametrize("form", ["log_ratio", "kl"])
def test_a_clone_moves_from_the_other_member_likeliest_to_act_as_the_data(form):
    config, batch = small(ensemble_policies=3, disagreement=0.3, disagreement_form=form), random_batch()
    state = start(config)
    actors = [gaussian(member(state.actor, i), batch.observations) for i in range(3)]
    densities = np.stack([log_prob(*actor, batch.actions) for actor in actors])
    rival = uni_o4.rivals(state.actor, batch, config)
    for i in range(3):
        (mean, log_std), others = actors[i], [j for j in range(3) if j != i]
        terms = []
        for row in range(len(batch.rewards)):
            k = max(others, key=lambda j, row=row: densities[j, row])
            if form == "log_ratio":
                terms.append(densities[i, row] - densities[k, row])
            else:
                other_mean, other_log_std = (part[row] for part in actors[k])
                variance, other_variance = np.exp(2 * log_std[row]), np.exp(2 * other_log_std)
                gap = (mean[row] - other_mean) ** 2
                terms.append(np.mean(other_log_std - log_std[row] + (variance + gap) / (2 * other_variance) - 0.5))
        expected = -densities[i].mean() - 0.3 * np.mean(terms)
        part = jax.tree.map(lambda leaf, i=i: leaf[i], rival)
        loss, metrics = uni_o4.behaviour_loss(member(state.actor, i), part, batch, config)
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
        np.testing.assert_allclose(metrics["diversity"], np.mean(terms), rtol=1e-3, atol=1e-4)


def test_one_member_alone_is_its_parent():
    config, batch = small(ensemble_policies=1), random_batch()
    state = start(config)
    step, _ = jax.jit(uni_o4.update_behaviour_batch)(state, batch, config)
    single = state.replace(**{name: member(getattr(state, name), 0) for name in ("actor", "old_actor", "actor_opt")})
    plain = jax.jit(
        lambda: uni_o4.adam_step(
            lambda params: bppo.behaviour_loss(params, batch, config),
            single.actor,
            single.actor_opt,
            config.behaviour_learning_rate,
        )[0]
    )()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, atol=1e-6), step.actor, plain)
    assert jax.tree.all(jax.tree.map(np.array_equal, step.old_actor, step.actor))  # a clone is what is deployed

    key = jax.random.split(KEY, 1)[0]
    state = state.replace(updates=jnp.asarray(4), improvement_step=jnp.asarray(1))  # three quarters are left
    improved, _ = jax.jit(uni_o4.improve_batch)(KEY, state, batch, config)
    expected, *_ = jax.jit(bppo.clipped_step)(
        key, single, batch, 0.75 * config.clip, 0.75 * config.learning_rate, config
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, atol=1e-6), improved.actor, expected)


def gate_data(config: uni_o4.Config) -> uni_o4.Data:
    return uni_o4.prepare(random_dataset(lengths=(5,) * 12, terminal=(True, False, False) * 4), config)


def decaying(ensemble, config):
    """A model that halves what it is shown and adds the first action; where the first coordinate passes 0.9 it ends."""

    def step(key, observations, actions):
        following = 0.5 * observations + actions[:, :1]
        return following, jnp.zeros(len(observations)), (following[:, 0] > 0.9).astype(jnp.float32)

    return step


def test_the_gate_scores_the_states_visited_before_a_predicted_termination(monkeypatch):
    monkeypatch.setattr(uni_o4, "model", decaying)
    config = small()
    state, data = start(config), gate_data(config)
    key = jax.random.split(jax.random.key(0))[0]
    rows = np.asarray(jax.random.randint(key, (config.gate_rollouts,), 0, len(data.transitions.observations)))
    expected, ended = [], 0
    for i in range(2):
        values = []
        for observation in data.transitions.observations[rows]:
            for _ in range(config.gate_length):
                action, _ = gaussian(member(state.actor, i), observation[None])
                values.append(q_of(state.critic, observation[None], action)[0])
                observation = 0.5 * observation + action[0, 0]
                if observation[0] > 0.9:
                    ended += 1
                    break
        expected.append(np.mean(values))
    assert 0 < ended < 2 * config.gate_rollouts
    np.testing.assert_allclose(uni_o4.gate_scores(state, data, config.gate_length, config), expected, rtol=1e-4)


def test_the_gate_keeps_the_models_states_within_the_range_of_the_data(monkeypatch):
    def exploding(ensemble, config):
        return lambda key, observations, actions: (
            jnp.full_like(observations, 1e6),
            jnp.zeros(len(observations)),
            jnp.zeros(len(observations)),
        )

    monkeypatch.setattr(uni_o4, "model", exploding)
    config = small()
    state, data = start(config), gate_data(config)
    key = jax.random.split(jax.random.key(0))[0]
    observations = np.asarray(data.transitions.observations)
    rows = np.asarray(jax.random.randint(key, (config.gate_rollouts,), 0, len(observations)))
    corner = observations.max(0)[None]
    for i, score in enumerate(uni_o4.gate_scores(state, data, config.gate_length, config)):
        actor = member(state.actor, i)
        starts = q_of(state.critic, observations[rows], gaussian(actor, observations[rows])[0])
        after = q_of(state.critic, corner, gaussian(actor, corner)[0])[0]
        expected = (starts.mean() + (config.gate_length - 1) * after) / config.gate_length
        np.testing.assert_allclose(score, expected, rtol=1e-4)


def test_a_member_is_replaced_only_above_its_own_best_and_the_best_of_them_is_deployed(monkeypatch):
    monkeypatch.setattr(uni_o4, "model", decaying)
    config = small()
    state, data = start(config), gate_data(config)
    score = uni_o4.gate_scores(state, data, config.gate_length, config)
    state = state.replace(best_score=score + np.array([-1, 1]))
    after = uni_o4.replace_old_policies(state, data, config.gate_length, config)
    jax.tree.map(np.testing.assert_array_equal, member(after.old_actor, 0), member(state.actor, 0))
    jax.tree.map(np.testing.assert_array_equal, member(after.old_actor, 1), member(state.old_actor, 1))
    np.testing.assert_allclose(after.best_score, np.array([score[0], score[1] + 1]))
    assert after.replaced.tolist() == [1, 0]
    jax.tree.map(np.testing.assert_array_equal, after.actor, state.actor)  # training goes on from where it was
    observations = data.transitions.observations
    for best in (0, 1):
        chosen = replace(after, best_score=jnp.eye(2)[best])
        mean, _ = gaussian(member(after.old_actor, best), observations)
        acted = uni_o4.policy(config, SPEC).act(chosen, observations)
        np.testing.assert_allclose(acted, mean, rtol=1e-4, atol=1e-5)
