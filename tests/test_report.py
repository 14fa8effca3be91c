"""python -m offrl.report: what the page says, that nothing breaks out of it, and that it works in a real Chromium."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import browser
import matplotlib
import numpy as np
import pandas as pd
import pytest
from made_runs import make_run, make_selection

import offrl.data
import offrl.report
from offrl.errors import UserError
from offrl.protocol import scores
from offrl.reporting import collect, pictures, report, sections
from offrl.reporting import page as html

EVIL = "<script>window.broken=1</script>\"'&$x_1$<img src=x onerror=window.broken=1>"


def each(*scores: float) -> dict[int, dict[int, list[float]]]:
    """Members whose three checkpoints have these mean returns, two episodes each."""
    return {i: {10: [s / 2, s / 2], 20: [s - 4, s + 4], 30: [s * 0.75] * 2} for i, s in enumerate(scores)}


def diagnostics_of(folder: Path, runs) -> None:
    rows = []
    for run in runs:
        for member in run.members:
            for i, step in enumerate((10, 20, 30)):
                name = f"{run.path.name}/{member['member']}/{step}"
                common = {"candidate": name, "run": str(run.path), "algorithm": run.info["algorithm"]["name"],
                          "member": member["member"], "seed": member["seed"], "step": step, "seconds": 0.5}  # fmt: skip
                rows.append({**common, "diagnostic": "dataset_q", "value": [1.0, 3.0, 2.0][i], "reason": ""})
                rows.append({**common, "diagnostic": "action_distance", "value": [3.0, 1.0, 2.0][i], "reason": ""})
                rows.append({**common, "diagnostic": "fqe", "value": np.nan, "reason": f"no critic {EVIL}"})
    rows.append({"diagnostic": "coverage", "value": 0.5})  # of the data: of no run, member or step
    pd.DataFrame(rows).to_csv(folder / "diagnostics.csv", index=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two datasets, three algorithms, one in two settings, one with a wicked name; a selection; its page."""
    folder = tmp_path_factory.mktemp("report")
    hopper = [
        make_run(folder / "hopper" / "bc", each(80, 84), "bc"),
        make_run(folder / "hopper" / "iql-1", each(100, 120, 110), "iql", options={"expectile": 0.7}),
        make_run(folder / "hopper" / "iql-2", each(60, 70), "iql", options={"expectile": 0.9}),
        make_run(folder / "hopper" / "evil", each(90, 91), EVIL),
    ]
    for name, second in (("bc", 50), ("iql", 60)):
        walker = ("d4rl:walker2d-medium-v2", "cccc", "Walker2d-v5")
        make_run(folder / "walker" / name, each(40, second), name, *walker)
    ranked = [(run, member["member"], step, score) for run in hopper for member in run.members
              for step, score in ((10, 0.2), (20, 0.5 + 0.01 * member["member"]), (30, 0.4))]  # fmt: skip
    selection = make_selection(folder / "hopper" / "selection", [*ranked[:-1], (hopper[3], 1, 30, None)])
    diagnostics_of(selection, hopper)
    answer = json.loads((selection / "selection.json").read_text())
    answer |= {
        "dataset": f"builtin:hopper/medium {EVIL}",
        "chances": [{"estimate": "fqe", "choice": 1.0, "bc": 0.5, "beats_bc": 0.91, "beats_behaviour": None}],
        "agreement": 0.42,
        "abstains": "",
        "held_out_episodes": 3,
        "data_checks": [{"check": "duplicates", "level": "warning", "message": f"two {EVIL}"}],
        "dissent": [{"selector": "last", "would_choose": "bc/0/30", "algorithm": "bc", "abstains": False,
                     "agrees": False, "place_of_choice": 3, "of": 24}],
        "workflow": [
            {"run": str(hopper[1].path), "algorithm": "iql", "member": 0, "seed": 0, "verdict": "overfitted",
             "step": 20, "advice": "train shorter", "reason": f"falls {EVIL}", "peak_step": 20},
            {"run": str(hopper[0].path), "algorithm": "bc", "member": 0, "seed": 0, "verdict": "unknown", "step": 30,
             "advice": "", "reason": "bc has no critic", "peak_step": None},
        ],
    }  # fmt: skip
    (selection / "selection.json").write_text(json.dumps(answer))
    found = report.make([folder], folder / "page" / "report.html")
    return folder, found, (folder / "page" / "report.html").read_text()


