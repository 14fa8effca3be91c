"""Decision Transformer: its loss, what it may see, and that it plays as it was trained."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offrl.algorithm
from offrl.algorithms import dt
from offrl.data.dataset import Dataset
from offrl.data.preprocessing import preprocess
from offrl.data.transforms import Preprocessing
from offrl.data.views import EpisodeSteps, Windows, windows_until
from offrl.errors import UserError
from offrl.learning.contract import random_dataset
from offrl.learning.population import Population

SPEC = offrl.algorithm.Spec(3, 2, 10)
CONFIG = dt.Config(
    context=4, layers=2, heads=2, width=16, dropout=0.0, batch_size=8, episode_length=12, return_scale=3.0
)


@cache
def made() -> tuple[dt.State, EpisodeSteps]:
    state = dt.init(jax.random.key(0), CONFIG, SPEC)
    return state, jax.tree.map(jnp.asarray, dt.prepare(random_dataset(), CONFIG))


update, windows = jax.jit(dt.update), jax.jit(windows_until, static_argnums=2)


@jax.jit
def predict(params, seen: Windows):
    return dt.Transformer(CONFIG, SPEC.action_dim).apply(params, seen)


def test_the_loss_is_the_squared_error_over_unmasked_steps():
    state, data = made()
    batch = windows(data, jnp.array([0, 1, 9, 30]), CONFIG.context)
    assert 0 < batch.mask.sum() < batch.mask.size
    predicted, mask = np.asarray(predict(state.transformer, batch)), np.asarray(batch.mask)
    expected = ((predicted - np.asarray(batch.actions))[mask] ** 2).mean()
    found, _ = dt.loss(state.transformer, jax.random.key(0), batch, CONFIG)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_loss_of_discrete_actions_is_their_negative_log_likelihood_over_unmasked_steps():
    spec = SPEC._replace(discrete=True)
    state, data = dt.init(jax.random.key(0), CONFIG, spec), made()[1]
    batch = windows(data, jnp.array([0, 1, 9, 30]), CONFIG.context)
    batch = batch._replace(actions=jax.nn.one_hot(batch.actions.argmax(-1), 2) * batch.mask[..., None])
    logits = np.asarray(dt.Transformer(CONFIG, 2, True).apply(state.transformer, batch), np.float64)
    taken, mask = np.asarray(batch.actions).argmax(-1), np.asarray(batch.mask)
    share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(share, taken[..., None], -1)[..., 0])[mask].mean()
    found, _ = dt.loss(state.transformer, jax.random.key(0), batch, CONFIG, state.discrete)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_discrete_action_is_the_likeliest_and_is_what_the_policy_remembers():
    spec = SPEC._replace(discrete=True)
    state = dt.init(jax.random.key(0), CONFIG, spec)
    memory = dt.policy(CONFIG, spec).memory
    observations = np.random.default_rng(0).normal(size=(3, spec.observation_dim)).astype(np.float32)
    actions, (seen, _) = memory.act(state, memory.start(state, 3), observations)
    logits = dt.Transformer(CONFIG, 2, True).apply(state.transformer, seen)[:, -1]
    np.testing.assert_array_equal(actions, np.eye(2)[np.asarray(logits).argmax(-1)])
    np.testing.assert_array_equal(seen.actions[:, -1], actions)


def test_the_transformer_against_numpy():
    config = CONFIG.replace(layers=1, heads=1)
    params = dt.init(jax.random.key(3), config, SPEC).transformer
    # far from the small initial weights, and with biases
    leaves, tree = jax.tree.flatten(params)
    random = np.random.default_rng(0)
    params = jax.tree.unflatten(tree, [np.asarray(leaf) + random.normal(0, 0.3, leaf.shape) for leaf in leaves])
    seen = jax.tree.map(np.asarray, windows(made()[1], jnp.array([2, 9]), config.context))
    found = dt.Transformer(config, SPEC.action_dim).apply(params, seen)
    p = params["params"]

    def dense(x, q):
        return x @ q["kernel"] + q["bias"]

    def norm(x, q):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * q["scale"] + q["bias"]

    for i in range(2):
        time = p["time"]["embedding"][seen.timesteps[i]]
        inputs = (seen.returns_to_go[i][:, None] / config.return_scale, seen.observations[i], seen.actions[i])
        x = np.stack([dense(values, p[f"Dense_{k}"]) + time for k, values in enumerate(inputs)], 1)
        x = norm(x.reshape(-1, config.width), p["LayerNorm_0"])
        block = p["Block_0"]
        attention = block["MultiHeadDotProductAttention_0"]
        h = norm(x, block["LayerNorm_0"])
        q, k, v = (h @ attention[n]["kernel"][:, 0] + attention[n]["bias"][0] for n in ("query", "key", "value"))
        score = q @ k.T / np.sqrt(config.width)
        allowed = np.tril(np.ones_like(score, bool)) & np.repeat(seen.mask[i], 3)[None]
        weight = np.where(allowed, np.exp(score - score.max()), 0)
        with np.errstate(invalid="ignore"):
            mixed = weight / weight.sum(1, keepdims=True) @ v
        x = x + mixed @ attention["out"]["kernel"][0] + attention["out"]["bias"]
        h = np.maximum(dense(norm(x, block["LayerNorm_1"]), block["Dense_0"]), 0)
        x = norm(x + dense(h, block["Dense_1"]), p["LayerNorm_1"])
        expected = np.tanh(dense(x[1::3], p["Dense_3"]))
        np.testing.assert_allclose(found[i][seen.mask[i]], expected[seen.mask[i]], rtol=2e-3, atol=2e-4)


def test_an_action_does_not_depend_on_itself_nor_on_what_comes_after_it():
    state, data = made()
    seen = windows(data, jnp.array([4]), CONFIG.context)
    assert bool(seen.mask.all())
    before = predict(state.transformer, seen)
    changed = seen._replace(
        actions=seen.actions.at[:, 1:].add(1.0),
        observations=seen.observations.at[:, 2:].add(1.0),
        returns_to_go=seen.returns_to_go.at[:, 2:].add(5.0),
    )
    after = predict(state.transformer, changed)
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    assert (np.abs(after[:, 2:] - before[:, 2:]) > 0).all()


def test_what_is_masked_changes_nothing():
    state, data = made()
    seen = windows(data, jnp.array([1]), CONFIG.context)  # two steps of four
    random = np.random.default_rng(0)
    garbage = jax.tree.map(
        lambda x: jnp.where(
            seen.mask.reshape(seen.mask.shape + (1,) * (x.ndim - 2)), x, random.integers(0, 9, x.shape).astype(x.dtype)
        ),
        seen._replace(mask=seen.mask.astype(jnp.int32)),
    )._replace(mask=seen.mask)
    mask = np.asarray(seen.mask[0])
    np.testing.assert_allclose(
        predict(state.transformer, garbage)[0][mask], predict(state.transformer, seen)[0][mask], atol=1e-6
    )
    shorter = jax.tree.map(lambda x: x[:, 2:], seen)
    np.testing.assert_allclose(
        predict(state.transformer, shorter)[0], predict(state.transformer, seen)[0][mask], atol=1e-6
    )


def test_played_step_by_step_it_acts_like_one_pass_over_the_episode():
    state, _ = made()
    state = state.replace(target_return=jnp.asarray(7.0))
    memory = dt.policy(CONFIG, SPEC).memory
    random = np.random.default_rng(0)
    n, length = 2, 6  # longer than the context
    observations = random.normal(size=(length, n, SPEC.observation_dim)).astype(np.float32)
    rewards = random.normal(size=(length, n)).astype(np.float32)
    carry, actions = memory.start(state, n), []
    for step in range(length):
        action, carry = memory.act(state, carry, observations[step])
        carry = memory.observe(carry, rewards[step])
        actions.append(np.asarray(action))
    to_go = 7.0 - np.cumsum(rewards, 0) + rewards
    for step in range(length):
        rows = slice(max(0, step + 1 - CONFIG.context), step + 1)
        count = rows.stop - rows.start
        seen = Windows(
            rewards=np.zeros((n, count)),
            terminations=np.zeros((n, count)),
            extra={},
            returns_to_go=to_go[rows].T,
            observations=observations[rows].swapaxes(0, 1),
            actions=np.stack(actions[rows]).swapaxes(0, 1),
            timesteps=np.tile(np.arange(rows.start, rows.stop), (n, 1)),
            mask=np.ones((n, count), bool),
        )
        np.testing.assert_allclose(predict(state.transformer, seen)[:, -1], actions[step], atol=1e-5)
    np.testing.assert_allclose(dt.policy(CONFIG, SPEC).act(state, observations[0]), actions[0], atol=1e-6)


def test_the_target_is_the_best_return_of_the_data_or_the_one_that_was_given():
    dataset = preprocess(random_dataset(), Preprocessing(reward_scale=2.0))
    assert dt.from_data(dataset, CONFIG) == {"target_return": pytest.approx(2 * dataset.returns.max(), rel=1e-5)}
    given = CONFIG.replace(target="given", target_return=12.5)
    assert dt.from_data(dataset, given) == {}
    state = dt.init(jax.random.key(0), given, SPEC)
    after, metrics = update(jax.random.key(0), state, made()[1], given)
    assert float(after.target_return) == float(metrics["target_return"]) == 12.5


def test_the_first_step_is_warmed_up_and_its_gradient_clipped():
    state, data = made()
    batch = windows(data, jnp.arange(8), CONFIG.context)
    config = CONFIG.replace(warmup=10, learning_rate=1e-3, weight_decay=0.0)
    after, _ = dt.update_batch(jax.random.key(0), state, batch, config)
    change = jax.tree.map(lambda a, b: np.abs(a - b).max(), after.transformer, state.transformer)
    assert max(jax.tree.leaves(change)) == pytest.approx(1e-4, rel=1e-2)  # Adam's first step is its step size
    gradients, _ = jax.grad(dt.loss, has_aux=True)(state.transformer, jax.random.key(0), batch, config)
    norm = np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(gradients)))
    clipped, _ = dt.update_batch(jax.random.key(0), state, batch, config.replace(gradient_clip=float(norm) / 10))
    first = jax.tree.leaves(clipped.opt[1][0].mu)[0]
    np.testing.assert_allclose(first, 0.1 * 0.1 * jax.tree.leaves(gradients)[0], rtol=1e-4, atol=1e-9)


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(UserError, match=r"algo\.width=16: must be a multiple of algo\.heads=3"):
        dt.prepare(random_dataset(), CONFIG.replace(heads=3))


def two_sorts(episodes: int = 60, length: int = 5) -> Dataset:
    """Every second episode plays 0.8 and gains 1 per step; the others play -0.4 and gain nothing."""
    steps = episodes * length
    good = np.repeat(np.arange(episodes) % 2 == 0, length)
    random = np.random.default_rng(0)
    return Dataset(
        name="two sorts",
        observations=random.normal(size=(steps + episodes, 1)).astype(np.float32),
        actions=np.where(good, 0.8, -0.4).astype(np.float32)[:, None],
        rewards=good.astype(np.float32),
        terminations=np.zeros(steps, bool),
        truncations=np.arange(steps) % length == length - 1,
        lengths=np.full(episodes, length),
        final_observation_known=np.ones(episodes, bool),
        action_low=np.array([-1], np.float32),
        action_high=np.array([1], np.float32),
    )


def test_it_plays_what_the_episodes_of_its_target_did():
    algorithm, spec = offrl.algorithm.load("dt"), offrl.algorithm.Spec(1, 1, 300)
    config = CONFIG.replace(layers=1, batch_size=32, learning_rate=3e-3, warmup=20, return_scale=5.0)
    population = Population(algorithm, [config], [0], spec, dt.prepare(two_sorts(), config), "map")
    population.train(population.phases[0], 0, 300)
    state = jax.tree.map(lambda leaf: leaf[0], population.save()["states"])
    memory = dt.policy(config, spec).memory
    for target, reward, action in ((5.0, 1.0, 0.8), (0.0, 0.0, -0.4)):
        aiming = state.replace(target_return=jnp.asarray(target))
        carry = memory.start(aiming, 3)
        for _ in range(5):
            actions, carry = memory.act(aiming, carry, np.zeros((3, 1), np.float32))
            carry = memory.observe(carry, jnp.full(3, reward))
            np.testing.assert_allclose(actions, action, atol=0.1)
