"""Built-in datasets: what the recipes make, that it is reproducible, and that it is stored completely or not at all."""

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import minari
import numpy as np
import pandas as pd
import pytest

from offrl.data.recipes import ENVIRONMENTS, RECIPES, recipes_of
from offrl.datasets import __main__ as command
from offrl.datasets import builtin, policies, rollout
from offrl.errors import UserError, run_command


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty Minari store."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    return tmp_path / "store"


def read(identifier):
    """All arrays of a dataset, concatenated, and each step's policy."""
    dataset = minari.load_dataset(identifier)
    episodes = list(dataset)
    columns = {name: np.concatenate([getattr(e, name) for e in episodes])
               for name in ("actions", "rewards", "terminations", "truncations", "observations")}  # fmt: skip
    makers = [metadata["policy"] for metadata in dataset.storage.get_episode_metadata(range(len(episodes)))]
    columns["policy"] = np.repeat(makers, [len(e) for e in episodes])
    columns["before"] = np.concatenate([e.observations[:-1] for e in episodes])
    columns["returns"] = np.array([e.rewards.sum() for e in episodes])
    return columns


def leftovers(store):
    return [path for path in store.rglob("*") if path.name.startswith(".") and path.name != ".lock"]


def test_a_proper_minari_dataset(store):
    identifier = builtin.ensure("pendulum", "medium", 2_500, workers=2)
    assert identifier == "offrl/pendulum/medium-2500steps-v0"
    assert identifier in minari.list_local_datasets()
    dataset = minari.load_dataset(identifier)
    assert (dataset.total_steps, dataset.total_episodes) == (2_500, 13)
    assert dataset.env_spec.id == "Pendulum-v1"
    assert dataset.recover_environment().spec.id == "Pendulum-v1"
    metadata = dataset.storage.metadata
    assert metadata["author"] == {"offrl"}
    assert "pendulum/medium" in metadata["description"]
    reference = policies.load_policies("pendulum").reference
    assert (metadata["ref_min_score"], metadata["ref_max_score"]) == (reference.random, reference.expert)
    for episode in dataset:
        assert len(episode.observations) == len(episode) + 1
        assert not episode.terminations.any()
        assert episode.truncations[-1]
        assert not episode.truncations[:-1].any()
        assert dataset.observation_space.contains(episode.observations[-1])
        assert dataset.action_space.contains(episode.actions[0])
    assert len(dataset[12]) == 100  # cut by the budget, its last observation kept
    actions = np.concatenate([episode.actions for episode in dataset])
    assert 1 < np.abs(actions).max() <= 2  # in the environment's units
    started = time.monotonic()
    assert builtin.ensure("pendulum", "medium", 2_500) == identifier
    assert time.monotonic() - started < 0.5


@pytest.mark.parametrize(
    ("env", "recipe", "steps"), [("pendulum", "medium-replay", 1_300), ("inverted_double_pendulum", "random", 500)]
)
def test_the_same_for_any_number_of_processes(tmp_path, monkeypatch, env, recipe, steps):
    found = []
    for workers in (1, 3):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / str(workers)))
        found.append(read(builtin.ensure(env, recipe, steps, workers)))
    for name, column in found[0].items():
        np.testing.assert_array_equal(column, found[1][name], err_msg=name)
    assert len(np.unique(found[0]["before"], axis=0)) == steps  # no episode twice


def test_what_the_recipes_consist_of(store):
    shipped = policies.load_policies("pendulum")
    data = {recipe: read(builtin.ensure("pendulum", recipe, 2_000))
            for recipe in ("random", "medium-expert", "medium-replay", "conservative")}  # fmt: skip
    assert data["medium-expert"]["policy"].tolist() == ["medium"] * 1_000 + ["expert"] * 1_000
    medium, expert = np.split(data["medium-expert"]["returns"], 2)
    assert medium.mean() > data["random"]["returns"].mean() + 100
    assert expert.mean() > medium.mean() + 300

    replay = data["medium-replay"]["policy"]
    order = list(dict.fromkeys(replay))
    assert order == [name for name, _ in shipped.ladder]
    assert order[0] == "random"
    assert order[-1] == "medium"
    shares = [np.mean(replay == name) for name in order]
    np.testing.assert_allclose(shares, [share for _, share in shipped.ladder], atol=1e-3)

    def share_of_means(columns, name):
        rows = columns["policy"] == name
        policy = rollout.SquashedGaussian(shipped.weights[name])
        mean = 2 * policy(columns["before"][rows], 1.0, np.random.default_rng(0))
        return np.isclose(columns["actions"][rows], mean, atol=1e-5).mean()

    assert 0.77 < share_of_means(data["conservative"], "medium") < 0.83
    assert share_of_means(data["medium-expert"], "medium") < 0.02
    # as D4RL's is: its halves are the starts of the two datasets
    np.testing.assert_array_equal(
        read(builtin.ensure("pendulum", "medium", 1_000))["rewards"], data["medium-expert"]["rewards"][:1_000]
    )