class Reader(HTMLParser):
    """Collects the elements, fails on ids that are there twice, and keeps the text of every table's cells."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.inside = tag in ("td", "th") or (self.inside and tag not in ("figure", "p"))

    def handle_endtag(self, tag):
        if tag in ("td", "th", "table"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def test_every_section_is_there_and_every_picture_beside_the_page(made):
    folder, found, page = made
    assert found["sections"] == ["scores", "curves", "aggregates", "regret", "selection", "workflow", "data"]
    for section in found["sections"]:
        assert f'<section id="{section}">' in page
    assert found["pictures"]
    for file in map(Path, found["pictures"]):
        assert file.parent == folder / "page" / "report_pictures"
        content = file.read_bytes()
        assert content.startswith(b"\x89PNG" if file.suffix == ".png" else b"<?xml")
    assert page.count("<svg") == len(found["pictures"]) / 2


def test_the_scores_are_those_of_the_runs_and_the_kinds_have_columns_of_their_own(made):
    _, found, page = made
    rows = Reader(page).rows
    head = next(row for row in rows if "members" in row)
    assert head == ["dataset", "algorithm", "setting", "members", "last", "selected", "best in hindsight", "data", "BC",
                    "last", "best"]  # fmt: skip
    assert rows[rows.index(head) - 1][-4:] == ["", "our scores, by checkpoint", "for comparison", "published"]
    table = {(row[0], row[1], row[2]): row[3:] for row in rows if len(row) == len(head)}
    iql = table["builtin:hopper/medium", "iql", "expectile=0.7"]
    # returns 100, 120, 110 at the best checkpoint, three quarters of it at the last; of 200; t(2) sd / sqrt 3
    assert iql == ["3", "41.2 ± 9.3", "55.0 ± 12.4", "55.0 ± 12.4", "20.0", "30.8", "–", "–"]
    walker = table["d4rl:walker2d-medium-v2", "bc", ""]
    assert walker[1].startswith("16.9 ±")
    assert walker[2].startswith("–offrl.select was not run on it")
    published = scores.published_scores("d4rl:walker2d-medium-v2", "bc")
    published = published[published["protocol"] == "last"]["score"]
    assert walker[-2] == " to ".join(dict.fromkeys(f"{end:.1f}" for end in (published.min(), published.max())))
    glance = next(row for row in rows if row[:1] == ["last checkpoint"])
    assert glance == ["last checkpoint", "data", "bc", EVIL, "iql expectile=0.7", "iql expectile=0.9", "iql"]
    assert rows[rows.index(glance) + 1][2] == iql[5] + " ± 9.5"  # t of 1 degree of freedom, 30 and 31.5
    json_row = next(r for r in found["scores"] if r["setting"] == "expectile=0.7" and r["kind"] == "selected")
    assert json_row["estimate"] == pytest.approx(55)


def test_what_a_selection_cost_and_what_the_diagnostics_were_worth(made):
    page = made[2]
    rows = Reader(page).rows
    regret = next(row for row in rows if row[:2] == ["builtin:hopper/medium", "bc"] and len(row) == 8)
    assert regret[2:] == ["2", "41.0", "41.0", "0.0", "10.2", "10.2"]  # 20 is both the best and the chosen
    distance = next(row for row in rows if row[0].startswith("action_distance"))
    assert distance[1:3] == ["low", "27 of 27"]
    assert next(row for row in rows if row[0].startswith("fqe"))[2].startswith("0 of 27no critic")
    assert next(row for row in rows if row[0] == "last")[1:5] == ["bc/0/30", "bc", "no", "3 of 24"]
    assert "P(beats BC) = 0.91" in page
    assert "Kendall’s W 0.42" in page
    assert "overfitted" in page
    assert "1 vetoed" in page


def test_no_string_from_outside_becomes_markup(made):
    page = made[2]
    reader = Reader(page)
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert EVIL not in page
    assert page.count("&lt;script&gt;") > 5  # it is shown, as text
    assert not [attributes for _, attributes in reader.tags if any(name.startswith("on") for name in attributes)]
    assert html.tag("a", "<b>", href='"><i>') == '<a href="&quot;&gt;&lt;i&gt;">&lt;b&gt;</a>'


def test_the_page_is_one_file_with_nothing_to_fetch_and_no_id_twice(made):
    page = made[2]
    reader = Reader(page)
    for tag, attributes in reader.tags:
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (tag, target)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', page))
    assert used <= set(ids)


def test_pictures_follow_the_theme_and_their_files_are_plain(made):
    _, found, page = made
    svg = page[page.index("<svg") : page.index("</svg>")]
    assert "var(--ink)" in svg
    assert "var(--c0)" in svg
    assert not re.findall(r"#[0-9a-f]{6}\b(?!-)", re.sub(r"url\(#[^)]*\)|href=\"[^\"]*\"|id=\"[^\"]*\"", "", svg))
    file = next(Path(name) for name in found["pictures"] if name.endswith(".svg"))
    assert "var(--" not in file.read_text()
    assert matplotlib.rcParams["text.parse_math"]  # the style is not left behind


def test_the_page_is_the_same_to_the_letter_when_made_again(made, tmp_path):
    folder, _, page = made
    report.make([folder / "hopper", folder / "walker"], tmp_path / "report.html")
    again = (tmp_path / "report.html").read_text()
    assert page.split("<footer>")[0] == again.split("<footer>")[0]


def test_sections_without_data_are_not_there(tmp_path):
    make_run(tmp_path / "run", {0: {30: [1.0, 2.0]}})
    found = report.make([tmp_path / "run"], tmp_path / "one.html")
    assert found["sections"] == ["scores", "data"]
    make_run(tmp_path / "none", {}, env=None, reference=None, data_return=3.0)
    found = report.make([tmp_path / "none"], tmp_path / "none.html")
    assert found["sections"] == ["scores", "data"]
    assert "no environment to score it in" in (tmp_path / "none.html").read_text()


def test_returns_without_references_are_told_from_normalised_scores_and_show_three_digits(tmp_path):
    for name, scale in (("bc", 1.0), ("iql", 2.0)):
        make_run(tmp_path / "scored" / name, each(100 * scale, 90), name)
        small = each(0.004 * scale, 0.002)
        make_run(tmp_path / "logged" / name, small, name, "file:log.npz", "bbbb", "Plant-v0", None, data_return=-0.003)
    found = report.make([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("file:log.npz<small>return</small>") == 3  # of two algorithms, and at a glance
    assert page.count("builtin:hopper/medium<small>normalised score</small>") == 3
    assert "−0.00300" in page
    assert {(row["dataset"], row["unit"]) for row in found["scores"]} == {
        ("builtin:hopper/medium", "normalised score"), ("file:log.npz", "return")
    }  # fmt: skip
    assert [name for name in found["pictures"] if "learning-curves-1" in name]
    places, names = collect.common(collect.gather([tmp_path]))
    assert (len(places), list(names)) == (1, ["bc", "iql"])  # returns stay out of the aggregates
    report.make([tmp_path / "logged"], tmp_path / "alone.html")
    alone = (tmp_path / "alone.html").read_text()
    assert "file:log.npz<small>" not in alone
    assert "normalised score" not in alone
    assert "−0.00300" in alone


@pytest.mark.parametrize(
    ("values", "digits"),
    [([1234.0], 0), ([999.0, 1.0], 1), ([10.0], 1), ([9.0], 2), ([0.5, float("nan")], 3), ([0.003], 5), ([0.0], 1)],
)
def test_as_many_decimals_as_the_largest_number_needs(values, digits):
    assert html.digits_of(values) == digits


def test_what_does_not_compare_is_split_and_told(tmp_path):
    for fingerprint, score in (("aaaa", 100.0), ("bbbb", 20.0)):
        for name in ("bc", "iql"):
            make_run(tmp_path / f"{name}-{fingerprint}", each(score, score), name, fingerprint=fingerprint)
    found = report.make([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "these are not comparable" in found["messages"][0]
    assert "these are not comparable" in page
    last = [row["estimate"] for row in found["scores"] if row["kind"] == "last" and row["algorithm"] == "bc"]
    assert last == [37.5, 7.5]


def test_a_selection_by_itself_brings_its_runs(tmp_path):
    run = make_run(tmp_path / "far" / "run", each(100, 90))
    selection = make_selection(tmp_path / "chosen", [(run, 0, 10, 0.9), (run, 1, 20, 0.5)])
    found = report.make([selection], tmp_path / "page.html")
    assert "selection" in found["sections"]
    assert {row["kind"]: row["estimate"] for row in found["scores"]} == pytest.approx(
        {"last": 35.625, "selected": (25 + 45) / 2, "best": 47.5}
    )


def test_a_curve_is_of_the_same_members_and_episodes_throughout(tmp_path):
    returns = {0: {10: [2.0, 4.0], 20: [20.0, 40.0], 30: [60.0]}, 1: {10: [6.0, 8.0], 30: [100.0, 80.0]}}
    make_run(tmp_path / "run", returns)
    material = collect.gather([tmp_path / "run"])
    curve = sections.learning_curve(material, material.parts[0])
    assert list(curve.x) == [10, 30]  # at 20 there is one member only
    np.testing.assert_allclose(curve.y, [2.5, 40.0])  # at 30 of the first episode, which both played


def test_the_aggregates_are_over_the_datasets_that_most_algorithms_share(tmp_path):
    for name, datasets in (("a", "xyz"), ("b", "xyz"), ("c", "x")):
        for dataset in datasets:
            make_run(tmp_path / name / dataset, each(100, 90), name, f"builtin:{dataset}/medium", dataset)
    make_run(tmp_path / "raw" / "w", each(1e6), "a", "builtin:w/medium", "w", reference=None)
    places, names = collect.common(collect.gather([tmp_path]))
    assert len(places) == 3
    assert list(names) == ["a", "b"]


def test_numbers_are_aligned_and_signed(made):
    assert html.number(-1.25, 0.5, 2).value == -1.25
    assert "−1.25" in html.number(-1.25, 0.5, 2).text
    assert html.number(float("nan"), reason="x: how").note == "x"
    assert html.significant(123456.0) == "1.23e+05"
    assert html.significant(-0.5) == "−0.5"


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["offrl.report", *arguments])
        status = 0
        try:
            offrl.report.main()
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


def test_the_command_says_what_it_wrote(command, tmp_path):
    make_run(tmp_path / "run", {0: {30: [1.0, 2.0]}})
    status, out, _ = command("run")
    assert status == 0
    assert "written to report.html: scores, data; 0 pictures" in out
    status, out, err = command("run", "out=deep/page.html", "--json")
    assert json.loads(out)["page"] == "deep/page.html"
    assert "written to deep/page.html" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "nothing: no run here nor below"),
        (["run", "out=page.txt"], "out=page.txt: must be the name of an .html file"),
        (["run", "outt=page.html"], "did you mean out"),
        (["broken"], "selection.json: damaged"),
        (["bare"], "candidates.csv: cannot be read"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(command, tmp_path, arguments, message):
    run = make_run(tmp_path / "run", {0: {30: [1.0, 2.0]}})
    (make_selection(tmp_path / "broken", [(run, 0, 30, 1.0)]) / "selection.json").write_text("{")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "selection.json").write_text("{}")
    status, out, err = command(*arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert not list(tmp_path.glob("*.html"))


def test_a_table_of_scores_is_reported_without_its_runs(tmp_path):
    runs = [make_run(tmp_path / name, {0: {30: [value]}, 1: {30: [value + 1]}}, name, checkpoints=(30,))
            for name, value in (("bc", 10.0), ("iql", 30.0))]  # fmt: skip
    whole = report.make([run.path for run in runs], tmp_path / "runs.html")
    scores.scores(runs).to_csv(tmp_path / "scores.csv", index=False)
    found = report.make([tmp_path / "scores.csv"], tmp_path / "table.html")
    assert found["scores"] == whole["scores"]
    assert found["sections"] == [name for name in whole["sections"] if name not in ("curves", "data")]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"other\.csv: no scores\.csv of offrl\.reproduce, it lacks the col"):
        report.make([tmp_path / "other.csv"], tmp_path / "none.html")


def test_data_are_loaded_where_they_lie_and_never_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: pytest.fail("fetched"))
    for name in ("builtin:hopper/medium", "d4rl:hopper-medium-v2", "minari:mujoco/hopper/medium-v0", "file:gone.npz"):
        run = make_run(tmp_path / name.replace("/", "-"), {}, dataset=name)
        assert collect.at_hand(run) is None
    rows = 40
    np.savez(tmp_path / "log.npz", observations=np.ones((rows, 11)), actions=np.zeros((rows, 3)), rewards=np.ones(rows),
             terminals=np.arange(rows) % 10 == 9)  # fmt: skip
    run = make_run(tmp_path / "file", {0: {30: [1.0]}}, dataset=f"file:{tmp_path / 'log.npz'}")
    dataset = collect.at_hand(run)
    assert dataset is not None
    report.make([run.path], tmp_path / "changed.html")
    assert "they are not those of the runs" in (tmp_path / "changed.html").read_text()
    run.info["dataset"]["fingerprint"] = dataset.fingerprint
    run.write_info()
    found = report.make([run.path], tmp_path / "same.html")
    assert any("data-0-return" in name for name in found["pictures"])


def test_a_file_named_by_two_paths_is_one_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = 40
    np.savez("log.npz", observations=np.ones((rows, 11)), actions=np.zeros((rows, 3)), rewards=np.ones(rows),
             terminals=np.arange(rows) % 10 == 9)  # fmt: skip
    fingerprint = offrl.data.load("file:log.npz").fingerprint
    runs = [make_run(tmp_path / name, each(*range(i, i + 3)), name, f"file:{path}", fingerprint)
            for i, (name, path) in enumerate({"bc": tmp_path / "gone.npz", "iql": "log.npz"}.items())]  # fmt: skip
    scores.scores(runs[:1]).to_csv("scores.csv", index=False)
    for paths in (runs[0].path, runs[1].path), (Path("scores.csv"), runs[1].path):
        found = report.make(paths, tmp_path / "page.html")
        assert {row["dataset"] for row in found["scores"]} == {"file:log.npz"}
    found = report.make([run.path for run in runs], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h1>file:log.npz</h1>" in page
    assert page.count("gone.npz") == 1  # told beside the data
    chosen = make_selection(tmp_path / "selection", [(runs[0], 0, 10, 0.9)])
    answer = json.loads((chosen / "selection.json").read_text()) | {"fingerprint": fingerprint}
    (chosen / "selection.json").write_text(json.dumps(answer))
    report.make([run.path for run in runs], tmp_path / "chosen.html")
    assert (tmp_path / "chosen.html").read_text().count("gone.npz") == 1
    assert any("data-0-return" in name for name in found["pictures"])  # of the path at which the file is


def test_a_style_is_only_for_the_pictures():
    before = dict(matplotlib.rcParams)
    with pictures.style():
        assert matplotlib.rcParams["svg.fonttype"] == "none"
    assert dict(matplotlib.rcParams) == before


def test_selections_that_differ_are_refused(tmp_path):
    run = make_run(tmp_path / "run", each(1.0))
    for i, step in enumerate((10, 20)):
        make_selection(tmp_path / f"selection{i}", [(run, 0, step, 1.0)])
    with pytest.raises(UserError, match="another selection"):
        report.make([tmp_path], tmp_path / "page.html")


# In a real browser

needs_chromium = pytest.mark.skipif(not browser.available, reason="no chromium and chromedriver here")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory, made):
    found = browser.Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


@pytest.fixture
def opened(chromium, made):
    chromium.size(1200, 900)
    chromium.theme("light")
    chromium.go(made[0] / "page" / "report.html")
    return chromium


COLUMN = """
const rows = [...[...document.querySelectorAll(`#${arguments[0]} .table`)].at(-1).querySelectorAll("tbody tr")];
return rows.filter(row => !row.hidden).map(row => row.cells[arguments[1]].innerText.split("\\n")[0]);
"""
CLICK = """
const table = [...document.querySelectorAll(`#${arguments[0]} .table`)].at(-1);
table.querySelectorAll("th button")[arguments[1]].click();
"""


@needs_chromium
def test_it_loads_without_a_word_on_the_console_and_nothing_breaks_out(opened):
    assert opened.console() == []
    assert opened.run("return window.broken ?? null") is None
    assert opened.run("return document.querySelectorAll('svg').length") > 8
    assert opened.run("return performance.getEntriesByType('resource').length") == 0


@needs_chromium
def test_a_click_sorts_and_another_turns_it_round(opened):
    before = opened.run(COLUMN, "scores", 4)
    opened.run(CLICK, "scores", 4)
    numbers = [float(text.split(" ")[0]) for text in opened.run(COLUMN, "scores", 4)]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == len(before)
    opened.run(CLICK, "scores", 4)
    assert [float(text.split(" ")[0]) for text in opened.run(COLUMN, "scores", 4)] == numbers[::-1]
    assert opened.run("return document.querySelectorAll('#scores th[aria-sort=ascending]').length") == 1
    opened.run(CLICK, "scores", 1)
    names = opened.run(COLUMN, "scores", 1)
    assert names == sorted(names, key=str.lower)
    # what is missing goes last, whichever way round
    for _ in range(2):
        opened.run(CLICK, "scores", 5)
        column = opened.run(COLUMN, "scores", 5)
        assert column[-2:] == ["–", "–"]
        assert "–" not in column[:-2]


@needs_chromium
def test_the_field_filters_by_all_words_and_counts(opened):
    typed = """
    const field = document.querySelector("#scores input");
    field.value = arguments[0];
    field.dispatchEvent(new Event("input"));
    return document.querySelector("#scores output").textContent;
    """
    assert opened.run(typed, "") == "6 rows"
    assert opened.run(typed, "iql HOPPER") == "2 of 6 rows"
    assert opened.run(COLUMN, "scores", 1) == ["iql", "iql"]
    opened.run(CLICK, "scores", 4)
    assert len(opened.run(COLUMN, "scores", 1)) == 2  # sorting keeps the filter
    assert opened.run(typed, "no such thing") == "0 of 6 rows"
    assert opened.run(typed, " ") == "6 rows"


@needs_chromium
def test_light_and_dark_follow_the_system_in_text_and_pictures(opened):
    colours = """
    const of = (element, name) => getComputedStyle(element)[name];
    const text = [...document.querySelectorAll("svg text")].map(text => of(text, "fill"));
    return [of(document.body, "backgroundColor"), of(document.body, "color"), [...new Set(text)].sort()];
    """
    light = opened.run(colours)
    opened.theme("dark")
    dark = opened.run(colours)

    def brightness(colour: str) -> float:
        return float(np.mean([int(part) for part in re.findall(r"\d+", colour)[:3]]))

    assert brightness(light[0]) > 240 > 80 > brightness(light[1])
    assert brightness(dark[0]) < 40 < 200 < brightness(dark[1])
    assert all(brightness(colour) < 120 for colour in light[2])
    assert all(brightness(colour) > 140 for colour in dark[2])


@needs_chromium
def test_a_phone_scrolls_down_and_never_sideways(opened):
    opened.size(390, 844, 2)
    assert opened.run("return document.documentElement.scrollWidth") <= 390
    right = "return Math.max(...[...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect().right))"
    assert opened.run(right) <= 390
    sizes = opened.run("""
    return [...document.querySelectorAll("svg text")].map(text => text.getBoundingClientRect().height)
        .filter(height => height > 0);
    """)
    assert np.quantile(sizes, 0.1) > 7  # pixels: legible


@needs_chromium
def test_the_keyboard_reaches_the_headings(opened):
    assert opened.run("""
    const button = document.querySelector("#scores th.n button");
    button.focus();
    return document.activeElement === button && button.tabIndex === 0;
    """)
