"""`userdp find`: facts are near the truth, cost what they say, and are what a run takes."""

import json
import math
import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from examples import call

from simulations import find
from simulations.finding import grids
from simulations.finding.facts import _Search, find_facts
from simulations.finding.plan import FindPlan
from simulations.finding.settings import parse_find
from userdp import BadInput
from userdp.accounting.costs import together
from userdp.errors import PopulationTooSmall, RunFailed
from userdp.mechanisms import SetUnion, UserQuantile
from userdp.noise import rounding_slack
from userdp.streams import GIVEN_SEED, Streams

USERS = 3000
BUDGET = {"epsilon": 4.0, "delta": 1e-6}
ASKED = {"user": "who", "all_users": USERS, "numbers": ["age", "pay"], "words": ["team"], "dates": ["born"], **BUDGET}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """One to nine rows of each of 3,000 people: age 20 to 80, pay around 0.5, three teams that all know, dates."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(USERS), 1 + np.arange(USERS) % 9)
    team = rng.choice(["red", "green", "blue"], len(who)).astype(object)
    team[::500] = [f"only {row}" for row in range(len(team[::500]))]
    team[1::500] = None
    born = pd.Timestamp("1950-06-01") + pd.to_timedelta(rng.integers(0, 40 * 365, len(who)), unit="D")
    age = rng.integers(20, 81, len(who)).astype(float)
    age[::100] = np.nan
    pay = rng.normal(0.5, 0.1, len(who))
    pay[0] = 1e300
    return pd.DataFrame(
        {"who": who, "age": age, "pay": pay, "team": team, "born": born, "y": rng.integers(0, 2, len(who))}
    )


@pytest.fixture(scope="module")
def found(table):
    return find(table, **ASKED)


def test_facts_are_near_the_truth_and_hold_nothing_of_one_person(found):
    (low, high), (least, most) = found.settings["ranges"]["age"], found.settings["ranges"]["pay"]
    assert 5 <= low <= 22
    assert 78 <= high <= 95
    assert 0.1 <= least <= 0.35
    assert 0.65 <= most <= 0.9
    assert found.settings["categorical"] == {"team": ["blue", "green", "red"]}
    first, last = (int(day[:4]) for day in found.settings["dates"]["born"])
    assert 1940 <= first <= 1952
    assert 1988 <= last <= 2000
    assert 7 <= found.settings["max_samples"] <= 9
    assert found.settings["features"] == ["age", "pay"]


def test_the_most_samples_may_be_more_than_anybody_holds(monkeypatch):
    """They are what was drawn, whatever the one person holds who holds most."""
    few = pd.DataFrame({"who": range(300), "age": 50.0})
    monkeypatch.setattr(_Search, "_low", lambda *_: -7.0)
    asked = {"user": "who", "numbers": [], "words": [], "dates": [], "all_users": 300, "max_samples": True}
    assert find(few, **asked, epsilon=4.0, delta=1e-5).settings["max_samples"] == 7


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_the_guarantee_is_that_of_the_releases_that_are_made(table, monkeypatch, relation):
    made, streams = [], set()

    def recorded(of):
        def release(mechanism, *given):
            made.append(mechanism)
            streams.add(str(given[-1].generator.bit_generator.state))
            return of(mechanism, *given)

        return release

    for mechanism, name in ((UserQuantile, "choose"), (SetUnion, "release")):
        monkeypatch.setattr(mechanism, name, recorded(getattr(mechanism, name)))
    found = find(table, **ASKED | {"words": ["team", "y"]}, relation=relation)
    plan = FindPlan(parse_find(config_of(relation, words=["team", "y"])))
    assert len(made) == len(streams) == 2 + 2 + 2 + 1 + 2
    assert {one.relation for one in made} == {relation} == {found.guarantee.relation}
    spent, planned = together(*(one.cost for one in made)), plan.releases.cost
    assert spent.pure_epsilon == pytest.approx(planned.pure_epsilon)
    assert spent.noise_multiplier == pytest.approx(planned.noise_multiplier)
    assert spent.failure_delta == pytest.approx(planned.failure_delta)
    assert found.guarantee.epsilon == pytest.approx(4.0)
    assert found.guarantee.epsilon <= 4.0
    assert found.guarantee.delta == 1e-6


def config_of(relation: str = "replace_one", **find_settings):
    asked = {"numbers": ["age", "pay"], "words": ["team"], "dates": ["born"], **find_settings}
    data = {"path": "people.parquet", "user": "who", "all_users": USERS}
    return {"data": data, "find": asked, "privacy": {**BUDGET, "relation": relation}}


@pytest.mark.parametrize("what", ["quantile", "levels"])
def test_a_search_that_draws_less_noise_than_it_pays_for_shows_nothing(table, monkeypatch, what):
    quantile, levels = FindPlan.quantile, FindPlan.levels.fget
    loud = {
        "quantile": lambda plan, facts: replace(quantile(plan, facts), epsilon=1.1 * quantile(plan, facts).epsilon),
        "levels": property(lambda plan: replace(levels(plan), noise_multiplier=0.9 * levels(plan).noise_multiplier)),
    }
    monkeypatch.setattr(FindPlan, what, loud[what])
    with pytest.raises(RunFailed, match="is charged"):
        find(table, **ASKED)


def test_noise_that_hides_the_ends_stretches_ranges_and_says_so(table):
    found = find(table, **ASKED | {"epsilon": 0.8})
    low, high = found.settings["ranges"]["age"]
    assert low < 20
    assert high > 80
    assert found.numbers["share_beyond_numbers"] > 0.01
    assert "noise hides a share of 0.01: ranges of numbers were found at" in found.notes[0]
    with pytest.raises(BadInput, match=r"privacy.epsilon = 0.05 is too little to find numbers.*raise epsilon"):
        find(table, **ASKED | {"epsilon": 0.05})


@pytest.mark.parametrize("teams", [1, 300], ids=["one level", "too few users of each"])
def test_levels_that_say_nothing_or_that_too_few_share_are_left_out_with_a_note(table, teams):
    found = find(table.assign(team=table["who"].map(lambda who: f"team {who % teams}")), **ASKED, target="team")
    assert not {"categorical", "target", "target_levels"} & {*found.settings}
    assert "too few users share the levels of 'team'" in found.notes[0]


def test_weights_and_targets(table):
    found = find(table, **ASKED, target="team", weights={"levels": 9.0}, max_samples=False)
    assert found.settings["target_levels"] == ["blue", "green", "red"]
    assert "max_samples" not in found.settings
    config = parse_find(config_of(weights={"levels": 9.0}))
    even = FindPlan(parse_find(config_of()))
    assert FindPlan(config).levels.noise_multiplier < even.levels.noise_multiplier
    assert FindPlan(config).shares["numbers"] > even.shares["numbers"]
    numeric = find(table, **ASKED, target="pay")
    assert numeric.settings["target_range"] == find(table, **ASKED).settings["ranges"]["pay"]
    assert numeric.settings["features"] == ["age"]


def test_secure_noise_finds_the_same_kind_of_facts_and_is_no_simulation(table):
    found = find(table, **ASKED, noise="secure")
    assert found.settings["categorical"] == {"team": ["blue", "green", "red"]}
    assert found.settings["ranges"]["age"][1] < 100
    assert not any("simulation" in one for one in found.guarantee.assumptions)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_each_release_of_a_search_has_a_source_of_its_own_with_the_slack_of_all_users(table, monkeypatch, noise):
    """Each source is of the requested kind; and users choose among the words of each column by other keys."""
    opened, begin = [], Streams.open

    def noted(streams, seed, index, purpose, slack):
        opened.append((streams.secure, (seed, index, purpose), slack))
        return begin(streams, seed, index, purpose, slack)

    monkeypatch.setattr(Streams, "open", noted)
    twice = table[table["who"] < 400].assign(unit=table["team"])
    more = {"all_users": 400, "epsilon": 40.0, "noise": noise, "max_samples": True}
    find(twice, **ASKED | more | {"words": ["team", "unit"]})
    assert len({key for _, key, _ in opened}) == len(opened) == 2 * 3 + 2 + 1
    assert {secure for secure, _, _ in opened} == {noise == "secure"}
    assert {slack for _, _, slack in opened} == {rounding_slack(400)}
    raw = {"data": {"path": "t.csv", "user": "who", "all_users": 400}, "find": {"words": ["team", "unit"]}}
    search = _Search(
        FindPlan(parse_find(raw | {"privacy": BUDGET})), pa.Table.from_pandas(twice.astype(str), preserve_index=False)
    )
    keys = [search.votes(name)[2] for name in ("team", "unit")]
    assert not np.array_equal(*keys)


STATED = {
    "replace_one": ["which users there are is public, and so are the columns' names and kinds"],
    "add_or_remove": ["the columns' names and kinds are public", "no more users are in the table than declared"],
}


@pytest.mark.parametrize("noise", ["seeded", "secure"])
@pytest.mark.parametrize("relation", STATED)
def test_all_that_a_search_rests_on_is_stated(relation, noise):
    privacy = BUDGET | {"relation": relation, "noise": noise}
    raw = {"data": {"path": "t.csv", "user": "who", "all_users": USERS}, "find": {"words": ["team"]}}
    promise = FindPlan(parse_find(raw | {"privacy": privacy})).guarantee
    always = [*STATED[relation], "a person is one value of the user column"]
    assert list(promise.assumptions) == always + ([GIVEN_SEED] if noise == "seeded" else [])
    assert (promise.unit, promise.relation, promise.holds) == ("user", relation, True)
    assert "the holder of the table is trusted" in promise.adversary


STRANGE = [b"\xff\x00", "1e400", float("inf"), None, "9" * 4000, "\ud800", 10**400, "0001-01-01", "9999-12-31T23:59"]
STRANGE += [pd.Timestamp("1677-09-22"), ("a",), {"key": 1}, "new\nline \"'", True, "-0.0", -1e308, 5e-324]


def test_strange_cells_make_no_search_fail_and_show_nowhere():
    rng, people = np.random.default_rng(0), np.repeat(np.arange(600), 2)
    numbers, words = rng.normal(size=1200).astype(str), rng.choice(["a", "b"], 1200)
    table = pd.DataFrame({"who": people, "x": numbers, "w": words, "d": "2020-05-05"}).astype(object)
    for row, cell in enumerate(STRANGE):
        for column in "xwd":
            table.at[row, column] = cell
    found = find(table, user="who", all_users=600, numbers=["x"], words=["w"], dates=["d"], epsilon=6.0, delta=1e-6)
    assert found.settings["categorical"] == {"w": ["a", "b"]}
    assert -5 < found.settings["ranges"]["x"][0] < 0 < found.settings["ranges"]["x"][1] < 5
    assert [int(day[:4]) for day in found.settings["dates"]["d"]] == pytest.approx([2020, 2021], abs=2)


def test_the_holder_is_warned_of_a_column_without_a_number(table, caplog):
    find(table, user="who", all_users=USERS, numbers=["age", "team"], **BUDGET)
    assert [one for one in caplog.messages if "holds a number" in one] == [
        "no cell of column team holds a number, so its range means nothing: see what csv declares"
    ]


def test_one_seed_finds_the_same_and_another_may_not(table, found):
    assert find(table, **ASKED).settings == found.settings
    others = [find(table, **ASKED | {"epsilon": 1.5}, seed=seed).settings["ranges"] for seed in range(3)]
    assert any(one != others[0] for one in others)


def test_the_command_writes_a_section_that_a_run_takes(table, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.to_parquet("people.parquet")
    (tmp_path / "facts.toml").write_text(FILE, encoding="utf-8")
    answer = call("find", "facts.toml", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["data"] == found.settings
    text = (tmp_path / "declared.toml").read_text(encoding="utf-8")
    assert "this cost adds to that of every run on the same people" in text
    assert found.guarantee.sentence() in text
    run = tmp_path / "run.toml"
    run.write_text(f'name = "found"\n{text}\n{RUN}', encoding="utf-8")
    assert call("run", run).exit_code == 0
    again = call("find", "facts.toml")
    assert again.exit_code == 2
    assert "declared.toml exists, and its facts have been paid for" in " ".join(again.stderr.split())
    planned = call("find", "facts.toml", "--plan", "--set", "data.path=missing.parquet")
    assert "users_for_a_level" in planned.stdout
    assert "found" not in planned.stdout.partition("Guarantee")[0]
    shown = call("find", "facts.toml", "--output", "others.toml")
    assert "blue, green, red" in shown.stdout
    assert "differential privacy for replacing one whole user" in " ".join(shown.stdout.split())
    assert tomllib.loads((tmp_path / "others.toml").read_text(encoding="utf-8"))["data"]["user"] == "who"
    assert call("find", "facts.toml", "--output", "third.toml", "--set", "data.all_users=7").exit_code == 2
    assert not (tmp_path / "third.toml").exists()


FILE = """
[data]
path = "people.parquet"
user = "who"
all_users = 3000

