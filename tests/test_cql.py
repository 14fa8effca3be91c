"""CQL: CORL's numbers, the conservative term and its gradients written out, and what it reduces to."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import (
    ensemble_q,
    gaussian_actor,
    mlp,
    random_batch,
    random_dataset,
    random_state,
    tanh_gaussian_density,
)
from scipy.special import logsumexp

import offrl.algorithm
from offrl.algorithm import Spec
from offrl.algorithms import cql, sac_n
from offrl.data.dataset import Transitions
from offrl.runs.configuration import member_configs, option_defaults, tuned_values

GOLDEN = Path(__file__).parent / "golden" / "cql.npz"
KEY = jax.random.key(0)
SPEC = Spec(observation_dim=3, action_dim=2, updates=100)
UNIFORM = 2 * np.log(0.5)  # log-density of uniform actions, two dimensions


def small(**options) -> cql.Config:
    return cql.Config(hidden_dims=(16, 16), **{"sampled_actions": 4, **options})


def start(config: cql.Config, log_alpha: float = -0.3) -> cql.State:
    """Targets differ from the learned networks and the temperature from 1, as they do in the middle of training."""
    state = random_state(cql, config, SPEC, ("actor", "critic", "critic_target"))
    return state.replace(log_alpha=np.float32(log_alpha))


def random_samples(rows: int, n: int = 4, for_target: int = 1) -> cql.Samples:
    random = np.random.default_rng(1)
    return cql.Samples(
        actions=random.uniform(-1, 1, (3 * n, rows, 2)).astype(np.float32),
        log_densities=random.normal(-1, 1, (3 * n, rows)).astype(np.float32),
        next_actions=random.uniform(-1, 1, (for_target, rows, 2)).astype(np.float32),
        next_log_prob=random.normal(-1, 1, (for_target, rows)).astype(np.float32),
    )


def gaps(critic, observations, actions, samples: cql.Samples, importance_sampling=True, temperature=1.0, floor=-np.inf):
    """The conservative gap of each critic."""
    data_q = ensemble_q(critic, observations, actions)
    sampled_q = np.stack([ensemble_q(critic, observations, each) for each in samples.actions], 1)
    if importance_sampling:
        compared = sampled_q - samples.log_densities
    else:
        compared = np.concatenate([sampled_q, data_q[:, None]], 1)
    soft_maximum = temperature * logsumexp(compared / temperature, axis=1)
    return np.maximum(soft_maximum - data_q, floor).mean(1)


def test_the_critics_loss_and_gradient_match_the_reference_implementation():
    golden = np.load(GOLDEN)

    def critic(name: str) -> dict:
        def layers(which: int) -> dict:
            return {
                f"Dense_{i}": {
                    "kernel": golden[f"init/{name}{which}/{i}/w"],
                    "bias": golden[f"init/{name}{which}/{i}/b"],
                }
                for i in range(3)
            }

        return {"params": {"MLP_0": jax.tree.map(lambda *leaves: np.stack(leaves), layers(1), layers(2))}}

    columns = {name: golden[f"batch/{name}"] for name in Transitions._fields if f"batch/{name}" in golden}
    batch = Transitions(**columns, next_actions=columns["actions"], next_action_known=columns["rewards"])
    of = {
        name: golden[f"draw/{name}"].swapaxes(0, 1)
        for name in (
            "random_actions",
            "sampled_current_actions",
            "sampled_current_log_prob",
            "sampled_next_actions",
            "sampled_next_log_prob",
        )
    }
    samples = cql.Samples(
        actions=np.concatenate([of["random_actions"], of["sampled_current_actions"], of["sampled_next_actions"]]),
        log_densities=np.concatenate(
            [
                np.full((10, 32), 3 * np.log(0.5), np.float32),
                of["sampled_current_log_prob"],
                of["sampled_next_log_prob"],
            ]
        ),
        next_actions=golden["draw/next_actions"][None],
        next_log_prob=golden["draw/next_log_prob"][None],
    )
    config, spec = cql.Config(hidden_dims=(256, 256)), Spec(11, 3, 10)
    state = random_state(cql, config, spec, networks=())
    params, target = critic("critic"), critic("target_critic")
    assert jax.tree.map(jnp.shape, state.critic) == jax.tree.map(jnp.shape, params)
    state = state.replace(critic=params, critic_target=target)
    loss_and_gradient = jax.jit(jax.value_and_grad(cql.critic_loss, has_aux=True))
    (loss, metrics), gradient = loss_and_gradient(params, samples, state, batch, config)
    expect = {name.removeprefix("expect/"): golden[name] for name in golden if name.startswith("expect/")}
    for seen, expected in (
        (loss, expect["total"]),
        (metrics["td_loss"], expect["qf1_loss"] + expect["qf2_loss"]),
        (metrics["conservative_loss"], expect["cql_min_qf1_loss"] + expect["cql_min_qf2_loss"]),
        (metrics["gap"], (expect["cql_qf1_diff"] + expect["cql_qf2_diff"]) / 2),
    ):
        np.testing.assert_allclose(seen, expected, rtol=1e-4)
    for which in range(2):
        for i in range(3):
            layer = jax.tree.map(lambda leaf, which=which: leaf[which], gradient["params"]["MLP_0"][f"Dense_{i}"])
            prefix = f"grad/critic{which + 1}/{i}"
            np.testing.assert_allclose(jnp.linalg.norm(layer["kernel"]), expect[f"{prefix}/w_norm"], rtol=1e-4)
            np.testing.assert_allclose(layer["bias"], expect[f"{prefix}/b"], rtol=1e-4, atol=1e-5)


VARIANTS = {
    "importance sampled": {},
    "plain values": {"importance_sampling": False},
    "lagrange, gap": {"lagrange": "gap"},
    "lagrange, weighted gap": {"lagrange": "weighted_gap"},
    "entropy": {"backup": "entropy"},
    "max then min": {"backup": "max_then_min"},
    "min then max": {"backup": "min_then_max"},
}


def test_the_critics_loss_in_all_its_forms():
    data = random_dataset(lengths=(5, 4, 6), terminal=(True, False, True))
    batch = data.transitions()
    numbers = {"weight": 3.0, "temperature": 2.0, "gap_floor": 6.0, "lagrange_threshold": 0.4, "reward_clip": 0.5}
    configs = {name: small(**options, **numbers, discount=0.9) for name, options in VARIANTS.items()}
    state = start(small()).replace(log_multiplier=np.float32(0.7))
    last = state.critic_target["params"]["MLP_0"]["Dense_2"]
    last["bias"] -= ensemble_q(state.critic_target, batch.observations, batch.actions).mean(
        1, keepdims=True
    )  # they cross
    samples = {name: random_samples(15, for_target=4 if name.startswith("m") else 1) for name in VARIANTS}

    @jax.jit
    def losses(state, batch, samples, configs):
        return {
            name: cql.critic_loss(state.critic, samples[name], state, batch, config) for name, config in configs.items()
        }

    after = np.r_[1:6, 7:11, 12:18]  # the row of the observation after every step, as the episodes are stored
    alive = np.ones(15)
    alive[[4, 14]] = 0  # the ends of the first and the third episode; the second one ends at a time limit
    here, there = data.observations[after - 1], data.observations[after]
    q = ensemble_q(state.critic, here, data.actions)
    rewards = np.minimum(data.rewards, 0.5)
    assert (rewards < data.rewards).any()

    seen = losses(state, batch, samples, configs)
    for name, (loss, metrics) in seen.items():
        drawn = samples[name]
        next_q = np.stack([ensemble_q(state.critic_target, there, each) for each in drawn.next_actions], 1)
        if name == "max then min":
            next_value = next_q.max(1).min(0)
        elif name == "min then max":
            next_value = next_q.min(0).max(0)
        else:
            next_value = next_q[:, 0].min(0)
        if name == "entropy":
            next_value = next_value - np.exp(-0.3) * drawn.next_log_prob[0]
        td_loss = ((q - rewards - 0.9 * alive * next_value) ** 2).mean(1).sum()
        np.testing.assert_allclose(metrics["td_loss"], td_loss, rtol=1e-4, err_msg=name)

        plain = name == "plain values"
        unbounded = gaps(state.critic, here, data.actions, drawn, not plain, temperature=2.0)
        gap = gaps(state.critic, here, data.actions, drawn, not plain, temperature=2.0, floor=6.0)
        assert (gap > unbounded).any()
        conservative_loss = {
            "lagrange, gap": np.exp(0.7) * (3 * (gap - 0.4)).sum(),
            "lagrange, weighted gap": np.exp(0.7) * (3 * gap - 0.4).sum(),
        }.get(name, 3 * gap.sum())
        np.testing.assert_allclose(metrics["conservative_loss"], conservative_loss, rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(metrics["gap"], gap.mean(), rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(loss, td_loss + conservative_loss, rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(metrics["data_q"], q.mean(), rtol=1e-4, atol=1e-6)
    assert seen["max then min"][1]["td_loss"] != seen["min then max"][1]["td_loss"]


def test_the_conservative_term_has_a_gradient_through_the_sampled_actions_values():
    batch, samples, config = random_batch(), random_samples(32), small(weight=5.0)
    state = start(config)
    gradient = jax.jit(jax.grad(lambda *inputs: cql.critic_loss(*inputs)[0]))
    with_term, without = (
        gradient(state.critic, samples, state, batch, config.replace(weight=weight)) for weight in (5.0, 0.0)
    )
    random = np.random.default_rng(2)
    critic = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state.critic)
    direction = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), critic)
    seen = sum(
        ((a - b) * along).sum()
        for a, b, along in zip(*(jax.tree.leaves(tree) for tree in (with_term, without, direction)), strict=True)
    )

    def differences(function) -> float:
        """Derivative along the direction, in double precision."""
        ahead, behind = (
            function(jax.tree.map(lambda leaf, along, sign=sign: leaf + sign * 1e-6 * along, critic, direction))
            for sign in (1, -1)
        )
        return (ahead - behind) / 2e-6

    whole = differences(lambda critic: 5 * gaps(critic, batch.observations, batch.actions, samples).sum())
    np.testing.assert_allclose(seen, whole, rtol=1e-3)
    of_data = differences(lambda critic: -5 * ensemble_q(critic, batch.observations, batch.actions).mean(1).sum())
    assert abs(of_data - whole) > 0.1 * abs(whole)  # what were left without the sampled actions


@pytest.fixture(scope="module")
def sampled():
    """The actions sampled for a batch, and the gradient of the critics' loss in the policy's parameters."""
    config, batch = small(sampled_actions=200, backup="max_then_min"), random_batch(rows=8)
    state = start(config)

    def loss(actor):
        new = state.replace(actor=actor)
        samples = cql.sample_actions(jax.random.split(KEY, 4), new, batch, config)
        return cql.critic_loss(state.critic, samples, new, batch, config)[0], samples

    gradient, samples = jax.jit(jax.grad(loss, has_aux=True))(state.actor)
    return state, batch, jax.tree.map(np.asarray, samples), gradient


def test_the_policy_gets_no_gradient_from_the_critics_loss(sampled):
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(sampled[3]))


def test_actions_are_sampled_uniformly_and_from_the_policy_at_both_states(sampled):
    state, batch, samples, _ = sampled
    uniform, here, there = np.split(samples.actions, 3)
    densities = np.split(samples.log_densities, 3)
    np.testing.assert_allclose(densities[0], UNIFORM, rtol=1e-6)
    assert (np.abs(uniform) <= 1).all()
    np.testing.assert_allclose([uniform.mean(), uniform.std()], [0, 3**-0.5], atol=0.03)
    for actions, log_density, observations in (
        (here, densities[1], batch.observations),
        (there, densities[2], batch.next_observations),
        (samples.next_actions, samples.next_log_prob, batch.next_observations),
    ):
        mean, std = gaussian_actor(state.actor, observations)
        x = np.arctanh(actions.astype(np.float64))
        inside = (np.abs(actions) < 0.99).all(-1)  # further out single precision does not tell x
        np.testing.assert_allclose(log_density[inside], tanh_gaussian_density(x, mean, std)[inside], atol=2e-3)
        standardised = ((x - mean) / std)[np.abs(actions) < 0.9999]
        assert abs(np.median(standardised)) < 0.1
    assert len({array.tobytes() for array in (here, there, samples.next_actions)}) == 3


def test_with_weight_0_and_the_entropy_in_the_target_it_is_sac_n_with_two_critics():
    rates = {f"{name}_learning_rate": 1e-3 for name in ("alpha", "actor", "critic")}
    config = small(weight=0.0, lagrange="gap", backup="entropy", **rates)  # the program of the next test
    parent = sac_n.Config(num_critics=2, hidden_dims=(16, 16), **rates)
    ours, names = start(config), ("actor", "critic", "critic_target", "log_alpha")
    theirs = random_state(sac_n, parent, SPEC, ()).replace(**{name: getattr(ours, name) for name in names})
    step, parent_step = jax.jit(cql.update_batch), jax.jit(sac_n.update_batch)
    for i in range(10):
        batch, key = random_batch(seed=i), jax.random.key(i)
        ours, _ = step(key, ours, batch, config)
        theirs, _ = parent_step(key, theirs, batch, parent)
    for name in names:
        for one, other in zip(*(jax.tree.leaves(getattr(state, name)) for state in (ours, theirs)), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6, err_msg=name)


def test_the_multiplier_follows_the_threshold():
    step, batch = jax.jit(cql.update_batch), random_batch()
    for threshold, direction in ((-50.0, 1), (500.0, -1)):
        config = small(lagrange="gap", backup="entropy", lagrange_threshold=threshold, critic_learning_rate=1e-2)
        new, metrics = step(KEY, start(config), batch, config)
        assert metrics["multiplier"] == 1
        np.testing.assert_allclose(new.log_multiplier, direction * 1e-2, rtol=1e-3)


def test_at_first_the_policy_clones_the_datas_actions():
    batch = random_batch()
    loss = jax.jit(lambda *inputs: cql.actor_loss(*inputs)[0])
    state = start(small())
    mean, std = gaussian_actor(state.actor, batch.observations)
    x = mean + std * np.asarray(jax.random.normal(KEY, mean.shape), np.float64)
    entropy = np.exp(-0.3) * tanh_gaussian_density(x, mean, std)
    q = ensemble_q(state.critic, batch.observations, np.tanh(x)).min(0)
    cloned = tanh_gaussian_density(np.arctanh(batch.actions.astype(np.float64)), mean, std)
    for step, gain in ((4, cloned), (5, q)):
        seen = loss(state.actor, KEY, state.replace(step=np.int32(step)), batch, small(bc_steps=5))
        np.testing.assert_allclose(seen, (entropy - gain).mean(), rtol=1e-4)


def test_the_log_deviation_may_be_an_affine_function_and_the_activation_an_elu():
    observations = random_batch().observations
    config = small(affine_log_std=True)
    shapes = jax.eval_shape(lambda: cql.init(KEY, config, SPEC)).actor["params"]
    layers = start(small()).actor["params"]["MLP_0"]
    params = {"MLP_0": layers, "log_std_multiplier": np.float32(0.5), "log_std_offset": np.float32(-1.0)}
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    mean, log_std = jax.jit(cql.actor_network(config, 2).apply)({"params": params}, observations)
    expected_mean, direct = np.split(mlp(layers, observations), 2, -1)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_std, np.clip(0.5 * direct - 1, -20, 2), rtol=1e-4, atol=1e-5)

    curved = cql.actor_network(small(activation="elu"), 2)
    mean, _ = jax.jit(curved.apply)({"params": {"MLP_0": layers}}, observations)
    x = observations
    for i in range(2):
        x = x @ layers[f"Dense_{i}"]["kernel"] + layers[f"Dense_{i}"]["bias"]
        x = np.where(x > 0, x, np.exp(x) - 1)
    expected = (x @ layers["Dense_2"]["kernel"] + layers["Dense_2"]["bias"])[:, :2]
    np.testing.assert_allclose(mean, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "dataset", "expected"),
    [
        ("cql", "d4rl:antmaze-umaze-v2", {"gap_floor": -200.0, "backup": "min_then_max"}),
        ("cql", "d4rl:maze2d-large-v1", {"lagrange_threshold": 5.0, "weight": 10.0}),
        ("cql", "minari:D4RL/pen/human-v2", {"weight": 1.0}),
        ("cql", "d4rl:hopper-medium-v2", {}),
        ("sac_n", "d4rl:hopper-medium-v2", {"num_critics": 500}),
        ("sac_n", "d4rl:walker2d-medium-v2", {"num_critics": 20}),
        ("edac", "d4rl:pen-cloned-v1", {"backup": "max_online", "eta": 10.0}),
        ("edac", "d4rl:walker2d-medium-expert-v2", {"eta": 5.0}),
        ("edac", "d4rl:door-human-v1", {"num_critics": 50}),
    ],
)
def test_published_values_are_options(name, dataset, expected):
    values, source = tuned_values(name, dataset)
    assert expected.items() <= values.items()
    assert bool(source) == bool(values)
    options = option_defaults(offrl.algorithm.load(name))
    for key, value in values.items():
        outer, _, inner = key.partition(".")
        if inner:
            assert inner in options[outer]
            options[outer][inner] = value
        else:
            assert key in options
            options[key] = value
    ((config, _, _),) = member_configs(offrl.algorithm.load(name), options, [0])
    for key, value in expected.items():
        assert getattr(config, key) == value
