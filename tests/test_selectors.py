"""The order that selectors give, by hand, and what must not change it."""

import numpy as np
import pandas as pd
import pytest

from offrl.errors import UserError
from offrl.selection import selectors


def candidates(names, algorithms=None, steps=None):
    count = len(names)
    return pd.DataFrame(
        {
            "run": names if steps is None else "run",
            "algorithm": algorithms or ["iql"] * count,
            "setting": "",
            "member": 0,
            "seed": 0,
            "step": steps or [100] * count,
        },
        index=names,
    )


def table(**columns):
    scores = pd.DataFrame(columns, index=list("abcd"))
    return scores, candidates(list("abcd"))


FULL = {
    "fqe_lcb": [10.0, 20.0, 30.0, 40.0],
    "behaviour_advantage": [0.4, 0.1, 0.3, 0.2],
    "action_distance": [0.1, 0.2, 0.3, 0.4],
    "ood_fraction": [0.5, 0.1, 0.1, 0.7],
}


def test_two_plus_two_by_hand():
    scores, described = table(**FULL)
    found = selectors.rank_mean(scores, described)
    # shares of the four, (rank - 1/2) / 4: of value, and of support with low better and the tie shared
    value = np.array([(1 + 7) / 2, (3 + 1) / 2, (5 + 5) / 2, (7 + 3) / 2]) / 8
    support = np.array([(7 + 3) / 2, (5 + 6) / 2, (3 + 6) / 2, (1 + 1) / 2]) / 8
    np.testing.assert_allclose(found, (value + support) / 2)
    assert found.attrs["notes"] == [
        "value: fqe_lcb, behaviour_advantage",
        "support: action_distance, ood_fraction",
    ]
    assert "abstains" not in found.attrs
    choice = selectors.choose(scores, described)
    assert (choice.top, choice.tied, choice.deploy, choice.abstains) == (["c", "a", "b"], 1, ["c"], "")


def test_groups_keep_equal_weight_whatever_their_members():
    scores, described = table(**FULL)
    more = scores.assign(model_value=scores["fqe_lcb"], return_weighted_action_distance=[1.0, 2.0, 3.0, 4.0])
    eligible = pd.Series(True, index=scores.index)
    value, names = selectors.group_rank(more, selectors.VALUE, eligible)
    support, _ = selectors.group_rank(more, selectors.SUPPORT, eligible)
    assert names == ["fqe_lcb", "behaviour_advantage", "model_value"]
    np.testing.assert_allclose(selectors.rank_mean(more, described), (value + support) / 2)
    only_value = scores[["fqe_lcb"]]
    np.testing.assert_allclose(selectors.rank_mean(only_value, described), np.array([1, 3, 5, 7]) / 8)
    assert "no support diagnostic" in selectors.rank_mean(only_value, described).attrs["notes"]


def test_alternatives_stand_in_for_each_other():
    scores, described = table(**FULL)
    other = scores.rename(columns={"fqe_lcb": "lstd_lcb"}).assign(behaviour_log_prob=-scores["action_distance"])
    other = other.drop(columns="action_distance").assign(fqe_lcb=np.nan)
    np.testing.assert_array_equal(selectors.rank_mean(other, described), selectors.rank_mean(scores, described))


def test_what_a_candidate_lacks_counts_as_the_middle():
    scores, described = table(**FULL)
    scores.loc["d", ["fqe_lcb", "behaviour_advantage"]] = np.nan
    found = selectors.rank_mean(scores, described)
    assert found["d"] == pytest.approx((0.5 + 1 / 8) / 2)
    # the others are ranked among those that have a value
    assert found["c"] == pytest.approx(((5 / 6 + 3 / 6) / 2 + (3 + 6) / 2 / 8) / 2)


def test_of_whom_nothing_is_known_is_left_out_and_changes_nothing_for_the_others():
    scores, described = table(**FULL)
    extended = scores.reindex([*scores.index, "memory"])
    extended.attrs["reasons"] = {"memory": "the policy has memory"}
    for selector in (selectors.rank_mean, selectors.without_vetoes):
        found = selector(extended, candidates(list(extended.index)))
        assert np.isnan(found["memory"])
        np.testing.assert_array_equal(found[list("abcd")], selector(scores, described))
    assert selectors.vetoes(extended).tolist() == ["", "", "", "", "the policy has memory"]


