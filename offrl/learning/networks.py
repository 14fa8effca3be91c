"""Standard networks, in flax.linen: what several algorithms share and none of them is about.

Observations are [..., observation_dim], actions [..., action_dim] in [-1, 1]. Where observations are images, uint8
[..., H, W, C], `MLP` and `Critic`, and so all that is made of them, begin with an `ImageEncoder` of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]
Activation = Callable[[jax.Array], jax.Array]

# torch's nn.Linear draws weights and biases uniformly from +-1/sqrt(fan_in); papers written in torch inherit it
torch_kernel_init: Initializer = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def uniform_init(bound: float) -> Initializer:
    """Uniform from +-bound."""
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


def torch_bias_init(fan_in: int) -> Initializer:
    return uniform_init(fan_in**-0.5)


class ImageEncoder(nn.Module):
    """Features [..., n] of images, uint8 [..., H, W, C], in [0, 1] from here on: three convolutions, flattened.

    Kernels of 8, 4 and 4 pixels at half of that as their stride, like the DQN's (Mnih et al. 2015) with half of its
    channels; 512 features of 64 x 64 pixels.
    """

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images.astype(jnp.float32) / 255
        for channels, stride in ((16, 4), (32, 2), (32, 2)):
            x = nn.relu(nn.Dense(channels, kernel_init=torch_kernel_init)(patches(x, stride)))
        return x.reshape(*x.shape[:-3], -1)


def patches(x: jax.Array, stride: int) -> jax.Array:
    """What a convolution's kernel of 2 stride pixels sees in each place, [..., H / stride, W / stride, 4 stride^2 C].

    x is [..., H, W, C], with zeros around it as of padding "SAME"; in a patch the order is that of four quarters, left
    to right and down, each [stride, stride, C]. A convolution is then a matrix product: as
    XLA has it, an update of a strided one takes 25 times as long on a CPU.
    """
    rows, columns = (-(-side // stride) for side in x.shape[-3:-1])
    missing = [(count + 1) * stride - side for count, side in zip((rows, columns), x.shape[-3:-1], strict=True)]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(m // 2, m - m // 2) for m in missing] + [(0, 0)])
    *lead, channels = x.shape[:-3] + x.shape[-1:]
    x = x.reshape(*lead, rows + 1, stride, columns + 1, stride, channels)
    x = jnp.swapaxes(x, -4, -3).reshape(*lead, rows + 1, columns + 1, stride * stride * channels)
    quarters = [x[..., i : i + rows, j : j + columns, :] for i in (0, 1) for j in (0, 1)]
    return jnp.concatenate(quarters, -1)


def features(observations: jax.Array) -> jax.Array:
    """Vectors as they are, images encoded; to be called in the compact method of a module, which gets the encoder."""
    return ImageEncoder()(observations) if observations.dtype == jnp.uint8 else observations


class MLP(nn.Module):
    """Layers of the given widths, ReLU unless `activation` is another, and a linear output.

    `kernel_init` None means torch's default for weights and biases; an initializer means zero biases, as flax does,
    unless `bias_init` says otherwise. `output_init` is for the weights of the last layer, and for its biases too where
    `bias_init` is given.
    Layer normalisation, where asked for, follows the activation. Dropout needs `rngs={"dropout": key}` where it is not
    deterministic.
    """

    hidden_dims: tuple[int, ...]
    output_dim: int
    kernel_init: Initializer | None = None
    output_init: Initializer | None = None
    bias_init: Initializer | None = None
    layer_norm: bool = False
    dropout: float = 0.0
    activation: Activation = nn.relu

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        x = features(x)
        for width in self.hidden_dims:
            x = self.activation(self.dense(width, x, self.kernel_init, self.bias_init))
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            if self.dropout > 0:
                x = nn.Dropout(self.dropout, deterministic=deterministic)(x)
        bias_init = self.output_init if self.bias_init else None
        return self.dense(self.output_dim, x, self.output_init or self.kernel_init, bias_init)

    def dense(
        self, width: int, x: jax.Array, kernel_init: Initializer | None, bias_init: Initializer | None
    ) -> jax.Array:
        if kernel_init is None:
            layer = nn.Dense(width, kernel_init=torch_kernel_init, bias_init=bias_init or torch_bias_init(x.shape[-1]))
        else:
            layer = nn.Dense(width, kernel_init=kernel_init, bias_init=bias_init or nn.initializers.zeros)
        return layer(x)


class DeterministicActor(nn.Module):
    """tanh of an MLP's output: actions [..., action_dim]. Initializers and layer normalisation as in `MLP`."""

    hidden_dims: tuple[int, ...]
    action_dim: int
    output_init: Initializer | None = None
    bias_init: Initializer | None = None
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observations: jax.Array) -> jax.Array:
        network = MLP(
            self.hidden_dims,
            self.action_dim,
            output_init=self.output_init,
            bias_init=self.bias_init,
            layer_norm=self.layer_norm,
        )
        return jnp.tanh(network(observations))