def test_recipes_that_count_episodes(store):
    identifier = builtin.ensure("pendulum", "conservative-100")
    assert identifier == "offrl/pendulum/conservative-100-v0"
    assert minari.load_dataset(identifier).total_episodes == 100


def test_the_sizes_in_ids():
    assert builtin.dataset_id("hopper", "medium") == builtin.dataset_id("hopper", "medium", 200_000)
    assert builtin.dataset_id("hopper", "medium") == "offrl/hopper/medium-v0"
    assert builtin.dataset_id("hopper", "medium", 20_000) == "offrl/hopper/medium-20k-v0"
    recipes = recipes_of("hopper")
    identifiers = [builtin.dataset_id("hopper", recipe, steps) for recipe in recipes for steps in (100, 1_000, 100_000)
                   if not RECIPES[recipe].episodes]  # fmt: skip
    identifiers += [builtin.dataset_id("hopper", recipe) for recipe in recipes]
    assert len(set(identifiers)) == len(identifiers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hoper", "medium"), "did you mean hopper"),
        (("hopper", "medium-reply"), "did you mean medium-replay"),
        (("hopper", "medium", 0), "steps=0"),
        (("hopper", "conservative-100", 1_000), "100 episodes"),
        (("pendulum", "random", None, 0), "workers=0"),
    ],
)
def test_mistakes(store, arguments, message):
    with pytest.raises(UserError, match=message):
        builtin.ensure(*arguments)
    assert not store.exists()


def test_an_environment_without_policies(store, monkeypatch):
    monkeypatch.setattr(builtin, "load_policies", lambda env: None)
    with pytest.raises(UserError, match="train_behaviour swimmer"):
        builtin.ensure("swimmer", "medium")


def test_the_command_says_a_mistake_in_one_line(store, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["offrl.datasets", "make", "pendulu", "medium"])
    with pytest.raises(SystemExit) as status:
        run_command(command.main)
    assert status.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: built-in data has no environment 'pendulu': did you mean pendulum, pendulum_images?"
    ]


def test_the_list(store, monkeypatch, capsys):
    identifier = builtin.ensure("pendulum", "random", 400)
    monkeypatch.setattr(sys, "argv", ["offrl.datasets", "list"])
    command.main()
    out = capsys.readouterr().out
    assert all(name in out for name in (*ENVIRONMENTS, *RECIPES))
    assert identifier.removeprefix("offrl/pendulum/") in out


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def spawned(process: str) -> bool:
    """Whether it is a worker, and none of the short programs that imports call, such as uname."""
    try:
        return b"offrl.datasets.rollout" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # over already
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize("moment", ["rolling out", "writing"])
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_rollout_leaves_nothing(store, stop, moment):
    arguments = [sys.executable, "-m", "offrl.datasets", "make", "pendulum", "random", "--steps", "12000"]
    # a shell's background job ignores the interrupt, and what it starts does, too
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, preexec_fn=heed)
    workers: set[str] = set()
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers |= {child for child in children if spawned(child)}
        if workers and (moment == "rolling out" or leftovers(store)):
            break
        time.sleep(0.002)
    process.send_signal(stop)
    process.communicate()
    assert process.returncode == (-signal.SIGKILL if stop == signal.SIGKILL else 130)
    assert minari.list_local_datasets() == {}
    assert workers
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, workers))
    if stop == signal.SIGINT:
        assert leftovers(store) == []
    elif moment == "writing":  # what a killed process leaves is hidden, and gone after the next rollout
        identifier = builtin.ensure("pendulum", "random", 12_000)
        assert minari.load_dataset(identifier).total_steps == 12_000
        assert leftovers(store) == []


