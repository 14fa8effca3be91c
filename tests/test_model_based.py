"""MOPO, MOReL, COMBO, RAMBO and MOBILE: their losses written out, what they reduce to, and rollouts in their phases."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import mlp, random_batch, random_dataset, random_state, twin_q

from offrl.algorithm import Spec
from offrl.algorithms import combo, mobile, mopo, morel, rambo
from offrl.errors import UserError
from offrl.learning import model_based, soft_actor_critic
from offrl.learning.models import dynamics, penalties
from offrl.learning.models.rollouts import Steps

KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)
ALL = {"mopo": mopo, "morel": morel, "combo": combo, "rambo": rambo, "mobile": mobile}
SMALL = {
    "ensemble_size": 3,
    "elites": 2,
    "dynamics_hidden_dims": (16,),
    "termination_hidden_dims": (8,),
    "dynamics_batch_size": 8,
    "dynamics_updates": 4,
    "holdout_every": 2,
    "rollout_length": 3,
    "rollout_batch_size": 20,
    "rollout_every": 2,
    "rollouts_kept": 2,
    "hidden_dims": (16, 16),
    "batch_size": 32,
    "critics": 2,
}


OWN = {  # besides; of MOReL what MOPO has, to be compared with it
    "morel": {"actor_schedule": "cosine", "critic_learning_rate": 3e-4, "real_ratio": 0.05},
    "rambo": {"cloning_updates": 2, "adversary_updates": 3, "adversary_batch_size": 8, "adversary_every": 2},
}


def small(name: str, **options):
    return ALL[name].Config(**{**SMALL, **OWN.get(name, {}), **options})


def start(name: str, config, buffer_rows: int = 12):
    """Random networks, an ensemble that is ready, and some rows in the buffer."""
    state = random_state(ALL[name], config, SPEC, ("learner",))
    random = np.random.default_rng(7)
    params = jax.tree.map(lambda leaf: 0.4 * random.normal(size=leaf.shape).astype(np.float32), state.ensemble.params)
    for bound, value in zip(("lowest_log_var", "highest_log_var"), dynamics.LOG_VAR_BOUNDS, strict=True):
        params["dynamics"]["params"][bound] += np.float32(value)
    statistics = state.ensemble.statistics._replace(input_std=np.ones(5, "f4"), observation_std=np.ones(3, "f4"))
    ensemble = state.ensemble.replace(params=params, statistics=statistics, elites=np.array([2, 0], np.int32))
    rows = state.buffer.rows.rewards.shape[0]
    filled = Steps(*random_batch(rows, seed=3)[:5]) if rows >= buffer_rows else state.buffer.rows
    buffer = state.buffer._replace(rows=filled, size=np.int32(min(buffer_rows, rows)))
    # what the optimisers have not seen yet is 0, but for the critics' positions
    learner = state.learner.replace(
        log_alpha=np.float32(-0.5),
        **{name: jax.tree.map(np.zeros_like, getattr(state.learner, name)) for name in OPTIMISERS},
    )
    return state.replace(ensemble=ensemble, buffer=buffer, learner=learner, updates=np.int32(100))


OPTIMISERS = ("actor_opt", "critic_opt", "alpha_opt")


def steps(rows: int = 32, seed: int = 0) -> Steps:
    return Steps(*random_batch(rows, seed=seed)[:5])


def draw(key, actor, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions and log-densities of the policy for its own normal draws, in double precision."""
    mean, log_std = np.split(mlp(actor["params"]["MLP_0"], observations), 2, -1)
    log_std = np.clip(log_std, -5, 2)
    noise = np.asarray(jax.random.normal(key, mean.shape), np.float64)
    x = mean + np.exp(log_std) * noise
    log_prob = np.sum(-0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(x) ** 2), -1)
    return np.tanh(x), log_prob


