"""A task whose best policy is known: mediocre data are enough to find it, but not by cloning; narrow data fool TD3.

s' = k s + a / 2 + noise, reward -((s' - goal)^2 + a^2 / 2), discount 0.9, episodes cut off after ten steps:
linear-quadratic. The data's actions have nothing to do with the state.
"""

from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import pytest

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.data import Dataset
from offrl.learning.population import Population

DISCOUNT, EPISODES, LENGTH = 0.9, 400, 10


class Task(NamedTuple):
    keep: float
    goal: float
    noise: float
    start: float
    """Initial states are between -start and start."""
    actions: float
    """Standard deviation of the data's actions."""
    box: float
    """The largest action."""


BROAD = Task(keep=1.0, goal=0.0, noise=0.05, start=1.0, actions=0.6, box=1.0)
NARROW = Task(keep=0.5, goal=1.0, noise=0.3, start=0.5, actions=0.2, box=2.0)
"""Larger actions than the data's are better, up to four of their standard deviations; the box extends to ten."""


def best_gain() -> float:
    """k of the broad task, where the best action is -k s; by iterating the Riccati equation with V(s) = -P s^2 + c."""
    p = 0.0
    for _ in range(200):
        m = 1 + DISCOUNT * p
        k = 0.5 * m / (0.25 * m + 0.5)
        p = m * (1 - 0.5 * k) ** 2 + 0.5 * k**2
    return k


@cache
def best_narrow() -> float:
    """Return of the best affine policy of the narrow task, independent of the data."""
    policies = [(gain, offset) for gain in np.linspace(0, 0.8, 9) for offset in np.linspace(0.5, 1, 11)]
    return max(mean_return(lambda s, k=k, c=c: (c - k * s) / NARROW.box, NARROW) for k, c in policies)


