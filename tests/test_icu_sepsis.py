"""ICU-Sepsis, whose tables are known: from a log of mostly random treatments to near the optimum, exactly evaluated."""

import importlib.util
from functools import cache

import jax
import numpy as np
import pytest

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.data.dataset import Transitions
from offrl.datasets import environments, scripted
from offrl.learning.population import Population

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("icu_sepsis") is None, reason="needs the tables of icu-sepsis"),
]
GOOD = 0.15
"""Share of treatments that are the optimum's; the others are uniform."""
STATES, ACTIONS = 716, 25


def one_hot(indices: np.ndarray, count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[indices]


@cache
def best() -> np.ndarray:
    """The best action of every state."""
    return scripted.optimum(environments.sepsis_tables()).argmax(1)


@cache
def log(episodes: int = 4000) -> Transitions:
    tables, random = environments.sepsis_tables(), np.random.default_rng(0)
    cumulative = tables.transitions.cumsum(-1)
    states, rows = random.choice(STATES, episodes, p=tables.starts / tables.starts.sum()), []
    while len(states):
        good = random.random(len(states)) < GOOD
        actions = np.where(good, best()[states], random.integers(ACTIONS, size=len(states)))
        drawn = random.random(len(states)) * cumulative[states, actions, -1]
        following = (cumulative[states, actions] < drawn[:, None]).sum(1)
        rows.append((states, actions, following))
        states = following[following < environments.DEATH]
    states, actions, following = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Transitions(
        observations=one_hot(states, STATES),
        actions=one_hot(actions, ACTIONS),
        rewards=(following == environments.SURVIVAL).astype(np.float32),
        next_observations=one_hot(following, STATES),
        terminations=(following >= environments.DEATH).astype(np.float32),
        next_actions=np.zeros((len(states), ACTIONS), np.float32),
        next_action_known=np.zeros(len(states), np.float32),
    )


def expected(policy: np.ndarray) -> float:
    """The exact return of probabilities [states, actions]."""
    return scripted.expected_return(environments.sepsis_tables(), policy)


def test_what_the_counts_of_the_log_say_is_best_is_worse_than_the_log():
    data = log()
    counts = np.zeros((STATES, ACTIONS, STATES))
    np.add.at(counts, tuple(x.argmax(1) for x in (data.observations, data.actions, data.next_observations)), 1)
    visits = counts.sum(-1)
    shares = counts / np.maximum(visits, 1)[..., None]
    rewards, q = shares[..., environments.SURVIVAL].copy(), np.zeros((STATES, ACTIONS))
    shares[..., environments.DEATH :] = 0
    for _ in range(200):
        value = np.where(visits > 0, q, -1).max(1)
        q = rewards + shares @ np.where(visits.any(1), value, 0.5)
    found = expected(one_hot(np.where(visits > 0, q, -1).argmax(1), ACTIONS))
    assert found < expected(GOOD * one_hot(best(), ACTIONS) + (1 - GOOD) / ACTIONS)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bc", {"learning_rate": 1e-3}),
        (
            "iql",
            {
                **{"discount": 1.0, "temperature": 5.0, "polyak": 0.01},
                **{f"{network}_learning_rate": 1e-3 for network in ("actor", "critic", "value")},
            },
        ),
        ("cql", {"discount": 1.0, "weight": 1.0, "polyak": 0.01, "critic_learning_rate": 1e-3}),
    ],
)
def test_most_of_the_way_from_the_log_to_the_optimum_is_learned(name, options):
    algorithm, spec = offrl.algorithm.load(name), Spec(STATES, ACTIONS, 1500, discrete=True)
    config = algorithm.Config(hidden_dims=(64,), **options)
    population = Population(algorithm, [config], [0], spec, log(), "map")
    population.train(population.phases[0], 0, 1500)
    state = jax.tree.map(lambda leaf: leaf[0], population.save()["states"])
    acted = np.asarray(algorithm.policy(config, spec).act(state, np.eye(STATES, dtype=np.float32)))
    logged = expected(GOOD * one_hot(best(), ACTIONS) + (1 - GOOD) / ACTIONS)
    share = (expected(acted) - logged) / (expected(one_hot(best(), ACTIONS)) - logged)
    assert 0.7 < share <= 1
