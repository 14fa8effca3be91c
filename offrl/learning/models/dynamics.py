"""A learned model of the environment: an ensemble of probabilistic networks.

Every ensemble member predicts a Gaussian over [change of the observation, reward] from the standardised observation
and action, and has its own termination classifier, which sees observation, action and next observation. Members are
stacked on axis 0 of all parameters. Training is one compiled program (`update_ensemble` is one step of all members)
with a fixed number of updates. Early stopping means that each member predicts with its best snapshot by held-out
error, and that updates compute nothing once no member improves any more.

As in the published code (MOPO, PETS, OfflineRL-Kit): swish layers, weight decay per layer, log-variances clamped
softly between learned bounds, mean squared error of the predicted means as held-out error, and a snapshot replaced
when that error falls by more than 1 %. What differs here, and why:
- Held-out data are whole episodes, because random rows have neighbours among the training rows, which hides
  overfitting. They are a share of the episodes instead of at most 1,000 rows, which could be a single episode.
- Terminations are learned from the data (`terminations="learned"`). The published code is given each task's own
  termination function; those are in `terminations.py` as `assisted:...`, for comparisons only.
- Each member sees batches of its own, drawn independently from all training rows, instead of batches from one fixed
  bootstrap sample per member.
- Each member has its own bounds of the log-variances; their regulariser is divided by the number of members.
- At terminal steps the model is trained with the true next observation, which `Dataset` keeps;
  `d4rl.qlearning_dataset` puts the next episode's first observation there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Dataset, Transitions
from offrl.data.transforms import observation_statistics
from offrl.errors import UserError
from offrl.learning.models.rollouts import Steps
from offrl.learning.models.terminations import ASSISTED_TERMINATIONS
from offrl.learning.networks import MLP
from offrl.learning.updates import adam_init, adam_step, copy

LOG_VAR_BOUNDS = (-10.0, 0.5)  # where the learned bounds start
BOUND_WEIGHT = 0.01
IMPROVEMENT = 0.01  # share by which the held-out error must fall for a new snapshot
KERNEL_INIT = nn.initializers.variance_scaling(0.25, "fan_in", "normal")  # standard deviation 1 / (2 sqrt(fan in))


@flax.struct.dataclass
class DynamicsConfig:
    """The options of an ensemble; an algorithm's Config inherits them."""

    ensemble_size: int = option(7, "networks of the dynamics ensemble", static=True)
    elites: int = option(5, "how many of them, those of lowest held-out error, make the rollouts", static=True)
    dynamics_hidden_dims: tuple[int, ...] = option((200,) * 4, "widths of a dynamics network's layers", static=True)
    termination_hidden_dims: tuple[int, ...] = option((64, 64), "widths of a termination classifier", static=True)
    dynamics_learning_rate: float = option(1e-3, "Adam step size of the dynamics")
    dynamics_weight_decay: tuple[float, ...] = option(
        (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4),
        "coefficients of half the squared weights, one per hidden layer and one for the output layer; a deeper network "
        "repeats the last but one",
        static=True,
    )
    dynamics_batch_size: int = option(256, "transitions per dynamics update and network", static=True)
    dynamics_updates: int = option(100_000, "maximum updates of the dynamics", static=True)
    holdout_fraction: float = option(0.1, "share of the episodes held out of dynamics training", static=True)
    holdout_rows: int = option(5_000, "maximum held-out steps used in an evaluation", static=True)
    holdout_every: int = option(1_000, "dynamics updates between evaluations on held-out steps", static=True)
    patience: int = option(5, "training stops after this many evaluations in which no network improved")
    terminations: str = option(
        "learned",
        "what ends a rollout: a learned classifier, or (assisted) the task's own rule, which the data do not hold",
        static=True,
        choices=("learned", *ASSISTED_TERMINATIONS),
    )


