"""The first table of research/README.md: its limits are those of the scripts, and what is not kept says so."""

import json

import pytest

SCRIPTS = ("peers", "population", "start", "robust", "adapters", "engine_clocks", "secure")


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
    assert scripts["secure"].LIMITS == page.SECURE
    assert page.ON_EIGHT == scripts["engine_clocks"].AT_MOST
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


def test_a_population_takes_the_place_of_its_last_measurement_and_shares_are_columns(scripts, module_of, tmp_path):
    path, speed = tmp_path / "population.json", module_of("making.speed")
    first = {"strategy": "auto", "users": 10, "rounds": 7, "seconds": 1.0, "peak_mib": 200}
    for run in (first, first | {"users": 5, "shares": {"data": 0.75, "noise": 0.25}}, first | {"seconds": 2.0}):
        scripts["population"].write(path, run)
    told = json.loads(path.read_text())
    assert [(run["users"], run["seconds"]) for run in told["runs"]] == [(5, 1.0), (10, 2.0)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(speed, "read", lambda name: told)
        lines = speed.population().splitlines()
    assert lines[0].endswith("| peak MiB | data, % | noise, % |")
    assert lines[2].endswith("| 200 | 75 | 25 |")
