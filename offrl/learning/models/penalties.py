"""Penalties: an ensemble's uncertainty, [n], from its members' means and log-variances [members, n, dim + 1]."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from offrl.learning.networks import gaussian_log_prob


def max_aleatoric(key: jax.Array, mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """The largest norm of a member's standard deviations, reward included (MOPO)."""
    return jnp.linalg.norm(jnp.exp(0.5 * log_var), axis=-1).max(0)


def max_mean_distance(key: jax.Array, mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """The largest distance of a member's next observation to the mean of all ("pairwise-diff" in OfflineRL-Kit)."""
    following = mean[..., :-1]
    return jnp.linalg.norm(following - following.mean(0), axis=-1).max(0)


def max_pairwise(key: jax.Array, mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """The largest distance between two members' means, reward included (MOReL)."""
    distances = [jnp.linalg.norm(mean[i] - mean[j], axis=-1) for i in range(len(mean)) for j in range(i + 1, len(mean))]
    return jnp.stack(distances).max(0) if distances else jnp.zeros(mean.shape[1])


def ensemble_std(key: jax.Array, mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """Root of the mean, over the observation's dimensions, of the variance of the members' means."""
    return jnp.sqrt(mean[..., :-1].var(0).mean(-1))


def mixture_std(key: jax.Array, mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """Norm of the standard deviations of the mixture of members: noise and disagreement together, reward included."""
    return jnp.linalg.norm(jnp.sqrt(mean.var(0) + jnp.exp(log_var).mean(0)), axis=-1)


def log_prob_spread(key: jax.Array, mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """Standard deviation, over members, of the log-probability of one sample from a random member, in nats."""
    key_member, key_noise = jax.random.split(key)
    n = mean.shape[1]
    member, rows = jax.random.randint(key_member, (n,), 0, len(mean)), jnp.arange(n)
    noise = jax.random.normal(key_noise, mean.shape[1:])
    sample = mean[member, rows] + jnp.exp(0.5 * log_var[member, rows]) * noise
    return gaussian_log_prob(mean, 0.5 * log_var, sample).std(0)


def loo_kl(key: jax.Array, mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """Mean, over members, of KL(member | Gaussian with the moments of the mixture of all others), in nats."""
    others = len(mean) - 1
    rest_mean = (mean.sum(0) - mean) / others
    # the others' spread about their own mean, not the difference of second moments, which float32 would lose
    centred = mean[None] - rest_mean[:, None]
    not_self = 1.0 - jnp.eye(len(mean))[:, :, None, None]
    rest_var = (not_self * (centred**2 + jnp.exp(log_var)[None])).sum(1) / others
    kl = 0.5 * (jnp.log(rest_var) - log_var + (jnp.exp(log_var) + (mean - rest_mean) ** 2) / rest_var - 1)
    return kl.sum(-1).mean(0)


PENALTIES: dict[str, Callable[[jax.Array, jax.Array, jax.Array], jax.Array]] = {
    function.__name__: function
    for function in (
        max_aleatoric,
        max_mean_distance,
        max_pairwise,
        ensemble_std,
        mixture_std,
        log_prob_spread,
        loo_kl,
    )
}
"""Name -> (key, mean, log_var) -> penalty [n]. The first three follow the published code. The last two follow, from
memory, "Revisiting design choices in offline model-based RL" (Lu et al. 2022): their exact form was not checked."""
