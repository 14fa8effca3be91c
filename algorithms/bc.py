"""BC: behaviour cloning with a deterministic policy, on all episodes or on those of highest return (%BC).

Minimises (pi(s) - a)^2 over the data. With `fraction` below 1 only that share of the trajectories is kept, the ones of
highest return: the "10% BC" of CORL, which ranks whole trajectories (that of the Decision Transformer's code keeps a
share of the time steps instead). The network is TD3+BC's actor, so that the two differ by the value term alone.

Of discrete actions it learns the logits by maximum likelihood, and takes the likeliest.
"""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Dataset, Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning.networks import MLP, DeterministicActor, categorical_log_prob, one_hot_mode, one_hot_sample
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, sample_batch

SUPPORTS = ("continuous", "discrete", "image")


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
    discrete: bool = flax.struct.field(pytree_node=False, default=False)


def prepare(dataset: Dataset, config: Config) -> Transitions:
    if config.fraction < 1:
        dataset = dataset.top_fraction(config.fraction, config.ranking_discount)
    return dataset.transitions()


def actor_network(config: Config, action_dim: int, discrete: bool = False) -> MLP | DeterministicActor:
    """Of actions, or of the logits of discrete ones."""
    if discrete:
        return MLP(config.hidden_dims, action_dim)
    return DeterministicActor(config.hidden_dims, action_dim)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    actor = actor_network(config, spec.action_dim, spec.discrete).init(key, spec.observations)
    return State(step=jnp.zeros((), jnp.int32), actor=actor, actor_opt=adam_init(actor), discrete=spec.discrete)


def actor_loss(params: Any, batch: Transitions, config: Config, discrete: bool = False):
    actions = actor_network(config, batch.actions.shape[-1], discrete).apply(params, batch.observations)
    error = -categorical_log_prob(actions, batch.actions) if discrete else (actions - batch.actions) ** 2
    loss = error.mean()
    return loss, {"bc_loss": loss}


def update_batch(state: State, batch: Transitions, config: Config) -> tuple[State, Metrics]:
    """One update from a given batch."""
    actor, actor_opt, metrics = adam_step(
        lambda params: actor_loss(params, batch, config, state.discrete),
        state.actor,
        state.actor_opt,
        config.learning_rate,
    )
    return state.replace(step=state.step + 1, actor=actor, actor_opt=actor_opt), metrics


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    return update_batch(state, sample_batch(key, dataset, config.batch_size), config)


def policy(config: Config, spec: Spec) -> Policy:
    actor = actor_network(config, spec.action_dim, spec.discrete)
    if spec.discrete:
        return Policy(
            act=lambda state, observations: one_hot_mode(actor.apply(state.actor, observations)),
            sample=lambda key, state, observations: one_hot_sample(key, actor.apply(state.actor, observations)),
            log_prob=lambda state, observations, actions: categorical_log_prob(
                actor.apply(state.actor, observations), actions
            ),
        )
    return Policy(act=lambda state, observations: actor.apply(state.actor, observations))