def test_a_candidate_that_lacks_more_than_half_is_left_out():
    scores = table(**FULL)[0]
    extended = pd.concat([scores, pd.DataFrame({"ood_fraction": [np.nan]}, index=["e"])])
    extended["return_weighted_action_distance"] = [1.0, 2.0, 3.0, 4.0, 0.5]
    found = selectors.rank_mean(extended, candidates(list(extended.index)))
    assert found.isna().tolist() == [False] * 4 + [True]
    assert found.attrs["notes"][-1] == "1 left out: fewer than half of these diagnostics apply to them"


def test_of_a_pool_of_which_nothing_is_known_the_reason_is_said():
    scores, described = table(fqe=[np.nan] * 4, action_distance=[np.nan] * 4)
    scores.attrs["reasons"] = dict.fromkeys("abcd", "not applicable: the policy has memory")
    choice = selectors.choose(scores, described)
    assert choice.abstains == "no diagnostic to rank by: not applicable: the policy has memory"
    assert (choice.top, choice.deploy) == ([], [])


def estimates(**changes):
    """A clone, first by distance, and two policies that all estimators of value put higher."""
    values = {
        "fqe": [-22.1, -17.7, -17.9, -46.6],
        "lstd": [-22.9, -18.2, -18.2, -39.9],
        "model_value": [-28.3, -24.2, -24.7, -48.2],
        "behaviour_advantage": [0.6, 0.5, 0.5, 0.1],
        "action_distance": [0.32, 0.56, 0.57, 0.39],
        "ood_fraction": [0.086, 0.093, 0.093, 0.096],
    }
    scores, described = table(**{**values, **changes})
    errors = {**dict.fromkeys(values, 1.5), "behaviour_advantage": 0.02, "action_distance": 0.02, "ood_fraction": 0.02}
    scores.attrs["standard_error"] = pd.DataFrame(errors, index=scores.index)
    described["algorithm"] = ["bc", "td3_bc", "td3_bc", "iql"]
    return scores, described


def test_closeness_to_the_data_does_not_outvote_estimators_that_agree():
    scores, described = estimates()
    assert selectors.choose(scores, described, selectors.ranks_alone).deploy == ["a"]
    found = selectors.rank_mean(scores, described)
    before = selectors.ranks_alone(scores, described)
    np.testing.assert_allclose(found, before - [1, 0, 0, 1])
    assert selectors.choose(scores, described).deploy == ["b"]
    assert found.attrs["notes"][-1] == (
        "2 of 4 ranked behind the rest: fqe, lstd, model_value agree that another is better"
    )
    assert {"fqe", "lstd", "model_value"} <= set(found.attrs["uses"])


@pytest.mark.parametrize(
    "changes",
    [
        {"lstd": [-22.9, -21.9, -22.0, -39.9]},  # one of three sees no difference
        {"lstd": [np.nan, -18.2, -18.2, -39.9]},  # or says nothing of one of the two
        {"ood_fraction": [0.086, 0.15, 0.15, 0.096]},  # what is better lies further outside the data
    ],
)
def test_a_candidate_is_outvalued_only_where_all_agree_and_the_better_one_is_as_close_to_the_data(changes):
    scores, described = estimates(**changes)
    found = selectors.rank_mean(scores, described)
    assert found["a"] == selectors.ranks_alone(scores, described)["a"]
    assert selectors.choose(scores, described).deploy == ["a"]


def test_a_vetoed_candidate_outvalues_nobody():
    scores, described = estimates(non_finite=[0.0, 1.0, 1.0, 0.0])
    found = selectors.rank_mean(scores, described)
    assert found["a"] > 0
    assert found.notna().tolist() == [True, False, False, True]


