"""What a selector is worth, by hand on tiny pools; reading; uncertainty; real sweeps where they are present."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from offrl import benchmark_selection, statistics
from offrl.errors import UserError
from offrl.reporting import selection_benchmark
from offrl.selection import benchmark as bench

SWEEPS = Path(__file__).resolve().parents[2] / "shared" / "data" / "sweeps"
needs_sweeps = pytest.mark.skipif(not SWEEPS.is_dir(), reason="../shared/data is not here")


def pool(returns, name="pool", errors=np.nan, episodes=None, reference=None, rows=None, scores=None, **columns):
    """`rows`: (run, algorithm, setting, seed, step) for each candidate."""
    names = [f"c{i}" for i in range(len(returns))]
    rows = rows or [(n, "iql", n, 0, 10) for n in names]
    candidates = pd.DataFrame(rows, index=names, columns=["run", "algorithm", "setting", "seed", "step"])
    candidates["member"] = 0
    scores = pd.DataFrame(scores if scores is not None else {"fqe": returns}, index=names)
    return bench.ScoredPool(
        name,
        candidates,
        scores,
        pd.Series(np.asarray(returns, float), index=names),
        pd.Series(errors, index=names, dtype=float),
        None if episodes is None else pd.DataFrame(episodes, index=names),
        reference,
    )


# returns of two runs of iql (three checkpoints each), one of td3_bc, two of bc; all negative
ROWS = [
    ("i0", "iql", "", 0, 10), ("i0", "iql", "", 0, 20), ("i0", "iql", "", 0, 30),
    ("i1", "iql", "temperature=9", 1, 10), ("i1", "iql", "temperature=9", 1, 20), ("i1", "iql", "temperature=9", 1, 30),
    ("t0", "td3_bc", "", 0, 30), ("b0", "bc", "", 0, 30), ("b1", "bc", "", 1, 30),
]  # fmt: skip
RETURNS = [-900, -500, -700, -1000, -800, -600, -550, -650, -750]


def decide(p, scores, abstains=False):
    plain = bench.Resamples.none(p)
    found = bench.decisions(p, np.asarray(scores, float), abstains, plain)
    found = {metric: float(value[0]) for metric, value in found.items()}
    return found | bench.budget_metrics(p, np.asarray(scores, float), abstains)


def test_decisions_by_hand_with_negative_returns():
    p = pool(RETURNS, rows=ROWS, reference=(-1000, 0))
    found = decide(p, [0, 1, 9, 2, 3, 4, 5, 6, 7])  # picks i0's last checkpoint: -700, then b1 -750, b0 -650
    assert found["regret@1"] == pytest.approx(200 / 500)
    assert found["regret@3"] == pytest.approx(150 / 500)
    assert found["worst@3"] == pytest.approx(250 / 500)
    assert found["mean@3"] == pytest.approx(300 / 500)
    assert found["precision@1"] == 0
    assert found["precision@3"] == 0  # the best three are -500, -550, -600
    assert found["good@1"] == 0
    assert found["safe@1"] == 1  # bc's mean is -700
    assert found["uplift over bc"] == 0
    # the last checkpoints: -700, -600, -550, -650, -750; mean -650
    assert found["harm"] == 1
    assert found["harm to own run"] == 0
    assert found["uplift over last"] == pytest.approx(-50 / 500)
    # last checkpoints with nothing swept: -700, -550, -650, -750
    assert found["uplift over default"] == pytest.approx((-700 + 662.5) / 500)
    assert found["return"] == -700
    assert found["normalized score"] == pytest.approx(30)
    assert found["normalized score lost"] == pytest.approx(20)
    assert found["eop@1"] == pytest.approx(0.6)
    assert found["eop@20"] == 1
    assert found["evaluations worth"] == 2  # a random pick has -716.7
    assert found["abstains"] == 0
    early = decide(p, [9, 0, 0, 0, 0, 0, 0, 0, 0])
    assert early["harm to own run"] == 1
    assert early["worst@3"] < early["regret@3"] <= 1


def test_ties_are_expectations():
    p = pool(RETURNS, rows=ROWS)
    found = decide(p, [0, 1, 1, 0, 0, 1, 0, 0, 0])  # -500, -700 and -600 share the first place
    assert found["return"] == -600
    assert found["regret@1"] == pytest.approx(100 / 500)
    assert found["regret@3"] == 0
    assert found["safe@1"] == 1
    assert found["harm"] == pytest.approx(1 / 3)
    assert found["good@1"] == pytest.approx(1 / 3)
    assert found["precision@1"] == pytest.approx(1 / 3)
    assert found["precision@3"] == pytest.approx(2 / 3)
    constant = decide(p, np.zeros(9))
    np.testing.assert_allclose(
        [constant[f"eop@{b}"] for b in bench.BUDGETS],
        (statistics.expected_online_performance(RETURNS, bench.BUDGETS) + 1000) / 500,
    )
    assert constant["regret@1"] == pytest.approx((np.mean(RETURNS) + 500) / -500)
    assert constant["regret@3"] == pytest.approx(1 - constant["eop@3"])
    assert constant["evaluations worth"] == 1
    best = decide(p, RETURNS)
    assert (best["regret@1"], best["evaluations worth"], best["precision@3"]) == (0, 9, 1)
    infinite = decide(p, [-np.inf, np.inf, *[0] * 7])
    assert infinite["return"] == -500


def test_what_is_not_scored_is_not_chosen():
    p = pool(RETURNS, rows=ROWS)
    found = decide(p, [5, np.nan, *[np.nan] * 7])
    assert found["regret@1"] == pytest.approx(0.8)
    assert found["regret@3"] == pytest.approx(0.8)  # there is no second one


def test_abstention_is_the_deployment_of_cloning():
    p = pool(RETURNS, rows=ROWS)
    for found in (decide(p, RETURNS, abstains=True), decide(p, np.full(9, np.nan))):
        assert found["abstains"] == 1
        assert found["return"] == -700
        assert found["regret@1"] == found["regret@3"] == pytest.approx(0.4)
        assert (found["safe@1"], found["harm"], found["harm to own run"], found["uplift over bc"]) == (1, 1, 0, 0)
        assert found["eop@20"] == pytest.approx(0.6)
    without = pool([0, 1, 5])
    found = decide(without, [np.nan] * 3)
    assert found["regret@1"] == pytest.approx(0.6)  # a random pick
    assert np.isnan(found["safe@1"])


def test_references_by_hand():
    p = pool(RETURNS, rows=ROWS)
    found = {name: decide(p, s, bool(s.attrs.get("abstains"))) for name, s in bench.references(p).items()}
    assert set(found) == set(bench.REFERENCES)
    assert found["random pick"]["return"] == pytest.approx(np.mean(RETURNS))
    assert found["last checkpoint"]["return"] == -650
    assert found["default setting"]["return"] == -662.5
    assert (found["bc"]["return"], found["bc"]["safe@1"]) == (-700, 1)
    assert found["best algorithm"]["return"] == -550  # td3_bc; iql's last checkpoints have -650
    assert found["oracle"]["regret@1"] == 0
    assert set(bench.references(pool([1, 2]))) == {"random pick", "best algorithm", "oracle"}


def test_correlations_by_hand():
    p = pool(RETURNS, rows=ROWS)
    scores = np.array([1.0, 3, 2, 3, 2, 1, 9, 8, 7])
    found = bench.correlation_metrics(p, scores)
    assert found["spearman within run"] == pytest.approx((1 - 1) / 2)
    assert found["kendall within run"] == pytest.approx(0)
    assert np.isnan(found["spearman within algorithm"])  # no algorithm has three last checkpoints
    # mean ranks of last checkpoints: iql 1.5, td3_bc 5, bc 3.5; returns -650, -550, -700
    assert found["spearman across algorithms"] == pytest.approx(0.5)
    assert found["spearman pooled"] == pytest.approx(statistics.spearman(scores, RETURNS))
    several = pool([1, 2, 3, 30, 20, 10], rows=[(f"r{i}", "ab"[i // 3], f"{i}", 0, 1) for i in range(6)])
    within = bench.correlation_metrics(several, np.array([1.0, 2, 3, 4, 5, 6]))
    assert within["spearman within algorithm"] == 0  # +1 in a, -1 in b, while pooled they hide it
    assert within["spearman pooled"] > 0.5
    assert np.isnan(within["spearman within run"])


def test_pools_with_nothing_to_select():
    assert pool([1, 1]).dropped == "all candidates have the same return"
    assert pool([1]).dropped == "fewer than two candidates"
    assert "3 standard errors" in pool([1, 2], errors=0.5).dropped
    assert pool([1, 2], errors=0.3).dropped == ""
    flat, good = pool([1, 1], "flat"), pool([1, 2, 3], "good")
    result = bench.benchmark([flat, good], resamples=50, within=5)
    assert set(result.points["pool"]) == {"good"}
    assert result.pools.set_index("pool").loc["flat", "dropped"]
    with pytest.raises(UserError, match="no pool has anything to select: flat: all"):
        bench.benchmark([flat])


def test_runs_are_resampled_with_all_their_checkpoints():
    rows = [(f"r{run}", "iql", "", run, step) for run in range(3) for step in (1, 2)]
    rows += [("b", "bc", "", 0, 1)]
    p = pool([0, 1, 10, 11, 20, 21, 5], rows=rows)
    drawn = bench.resample(p, 4000, np.random.default_rng(0))
    assert drawn.present[:, 6].all()  # the only run of its setting is always there
    for run in range(3):
        np.testing.assert_array_equal(drawn.present[:, 2 * run], drawn.present[:, 2 * run + 1])
        assert drawn.present[:, 2 * run].mean() == pytest.approx(1 - (2 / 3) ** 3, abs=0.03)
    assert drawn.present[:, :6].any(1).all()
    np.testing.assert_array_equal(drawn.returns[0], p.returns)
    found = bench.decisions(p, p.returns.to_numpy(), False, drawn)
    np.testing.assert_array_equal(found["regret@1"], 0)  # the best one present is always put first
    assert bench.resample(pool([1, 2, 3]), 10, np.random.default_rng(0)) is None


def test_means_over_resampled_runs_vary_as_those_of_a_bootstrap():
    runs = 5
    values = np.arange(runs) ** 2.0
    p = pool([*values, 3.0], rows=[(f"b{i}", "bc", "", i, 1) for i in range(runs)] + [("i", "iql", "", 0, 1)])
    found = bench.decisions(p, np.zeros(runs + 1), True, bench.resample(p, 20_000, np.random.default_rng(0)))
    assert found["return"].std() == pytest.approx(values.std() / np.sqrt(runs), rel=0.03)


def test_episodes_are_resampled_together_and_errors_singly():
    noise = 5 * np.random.default_rng(0).normal(size=40)
    episodes = np.array([noise, noise + 1, noise + 3])
    p = pool(episodes.mean(1), episodes=episodes)
    drawn = bench.resample(p, 500, np.random.default_rng(1))
    np.testing.assert_allclose(drawn.returns[:, 2] - drawn.returns[:, 0], 3)  # shared reset seeds cancel
    assert drawn.returns[:, 0].std() == pytest.approx(noise.std() / np.sqrt(40), rel=0.15)
    assert p.reliability.ceiling == pytest.approx(1)
    alone = bench.resample(pool([0, 1, 3], errors=0.5), 2000, np.random.default_rng(1))
    np.testing.assert_allclose(alone.returns.std(0), 0.5, rtol=0.1)
    assert abs(np.corrcoef(alone.returns.T)[0, 1]) < 0.1
    assert pool([0, 1, 3], errors=0.5).reliability.reliability == pytest.approx(1 - 0.25 / np.var([0, 1, 3], ddof=1))


def several_pools(count=6):
    random = np.random.default_rng(0)
    pools = []
    for number in range(count):
        rows = [(f"r{a}{s}", a, "", s, step) for a in ("iql", "td3_bc", "bc") for s in range(2) for step in (1, 2, 3)]
        returns = random.normal(size=18)
        scores = {"fqe_lcb": returns + 0.1 * random.normal(size=18), "action_distance": random.normal(size=18)}
        pools.append(pool(returns, f"p{number}", rows=rows, scores=scores))
    return pools


def test_the_whole_benchmark_and_that_it_repeats(tmp_path):
    result = bench.benchmark(several_pools(), resamples=300, within=20, seed=3)
    again = bench.benchmark(several_pools(), resamples=300, within=20, seed=3)
    for name in ("points", "summary", "comparisons", "pools"):
        pd.testing.assert_frame_equal(getattr(result, name), getattr(again, name))
    assert "cannot be below 0.0312" in result.notes[0]
    regret = result.summary[result.summary["metric"] == "regret@1"].set_index("selector")
    assert set(regret.index) == {"rank_mean", "rank_mean_no_fallback", "fqe_lcb", "action_distance", *bench.REFERENCES}
    assert regret.loc["fqe_lcb", "mean"] < regret.loc["random pick", "mean"]
    assert (regret["low"] <= regret["mean"] + 1e-9).all()
    assert (regret["mean"] <= regret["high"] + 1e-9).all()
    assert regret.loc["oracle", ["mean", "low", "high"]].tolist() == [0, 0, 0]
    assert set(regret["kind"]) == {"composite", "single", "reference", "oracle"}
    comparisons = result.comparisons.set_index("other")
    assert set(comparisons["baseline"]) == {"rank_mean"}
    assert not set(bench.KNOWING) & set(comparisons.index)
    values = result.points[result.points["metric"] == "regret@1"].pivot(
        index="pool", columns="selector", values="value"
    )
    difference = values["rank_mean"] - values["fqe_lcb"]
    row = comparisons.loc["fqe_lcb"]
    assert row["difference"] == pytest.approx(difference.mean())
    assert row["p"] == pytest.approx(statistics.sign_flip_p(difference))
    assert row[["better", "equal", "worse"]].sum() == row["pools"] == 6
    assert (comparisons["p_holm"] >= comparisons["p"]).all()

    selection_benchmark.write(result, tmp_path)
    assert (tmp_path / "regret.png").stat().st_size > 10_000
    kept = json.loads((tmp_path / "benchmark.json").read_text())
    assert len(kept["summary"]) == len(result.summary)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "points.csv"), result.points, rtol=1e-4)
    for width in (80, 140):
        text = io.StringIO()
        selection_benchmark.show(result, Console(file=text, width=width))
        assert all(len(line.rstrip()) <= width for line in text.getvalue().splitlines() if "│" in line)
        assert "rank_mean_no_fallback" in text.getvalue()
        assert "…," not in text.getvalue()


def test_a_selector_that_a_pool_cannot_feed_abstains_there():
    one, two = several_pools(2)
    two.scores["fqe_lcb"] = np.nan
    with_all = bench.benchmark([one, two], resamples=50, within=5)
    assert "fqe_lcb" in with_all.notes[0]
    named = bench.benchmark([one, two], ["fqe_lcb"], resamples=50, within=5)
    abstained = named.points[(named.points["metric"] == "abstains") & (named.points["selector"] == "fqe_lcb")]
    assert abstained["value"].tolist() == [0, 1]


def test_a_selector_of_yours_is_asked_and_one_that_is_not_there_refused(tmp_path):
    (tmp_path / "mine.py").write_text("def by_fqe(scores, candidates):\n    return scores['fqe_lcb']\n")
    pools = several_pools(2)
    found = bench.benchmark(pools, [f"{tmp_path}/mine.py:by_fqe", "fqe_lcb"], resamples=50, within=5).points
    mine, theirs = (found[found["selector"] == name].set_index(["pool", "metric"])["value"] for name in
                    (f"{tmp_path}/mine.py:by_fqe", "fqe_lcb"))  # fmt: skip
    assert mine.xs("abstains", level="metric").tolist() == [0, 0]
    pd.testing.assert_series_equal(mine, theirs, check_names=False)
    with pytest.raises(UserError, match="there is no file"):
        bench.benchmark(pools, [f"{tmp_path}/nowhere.py:by_fqe"], resamples=50, within=5)


def test_a_composite_that_a_pool_feeds_in_part_ranks_by_what_there_is():
    one, two = several_pools(2)
    one = replace(one, scores=one.scores.assign(behaviour_advantage=one.scores["fqe_lcb"]))
    found = bench.benchmark([one, two], ["value_only"], resamples=50, within=5).points
    abstained = found[(found["metric"] == "abstains") & (found["selector"] == "value_only")]
    assert abstained["value"].tolist() == [0, 0]


def tidy(tmp_path, oracle=None, **changes):
    """A diagnostics table of two datasets, 4 candidates each, and an oracle table."""
    rows = []
    for number, data in enumerate(("hopper", "walker2d")):
        for i in range(4):
            for diagnostic, value in (("fqe_lcb", i), ("ood_fraction", 0.1 * i), ("strange", -i)):
                rows.append(
                    {"candidate": f"run{number}/0/{i}", "run": f"run{number}", "algorithm": "iql", "setting": "",
                     "member": 0, "seed": 0, "step": i, "dataset": data, "fingerprint": data * 3,
                     "diagnostic": diagnostic, "value": value, "standard_error": 0.1, "seconds": 1.0, "reason": ""}
                )  # fmt: skip
    rows.append(dict(rows[0], candidate=np.nan, diagnostic="coverage", value=0.3))
    table = pd.DataFrame(rows).assign(**changes)
    table.to_csv(tmp_path / "diagnostics.csv", index=False)
    if oracle is None:
        oracle = pd.DataFrame({"candidate": table["candidate"].dropna().unique()})
        oracle["return"] = np.arange(8.0)
    oracle.to_csv(tmp_path / "oracle.csv", index=False)
    return tmp_path / "diagnostics.csv", tmp_path / "oracle.csv"


def test_pools_are_read_one_for_each_dataset(tmp_path):
    warnings = []
    hopper, walker = bench.read_pools(*tidy(tmp_path), warnings.append)
    assert (hopper.name, walker.name, warnings) == ("hopper", "walker2d", [])
    assert hopper.scores.attrs["coverage"] == 0.3
    assert "coverage" not in walker.scores.attrs
    assert hopper.scores.attrs["standard_error"].loc["run0/0/1", "fqe_lcb"] == 0.1
    assert walker.returns.tolist() == [4, 5, 6, 7]
    assert hopper.last.tolist() == [False, False, False, True]
    result = bench.benchmark([hopper, walker], resamples=50, within=5)
    assert "strange" not in set(result.points["selector"])
    cost = result.summary[result.summary["metric"] == "seconds"].set_index("selector")["mean"]
    # of the four candidates, a second for each diagnostic that is ranked by
    assert cost[["fqe_lcb", "ood_fraction", "rank_mean"]].tolist() == [4, 4, 8]
    low = bench.benchmark([hopper, walker], ["strange"], directions={"strange": "low"}, resamples=50, within=5)
    assert low.points.set_index(["selector", "metric"]).loc[("strange", "regret@1"), "value"].tolist() == [0, 0]
    diagnostics = pd.read_csv(tmp_path / "diagnostics.csv")
    diagnostics["dataset"] = "hopper"
    diagnostics.to_csv(tmp_path / "diagnostics.csv", index=False)
    names = [p.name for p in bench.read_pools(tmp_path / "diagnostics.csv", tmp_path / "oracle.csv")]
    assert names == ["hopper [hopperho]", "hopper [walker2d]"]  # other data are never thrown together


def test_returns_of_episodes_and_broken_policies(tmp_path):
    rows = [
        {"candidate": f"run0/0/{i}", "episode": e, "return": 10 * i + e, "reference_random": 0, "reference_expert": 50}
        for i in range(3)
        for e in range(4)
    ]
    rows[-1]["return"] = np.nan  # an action of the last policy was not finite
    warnings = []
    tables = tidy(tmp_path, oracle=pd.DataFrame(rows))
    with pytest.raises(UserError, match="walker2d: no candidate"):
        bench.read_pools(*tables, warnings.append)
    pd.read_csv(tables[0]).query("dataset == 'hopper'").to_csv(tables[0], index=False)
    (hopper,) = bench.read_pools(*tables, warnings.append)
    assert "1 of 4 candidates have no return" in warnings[-2]
    assert "counted as the lowest" in warnings[-1]
    assert hopper.returns.tolist() == [1.5, 11.5, 1.5]
    assert hopper.errors.iloc[0] == pytest.approx(np.std([0, 1, 2, 3], ddof=1) / 2)
    assert hopper.episodes.shape == (3, 4)
    assert hopper.reference == (0, 50)


def test_returns_of_runs_are_looked_up(tmp_path):
    diagnostics, oracle = tidy(tmp_path)
    expected = bench.read_pools(diagnostics, oracle)
    oracle.unlink()
    table = pd.read_csv(diagnostics)
    table["run"] = [str(tmp_path / run) for run in table["run"]]
    table.to_csv(diagnostics, index=False)
    with pytest.raises(UserError, match="run0: no returns yet; score it with"):
        benchmark_selection.command([str(tmp_path)])
    for number in range(2):
        (tmp_path / f"run{number}" / "oracle").mkdir(parents=True)
        rows = [
            {"env": "Hopper-v5", "member": 0, "step": step, "episode": e, "reset_seed": first + e,
             "return": 4 * number + step + sign}
            for step in range(4)
            for first, signs in ((100, (-1, 1)), (101, (1,)))  # from another first seed, the second once more
            for e, sign in enumerate(signs)
        ]  # fmt: skip
        pd.DataFrame(rows).to_csv(tmp_path / f"run{number}" / "oracle" / "returns.csv", index=False)
    found = bench.read_pools(diagnostics, None)
    for ours, theirs in zip(found, expected, strict=True):
        pd.testing.assert_series_equal(ours.returns, theirs.returns, check_names=False)
        assert ours.errors.tolist() == [1] * 4
    benchmark_selection.command([str(tmp_path), "--resamples", "50", "--within", "5"])


def table_file(tmp_path, **changes):
    table = pd.DataFrame(
        {"task": ["a"] * 3 + ["b"] * 3, "alg": ["bc", "x", "y"] * 2, "online": [-3, -2, -1, 5, 9, 7],
         "q1": [1, 2, 3, 1, 2, 3], "q2": [1, 4, 3, 1, 2, np.nan], "loss": [3, 2, 1, 1, 2, 3]}
    ).assign(**changes)  # fmt: skip
    table.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_a_plain_table(tmp_path):
    file = table_file(tmp_path)
    parse = bench.Score.parse
    scores = [parse("q=q1,q2"), parse("lower=lcb:q1,q2"), parse("loss=-loss"), parse("most=max:q1,q2")]
    a, b = bench.read_table(file, scores, "online", pool=["task"], algorithm=["alg"])
    assert (a.name, b.name) == ("a", "b")
    assert a.scores["q"].tolist() == [1, 3, 3]
    assert a.scores["lower"].tolist() == pytest.approx([1, 3 - np.sqrt(2), 3])
    assert np.isnan(b.scores["q"].iloc[2])
    assert scores[2].direction == "low"
    assert parse("ood_fraction=x").direction == "low"
    assert a.cloned.tolist() == [True, False, False]
    result = bench.benchmark([a, b], directions={s.name: s.direction for s in scores}, resamples=50, within=5)
    regret = result.points[result.points["metric"] == "regret@1"].set_index(["selector", "pool"])["value"]
    assert regret["loss"].tolist() == [0, 1]
    assert regret["q"].tolist() == [0.25, 0]  # a tie of the two better ones; the one without a score is not chosen
    assert "last checkpoint" not in regret  # every policy is one: that is a random pick


def test_rows_of_a_plain_table_are_runs_of_one_setting_where_their_seed_or_step_is_told(tmp_path):
    rows = [(a, seed, step, 3 * seed + step) for a in ("x", "y") for seed in range(3) for step in range(3)]
    pd.DataFrame(rows, columns=["alg", "seed", "step", "online"]).to_csv(tmp_path / "t.csv", index=False)
    told = {"algorithm": ["alg"], "seed": "seed", "step": "step"}
    (p,) = bench.read_table(tmp_path / "t.csv", [bench.Score.parse("q=online")], "online", **told)
    assert (len(np.unique(p.member)), p.last.sum(), len(np.unique(p.configuration))) == (6, 6, 2)
    (p,) = bench.read_table(tmp_path / "t.csv", [bench.Score.parse("q=online")], "online", algorithm=["alg"])
    assert len(np.unique(p.configuration)) == 18


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "offrl.benchmark_selection", *map(str, arguments)], capture_output=True, text=True
    )


def test_the_command(tmp_path):
    file = table_file(tmp_path)
    done = run("--table", file, "--return", "online", "--pool", "task", "--score", "q=q1", "--output", tmp_path / "out",
               "--resamples", 50, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pools"][0]["pool"] == "a"
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "points.csv", "summary.csv", "comparisons.csv", "pools.csv", "benchmark.json", "regret.png",
    }  # fmt: skip
    missing = run(tmp_path / "nowhere")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "there is no such file" in missing.stderr
    assert "EOP@B" in run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either pools or --table"),
        (["--table", "FILE"], "needs --return"),
        (["--table", "FILE", "--return", "online", "--score", "q1"], "write NAME=COLUMN"),
        (["--table", "FILE", "--return", "onlin", "--score", "q=q1"], "no column onlin; did you mean online?"),
        (["--table", "FILE", "--return", "online", "--score", "q=q7"], "no column q7"),
        (["--table", "FILE", "--return", "alg", "--score", "q=q1"], "column alg, row 1: 'bc' is no number"),
        (["--table", "FILE", "--return", "online", "--score", "fqe=-q1"], "a high fqe is good"),
        (["--table", "FILE", "--return", "online", "--score", "q=q1", "--score", "q=q2"], "the same name"),
        (["--table", "FILE", "--return", "online", "--score", "q=q1", "--policy", "alg"], "policy bc twice"),
        (["--table", "FILE", "--return", "online", "--score", "q=q1", "--selectors", "r"], "selector r: not among"),
        (["--table", "FILE", "--return", "online", "--score", "q=q1", "--baseline", "r"], "baseline r"),
        (["--table", "FILE", "--return", "online", "--score", "q=q1", "--resamples", "0"], "at least 1"),
        (["POOL", "--direction", "q=up"], "write DIAGNOSTIC=high"),
        (["EMPTY,EMPTY"], "not a CSV table"),
        (["FILE,FILE"], "no column candidate"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, message):
    file = table_file(tmp_path)
    (tmp_path / "empty.csv").write_text("")
    arguments = [a.replace("FILE", str(file)).replace("EMPTY", str(tmp_path / "empty.csv")) for a in arguments]
    with pytest.raises(UserError, match=message) as error:
        benchmark_selection.command(arguments)
    assert "\n" not in str(error.value)


def test_tables_that_contradict_themselves(tmp_path):
    diagnostics, oracle = tidy(tmp_path)
    table = pd.read_csv(diagnostics)
    pd.concat([table, table[:1]]).to_csv(diagnostics, index=False)
    with pytest.raises(UserError, match="has fqe_lcb twice"):
        bench.read_pools(diagnostics, oracle)
    returns = pd.DataFrame({"candidate": ["a", "a"], "episode": [0, 0], "return": [1, 2]})
    with pytest.raises(UserError, match="has episode 0 twice"):
        bench.read_pools(*tidy(tmp_path, oracle=returns))
    with pytest.raises(UserError, match="no column episode"):
        bench.read_pools(*tidy(tmp_path, oracle=returns[["candidate", "return"]]))
    with pytest.raises(UserError, match="several environments"):
        bench.read_pools(*tidy(tmp_path, oracle=returns.assign(env=["x", "y"])))


@needs_sweeps
def test_fqe_hardly_orders_neorls_policies():
    """The published sweep: 3,900 policies on 26 tasks, where FQE's median per-task rank correlation is near 0."""
    pools = bench.read_table(
        SWEEPS / "neorl_policies.csv",
        [bench.Score.parse("fqe=fqe_0,fqe_1,fqe_2")],
        "online_return",
        pool=["task"],
        algorithm=["algorithm"],
        setting=["config_id"],
        seed="seed",
    )
    assert (len(pools), sum(len(p.returns) for p in pools)) == (26, 3900)
    correlations = [bench.correlation_metrics(p, p.scores["fqe"].to_numpy())["spearman pooled"] for p in pools]
    assert abs(np.median(correlations)) < 0.1
    # the oracle's orders are perfect, and of 150 policies BC's three runs are the reference
    assert all(p.cloned.sum() == 3 for p in pools)
