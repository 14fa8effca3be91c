"""Every fault a log can have is refused or warned of by its own message, with the place."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offrl.data import Dataset, Preprocessing, check_environment, load, preprocess
from offrl.data.transforms import actions_from_unit_box
from offrl.errors import UserError
from offrl.playing.simulators import Spaces, spaces


def log(lengths: tuple[int, ...] = (4, 3), **changes: Any) -> dict[str, np.ndarray]:
    """A clean log whose observations count up, changed: an array replaces, a function works in place, None removes."""
    steps = sum(lengths)
    random = np.random.default_rng(0)
    place = np.concatenate([10 * episode + np.arange(length) for episode, length in enumerate(lengths)]).astype(float)
    ends = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(steps, bool), np.zeros(steps, bool)
    terminals[ends[::2]], timeouts[ends[1::2]] = True, True
    arrays: dict[str, Any] = {
        "observations": np.stack([place, place], axis=1),
        "next_observations": np.stack([place, place], axis=1) + 1,
        "actions": random.uniform(-1, 1, (steps, 2)),
        "rewards": random.normal(size=steps),
        "terminals": terminals,
        "timeouts": timeouts,
    }
    for key, change in changes.items():
        if callable(change):
            change(arrays[key])
        else:
            arrays[key] = change
    return {key: value for key, value in arrays.items() if value is not None}


def save(folder: Path, arrays: dict[str, np.ndarray]) -> str:
    np.savez(folder / "log.npz", **arrays)
    return f"file:{folder / 'log.npz'}"


def read(folder: Path, arrays: dict[str, np.ndarray], **options: Any) -> Dataset:
    return load(save(folder, arrays), quiet=True, **{"action_low": -1, "action_high": 1, **options})


def put(place: Any, value: float):
    def change(array: np.ndarray) -> None:
        array[place] = value

    return change


def found(data: Dataset, pattern: str) -> bool:
    return any(re.search(pattern, warning) for warning in data.warnings)


def test_a_clean_log_loads_without_a_warning(tmp_path):
    data = read(tmp_path, log())
    assert data.warnings == ()
    assert data.lengths.tolist() == [4, 3]
    assert data.final_observation_known.all()
    assert data.observations[[4, 8], 0].tolist() == [4, 13]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"observations": put((5, 1), np.nan)},
            r"observations holds nan in 1 rows, the first in episode 1, step 1, dim",
        ),
        (
            {"next_observations": put((6, 0), np.inf)},
            r"observations holds inf in 1 rows, the first in episode 1, step 3",
        ),
        ({"actions": put((2, 0), np.nan)}, r"actions holds nan in 1 rows, the first in episode 0, step 2, dimension 0"),
        ({"rewards": put(3, -np.inf)}, r"rewards holds -inf in 1 rows, the first in episode 0, step 3"),
        (
            {"actions": put((5, 1), 1.5)},
            r"1 of 7 rows have actions outside the box .* row 5 \(episode 1, step 1\).*1\.5",
        ),
        ({"rewards": np.zeros(6)}, r"rewards has 6 rows but observations has 7"),
        ({"next_observations": np.zeros((7, 3))}, r"next_observations has 3 columns but observations has 2"),
        ({"terminals": np.full(7, 2)}, r"terminations must be 0 or 1, but row 0 is 2"),
        ({"actions": np.zeros((7, 2), int)}, r"discrete actions of 2 columns"),
        ({"actions": np.arange(7) - 1}, r"discrete, 0 to 1, but 5 of 7 rows .* row 0 \(episode 0, step 0\) with -1"),
        (
            {"observations": np.zeros((7, 4, 4, 3)), "next_observations": None},
            r"of float64; vectors .* or images of uint8",
        ),
        (
            {"rewards": None},
            r"no column for rewards .* it has observations, next_observations, actions.*columns.rewards",
        ),
        ({key: np.zeros((0, 2)) for key in ("observations", "next_observations", "actions")}, r"is empty|0 rows"),
        ({"terminals": None, "timeouts": None, "next_observations": None}, r"does not say where its episodes end"),
        ({"episode_lengths": np.array([4, 4])}, r"episode_lengths sum to 8 .* 7 rows"),
        ({"episode_ids": np.array([0, 0, 1, 1, 0, 0, 0])}, r"the rows of episode 0 are not together"),
    ],
)
def test_unusable_data_are_refused_with_the_place(tmp_path, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, log(**changes))
    assert "\n" not in str(caught.value)


def test_actions_are_clipped_only_when_asked(tmp_path):
    data = read(tmp_path, log(actions=put((5, 1), 1.5)), clip_actions=True)
    assert data.actions[5, 1] == 1
    assert found(data, "1 of 7 rows have actions outside the box.*; clipped")


def test_actions_outside_the_box_by_rounding_are_let_through(tmp_path):
    data = read(tmp_path, log(actions=put((5, 1), 1 + 1e-6)))
    assert data.warnings == ()
    assert np.abs(data.transitions().actions).max() <= 1


def test_an_unknown_action_box_is_taken_from_the_data_with_a_warning(tmp_path):
    assert read(tmp_path, log(), action_low=None, action_high=None).action_high.tolist() == [1, 1]
    data = read(tmp_path, log(actions=put((0, 0), 3.0)), action_low=None, action_high=None)
    assert data.action_high[0] == 3
    assert found(data, "action box is unknown")


def test_an_episode_that_does_not_end_is_truncated_with_a_warning(tmp_path):
    data = read(tmp_path, log(timeouts=put(6, False)))
    assert found(data, "the last episode .from row 4. does not end")
    assert data.truncations.tolist() == [False] * 6 + [True]


@pytest.mark.parametrize("limit_from", ["argument", "environment"])
def test_terminals_at_the_time_limit_become_truncations(tmp_path, limit_from):
    """Public expert logs mark the time limit as terminal: the value there must not be zero."""
    length = 5 if limit_from == "argument" else 200
    options: dict[str, Any] = (
        {"time_limit": 5} if limit_from == "argument" else {"env_id": "Pendulum-v1", "spaces": spaces}
    )
    arrays = log((length, length, 3), timeouts=None)
    arrays["terminals"][np.cumsum([length, length, 3]) - 1] = True
    data = read(tmp_path, arrays, **options)
    assert found(
        data, f"all 2 episodes that reach the time limit of {length} steps end as terminated; taken as truncations"
    )
    assert data.terminations[data.ends].tolist() == [False, False, True]
    assert data.truncations[data.ends].tolist() == [True, True, False]
    kept = read(tmp_path, arrays, keep_terminations=True, **options)
    assert kept.terminations[kept.ends].all()
    assert found(kept, "kept, because of keep_terminations")


def test_a_failure_on_the_very_last_step_stays_a_termination(tmp_path):
    arrays = log((5, 5, 3))
    arrays["terminals"][:], arrays["timeouts"][:] = False, False
    arrays["terminals"][[9, 12]], arrays["timeouts"][[4, 9]] = True, True
    data = read(tmp_path, arrays, time_limit=5)
    assert data.warnings == ()
    assert data.terminations[data.ends].tolist() == [False, True, True]


def test_episodes_longer_than_the_time_limit_are_warned_of(tmp_path):
    assert found(
        read(tmp_path, log((5, 4)), time_limit=4), "1 of 2 episodes are longer than the environment's limit of 4"
    )


def test_terminals_at_one_common_length_are_suspected_where_no_limit_is_known(tmp_path):
    arrays = log((5, 5, 3), timeouts=None)
    arrays["terminals"][[4, 9, 12]] = True
    data = read(tmp_path, arrays)
    assert found(data, "longest episodes terminate after exactly 5 steps.*time_limit=5")
    assert data.terminations[data.ends].all()


def test_observations_that_jump_inside_an_episode_cut_it_there(tmp_path):
    arrays = log((6, 3))
    arrays["observations"][3:6] += 50
    arrays["next_observations"][3:6] += 50
    data = read(tmp_path, arrays)
    assert found(
        data, "1 of 9 rows have a next observation that is not .* the first in row 2: observations jump inside"
    )
    assert data.lengths.tolist() == [3, 3, 3]
    view = data.dynamics()
    assert (view.next_observations - view.observations == 1).all()


def test_jumps_end_the_episodes_where_no_column_does(tmp_path):
    arrays = log((4, 3), timeouts=None)
    arrays["terminals"][:] = False
    data = read(tmp_path, arrays)
    assert data.lengths.tolist() == [4, 3]
    assert found(data, "no column marks the ends of time-limited episodes")


def test_a_log_without_next_observations_loses_the_last_one_of_time_limited_episodes(tmp_path):
    data = read(tmp_path, log((4, 3, 2), next_observations=None))
    assert data.final_observation_known.tolist() == [False] * 3
    assert found(data, "1 of 3 episodes are truncated without the observation after the last action")
    np.testing.assert_array_equal(data.transition_rows, [0, 1, 2, 3, 4, 5, 7, 8])


def test_duplicated_episodes_are_warned_of(tmp_path):
    arrays = {key: np.concatenate([value, value[:4]]) for key, value in log().items()}
    data = read(tmp_path, arrays)
    assert found(data, "1 of 3 episodes are copies of an earlier one, the first is episode 2, a copy of episode 0")


def test_a_constant_reward_and_dimensions_that_never_change_are_warned_of(tmp_path):
    data = read(tmp_path, log(rewards=np.ones(7), actions=put((slice(None), 1), 0.5)))
    assert found(data, "the reward is 1 in every step")
    assert found(data, "1 of 2 action dimensions never change: 1")


def test_a_dataset_of_other_sizes_than_the_environment_is_refused(tmp_path):
    data = read(tmp_path, log())
    box = np.full(2, -1.0), np.full(2, 1.0)
    assert check_environment(data, Spaces(2, *box, 100)) == ()
    with pytest.raises(UserError, match="observations of size 2, but those of Hopper-v5 have size 3"):
        check_environment(data, Spaces(3, *box, 100), "Hopper-v5")
    with pytest.raises(UserError, match="actions of size 2, but those of the environment have size 1"):
        check_environment(data, Spaces(2, np.array([-1.0]), np.array([1.0]), 100))
    with pytest.raises(UserError, match="actions of size 2, but those of the environment have 2 choices"):
        check_environment(data, Spaces(2, np.zeros(1), np.ones(1), 100, discrete=True))
    with pytest.raises(UserError, match="observations of size 2, but those of the environment have size 1 x 2 x 1"):
        check_environment(data, Spaces(2, *box, 100, observation_shape=(1, 2, 1)))
    (warning,) = check_environment(data, Spaces(2, box[0] * 2, box[1] * 2, 100))
    assert "action box" in warning
    data = replace(data, observation_layout=("angle[1]", "speed[1]"))
    assert check_environment(data, Spaces(2, *box, 100, observation_layout=("angle[1]", "speed[1]"))) == ()
    (warning,) = check_environment(data, Spaces(2, *box, 100, observation_layout=("place[1]", "speed[1]")))
    assert "are angle[1], speed[1], those of the environment place[1], speed[1]" in warning


def test_warnings_are_shown_once(tmp_path, capsys):
    name = save(tmp_path, log(rewards=np.ones(7)))
    for _ in range(2):
        load(name, action_low=-1, action_high=1)
    shown = capsys.readouterr().err
    assert shown.count("the reward is 1 in every step") == 1
    assert shown.startswith("warning: file:")


def test_whole_numbered_actions_are_discrete_and_one_hot_in_the_views(tmp_path):
    arrays = log(actions=np.array([0, 2, 1, 2, 0, 0, 1]))
    data = read(tmp_path, arrays, action_low=None, action_high=None)
    assert found(data, "taken as the 3 in the data")
    assert (data.discrete, data.action_dim, data.actions.dtype, data.actions.shape) == (True, 3, np.int32, (7, 1))
    assert data.transforms == ({"name": "one-hot actions", "count": 3},)
    view = data.transitions()
    np.testing.assert_array_equal(view.actions, np.eye(3, dtype=np.float32)[arrays["actions"]])
    assert view.next_actions[3].tolist() == [0, 0, 0]  # the end of an episode
    prepared = preprocess(data, Preprocessing(action_margin=0.1))
    assert prepared.transforms == data.transforms
    np.testing.assert_array_equal(actions_from_unit_box(data.transforms, view.actions), data.actions)


def test_the_environment_may_have_more_actions_than_the_data(tmp_path):
    data = read(tmp_path, log(actions=np.array([[0], [1], [1], [1], [0], [0], [1]])), action_high=3)
    assert (data.action_dim, data.warnings) == (4, ())
    with pytest.raises(UserError, match="discrete, 0 to 1, but 1 of 7 rows have others"):
        read(tmp_path, log(actions=np.array([0, 1, 2, 1, 0, 0, 1])), action_high=1)


def test_images_stay_bytes_from_the_file_to_the_view(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (7, 4, 5, 3), np.uint8)
    following = np.concatenate([images[1:], images[:1]])
    following[[3, 6]] = np.uint8(9)
    data = read(tmp_path, log(observations=images, next_observations=following))
    assert (data.observations.shape, data.observations.dtype, data.observation_dim) == ((9, 4, 5, 3), np.uint8, 60)
    view = preprocess(data, Preprocessing(observations="standardize")).transitions()
    assert view.observations.dtype == view.next_observations.dtype == np.uint8
    np.testing.assert_array_equal(view.observations, images)
    np.testing.assert_array_equal(view.next_observations, following)


def test_one_step_episodes_that_all_lost_their_next_observation_are_refused(tmp_path):
    arrays = log((1,) * 6, next_observations=None, terminals=np.zeros(6, bool), timeouts=np.ones(6, bool))
    with pytest.raises(UserError, match="no row is left to learn from: all 6 episodes have one step") as caught:
        read(tmp_path, arrays)
    assert "\n" not in str(caught.value)


def shifted(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return arrays | {"next_observations": np.roll(arrays["observations"], -1, axis=0)}


def test_next_observations_that_are_a_shifted_copy_are_lost_at_ends_unless_they_are_trusted(tmp_path):
    arrays = shifted(log((4, 3, 5, 2)))
    data = read(tmp_path, arrays)
    assert found(data, r"at 4 of 4 episode ends \(100.0%\) the next observation is the first .* following episode")
    assert data.transition_rows.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]  # without the truncated ends
    without = {key: value for key, value in arrays.items() if key != "next_observations"}
    assert data.fingerprint == read(tmp_path, without).fingerprint
    kept = read(tmp_path, arrays, trust_next_observations=True)
    assert found(kept, r"at 4 of 4 .*; kept, because of trust_next_observations")
    assert len(kept.transition_rows) == kept.steps
    assert kept.transitions().next_observations[6].tolist() == [20, 20]


def test_next_observations_that_repeat_the_last_observation_are_lost_there(tmp_path):
    arrays = log((4, 3, 5, 2))
    for row in (6, 11):  # a truncated and a terminal end of four
        arrays["next_observations"][row] = arrays["observations"][row]
    data = read(tmp_path, arrays)
    assert found(data, r"at 2 of 4 episode ends \(50.0%\) the next observation is the last observation once more")
    assert data.final_observation_known.tolist() == [True, False, False, True]
    assert data.transition_rows.tolist() == [0, 1, 2, 3, 4, 5, *range(7, 14)]  # a terminal row needs no next one
    assert data.dynamics_rows.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13]


def test_states_that_come_again_inside_episodes_may_do_so_at_ends(tmp_path):
    """A walk between two states, begun in either: every third next observation repeats its own or starts an episode."""
    random = np.random.default_rng(0)
    states = random.integers(0, 2, (30, 9))
    states[0, 7:], states[1, 0] = 1, 1
    arrays = log((8,) * 30)
    arrays["observations"] = states[:, :-1].reshape(-1, 1).astype(float)
    arrays["next_observations"] = states[:, 1:].reshape(-1, 1).astype(float)
    data = read(tmp_path, arrays)
    assert not found(data, "episode ends")
    assert data.final_observation_known.all()


def test_a_part_of_the_data_without_a_usable_row_is_refused(tmp_path):
    arrays = log((1, 3, 1), next_observations=None, terminals=np.zeros(5, bool), timeouts=np.array([1, 0, 0, 1, 1]))
    data = read(tmp_path, arrays)
    assert data.transition_rows.tolist() == [1, 2]
    for view in (data.select_episodes([0, 2]).transitions, data.select_episodes([2]).dynamics):
        with pytest.raises(UserError, match="no row is left to learn from"):
            view()


def test_one_step_episodes_of_one_state_have_their_own_next_observation(tmp_path):
    """A bandit: without steps inside episodes, the states of other episodes tell what comes again by nature."""
    arrays = log((1,) * 8, observations=np.ones((8, 2)), next_observations=np.ones((8, 2)))
    data = read(tmp_path, arrays)
    assert not found(data, "episode ends")
    assert len(data.transition_rows) == 8


def test_a_constant_reward_that_ends_with_the_episode_leaves_its_length_to_improve(tmp_path):
    assert found(read(tmp_path, log(rewards=np.ones(7))), "is nothing but the length of episodes to improve")
    arrays = log(rewards=np.ones(7), terminals=np.zeros(7, bool))
    assert found(read(tmp_path, arrays), "there is nothing to improve")
