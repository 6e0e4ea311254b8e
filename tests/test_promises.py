"""The first table of research/README.md: its limits are those of the scripts, and what is not kept says so."""

import pytest

SCRIPTS = ("peers", "population", "start", "robust", "adapters")


@pytest.fixture
def scripts(module_of):
    return {name: module_of(name) for name in SCRIPTS} | {"page": module_of("making.promises")}


def test_limits_are_those_that_the_scripts_check(scripts):
    page, peers, population = scripts["page"], scripts["peers"], scripts["population"]
    assert (page.SIZES, page.AT_MOST, page.AT_LEAST, page.ON_RAY) == (
        peers.SIZES,
        peers.AT_MOST,
        peers.AT_LEAST,
        peers.ON_RAY,
    )
    limits = (population.LIMIT_SECONDS, population.LIMIT_MIB, population.LIMIT_GROWTH)
    assert limits == (page.MOST_SECONDS, page.MOST_MIB, page.MOST_GROWTH)
    assert scripts["start"].LIMIT == page.MOST_COMPARING
    checked = {(pair.what, pair.rival): pair.least for pair in scripts["robust"].PAIRS if pair.least is not None}
    assert checked == page.ROBUST
    adapters = {tool: most for tool, (_, most) in page.ADAPTERS.items()}
    assert adapters == {"plain": scripts["adapters"].LIMIT, "pfl": scripts["adapters"].LIMIT_PFL}


def test_what_is_not_kept_says_so(scripts, monkeypatch):
    page = scripts["page"]
    kept = page.section()
    monkeypatch.setattr(page, "AT_LEAST", {"pfl": (1e9, 0.0, 0.0, 0.0)})
    lines = [line for line in page.section().splitlines() if line not in kept]
    assert len(lines) == 1
    assert "at least 1e+09" in lines[0]
    assert "| NO |" in lines[0]