class ModelData(NamedTuple):
    """The dataset as model-based algorithms see it. Statistics are float32, per dimension."""

    transitions: Transitions
    train_rows: np.ndarray
    """int32: rows of `transitions` that train the dynamics: of training episodes, with a known next observation."""
    holdout_rows: np.ndarray
    """int32: the same of held-out episodes, or a random subset if there are more than `config.holdout_rows`."""
    input_mean: np.ndarray
    """Of observations and actions of the training rows, [observation_dim + action_dim]."""
    input_std: np.ndarray
    observation_mean: np.ndarray
    """[observation_dim]; raw observations are observation_mean + observation_std * those in `transitions`."""
    observation_std: np.ndarray


class Statistics(NamedTuple):
    """The part of `ModelData` that predictions need."""

    input_mean: jax.Array
    input_std: jax.Array
    observation_mean: jax.Array
    observation_std: jax.Array


class Ensemble(flax.struct.PyTreeNode):
    """The whole state of a model. `params` predict: each member's best snapshot; `training` are those being trained."""

    params: Any
    training: Any
    opt: optax.OptState
    holdout_error: jax.Array  # [members], of the snapshots: mean squared error
    holdout_termination_error: jax.Array  # [members]: cross-entropy
    elites: jax.Array  # int32 [elites], best first
    stale: jax.Array  # evaluations since a snapshot was last replaced
    metrics: Metrics  # of the last update made, reported until the next one
    statistics: Statistics


class Prediction(NamedTuple):
    """One step of the model from n observations and actions, each sampled from a random elite."""

    next_observations: jax.Array
    rewards: jax.Array
    terminations: jax.Array
    mean: jax.Array
    """[members, n, observation_dim + 1]: every member's mean of [change of the observation, reward]."""
    log_var: jax.Array


def prepare(dataset: Dataset, config: DynamicsConfig) -> ModelData:
    """The view of the data for model-based algorithms, split by episode for the dynamics; numpy arrays.

    Raises:
        UserError: there is only one episode, or nothing to learn a model from, or there are more elites than networks.
    """
    if config.elites > config.ensemble_size:
        raise UserError(f"algo.elites={config.elites}: more than algo.ensemble_size={config.ensemble_size}")
    transitions = dataset.transitions()
    if not 0 < config.holdout_fraction < 1:
        raise UserError(f"algo.holdout_fraction={config.holdout_fraction}: must be between 0 and 1")
    _, held_out = dataset.split_indices(config.holdout_fraction, 0)
    rows = np.searchsorted(dataset.transition_rows, dataset.dynamics_rows)  # the second are a subset of the first
    in_holdout = np.isin(dataset.episode_of_step[dataset.dynamics_rows], held_out)
    train_rows, holdout_rows = rows[~in_holdout], rows[in_holdout]
    if not len(train_rows) or not len(holdout_rows):
        raise UserError(
            f"{dataset.name}: a dynamics model needs steps with a known next observation, to train on and to hold out; "
            "there are too few episodes that have them"
        )
    if len(holdout_rows) > config.holdout_rows:
        holdout_rows = np.sort(np.random.default_rng(0).choice(holdout_rows, config.holdout_rows, replace=False))
    inputs = np.concatenate([transitions.observations[train_rows], transitions.actions[train_rows]], -1)
    std = inputs.std(0, dtype=np.float64)
    observation_mean, observation_std = observation_statistics(dataset.transforms, dataset.observation_dim)
    return ModelData(
        transitions,
        train_rows.astype(np.int32),
        holdout_rows.astype(np.int32),
        inputs.mean(0, dtype=np.float64).astype(np.float32),
        np.where(std < 1e-12, 1.0, std).astype(np.float32),
        observation_mean,
        observation_std,
    )


# The networks of one member, and their losses


