"""SAC-N and EDAC: CORL's numbers, the losses written out, and what they reduce to."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plain import golden_batch, mlp, random_batch, random_dataset, random_state
from scipy import stats

from offrl.algorithm import Spec
from offrl.algorithms import edac, sac_n

GOLDEN = Path(__file__).parent / "golden" / "edac.npz"
KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)


def small(algorithm=sac_n, **options):
    return algorithm.Config(hidden_dims=(16, 16), **{"num_critics": 3, **options})


def start(config, algorithm=sac_n, log_alpha: float = -0.3):
    """Targets differ from the learned networks and the temperature from 1, as they do in the middle of training."""
    state = random_state(algorithm, config, SPEC, ("actor", "critic", "critic_target"))
    return state.replace(log_alpha=np.float32(log_alpha))


def gaussian(actor, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation before the tanh."""
    mean, log_std = np.split(mlp(actor["params"]["MLP_0"], observations), 2, -1)
    return mean, np.exp(np.clip(log_std, -5, 2))


def drawn(actor, observations: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions and log-densities for given standard normals."""
    mean, std = gaussian(actor, observations)
    x = mean + std * np.asarray(noise, np.float64)
    return np.tanh(x), (stats.norm.logpdf(x, mean, std) - np.log(1 - np.tanh(x) ** 2)).sum(-1)


def q_of(critic, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """[critics, rows]."""
    layers, inputs = critic["params"]["MLP_0"], np.concatenate([observations, actions], -1)
    count = layers["Dense_0"]["kernel"].shape[0]
    return np.stack([mlp(jax.tree.map(lambda leaf, i=i: leaf[i], layers), inputs)[..., 0] for i in range(count)])


def normals(key: jax.Array, *shape: int) -> np.ndarray:
    return np.asarray(jax.random.normal(key, shape))


def assert_close(ours, expected, atol: float = 1e-6, rtol: float = 0.0) -> None:
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def test_edacs_updates_match_the_reference_implementation(monkeypatch):
    golden = np.load(GOLDEN)

    def layers(*paths: str, inner=lambda array: array) -> dict:
        names = ("w", "kernel"), ("b", "bias")
        return {
            f"Dense_{i}": {ours: inner(golden[f"init/{path}/{theirs}"]) for theirs, ours in names}
            for i, path in enumerate(paths)
        }

    hidden = [f"actor_trunk/{i}" for i in range(3)]
    heads = [layers(f"actor_{head}/0")["Dense_0"] for head in ("mean", "log_std")]
    both = {name: np.concatenate([head[name] for head in heads], -1) for name in ("kernel", "bias")}
    actor = {"params": {"MLP_0": {**layers(*hidden), "Dense_3": both}}}
    stacked = layers(*(f"critics/{i}" for i in range(4)))
    for layer in stacked.values():
        layer["bias"] = layer["bias"][:, 0]
    critic = {"params": {"MLP_0": stacked}}

    config, spec = edac.Config(num_critics=4, hidden_dims=(64, 64, 64)), Spec(11, 3, 10)
    state = random_state(edac, config, spec, networks=())
    for ours, theirs in ((state.actor, actor), (state.critic, critic)):
        assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)
    state = state.replace(actor=actor, critic=critic, critic_target=critic)
    policy = edac.policy(config, spec)
    observations, actions = golden["probe/observations"], golden["probe/actions"]
    given = []

    def sample(key, mean, log_std):  # from the given normals, one set for each loss in its turn
        x = mean + jnp.exp(log_std) * given.pop(0)
        return jnp.tanh(x), edac.tanh_gaussian_log_prob(mean, log_std, jnp.tanh(x))

    monkeypatch.setattr(edac, "tanh_gaussian_sample", sample)

    @jax.jit
    def step(state, batch, eps):
        given[:] = list(eps)
        state, metrics = edac.update_batch(KEY, state, batch, config)
        targets = state.replace(critic=state.critic_target)
        return state, {
            **{name: metrics[name] for name in ("alpha_loss", "actor_loss", "critic_loss")},
            "alpha": jnp.exp(state.log_alpha),
            "diversity_loss": edac.critic_loss(state.critic, KEY, state, batch, config)[1]["diversity_loss"],
            "pi": policy.act(state, observations),
            "q": policy.q_values(state, observations, actions),
            "q_target": policy.q_values(targets, observations, actions),
        }

    for i in range(len(golden["draw/eps"])):
        eps = golden["draw/eps"][i]
        state, seen = step(state, golden_batch(golden, i), np.concatenate([eps, eps[-1:]]))
        for name, value in seen.items():
            expected = golden[f"expect/{name}"][i]
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} after update {i + 1}")
