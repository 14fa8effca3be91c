"""How good is a run's dynamics ensemble on episodes it has never seen.

Of the episodes that the run's protocol held out of all training (`protocol.validation_fraction`), for each member:

- one step: the negative log-likelihood per dimension of the elites' mixture and, as a baseline, of one Gaussian
  fitted to the training data's changes; coverage of the mixture's central 50 and 90 % intervals; error of its mean;
- open loop: error of the elites' mean trajectories under the logged actions, from states spread over the episodes,
  after 1, 5, 10 and 25 steps, in standard deviations of each observation; the baseline predicts no change;
- terminations: precision and recall of "terminates", predicted for the true step and for the predicted one.

Only the dataset and the checkpoint are opened, no environment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import offrl
from offrl.data.dataset import Dataset
from offrl.data.preprocessing import apply_transforms
from offrl.data.views import episode_steps, windows_from
from offrl.errors import UserError
from offrl.learning.models import dynamics
from offrl.learning.models.dynamics import DynamicsConfig, Ensemble
from offrl.learning.models.rollouts import Steps
from offrl.learning.networks import gaussian_log_prob
from offrl.runs.run import Run
from offrl.selection.pool import held_out_episodes, load_dataset

HORIZONS = (1, 5, 10, 25)
LEVELS = (0.5, 0.9)
ROWS_AT_ONCE = 8_192
STARTS = 2_000
"""Open-loop trajectories, at most."""
COLUMNS = ["algorithm", "dataset", "fingerprint", "member", "seed", "step", "part", "quantity", "horizon", "value",
           "version"]  # fmt: skip


def ensemble_of(run: Run, member: int, step: int | None = None) -> tuple[int, Ensemble]:
    """The step of a checkpoint, by default the member's last healthy one, and the ensemble in it.

    Raises:
        UserError: there is no checkpoint, or the algorithm has no dynamics.
    """
    if not issubclass(run.algorithm.Config, DynamicsConfig):
        raise UserError(f"{run.path}: {run.algorithm.name} has no dynamics; give a run of mopo, morel, combo, ...")
    step = run.last_checkpoint(member) if step is None else step
    if step is None:
        raise UserError(f"{run.path}: no checkpoint of a healthy member {member}; train it first")
    ensemble = jax.tree.map(lambda leaf: leaf[member], run.restore(step).ensemble)
    return step, jax.device_put(ensemble)


def split(run: Run) -> tuple[Dataset, Dataset]:
    """The episodes that the run was trained on and those held out, preprocessed as for its training.

    Raises:
        UserError: the protocol held no episode out.
    """
    dataset = load_dataset(run)
    held_out = held_out_episodes(run, dataset)
    if not held_out.any():
        raise UserError(
            f"{run.path}: protocol.validation_fraction=0 held no episode out, and the report needs some; train with 0.1"
        )
    dataset = apply_transforms(dataset, run.info["dataset"]["transforms"])
    return dataset.select_episodes(np.flatnonzero(~held_out)), dataset.select_episodes(np.flatnonzero(held_out))


def quantiles(ensemble: Ensemble, batch: Steps, config: DynamicsConfig) -> dict[str, jax.Array]:
    """The elites' mixture at the true step: log-density and distribution function [n, dim + 1], error of its mean."""
    mean, log_var = (part[ensemble.elites] for part in dynamics.predict(ensemble, *batch[:2], config))
    truth = dynamics.targets_of(batch)
    each = gaussian_log_prob(mean[..., None], 0.5 * log_var[..., None], truth[..., None])
    following = batch.observations + mean.mean(0)[:, :-1]
    return {
        "log_density": jax.nn.logsumexp(each, 0) - jnp.log(config.elites),
        "distribution": jax.scipy.stats.norm.cdf((truth - mean) / jnp.exp(0.5 * log_var)).mean(0),
        "error": truth - mean.mean(0),
        "ends": dynamics.termination_probability(ensemble, *batch[:2], batch.next_observations, config),
        "ends_predicted": dynamics.termination_probability(ensemble, *batch[:2], following, config),
    }


