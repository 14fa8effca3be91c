"""Train the behaviour policies behind the built-in datasets: online SAC, in one file.

    python -m offrl.datasets.train_behaviour hopper --out runs/behaviour/hopper

Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) with a learned temperature, layer-normalised critics
(they keep the values bounded at this update ratio) and an actor step on every second critic step. Experience is
gathered in short blocks by a numpy copy of the actor; the updates for a block are one compiled scan.

At every evaluation the actor is written to `OUT/snapshots/STEP.npz` and a row to `OUT/curve.csv`; the whole training
state is kept in `OUT/state.msgpack`, and the same command continues from it. `python -m offrl.datasets.policies`
then chooses the policies that ship with the package from these snapshots.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import flax
import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Recipe(NamedTuple):
    """What differs between environments; everything else is shared."""

    env_id: str
    steps: int
    width: int = 256
    batch_size: int = 128
    discount: float = 0.99
    learning_rate: float = 3e-4
    updates_per_step: float = 0.5
    evaluate_every: int = 10_000
    warm_up: int = 5_000
    block: int = 64
    reward_scale: float = 1.0


RECIPES = {
    "hopper": Recipe("Hopper-v5", 1_500_000),
    "halfcheetah": Recipe("HalfCheetah-v5", 1_500_000),
    "walker2d": Recipe("Walker2d-v5", 1_500_000),
    "pendulum": Recipe("Pendulum-v1", 20_000, 64, evaluate_every=256, warm_up=1_000, updates_per_step=1.0,
                       reward_scale=0.1),
    "reacher": Recipe("Reacher-v5", 100_000, 64, evaluate_every=1_000, warm_up=2_000, updates_per_step=1.0),
    "swimmer": Recipe("Swimmer-v5", 250_000, 128, discount=0.999),
    "inverted_double_pendulum": Recipe("InvertedDoublePendulum-v5", 20_000, 64, evaluate_every=128, warm_up=2_000,
                                       updates_per_step=1.0, reward_scale=0.1),
}  # fmt: skip

POLYAK = 0.005
ACTOR_DELAY = 2
LOG_STD_RANGE = (-5.0, 2.0)
EVALUATION_EPISODES = 10


class Actor(nn.Module):
    """Mean and log standard deviation, [batch, 2 * action_dim], of a Gaussian that tanh squashes."""

    action_dim: int
    width: int

    @nn.compact
    def __call__(self, observations):
        x = nn.relu(nn.Dense(self.width)(observations))
        x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(2 * self.action_dim)(x)


class Critic(nn.Module):
    """Q(s, a), [batch]."""

    width: int

    @nn.compact
    def __call__(self, observations, actions):
        x = jnp.concatenate([observations, actions], -1)
        x = nn.relu(nn.LayerNorm()(nn.Dense(self.width)(x)))
        x = nn.relu(nn.LayerNorm()(nn.Dense(self.width)(x)))
        return nn.Dense(1)(x).squeeze(-1)


def split_gaussian(outputs):
    mean, log_std = jnp.split(outputs, 2, -1)
    low, high = LOG_STD_RANGE
    return mean, low + 0.5 * (high - low) * (jnp.tanh(log_std) + 1)


def sample_action(key, outputs):
    """An action in (-1, 1) and its log-density under the squashed Gaussian (appendix C of the paper)."""
    mean, log_std = split_gaussian(outputs)
    noise = jax.random.normal(key, mean.shape)
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    log_det = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), (log_prob - log_det).sum(-1)


@flax.struct.dataclass
class TrainState:
    actor: Any
    critic: Any
    critic_target: Any
    log_temperature: jax.Array
    actor_opt: Any
    critic_opt: Any
    temperature_opt: Any
    updates: jax.Array


def make_sac(observation_dim: int, action_dim: int, recipe: Recipe):
    actor = Actor(action_dim, recipe.width)
    critics = nn.vmap(
        Critic, in_axes=None, out_axes=0, axis_size=2, variable_axes={"params": 0}, split_rngs={"params": True}
    )(recipe.width)
    optimiser = optax.adam(recipe.learning_rate)

    def init(key) -> TrainState:
        key_actor, key_critic = jax.random.split(key)
        observations, actions = jnp.zeros((1, observation_dim)), jnp.zeros((1, action_dim))
        actor_params = actor.init(key_actor, observations)
        critic_params = critics.init(key_critic, observations, actions)
        return TrainState(
            actor=actor_params,
            critic=critic_params,
            critic_target=jax.tree.map(jnp.copy, critic_params),
            log_temperature=jnp.zeros(()),
            actor_opt=optimiser.init(actor_params),
            critic_opt=optimiser.init(critic_params),
            temperature_opt=optimiser.init(jnp.zeros(())),
            updates=jnp.zeros((), jnp.int32),
        )

    def update_critic(key, state, batch):
        observations, actions, rewards, next_observations, terminations = batch
        next_actions, next_log_probs = sample_action(key, actor.apply(state.actor, next_observations))
        next_q = critics.apply(state.critic_target, next_observations, next_actions).min(0)
        next_v = next_q - jnp.exp(state.log_temperature) * next_log_probs
        target = recipe.reward_scale * rewards + recipe.discount * (1 - terminations) * next_v

        def loss(params):
            return ((critics.apply(params, observations, actions) - target) ** 2).mean(1).sum()

        updates, critic_opt = optimiser.update(jax.grad(loss)(state.critic), state.critic_opt)
        critic_params = optax.apply_updates(state.critic, updates)
        return state.replace(
            critic=critic_params,
            critic_opt=critic_opt,
            critic_target=optax.incremental_update(critic_params, state.critic_target, POLYAK),
        )

    def update_actor(key, state, batch):
        observations = batch[0]

        def loss(params):
            actions, log_probs = sample_action(key, actor.apply(params, observations))
            q = critics.apply(state.critic, observations, actions).min(0)
            return (jnp.exp(state.log_temperature) * log_probs - q).mean(), log_probs.mean()

        grads, log_prob = jax.grad(loss, has_aux=True)(state.actor)
        updates, actor_opt = optimiser.update(grads, state.actor_opt)
        # the temperature rises while the entropy is below -action_dim, and falls above it
        slope = -(log_prob - action_dim) * jnp.exp(state.log_temperature)
        temperature_update, temperature_opt = optimiser.update(slope, state.temperature_opt)
        return state.replace(
            actor=optax.apply_updates(state.actor, updates),
            actor_opt=actor_opt,
            log_temperature=state.log_temperature + temperature_update,
            temperature_opt=temperature_opt,
        )

    def update(state, key_and_batch):
        key, batch = key_and_batch
        key_critic, key_actor = jax.random.split(key)
        state = update_critic(key_critic, state, batch)
        state = jax.lax.cond(
            state.updates % ACTOR_DELAY == 0, partial(update_actor, key_actor), lambda s, _: s, state, batch
        )
        return state.replace(updates=state.updates + 1), None

    @partial(jax.jit, donate_argnums=1)
    def update_block(key, state, batches):
        keys = jax.random.split(key, batches[2].shape[0])
        return jax.lax.scan(update, state, (keys, batches))[0]

    return init, update_block


class NumpyActor:
    """The actor in numpy, three matrix products: for one observation, faster than any call of a compiled program."""

    def __init__(self, params):
        layers = [params["params"][f"Dense_{i}"] for i in range(3)]
        self.layers = [(np.asarray(layer["kernel"]), np.asarray(layer["bias"])) for layer in layers]

    def __call__(self, observation, generator: np.random.Generator | None):
        """Action in (-1, 1): a sample, or the tanh of the mean if no generator is given."""
        x = observation.astype(np.float32)
        for weight, bias in self.layers[:-1]:
            x = np.maximum(x @ weight + bias, 0)
        weight, bias = self.layers[-1]
        mean, log_std = np.split(x @ weight + bias, 2)
        if generator is not None:
            low, high = LOG_STD_RANGE
            std = np.exp(low + 0.5 * (high - low) * (np.tanh(log_std) + 1))
            mean = mean + std * generator.standard_normal(mean.shape, np.float32)
        return np.tanh(mean)


class Replay:
    """Every transition since the start, as flat arrays."""

    def __init__(self, capacity: int, observation_dim: int, action_dim: int):
        self.size = 0
        self.columns = [
            np.zeros((capacity, observation_dim), np.float32),
            np.zeros((capacity, action_dim), np.float32),
            np.zeros(capacity, np.float32),
            np.zeros((capacity, observation_dim), np.float32),
            np.zeros(capacity, np.float32),
        ]

    def add(self, *row):
        for column, value in zip(self.columns, row, strict=True):
            column[self.size] = value
        self.size += 1

    def sample(self, generator, updates: int, batch_size: int):
        rows = generator.integers(self.size, size=(updates, batch_size))
        return tuple(column[rows] for column in self.columns)


def make_env(env_id: str):
    return gymnasium.wrappers.RescaleAction(gymnasium.make(env_id), np.float32(-1), np.float32(1))


def evaluate(env, policy: NumpyActor, seed: int):
    returns, lengths = [], []
    for episode in range(EVALUATION_EPISODES):
        observation, _ = env.reset(seed=seed + episode)
        total, length, done = 0.0, 0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy(observation, None))
            total, length, done = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
    return np.array(returns), np.array(lengths)


def write_whole(path: Path, write) -> None:
    """Write a temporary file and rename it: a killed process leaves the old file or the new one, never a part."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        write(file)
    part.replace(path)


