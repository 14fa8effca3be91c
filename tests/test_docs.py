"""The pages of docs/ stay true to the code."""

import re
from pathlib import Path

import offrl.algorithm

DOCS = Path(__file__).parent.parent / "docs"


def test_every_algorithm_has_its_section_and_every_function_named_there_exists():
    page = (DOCS / "algorithms.md").read_text()
    assert sorted(re.findall(r"^### `(\w+)`$", page, re.M)) == offrl.algorithm.names()
    named = re.findall(r"`(\w+)\.([a-z_]+)`", page)
    assert {name for name, _ in named} - {"dynamics"} == set(offrl.algorithm.names())
    for name, function in named:
        file = offrl.algorithm.load(name).file
        assert re.search(rf"^def {function}\(", file.read_text(), re.M), f"{file} has no {function}"


def test_links_lead_to_files():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
