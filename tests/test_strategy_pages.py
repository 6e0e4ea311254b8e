"""Pages of strategies say when to use one, show an example that was run, and claim what the tables hold."""

import re
import tomllib
from pathlib import Path

import made_pages
import numpy as np
import pandas as pd
import pytest

from simulations.config.run_config import parse_config
from simulations.runs.build import make_plan
from strategies import STRATEGIES

ROOT = Path(__file__).resolve().parents[1]
made_pages.made()
OPENINGS = ("configuration", "what-leaves", "neural")
"""Pages that once began with walls of text."""
FEWEST_PIXELS = 13.9
"""Between labels of a picture: one line of its type, rounded as its coordinates are."""


@pytest.fixture(scope="module")
def pages(module_of):
    names = ("make_courses", "making.courses", "making.examples", "making.strategy_pages", "making.neural")
    return {name.rpartition(".")[2]: module_of(name) for name in names}


def page(name: str) -> str:
    return (ROOT / f"docs/strategy/{name}.md").read_text(encoding="utf-8")


def test_every_strategy_has_advice_of_its_own_for_and_against(pages):
    told = tomllib.loads(pages["examples"].FILE.read_text(encoding="utf-8"))["strategy"]
    assert sorted(told) == sorted(STRATEGIES)
    texts = [text for one in told.values() for text in (one["take"], one["leave"])]
    assert all(len(text) > 60 for text in texts)
    assert len(set(texts)) == 2 * len(STRATEGIES)
    for name in STRATEGIES:
        assert re.search(r"## When to use it\n\nUse it.*?\n\n\*\*When not\.\*\* ", page(name), re.DOTALL), name


def test_a_strategy_without_advice_has_that_of_its_chapter_and_the_settings_of_its_class(pages, monkeypatch):
    file = {**pages["examples"]._file(), "strategy": {}}
    monkeypatch.setattr(pages["examples"], "_file", lambda: file)
    example = pages["examples"].example_of("dp_fed_sgd")
    assert example.take.startswith("Use one if you know the length")
    assert pages["examples"].configuration("dp_fed_sgd")["strategy"] == {"kind": "dp_fed_sgd", "rounds": 3}