def train(recipe: Recipe, seed: int, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "snapshots").mkdir(exist_ok=True)
    env, evaluation_env = make_env(recipe.env_id), make_env(recipe.env_id)
    observation_dim, action_dim = env.observation_space.shape[0], env.action_space.shape[0]
    init, update_block = make_sac(observation_dim, action_dim, recipe)
    state = init(jax.random.key(seed))
    replay = Replay(recipe.steps + recipe.block, observation_dim, action_dim)
    step = 0

    if (out / "state.msgpack").exists():
        saved = flax.serialization.msgpack_restore((out / "state.msgpack").read_bytes())
        state, step = flax.serialization.from_state_dict(state, saved["state"]), int(saved["step"])
        replay.size = step
        for column, name in zip(replay.columns, sorted(saved["replay"]), strict=True):
            column[:step] = saved["replay"][name]
        print(f"continuing at step {step}", flush=True)
    else:
        with (out / "curve.csv").open("w", newline="") as file:
            csv.writer(file).writerow(["step", "seconds", "episode", "return", "length"])

    generator = np.random.default_rng((seed, step))
    policy = NumpyActor(state.actor)
    observation, _ = env.reset(seed=seed + step)
    started = time.time()
    owed = 0.0
    while step < recipe.steps:
        for _ in range(recipe.block):
            if step < recipe.warm_up:
                action = generator.uniform(-1, 1, action_dim).astype(np.float32)
            else:
                action = policy(observation, generator)
            next_observation, reward, terminated, truncated, _ = env.step(action)
            replay.add(observation, action, reward, next_observation, terminated)
            step += 1
            observation = env.reset()[0] if terminated or truncated else next_observation
        owed += recipe.block * recipe.updates_per_step
        if step >= recipe.warm_up:
            updates, owed = int(owed), owed - int(owed)
            batches = replay.sample(generator, updates, recipe.batch_size)
            state = update_block(jax.random.fold_in(jax.random.key(seed + 1), step), state, batches)
            policy = NumpyActor(state.actor)
        else:
            owed = 0.0

        if step % recipe.evaluate_every < recipe.block:
            returns, lengths = evaluate(evaluation_env, policy, 10_000 + step)
            seconds = time.time() - started
            with (out / "curve.csv").open("a", newline="") as file:
                for i, (r, n) in enumerate(zip(returns, lengths, strict=True)):
                    csv.writer(file).writerow([step, round(seconds, 1), i, round(r, 3), n])
            arrays = {f"{i}/{name}": value for i, layer in enumerate(policy.layers)
                      for name, value in zip("wb", layer, strict=True)}  # fmt: skip
            write_whole(out / "snapshots" / f"{step:08d}.npz", partial(np.savez, **arrays))
            print(f"{recipe.env_id} step {step:>8} return {returns.mean():9.1f} +- {returns.std():7.1f} length "
                  f"{lengths.mean():6.1f} temperature {float(jnp.exp(state.log_temperature)):.4f} "
                  f"{seconds:7.0f} s", flush=True)  # fmt: skip
            if step % (10 * recipe.evaluate_every) < recipe.block:
                saved = {"state": flax.serialization.to_state_dict(jax.device_get(state)), "step": step,
                         "replay": {str(i): column[:step] for i, column in enumerate(replay.columns)}}  # fmt: skip
                write_whole(out / "state.msgpack", lambda f, s=saved: f.write(flax.serialization.msgpack_serialize(s)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m offrl.datasets.train_behaviour", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("env", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, required=True, help="folder for snapshots, curve and training state")
    parser.add_argument("--seed", type=int, default=0)
    for field, kind in (("steps", int), ("updates_per_step", float), ("batch_size", int), ("discount", float),
                        ("learning_rate", float)):  # fmt: skip
        parser.add_argument("--" + field.replace("_", "-"), type=kind, help="instead of the recipe's value")
    arguments = vars(parser.parse_args())
    name, out, seed = arguments.pop("env"), arguments.pop("out"), arguments.pop("seed")
    changed = {key: value for key, value in arguments.items() if value is not None}
    train(RECIPES[name]._replace(**changed), seed, out)


if __name__ == "__main__":
    main()