class GaussianNetwork(nn.Module):
    """Mean and log-variance, each [..., output_dim]."""

    hidden_dims: tuple[int, ...]
    output_dim: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        network = MLP(self.hidden_dims, 2 * self.output_dim, KERNEL_INIT, activation=nn.swish)
        mean, log_var = jnp.split(network(x), 2, -1)
        low, high = (
            self.param(name, nn.initializers.constant(bound), (self.output_dim,))
            for name, bound in zip(("lowest_log_var", "highest_log_var"), LOG_VAR_BOUNDS, strict=True)
        )
        log_var = high - nn.softplus(high - log_var)
        return mean, low + nn.softplus(log_var - low)


def dynamics_network(config: DynamicsConfig, observation_dim: int) -> Any:
    return GaussianNetwork(config.dynamics_hidden_dims, observation_dim + 1)


def termination_network(config: DynamicsConfig) -> Any:
    return MLP(config.termination_hidden_dims, 1)


def dynamics_loss(
    params: Any, inputs: jax.Array, targets: jax.Array, config: DynamicsConfig, bound_weight: float = BOUND_WEIGHT
) -> jax.Array:
    """Of one member: twice the Gaussian negative log-likelihood per dimension, weight decay, bounds' regulariser."""
    mean, log_var = dynamics_network(config, targets.shape[-1] - 1).apply(params, inputs)
    likelihood = ((mean - targets) ** 2 * jnp.exp(-log_var)).mean() + log_var.mean()
    *hidden, last = config.dynamics_weight_decay
    decays = [hidden[min(i, len(hidden) - 1)] for i in range(len(config.dynamics_hidden_dims))] if hidden else []
    layers = params["params"]
    decay = sum(
        0.5 * weight * (layers["MLP_0"][f"Dense_{i}"]["kernel"] ** 2).sum() for i, weight in enumerate([*decays, last])
    )
    bounds = (layers["highest_log_var"] - layers["lowest_log_var"]).sum()
    return likelihood + decay + bound_weight / config.ensemble_size * bounds


def termination_loss(params: Any, inputs: jax.Array, terminations: jax.Array, config: DynamicsConfig) -> jax.Array:
    """Of one member's classifier: cross-entropy."""
    logits = termination_network(config).apply(params, inputs).squeeze(-1)
    return optax.sigmoid_binary_cross_entropy(logits, terminations).mean()


def dynamics_inputs(statistics: Statistics, observations: jax.Array, actions: jax.Array) -> jax.Array:
    return (jnp.concatenate([observations, actions], -1) - statistics.input_mean) / statistics.input_std


def termination_inputs(
    statistics: Statistics, observations: jax.Array, actions: jax.Array, next_observations: jax.Array
) -> jax.Array:
    dim = observations.shape[-1]
    following = (next_observations - statistics.input_mean[:dim]) / statistics.input_std[:dim]
    return jnp.concatenate([dynamics_inputs(statistics, observations, actions), following], -1)


def targets_of(batch: Steps) -> jax.Array:
    """[change of the observation, reward]."""
    return jnp.concatenate([batch.next_observations - batch.observations, batch.rewards[..., None]], -1)


def rows_of(transitions: Transitions, rows: jax.Array) -> Steps:
    return Steps(*(getattr(transitions, name)[rows] for name in Steps._fields))


# Training


def init_ensemble(key: jax.Array, config: DynamicsConfig, spec: Spec) -> Ensemble:
    size, inputs = config.ensemble_size, jnp.zeros((1, spec.observation_dim + spec.action_dim))
    key_dynamics, key_termination = jax.random.split(key)

    def members(key: jax.Array, network: nn.Module, inputs: jax.Array) -> Any:
        return jax.vmap(lambda key: network.init(key, inputs))(jax.random.split(key, size))

    following = jnp.zeros((1, spec.observation_dim))
    params = {
        "dynamics": members(key_dynamics, dynamics_network(config, spec.observation_dim), inputs),
        "termination": members(key_termination, termination_network(config), jnp.concatenate([inputs, following], -1)),
    }
    return Ensemble(
        params=params,
        training=copy(params),
        opt=jax.vmap(adam_init)(params),
        holdout_error=jnp.full(size, jnp.inf),
        holdout_termination_error=jnp.full(size, jnp.inf),
        elites=jnp.arange(config.elites, dtype=jnp.int32),
        stale=jnp.zeros((), jnp.int32),
        metrics={name: jnp.zeros(()) for name in ("dynamics_loss", "termination_loss")},
        statistics=Statistics(
            jnp.zeros(inputs.shape[1]),
            jnp.ones(inputs.shape[1]),
            jnp.zeros(spec.observation_dim),
            jnp.ones(spec.observation_dim),
        ),
    )


