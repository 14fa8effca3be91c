"""PRDC: the search against scipy's tree, its losses written out, and what it reduces to."""

import jax
import numpy as np
from plain import random_dataset, random_state, tanh_actor, twin_q
from scipy.spatial import KDTree

from offrl.algorithm import Spec
from offrl.algorithms import prdc, td3_bc

KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)
NETWORKS = ("actor", "actor_target", "critic", "critic_target")
DATA = random_dataset(lengths=(300, 301), terminal=(True, False)).transitions()  # more than two blocks of the search


def small(**options) -> prdc.Config:
    return prdc.Config(hidden_dims=(16, 16), **options)


def start(config: prdc.Config) -> prdc.State:
    return random_state(prdc, config, SPEC, NETWORKS)


def some_rows(seed: int = 0, rows: int = 32):
    chosen = np.random.default_rng(seed).integers(0, len(DATA.rewards), rows)
    return jax.tree.map(lambda column: column[chosen], DATA)


def test_the_search_finds_the_nearest_row_as_a_tree_does():
    random = np.random.default_rng(0)
    queries = random.normal(size=(40, 5)).astype(np.float32)
    search = jax.jit(prdc.nearest)
    for rows in (prdc.BLOCK - 3, 3 * prdc.BLOCK, 3 * prdc.BLOCK + 1):
        table = random.normal(size=(rows, 5)).astype(np.float32)
        np.testing.assert_array_equal(search(queries, table), KDTree(table).query(queries)[1])


def test_the_actor_stays_close_to_the_action_of_the_nearest_row_with_states_weighed_by_beta():
    batch, config = some_rows(), small(alpha=7.0, beta=0.4)
    state = start(config)
    actions = tanh_actor(state.actor, batch.observations)
    q = twin_q(state.critic, batch.observations, actions)[0]
    tree = KDTree(np.concatenate([0.4 * DATA.observations, DATA.actions], -1))
    neighbours = DATA.actions[tree.query(np.concatenate([0.4 * batch.observations, actions], -1))[1]]
    assert (neighbours != batch.actions).any()
    expected = -7 * q.mean() / np.abs(q).mean() + np.mean((actions - neighbours) ** 2)
    loss, _ = prdc.actor_loss(state.actor, KEY, state, batch, DATA, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_fewer_rows_are_drawn_from_the_dataset_and_the_batchs_own_are_always_among_them():
    batch, config = some_rows(), small(neighbours_from=50)
    observations, actions = prdc.candidates(KEY, batch, DATA, config)
    assert observations.shape == (50 + 32, 3)
    np.testing.assert_array_equal(observations[50:], batch.observations)
    np.testing.assert_array_equal(actions[50:], batch.actions)
    rows = {row.tobytes() for row in np.concatenate([DATA.observations, DATA.actions], -1)}
    assert all(row.tobytes() in rows for row in np.concatenate([observations, actions], -1))
    other, _ = prdc.candidates(jax.random.key(1), batch, DATA, config)
    assert (other[:50] != observations[:50]).any()


def test_no_gradient_passes_through_the_search():
    batch, config = some_rows(), small(beta=0.4)
    state = start(config)
    neighbours = prdc.nearest_actions(
        KEY, prdc.actor_network(config, 2).apply(state.actor, batch.observations), batch, DATA, config
    )

    def with_constant_neighbours(params):
        return td3_bc.actor_loss(
            params, state, batch._replace(actions=neighbours), td3_bc.Config(hidden_dims=(16, 16))
        )[0]

    gradient = jax.grad(lambda params: prdc.actor_loss(params, KEY, state, batch, DATA, config)[0])(state.actor)
    expected = jax.grad(with_constant_neighbours)(state.actor)
    for ours, theirs in zip(*map(jax.tree.leaves, (gradient, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_where_only_the_state_counts_it_is_td3_bc():
    config, parent = small(beta=1e3, policy_frequency=1), td3_bc.Config(hidden_dims=(16, 16), policy_frequency=1)
    state = start(config)
    parent_state = random_state(td3_bc, parent, SPEC, networks=())
    parent_state = parent_state.replace(**{name: getattr(state, name) for name in NETWORKS})
    step, parent_step = jax.jit(prdc.update_batch), jax.jit(td3_bc.update_batch)
    for i in range(6):
        batch, key = some_rows(i), jax.random.key(i)
        state, _ = step(key, state, batch, DATA, config)
        parent_state, _ = parent_step(jax.random.split(key)[0], parent_state, batch, parent)
    for name in NETWORKS:
        for ours, theirs in zip(*(jax.tree.leaves(getattr(s, name)) for s in (state, parent_state)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