def test_two_processes_at_once(store):
    arguments = [sys.executable, "-m", "offrl.datasets", "make", "pendulum", "medium", "--steps", "1000"]
    both = [subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert {out for out, _ in answers} == {"offrl/pendulum/medium-1k-v0\n"}
    assert sum("is in the local Minari store after" in err for _, err in answers) == 1
    assert minari.load_dataset("offrl/pendulum/medium-1k-v0").total_steps == 1_000


def test_a_race_that_no_lock_prevents(store, monkeypatch):
    """The second to finish finds the dataset there, and leaves it alone."""
    monkeypatch.setattr(builtin, "fcntl", None)
    write, inode = builtin._write, []

    def write_late(*arguments):
        write(*arguments)
        monkeypatch.setattr(builtin, "_write", write)
        inode.append((store / builtin.ensure("pendulum", "random", 400)).stat().st_ino)

    monkeypatch.setattr(builtin, "_write", write_late)
    identifier = builtin.ensure("pendulum", "random", 400)
    assert (store / identifier).stat().st_ino == inode[0]
    assert leftovers(store) == []


def test_data_of_other_policies_is_replaced(store, monkeypatch, capsys):
    identifier = builtin.ensure("pendulum", "medium", 400)
    before = read(identifier)
    shipped = policies.load_policies("pendulum")
    other = shipped._replace(weights={**shipped.weights, "medium": shipped.weights["expert"]})
    monkeypatch.setattr(builtin, "load_policies", lambda env: other)
    assert builtin.ensure("pendulum", "medium", 400) == identifier
    assert "replaced" in capsys.readouterr().err
    assert read(identifier)["returns"].mean() > before["returns"].mean() + 100
    assert leftovers(store) == []


def test_a_worker_that_dies_or_fails_is_an_error():
    with rollout.Workers(1) as workers:
        with pytest.raises(RuntimeError, match="NoSuchEnvironment"):
            workers.submit(rollout.Task("NoSuchEnvironment-v0", "random", 0.0, 0, 1, 0), {}).result()
        workers._processes[0].kill()
        with pytest.raises(RuntimeError, match="ended unexpectedly"):
            workers.submit(rollout.Task("Pendulum-v1", "random", 0.0, 0, 1, 0), {}).result()


def test_the_shipped_policy_acts_as_the_trained_one():
    from offrl.datasets.train_behaviour import LOG_STD_RANGE, NumpyActor

    weights = {
        key: array.astype(np.float32) for key, array in policies.load_policies("pendulum").weights["medium"].items()
    }
    layers = {f"Dense_{i}": {"kernel": weights[f"{i}/w"], "bias": weights[f"{i}/b"]} for i in range(3)}
    trained, ours = NumpyActor({"params": layers}), rollout.SquashedGaussian(weights)
    observations = np.random.default_rng(0).normal(size=(2_000, 3))
    means = np.stack([trained(row, None) for row in observations])
    np.testing.assert_allclose(ours(observations, 1.0, np.random.default_rng(0)), means, atol=1e-5)
    samples = np.stack([trained(row, np.random.default_rng(i)) for i, row in enumerate(observations)])
    spread = np.abs(np.arctanh(ours(observations, 0.0, np.random.default_rng(0))) - np.arctanh(means)).mean()
    assert spread == pytest.approx(np.abs(np.arctanh(samples) - np.arctanh(means)).mean(), rel=0.1)
    assert LOG_STD_RANGE == rollout.LOG_STD_RANGE


def test_choosing_policies_from_a_run(tmp_path, monkeypatch):
    """A run made of the shipped policies, in which expert and medium are known."""
    shipped = policies.load_policies("pendulum")
    names = [*(name for name, _ in shipped.ladder[1:]), "expert"]
    run = tmp_path / "run"
    (run / "snapshots").mkdir(parents=True)
    rows = []
    for i, name in enumerate(names):
        step = 2_000 * (i + 1)
        np.savez(run / "snapshots" / f"{step:08d}.npz", **shipped.weights[name])  # type: ignore[arg-type]
        mean = shipped.metadata["policies"][name]["deterministic"]["mean"]
        rows += [(step, i, episode, mean, 200) for episode in range(10)]
    pd.DataFrame(rows, columns=["step", "seconds", "episode", "return", "length"]).to_csv(
        run / "curve.csv", index=False
    )
    monkeypatch.setattr(policies, "HERE", tmp_path)
    monkeypatch.setattr(policies, "EPISODES", 8)
    monkeypatch.setattr(policies, "EPISODES_TO_SCREEN", 8)
    monkeypatch.setattr(policies, "EPISODES_FOR_LADDER", 2)
    monkeypatch.setattr(policies, "EXPERT_CANDIDATES", 2)
    (tmp_path / "policies").mkdir()
    (tmp_path / "cards").mkdir()
    with rollout.Workers(2) as workers:
        chosen = policies.choose("pendulum", run, workers)
    assert chosen.digest("expert") == shipped.digest("expert")
    assert chosen.metadata["policies"]["expert"]["step"] == 2_000 * len(names)
    goal = np.array([1 / 3, 1 / 2]) * (chosen.reference.expert - chosen.reference.random) + chosen.reference.random
    assert goal[0] - 150 < chosen.metadata["policies"]["medium"]["sampled"]["mean"] < goal[1] + 150
    assert sum(share for _, share in chosen.ladder) == pytest.approx(1, abs=1e-3)
    path = policies.save(chosen, policies.card(chosen))
    policies.load_policies.cache_clear()
    again = policies.load_policies("pendulum")
    policies.load_policies.cache_clear()
    assert path == tmp_path / "policies" / "pendulum.npz"
    assert again.digest("medium") == chosen.digest("medium")
    assert "| expert |" in (tmp_path / "cards" / "pendulum.md").read_text()
    with pytest.raises(UserError, match=r"no curve\.csv"), rollout.Workers(1) as workers:
        policies.choose("pendulum", tmp_path, workers)


@pytest.mark.slow
def test_hopper(store):
    identifier = builtin.ensure("hopper", "medium", 20_000)
    columns = read(identifier)
    assert columns["terminations"].any()
    scores = policies.load_policies("hopper").metadata["policies"]["medium"]["sampled"]
    error = 4 * scores["std"] / np.sqrt(len(columns["returns"]))
    assert abs(columns["returns"][:-1].mean() - scores["mean"]) < error + 0.1 * scores["mean"]
    rewards = columns["rewards"]
    for name, column in read(builtin.ensure("hopper", "medium", 20_000, workers=1)).items():
        np.testing.assert_array_equal(column, columns[name])
    assert len(rewards) == 20_000
