"""DT: Decision Transformer (Chen et al. 2021, arXiv:2106.01345): actions predicted from returns-to-go by a transformer.

The last `context` steps of an episode are tokens (return-to-go, observation, action), each embedded with its timestep;
a causal transformer reads them, and predicts each action from its observation's token. The loss is the mean squared
error over the window's steps, padding left out. In play the policy is told which return to aim for, `target_return`,
and subtracts from it every reward that it receives.

Of discrete actions it learns the logits by maximum likelihood, as the authors do on Atari, and takes the likeliest,
where they sample.

Returns-to-go are undiscounted. The target is part of the configuration, in the units of the (preprocessed) rewards; by
default it is the largest return of a training episode, which `from_data` fills in and run.json keeps. The authors play
every policy with two targets per environment, chosen by hand: here there is one, fixed before training, never taken
from a simulator.

A window ends at a drawn step and is padded, with a mask, where it would begin before its episode, so that short
histories are trained on as they occur in play; in the authors' code a window starts at a drawn step and may end with
its episode. Both draw episodes in proportion to length.
"""

from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from offrl.algorithm import Metrics, Spec, option
from offrl.data.dataset import Dataset
from offrl.data.transforms import Preprocessing
from offrl.data.views import EpisodeSteps, Windows, episode_steps, windows_until
from offrl.errors import UserError
from offrl.learning.networks import categorical_log_prob, one_hot_mode
from offrl.learning.policies import Memory, Policy

SUPPORTS = ("continuous", "discrete")
WEIGHT_STD = 0.02  # of GPT-2, whose blocks these are


@flax.struct.dataclass
class Config:
    context: int = option(20, "steps that the policy sees, the present one included (K)", static=True)
    target: str = option(
        "best",
        "best: aim for the largest return of a training episode; given: for target_return",
        static=True,
        choices=("best", "given"),
    )
    target_return: float = option(
        0.0, "return to aim for, in the units of preprocessed rewards; read where target=given"
    )
    return_scale: float = option(1000.0, "returns-to-go are divided by it", low=1e-9)
    episode_length: int = option(
        1000, "timesteps that have an embedding of their own; later ones share the last", static=True
    )
    layers: int = option(3, "blocks of the transformer", static=True)
    heads: int = option(1, "attention heads of each", static=True)
    width: int = option(128, "width of the embeddings, a multiple of heads; four times it within a block", static=True)
    dropout: float = option(0.1, "dropout rate", static=True)
    learning_rate: float = option(1e-4, "AdamW step size, after its warm-up", low=0)
    warmup: int = option(10_000, "updates over which the step size grows from 0, linearly", low=1)
    weight_decay: float = option(1e-4, "AdamW's weight decay", low=0)
    gradient_clip: float = option(0.25, "largest norm of the gradient", low=0)
    batch_size: int = option(64, "windows per update", static=True)
    preprocessing: Preprocessing = option(
        Preprocessing(observations="standardize", observation_epsilon=1e-6), "steps applied to the data", static=True
    )


@flax.struct.dataclass
class State:
    step: jax.Array
    transformer: Any
    opt: optax.OptState
    target_return: jax.Array
    """The return that the policy aims for, the configuration's."""
    discrete: bool = flax.struct.field(pytree_node=False, default=False)


def from_data(dataset: Dataset, config: Config) -> dict[str, float]:
    """The return to aim for, where the configuration leaves it to the data: the largest of an episode."""
    if config.target == "given":
        return {}
    return {"target_return": float(dataset.returns_to_go()[dataset.starts].max())}


def prepare(dataset: Dataset, config: Config) -> EpisodeSteps:
    if config.width % config.heads:
        raise UserError(f"algo.width={config.width}: must be a multiple of algo.heads={config.heads}")
    return episode_steps(dataset)


