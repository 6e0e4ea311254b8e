"""Cards: every value is that of a file, and alarms come first."""

import json
import tomllib
from functools import reduce

import pandas as pd
import pytest
from examples import call, changed

from simulations.config.run_config import parse_config
from simulations.records.released_fields import RELEASED, field_of
from simulations.records.run_directory import CARD, RunDirectory
from simulations.reports.card import NO_GUARANTEE, SAMPLES, SIMULATED, Values, card, render_card
from simulations.reports.explain import promise_texts
from simulations.runs.build import make_plan
from simulations.runs.run import run

CLIPPED = {"kind": "dp_fed_sgd", "clip_norm": 1.0, "learning_rate": 0.5, "rounds": 3}
RUNS = {
    "user level": {"strategy": CLIPPED},
    "sample level": {
        "strategy": {"kind": "sample_clipped_sgd", "clip_norm": 1.0, "rounds": 2},
        "privacy__unit": "sample",
        "privacy__noise": "secure",
    },
    "none": {"strategy": {"kind": "non_private"}},
    "masked sums": {"strategy": CLIPPED, "privacy__trust": "sum", "privacy__noise": "secure"},
    "local": {"strategy": {"kind": "local_dp", "clip_norm": 1.0, "rounds": 2}},
    "private evaluation": {"strategy": CLIPPED, "privacy__evaluate": True},
    "auto": {"strategy": {"kind": "auto"}},
}
GOLDEN = {
    "The promise": [
        *("Who is protected from whom", "Trust"),
        *("Unit of privacy", "Neighbouring data sets", "Epsilon", "Delta", "Rho", "Epsilon asked for"),
        *("Users", "Rounds", "Rounds planned"),
    ],
    "The algorithm": [
        *("Strategy", "Source", "Accounting", "Samples of each user", "Tuning", "Utility", "Bias"),
        *("Clip norm", "L2 sensitivity", "Participations"),
        *("Noise multiplier", "Noise deviation", "Noise expected", "Signal at most"),
    ],
    "The deployment": [
        *("Colluding nodes", "Silent nodes", "Queries", "Randomness"),
        "Floating point",
        *("Timing", "Sizes", "Failures", "Engine", "Security and access", "Data"),
    ],
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("cards"), {}

    def of(kind):
        if kind not in made:
            raw = changed(**RUNS[kind], output={"reference": False})
            made[kind] = run(parse_config(raw), directory=folder / kind.replace(" ", "-"), report=False).directory
        return made[kind]

    return of


def lines_of(found):
    return {line["name"]: line for part in found["parts"] for line in part["lines"]}


def in_file(directory, source):
    """The value at "file: key.key", read without the card's own code."""
    file, _, keys = source.partition(": ")
    if file == "rounds.parquet":
        return pd.read_parquet(directory / file)[keys].dropna().tolist()
    text = (directory / file).read_text()
    values = tomllib.loads(text) if file.endswith(".toml") else json.loads(text)
    return reduce(lambda inner, key: inner[key], keys.split("."), values) if keys else values


def test_the_parts_and_lines_of_a_card_stand_in_the_order_of_the_guidelines(directories):
    found = card(directories("user level"))
    assert {part["title"]: [line["name"] for line in part["lines"]] for part in found["parts"]} == GOLDEN
    assert list(found) == [
        *("name", "strategy", "holds", "first", "parts", "assumptions", "leaves", "versions"),
    ]


@pytest.mark.parametrize("kind", RUNS)
def test_every_value_is_that_of_the_file_it_names_and_no_exact_figure_is_among_them(kind, directories):
    directory = directories(kind)
    worded = {"Rho", "Guarantee", "Floating point", "Utility"}  # follow from the file in words, or by a theorem
    for line in lines_of(card(directory)).values():
        if not line["source"]:
            continue
        value, (file, _, keys) = in_file(directory, line["source"]), line["source"].partition(": ")
        if file == "rounds.parquet":
            assert line["value"] in (min(value), max(value))
        elif line["name"] not in worded:
            assert line["value"] == value
        assert field_of(file, keys).kind in RELEASED


@pytest.mark.parametrize(
    ("kind", "told", "untold"),
    [
        ("user level", ["all data of one person", "is replaced", "sums"], ["SINGLE", "left out", "sums alone"]),
        ("sample level", ["SINGLE SAMPLE"], ["all data of one person"]),
        ("masked sums", ["noisy sums alone"], ["vectors"]),
    ],
)
def test_values_are_explained_as_this_run_has_them(kind, told, untold, directories):
    names = ("Unit of privacy", "Neighbouring data sets", "Trust")
    lines = lines_of(card(directories(kind)))
    meanings = " ".join(lines[name]["meaning"] for name in names)
    assert all(words in meanings for words in told)
    assert not [words for words in untold if words in meanings]


def test_no_value_of_a_card_is_private_even_if_asked_for(directories):
    values = Values(directories("user level"))
    for source in ("result.json: metrics", "result.json: seconds", "result.json: missing_users_private"):
        assert values[source] is None
        assert values.line("A figure", source) == []
    assert in_file(directories("user level"), "result.json: missing_users_private") == 0


@pytest.mark.parametrize("kind", RUNS)
def test_alarms_come_first_and_the_promise_after_them(kind, directories):
    directory = directories(kind)
    render_card(directory)
    found, page = (json.loads((directory / CARD[1]).read_text()), (directory / CARD[0]).read_text())
    alarms = [first.partition(":")[0] for first in found["first"][:-1]]
    secure = in_file(directory, "config.toml: privacy.noise") == "secure"
    expected = [SIMULATED] * (not secure) + [SAMPLES] * (kind == "sample level")
    assert alarms == ([NO_GUARANTEE] if kind == "none" else expected)
    assert ('<div class="verdict bad">' in page) == bool(alarms)
    assert page.index(found["first"][0][:20]) < page.index("The promise")
    assert "<script" not in page
    for sentence in found["assumptions"]:
        assert sentence.replace("'", "&#39;") in page


def test_a_run_without_a_guarantee_states_no_epsilon(directories):
    found = card(directories("none"))
    assert not {"Epsilon", "Delta", "Rho", "Unit of privacy"} & set(lines_of(found))


@pytest.mark.parametrize(
    ("kind", "rho"), [("user level", True), ("local", True), ("auto", True), ("masked sums", False)]
)
def test_rho_stands_beside_epsilon_where_the_accounting_implies_it(kind, rho, directories):
    lines = lines_of(card(directories(kind)))
    assert ("Rho" in lines, "Server epsilon" in lines) == (rho, kind == "masked sums")


def test_metrics_that_the_guarantee_covers_are_on_the_card_and_exact_ones_are_not(directories):
    directory = directories("private evaluation")
    result = json.loads((directory / "result.json").read_text())
    found = card(directory)
    assert lines_of(found)["Test loss"]["value"] == result["held_out"]["metrics"]["test_loss"]
    assert lines_of(found)["Epsilon of held-out users"]["value"] > 0
    exact = [*result["metrics"].values(), *result["reference"]["initial"].values(), result["seconds"]["total"]]
    assert not [value for value in exact if value and str(value) in json.dumps(found)]


def test_the_command_writes_a_card_also_into_a_copy_and_a_rerun_removes_it(directories, tmp_path):
    done = call("report", directories("masked sums"), "--card", "--released", tmp_path / "copy")
    assert (done.exit_code, done.stdout.strip()) == (0, str(tmp_path / "copy" / "card.html"))
    assert json.loads((tmp_path / "copy" / "card.json").read_text()) == card(directories("masked sums"))
    assert call("report", tmp_path, "--card").exit_code == 2
    RunDirectory(tmp_path / "copy", resumed=True)
    assert not {path.name for path in (tmp_path / "copy").iterdir()} & set(CARD)


def test_other_programs_are_told_no_budget_where_nothing_is_promised():
    promised, nothing = (
        promise_texts(make_plan(parse_config(changed(strategy={"kind": kind}))).guarantee)
        for kind in ("auto", "non_private")
    )
    assert float(promised["userdp.epsilon"]) > 0
    assert not {"userdp.epsilon", "userdp.delta"} & set(nothing)
    assert (promised["userdp.holds"], nothing["userdp.holds"]) == ("True", "False")
