"""PRDC: policy regularization with dataset constraint (Ran et al. 2023, arXiv:2306.06569).

TD3 whose actor stays close not to the action that the data has in the same state, as in TD3+BC, but to the action of
the nearest state-action pair in the data: maximise lambda Q(s, pi(s)) - (pi(s) - a_j)^2, where j minimises the distance
of [beta s_j, a_j] to [beta s, pi(s)] and lambda = alpha / mean |Q|. No gradient passes through the search. Order of one
update as in TD3+BC.

Deviations from the authors' code (LAMDA-RL/PRDC), which queries a k-d tree of all rows on the CPU: here the search is a
matrix product on the device, exact among the batch's own rows and `neighbours_from` others drawn at random in each
update of the actor. As the row itself is a candidate, the constraint is never stricter than TD3+BC's. If
`neighbours_from` is at least the number of rows, all are searched, as published, at a cost in proportion; in 15 or more
dimensions a tree is hardly faster. In their code beta is 1 on the command line and 2 in class and README, the default
here; their flag `--normalize` turns the normalisation of observations off, which is on by default there as here.
"""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Transitions
from offrl.data.transforms import Preprocessing
from offrl.learning.networks import Critic, DeterministicActor, ensemble
from offrl.learning.policies import Policy
from offrl.learning.updates import adam_init, adam_step, copy, sample_batch

BLOCK = 256  # rows of the dataset per step of the search


@flax.struct.dataclass
class Config:
    alpha: float = option(2.5, "weight of the value term against the distance to the nearest row's action")
    beta: float = option(2.0, "weight of states against actions in the search; large values approach TD3+BC")
    neighbours_from: int = option(65536, "rows drawn per search; all of them if there are no more", static=True)
    discount: float = option(0.99, "discount per step", low=0, high=1)
    polyak: float = option(0.005, "step of the target networks towards the learned ones", low=0, high=1)
    policy_noise: float = option(0.2, "standard deviation of the target policy's smoothing noise, actions in [-1, 1]")
    noise_clip: float = option(0.5, "bound of that noise")
    actor_learning_rate: float = option(3e-4, "Adam step size of the actor", low=0)
    critic_learning_rate: float = option(3e-4, "Adam step size of the critics", low=0)
    policy_frequency: int = option(2, "critic updates per actor and target update", static=True)
    batch_size: int = option(256, "transitions per update", static=True)
    hidden_dims: tuple[int, ...] = option((256, 256), "widths of the ReLU layers", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize"), "steps applied to the data", static=True
    )


@flax.struct.dataclass
class State:
    step: jax.Array
    actor: Any
    actor_target: Any
    critic: Any
    critic_target: Any
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    actor_metrics: Metrics  # of the last actor update, reported until the next one


def actor_network(config: Config, action_dim: int) -> DeterministicActor:
    return DeterministicActor(config.hidden_dims, action_dim)


def critic_network(config: Config):
    return ensemble(Critic, 2)(config.hidden_dims)


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    key_actor, key_critic = jax.random.split(key)
    observations, actions = jnp.zeros((1, spec.observation_dim)), jnp.zeros((1, spec.action_dim))
    actor = actor_network(config, spec.action_dim).init(key_actor, observations)
    critic = critic_network(config).init(key_critic, observations, actions)
    return State(
        step=jnp.zeros((), jnp.int32),
        actor=actor,
        actor_target=copy(actor),
        critic=critic,
        critic_target=copy(critic),
        actor_opt=adam_init(actor),
        critic_opt=adam_init(critic),
        actor_metrics={name: jnp.zeros(()) for name in ("actor_loss", "distance", "policy_q", "lambda")},
    )