class TanhGaussianActor(nn.Module):
    """Mean and log standard deviation, each [..., action_dim], of a Gaussian whose tanh is the action.

    Both depend on the observation. Initializers and layer normalisation as in `MLP`.
    """

    hidden_dims: tuple[int, ...]
    action_dim: int
    log_std_range: tuple[float, float] = (-5.0, 2.0)
    kernel_init: Initializer | None = None
    output_init: Initializer | None = None
    bias_init: Initializer | None = None
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        network = MLP(
            self.hidden_dims,
            2 * self.action_dim,
            self.kernel_init,
            self.output_init,
            self.bias_init,
            self.layer_norm,
        )
        mean, log_std = jnp.split(network(observations), 2, -1)
        return mean, jnp.clip(log_std, *self.log_std_range)


def gaussian_log_prob(mean: jax.Array, log_std: jax.Array, x: jax.Array) -> jax.Array:
    """Log-density of a Gaussian with independent dimensions, [...]."""
    standardised = (x - mean) / jnp.exp(log_std)
    return (-0.5 * standardised**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)).sum(-1)


def tanh_log_jacobian(x: jax.Array) -> jax.Array:
    """log |d tanh(x) / dx| summed over the last axis, exact where 1 - tanh(x)^2 underflows."""
    return (2 * (jnp.log(2.0) - x - jax.nn.softplus(-2 * x))).sum(-1)


def tanh_gaussian_sample(key: jax.Array, mean: jax.Array, log_std: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions [..., action_dim] in (-1, 1), reparameterised, and their log-densities [...]."""
    x = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    return jnp.tanh(x), gaussian_log_prob(mean, log_std, x) - tanh_log_jacobian(x)


def tanh_gaussian_log_prob(mean: jax.Array, log_std: jax.Array, actions: jax.Array) -> jax.Array:
    """Log-densities [...] of given actions; those on the bounds count as 1e-6 inside."""
    x = jnp.arctanh(jnp.clip(actions, -1 + 1e-6, 1 - 1e-6))
    return gaussian_log_prob(mean, log_std, x) - tanh_log_jacobian(x)


def categorical_log_prob(logits: jax.Array, actions: jax.Array) -> jax.Array:
    """Log-probabilities [...] of one-hot actions."""
    return (jax.nn.log_softmax(logits) * actions).sum(-1)


def one_hot_mode(scores: jax.Array) -> jax.Array:
    """The action of highest logit or value, one-hot; of equal ones the first. nan where any of them is."""
    unknown = jnp.isnan(scores).any(-1, keepdims=True)
    return jnp.where(unknown, jnp.nan, jax.nn.one_hot(scores.argmax(-1), scores.shape[-1]))


def one_hot_sample(key: jax.Array, logits: jax.Array) -> jax.Array:
    """One-hot actions drawn from a categorical distribution."""
    return jax.nn.one_hot(jax.random.categorical(key, logits), logits.shape[-1])


class Critic(nn.Module):
    """Q(s, a), [...]. Observations may lack leading axes of the actions, so that an image is encoded once."""

    hidden_dims: tuple[int, ...]
    kernel_init: Initializer | None = None
    layer_norm: bool = False
    output_init: Initializer | None = None
    bias_init: Initializer | None = None
    activation: Activation = nn.relu

    @nn.compact
    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        seen = features(observations)
        inputs = jnp.concatenate([jnp.broadcast_to(seen, (*actions.shape[:-1], seen.shape[-1])), actions], -1)
        network = MLP(
            self.hidden_dims,
            1,
            self.kernel_init,
            self.output_init,
            self.bias_init,
            self.layer_norm,
            activation=self.activation,
        )
        return network(inputs).squeeze(-1)


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
