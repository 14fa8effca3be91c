"""Discrete actions: losses written out in numpy, and the optimum of a corridor found where cloning does not find it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plain import ensemble_q, mlp, random_batch, random_state
from scipy.special import log_softmax, logsumexp

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.algorithms import bc, cql, iql
from offrl.data.dataset import Transitions
from offrl.learning.population import Population

KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=4, updates=100, discrete=True)
PLACES, DISCOUNT = 5, 0.9


def one_hot(indices: np.ndarray, count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[indices]


def discrete_batch() -> tuple[Transitions, np.ndarray]:
    """A batch of one-hot actions, and their indices."""
    batch = random_batch(action_dim=4)
    indices = np.random.default_rng(2).integers(0, 4, len(batch.rewards))
    return batch._replace(actions=one_hot(indices, 4)), indices


def test_bc_minimises_the_cross_entropy_and_takes_the_likeliest_action():
    (batch, indices), config = discrete_batch(), bc.Config(hidden_dims=(16, 16))
    state = random_state(bc, config, SPEC, ("actor",))
    logits = mlp(state.actor["params"], batch.observations)
    expected = -log_softmax(logits, axis=1)[np.arange(len(indices)), indices].mean()
    np.testing.assert_allclose(bc.actor_loss(state.actor, batch, config, discrete=True)[0], expected, rtol=1e-5)
    act = bc.policy(config, SPEC).act(state, batch.observations)
    np.testing.assert_array_equal(act, one_hot(logits.argmax(1), 4))


def test_iql_weighs_the_log_likelihood_of_a_categorical_policy_by_the_advantage():
    (batch, indices), config = discrete_batch(), iql.Config(hidden_dims=(16, 16))
    state = random_state(iql, config, SPEC, ("actor", "critic"))
    policy = iql.policy(config, SPEC)
    logits = mlp(state.actor["params"], batch.observations)
    density = log_softmax(logits, axis=1)[np.arange(len(indices)), indices]
    np.testing.assert_allclose(policy.log_prob(state, batch.observations, batch.actions), density, rtol=1e-4)
    advantage = np.linspace(-2, 1, len(indices)).astype(np.float32)
    expected = -(np.exp(3.0 * advantage) * density).mean()
    loss, _ = iql.actor_loss(state.actor, KEY, advantage, batch, config, discrete=True)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    q = ensemble_q(state.critic, batch.observations, batch.actions)
    np.testing.assert_allclose(policy.q_values(state, batch.observations, batch.actions), q, rtol=1e-4, atol=1e-5)
    drawn = policy.sample(KEY, state, batch.observations)
    assert ((drawn == 0) | (drawn == 1)).all()
    assert (drawn.sum(-1) == 1).all()


def cql_start(**options) -> tuple[Transitions, cql.Config, cql.DiscreteState]:
    config = cql.Config(hidden_dims=(16, 16), **options)
    return discrete_batch()[0], config, random_state(cql, config, SPEC, ("critic", "critic_target"))


@pytest.mark.parametrize(
    ("options", "term"),
    [
        ({"weight": 2.0}, lambda gap: 2.0 * gap.mean()),
        ({"weight": 2.0, "gap_floor": 1.5}, lambda gap: 2.0 * np.maximum(gap, 1.5).mean()),
        ({"weight": 2.0, "lagrange": "gap", "lagrange_threshold": 0.3}, lambda gap: 2.0 * (gap.mean() - 0.3)),
    ],
)
def test_cql_adds_the_gap_over_all_actions_to_the_error_of_double_dqn(options, term):
    batch, config, state = cql_start(temperature=0.7, reward_clip=0.5, **options)
    rows, taken = np.arange(len(batch.rewards)), batch.actions.argmax(1)
    q = mlp(state.critic["params"], batch.observations)
    chosen = mlp(state.critic["params"], batch.next_observations).argmax(1)
    next_value = mlp(state.critic_target["params"], batch.next_observations)[rows, chosen]
    target = np.minimum(batch.rewards, 0.5) + 0.99 * (1 - batch.terminations) * next_value
    gap = 0.7 * logsumexp(q / 0.7, axis=1) - q[rows, taken]
    loss, metrics = cql.discrete_critic_loss(state.critic, state, batch, config)
    np.testing.assert_allclose(metrics["td_loss"], ((q[rows, taken] - target) ** 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(loss, ((q[rows, taken] - target) ** 2).mean() + term(gap), rtol=1e-5)
    policy = cql.policy(config, SPEC)
    np.testing.assert_array_equal(policy.act(state, batch.observations), one_hot(q.argmax(1), 4))
    np.testing.assert_allclose(policy.q_values(state, batch.observations, batch.actions)[0], q[rows, taken], rtol=1e-4)


def test_cql_without_its_term_is_double_dqn():
    batch, config, state = cql_start(weight=0.0)
    network, optimiser = cql.discrete_network(config, 4), optax.adam(config.critic_learning_rate)
    parameters, target, moments = state.critic, state.critic_target, optimiser.init(state.critic)
    taken = batch.actions.argmax(1)[:, None]

    def error(parameters, target):
        best = network.apply(parameters, batch.next_observations).argmax(1, keepdims=True)
        following = jnp.take_along_axis(network.apply(target, batch.next_observations), best, 1)[:, 0]
        q = jnp.take_along_axis(network.apply(parameters, batch.observations), taken, 1)[:, 0]
        wanted = jax.lax.stop_gradient(batch.rewards + 0.99 * (1 - batch.terminations) * following)
        return ((q - wanted) ** 2).mean()

    step, gradient = jax.jit(cql.discrete_update_batch), jax.jit(jax.grad(error))
    for _ in range(5):
        state, _ = step(state, batch, config)
        change, moments = optimiser.update(gradient(parameters, target), moments)
        parameters = optax.apply_updates(parameters, change)
        target = jax.tree.map(lambda old, new: old + 0.005 * (new - old), target, parameters)
    for ours, theirs in ((state.critic, parameters), (state.critic_target, target)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, theirs)


def test_the_multiplier_of_cql_rises_while_the_gap_exceeds_its_threshold():
    step = jax.jit(cql.discrete_update_batch)
    for threshold, rises in ((0.0, True), (100.0, False)):
        batch, config, state = cql_start(lagrange="gap", lagrange_threshold=threshold)
        assert (step(state, batch, config)[0].log_multiplier > 0) == rises


def corridor() -> Transitions:
    """Five places in a row: right (1) from the last one pays 1 and ends; mostly left (0) in the data."""
    random = np.random.default_rng(0)
    places = random.integers(0, PLACES, 4000)
    actions = (random.uniform(size=4000) < 0.3).astype(int)
    following = np.clip(places + 2 * actions - 1, 0, PLACES - 1)
    ended = (places == PLACES - 1) & (actions == 1)
    return Transitions(
        observations=one_hot(places, PLACES),
        actions=one_hot(actions, 2),
        rewards=ended.astype(np.float32),
        next_observations=one_hot(following, PLACES),
        terminations=ended.astype(np.float32),
        next_actions=np.zeros((4000, 2), np.float32),
        next_action_known=np.zeros(4000, np.float32),
    )


def best_values() -> np.ndarray:
    """Q of the best policy, [places, 2], by value iteration."""
    q = np.zeros((PLACES, 2))
    for _ in range(300):
        v = q.max(1)
        left = DISCOUNT * v[np.maximum(np.arange(PLACES) - 1, 0)]
        right = np.append(DISCOUNT * v[1:], 1.0)
        q = np.stack([left, right], 1)
    return q


FAST = {"discount": DISCOUNT, "polyak": 0.02, "critic_learning_rate": 2e-3}


def acted(name: str, **options) -> np.ndarray:
    """The action in every place after 1,500 updates of a small network."""
    algorithm, spec = offrl.algorithm.load(name), Spec(PLACES, 2, 1500, discrete=True)
    config = algorithm.Config(hidden_dims=(32, 32), batch_size=128, **options)
    population = Population(algorithm, [config], [0], spec, corridor(), "map")
    population.train(population.phases[0], 0, 1500)
    state = jax.tree.map(lambda leaf: leaf[0], population.save()["states"])
    return np.asarray(algorithm.policy(config, spec).act(state, np.eye(PLACES, dtype=np.float32))).argmax(1)


def test_cloning_repeats_the_commonest_action_of_the_corridor_which_is_not_the_best():
    assert best_values().argmax(1).tolist() != [0] * PLACES
    assert acted("bc", learning_rate=2e-3).tolist() == [0] * PLACES


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "iql",
            {"expectile": 0.9, "temperature": 30.0, "value_learning_rate": 2e-3, "actor_learning_rate": 2e-3, **FAST},
        ),
        ("cql", {"weight": 0.05, **FAST}),
    ],
)
def test_the_best_action_is_found_in_every_place_of_the_corridor(name, options):
    assert acted(name, **options).tolist() == best_values().argmax(1).tolist()


def test_cql_with_a_heavy_term_stays_with_the_commonest_action_of_the_corridor():
    assert acted("cql", weight=20.0, **FAST).tolist() == [0] * PLACES
