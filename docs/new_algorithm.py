"""AWR from returns: cloning in which better actions weigh more (a worked example to copy).

Two losses. V(s) regresses on the discounted return that followed s in the data. The policy is a Gaussian whose
log-likelihood of the data's actions is weighted by exp((return - V(s)) / temperature), at most `max_weight`: advantage
weighted regression (Peng et al. 2019, arXiv:1910.00177) in its simplest form. Returns are cut off at time limits.

Copy this file, give it a name, and train it: python -m offrl.train algo=path/to/mine.py env=hopper
"""

from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Dataset
from offrl.data.transforms import Preprocessing
from offrl.learning.networks import MLP, TanhGaussianActor, tanh_gaussian_log_prob
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step


# Configuration: every field is an option of the command line (algo.temperature=0.5) with this meaning in its help.
# Numbers may differ between the members of a run (algo.temperature=[0.5,1]); structure is static=True.
@flax.struct.dataclass
class Config:
    temperature: float = option(1.0, "advantages are divided by it; large values approach behaviour cloning")
    max_weight: float = option(20.0, "upper bound of the weights")
    learning_rate: float = option(3e-4, "Adam step size of both networks", low=0)
    discount: float = option(
        0.99, "discount per step; the returns are computed with it, once", static=True, low=0, high=1
    )
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize", rewards="return_range"), "steps applied to the data", static=True
    )


# State: everything that training changes, in one pytree. It is saved, restored and mapped over members as it is.
@flax.struct.dataclass
class State:
    step: jax.Array  # required: the number of updates made
    actor: Any
    value: Any
    actor_opt: optax.OptState
    value_opt: optax.OptState


class Data(NamedTuple):
    observations: np.ndarray
    actions: np.ndarray
    returns: np.ndarray


def prepare(dataset: Dataset, config: Config) -> Data:
    """Optional: the data that updates see, made once in numpy. Without it they see `dataset.transitions()`."""
    transitions = dataset.transitions()
    returns = dataset.returns_to_go(config.discount)[dataset.transition_rows]
    return Data(transitions.observations, transitions.actions, returns)


def actor_network(config: Config, action_dim: int) -> TanhGaussianActor:
    return TanhGaussianActor(config.hidden_dims, action_dim)


def value_network(config: Config) -> MLP:
    return MLP(config.hidden_dims, 1)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_actor, key_value = jax.random.split(key)
    observations = jnp.zeros((1, spec.observation_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    value = value_network(config).init(key_value, observations)
    return State(jnp.zeros((), jnp.int32), actor, value, adam_init(actor), adam_init(value))


# Losses return (scalar, metrics). A test can call them and compare them with numpy.
def value_loss(params: Any, batch: Data, config: Config):
    v = value_network(config).apply(params, batch.observations).squeeze(-1)
    loss = ((v - batch.returns) ** 2).mean()
    return loss, {"value_loss": loss, "value": v.mean()}


def actor_loss(params: Any, advantage: jax.Array, batch: Data, config: Config):
    mean, log_std = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    # numbers of the config may be traced: use jnp.minimum and jnp.where, not `min` and `if`
    weight = jnp.minimum(jnp.exp(advantage / config.temperature), config.max_weight)
    loss = -(weight * tanh_gaussian_log_prob(mean, log_std, batch.actions)).mean()
    return loss, {"actor_loss": loss, "weight": weight.mean()}


def update(key: jax.Array, state: State, dataset: Data, config: Config) -> tuple[State, Metrics]:
    """One gradient step of each network. Pure: all randomness comes from `key`, all memory is in `state`."""
    rows = jax.random.randint(key, (config.batch_size,), 0, len(dataset.returns))
    batch = jax.tree.map(lambda column: column[rows], dataset)
    value, value_opt, value_metrics = adam_step(
        lambda params: value_loss(params, batch, config), state.value, state.value_opt, config.learning_rate
    )
    advantage = batch.returns - value_network(config).apply(value, batch.observations).squeeze(-1)
    actor, actor_opt, actor_metrics = adam_step(
        lambda params: actor_loss(params, advantage, batch, config), state.actor, state.actor_opt, config.learning_rate
    )
    return State(state.step + 1, actor, value, actor_opt, value_opt), {**value_metrics, **actor_metrics}


def policy(config: Config, spec: Spec) -> Policy:
    """What evaluation and diagnostics use: `act` is deployed; of the others, those that this algorithm has."""
    actor, value = actor_network(config, spec.action_dim), value_network(config)
    return Policy(
        act=lambda state, observations: jnp.tanh(actor.apply(state.actor, observations)[0]),
        log_prob=lambda state, observations, actions: tanh_gaussian_log_prob(
            *actor.apply(state.actor, observations), actions
        ),
        value=lambda state, observations: value.apply(state.value, observations).squeeze(-1),
    )