def test_a_diverged_candidate_changes_nothing_for_the_others():
    scores, described = table(**FULL, non_finite=[0.0] * 4, out_of_range=[0.0, 0.01, np.nan, 0.0])
    before = selectors.rank_mean(scores, described)
    assert before.notna().all()  # exactly the limit passes, and so does what has no critic to look at
    bad = pd.DataFrame(
        {
            "fqe_lcb": [1e30, np.nan],
            "behaviour_advantage": [9.0, np.nan],
            "action_distance": [0.0, np.nan],
            "ood_fraction": [0.0, np.nan],
            "non_finite": [0.0, 1.0],
            "out_of_range": [0.02, 1.0],
        },
        index=["x", "y"],
    )
    more = pd.concat([bad, scores])
    after = selectors.rank_mean(more, candidates(list(more.index)))
    pd.testing.assert_series_equal(after[list("abcd")], before)
    assert after[["x", "y"]].isna().all()
    reasons = selectors.vetoes(more)
    assert (reasons[list("abcd")] == "").all()
    assert "2.0%" in reasons["x"]
    assert reasons["y"].startswith("not finite: 1; 100.0%")
    assert selectors.choose(more, candidates(list(more.index))).ranking.index.tolist() == ["c", "a", "b", "d"]
    assert selectors.without_vetoes(more, candidates(list(more.index)))["x"] > after.max()


def test_all_vetoed_or_nothing_known_abstains():
    scores, described = table(**FULL, non_finite=[1.0] * 4)
    choice = selectors.choose(scores, described)
    assert (choice.abstains, choice.deploy, choice.top) == ("every candidate is vetoed", [], [])
    scores, described = table(saturation=[1.0, 2.0, 3.0, 4.0])
    described.loc["b", "algorithm"] = "bc"
    choice = selectors.choose(scores, described)
    assert (choice.abstains, choice.deploy) == ("no diagnostic to rank by", ["b"])
    choice = selectors.choose(scores, described, selectors.single("fqe", "high"))
    assert (choice.abstains, choice.deploy) == ("no candidate has a score", ["b"])


def test_cloning_that_fails_a_health_check_is_not_fallen_back_on():
    scores, described = table(saturation=[1.0, 2.0, 3.0, 4.0], non_finite=[0.0, 1.0, 0.0, 0.0])
    described.loc[["b", "c"], "algorithm"] = "bc"
    assert selectors.choose(scores, described).deploy == ["c"]
    scores.loc["c", "non_finite"] = 1.0
    assert selectors.choose(scores, described).deploy == []


def test_equal_means_of_ranks_tie_whatever_the_order_of_their_sum():
    random = np.random.default_rng(0)
    names = [f"c{i}" for i in range(20)]
    columns = ["fqe_lcb", "behaviour_advantage", "action_distance", "ood_fraction"]
    for _ in range(200):
        scores = pd.DataFrame({c: random.permutation(20).astype(float) for c in columns}, index=names)
        found = selectors.rank_mean(scores, candidates(names))
        ranks = scores.rank()
        exact = ranks["fqe_lcb"] + ranks["behaviour_advantage"] - ranks["action_distance"] - ranks["ood_fraction"]
        assert (found == found.max()).sum() == (exact == exact.max()).sum()


def test_order_duplicates_and_units_do_not_matter():
    random = np.random.default_rng(0)
    names = [f"p{i}" for i in range(20)]
    scores = pd.DataFrame({name: random.normal(size=20) for name in FULL}, index=names)
    scores.loc["p3"] = scores.loc["p11"].to_numpy()
    described = candidates(names)
    found = selectors.choose(scores, described)
    assert found.ranking["p3"] == found.ranking["p11"]
    shuffled = random.permutation(names)
    again = selectors.choose(scores.loc[shuffled], described.loc[shuffled])
    pd.testing.assert_series_equal(again.ranking, found.ranking, check_exact=True)
    assert (again.top, again.deploy) == (found.top, found.deploy)
    affine = scores.assign(fqe_lcb=1e6 * scores["fqe_lcb"] - 5, behaviour_advantage=1e6 * scores["behaviour_advantage"])
    pd.testing.assert_series_equal(selectors.choose(affine, described).ranking, found.ranking, check_exact=True)