def begin_ensemble(ensemble: Ensemble, data: ModelData) -> Ensemble:
    """The ensemble, with the statistics of the data that it will be trained on."""
    statistics = Statistics(*(jnp.asarray(getattr(data, name)) for name in Statistics._fields))
    return ensemble.replace(statistics=statistics)


def train_step(ensemble: Ensemble, batch: Steps, config: DynamicsConfig) -> Ensemble:
    """One Adam step of every member on its own rows: leaves of `batch` are [members, rows, ...]."""
    inputs = dynamics_inputs(ensemble.statistics, batch.observations, batch.actions)
    targets = targets_of(batch)
    for_termination = termination_inputs(
        ensemble.statistics, batch.observations, batch.actions, batch.next_observations
    )

    def one(params: Any, opt: Any, inputs: Any, targets: Any, for_termination: Any, terminations: Any) -> Any:
        def loss(params: Any) -> tuple[jax.Array, Metrics]:
            dynamics = dynamics_loss(params["dynamics"], inputs, targets, config)
            termination = termination_loss(params["termination"], for_termination, terminations, config)
            return dynamics + termination, {"dynamics_loss": dynamics, "termination_loss": termination}

        return adam_step(loss, params, opt, config.dynamics_learning_rate)

    training, opt, metrics = jax.vmap(one)(
        ensemble.training, ensemble.opt, inputs, targets, for_termination, batch.terminations
    )
    return ensemble.replace(training=training, opt=opt, metrics=jax.tree.map(jnp.mean, metrics))


def holdout_step(ensemble: Ensemble, batch: Steps, config: DynamicsConfig) -> Ensemble:
    """Evaluates the parameters in training on held-out rows [rows, ...]; members that improved get a new snapshot."""
    inputs = dynamics_inputs(ensemble.statistics, batch.observations, batch.actions)
    for_termination = termination_inputs(
        ensemble.statistics, batch.observations, batch.actions, batch.next_observations
    )
    network, targets = dynamics_network(config, batch.observations.shape[-1]), targets_of(batch)

    def errors(params: Any) -> tuple[jax.Array, jax.Array]:
        mean, _ = network.apply(params["dynamics"], inputs)
        termination = termination_loss(params["termination"], for_termination, batch.terminations, config)
        return ((mean - targets) ** 2).mean(), termination

    error, termination_error = jax.vmap(errors)(ensemble.training)
    better = error < (1 - IMPROVEMENT) * ensemble.holdout_error
    better_termination = termination_error < (1 - IMPROVEMENT) * ensemble.holdout_termination_error

    def keep(better: jax.Array, new: Any, old: Any) -> Any:
        return jax.tree.map(lambda new, old: jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old), new, old)

    holdout_error = jnp.where(better, error, ensemble.holdout_error)
    return ensemble.replace(
        params={
            "dynamics": keep(better, ensemble.training["dynamics"], ensemble.params["dynamics"]),
            "termination": keep(better_termination, ensemble.training["termination"], ensemble.params["termination"]),
        },
        holdout_error=holdout_error,
        holdout_termination_error=jnp.where(better_termination, termination_error, ensemble.holdout_termination_error),
        elites=jnp.argsort(holdout_error)[: config.elites].astype(jnp.int32),
        stale=jnp.where((better | better_termination).any(), 0, ensemble.stale + 1),
    )


