"""The index of the papers: what it names is there, and what comes from a paper is in it."""

import importlib
import re
from pathlib import Path

import pytest

from strategies import STRATEGIES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def index():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("making.papers_index")


def test_every_module_configuration_test_and_page_that_it_names_is_there(index):
    for paper in index.papers():
        assert (ROOT / "docs" / "papers" / f"{paper.page}.md").exists()
        for entry in paper.entries:
            for code in set(entry.code) - set(STRATEGIES):
                module, _, name = code.partition(":")
                found = importlib.import_module(module)
                assert not name or hasattr(found, name), code
            files = [f"simulations/configs/{name}.toml" for name in entry.configurations]
            assert not [file for file in [*files, *entry.tests] if not (ROOT / file).exists()]


def test_what_was_changed_or_left_out_has_its_reason_and_what_is_here_has_code_and_tests(index):
    for entry in (entry for paper in index.papers() for entry in paper.entries):
        assert entry.how in index.HOW
        assert entry.why or entry.how == "as printed", entry.what
        if entry.how != "left out":
            assert entry.code, entry.what
            assert entry.tests, entry.what


def test_every_strategy_that_comes_from_a_paper_is_in_the_index_of_that_paper(index):
    for paper in index.papers():
        named = {code for entry in paper.entries for code in entry.code}
        assert not {name for name, one in STRATEGIES.items() if paper.cited in one.about.paper} - named


def test_a_configuration_runs_the_strategy_that_it_is_named_for(index):
    for entry in (entry for paper in index.papers() for entry in paper.entries):
        strategies = set(entry.code) & set(STRATEGIES)
        for name in entry.configurations if strategies else []:
            text = (ROOT / "simulations" / "configs" / f"{name}.toml").read_text(encoding="utf-8")
            assert strategies & set(re.findall(r'^kind = "(\w+)"', text, re.MULTILINE)), (entry.what, name)


def test_every_page_of_a_paper_is_listed_and_the_page_shows_every_entry(index):
    pages = {path.stem for path in (ROOT / "docs" / "papers").glob("*.md")} - {"README"}
    assert pages == {paper.page for paper in index.papers()}
    (text,) = index.pages().values()
    assert all(entry.item() in text for paper in index.papers() for entry in paper.entries)