@cache
def compiled(function):
    """Compiled with few optimisations: these programs run a few times each."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def equal(ours, theirs, atol: float = 1e-6) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


# Soft actor-critic


def test_the_soft_actor_critics_losses_are_those_written_out():
    config = small("mopo", discount=0.9)
    learner, batch = start("mopo", config).learner, steps()
    alpha = np.exp(-0.5)
    next_actions, log_prob = draw(KEY, learner.actor, batch.next_observations)
    next_q = twin_q(learner.critic_target, batch.next_observations, next_actions).min(0)
    target = batch.rewards + 0.9 * (1 - batch.terminations) * (next_q - alpha * log_prob)
    ours = compiled(soft_actor_critic.td_target)(KEY, learner, batch, config)
    np.testing.assert_allclose(ours, target, rtol=1e-4, atol=1e-5)
    without = config.replace(entropy_backup=False)
    ours = compiled(soft_actor_critic.td_target)(KEY, learner, batch, without)
    np.testing.assert_allclose(ours, batch.rewards + 0.9 * (1 - batch.terminations) * next_q, rtol=1e-4, atol=1e-5)

    q = twin_q(learner.critic, batch.observations, batch.actions)
    loss, _ = compiled(soft_actor_critic.critic_loss)(learner.critic, target, batch, config)
    np.testing.assert_allclose(loss, ((q - target) ** 2).mean(1).sum(), rtol=1e-5)
    actions, log_prob = draw(KEY, learner.actor, batch.observations)
    q = twin_q(learner.critic, batch.observations, actions).min(0)
    loss, metrics = compiled(soft_actor_critic.actor_loss)(learner.actor, KEY, learner, batch, config)
    np.testing.assert_allclose(loss, np.mean(alpha * log_prob - q), rtol=1e-4)
    np.testing.assert_allclose(metrics["entropy"], -log_prob.mean(), rtol=1e-4)


def test_the_entropy_weight_follows_the_entropy_and_stays_at_one_or_below():
    config = small("mopo")
    learner = start("mopo", config).learner
    # d/d log_alpha of log_alpha * (entropy - target): the weight rises where the entropy is too low
    assert jax.grad(soft_actor_critic.alpha_loss)(jnp.float32(0.0), -3.0, -2.0) == -1
    assert soft_actor_critic.entropy_weight(learner.replace(log_alpha=jnp.float32(3.0)), config) == 1
    fixed = config.replace(tune_alpha=False, alpha=0.3)
    assert soft_actor_critic.entropy_weight(learner, fixed) == 0.3
    step = compiled(soft_actor_critic.actor_step)
    after, metrics = step(KEY, learner, steps(), jnp.float32(0.0), config)
    assert (after.log_alpha > learner.log_alpha) == (metrics["entropy"] < -2)
    assert abs(float(after.log_alpha - learner.log_alpha)) == pytest.approx(1e-4, rel=0.01)
    over, _ = step(KEY, learner, steps(), jnp.float32(1.0), config)  # the cosine has come to 0
    equal(over.actor, learner.actor, atol=0)


# The five in their phases


def prepared(config):
    return jax.tree.map(
        jnp.asarray, model_based.prepare(random_dataset(lengths=(8,) * 6, terminal=(True,) * 6), config)
    )


@cache
def population_after(name: str):
    """The states and metrics in the course of a small run; of the dynamics phase, which all share, only MOPO's."""
    config = small(name)
    data, state = prepared(config), start(name, config)
    state = state.replace(buffer=jax.tree.map(np.zeros_like, state.buffer))
    seen = {}
    for phase in ALL[name].phases(config):
        if phase.name == "dynamics" and name != "mopo":
            continue
        if phase.begin is not None:
            state = compiled(phase.begin)(KEY, state, data, config)
        for i in range(3 if phase.updates is None else phase.updates):
            state, metrics = compiled(phase.update)(jax.random.key(i), state, data, config)
            seen[phase.name, i] = (state, metrics)
    return jax.device_get(seen)


