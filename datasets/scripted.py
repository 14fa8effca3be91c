"""Make the policies of environments that need no training: CartPole and ICU-Sepsis.

    python -m offrl.datasets.scripted cartpole

CartPole's policies are linear controllers: medium drifts to the side, and the ladder below it takes uniformly random
actions, fewer with every rung. For ICU-Sepsis, the expert is the optimal policy by value iteration; medium follows it
in half of the states and acts uniformly in the others, and the ladder follows it in more states with every rung, up to
medium's. So to imitate medium's most frequent actions does not give an expert. Writes policies/ENV.npz and
cards/ENV.md.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from offrl.data.recipes import ENVIRONMENTS, Reference
from offrl.datasets.environments import DEATH, SURVIVAL, SepsisTables, sepsis_tables
from offrl.datasets.policies import Policies, save, score, summary
from offrl.datasets.rollout import Workers
from offrl.devices import cores
from offrl.errors import run_command

EPISODES = {"cartpole": 100, "icu_sepsis": 3_000}  # one return of ICU-Sepsis is 0 or 1
LADDER = (0.2, 0.4, 0.6, 0.8)  # how much of medium is in its rungs
SEED = 0  # of the states in which ICU-Sepsis's policies follow the optimum
# weights of position, velocity, angle, angular velocity; pushes right where their sum is positive
CONTROLLERS = {"expert": (0.2, 0.5, 3.0, 1.0), "medium": (-0.6, 0.0, 3.0, 1.0)}
MEDIUM_UNIFORM = 0.1  # share of uniformly random actions of CartPole's medium
MEDIUM_STATES = 0.5  # share of states in which ICU-Sepsis's medium follows the optimum
CERTAIN = 20.0  # preference that a softmax almost always follows if the others are 0
IMPOSSIBLE = -1e4  # preference of an action of probability 0, within half precision


def optimum(tables: SepsisTables, precision: float = 1e-9) -> np.ndarray:
    """Undiscounted action values [states, actions] of the optimal policy of ICU-Sepsis, by value iteration."""
    rewards, nexts = _dynamics(tables)
    values = np.zeros(len(rewards))
    while True:
        action_values = rewards + nexts @ values
        before, values = values, action_values.max(axis=1)
        if np.abs(values - before).max() < precision:
            return action_values


def expected_return(tables: SepsisTables, policy: np.ndarray) -> float:
    """Exact expected return of a policy of ICU-Sepsis: probabilities [states, actions], rows of zeros where it ended.

    The time limit of 500 steps is ignored: hardly any episode is longer than 50.
    """
    rewards, nexts = _dynamics(tables)
    step = np.einsum("sa,san->sn", policy, nexts)
    values = np.linalg.solve(np.eye(len(step)) - step, (policy * rewards).sum(axis=1))
    return float(tables.starts @ values)


def _dynamics(tables: SepsisTables) -> tuple[np.ndarray, np.ndarray]:
    """Expected rewards [states, actions], and transitions, which are 0 in states that end an episode."""
    going_on = (np.arange(len(tables.starts)) < DEATH)[:, None]
    return tables.transitions[:, :, SURVIVAL] * going_on, tables.transitions * going_on[..., None]


def cartpole() -> dict[str, dict[str, np.ndarray]]:
    """name -> weights of `rollout.SoftmaxLinear`."""

    def controller(name: str, uniform: float) -> dict[str, np.ndarray]:
        right = CERTAIN * np.array(CONTROLLERS[name])
        return _weights(np.stack([-right, right], axis=1), uniform)

    rungs = {f"ladder-{i}": 1 - (1 - MEDIUM_UNIFORM) * share for i, share in enumerate(LADDER)}
    return {
        "expert": controller("expert", 0.0),
        "medium": controller("medium", MEDIUM_UNIFORM),
        **{name: controller("medium", uniform) for name, uniform in rungs.items()},
    }


def icu_sepsis() -> dict[str, dict[str, np.ndarray]]:
    """name -> weights of `rollout.SoftmaxLinear`."""
    tables = sepsis_tables()
    best = CERTAIN * np.eye(tables.transitions.shape[1])[optimum(tables).argmax(axis=1)]
    order = np.random.default_rng(SEED).permutation(len(best))[:, None] / len(best)  # states that join stay
    with np.errstate(divide="ignore"):
        clinicians = np.maximum(np.log(tables.clinicians), IMPOSSIBLE)
    return {
        "expert": _weights(best),
        "medium": _weights(best * (order < MEDIUM_STATES)),
        **{f"ladder-{i}": _weights(best * (order < MEDIUM_STATES * share)) for i, share in enumerate(LADDER)},
        "clinicians": _weights(clinicians),
    }


POLICIES = {"cartpole": cartpole, "icu_sepsis": icu_sepsis}


def _weights(preferences: np.ndarray, uniform: float = 0.0) -> dict[str, np.ndarray]:
    return {"preferences": preferences.astype(np.float16), "uniform": np.array(uniform, np.float16)}


def make(env: str, workers: Workers) -> Policies:
    """The policies of an environment, scored."""
    weights = POLICIES[env]()
    env_id, episodes = ENVIRONMENTS[env].env_id, EPISODES[env]
    random = summary(score(workers, env_id, {"random": {}}, 0.0, episodes)["random"])
    scores: dict[str, dict[str, Any]] = {name: {} for name in weights}
    for kind, mean_actions in (("deterministic", 1.0), ("sampled", 0.0)):
        for name, returns in score(workers, env_id, weights, mean_actions, episodes).items():
            scores[name][kind] = summary(returns)
    ladder = ["random", *(f"ladder-{i}" for i in range(len(LADDER))), "medium"]
    metadata = {
        "environment": env,
        "env_id": env_id,
        "algorithm": "scripted",
        "command": f"python -m offrl.datasets.scripted {env}",
        "reference": _reference(env, random)._asdict(),
        "random": random,
        "policies": scores,
        "ladder": [(name, round(1 / (len(LADDER) + 2), 4)) for name in ladder],
    }
    return Policies(metadata, weights)


def _reference(env: str, random: dict[str, float]) -> Reference:
    if env == "cartpole":
        return Reference(random["mean"], 500.0, f"uniform actions over {EPISODES[env]} episodes; the time limit")
    tables = sepsis_tables()
    states, actions, _ = tables.transitions.shape
    uniform = expected_return(tables, np.full((states, actions), 1 / actions))
    best = expected_return(tables, np.eye(actions)[optimum(tables).argmax(axis=1)])
    return Reference(round(uniform, 6), round(best, 6), "uniform actions and the optimum, both exact from the tables")


def card(policies: Policies) -> str:
    """What the policies are and score, in Markdown."""
    metadata, reference = policies.metadata, policies.reference
    env = metadata["environment"]

    def cells(found: dict[str, Any]) -> str:
        return f"{found['mean']:,.3f} ± {found['std']:,.3f} | {reference.normalise(found['mean']):.1f}"

    rows = [f"| random | | | {cells(metadata['random'])} |"]
    for name, found in metadata["policies"].items():
        rows.append(f"| {name} | {cells(found['deterministic'])} | {cells(found['sampled'])} |")
    about = {
        "cartpole": f"""A push to the right where position, velocity, angle and angular velocity, weighted by
{CONTROLLERS["expert"]} for the expert and {CONTROLLERS["medium"]} for the others, have a positive sum.
Of medium's actions {MEDIUM_UNIFORM:.0%} are uniformly random, of the ladder's ever fewer down to that.""",
        "icu_sepsis": f"""The expert is the optimum by value iteration on the tables of the package icu-sepsis 2.0.1