[find]
numbers = ["age", "pay"]
words = ["team"]
dates = ["born"]

[privacy]
epsilon = 4.0
delta = 1e-6
"""
RUN = """
[problem]
kind = "quadratic"
bound = 2.0

[privacy]
epsilon = 2.0
delta = 1e-6

[strategy]
kind = "dp_fed_sgd"
rounds = 2
"""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"words": ["age"]}, "column 'age' is named twice"),
        ({"target": "born"}, "find.target = 'born': must be one of find.numbers or find.words"),
        ({"delta": 0.0}, "levels of words get Gaussian noise; set a delta"),
        ({"delta": 0.01}, "permits publishing one user's data"),
        ({"date_formats": {"age": "%d"}}, "data.date_formats names 'age', which is none of find.dates"),
        ({"numbers": ["agee"]}, "no column 'agee'; did you mean 'age'"),
        ({"all_users": 3001}, "data.all_users = 3001, but the data have 3000 users in all"),
        ({"all_users": 2999}, "data.all_users = 2999, but the data have 3000 users in all"),
        ({"nummbers": []}, "there is no setting 'nummbers'; did you mean 'numbers'?"),
        ({"share": 0.3}, "find.share = 0.3"),
        ({"numbers": [], "words": [], "dates": [], "max_samples": False}, "name a column to find facts about"),
    ],
)
def test_mistakes_are_sentences(table, changes, sentence):
    with pytest.raises(BadInput) as error:
        find(table, **ASKED | changes)
    assert sentence in str(error.value)


def test_under_add_or_remove_nothing_depends_on_the_number_of_users_in_the_table(table):
    """A check of the declared number would tell a user's presence apart."""
    find(table[table["who"] < USERS - 1], **ASKED, relation="add_or_remove")
    with pytest.raises(PopulationTooSmall):
        find(table[table["who"] < USERS - 1], **ASKED)