@pytest.mark.parametrize("name", ALL)
def test_a_small_run_goes_through_its_phases(name):
    seen = population_after(name)
    last, _ = seen["policy", 2]
    assert last.step == len(seen)
    assert last.policy_step == 3
    assert all(np.isfinite(value) for _, metrics in seen.values() for value in metrics.values())
    sizes = [int(seen["policy", i][0].buffer.size) for i in range(3)]
    assert 20 <= sizes[0] <= 60  # one to three steps of each of twenty rollouts
    assert sizes[1] == sizes[0] < sizes[2]  # rollouts are due at the first update and the third
    rows = seen["policy", 0][0].buffer.rows
    assert np.isfinite(rows.observations).all()
    if name == "mopo":
        equal(last.ensemble, seen["dynamics", 3][0].ensemble, atol=0)


def test_a_wrong_real_ratio_is_refused():
    with pytest.raises(UserError, match=r"algo\.real_ratio=2"):
        mopo.prepare(random_dataset(), small("mopo", real_ratio=2.0))


# MOPO and MOReL


def test_mopo_without_penalty_on_the_data_alone_is_its_policy_optimiser():
    config = small("mopo", real_ratio=1.0, penalty_weight=0.0)
    data, state = prepared(config), start("mopo", config)
    learner = state.learner

    @compiled
    def alone(key, learner, progress):
        _, key_batch, key_update = jax.random.split(key, 3)
        rows = jax.random.randint(jax.random.split(key_batch)[0], (32,), 0, 48)
        batch = Steps(*(getattr(data.transitions, name)[rows] for name in Steps._fields))
        return soft_actor_critic.update(key_update, learner, batch, progress, config)[0]

    step = compiled(mopo.update)
    for i in range(4):
        state, _ = step(jax.random.key(i), state, data, config)
        learner = alone(jax.random.key(i), learner, i / 100)
        equal(state.learner, learner)
    assert state.buffer.rows.rewards.shape == (1,)  # nothing is rolled out


def test_mopo_lowers_the_models_reward_by_the_penalty():
    batch, weight = steps(), 1.5

    @compiled
    def penalised(state, config):
        return mopo.penalised_model(state, config)(KEY, *batch[:2])

    for penalty in ("max_aleatoric", "ensemble_std"):
        config = small("mopo", penalty=penalty, penalty_weight=weight)
        state = start("mopo", config)
        ours = penalised(state, config)
        free = config.replace(penalty_weight=0.0)
        plain = penalised(state, free)
        mean, log_var = dynamics.predict(state.ensemble, *batch[:2], config)
        expected = plain[1] - weight * penalties.PENALTIES[penalty](KEY, mean, log_var)
        np.testing.assert_allclose(ours[1], expected, rtol=1e-4, atol=1e-5)
        equal(ours[0], plain[0])


def test_morel_halts_where_elites_disagree_and_an_infinite_threshold_is_mopo_without_a_penalty():
    config = small("morel", threshold=0.5, halt_reward_offset=-7.0)
    data, state = prepared(config), start("morel", config)
    state = compiled(morel.begin_policy)(KEY, state, data, config)
    batch = Steps(*data.transitions[:5])
    mean, _ = dynamics.predict(state.ensemble, *batch[:2], config)
    distance = np.linalg.norm(mean[2] - mean[0], axis=-1)  # the elites
    largest = distance[data.train_rows].max()
    np.testing.assert_allclose(state.largest_disagreement, largest, rtol=1e-5)
    np.testing.assert_allclose(state.smallest_reward, batch.rewards.min())

    @compiled
    def models(state, config):
        return morel.pessimistic_model(state, config)(KEY, *batch[:2])

    @compiled
    def penalty_free(state):
        return mopo.penalised_model(state, small("mopo", penalty_weight=0.0))(KEY, *batch[:2])

    plain, halting = penalty_free(state), models(state, config)
    halt = distance > 0.5 * largest
    assert 0 < halt.sum() < len(halt)
    np.testing.assert_allclose(halting[1], np.where(halt, batch.rewards.min() - 7, plain[1]), rtol=1e-5)
    np.testing.assert_array_equal(halting[2], np.where(halt, 1, plain[2]))
    equal(models(state, config.replace(threshold=1e30)), plain)
    # and whole updates, rollouts and buffer among them
    endless, free = small("morel", threshold=1e30), small("mopo", penalty_weight=0.0)
    ours, theirs = state, start("mopo", free)
    step, their_step = compiled(morel.update), compiled(mopo.update)
    for i in range(3):
        ours, _ = step(jax.random.key(i), ours, data, endless)
        theirs, _ = their_step(jax.random.key(i), theirs, data, free)
    equal(ours.buffer, theirs.buffer)
    equal(ours.learner, theirs.learner)


