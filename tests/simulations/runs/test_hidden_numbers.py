"""The number of users is protected where a user may be added or removed: no door shows it, and none depends on it.

Only the number of places is public. A table may hold fewer users than places; more are refused, without a number.
"""

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tomli_w
from examples import call

import userdp
from simulations import find, train
from simulations.config.run_config import parse_config
from simulations.engines.configured import make_grid
from simulations.runs.build import (
    check_places,
    held_out_users,
    load_datasets,
    make_strategy,
    public_facts,
    starting_problem,
)
from simulations.runs.run import run
from strategies import PublicFacts
from userdp.data.source import Datasets
from userdp.data.tables.sources import PublicData
from userdp.errors import BadInput, PopulationTooSmall, UserdpError
from userdp.mechanisms import GaussianMechanism

PLACES, FEW, MANY = 400, 383, 417
COLUMNS = {"user": "who", "features": ["a"], "ranges": {"a": [0.0, 1.0]}}
PRIVACY = {"epsilon": 4.0, "delta": 1e-4}
ASK = [{"statistic": "count"}, {"statistic": "mean", "of": "a"}]
POISSON = {"strategy": {"kind": "dp_fed_sgd", "rounds": 2, "sampling": "poisson", "cohort": 40}}
WEIGHTED = {"strategy": {"kind": "recentred_clipping", "rounds": 2, "relation": "add_or_remove"}}
TRAINED = {"problem": {"kind": "quadratic"}, "output": {"reference": False, "anyway": True}, **POISSON}
ADDED, REPLACED = "add_or_remove", "replace_one"


def table(users, rows=2):
    who = np.repeat([f"p{user * 7919 % 10007:05d}" for user in range(users)], rows)
    return pd.DataFrame({"who": who, "a": np.linspace(0.0, 1.0, len(who))})


def query(relation, path="t.parquet", **data):
    data = {"kind": "table", "path": str(path), **COLUMNS, "all_users": PLACES, **data}
    return {"ask": ASK, "data": data, "privacy": {**PRIVACY, "relation": relation}}


def trained(path="t.parquet", strategy=POISSON, **data):
    data = {"kind": "table", "path": str(path), **COLUMNS, "all_users": PLACES, "test_fraction": 0.0, **data}
    return {"name": "hidden", "data": data, "privacy": PRIVACY, **TRAINED, **strategy}


def findings(relation, path="t.parquet"):
    data = {"path": str(path), "user": "who", "all_users": PLACES}
    return {"data": data, "find": {"numbers": ["a"]}, "privacy": {**PRIVACY, "relation": relation}}