def critic_loss(params: Any, key: jax.Array, state: State, batch: Transitions, config: Config):
    """Squared error of both critics to the clipped double-Q target of the smoothed target policy."""
    actor, critic = actor_network(config, batch.actions.shape[-1]), critic_network(config)
    noise = config.policy_noise * jax.random.normal(key, batch.actions.shape)
    noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
    next_actions = jnp.clip(actor.apply(state.actor_target, batch.next_observations) + noise, -1, 1)
    next_q = critic.apply(state.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + config.discount * (1 - batch.terminations) * next_q
    q = critic.apply(params, batch.observations, batch.actions)
    loss = ((q - target) ** 2).mean(1).sum()
    return loss, {"critic_loss": loss, "data_q": q.mean()}


def candidates(key: jax.Array, batch: Transitions, dataset: Transitions, config: Config) -> tuple[jax.Array, jax.Array]:
    """States and actions to search: all of the dataset, or `neighbours_from` drawn from it and the batch's own."""
    rows = dataset.rewards.shape[0]
    columns = jnp.asarray(dataset.observations), jnp.asarray(dataset.actions)
    if config.neighbours_from >= rows:
        return columns
    drawn = jax.random.randint(key, (config.neighbours_from,), 0, rows)
    own = batch.observations, batch.actions
    return tuple(jnp.concatenate([column[drawn], mine]) for column, mine in zip(columns, own, strict=True))


def nearest(queries: jax.Array, table: jax.Array) -> jax.Array:
    """The row of `table` [rows, dim] nearest to each of the queries [n, dim], exactly, in blocks of rows.

    Compares |row|^2 - 2 query . row: first the blocks, by their smallest value, then the rows of the best block. A
    running minimum over blocks is what XLA does fast; its argmin over all rows takes several times as long.
    """
    blocks = -(-table.shape[0] // BLOCK)
    padding = blocks * BLOCK - table.shape[0]
    norms = jnp.pad((table**2).sum(-1), (0, padding), constant_values=jnp.inf).reshape(blocks, BLOCK)
    table = jnp.pad(table, ((0, padding), (0, 0))).reshape(blocks, BLOCK, -1)

    def closer(best: Any, block: Any) -> Any:
        value, index = best
        rows, norms, i = block
        smallest = (norms[:, None] - 2 * rows @ queries.T).min(0)
        return (jnp.minimum(value, smallest), jnp.where(smallest < value, i, index)), None

    start = jnp.full(queries.shape[0], jnp.inf), jnp.zeros(queries.shape[0], jnp.int32)
    (_, index), _ = jax.lax.scan(closer, start, (table, norms, jnp.arange(blocks)))
    within = norms[index] - 2 * jnp.einsum("nrd,nd->nr", table[index], queries)
    return BLOCK * index + within.argmin(-1)


def nearest_actions(
    key: jax.Array, actions: jax.Array, batch: Transitions, dataset: Transitions, config: Config
) -> jax.Array:
    """Actions of the rows that are nearest to the batch's states with `actions`, [rows, action_dim]."""
    table_observations, table_actions = candidates(key, batch, dataset, config)
    table = jnp.concatenate([config.beta * table_observations, table_actions], -1)
    queries = jnp.concatenate([config.beta * batch.observations, actions], -1)
    return table_actions[nearest(queries, table)]


def actor_loss(params: Any, key: jax.Array, state: State, batch: Transitions, dataset: Transitions, config: Config):
    actions = actor_network(config, batch.actions.shape[-1]).apply(params, batch.observations)
    first_critic = jax.tree.map(lambda leaf: leaf[0], state.critic)  # the second critic is not needed
    q = Critic(config.hidden_dims).apply(first_critic, batch.observations, actions)
    scale = config.alpha / jax.lax.stop_gradient(jnp.abs(q).mean())
    neighbours = nearest_actions(key, jax.lax.stop_gradient(actions), batch, dataset, config)
    distance = ((actions - neighbours) ** 2).mean()
    loss = -scale * q.mean() + distance
    return loss, {"actor_loss": loss, "distance": distance, "policy_q": q.mean(), "lambda": scale}


def update_batch(
    key: jax.Array, state: State, batch: Transitions, dataset: Transitions, config: Config
) -> tuple[State, Metrics]:
    """One update on a given batch."""
    key_noise, key_search = jax.random.split(key)
    critic, critic_opt, metrics = adam_step(
        lambda params: critic_loss(params, key_noise, state, batch, config),
        state.critic,
        state.critic_opt,
        config.critic_learning_rate,
    )
    state = state.replace(step=state.step + 1, critic=critic, critic_opt=critic_opt)

    def update_actor(state: State) -> State:
        actor, actor_opt, actor_metrics = adam_step(
            lambda params: actor_loss(params, key_search, state, batch, dataset, config),
            state.actor,
            state.actor_opt,
            config.actor_learning_rate,
        )
        return state.replace(
            actor=actor,
            actor_opt=actor_opt,
            actor_target=optax.incremental_update(actor, state.actor_target, config.polyak),
            critic_target=optax.incremental_update(state.critic, state.critic_target, config.polyak),
            actor_metrics=actor_metrics,
        )

    state = jax.lax.cond(state.step % config.policy_frequency == 0, update_actor, lambda state: state, state)
    return state, {**metrics, **state.actor_metrics}


def update(key: jax.Array, state: State, dataset: Transitions, config: Config) -> tuple[State, Metrics]:
    key_batch, key_update = jax.random.split(key)
    batch = sample_batch(key_batch, dataset, config.batch_size)
    return update_batch(key_update, state, batch, dataset, config)


def policy(config: Config, spec: Spec) -> Policy:
    actor, critic = actor_network(config, spec.action_dim), critic_network(config)
    return Policy(
        act=lambda state, observations: actor.apply(state.actor, observations),
        q_values=lambda state, observations, actions: critic.apply(state.critic, observations, actions),
    )