class Block(nn.Module):
    """Attention to the tokens that `allowed` [n, 1, tokens, tokens] lets each see, then a perceptron; both residual."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, allowed: jax.Array, deterministic: bool) -> jax.Array:
        init, width = nn.initializers.normal(WEIGHT_STD), x.shape[-1]
        attention = nn.MultiHeadDotProductAttention(self.heads, kernel_init=init, dropout_rate=self.dropout)
        x = x + self.drop(attention(nn.LayerNorm()(x), mask=allowed, deterministic=deterministic), deterministic)
        hidden = nn.relu(nn.Dense(4 * width, kernel_init=init)(nn.LayerNorm()(x)))
        return x + self.drop(nn.Dense(width, kernel_init=init)(hidden), deterministic)

    def drop(self, x: jax.Array, deterministic: bool) -> jax.Array:
        return nn.Dropout(self.dropout)(x, deterministic=deterministic)


class Transformer(nn.Module):
    """Windows -> the actions predicted at each of their steps, [windows, context, action_dim] in (-1, 1), or logits."""

    config: Config
    action_dim: int
    discrete: bool = False

    @nn.compact
    def __call__(self, seen: Windows, deterministic: bool = True) -> jax.Array:
        config, (n, context) = self.config, seen.mask.shape
        init = nn.initializers.normal(WEIGHT_STD)
        time = nn.Embed(config.episode_length, config.width, embedding_init=init, name="time")(
            jnp.minimum(seen.timesteps, config.episode_length - 1)
        )
        inputs = ((seen.returns_to_go / config.return_scale)[..., None], seen.observations, seen.actions)
        # r1 s1 a1 r2 s2 a2 ...: the token of an observation sees its return-to-go, not its action
        tokens = jnp.stack([nn.Dense(config.width)(values) + time for values in inputs], 2)
        x = nn.LayerNorm()(tokens.reshape(n, 3 * context, config.width))
        x = nn.Dropout(config.dropout)(x, deterministic=deterministic)
        causal = jnp.tril(jnp.ones((3 * context, 3 * context), bool))
        allowed = causal & jnp.repeat(seen.mask, 3, 1)[:, None, None, :]
        for _ in range(config.layers):
            x = Block(config.heads, config.dropout)(x, allowed, deterministic)
        x = nn.LayerNorm()(x).reshape(n, context, 3, config.width)
        actions = nn.Dense(self.action_dim)(x[:, :, 1])
        return actions if self.discrete else jnp.tanh(actions)


def optimiser(config: Config, step: jax.Array | int = 0) -> optax.GradientTransformation:
    """AdamW behind the clipping of gradients, at the step size of an update."""
    rate = config.learning_rate * jnp.minimum((step + 1) / config.warmup, 1)
    return optax.chain(
        optax.clip_by_global_norm(config.gradient_clip), optax.adamw(rate, weight_decay=config.weight_decay)
    )


def empty(n: int, config: Config, spec: Spec) -> Windows:
    """Windows of n episodes in which nothing has happened yet."""
    steps = (n, config.context)
    return Windows(
        observations=jnp.zeros((*steps, spec.observation_dim)),
        actions=jnp.zeros((*steps, spec.action_dim)),
        rewards=jnp.zeros(steps),
        terminations=jnp.zeros(steps),
        returns_to_go=jnp.zeros(steps),
        timesteps=jnp.zeros(steps, jnp.int32),
        mask=jnp.zeros(steps, bool),
        extra={},
    )


def init(key: jax.Array, config: Config, spec: Spec) -> State:
    parameters = Transformer(config, spec.action_dim, spec.discrete).init(key, empty(1, config, spec))
    return State(
        step=jnp.zeros((), jnp.int32),
        transformer=parameters,
        opt=optimiser(config).init(parameters),
        target_return=jnp.asarray(config.target_return, jnp.float32),
        discrete=spec.discrete,
    )


def loss(params: Any, key: jax.Array, batch: Windows, config: Config, discrete: bool = False):
    """Squared error, or of discrete actions negative log-likelihood, over the steps that the mask leaves."""
    transformer = Transformer(config, batch.actions.shape[-1], discrete)
    predicted = transformer.apply(params, batch, config.dropout == 0, rngs={"dropout": key})
    error = -categorical_log_prob(predicted, batch.actions) if discrete else ((predicted - batch.actions) ** 2).mean(-1)
    value = (error * batch.mask).sum() / batch.mask.sum()
    return value, {"action_loss": value}


def update_batch(key: jax.Array, state: State, batch: Windows, config: Config) -> tuple[State, Metrics]:
    """One update from a given batch."""
    gradients, metrics = jax.grad(loss, has_aux=True)(state.transformer, key, batch, config, state.discrete)
    changes, opt = optimiser(config, state.step).update(gradients, state.opt, state.transformer)
    parameters = optax.apply_updates(state.transformer, changes)
    return state.replace(step=state.step + 1, transformer=parameters, opt=opt), metrics


def update(key: jax.Array, state: State, dataset: EpisodeSteps, config: Config) -> tuple[State, Metrics]:
    key_steps, key_dropout = jax.random.split(key)
    steps = jax.random.randint(key_steps, (config.batch_size,), 0, dataset.timesteps.shape[0])
    state, metrics = update_batch(key_dropout, state, windows_until(dataset, steps, config.context), config)
    return state, {**metrics, "target_return": state.target_return}


def policy(config: Config, spec: Spec) -> Policy:
    transformer = Transformer(config, spec.action_dim, spec.discrete)

    def start(state: State, n: int) -> tuple[Windows, jax.Array]:
        return empty(n, config, spec), jnp.full(n, state.target_return)  # what has been seen, and the return to go

    def act(state: State, carry: tuple[Windows, jax.Array], observations: jax.Array):
        seen, to_go = carry
        following = jnp.where(seen.mask[:, -1], seen.timesteps[:, -1] + 1, 0)
        now = jax.tree.map(lambda column: jnp.zeros_like(column[:, 0]), seen)._replace(
            observations=observations, returns_to_go=to_go, timesteps=following, mask=jnp.ones_like(seen.mask[:, 0])
        )
        seen = jax.tree.map(lambda old, new: jnp.concatenate([old[:, 1:], new[:, None]], 1), seen, now)
        actions = transformer.apply(state.transformer, seen)[:, -1]
        if spec.discrete:
            actions = one_hot_mode(actions)
        return actions, (seen._replace(actions=seen.actions.at[:, -1].set(actions)), to_go)

    return Policy(
        act=lambda state, observations: act(state, start(state, len(observations)), observations)[0],
        memory=Memory(start=start, act=act, observe=lambda carry, rewards: (carry[0], carry[1] - rewards)),
    )