def doors(folder, users):
    """Name -> everything that others see of it, or the error; from a file, from a table in memory, by the command."""
    people, path = table(users), folder / "t.parquet"
    people.to_parquet(path)

    def command(name, raw, *more):
        (folder / f"{name}.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
        answer = call(name, folder / f"{name}.toml", *more)
        return answer.output + answer.stderr

    def files(raw, name):
        done = run(parse_config(raw), directory=folder / name)
        return [(done.directory / one).read_text() for one in ("plan.json", "guarantee.json", "config.toml")], shown(
            done
        )

    def shown(done):
        data = json.loads((done.directory / "data.json").read_text())
        return [{k: v for k, v in one.items() if "private" not in k and k != "seconds"} for one in (done.result, data)]

    settings = {"progress": False, **COLUMNS, "all_users": PLACES, **PRIVACY}
    return {
        "query": lambda: command("query", query(ADDED, path), "--output", str(folder / "out")),
        "plan of a query": lambda: command("plan", query(ADDED, path)),
        "query, files": lambda: files(query(ADDED, path), "q"),
        "query, limited": lambda: files(query(ADDED, path, max_samples=1), "l"),
        "query in Python": lambda: str(userdp.query(people, ask=ASK, relation=ADDED, **settings)),
        "query of a file in Python": lambda: str(userdp.query(path, ask=ASK, relation=ADDED, **settings)),
        "run": lambda: files(trained(path), "r"),
        "run, weighted": lambda: files(trained(path, WEIGHTED), "w"),
        "run, training users": lambda: files(trained(path, all_users=None, users=PLACES), "u"),
        "run, held out": lambda: files(trained(path, test_fraction=0.25), "h"),
        "run, evaluated": lambda: files(
            trained(path, test_fraction=0.25) | {"privacy": PRIVACY | {"evaluate": True}}, "e"
        ),
        "run, command": lambda: command("run", trained(path)),
        "plan": lambda: command("plan", trained(path)),
        "train": lambda: train(people, **settings, test_fraction=0.0, **TRAINED).guarantee,
        "find": lambda: find(people, user="who", all_users=PLACES, numbers=["a"], relation=ADDED, **PRIVACY),
        "find, command": lambda: command("find", findings(ADDED, path), "--output", str(folder / "found.toml")),
    }


NAMES = [
    *("query", "plan of a query", "query, files", "query, limited", "query in Python", "query of a file in Python"),
    *(
        "run",
        "run, weighted",
        "run, training users",
        "run, held out",
        "run, evaluated",
        "run, command",
        "plan",
        "train",
    ),
    *("find", "find, command"),
]


@pytest.mark.parametrize("users", [FEW, MANY])
@pytest.mark.parametrize("name", NAMES)
def test_no_door_shows_how_many_there_are(name, users, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    try:
        seen, refused = doors(tmp_path, users)[name](), False
    except UserdpError as error:
        seen, refused = str(error), True
    told = f"{seen} {[record.getMessage() for record in caplog.records]}"
    assert not re.search(rf"(?<![\d.]){users}(?![\d.]\d)", told.replace(",", ""))
    if users == FEW:
        assert not refused, seen
        assert "Error" not in told


@pytest.mark.parametrize("make", [lambda path: query(ADDED, path), trained], ids=["query", "run"])
def test_more_users_than_places_are_refused_in_one_sentence(make, tmp_path):
    table(MANY).to_parquet(path := tmp_path / "t.parquet")
    sentence = r"data\.all_users = 400: there are more users than these places, and their number is protected"
    with pytest.raises(BadInput, match=sentence):
        load_datasets(parse_config(make(path)))


@pytest.mark.parametrize(("relation", "users"), [(ADDED, MANY), (REPLACED, FEW), (REPLACED, MANY)])
def test_users_in_memory_are_counted_as_those_of_a_table_are(relation, users):
    """Whoever has the users already gives `public_facts` their number: more than places never train."""
    config = parse_config(query(relation))
    told = "data give" if relation == REPLACED else "their number is protected"
    with pytest.raises(BadInput, match=told) as error:
        public_facts(config, SimpleNamespace(users=users))
    assert (str(users) in str(error.value)) == (relation == REPLACED)
    assert public_facts(config, SimpleNamespace(users=PLACES)).users == PLACES
    assert public_facts(parse_config(query(ADDED)), SimpleNamespace(users=FEW)).users == PLACES


@pytest.mark.parametrize("users", [FEW, MANY])
def test_where_users_are_replaced_their_number_is_public_and_the_message_helps(users, tmp_path):
    table(users).to_parquet(path := tmp_path / "t.parquet")
    for raw in (query(REPLACED, path), trained(path, {"strategy": {"kind": "dp_fed_sgd", "rounds": 2}})):
        with pytest.raises(PopulationTooSmall if users == FEW else BadInput, match=f"but the data have {users} users"):
            load_datasets(parse_config(raw))


def test_the_number_of_a_public_data_set_is_public():
    plan = make_strategy(public := parse_config(trained("t.csv")), starting_problem(public), PublicFacts(200)).plan
    assert plan.guarantee.users_come_and_go
    for data, refused in ((PublicData(kind="public", name="chem97"), False), (public.data, True)):
        config = SimpleNamespace(data=data.model_copy(update={"all_users": None, "users": None}))
        with pytest.raises(BadInput, match="all_users is missing") if refused else nullcontext():
            check_places(config, plan.guarantee)


def test_held_out_users_keep_the_numbers_of_their_places(tmp_path):
    """Training users are numbered below n, held-out users from n on, however many are missing."""
    table(FEW).to_parquet(path := tmp_path / "t.parquet")
    config = parse_config(trained(path, test_fraction=0.25) | {"privacy": PRIVACY | {"evaluate": True}})
    datasets = load_datasets(config)
    assert datasets.users.users + datasets.test.users == FEW
    assert (config.data.declared_users, config.data.declared_held_out) == (300, 100)
    with make_grid(config, starting_problem(config), datasets) as grid:
        numbers = np.sort(np.concatenate([node.users for node in grid._nodes]))
    wanted = [np.arange(datasets.users.users), 300 + np.arange(datasets.test.users)]
    np.testing.assert_array_equal(numbers, np.concatenate(wanted))
    done = run(config, datasets=datasets, directory=tmp_path / "run")
    assert done.result["missing_users_private"] == 0
    assert (done.result["users"], done.result["held_out"]["users"]) == (300, 100)
    assert held_out_users(config, Datasets(datasets.train, datasets.test.select(np.arange(5)), datasets.report)) == 100


def sums_of(people, folder, **data):
    """The sensitivity of a query's sums, and the sums before noise."""
    people.to_parquet(path := folder / "t.parquet")
    given = []
    with pytest.MonkeyPatch.context() as patch:
        release = GaussianMechanism.release
        patch.setattr(
            GaussianMechanism,
            "release",
            lambda one, value, noise: given.append((one, value)) or release(one, value, noise),
        )
        run(parse_config(query(ADDED, path, max_samples=2, **data)), directory=folder / "run", report=False)
    [(mechanism, value)] = given
    return mechanism.l2_sensitivity, value


def test_a_person_more_or_less_moves_the_sums_of_a_query_by_its_own_row(tmp_path):
    """People hold more samples than count: for a known seed, the choice of everybody else's samples stays the same."""
    everybody = table(PLACES, rows=5)
    labels = sorted(everybody["who"].unique())
    charged, whole = sums_of(everybody, tmp_path)
    for gone in ([labels[0]], [labels[200]], [labels[-1]]):
        _, less = sums_of(everybody[~everybody["who"].isin(gone)], tmp_path)
        moved = float(np.linalg.norm(whole - less))
        assert 0.1 * charged < moved <= charged * (1 + 1e-9)


def named(users):
    """People whose one feature names them."""
    who = [f"p{user * 7919 % 10007:05d}" for user in range(users)]
    return pd.DataFrame({"who": who, "a": [int(one[1:]) / 10007 for one in who]})


def trains(people, folder, **data):
    people.to_parquet(path := folder / "t.parquet")
    users = load_datasets(parse_config(trained(path, **data))).users
    return {round(float(cell), 7) for cell in users.block(np.arange(users.users)).features[:, 0]}


@pytest.mark.parametrize("fraction", [0.0, 0.25])
@pytest.mark.parametrize("users", [FEW, PLACES])
def test_a_person_more_or_less_is_one_more_or_less_who_trains_for_every_seed(users, fraction, tmp_path):
    """People may be held out, too: whoever knows the seed and everybody else sees nobody else come or go."""
    everybody = named(users)
    whole = trains(everybody, tmp_path, test_fraction=fraction)
    for gone in (0, 7, users // 2, users - 1):
        less = trains(everybody.drop(gone), tmp_path, test_fraction=fraction)
        assert less < whole
        assert len(whole - less) == 1


@pytest.mark.parametrize("more", [{"test_fraction": 0.2}, {"test_fraction": 0.0}, {"min_samples": 2}])
def test_training_users_are_no_first_ones_of_a_number_that_is_protected(more, tmp_path):
    """More people than data.users: who trains, and how many are held out, would tell how many there are."""
    for users in (FEW, MANY):
        table(users, rows=3).to_parquet(path := tmp_path / "t.parquet")
        declared = {"all_users": None, "users": 300, "test_fraction": 0.0} | more
        with pytest.raises(BadInput, match=r"data\.users = 300.*protected.*declare") as told:
            load_datasets(parse_config(trained(path, **declared)))
        assert str(users) not in str(told.value)
        plain = {"strategy": {"kind": "dp_fed_sgd", "rounds": 2}}
        assert load_datasets(parse_config(trained(path, plain, **declared))).users.users == 300


def test_a_number_that_is_protected_is_not_read_from_the_data(tmp_path):
    """Neither for a query, which sells the number with noise, nor for a run, whose means would be divided by it."""
    people = table(FEW)
    people.to_parquet(path := tmp_path / "t.parquet")
    settings = {"progress": False, **COLUMNS, **PRIVACY}
    for door in (
        lambda: userdp.query(people, ask=ASK, relation=ADDED, **settings),
        lambda: train(people, **settings, test_fraction=0.0, **TRAINED),
        lambda: run(parse_config(trained(path, all_users=None)), directory=tmp_path / "r"),
    ):
        with pytest.raises(BadInput, match=r"data\.all_users is missing: .*declare a number of places") as told:
            door()
        assert str(FEW) not in str(told.value)
    assert not (tmp_path / "r" / "data.json").exists()
    assert userdp.query(people, ask=ASK[1:], relation=REPLACED, **settings).guarantee.relation == REPLACED