def test_grids_rise_and_ranges_are_rounded_outwards():
    weights = dict(zip(grids.numbers().edges.tolist(), grids.numbers().weights.tolist(), strict=True))
    assert [weights[one] for one in (0.0, 5.0, -0.2, 2.5, -36.0, 1990.0, 1e9, 1e-6)] == [
        1e4,
        100,
        100,
        10,
        10,
        1,
        100,
        100,
    ]
    assert {*range(1, 100), 110, 10**6} <= {*grids.counts().edges.tolist()}
    assert 0.0 in grids.years().edges
    rng = np.random.default_rng(0)
    for low, width in zip(
        rng.normal(size=300) * 10 ** rng.uniform(-5, 8, 300), 10 ** rng.uniform(-5, 8, 300), strict=True
    ):
        first, last = grids.outwards(low, low + width)
        assert first <= low + 1e-9 * max(abs(low), width)
        assert last >= low + width - 1e-9 * max(abs(low), width)
        assert last - first <= 1.11 * width
    assert grids.outwards(18, 99.5) == (18, 100)
    assert grids.outwards(0.0, 0.0) == (0, 0.05)
    assert grids.outwards(-3.21, 7.77) == (-3.5, 8)
    assert grids.stretched(2.0, 3.0, 0.01, 0.01) == (2.0, 3.0)
    assert grids.stretched(0.0, 1.0, 0.1, 0.01)[0] == 0.0
    assert grids.stretched(-1.0, 1.0, 0.1, 0.01) == pytest.approx((-2.3263 / 1.2816, 2.3263 / 1.2816), rel=1e-4)
    assert grids.outward_years(0.0, 400.0) == ("1970-01-01", "1972-01-01")
    assert grids.outward_years(0.0, 365.0) == ("1970-01-01", "1971-01-01")