def step(task: Task, states: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    following = task.keep * states + actions / 2 + noise
    return following, -((following - task.goal) ** 2 + actions**2 / 2)


@cache
def data(task: Task) -> Dataset:
    random = np.random.default_rng(0)
    states = np.zeros((EPISODES, LENGTH + 1))
    states[:, 0] = random.uniform(-task.start, task.start, EPISODES)
    actions = np.clip(random.normal(0, task.actions, (EPISODES, LENGTH)), -task.box, task.box)
    rewards = np.zeros((EPISODES, LENGTH))
    for t in range(LENGTH):
        noise = random.normal(0, task.noise, EPISODES)
        states[:, t + 1], rewards[:, t] = step(task, states[:, t], actions[:, t], noise)
    ends = np.tile(np.arange(LENGTH) == LENGTH - 1, EPISODES)
    return Dataset(
        name="test",
        observations=states.reshape(-1, 1).astype(np.float32),
        actions=actions.reshape(-1, 1).astype(np.float32),
        rewards=rewards.reshape(-1).astype(np.float32),
        terminations=np.zeros(EPISODES * LENGTH, bool),
        truncations=ends,
        lengths=np.full(EPISODES, LENGTH),
        final_observation_known=np.ones(EPISODES, bool),
        action_low=np.array([-task.box], np.float32),
        action_high=np.array([task.box], np.float32),
    )


def starts(task: Task) -> np.ndarray:
    return np.linspace(-task.start, task.start, 41, dtype=np.float32)


def mean_return(act, task: Task = BROAD) -> float:
    """Discounted return of thirty steps, averaged over many initial states; `act` gives actions in [-1, 1]."""
    random, total = np.random.default_rng(1), 0.0
    states = np.repeat(starts(task), 10)
    for t in range(30):
        noise = random.normal(0, task.noise, len(states))
        states, rewards = step(task, states, task.box * np.asarray(act(states)), noise)
        total += DISCOUNT**t * rewards.mean()
    return total


programs: dict[str, dict] = {}  # compiled once for both sorts of data


def trained(name: str, updates: int, task: Task = BROAD, seed: int = 0, **options):
    """The policy's action [n] for states [n], and its critics' mean values of these actions (None: no critic).

    After so many updates of a small network.
    """
    algorithm, spec = offrl.algorithm.load(name), Spec(1, 1, updates)
    config = algorithm.Config(hidden_dims=(32, 32), batch_size=128, **options)
    population = Population(algorithm, [config], [seed], spec, algorithm.prepare(data(task), config), "map")
    population.programs = programs.setdefault(name, population.programs)
    step = 0
    for phase in population.phases:
        population.begin(phase, step)
        population.train(phase, step, phase.length(updates))
        step += phase.length(updates)
    state = jax.tree.map(lambda leaf: leaf[0], population.save()["states"])
    policy = algorithm.policy(config, spec)

    @jax.jit
    def act(states):
        return policy.act(state, states[:, None])[:, 0]

    @jax.jit
    def values(states):
        return policy.q_values(state, states[:, None], policy.act(state, states[:, None])).mean(0)

    return act, values if policy.q_values else None


@cache
def achieved_by_cloning() -> float:
    return mean_return(trained("bc", 500, learning_rate=3e-3)[0])


FAST = {"discount": DISCOUNT, "polyak": 0.02, "actor_learning_rate": 2e-3, "critic_learning_rate": 2e-3}
BPPO = {
    "discount": DISCOUNT,
    "polyak": 0.02,
    "proportions": (1, 3, 5),
    "improvement_updates": 500,
    "value_hidden_dims": (32, 32),
    **{f"{name}learning_rate": 5e-3 for name in ("behaviour_", "value_", "critic_")},
    "learning_rate": 3e-4,
}
DYNAMICS = {
    "ensemble_size": 3,
    "elites": 2,
    "dynamics_hidden_dims": (32,),
    "termination_hidden_dims": (8,),
    "dynamics_weight_decay": (0.0,),
    "dynamics_learning_rate": 3e-3,
    "dynamics_updates": 1000,
    "holdout_every": 100,
}
MODEL = {
    **DYNAMICS,
    "rollout_length": 2,
    "rollout_batch_size": 200,
    "rollout_every": 100,
    "tune_alpha": False,
    "alpha": 0.02,
    **FAST,
}

UNI_O4 = {
    **BPPO,
    **DYNAMICS,
    "critic_hidden_dims": (32, 32),
    "ensemble_policies": 2,
    "gate_every": 50,
    "gate_rollouts": 64,
    "gate_length": 10,
    "learning_rate": 1e-3,
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("td3_bc", {"alpha": 10.0, **FAST}),
        ("iql", {"expectile": 0.9, "temperature": 10.0, "value_learning_rate": 2e-3, **FAST}),
        ("sac_n", {"num_critics": 2, "initial_alpha": 0.1, "alpha_learning_rate": 2e-3, **FAST}),
        ("edac", {"num_critics": 3, "initial_alpha": 0.1, "alpha_learning_rate": 2e-3, **FAST}),
        ("cql", {"weight": 0.1, "sampled_actions": 2, "initial_alpha": 0.1, "alpha_learning_rate": 2e-3, **FAST}),
        ("bppo", {"clip_decay": 1.0, "learning_rate_decay": 1.0, **BPPO}),
        pytest.param("uni_o4", UNI_O4, marks=pytest.mark.slow),
        ("rebrac", FAST),
        ("awac", {"temperature": 0.1, **FAST}),
        ("crr", {"temperature": 0.1, "samples": 4, "critic_expectile": 0.5, **FAST}),
        ("mcep", FAST),
        ("prdc", {"alpha": 10.0, "neighbours_from": 1000, **FAST}),
        ("spot", {"vae_hidden_dims": (32, 32), "dropout": 0.0, **FAST}),
        ("mopo", {"penalty_weight": 0.1, **MODEL}),
        pytest.param("morel", {"threshold": 2.0, "critics": 2, **MODEL}, marks=pytest.mark.slow),
        pytest.param("combo", {"cql_weight": 0.1, "cql_actions": 2, **MODEL}, marks=pytest.mark.slow),
        pytest.param(
            "rambo",
            {"cloning_updates": 100, "adversary_every": 500, "adversary_updates": 50, **MODEL},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "mobile",
            {"penalty_weight": 0.1, "penalty_samples": 2, "clip_target": False, **MODEL},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_optimum_is_found_in_mediocre_data_where_cloning_does_not(name, options):
    best = mean_return(lambda states: -best_gain() * states)
    cloned, found = achieved_by_cloning(), mean_return(trained(name, 2000, **options)[0])
    assert cloned < 2 * best  # returns are negative: cloning loses as much again
    assert (found - cloned) / (best - cloned) > 0.9


def judged(name: str, **options) -> tuple[float, float]:
    """Return, and value by the critics, of the policy trained on the narrow data."""
    act, values = trained(name, 2000, NARROW, **options)
    return mean_return(act, NARROW), float(values(starts(NARROW)).mean())


def mean_action_return() -> float:
    """Return of always taking the mean action of the narrow data."""
    return mean_return(lambda states: 0 * states, NARROW)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("td3_bc", {"alpha": 1e6, **FAST}),
        ("rebrac", {"actor_penalty": 0.0, "critic_penalty": 0.0, **FAST}),
    ],
)
def test_td3_without_a_penalty_trusts_actions_that_the_data_do_not_hold(name, options):
    achieved, value = judged(name, **options)
    assert value > best_narrow() + 1  # more than any policy has
    assert achieved < 2 * mean_action_return()


ENSEMBLE = {**MODEL, "ensemble_size": 7, "elites": 5}


# MOBILE is not here: its penalty is the disagreement of the very critics that it bounds. At weights up to 10 they agree
# on what the data do not hold (-26, like no penalty at all); at 15 one of three seeds fails, and the critics diverge
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("td3_bc", {"alpha": 0.2, **FAST}),
        ("iql", {"value_learning_rate": 2e-3, **FAST}),
        ("bppo", BPPO),
        pytest.param("uni_o4", UNI_O4, marks=pytest.mark.slow),
        ("cql", {"weight": 1.0, "sampled_actions": 2, "initial_alpha": 0.1, "alpha_learning_rate": 2e-3, **FAST}),
        ("rebrac", {"actor_penalty": 1.0, "critic_penalty": 1.0, **FAST}),
        ("awac", FAST),
        ("crr", {"samples": 4, **FAST}),
        ("mcep", {"alpha": 0.1, "evaluation_alpha": 0.2, **FAST}),
        ("prdc", {"alpha": 0.1, "neighbours_from": 1000, **FAST}),
        ("spot", {"penalty": 3.0, "vae_hidden_dims": (32, 32), "dropout": 0.0, **FAST}),
        ("sac_n", {"num_critics": 10, "initial_alpha": 0.1, "alpha_learning_rate": 2e-3, **FAST}),
        ("edac", {"num_critics": 10, "initial_alpha": 0.1, "alpha_learning_rate": 2e-3, **FAST}),
        pytest.param("mopo", {"penalty": "ensemble_std", "penalty_weight": 25.0, **ENSEMBLE}, marks=pytest.mark.slow),
        pytest.param("morel", {"critics": 2, "halt_reward_offset": -5.0, **ENSEMBLE}, marks=pytest.mark.slow),
        pytest.param("combo", {"cql_weight": 1.0, "cql_actions": 2, **MODEL}, marks=pytest.mark.slow),
        pytest.param(
            "rambo",
            {"adversary_weight": 1.0, "cloning_updates": 100, "adversary_every": 500, "adversary_updates": 50, **MODEL},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_with_one_the_policy_improves_on_narrow_data_and_claims_no_impossible_value(name, options):
    achieved, value = judged(name, **options)
    assert value < best_narrow()
    assert achieved > mean_action_return()