@pytest.mark.parametrize(
    ("advantage", "bound", "cloned", "abstains"),
    [
        (-0.1, 9.0, 10.0, True),
        (0.1, 9.0, 10.0, False),
        (-0.1, 11.0, 10.0, False),
        (np.nan, 9.0, 10.0, False),  # what is not known does not hold
        (-0.1, np.nan, 10.0, False),
    ],
)
def test_fallback_to_cloning(advantage, bound, cloned, abstains):
    scores = pd.DataFrame(
        {
            "behaviour_advantage": [advantage, 0.0, 0.0],
            "fqe_lcb": [bound, 0.0, 1.0],
            "fqe": [bound + 1, 20.0, cloned],
            "action_distance": [0.1, 0.5, 0.6],
            "ood_fraction": [0.0, 0.5, 0.6],
        },
        index=["winner", "bc early", "bc late"],
    )
    described = candidates(list(scores.index), ["iql", "bc", "bc"], [100, 50, 100])
    described["run"] = ["iql run", "bc run", "bc run"]
    choice = selectors.choose(scores, described)
    assert choice.ranking.index[0] == "winner"
    assert bool(choice.abstains) == abstains
    assert choice.deploy == (["bc late"] if abstains else ["winner"])
    assert not selectors.choose(scores, described, selectors.without_fallback).abstains
    no_bc = described.assign(algorithm="iql")
    assert not selectors.choose(scores, no_bc).abstains


def test_the_bound_of_the_advantage():
    scores, described = table(**FULL)
    described.loc["d", "algorithm"] = "bc"
    scores["fqe"] = 100.0
    assert selectors.rank_mean(scores, described).attrs.get("abstains") is None  # the winner's advantage is 0.3
    scores.attrs["standard_error"] = pd.DataFrame({"behaviour_advantage": [0.2] * 4}, index=scores.index)
    assert "cloning has 100" in selectors.rank_mean(scores, described).attrs["abstains"]  # 0.3 - 1.645 * 0.2 < 0
    assert selectors.rank_mean(scores.assign(behaviour_advantage_lcb=0.01), described).attrs.get("abstains") is None


def test_coverage_moves_the_weight():
    scores, described = table(**FULL)
    value, support = (f(scores, described) for f in (selectors.value_only, selectors.support_only))
    scores.attrs["coverage"] = 0.25
    np.testing.assert_allclose(selectors.coverage_weighted(scores, described), 0.25 * value + 0.75 * support)
    scores.attrs["coverage"] = 0.0
    np.testing.assert_allclose(selectors.coverage_weighted(scores, described), support)
    scores.attrs = {}
    found = selectors.coverage_weighted(scores, described)
    np.testing.assert_allclose(found, (value + support) / 2)
    assert "not known" in found.attrs["notes"][-1]


def test_with_fit_group():
    scores, described = table(**FULL, td_error=[4.0, 3.0, 2.0, 1.0])
    base = selectors.rank_mean(scores, described)
    np.testing.assert_allclose(selectors.with_fit(scores, described), (2 * base + np.array([1, 3, 5, 7]) / 8) / 3)


def test_what_is_available():
    scores, described = table(**FULL, out_of_range=[0.0] * 4, secret=[1.0, 2.0, 3.0, 4.0], empty=[np.nan] * 4)
    names = set(selectors.available(scores))
    assert set(FULL) <= names
    assert {"rank_mean", "rank_mean_no_vetoes", "value_only", "support_only"} <= names
    assert not names & {"rank_mean_coverage", "rank_mean_fit", "out_of_range", "secret", "empty"}
    more = selectors.available(scores, {"secret": "low", "empty": "high"})
    assert "secret" in more
    assert "empty" not in more
    assert selectors.choose(scores, described, more["secret"]).top[0] == "a"
    assert set(selectors.available(scores[["fqe_lcb"]])) == {"fqe_lcb"}


def test_a_selector_of_yours(tmp_path):
    scores, described = table(**FULL)
    file = tmp_path / "mine.py"
    file.write_text("def best(scores, candidates):\n    return scores['fqe_lcb'] * 2\nlength = lambda s, c: [1, 2]\n")
    mine = selectors.find(f"{file}:best", {})
    assert selectors.choose(scores, described, mine).top[0] == "d"
    with pytest.raises(UserError, match="one score for each of the 4"):
        selectors.choose(scores, described, selectors.find(f"{file}:length", {}))
    for name, message in ((f"{file}:none", "no function none"), ("x.py:f", "no file"), ("rank_meen", "rank_mean")):
        with pytest.raises(UserError, match=message):
            selectors.find(name, selectors.SELECTORS)
