"""BC: behaviour cloning with a deterministic policy, on all episodes or on those of highest return (%BC).

Minimises (pi(s) - a)^2 over the data. With `fraction` below 1 only that share of the trajectories is kept, the ones of
highest return: the "10% BC" of CORL, which ranks whole trajectories (that of the Decision Transformer's code keeps a
share of the time steps instead). The network is TD3+BC's actor, so that the two differ by the value term alone.
"""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Dataset, Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning.networks import DeterministicActor
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, sample_batch


@flax.struct.dataclass
class Config:
    learning_rate: float = option(3e-4, "Adam step size", low=0)
    fraction: float = option(1.0, "share of the trajectories to clone, those of highest return", static=True)
    ranking_discount: float = option(1.0, "discount of the return that ranks them", static=True, low=0, high=1)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize"), "steps applied to the data", static=True
    )


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    actor_opt: optax.OptState


def prepare(dataset: Dataset, config: Config) -> Transitions:
    if config.fraction < 1:
        dataset = dataset.top_fraction(config.fraction, config.ranking_discount)
    return dataset.transitions()


def actor_network(config: Config, action_dim: int) -> DeterministicActor:
    return DeterministicActor(config.hidden_dims, action_dim)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    actor = actor_network(config, spec.action_dim).init(key, jnp.zeros((1, spec.observation_dim)))
    return State(step=jnp.zeros((), jnp.int32), actor=actor, actor_opt=adam_init(actor))


def actor_loss(params: Any, batch: Transitions, config: Config):
    actions = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    loss = ((actions - batch.actions) ** 2).mean()
    return loss, {"bc_loss": loss}


def update_batch(state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update from a given batch."""
    actor, actor_opt, metrics = adam_step(
        lambda params: actor_loss(params, batch, config), state.actor, state.actor_opt, config.learning_rate
    )
    return State(step=state.step + 1, actor=actor, actor_opt=actor_opt), metrics


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    return update_batch(state, sample_batch(key, dataset, config.batch_size), config)


def policy(config: Config, spec: Spec) -> Policy:
    actor = actor_network(config, spec.action_dim)
    return Policy(act=lambda state, observations: actor.apply(state.actor, observations))
