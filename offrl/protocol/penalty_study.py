"""*Assisted*: do a run's penalties know where its model is wrong?

The deployed policy plays episodes in the run's environment; at the states and actions that it visits, every penalty of
`learning.models` is compared with the model's true error. For contrast the same is done on held-out episodes of the
data, where penalties are usually tuned. For study only: nothing that chooses a policy may read it.

The error of a step is the distance between the elites' mean next observation and the true one, and the negative
log-likelihood of the elites' mixture there. The result is rank correlations (Spearman) with bootstrap standard errors
over episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.stats import rankdata

import offrl
from offrl.data.transforms import actions_to_unit_box, transform_observations, transform_rewards
from offrl.errors import UserError
from offrl.learning.models import dynamics
from offrl.learning.models.dynamics import DynamicsConfig, Ensemble
from offrl.learning.models.penalties import PENALTIES
from offrl.learning.models.rollouts import Steps
from offrl.learning.networks import gaussian_log_prob
from offrl.playing.evaluation import check_spaces, deployed_policies
from offrl.playing.simulators import Simulators
from offrl.protocol.dynamics_report import ROWS_AT_ONCE, ensemble_of, split, steps_of
from offrl.runs.run import Run
from offrl.runs.trust import environment_of

RESAMPLES = 200
COLUMNS = ["algorithm", "dataset", "fingerprint", "member", "seed", "step", "states", "rows", "penalty", "error",
           "rank_correlation", "standard_error", "mean_penalty", "mean_error", "version"]  # fmt: skip


class Visited(NamedTuple):
    """Steps as the model sees them, and the episode of each, int [rows]."""

    steps: Steps
    episodes: np.ndarray


def visit(run: Run, member: int, step: int, episodes: int, warn: Callable[[str], None]) -> Visited:
    """Every step of so many episodes of the deployed policy, in the run's environment.

    Raises:
        UserError: the run has no environment, or one of other sizes.
    """
    dataset, protocol = run.info["dataset"], run.info["protocol"]
    if dataset["env_id"] is None:
        raise UserError(f"{run.path}: this run has no environment (env=null); the true error needs one")
    simulators = Simulators(environment_of(run.path, dataset["env_id"]), dataset["env_kwargs"], episodes)
    check_spaces(run, simulators, warn)
    act, states = deployed_policies(run, simulators), jax.device_put(run.restore(step))
    parts: list[tuple[np.ndarray, ...]] = []
    with simulators:
        observations = simulators.reset(protocol["evaluation_seed"] + np.arange(episodes)).copy()
        while simulators.active.any():
            active = np.flatnonzero(simulators.active)
            together = np.broadcast_to(observations, (len(run.members), *observations.shape))
            actions = act(states, together)[member]
            following = simulators.step(actions).copy()
            parts.append(
                (
                    observations[active],
                    actions[active],
                    simulators.rewards[active].astype(np.float32),
                    following[active],
                    simulators.terminations[active].astype(np.float32),
                    active,
                )
            )
            observations = following
    raw, actions, rewards, following, terminations, rows = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    transforms = dataset["transforms"]
    steps: list[Any] = [
        transform_observations(transforms, raw),
        actions_to_unit_box(transforms, actions),
        transform_rewards(transforms, rewards),
        transform_observations(transforms, following),
        terminations,
    ]
    return Visited(Steps(*steps), rows)


def measure(
    key: jax.Array, ensemble: Ensemble, batch: Steps, config: DynamicsConfig
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Every penalty, and every error, [n] each."""
    mean, log_var = dynamics.predict(ensemble, *batch[:2], config)
    penalties = {name: penalty(key, mean, log_var) for name, penalty in PENALTIES.items()}
    truth, elite_mean = dynamics.targets_of(batch), mean[ensemble.elites]
    log_density = gaussian_log_prob(elite_mean, 0.5 * log_var[ensemble.elites], truth)
    return penalties, {
        "distance": jnp.linalg.norm((truth - elite_mean.mean(0))[:, :-1], axis=-1),
        "negative log-likelihood": jnp.log(config.elites) - jax.nn.logsumexp(log_density, 0),
    }


def rank_correlation(x: np.ndarray, y: np.ndarray, episodes: np.ndarray) -> tuple[float, float]:
    """Spearman's, and its bootstrap standard error over episodes, with ranks kept; nan for a single episode."""
    ranks = np.stack([rankdata(x), rankdata(y)]) / len(x)
    a, b = ranks - ranks.mean(1, keepdims=True)
    moments = np.stack([np.ones_like(a), a, b, a * a, b * b, a * b])
    _, number = np.unique(episodes, return_inverse=True)
    sums = np.stack([np.bincount(number, moment) for moment in moments])  # [6, episodes]

    def correlation(sums: np.ndarray) -> np.ndarray:
        n, a, b, aa, bb, ab = sums
        with np.errstate(invalid="ignore", divide="ignore"):
            return (ab - a * b / n) / np.sqrt((aa - a * a / n) * (bb - b * b / n))

    count = sums.shape[1]
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    error = float(correlation(sums @ draws.T).std(ddof=1)) if count > 1 else float("nan")
    return float(correlation(sums.sum(1))), error


def study(run: Run, episodes: int, step: int | None, warn: Callable[[str], None]) -> pd.DataFrame:
    """Rank correlations of every penalty with every error, of each member: the columns of COLUMNS.

    Raises:
        UserError: no such checkpoint, no dynamics in it, no environment, or no held-out episode.
    """
    rows = []
    program = jax.jit(measure)
    for member in range(len(run.members)):
        config = run.member_configs[member]
        at, ensemble = ensemble_of(run, member, step)
        _, held_out = split(run)
        unseen = Visited(steps_of(held_out), held_out.episode_of_step[held_out.dynamics_rows])
        places = {"visited by the policy": visit(run, member, at, episodes, warn), "held-out data": unseen}
        for place, (batch, of_episode) in places.items():
            parts = []
            for first in range(0, len(of_episode), ROWS_AT_ONCE):
                part = Steps(*(column[first : first + ROWS_AT_ONCE] for column in batch))
                parts.append(jax.device_get(program(jax.random.key(first), ensemble, part, config)))
            penalties, errors = (
                {name: np.concatenate([part[i][name] for part in parts]) for name in parts[0][i]} for i in range(2)
            )
            for penalty, values in penalties.items():
                for error, truth in errors.items():
                    rows.append(
                        (
                            run.algorithm.name,
                            run.info["dataset"]["name"],
                            run.info["dataset"]["fingerprint"],
                            member,
                            run.members[member]["seed"],
                            at,
                            place,
                            len(truth),
                            penalty,
                            error,
                            *rank_correlation(values, truth, of_episode),
                            values.mean(),
                            truth.mean(),
                            offrl.__version__,
                        )
                    )
    return pd.DataFrame(rows, columns=COLUMNS)