(Choudhary, Gupta and Thomas, 2024; MIT licence); `clinicians` is the policy in it that was estimated from what
clinicians did. Medium follows the optimum in {MEDIUM_STATES:.0%} of the states and acts uniformly in the others; the
ladder follows it in ever more states up to that. Rolling out and evaluating need the tables:

    pip install -e '.[sepsis]'""",
    }[env]
    return f"""# {env} ({metadata["env_id"]})

Scripted policies, discrete actions. Made by

    {metadata["command"]}

{about}

Undiscounted returns, mean ± standard deviation over {EPISODES[env]:,} episodes. "Deterministic" takes the most
preferred action; "sampled" is how the recipes act. Normalised: 0 is {reference.random:,.4f} and 100 is
{reference.expert:,.4f} ({reference.source}).

| policy | deterministic | normalised | sampled | normalised |
|---|---|---|---|---|
{chr(10).join(rows)}

`medium-replay` consists of, in this order and in equal shares: {", ".join(name for name, _ in metadata["ladder"])}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m offrl.datasets.scripted", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("env", choices=sorted(POLICIES))
    arguments = parser.parse_args()
    with Workers(cores()) as workers:
        policies = make(arguments.env, workers)
    text = card(policies)
    print(f"wrote {save(policies, text)}\n\n{text}")


if __name__ == "__main__":
    run_command(main)
