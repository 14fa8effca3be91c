"""Scores of three kinds: each of its own checkpoint, with its reason where there is none, and only like with like."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from made_runs import make_run, make_selection, write_oracle

from offrl.errors import UserError
from offrl.playing.returns import read_returns, write_returns
from offrl.protocol import scores

EACH = {10: [20.0, 40.0], 20: [100.0, 140.0], 30: [60.0, 60.0]}
"""Normalised by 200: 15, 60 and 30."""


def by_kind(table: pd.DataFrame, column: str, member: int = 0) -> list:
    mine = table[table["member"] == member].set_index("kind")[column]
    return [mine[kind] for kind in scores.KINDS]


def test_a_selection_of_other_data_or_of_before_the_last_checkpoint_is_not_used(tmp_path):
    run = make_run(tmp_path / "run", {0: EACH})
    selection = make_selection(tmp_path / "selection", [(run, 0, 10, 0.9)])
    assert by_kind(scores.scores([run], [selection]), "score")[1] == 15.0
    file = selection / "candidates.csv"
    table = pd.read_csv(file)
    table[table["step"] < 30].to_csv(file, index=False)
    assert "no checkpoint after step 20" in by_kind(scores.scores([run], [selection]), "reason")[1]
    table.assign(fingerprint="bbbb").to_csv(file, index=False)
    assert "selected on other data" in by_kind(scores.scores([run], [selection]), "reason")[1]


def test_an_episode_that_was_played_from_two_first_seeds_counts_once(tmp_path):
    run = make_run(tmp_path / "run", {0: {30: [20.0, 80.0]}})  # of reset seeds 100 and 101
    table = read_returns(run)
    again = table.assign(episode=table["episode"] - 1).iloc[1:]  # 101 as a first episode
    write_returns(run, again)
    assert len(read_returns(run)) == 3
    found = scores.scores([run]).iloc[0]
    assert (found["episodes"], found["return"]) == (2, 50.0)


def test_the_last_checkpoint_is_one_of_a_policy(tmp_path):
    phases = [{"name": "dynamics", "updates": 10}, {"name": "policy", "updates": 20}]
    run = make_run(tmp_path / "run", {0: EACH, 1: {10: [7.0]}}, seeds=[0, 1], diverged={1: 15})
    run.info["phases"] = phases
    assert run.last_checkpoint(0) == 30
    assert run.last_checkpoint(1) is None
    reasons = by_kind(scores.scores([run]), "reason", 1)
    assert all("before a checkpoint" in reason for reason in reasons)


def test_the_three_kinds_are_of_their_own_checkpoints_and_never_mix(tmp_path):
    run = make_run(tmp_path / "run", {0: EACH})
    selection = make_selection(tmp_path / "selection", [(run, 0, 10, 0.9), (run, 0, 30, 0.5), (run, 0, 20, 0.1)])
    table = scores.scores([run], [selection])
    assert by_kind(table, "step") == [30, 10, 20]
    assert by_kind(table, "score") == [30.0, 15.0, 60.0]
    assert by_kind(table, "return") == [60.0, 30.0, 120.0]
    assert by_kind(table, "reason") == ["", "", ""]
    assert table["data"].unique() == [20.0]  # 40 of 200
    np.testing.assert_allclose(by_kind(table, "standard_error"), [0, 5, 10])  # half the difference of two episodes
    summary = scores.summarize(scores.groups(table)[0][0]).set_index("kind")
    assert list(summary["estimate"]) == [30.0, 15.0, 60.0]
    assert list(summary["method"]) == ["episodes"] * 3
    np.testing.assert_allclose(summary["high"] - summary["estimate"], 1.96 * np.array([0, 5, 10]))


def test_what_is_missing_has_a_reason_and_no_number(tmp_path):
    last_only = make_run(tmp_path / "last", {0: {30: [60.0]}})
    unscored = make_run(tmp_path / "unscored", {})
    running = make_run(tmp_path / "running", {0: {10: [1.0]}}, checkpoints=(10,), finished=False)
    nowhere = make_run(tmp_path / "nowhere", {}, env=None, reference=None)
    broken = make_run(tmp_path / "broken", {0: {10: [1.0, 2.0], 20: [3.0, 4.0], 30: [np.nan, 200.0]}})
    gone = make_run(tmp_path / "gone", {0: EACH}, diverged={1: 5}, seeds=[0, 1])
    vetoed = make_run(tmp_path / "vetoed", {0: EACH})
    selection = make_selection(tmp_path / "selection", [(vetoed, 0, 10, None), (vetoed, 0, 20, None)])

    def reasons(run, member=0):
        table = scores.scores([run], [selection])
        table = table[table["member"] == member]
        assert (table["score"].isna() == (table["reason"] != "")).all()
        assert (table["step"].isna() == (table["reason"] != "")).all()
        return by_kind(table, "reason", member)

    assert reasons(last_only) == [
        "",
        "offrl.select was not run on it",
        "2 of 3 checkpoints are not scored: checkpoints=all scores them",
    ]
    assert all("not scored: python -m offrl.evaluate" in reason for reason in reasons(unscored))
    assert all("training is not finished (step 10)" in reason for reason in reasons(running))
    assert all("no environment to score it in" in reason for reason in reasons(nowhere))
    assert reasons(broken)[0] == "in 1 of 2 episodes an action was not finite"
    assert by_kind(scores.scores([broken]), "step")[2] == 20  # and not the one whose only whole episode is the best
    assert all("diverged at step 5" in reason for reason in reasons(gone, 1))
    assert reasons(vetoed)[1] == "the selector vetoes all of its checkpoints"


def test_checkpoints_from_before_there_was_a_policy_need_no_score_for_the_best(tmp_path):
    run = make_run(tmp_path, {0: {20: [2.0, 4.0], 30: [1.0, 2.0]}})
    run.info["phases"] = [{"name": "dynamics", "updates": 10}, {"name": "policy", "updates": 20}]
    assert by_kind(scores.scores([run]), "step")[2] == 20


def test_a_run_without_an_environment_counts_where_it_was_scored(tmp_path):
    run = make_run(tmp_path / "run", {}, env=None, reference=None)
    write_oracle(run, {0: EACH}, env="Walker2d-v5")
    table = scores.scores([run])
    assert by_kind(table, "score")[::2] == [60.0, 120.0]  # returns: nobody knows references for it
    assert table["env"].unique() == ["Walker2d-v5"]


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "bbbb"},
        {"updates": 60},
        {"checkpoint_every": 5},
        {"validation_fraction": 0.0},
        {"reference": {"random": 10.0, "expert": 200.0, "source": ""}},
        {"reference": None},
        {"env": "Hopper-v4"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_does_not_compare_is_split_with_a_message_and_never_averaged(tmp_path, other):
    runs = [make_run(tmp_path / "one", {0: EACH, 1: EACH}), make_run(tmp_path / "two", {0: EACH, 1: EACH}, **other)]
    table = scores.scores(runs)
    parts, messages = scores.groups(table)
    assert [len(part) for part in parts] == [6, 6]
    assert [part["run"].nunique() for part in parts] == [1, 1]
    assert len(messages) == 1
    name = {"reference": "reference_random"}.get(next(iter(other)), next(iter(other)))
    assert name in messages[0]
    assert all(name in label for label in scores.labels(parts))


def test_comparable_runs_stand_together_without_a_message(tmp_path):
    runs = [make_run(tmp_path / name, {0: EACH}, algorithm=name) for name in ("bc", "iql")]
    parts, messages = scores.groups(scores.scores(runs))
    assert (len(parts), messages) == (1, [])
    assert scores.labels(parts) == ["builtin:hopper/medium"]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["file:/somewhere/log.npz", "file:log.npz"], "file:log.npz"),
        (["file:log.npz", "builtin:hopper/medium"], "builtin:hopper/medium"),
    ],
)
def test_a_dataset_is_known_by_its_fingerprint_and_shown_under_its_shortest_name(tmp_path, names, shown):
    runs = [make_run(tmp_path / f"{i}", {0: EACH}, algorithm, name)
            for i, (algorithm, name) in enumerate(zip(("bc", "iql"), names, strict=True))]  # fmt: skip
    parts, messages = scores.groups(scores.scores(runs))
    assert messages == []
    assert scores.labels(parts) == [shown]
    assert scores.summarize(parts[0])["algorithm"].unique().tolist() == ["bc", "iql"]


def test_settings_are_told_apart_and_the_interval_is_over_members(tmp_path):
    runs = [
        make_run(
            tmp_path / "one", {i: {30: [100.0 + 20 * i] * 2} for i in range(3)}, options={"expectile": 0.7, "w": 1}
        ),
        make_run(tmp_path / "two", {0: {30: [10.0, 10.0]}}, options={"expectile": 0.9, "w": 1}),
        make_run(
            tmp_path / "swept",
            {0: {30: [2.0, 2.0]}, 1: {30: [4.0, 4.0]}},
            options={"expectile": [0.5, 0.6], "w": 1},
            values=[{"expectile": 0.5}, {"expectile": 0.6}],
            seeds=[0, 0],
        ),
        make_run(tmp_path / "bc", {0: {30: [50.0, 50.0]}}, algorithm="bc", options={"width": 3}),
    ]
    summary = scores.summarize(scores.groups(scores.scores(runs))[0][0])
    last = summary[summary["kind"] == "last"].set_index("setting")
    assert list(last["estimate"]) == [60.0, 5.0, 1.0, 2.0, 25.0]
    assert list(last.index) == ["expectile=0.7", "expectile=0.9", "expectile=0.5", "expectile=0.6", ""]
    assert list(last["members"]) == [3, 1, 1, 1, 1]
    # 50, 60, 70: t of 2 degrees of freedom times 10 / sqrt 3
    np.testing.assert_allclose(last["high"].iloc[0] - 60, 4.302653 * 10 / np.sqrt(3), rtol=1e-6)


def test_a_missing_member_is_neither_a_zero_nor_counted(tmp_path):
    run = make_run(
        tmp_path / "run", {0: {30: [100.0, 100.0]}, 1: {30: [140.0, 140.0]}}, seeds=[0, 1, 2], diverged={2: 3}
    )
    summary = scores.summarize(scores.scores([run])).set_index("kind")
    assert summary.loc["last", ["estimate", "members"]].to_list() == [60.0, 2]
    assert "diverged at step 3" in summary.loc["last", "reason"]


def test_a_seed_that_is_there_twice_counts_once_and_is_told(tmp_path):
    runs = [make_run(tmp_path / "one", {0: EACH, 1: EACH}), make_run(tmp_path / "two", {0: EACH}, seeds=[1])]
    parts, messages = scores.groups(scores.scores(runs))
    assert scores.summarize(parts[0])["members"].to_list()[::2] == [2, 2]
    assert messages == [
        f"builtin:hopper/medium: seeds 1 of iql are in two runs; those of {tmp_path / 'two'} are left out"
    ]


def test_of_two_runs_with_a_seed_the_scored_one_counts_whatever_their_order(tmp_path):
    unscored = make_run(tmp_path / "unscored", {})
    scored = make_run(tmp_path / "scored", {0: EACH})
    for runs in ([unscored, scored], [scored, unscored]):
        parts, messages = scores.groups(scores.scores(runs))
        summary = scores.summarize(parts[0]).set_index("kind")
        assert summary.loc["last", ["estimate", "members"]].to_list() == [30.0, 1]
        assert f"those of {unscored.path} are left out" in messages[0]


def test_two_selections_that_differ_are_refused_and_a_damaged_one_too(tmp_path):
    run = make_run(tmp_path / "run", {0: EACH})
    one = make_selection(tmp_path / "a", [(run, 0, 10, 0.9)])
    two = make_selection(tmp_path / "b", [(run, 0, 20, 0.9)])
    scores.scores([run], [one, one])
    with pytest.raises(UserError, match=r"chooses step 20 of .* another selection step 10"):
        scores.scores([run], [one, two])
    with pytest.raises(UserError, match=r"no candidates\.csv"):
        scores.scores([run], [tmp_path])
    (two / "candidates.csv").write_text("run,member\nx,1\n")
    with pytest.raises(UserError, match="damaged"):
        scores.scores([run], [two])


def test_runs_are_found_below_folders_and_each_once(tmp_path):
    make_run(tmp_path / "a" / "one", {})
    make_run(tmp_path / "a" / "two", {})
    found = scores.runs_under([tmp_path, tmp_path / "a" / "one"])
    assert [run.path.name for run in found] == ["one", "two"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run here nor below"):
        scores.runs_under([tmp_path / "empty"])
    with pytest.raises(UserError, match="no run given"):
        scores.scores([])


def test_whether_all_is_scored_says_what_is_left(tmp_path):
    assert scores.fully_scored(make_run(tmp_path / "all", {0: EACH}))
    assert not scores.fully_scored(make_run(tmp_path / "part", {0: {**EACH, 20: [1.0]}}))
    assert not scores.fully_scored(make_run(tmp_path / "none", {}))
    assert scores.fully_scored(make_run(tmp_path / "nowhere", {}, env=None))
    assert scores.fully_scored(make_run(tmp_path / "gone", {}, diverged={0: 5}))
    assert scores.fully_scored(make_run(tmp_path / "off", {}, episodes=0))


def test_published_scores_are_of_d4rl_alone():
    found = scores.published_scores("d4rl:hopper-medium-v2", "td3_bc")
    assert len(found) > 1
    assert found["score"].between(0, 120).all()
    assert set(found["protocol"]) <= {"last", "best", "other"}
    assert scores.published_scores("builtin:hopper/medium", "td3_bc").empty
    assert scores.published_scores("minari:hopper-medium-v2", "td3_bc").empty


def test_a_selection_that_is_not_there_or_damaged_is_told(tmp_path):
    with pytest.raises(UserError, match=r"no selection\.json"):
        scores.selection_of(tmp_path)
    (tmp_path / "selection.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        scores.selection_of(tmp_path)