def update_ensemble(
    key: jax.Array, ensemble: Ensemble, data: ModelData, config: DynamicsConfig
) -> tuple[Ensemble, Metrics]:
    """One update of all members. The first, and every `holdout_every`-th after it, end with a held-out evaluation."""
    going_on = ensemble.stale < config.patience
    updates_before = ensemble.opt[0].count[0]  # Adam's, the same for all members
    shape = (config.ensemble_size, config.dynamics_batch_size)

    def train(ensemble: Ensemble) -> Ensemble:
        rows = jnp.asarray(data.train_rows)[jax.random.randint(key, shape, 0, len(data.train_rows))]
        return train_step(ensemble, rows_of(data.transitions, rows), config)

    def evaluate(ensemble: Ensemble) -> Ensemble:
        return holdout_step(ensemble, rows_of(data.transitions, jnp.asarray(data.holdout_rows)), config)

    # a loop of one iteration or none would make the whole update eight times as slow on a CPU; the price of `cond` is
    # that under `vmap`, on accelerators, both branches are computed in every update
    ensemble = jax.lax.cond(going_on, train, lambda ensemble: ensemble, ensemble)
    due = going_on & (updates_before % config.holdout_every == 0)
    ensemble = jax.lax.cond(due, evaluate, lambda ensemble: ensemble, ensemble)
    elite = ensemble.elites
    return ensemble, {
        **ensemble.metrics,
        "holdout_mse": ensemble.holdout_error[elite].mean(),
        "holdout_termination_loss": ensemble.holdout_termination_error[elite].mean(),
        "still_training": going_on.astype(jnp.float32),
    }


# Prediction


def predict(
    ensemble: Ensemble, observations: jax.Array, actions: jax.Array, config: DynamicsConfig
) -> tuple[jax.Array, jax.Array]:
    """Mean and log-variance of [change of the observation, reward] by every member, [members, n, dim + 1] each."""
    inputs = dynamics_inputs(ensemble.statistics, observations, actions)
    network = dynamics_network(config, observations.shape[-1])
    return jax.vmap(network.apply, (0, None))(ensemble.params["dynamics"], inputs)


def termination_probability(
    ensemble: Ensemble,
    observations: jax.Array,
    actions: jax.Array,
    next_observations: jax.Array,
    config: DynamicsConfig,
) -> jax.Array:
    """Mean of the elites' probabilities, [n]; 0 or 1 under an assisted rule."""
    if config.terminations != "learned":
        statistics = ensemble.statistics
        raw = statistics.observation_mean + statistics.observation_std * next_observations
        return ASSISTED_TERMINATIONS[config.terminations](raw).astype(jnp.float32)
    inputs = termination_inputs(ensemble.statistics, observations, actions, next_observations)
    params = jax.tree.map(lambda leaf: leaf[ensemble.elites], ensemble.params["termination"])
    logits = jax.vmap(termination_network(config).apply, (0, None))(params, inputs).squeeze(-1)
    return nn.sigmoid(logits).mean(0)


def step(
    key: jax.Array, ensemble: Ensemble, observations: jax.Array, actions: jax.Array, config: DynamicsConfig
) -> Prediction:
    """One step from n observations and actions, each sampled from a random elite."""
    key_elite, key_noise = jax.random.split(key)
    mean, log_var = predict(ensemble, observations, actions, config)
    n = observations.shape[0]
    member = ensemble.elites[jax.random.randint(key_elite, (n,), 0, config.elites)]
    rows = jnp.arange(n)
    noise = jax.random.normal(key_noise, mean.shape[1:])
    sample = mean[member, rows] + jnp.exp(0.5 * log_var[member, rows]) * noise
    next_observations, rewards = observations + sample[:, :-1], sample[:, -1]
    ends = termination_probability(ensemble, observations, actions, next_observations, config) > 0.5
    return Prediction(next_observations, rewards, ends.astype(jnp.float32), mean, log_var)