def test_every_example_was_run_as_its_page_shows_it(pages):
    """The digest in the table is of the configuration; python docs/make_courses.py runs what has another one."""
    table, examples = pages["courses"].table(), pages["examples"]
    wanted = {name: examples.digest(config) for name, config in pages["courses"].configurations().items()}
    assert set(table["example"]) == set(wanted)
    for name, rows in table.groupby("example"):
        assert set(rows["configuration"]) == {wanted[name]}, f"{name}: run python docs/make_courses.py"
    for name in STRATEGIES:
        (block,) = re.findall(r"^```toml\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)
        assert examples.digest(tomllib.loads(block)) == wanted[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local_dp", "winsorized_rotation", "localized_clipping"])
def test_the_table_holds_what_the_examples_reach_today(pages, name):
    """Strategies that run in no time; a change of what they reach needs python docs/make_courses.py --again."""
    made = pd.DataFrame(pages["make_courses"]._rows(name, pages["examples"].configuration(name)))
    table = pages["courses"].table()
    there = table[table["example"] == name].reset_index(drop=True)[list(made)]
    pd.testing.assert_frame_equal(there, made, check_dtype=False, rtol=2e-3, atol=2e-3)


def test_the_python_of_a_page_trains_what_its_file_says(tmp_path, monkeypatch):
    text = page("dp_fed_sgd")
    (file,) = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("dp_fed_sgd.toml").write_text(file, encoding="utf-8")
    found = {}
    exec(compile(code, "page", "exec"), found)
    assert found["model"].result["better_than_initial"]
    for name in STRATEGIES:
        assert code.replace("dp_fed_sgd.toml", f"{name}.toml") in page(name)


def test_a_sentence_says_what_the_table_holds(pages, tmp_path, monkeypatch):
    rows = [("dp_fed_sgd", 0, 0.0, 0.0, 0.0), ("dp_fed_sgd", 7, -0.25, -0.5, 0.125)]
    frame = pd.DataFrame(rows, columns=["example", "round", "median", "least", "most"])
    frame.assign(auto=0.75, gain=0.5, seeds=3, configuration="", userdp="").to_csv(tmp_path / "some.csv", index=False)
    monkeypatch.setattr(pages["courses"], "MEASURED", tmp_path / "some.csv")
    text = " ".join(pages["courses"].sentence("dp_fed_sgd").split())
    assert (
        "It ends worse than it began: it closes \N{MINUS SIGN}25.0% of the gap (\N{MINUS SIGN}50.0% to 12.5%)" in text
    )
    assert "`auto`, for one whole user, closes 75.0%" in text
    assert "median of 3 seeds" in text
    assert pages["courses"].sentence("auto") == ""
    assert list(pages["courses"].pictures()) == ["docs/pictures/strategy-dp_fed_sgd.svg"]


def test_every_picture_is_small_and_draws_the_medians_of_the_table(pages):
    courses, drawn = pages["courses"], pages["courses"].pictures()
    paths = {courses.picture_of(name): rows for name, rows in courses.table().groupby("example")}
    assert set(drawn) == set(paths)
    for path, rows in paths.items():
        svg = drawn[path]
        assert len(svg) < 4096, path
        (line,) = re.findall(r'<polyline points="([^"]+)"', svg)
        heights = np.array([float(point.partition(",")[2]) for point in line.split()])
        full, none = (float(y) for y in re.findall(rf'd="M{courses.LEFT} ([\d.]+)H', svg)[1::-1])
        np.testing.assert_allclose((none - heights) / (none - full), rows["median"], atol=0.002, err_msg=path)


def test_labels_of_a_picture_lie_apart_and_inside(pages):
    courses = pages["courses"]
    for path, svg in courses.pictures().items():
        found = re.findall(rf'<text x="{courses.WIDTH - courses.RIGHT + 6}" y="([\d.]+)" text-anchor="start"', svg)
        assert len(found) == (3 if path.endswith("-auto.svg") else 4), path
        heights = np.array(sorted(map(float, found)))
        assert (np.diff(heights) >= FEWEST_PIXELS).all(), path
        assert heights[-1] < courses.HEIGHT, path


def test_what_pages_claim_of_the_examples_is_in_the_table(pages):
    ends = pages["courses"].table().groupby("example").last()
    reached, auto = ends["median"], ends["auto"]
    ahead = ["localized_clipping", "localized_robust_sgd", "robust_rounds", "robust_frank_wolfe", "private_lasso"]
    assert (auto[ahead] > reached[ahead]).all()
    assert reached["sparse_optimisation"] > max(reached[["robust_frank_wolfe", "private_lasso"]])
    assert reached["private_hard_thresholding"] < 0
    assert reached["averaged_clipping"] < 0
    assert reached["stopped_sgd"] < 0.5


def test_what_pages_claim_of_neural_models_is_in_the_table(pages):
    rows = pages["neural"].table()
    shares = rows[rows["epsilon"] > 0].groupby(["problem", "epsilon", "strategy"])["share"].median().unstack()
    assert (shares.idxmin(axis=1) == "recentred_clipping").all()
    own = shares.loc[["pupils", "writers"]]
    assert (own["dp_fed_avg"] < own["dp_fed_sgd"]).all()
    assert (shares["dp_fed_sgd"] > shares["dp_ftrl"]).all()


@pytest.mark.parametrize("name", OPENINGS)
def test_a_long_page_begins_with_what_it_is_for_and_an_example(name):
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    opening, _, _ = text.partition("\n## ")
    first = opening.split("\n\n")[1]
    assert first.startswith("This page ")
    assert len(first) < 500
    assert "```" in opening


def test_the_smallest_configuration_of_the_reference_is_a_whole_run():
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    block = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    planned = make_plan(parse_config(tomllib.loads(block)))
    assert planned.guarantee.holds
    assert planned.strategy == "auto"