def open_loop(ensemble: Ensemble, start: jax.Array, actions: jax.Array, config: DynamicsConfig) -> jax.Array:
    """Open-loop rollouts of the elites' means from `start` [n, dim] under actions [horizon, n, _]: observations
    [horizon, elites, n, dim]."""
    network = dynamics.dynamics_network(config, start.shape[-1])
    params = jax.tree.map(lambda leaf: leaf[ensemble.elites], ensemble.params["dynamics"])

    def one(observations: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(params: Any, observations: jax.Array) -> jax.Array:
            inputs = dynamics.dynamics_inputs(ensemble.statistics, observations, actions)
            return observations + network.apply(params, inputs)[0][:, :-1]

        following = jax.vmap(step)(params, observations)
        return following, following

    first = jnp.broadcast_to(start, (config.elites, *start.shape))
    return jax.lax.scan(one, first, actions)[1]


def one_step_numbers(
    ensemble: Ensemble, config: DynamicsConfig, train: Dataset, held_out: Dataset
) -> tuple[list[tuple[str, str, Any, float]], np.ndarray]:
    """(part, quantity, horizon, value) of one step and of terminations; and how far from the median of its
    prediction each observation lies, 0 (there) to 1 (in the tails) [rows, dim]."""
    rows, program = steps_of(held_out), jax.jit(quantiles)
    parts = []
    for first in range(0, len(rows.rewards), ROWS_AT_ONCE):
        part = Steps(*(column[first : first + ROWS_AT_ONCE] for column in rows))
        parts.append(jax.device_get(program(ensemble, part, config)))
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    targets = np.asarray(dynamics.targets_of(steps_of(train)))
    mean, std = targets.mean(0), np.maximum(targets.std(0), 1e-8)
    marginal = 0.5 * ((np.asarray(dynamics.targets_of(rows)) - mean) / std) ** 2 + np.log(std) + 0.5 * np.log(2 * np.pi)
    numbers: list[tuple[str, str, Any, float]] = [
        ("one step", "rows", "", len(rows.rewards)),
        ("one step", "negative log-likelihood per dimension", "", -found["log_density"].mean()),
        ("one step", "the same of a single Gaussian (baseline)", "", marginal.mean()),
        ("one step", "error of observations / std of their change", "", _rms((found["error"] / std)[:, :-1])),
        ("one step", "error of rewards / their std", "", _rms((found["error"] / std)[:, -1])),
    ]
    centred = np.abs(found["distribution"] - 0.5) * 2
    numbers += [
        ("one step", f"coverage of the {level:.0%} interval, {what}", "", (columns < level).mean())
        for what, columns in (("observations", centred[:, :-1]), ("rewards", centred[:, -1]))
        for level in LEVELS
    ]
    truth = np.asarray(rows.terminations) > 0
    numbers.append(("terminations", "terminal steps", "", float(truth.sum())))
    for name, label in (("ends", "of the true next step"), ("ends_predicted", "of the predicted next step")):
        predicted = found[name] > 0.5
        hits = (predicted & truth).sum()
        numbers.append(
            ("terminations", f"precision, {label}", "", hits / predicted.sum() if predicted.any() else np.nan)
        )
        numbers.append(("terminations", f"recall, {label}", "", hits / truth.sum() if truth.any() else np.nan))
    return numbers, centred[:, :-1]


def open_loop_numbers(
    ensemble: Ensemble, config: DynamicsConfig, train: Dataset, held_out: Dataset
) -> tuple[list[tuple[str, str, Any, float]], np.ndarray]:
    """(part, quantity, horizon, value), and the error at every horizon: [of the elites, of predicting no change]."""
    horizons = [h for h in HORIZONS if h < held_out.lengths.max()]
    if not horizons:
        return [], np.empty((0, 2))
    horizon = horizons[-1]
    steps, stride = episode_steps(held_out), max(1, held_out.steps // (4 * STARTS))
    # one step more: of the observation after the last action
    whole = np.flatnonzero((steps.timesteps % stride == 0) & (steps.lengths - steps.timesteps > horizon))
    chosen = whole[np.unique(np.linspace(0, len(whole) - 1, STARTS).astype(int))]
    windows = windows_from(steps, chosen, horizon + 1)
    observations, actions = windows.observations, windows.actions
    path = np.asarray(jax.jit(open_loop)(ensemble, observations[:, 0], actions[:, :-1].transpose(1, 0, 2), config))
    scale = np.maximum(train.transitions().observations.std(0), 1e-8)
    truth = observations[:, 1:].transpose(1, 0, 2)
    errors = np.stack(
        [
            [_rms((path[h] - truth[h]) / scale) for h in range(horizon)],
            [_rms((observations[:, 0] - truth[h]) / scale) for h in range(horizon)],
        ],
        1,
    )
    numbers: list[tuple[str, str, Any, float]] = [("open loop", "trajectories", "", len(chosen))]
    for h in horizons:
        numbers.append(("open loop", "error / std of observations", h, errors[h - 1, 0]))
        numbers.append(("open loop", "the same of predicting no change (baseline)", h, errors[h - 1, 1]))
    return numbers, errors


def steps_of(dataset: Dataset) -> Steps:
    view: Any = dataset.dynamics()
    return Steps(*view)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


class DynamicsReport(NamedTuple):
    table: pd.DataFrame
    """One row per number: the columns of COLUMNS."""
    curves: list[tuple[int, np.ndarray, np.ndarray]]
    """Of each member: its number, and the two arrays of `one_step_numbers` and `open_loop_numbers`."""
    episodes: int
    """How many were held out."""


def measure(run: Run, step: int | None = None) -> DynamicsReport:
    """Every number of the report, of each member at a checkpoint, by default its last healthy one.

    Raises:
        UserError: no such checkpoint, no dynamics in it, or no held-out episode.
    """
    ensembles = [ensemble_of(run, member, step) for member in range(len(run.members))]
    train, held_out = split(run)
    rows, curves = [], []
    for member, (at, ensemble) in enumerate(ensembles):
        config = run.member_configs[member]
        numbers, centred = one_step_numbers(ensemble, config, train, held_out)
        more, errors = open_loop_numbers(ensemble, config, train, held_out)
        curves.append((member, centred, errors))
        named = (run.algorithm.name, run.info["dataset"]["name"], run.info["dataset"]["fingerprint"])
        rows += [
            (*named, member, run.members[member]["seed"], at, *number, offrl.__version__) for number in numbers + more
        ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    return DynamicsReport(table, curves, held_out.episodes)
