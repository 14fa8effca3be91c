"""Names to datasets: files in every format, Minari stores, D4RL's layout, and what is said where one cannot be read."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pandas as pd
import pytest
from test_data_checks import found, log, save

from offrl.data import Dataset, check_environment, load
from offrl.data.flatten import flatten_observation
from offrl.errors import UserError
from offrl.playing.simulators import spaces

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
BOX = {"action_low": -1, "action_high": 1, "quiet": True}
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not here")


def same(one: Dataset, other: Dataset) -> bool:
    return one.fingerprint == other.fingerprint


def write_hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            file[key] = value
    return path


def test_the_same_log_is_the_same_dataset_in_every_format(tmp_path):
    arrays = log()
    reference = load(save(tmp_path, arrays), **BOX)
    write_hdf5(tmp_path / "log.h5", arrays)
    flat = {key: value for key, value in arrays.items() if value.ndim == 1}
    wide = flat | {f"{key}_{i}": column for key in arrays.keys() - flat for i, column in enumerate(arrays[key].T)}
    pd.DataFrame(wide).to_csv(tmp_path / "log.csv", index=False)
    pd.DataFrame(flat | {key: list(arrays[key]) for key in arrays.keys() - flat}).to_parquet(tmp_path / "log.parquet")
    for name in ("log.h5", "log.csv", "log.parquet"):
        assert same(load(f"file:{tmp_path / name}", **BOX), reference), name
    assert same(load(str(tmp_path / "log.h5"), **BOX), reference)  # a plain path will do


def test_columns_say_what_is_what(tmp_path):
    arrays = log()
    table = {
        "angle": arrays["observations"][:, 0],
        "speed": arrays["observations"][:, 1],
        "torque_0": arrays["actions"][:, 0],
        "torque_1": arrays["actions"][:, 1],
        "score": arrays["rewards"],
        "fell": arrays["terminals"].astype(int),
        "trial": [0] * 4 + [1] * 3,
    }
    pd.DataFrame(table).to_csv(tmp_path / "log.csv", index=False)
    columns = {
        "observations": ["angle", "speed"],
        "actions": "torque",
        "rewards": "score",
        "terminations": "fell",
        "episode_ids": "trial",
    }
    data = load(f"file:{tmp_path / 'log.csv'}", columns=columns, **BOX)
    assert same(data, load(save(tmp_path, log(next_observations=None)), **BOX))
    with pytest.raises(UserError, match=r"columns.rewards='scor' is not in the file; did you mean score"):
        load(f"file:{tmp_path / 'log.csv'}", columns=columns | {"rewards": "scor"}, **BOX)
    with pytest.raises(UserError, match=r"columns names 'reward': did you mean rewards"):
        load(f"file:{tmp_path / 'log.csv'}", columns={"reward": "score"}, **BOX)


def test_usual_names_of_columns_are_understood(tmp_path):
    arrays = log(next_observations=None)
    names = {
        "observations": "obs",
        "actions": "action",
        "rewards": "reward",
        "terminals": "dones",
        "timeouts": "truncated",
    }
    data = load(save(tmp_path, {names[key]: value for key, value in arrays.items()}), **BOX)
    assert same(data, load(save(tmp_path, arrays), **BOX))


def test_episode_terminals_end_an_episode_without_terminating_it(tmp_path):
    """A replay log of another library: all ends in episode_terminals, the last next-observation is missing."""
    arrays = log(next_observations=None, timeouts=None)
    arrays["terminals"][:] = False
    arrays |= {"episode_terminals": np.array([0, 0, 0, 1, 0, 0, 1.0]), "discrete_action": np.array(False)}
    path = write_hdf5(tmp_path / "log.h5", arrays)
    data = load(f"file:{path}", **BOX)
    assert data.lengths.tolist() == [4, 3]
    assert not data.terminations.any()
    assert data.truncations[data.ends].all()
    assert not data.final_observation_known.any()
    assert len(data.transitions().rewards) == 5
    with h5py.File(path, "a") as file:
        file["discrete_action"][()] = True
    with pytest.raises(UserError, match="discrete_action is set, but its actions are not whole numbers"):
        load(f"file:{path}", **BOX)


def test_episode_lengths_end_episodes(tmp_path):
    arrays = log(next_observations=None, timeouts=None, terminals=None, episode_lengths=np.array([4, 3]))
    data = load(save(tmp_path, arrays), **BOX)
    assert data.lengths.tolist() == [4, 3]
    assert found(data, "no column marks terminations")


@pytest.mark.parametrize("name", ["log.h5", "log.npz", "log.parquet", "log.csv"])
def test_empty_and_truncated_files_are_named_and_refused(tmp_path, name):
    path = tmp_path / name
    path.touch()
    with pytest.raises(UserError, match=f"{name} is empty"):
        load(f"file:{path}")
    whole = write_hdf5(tmp_path / "whole.h5", {"observations": np.zeros((5000, 3))}).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{name} cannot be read") as caught:
        load(f"file:{path}")
    assert "\n" not in str(caught.value)


def test_pickled_objects_are_not_opened(tmp_path):
    np.savez(tmp_path / "log.npz", observations=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UserError, match="pickled objects, which are not opened"):
        load(f"file:{tmp_path / 'log.npz'}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minary:x", "did you mean minari"),
        ("hopper", "a name starts with builtin:"),
        ("file:missing.h5", "there is no file missing.h5"),
        ("file:.", "is a folder"),
        ("minari:", "names nothing after minari:"),
        ("builtin:hopper", "builtin:ENV/RECIPE"),
        ("d4rl:hoper-medium-v2", "did you mean hopper-medium-v2"),
        ("d4rl:missing.hdf5", "there is no file missing.hdf5"),
    ],
)
def test_bad_names_answer_in_one_line(name, message):
    with pytest.raises(UserError, match=message):
        load(name)


def test_an_unknown_environment_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"env=Hoper-v5: cannot be made: .* Did you mean: `Hopper`"):
        load(save(tmp_path, log()), env_id="Hoper-v5", spaces=spaces)


def test_a_named_environment_gives_action_box_and_time_limit(tmp_path):
    arrays = log(actions=np.random.default_rng(0).uniform(-2, 2, (7, 1)))
    data = load(save(tmp_path, arrays), env_id="Pendulum-v1", spaces=spaces, quiet=True)
    assert (data.action_low.tolist(), data.action_high.tolist(), data.time_limit) == ([-2], [2], 200)


# Minari


def minari_dataset(dataset_id: str, observation_space: Any, action_space: Any, buffers: list, **options: Any) -> None:
    minari.create_dataset_from_buffers(
        dataset_id, buffers, observation_space=observation_space, action_space=action_space, **options
    )


def buffer(observations: Any, actions: np.ndarray, terminated: bool, **changes: Any):
    steps = len(actions)
    last = np.arange(steps) == steps - 1
    values: dict[str, Any] = {
        "observations": observations,
        "actions": actions,
        "rewards": np.arange(steps, dtype=float),
        "terminations": last & terminated,
        "truncations": last & (not terminated),
    }
    return minari.data_collector.EpisodeBuffer(**(values | changes))


def box(size: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-1, 1, (size,), np.float32)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def actions_of(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, 2)).astype(np.float32)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.filterwarnings("ignore")
def test_minari_episodes_keep_the_observation_after_the_last_action(store, data_format):
    observations = [
        np.random.default_rng(i).uniform(-1, 1, (n + 1, 3)).astype(np.float32) for i, n in enumerate((4, 2))
    ]
    infos: list[dict] = [{}, {}]
    if data_format == "hdf5":  # Minari 0.5.4 cannot read back infos from its Arrow files
        infos = [{"infos": {"success": np.array(flags, bool)}} for flags in ([0, 0, 1, 0, 0], [0, 0, 0])]
    buffers = [
        buffer(observations[0], actions_of(4), True, **infos[0]),
        buffer(observations[1], actions_of(2, 1), False, **infos[1]),
    ]
    options = {"env": "Pendulum-v1", "ref_min_score": 1.0, "ref_max_score": 3.0, "data_format": data_format}
    minari_dataset("test/tiny-v0", box(3), box(2), buffers, **options)
    data = load("minari:test/tiny-v0", quiet=True)
    np.testing.assert_array_equal(data.observations, np.concatenate(observations))
    assert data.lengths.tolist() == [4, 2]
    assert data.terminations[data.ends].tolist() == [True, False]
    assert (data.successes is None) == (data_format == "arrow")
    assert data.successes is None or data.successes.tolist() == [True, False]
    assert (data.env_id, data.time_limit) == ("Pendulum-v1", 200)
    assert data.reference is not None
    assert data.reference.normalise(2.0) == 50


@pytest.mark.filterwarnings("ignore")
def test_goal_conditioned_observations_are_flattened_in_sorted_order(store):
    space = gymnasium.spaces.Dict({"observation": box(2), "desired_goal": box(1), "achieved_goal": box(1)})
    observations = {
        "observation": np.full((4, 2), 0.3, np.float32),
        "desired_goal": np.full((4, 1), 0.2, np.float32),
        "achieved_goal": np.full((4, 1), 0.1, np.float32),
    }
    minari_dataset("test/goal-v0", space, box(2), [buffer(observations, actions_of(3), False)])
    data = load("minari:test/goal-v0", quiet=True)
    np.testing.assert_allclose(data.observations[0], [0.1, 0.2, 0.3, 0.3])
    assert data.observation_layout == ("achieved_goal[1]", "desired_goal[1]", "observation[2]")


@pytest.mark.filterwarnings("ignore")
def test_discrete_actions_are_counted_by_their_space(store):
    episode = buffer(np.eye(4, 3, dtype=np.float32), np.array([0, 1, 1]), False)
    minari_dataset("test/discrete-v0", box(3), gymnasium.spaces.Discrete(4), [episode])
    data = load("minari:test/discrete-v0", quiet=True)
    assert (data.discrete, data.action_dim, data.actions.tolist()) == (True, 4, [[0], [1], [1]])
    minari_dataset("test/from-one-v0", box(3), gymnasium.spaces.Discrete(4, start=1), [episode])
    with pytest.raises(UserError, match="count from 1; only from 0"):
        load("minari:test/from-one-v0")
    switches = buffer(np.eye(4, 3, dtype=np.float32), np.zeros((3, 2), np.int8), False)
    minari_dataset("test/switches-v0", box(3), gymnasium.spaces.MultiBinary(2), [switches])
    with pytest.raises(UserError, match=r"minari:test/switches-v0 has .* \(MultiBinary\)"):
        load("minari:test/switches-v0")


@pytest.mark.filterwarnings("ignore")
def test_a_minari_episode_that_goes_on_after_its_end_is_cut_there(store):
    observations = np.arange(6, dtype=np.float32)[:, None] / 10
    flags = np.array([False, True, False, False, False])
    episode = buffer(observations, actions_of(5), False, terminations=flags)
    minari_dataset("test/inside-v0", box(1), box(2), [episode])
    data = load("minari:test/inside-v0", quiet=True)
    assert data.lengths.tolist() == [2, 3]
    assert data.terminations[data.ends].tolist() == [True, False]
    assert data.final_observation_known.tolist() == [False, True]  # was the environment reset there?
    np.testing.assert_allclose(data.observations[:, 0] * 10, [0, 1, 1, 2, 3, 4, 5], rtol=1e-6)
    kept = load("minari:test/inside-v0", trust_next_observations=True, quiet=True)
    np.testing.assert_allclose(kept.observations[:, 0] * 10, [0, 1, 2, 2, 3, 4, 5], rtol=1e-6)
    assert found(data, "1 steps inside an episode are marked as its end, the first in episode 0, step 1")


@pytest.mark.filterwarnings("ignore")
def test_a_half_made_or_damaged_minari_dataset_is_refused(store):
    episodes = [buffer(np.zeros((4, 3), np.float32), actions_of(3), False) for _ in range(2)]
    minari_dataset("test/broken-v0", box(3), box(2), episodes)
    path = store / "test/broken-v0/data/main_data.hdf5"
    with h5py.File(path, "a") as file:
        del file["episode_1"]
    with pytest.raises(UserError, match=r"says 2 episodes but .* has 1"):
        load("minari:test/broken-v0")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"main_data.hdf5 cannot be read, it is truncated or damaged"):
        load("minari:test/broken-v0")
    path.write_bytes(b"")
    with pytest.raises(UserError, match="missing or empty"):
        load("minari:test/broken-v0")


def test_a_missing_minari_dataset_says_what_is_missing_and_how_to_get_it(store, monkeypatch):
    asked = []

    def no_network(dataset_id):
        asked.append(dataset_id)
        raise OSError("Name or service not known\nmore")

    monkeypatch.setattr(minari, "download_dataset", no_network)
    with pytest.raises(
        UserError, match=r"Name or service not known.*`minari download hf://owner/D4RL/pen-v0`"
    ) as caught:
        load("minari:hf://owner/D4RL/pen-v0")
    assert asked == ["hf://owner/D4RL/pen-v0"]
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_builtin_data_are_read_from_minari_under_their_own_name(store, monkeypatch):
    def ensure(env, recipe, steps):
        assert (env, recipe, steps) == ("pendulum", "medium", 3000)
        episode = buffer(np.ones((4, 3), np.float32), actions_of(3), False)
        minari_dataset("offrl/pendulum/medium-3k-v0", box(3), box(2), [episode])

    import offrl.datasets.loading

    module = types.SimpleNamespace(ensure=ensure)
    monkeypatch.setitem(sys.modules, "offrl.datasets.builtin", module)
    monkeypatch.setattr(offrl.datasets, "builtin", module, raising=False)
    with pytest.raises(UserError, match=r"not on this machine; make it with `.* make pendulum medium --steps 3000`"):
        load("builtin:pendulum/medium", steps=3000)
    data = offrl.datasets.loading.load("builtin:pendulum/medium", steps=3000, quiet=True)
    assert data.name == "builtin:pendulum/medium"
    assert data.steps == 3


# D4RL's layout


def d4rl_file(folder: Path, stem: str, lengths=(4, 3, 2), sizes=(11, 3), **changes: Any) -> str:
    arrays = log(lengths)
    steps = sum(lengths)
    random = np.random.default_rng(0)
    arrays["observations"] = random.normal(size=(steps, sizes[0])).astype(np.float32)
    arrays["next_observations"] = np.concatenate([arrays["observations"][1:], arrays["observations"][:1]]).copy()
    ends = np.cumsum(lengths) - 1
    arrays["next_observations"][ends] = 7.0
    arrays["actions"] = random.uniform(-1, 1, (steps, sizes[1])).astype(np.float32)
    arrays["infos/qpos"] = random.normal(size=(steps, 2))
    for key, value in changes.items():
        if value is None:
            del arrays[key]
        else:
            arrays[key] = value
    return f"d4rl:{write_hdf5(folder / f'{stem}.hdf5', arrays)}"


def test_d4rl_next_observations_are_those_stored_and_the_timeout_row_stays(tmp_path):
    data = load(d4rl_file(tmp_path, "hopper-medium-v2"), quiet=True)
    assert data.lengths.tolist() == [4, 3, 2]
    view = data.transitions()
    assert len(view.rewards) == 9  # d4rl's qlearning_dataset drops the timeout row and the last
    assert (view.next_observations[[3, 6, 8]] == 7).all()
    np.testing.assert_array_equal(view.terminations, [0, 0, 0, 1, 0, 0, 0, 0, 1])


def test_d4rl_without_stored_next_observations_never_uses_the_following_episode(tmp_path):
    data = load(d4rl_file(tmp_path, "hopper-medium-v2", next_observations=None), quiet=True)
    assert data.final_observation_known.tolist() == [False] * 3
    np.testing.assert_array_equal(data.transition_rows, [0, 1, 2, 3, 4, 5, 7, 8])
    np.testing.assert_array_equal(data.dynamics_rows, [0, 1, 2, 4, 5, 7])


def test_d4rl_without_timeouts_is_cut_at_the_limit_of_its_environment(tmp_path):
    name = d4rl_file(
        tmp_path,
        "pen-human-v0",
        (150, 120),
        (45, 24),
        next_observations=None,
        timeouts=None,
        terminals=np.arange(270) == 149,
    )
    data = load(name, quiet=True)
    assert data.lengths.tolist() == [100, 50, 100, 20]
    assert data.terminations[data.ends].tolist() == [False, True, False, False]
    assert found(data, "cut every 100 steps")


def test_d4rl_names_give_environment_and_reference(tmp_path):
    data = load(d4rl_file(tmp_path, "hopper_medium-v2"), quiet=True)  # the name of the file on D4RL's server
    assert data.env_id == "Hopper-v5"
    assert data.reference is not None
    assert round(data.reference.expert, 1) == 3234.3
    other = load(d4rl_file(tmp_path, "mine"), quiet=True)
    assert (other.env_id, other.reference) == (None, None)
    assert found(other, "not the name of a D4RL file")


@pytest.mark.parametrize(
    ("stem", "sizes"), [("ant-medium-v2", (111, 8)), ("kitchen-partial-v0", (60, 9)), ("hopper-medium-v2", (12, 3))]
)
def test_d4rl_environments_that_observe_something_else_are_not_guessed(tmp_path, stem, sizes):
    data = load(d4rl_file(tmp_path, stem, sizes=sizes), quiet=True)
    assert data.env_id is None
    assert data.reference is not None
    assert found(data, "no environment to evaluate in")


def test_unmarked_teleports_of_antmaze_cut_the_episode(tmp_path):
    observations = np.zeros((9, 29), np.float32)
    observations[:, 0] = [0, 0.1, 10, 10.1, 0, 0.1, 0.2, 0, 0.1]
    name = d4rl_file(tmp_path, "antmaze-umaze-v0", sizes=(29, 8), observations=observations, next_observations=None)
    data = load(name, quiet=True)
    assert data.lengths.tolist() == [2, 2, 3, 2]
    assert found(data, "jumps by more than 2 m in 1 rows that no flag marks, the first is row 1")


def test_a_file_in_another_layout_is_not_taken_for_d4rl(tmp_path):
    with pytest.raises(UserError, match="not in D4RL's layout: terminals missing"):
        load(d4rl_file(tmp_path, "hopper-medium-v2", terminals=None))


# Real data


@needs_shared
@pytest.mark.parametrize(
    ("name", "episodes", "steps", "mean_return"),
    [("trpo/hopper/mixed-v0", 170, 100_595, 1721.5), ("trpo/hopper/medium-v0", 108, 100_698, 2583.4)],
)
def test_third_party_hopper_loads(monkeypatch, name, episodes, steps, mean_return):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(SHARED / "minari"))
    data = load(f"minari:{name}", quiet=True)
    assert (data.episodes, data.steps, data.warnings) == (episodes, steps, ())
    assert data.returns.mean() == pytest.approx(mean_return, abs=0.1)
    assert len(data.transitions().rewards) == steps


@needs_shared
def test_published_door_human_loads(monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(SHARED / "minari"))
    data = load("minari:D4RL/door/human-v2", quiet=True)
    assert (data.episodes, data.steps, data.observation_dim, data.action_dim) == (25, 6729, 39, 28)
    assert data.successes is not None
    assert data.successes.sum() == 8
    assert data.reference is not None
    assert round(data.reference.expert, 1) == 2940.6


@needs_shared
def test_a_replay_log_of_another_library_loads():
    data = load(f"file:{SHARED / 'logs/pendulum_v1.1.0.h5'}", env_id="Pendulum-v1", spaces=spaces, quiet=True)
    assert (data.episodes, data.steps, len(data.transition_rows)) == (500, 99_500, 99_000)
    assert not data.terminations.any()


@needs_shared
def test_a_public_expert_log_loads_and_its_time_limit_is_no_termination():
    data = load(
        f"file:{SHARED / 'logs/expert_data_Hopper-v4.npz'}",
        env_id="Hopper-v5",
        spaces=spaces,
        clip_actions=True,
        quiet=True,
    )
    assert (data.episodes, data.steps) == (2, 2000)
    assert not data.terminations.any()
    assert found(data, "all 2 episodes that reach the time limit of 1000 steps")


@pytest.mark.filterwarnings("ignore")
def test_one_step_episodes_without_a_next_observation_are_refused_in_every_format(tmp_path, store):
    arrays = log((1,) * 6, next_observations=None, terminals=np.zeros(6, bool), timeouts=np.ones(6, bool))
    vectors = {key: list(value) if value.ndim == 2 else value for key, value in arrays.items()}
    wide = {key: value for key, value in arrays.items() if value.ndim == 1}
    wide |= {f"{key}_{i}": arrays[key][:, i] for key in ("observations", "actions") for i in range(2)}
    write_hdf5(tmp_path / "log.hdf5", arrays)
    pd.DataFrame(vectors).to_parquet(tmp_path / "log.parquet")
    pd.DataFrame(wide).to_csv(tmp_path / "log.csv", index=False)
    stuck = [
        buffer(np.full((2, 2), i, np.float32), actions_of(1, i), False, truncations=np.array([True])) for i in range(6)
    ]
    minari_dataset("test/stuck-v0", box(2), box(2), stuck)  # has a next observation, but a copy of the one before
    files = [f"file:{tmp_path / 'log'}.{suffix}" for suffix in ("hdf5", "parquet", "csv")]
    for name in (save(tmp_path, arrays), *files, f"d4rl:{tmp_path / 'log.hdf5'}", "minari:test/stuck-v0"):
        with pytest.raises(UserError, match=f"^{re.escape(name)}: no row is left to learn from: all 6") as caught:
            load(name, **BOX)
        assert "\n" not in str(caught.value)
    assert load("minari:test/stuck-v0", trust_next_observations=True, **BOX).transition_rows.tolist() == list(range(6))


@pytest.mark.parametrize("source", ["npz", "hdf5", "d4rl", "csv"])
def test_columns_of_the_users_own_are_beside_the_views(tmp_path, source):
    arrays = log() | {"cost": np.arange(7.0), "label": np.array([1, 2, 3, 4, 5, 6, 7])}
    name = {"npz": save(tmp_path, arrays), "d4rl": f"d4rl:{tmp_path / 'log.hdf5'}"}.get(
        source, f"file:{tmp_path / 'log'}.{source}"
    )
    write_hdf5(tmp_path / "log.hdf5", arrays)
    flat = {key: value for key, value in arrays.items() if value.ndim == 1}
    flat |= {f"{key}_{i}": column for key in arrays.keys() - flat for i, column in enumerate(arrays[key].T)}
    pd.DataFrame(flat).to_csv(tmp_path / "log.csv", index=False)
    data = load(name, columns={"costs": "cost", "labels": "label"}, **BOX)
    assert (data.extra["costs"].dtype, data.extra["labels"].dtype) == (np.float32, np.int32)
    assert data.transitions(extra=("costs",)).extra["costs"].tolist() == list(range(7))
    assert data.transitions().extra == {}
    assert data.select_episodes([1]).extra["labels"].tolist() == [5, 6, 7]
    assert data.fingerprint != load(name, columns={"costs": "cost"}, **BOX).fingerprint
    with pytest.raises(UserError, match=r"no column cost was loaded \(there are: costs, labels\).*data.columns.cost="):
        data.transitions(extra=("cost",))
    with pytest.raises(UserError, match=r"columns.costs='costs' is not in the file; did you mean cost"):
        load(name, columns={"costs": "costs"}, **BOX)


def test_values_given_once_per_episode_hold_for_all_its_steps(tmp_path):
    data = load(save(tmp_path, log() | {"quality": np.array([0.5, 2.0])}), columns={"quality": "quality"}, **BOX)
    assert data.extra["quality"].tolist() == [0.5] * 4 + [2.0] * 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(5.0), r"columns.costs has 5 rows, but there are 7 steps in 2 episodes"),
        (np.array([0, 1, 2, 3, 4, np.nan, 6]), r"columns.costs holds nan in 1 rows, the first in episode 1, step 1"),
        (np.array(["a"] * 7), r"columns.costs is of type <U1, not numbers"),
    ],
)
def test_columns_of_the_users_own_are_checked_like_the_others(tmp_path, values, message):
    with pytest.raises(UserError, match=message):
        load(save(tmp_path, log() | {"cost": values}), columns={"costs": "cost"}, **BOX)


@pytest.mark.filterwarnings("ignore")
def test_infos_of_minari_episodes_are_columns_without_that_of_the_reset(store):
    infos = {"cost": np.array([9.0, 0.1, 0.2, 0.3]), "force": np.arange(6.0).reshape(3, 2)}
    observations = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    episode = buffer(observations, actions_of(3), False, infos=infos)
    minari_dataset("test/costs-v0", box(3), box(2), [episode])
    data = load("minari:test/costs-v0", columns={"costs": "cost", "forces": "force"}, quiet=True)
    np.testing.assert_allclose(data.extra["costs"], [0.1, 0.2, 0.3])
    assert data.extra["forces"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(UserError, match=r"episode 0 has no info 'costs' to take as a column; did you mean cost"):
        load("minari:test/costs-v0", columns={"costs": "costs"}, quiet=True)
    with pytest.raises(UserError, match=r"columns\.rewards is for file: datasets"):
        load("minari:test/costs-v0", columns={"rewards": "cost"}, quiet=True)


@pytest.mark.filterwarnings("ignore")
def test_discrete_observations_and_parts_are_one_hot_as_the_simulators_make_them(store):
    spaces = gymnasium.spaces
    space = spaces.Dict({"speed": box(2), "gear": spaces.Discrete(3, start=1), "at": spaces.Tuple([box(1), box(1)])})
    observed = {
        "speed": np.arange(8, dtype=np.float32).reshape(4, 2) / 8,
        "gear": np.array([1, 3, 2, 1]),
        "at": tuple(np.full((4, 1), value, np.float32) for value in (0.5, 0.25)),
    }
    minari_dataset("test/parts-v0", space, box(2), [buffer(observed, actions_of(3), False)])
    data = load("minari:test/parts-v0", quiet=True)
    assert data.observation_layout == ("at/0[1]", "at/1[1]", "gear[3]", "speed[2]")
    one = {"speed": observed["speed"][1], "gear": 3, "at": (np.array([0.5]), np.array([0.25]))}
    np.testing.assert_array_equal(data.observations[1], flatten_observation(one, space))
    assert data.observations[1, 2:5].tolist() == [0, 0, 1]
    minari_dataset("test/state-v0", spaces.Discrete(5), box(2), [buffer(np.array([0, 4, 2]), actions_of(2), False)])
    assert load("minari:test/state-v0", quiet=True).observations.argmax(axis=1).tolist() == [0, 4, 2]


@pytest.mark.filterwarnings("ignore")
def test_minari_images_stay_bytes_and_other_arrays_of_three_axes_are_refused(store):
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), np.uint8)
    space = gymnasium.spaces.Box(0, 255, (6, 5, 3), np.uint8)
    minari_dataset("test/images-v0", space, box(2), [buffer(images, actions_of(3), False)])
    data = load("minari:test/images-v0", quiet=True)
    assert data.observations.dtype == np.uint8
    np.testing.assert_array_equal(data.observations, images)
    both = gymnasium.spaces.Dict({"image": space, "speed": box(1)})
    observed = {"image": images, "speed": np.zeros((4, 1), np.float32)}
    minari_dataset("test/both-v0", both, box(2), [buffer(observed, actions_of(3), False)])
    with pytest.raises(UserError, match=r"observations \(6, 5, 3\) of uint8 within others; supported are vectors"):
        load("minari:test/both-v0", quiet=True)
    floats = gymnasium.spaces.Box(0, 1, (6, 5, 3), np.float32)
    minari_dataset("test/floats-v0", floats, box(2), [buffer(images / np.float32(255), actions_of(3), False)])
    with pytest.raises(UserError, match=r"observations \(6, 5, 3\) of float32; supported are vectors"):
        load("minari:test/floats-v0", quiet=True)


@pytest.mark.parametrize("source", ["npz", "hdf5", "parquet"])
def test_observations_of_several_parts_in_a_file_are_one_vector_sorted_by_name(tmp_path, source):
    arrays = log()
    whole = {key: arrays.pop(key) for key in ("observations", "next_observations")}
    for key, values in whole.items():
        arrays |= {f"{key}/speed": values[:, 1], f"{key}/at/place": values[:, :1], f"{key}/at/side": values * 3}
    names = {"npz": save(tmp_path, arrays)}
    write_hdf5(tmp_path / "log.hdf5", arrays)
    pd.DataFrame({key: list(value) for key, value in arrays.items()}).to_parquet(tmp_path / "log.parquet")
    data = load(names.get(source, f"file:{tmp_path / 'log'}.{source}"), **BOX)
    assert data.observation_layout == ("at/place[1]", "at/side[2]", "speed[1]")
    expected = np.column_stack([whole["observations"][:, 0], whole["observations"] * 3, whole["observations"][:, 1]])
    np.testing.assert_array_equal(data.transitions().observations, expected.astype(np.float32))
    assert data.final_observation_known.all()
    renamed = {key.replace("observations/", "look/"): value for key, value in arrays.items() if "next" not in key}
    again = load(save(tmp_path, renamed), columns={"observations": "look"}, **BOX)
    np.testing.assert_array_equal(again.transitions().observations, expected[[0, 1, 2, 3, 4, 5]].astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"next_observations/speed": None},
            r"observations are place\[1\], speed\[1\], but next_observations place\[1\]",
        ),
        ({"observations/speed": np.zeros(3)}, r"the parts of observations differ in their rows \(place 7, speed 3\)"),
        ({"observations/speed": np.array(["a"] * 7)}, "observations/speed is of type <U1, not numbers"),
    ],
)
def test_parts_of_observations_that_do_not_fit_together_are_refused(tmp_path, changes, message):
    arrays = log(observations=None, next_observations=None)
    for key in ("observations", "next_observations"):
        arrays |= {f"{key}/speed": np.zeros(7), f"{key}/place": np.arange(7.0)}
    arrays = {key: value for key, value in (arrays | changes).items() if value is not None}
    with pytest.raises(UserError, match=message):
        load(save(tmp_path, arrays), **BOX)


def test_whole_numbered_observations_are_states_one_hot(tmp_path):
    states, following = np.array([0, 3, 1, 2, 2, 0, 1]), np.array([3, 1, 2, 1, 0, 1, 3])
    name = save(tmp_path, log(observations=states, next_observations=following))
    data = load(name, **BOX)
    assert found(data, "taken as states, one-hot, of which the data show 4")
    np.testing.assert_array_equal(data.transitions().observations, np.eye(4, dtype=np.float32)[states])
    np.testing.assert_array_equal(data.transitions().next_observations, np.eye(4, dtype=np.float32)[following])
    more = load(name, observation_dim=6, **BOX)
    assert more.observation_dim == 6
    assert not found(more, "taken as states")
    assert load(name, observation_dim=1, **BOX).transitions().observations[:, 0].tolist() == states.tolist()
    with pytest.raises(UserError, match="states from 0 to 2, but there is 3"):
        load(name, observation_dim=3, **BOX)
    numbers = load(save(tmp_path, log(observations=states - 1, next_observations=following - 1)), **BOX)
    assert numbers.observation_dim == 1  # below 0 there are no states
    with pytest.raises(UserError, match=r"1000000001 states one-hot would take .* GB; store quantities as floating"):
        load(save(tmp_path, log(observations=states, next_observations=following * 0 + 10**9)), **BOX)


def test_the_environment_knows_how_many_states_there_are(tmp_path):
    arrays = log(
        observations=np.array([0, 3, 1, 2, 2, 0, 1]), next_observations=None, actions=np.array([0, 1] * 3 + [1])
    )
    data = load(save(tmp_path, arrays), env_id="FrozenLake-v1", spaces=spaces, quiet=True)
    assert (data.observation_dim, data.action_dim, data.time_limit) == (16, 4, 100)
    assert check_environment(data, spaces("FrozenLake-v1", {})) == ()