def test_a_neighbour_changes_no_weight_of_others_and_no_score_by_more_than_one(table):
    """The table's own path: rows of one person become any others, with other cells and more of them."""
    config = parse_find(config_of())
    columns = config.columns
    strange = pd.DataFrame({"who": [5] * 40, "age": [1e9] * 40, "pay": -7.0, "team": [f"n{i}" for i in range(40)]})
    strange["born"] = pd.Timestamp("1900-01-01")
    neighbour = pd.concat([strange, table[table["who"] != 5]])[columns]
    found = []
    for one in (table[columns], neighbour):
        search = _Search(FindPlan(config), pa.Table.from_pandas(one, preserve_index=False))
        numbers = one["age"].to_numpy()
        scores = search.plan.quantile("numbers").scores(search._owner, numbers, grids.numbers().edges).values
        names, items, keys = search.votes("team")
        weights = search.plan.levels.weights(search._owner, items, keys)
        found.append((scores, dict(zip(names, weights, strict=False))))
    assert np.abs(found[0][0] - found[1][0]).max() <= 1
    shared = {*found[0][1]} & {*found[1][1]}
    moved = math.hypot(*(found[0][1][text] - found[1][1][text] for text in shared))
    assert 0 < moved <= math.sqrt(2)


def test_a_file_of_the_command_works_in_python(table, found, tmp_path):
    table.to_parquet(tmp_path / "people.parquet")
    (tmp_path / "facts.toml").write_text(FILE, encoding="utf-8")
    assert find(tmp_path / "facts.toml").settings == found.settings
    with pytest.raises(BadInput, match="epsilon is given beside a file"):
        find(tmp_path / "facts.toml", epsilon=1.0)
    raw = tomllib.loads(FILE)
    raw["data"]["path"] = str(tmp_path / "people.parquet")
    assert find_facts(parse_find(raw)).settings == found.settings
    assert find(tmp_path / "people.parquet", **ASKED).settings == found.settings


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_one_item_less_of_one_person_moves_no_choice_of_anybody_else(relation):
    """The seed is known, people hold more words than count, and the table is read as in a search."""
    rng, people = np.random.default_rng(3), np.repeat(np.arange(100, 400), 6)
    others = pd.DataFrame({"who": people, "team": rng.choice(list("abcdefghij"), len(people))})
    config = parse_find(config_of(relation, words=["team"], numbers=[], dates=[], most_levels=2))
    plan = FindPlan(config.model_copy(update={"data": config.data.model_copy(update={"all_users": 301})}))

    def weights(own: str) -> np.ndarray:
        zoe = pd.DataFrame({"who": [0] * len(own), "team": list(own)}, dtype=object)
        search = _Search(plan, pa.Table.from_pandas(pd.concat([zoe, others]).astype(str), preserve_index=False))
        names, items, keys = search.votes("team")
        found = dict(zip(names, plan.levels.weights(search._owner, items, keys), strict=True))
        return np.array([found[name] for name in "abcdefghij"])

    ordinary = weights("jihg")
    for own in ("jih", "hj", "A", "jihgfe", *([""] if relation == "add_or_remove" else [])):
        assert np.linalg.norm(weights(own) - ordinary) <= math.sqrt(2) * (1 + 1e-12)
