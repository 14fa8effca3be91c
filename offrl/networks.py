"""Standard networks, in flax.linen: what several algorithms share and none of them is about.

Observations are [..., observation_dim], actions [..., action_dim] in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]

# torch's nn.Linear draws weights and biases uniformly from +-1/sqrt(fan_in); papers written in torch inherit it
torch_kernel_init: Initializer = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def torch_bias_init(fan_in: int) -> Initializer:
    bound = fan_in**-0.5
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


class MLP(nn.Module):
    """ReLU layers of the given widths and a linear output.

    `kernel_init` None means torch's default for weights and biases; an initializer means zero biases, as flax does.
    Layer normalisation, where asked for, follows the activation. Dropout needs `rngs={"dropout": key}` where it is not
    deterministic.
    """

    hidden_dims: tuple[int, ...]
    output_dim: int
    kernel_init: Initializer | None = None
    output_init: Initializer | None = None
    layer_norm: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        for width in self.hidden_dims:
            x = nn.relu(self.dense(width, x, self.kernel_init))
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            if self.dropout > 0:
                x = nn.Dropout(self.dropout, deterministic=deterministic)(x)
        return self.dense(self.output_dim, x, self.output_init or self.kernel_init)

    def dense(self, width: int, x: jax.Array, kernel_init: Initializer | None) -> jax.Array:
        if kernel_init is None:
            layer = nn.Dense(width, kernel_init=torch_kernel_init, bias_init=torch_bias_init(x.shape[-1]))
        else:
            layer = nn.Dense(width, kernel_init=kernel_init)
        return layer(x)


class DeterministicActor(nn.Module):
    """tanh of an MLP's output: actions [..., action_dim]."""

    hidden_dims: tuple[int, ...]
    action_dim: int

    @nn.compact
    def __call__(self, observations: jax.Array) -> jax.Array:
        return jnp.tanh(MLP(self.hidden_dims, self.action_dim)(observations))


class Critic(nn.Module):
    """Q(s, a), [...]."""

    hidden_dims: tuple[int, ...]
    kernel_init: Initializer | None = None
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        inputs = jnp.concatenate([observations, actions], -1)
        return MLP(self.hidden_dims, 1, self.kernel_init, layer_norm=self.layer_norm)(inputs).squeeze(-1)


def ensemble(module: type[nn.Module], size: int) -> type[nn.Module]:
    """The module `size` times with parameters of their own, stacked on axis 0 of parameters and outputs.

    All see the same inputs. These are repeated along the axis: with inputs in common XLA would merge the first layers
    into one product, then move its result and gradient into the stacked layout, which costs some 4 % of an update.
    """
    stacked = nn.vmap(
        module, in_axes=0, out_axes=0, axis_size=size, variable_axes={"params": 0}, split_rngs={"params": True}
    )

    class Ensemble(stacked):  # type: ignore[valid-type,misc]  # a class made at run time
        def __call__(self, *inputs: jax.Array) -> jax.Array:
            return super().__call__(*(jnp.broadcast_to(x, (size, *x.shape)) for x in inputs))

    return Ensemble