# COMBO


def test_the_conservative_loss_is_written_out_and_pushes_down_at_the_models_states():
    config = small("combo", cql_actions=3, cql_temperature=0.7, real_ratio=0.5)
    learner, batch = start("combo", config).learner, steps()
    actions, log_prob = compiled(combo.proposals)(KEY, learner, batch, config)
    assert actions.shape == (32, 9, 2)
    keys = jax.random.split(KEY, 3)
    for first, key, observations in ((0, keys[0], batch.observations), (3, keys[1], batch.next_observations)):
        expected = draw(key, learner.actor, np.repeat(observations[:, None], 3, 1))
        np.testing.assert_allclose(actions[:, first : first + 3], expected[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(log_prob[:, first : first + 3], expected[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(log_prob[:, 6:], np.log(0.25), rtol=1e-6)
    assert np.abs(actions[:, 6:]).max() <= 1
    q = np.stack([twin_q(learner.critic, batch.observations, np.asarray(actions[:, j])) for j in range(9)], -1)
    soft = 0.7 * np.log(np.exp((q - log_prob) / 0.7).sum(-1)).mean(1)
    real_q = twin_q(learner.critic, batch.observations[:16], batch.actions[:16]).mean(1)
    real = Steps(*(column[:16] for column in batch))
    loss = compiled(combo.conservative_loss)(learner.critic, actions, log_prob, batch, real, config)
    np.testing.assert_allclose(loss, (soft - real_q).sum(), rtol=1e-4)
    model_only = combo.pushed_down(batch, config.replace(conservative_states="model"))
    np.testing.assert_array_equal(model_only.observations, batch.observations[16:])


def test_combo_without_its_conservative_term_has_the_plain_critic_loss():
    config = small("combo", cql_weight=0.0)
    learner, batch = start("combo", config).learner, steps()
    target, drawn = jnp.ones(32), (jnp.zeros((32, 9, 2)), jnp.zeros((32, 9)))
    loss, _ = compiled(combo.critic_loss)(learner.critic, target, drawn, batch, config)
    plain, _ = compiled(soft_actor_critic.critic_loss)(learner.critic, target, batch, config)
    np.testing.assert_allclose(loss, plain, rtol=1e-6)


# MOBILE


def test_the_inconsistency_is_the_spread_over_elites_of_mean_next_values():
    config = small("mobile", penalty_samples=4)
    state, batch = start("mobile", config), steps(8)
    key_noise, key_act = jax.random.split(KEY)
    mean, log_var = (np.asarray(part)[[2, 0]][..., :3] for part in dynamics.predict(state.ensemble, *batch[:2], config))
    noise = np.asarray(jax.random.normal(key_noise, (4, 2, 8, 3)))
    following = batch.observations + mean + np.exp(0.5 * log_var) * noise
    actions, _ = draw(key_act, state.learner.actor, following)
    flat = twin_q(state.learner.critic_target, following.reshape(-1, 3), actions.reshape(-1, 2)).min(0)
    values = flat.reshape(4, 2, 8).mean(0)
    expected = np.abs(values[0] - values[1]) / 2**0.5  # the standard deviation of two numbers, with n - 1
    ours = compiled(mobile.inconsistency)(KEY, state, batch, config)
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4)


def test_mobile_without_its_penalty_is_soft_actor_critic_and_clamps_its_target():
    config = small("mobile", penalty_weight=0.0, clip_target=False)
    state, batch = start("mobile", config), steps()
    step = compiled(mobile.update_batch)
    ours, _ = step(KEY, state, batch, config)
    _, key_target, key_actor = jax.random.split(KEY, 3)

    @compiled
    def plain(learner, floor):
        target = jnp.maximum(soft_actor_critic.td_target(key_target, learner, batch, config), floor)
        learner, metrics = soft_actor_critic.critic_step(
            learner, lambda params: soft_actor_critic.critic_loss(params, target, batch, config), config
        )
        learner, _ = soft_actor_critic.actor_step(key_actor, learner, batch, jnp.float32(0.0), config)
        return soft_actor_critic.target_step(learner, config), metrics["critic_loss"]

    equal(ours.learner, plain(state.learner, -jnp.inf)[0])
    _, metrics = step(KEY, state, batch, config.replace(clip_target=True))
    np.testing.assert_allclose(metrics["critic_loss"], plain(state.learner, 0.0)[1], rtol=1e-5)


# RAMBO


def test_the_adversary_weighs_the_mixtures_density_by_the_standardised_advantage():
    config = small("rambo", adversary_weight=0.5, discount=0.9)
    state, row, real = start("rambo", config), steps(8), steps(8, seed=1)
    learner, ensemble = state.learner, state.ensemble
    mean, log_var = (np.asarray(part, float)[[2, 0]] for part in dynamics.predict(ensemble, *row[:2], config))
    sample = np.concatenate([row.next_observations - row.observations, row.rewards[:, None]], 1)
    density = np.exp(-0.5 * (sample - mean) ** 2 / np.exp(log_var)) / np.sqrt(2 * np.pi * np.exp(log_var))
    log_prob = np.log(density.prod(-1).mean(0))
    action_mean = np.split(mlp(learner.actor["params"]["MLP_0"], row.next_observations), 2, -1)[0]
    next_q = twin_q(learner.critic, row.next_observations, np.tanh(action_mean)).min(0)
    gain = row.rewards + 0.9 * (1 - row.terminations) * next_q - twin_q(learner.critic, *row[:2]).min(0)
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    three = Steps(*(np.broadcast_to(column, (3, *column.shape)) for column in real))
    params = ensemble.params["dynamics"]
    loss, metrics = compiled(rambo.adversary_loss)(params, ensemble, learner, row, three, config)
    np.testing.assert_allclose(metrics["adversary_loss"], np.mean(log_prob * gain), rtol=1e-3)
    inputs = np.concatenate(real[:2], 1)
    targets = np.concatenate([real.next_observations - real.observations, real.rewards[:, None]], 1)
    likelihood = [
        dynamics.dynamics_loss(jax.tree.map(lambda leaf, i=i: leaf[i], params), inputs, targets, config, 0.001)
        for i in range(3)
    ]
    np.testing.assert_allclose(loss, 0.5 * np.mean(log_prob * gain) + np.sum(likelihood), rtol=1e-4)


def test_the_model_of_rambo_changes_only_when_the_adversary_is_due():
    seen = population_after("rambo")
    params = [seen["policy", i][0].ensemble.params["dynamics"] for i in range(3)]
    before = seen["cloning", 1][0].ensemble.params["dynamics"]
    assert not np.allclose(jax.tree.leaves(before)[1], jax.tree.leaves(params[0])[1], atol=1e-5)
    equal(params[0], params[1], atol=0)
    assert not np.allclose(jax.tree.leaves(params[1])[1], jax.tree.leaves(params[2])[1], atol=1e-5)
