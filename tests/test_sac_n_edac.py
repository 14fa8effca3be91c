"""SAC-N and EDAC: CORL's numbers, the losses written out, and what they reduce to."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plain import (
    ensemble_q,
    gaussian_actor,
    golden_batch,
    random_batch,
    random_dataset,
    random_state,
    tanh_gaussian_density,
)

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


def drawn(actor, observations: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions and log-densities for given standard normals."""
    mean, std = gaussian_actor(actor, observations)
    x = mean + std * np.asarray(noise, np.float64)
    return np.tanh(x), tanh_gaussian_density(x, mean, std)


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


def test_the_losses_take_the_lowest_of_all_critics_and_stop_at_terminal_states_only():
    data = random_dataset(lengths=(5, 4, 6), terminal=(True, False, True))
    config, maximum = small(discount=0.9), small(discount=0.9, backup="max_online")
    state, batch = start(config), data.transitions()

    @jax.jit
    def losses(state, batch):
        return {
            "alpha": sac_n.alpha_loss(state.log_alpha, KEY, state, batch, config),
            "actor": sac_n.actor_loss(state.actor, KEY, state, batch, config),
            "critic": sac_n.critic_loss(state.critic, KEY, state, batch, config),
            "maximum": sac_n.critic_loss(state.critic, KEY, state, batch, maximum),
        }

    seen = losses(state, batch)
    alpha = np.exp(-0.3)
    after = np.r_[1:6, 7:11, 12:18]  # the row of the observation after every step, as the episodes are stored
    alive = np.ones(15)
    alive[[4, 14]] = 0  # the ends of the first and the third episode; the second one ends at a time limit
    here, there = data.observations[after - 1], data.observations[after]

    actions, log_prob = drawn(state.actor, here, normals(KEY, 15, 2))
    np.testing.assert_allclose(seen["alpha"][0], 0.3 * (log_prob.mean() - 2), rtol=1e-4)
    np.testing.assert_allclose(seen["alpha"][1]["entropy"], -log_prob.mean(), rtol=1e-4)
    lowest = ensemble_q(state.critic, here, actions).min(0)
    np.testing.assert_allclose(seen["actor"][0], (alpha * log_prob - lowest).mean(), rtol=1e-4)

    next_actions, next_log_prob = drawn(state.actor, there, normals(KEY, 15, 2))
    next_value = ensemble_q(state.critic_target, there, next_actions).min(0) - alpha * next_log_prob
    q = ensemble_q(state.critic, here, data.actions)
    expected = ((q - data.rewards - 0.9 * alive * next_value) ** 2).mean(1).sum()
    np.testing.assert_allclose(seen["critic"][0], expected, rtol=1e-4)
    np.testing.assert_allclose(seen["critic"][1]["data_q"], q.mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(seen["critic"][1]["data_q_std"], q.std(0).mean(), rtol=1e-4)

    ten = [drawn(state.actor, there, noise)[0] for noise in normals(KEY, 10, 15, 2)]
    best = np.max([ensemble_q(state.critic, there, each) for each in ten], 0).min(
        0
    )  # of each critic, then over critics
    expected = ((q - data.rewards - 0.9 * alive * best) ** 2).mean(1).sum()
    np.testing.assert_allclose(seen["maximum"][0], expected, rtol=1e-4)


def plain_sac(key, actor, critics, targets, log_alpha, opts, batch):
    """One update of SAC with two critics, each on its own, written for this test."""
    adam = optax.adam(3e-4)

    def forward(layers, x):
        layers = [layers[f"Dense_{i}"] for i in range(len(layers))]
        for layer in layers[:-1]:
            x = jnp.maximum(x @ layer["kernel"] + layer["bias"], 0)
        return x @ layers[-1]["kernel"] + layers[-1]["bias"]

    def draw(key, actor, observations):
        mean, log_std = jnp.split(forward(actor, observations), 2, -1)
        std = jnp.exp(jnp.clip(log_std, -5, 2))
        x = mean + std * jax.random.normal(key, mean.shape)
        log_cosh = jnp.logaddexp(x, -x) - jnp.log(2.0)  # the derivative of tanh is 1 / cosh^2
        return jnp.tanh(x), (jax.scipy.stats.norm.logpdf(x, mean, std) + 2 * log_cosh).sum(-1)

    def q(critic, observations, actions):
        return forward(critic, jnp.concatenate([observations, actions], -1))[:, 0]

    def lowest(critics, observations, actions):
        return jnp.minimum(*(q(critic, observations, actions) for critic in critics))

    def step(loss, params, opt):
        changes, opt = adam.update(jax.grad(loss)(params), opt)
        return optax.apply_updates(params, changes), opt

    keys = jax.random.split(key, 3)
    _, log_prob = draw(keys[0], actor, batch.observations)
    log_alpha, alpha_opt = step(lambda log_alpha: -(log_alpha * (log_prob - 2)).mean(), log_alpha, opts[0])
    alpha = jnp.exp(log_alpha)

    def actor_loss(actor):
        actions, log_prob = draw(keys[1], actor, batch.observations)
        return (alpha * log_prob - lowest(critics, batch.observations, actions)).mean()

    actor, actor_opt = step(actor_loss, actor, opts[1])
    next_actions, next_log_prob = draw(keys[2], actor, batch.next_observations)
    soft = lowest(targets, batch.next_observations, next_actions) - alpha * next_log_prob
    target = batch.rewards + 0.99 * (1 - batch.terminations) * soft
    stepped = [
        step(lambda critic: ((q(critic, batch.observations, batch.actions) - target) ** 2).mean(), critic, opt)
        for critic, opt in zip(critics, opts[2:], strict=True)
    ]
    critics, critic_opts = zip(*stepped, strict=True)
    targets = jax.tree.map(lambda old, new: 0.995 * old + 0.005 * new, targets, critics)
    return actor, critics, targets, log_alpha, (alpha_opt, actor_opt, *critic_opts)


def test_with_two_critics_it_is_sac():
    config = small(num_critics=2)
    state = start(config)

    def each(critic):
        return tuple(jax.tree.map(lambda leaf, i=i: leaf[i], critic["params"]["MLP_0"]) for i in range(2))

    actor, log_alpha = state.actor["params"]["MLP_0"], state.log_alpha
    critics, targets = each(state.critic), each(state.critic_target)
    opts = tuple(optax.adam(0.0).init(params) for params in (log_alpha, actor, *critics))
    step, plain_step = jax.jit(sac_n.update_batch), jax.jit(plain_sac)
    for i in range(10):
        batch, key = random_batch(seed=i), jax.random.key(i)
        state, _ = step(key, state, batch, config)
        actor, critics, targets, log_alpha, opts = plain_step(key, actor, critics, targets, log_alpha, opts, batch)
    assert_close(state.actor["params"]["MLP_0"], actor)
    assert_close(each(state.critic), critics)
    assert_close(each(state.critic_target), targets)
    assert_close(state.log_alpha, log_alpha)


def test_edac_without_diversity_is_sac_n_and_with_it_the_critics_slopes_differ_more():
    config, states = small(num_critics=2, critic_learning_rate=3e-3), {}
    sac_n_step, edac_step = jax.jit(sac_n.update_batch), jax.jit(edac.update_batch)
    plain = start(config)
    for eta in (0.0, 10.0):
        diverse = small(edac, num_critics=2, eta=eta, critic_learning_rate=3e-3)
        state = start(diverse, edac)
        for i in range(10):
            batch, key = random_batch(seed=i), jax.random.key(i)
            state, metrics = edac_step(key, state, batch, diverse)
            if eta == 0:
                plain, _ = sac_n_step(key, plain, batch, config)
        states[eta], states[eta, "cosines"] = state, float(metrics["diversity_loss"])
    for name in ("actor", "critic", "critic_target", "log_alpha"):
        assert_close(getattr(states[0.0], name), getattr(plain, name))
    assert states[10.0, "cosines"] < states[0.0, "cosines"] - 0.1


def test_the_diversity_is_that_of_the_slopes_in_the_action_over_all_pairs():
    config, batch = small(edac, num_critics=4), random_batch(rows=8)
    state = start(config, edac)
    step = 1e-6
    slopes = np.stack(
        [
            (
                ensemble_q(state.critic, batch.observations, batch.actions + step * direction)
                - ensemble_q(state.critic, batch.observations, batch.actions - step * direction)
            )
            / (2 * step)
            for direction in np.eye(2)
        ],
        -1,
    )
    unit = slopes / np.linalg.norm(slopes, axis=-1, keepdims=True)
    pairs = sum((unit[i] * unit[j]).sum(-1) for i in range(4) for j in range(4) if i != j)
    _, metrics = jax.jit(edac.critic_loss)(state.critic, KEY, state, batch, config)
    np.testing.assert_allclose(metrics["diversity_loss"], pairs.mean() / 3, rtol=1e-4)


def test_a_critic_without_a_slope_gives_no_nan():
    gradients = np.zeros((3, 2, 2), np.float32)
    gradients[0] = 1
    value, derivative = jax.jit(jax.value_and_grad(edac.similarity))(gradients)
    assert np.isfinite(value)
    assert np.isfinite(derivative).all()


@pytest.mark.parametrize("log_alpha", [0.0, 2.0])
def test_the_temperature_follows_the_entropy_or_stays_where_it_is(log_alpha):
    step, batch = jax.jit(sac_n.update_batch), random_batch()
    for rate in (0.0, 3e-4):
        config = small(num_critics=2, alpha_learning_rate=rate)
        state = start(config, log_alpha=log_alpha)
        new, metrics = step(KEY, state, batch, config)
        direction = np.sign(-2 - metrics["entropy"])  # up where the entropy is below its target
        np.testing.assert_allclose(new.log_alpha - log_alpha, rate * direction, atol=1e-6)


def test_the_networks_begin_as_published():
    quickly = {"xla_backend_optimization_level": 1}
    state = jax.jit(sac_n.init, static_argnums=2, compiler_options=quickly)(KEY, small(initial_alpha=0.2), SPEC)
    for network, last in ((state.actor, 1e-3), (state.critic, 3e-3)):
        *hidden, output = (layer for _, layer in sorted(network["params"]["MLP_0"].items()))
        assert all((layer["bias"] == np.float32(0.1)).all() for layer in hidden)
        for leaf in jax.tree.leaves(output):
            assert 0 < np.abs(leaf).max() <= last
    np.testing.assert_allclose(np.exp(state.log_alpha), 0.2, rtol=1e-6)
    assert_close(state.critic, state.critic_target, atol=0)


def test_the_policy_deploys_its_mode_and_knows_its_density():
    config, batch = small(), random_batch()
    state, policy = start(config), sac_n.policy(config, SPEC)

    @jax.jit
    def seen(state, batch):
        sample = policy.sample(KEY, state, batch.observations)
        return {
            "act": policy.act(state, batch.observations),
            "sample": sample,
            "log_prob": policy.log_prob(state, batch.observations, sample),
            "q_values": policy.q_values(state, batch.observations, batch.actions),
        }

    sample, log_prob = drawn(state.actor, batch.observations, normals(KEY, 32, 2))
    expected = {
        "act": np.tanh(gaussian_actor(state.actor, batch.observations)[0]),
        "sample": sample,
        "log_prob": log_prob,
        "q_values": ensemble_q(state.critic, batch.observations, batch.actions),
    }
    for name, value in seen(state, batch).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4, err_msg=name)
