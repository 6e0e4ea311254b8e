"""Every door to people's data: what asks and releases something is paid for first, and there is no other door."""

import inspect

import numpy as np
import pandas as pd
import pytest
import tomli_w
import typer
from examples import call, changed, table_section, write_table
from helpers_serving import Federation, queue_of, text
from typer.testing import CliRunner

import simulations
import strategies
import userdp.sklearn
from simulations.account.accounts import Accounts
from simulations.cli import app
from simulations.deployment.__main__ import app as deployment
from simulations.engines.grids import LocalGrid
from simulations.finding import facts
from simulations.serving.announcing import Alarm
from simulations.serving.keeper import Keeper
from strategies import DPFedSGD, DropInAdaptiveClipping, DropInAuto, DropInFedAvg, DropInRecentredClipping
from strategies.core.public_facts import PublicFacts
from strategies.drop_in import DropIn
from userdp import Privacy
from userdp.accounting import Total
from userdp.errors import BadInput
from userdp.problems import Quadratic

EPSILON, DELTA = 1.0, 1e-3
ACCOUNT = "registry"
BUDGET = {"epsilon": EPSILON, "delta": DELTA, "account": ACCOUNT}
COLUMNS = {"user": "who", "features": ["height"], "ranges": {"height": [150.0, 200.0]}}
FIND = {"numbers": ["height"], "words": ["team"]}
STRATEGY = {"kind": "dp_fed_sgd", "rounds": 2}


def written(folder, raw):
    (folder / "file.toml").write_text(tomli_w.dumps(raw))
    return folder / "file.toml"


def done(result):
    """A verb that ended well; a refusal is raised as in Python."""
    if result.exit_code:
        raise BadInput(result.output)


def training(folder):
    output = {"reference": False, "anyway": True, "directory": str(folder / "runs")}
    raw = changed(data=table_section(folder / "people.csv"), problem={"kind": "logistic"}, privacy=BUDGET)
    return written(folder, raw | {"strategy": STRATEGY, "output": output})


def query(folder):
    data = {"kind": "table", "path": str(folder / "people.csv"), "all_users": 60, "max_samples": 4} | COLUMNS
    raw = {"name": "query", "data": data, "privacy": BUDGET, "ask": [{"statistic": "mean", "of": "height"}]}
    return written(folder, raw | {"output": {"directory": str(folder / "runs")}})


def searching(folder):
    data = {"path": str(folder / "people.csv"), "user": "who", "all_users": 60}
    return written(folder, {"data": data, "find": FIND, "privacy": BUDGET | {"epsilon": 20.0}})


def table(folder):
    return pd.read_csv(folder / "people.csv")


def trained(folder):
    asked = COLUMNS | {"target": "passed", "positive": "yes", "problem": "logistic", "all_users": 60}
    simulations.train(
        table(folder), **asked, **BUDGET, strategy=STRATEGY, progress=False, output={"reference": False, "anyway": True}
    )


def described(folder):
    simulations.query(table(folder), **COLUMNS, **BUDGET, all_users=60, max_samples=4, progress=False)


def fitted(folder, kind):
    people, declared = table(folder), {"bounds": {"height": [150.0, 200.0]}}
    if kind is userdp.sklearn.PrivateLogisticRegression or kind is userdp.sklearn.PrivateClassifier:
        declared["classes"], target = ["no", "yes"], people["passed"]
    else:
        declared["target_range"], target = [0.0, 9.0], people["count"].astype(float)
    known = {name: value for name, value in declared.items() if name in inspect.signature(kind).parameters}
    settings = {"account": ACCOUNT, "output": {"anyway": True}}
    model = kind(**known, epsilon=EPSILON, delta=DELTA, strategy=STRATEGY, settings=settings)
    model.fit(people[["height"]], target, people["who"])


def served(folder):
    """The queue's keeper, on a federation whose silos count the runs that they are asked in."""
    accounts = f"sqlite:///{folder / 'accounts.sqlite'}"
    queue, link = queue_of(accounts), Federation(home=folder / "home")
    queue.add("run", text(epsilon=EPSILON, delta=DELTA, account=ACCOUNT), ACCOUNT, NOON)
    keeper = Keeper(queue, link, folder, folder / "results", "me", Alarm(), now=lambda: NOON)
    while keeper.step():
        link.advance()
    (run,) = queue.runs()
    if run.state == "refused":
        assert link.runs == {}
        raise BadInput(run.reason)


NOON = pd.Timestamp("2026-12-01 12:00", tz="UTC").to_pydatetime()

DROP_INS = (DropInFedAvg, DropInAdaptiveClipping, DropInAuto, DropInRecentredClipping)


def dropped_in(kind, **more):
    options = {"deviation": 1.0} if "deviation" in kind.strategy.model_fields else {}
    return kind(users=200, epsilon=EPSILON, delta=DELTA, rounds=2, **options | more)


def on_flower(folder):
    strategy = DPFedSGD(rounds=2).strategy(Quadratic(2, 1.0, 5.0), PublicFacts(60), Privacy(EPSILON, DELTA))
    simulations.enter(strategy, ACCOUNT)


DOORS = {
    "userdp run": lambda folder: done(call("run", training(folder))),
    "userdp query": lambda folder: done(call("query", query(folder))),
    "userdp find": lambda folder: done(call("find", searching(folder), "--output", folder / "declared.toml")),
    "userdp audit": lambda folder: done(call("audit", training(folder), "--one-run", "--canaries", "20")),
    "userdp serve start": served,
    "train": trained,
    "query": described,
    "find": lambda folder: simulations.find(
        table(folder), user="who", all_users=60, **FIND, **BUDGET | {"epsilon": 20.0}
    ),
    **{
        name: lambda folder, name=name: fitted(folder, getattr(userdp.sklearn, name)) for name in userdp.sklearn.__all__
    },
    "enter": on_flower,
    **{
        f"enter, {kind.__name__}": lambda folder, kind=kind: simulations.enter(dropped_in(kind), ACCOUNT)
        for kind in DROP_INS
    },
}
"""Whatever asks people and releases something -> how; by `simulations.enter` where Flower's own loop asks."""

REFUSES_ACCOUNTS = {"userdp compare", "compare"}
"""Trains without privacy, too, which no account can cover: a test of comparisons sees that it refuses accounts."""
RELEASES_NOTHING = {
    **dict.fromkeys(["userdp plan", "plan"], "opens no data"),
    **dict.fromkeys(["userdp report", "userdp export", "render"], "reads a run's own files"),
    **dict.fromkeys(["userdp predict", "load_model"], "scores a table for its holder alone, by a released model"),
    **dict.fromkeys(["userdp list", "load_config"], "lists settings"),
    **dict.fromkeys(
        [f"userdp account {name}" for name in ("create", "show", "list", "export", "check", "backup", "restore")],
        "reads accounts",
    ),
    **dict.fromkeys(
        [f"userdp serve {name}" for name in ("add", "list", "cancel", "retry")], "is paid when its run begins"
    ),
    "userdp serve enter": "charges runs that a database lacks",
    "userdp account enter": "charges what other programs released",
    **dict.fromkeys(["deployment keys", "deployment superlink", "deployment gate"], "knows no data"),
    "deployment log": "shows a silo's officer what was asked of it",
    **dict.fromkeys(["deployment split", "deployment prepare"], "writes a silo's own folder, which it keeps"),
    "deployment submit": "submits a run, which a test of deployments sees pay",
    **dict.fromkeys(["build_problem", "make_strategy", "load_datasets"], "parts of a run that ask nobody"),
    **dict.fromkeys(
        ["ComparisonResult", "QueryResult", "Found", "RunConfig", "RunOutcome", "SavedModel", "TrainedModel"],
        "a result or a configuration",
    ),
}
"""Every other verb and function -> why it needs no account."""


def verbs(command, name):
    """The names of a command's verbs, those of its groups included."""
    found = getattr(command, "commands", None)
    return [name] if found is None else [one for key, inner in found.items() for one in verbs(inner, f"{name} {key}")]


def test_every_verb_and_function_is_known_to_release_something_or_not():
    """A new one has to be put into one of the lists here: with what it does to an account, or with a reason."""
    there = verbs(typer.main.get_command(app), "userdp") + verbs(typer.main.get_command(deployment), "deployment")
    there += [*simulations.__all__, *userdp.sklearn.__all__]
    there += [f"enter, {name}" for name in strategies.__all__ if is_drop_in(getattr(strategies, name))]
    known = [*DOORS, *REFUSES_ACCOUNTS, *RELEASES_NOTHING]
    assert sorted(known) == sorted(set(there))
    assert len(known) == len(set(known))


def is_drop_in(kind):
    return isinstance(kind, type) and issubclass(kind, DropIn)


@pytest.fixture
def people(tmp_path, accounts):
    write_table(tmp_path / "people.csv")
    return lambda epsilon: Accounts(accounts).create(ACCOUNT, Total(epsilon, 5e-3, others=0.5))


@pytest.mark.parametrize("door", DOORS)
def test_with_nothing_left_nobody_is_read_or_asked(people, accounts, tmp_path, monkeypatch, door):
    people(0.001)
    monkeypatch.setattr(LocalGrid, "_deliver", lambda *_: pytest.fail("somebody was asked"))
    monkeypatch.setattr(facts, "read_cells", lambda *_: pytest.fail("the table was read"))
    with pytest.raises(BadInput, match="exceeds what"):
        DOORS[door](tmp_path)
    assert Accounts(accounts).read(ACCOUNT).entries == ()
    assert not (tmp_path / "declared.toml").exists()


@pytest.mark.parametrize("door", DOORS)
def test_with_enough_left_it_is_entered_before_anybody_is_read_or_asked(people, accounts, tmp_path, monkeypatch, door):
    people(100.0)
    entered, deliver, read = [], LocalGrid._deliver, facts.read_cells

    def looked(of):
        def either(*arguments, **more):
            entered.append(len(Accounts(accounts).read(ACCOUNT).entries))
            return of(*arguments, **more)

        return either

    monkeypatch.setattr(LocalGrid, "_deliver", looked(deliver))
    monkeypatch.setattr(facts, "read_cells", looked(read))
    DOORS[door](tmp_path)
    (entry,) = Accounts(accounts).read(ACCOUNT).entries
    assert set(entered) <= {1}
    assert bool(entered) or door.startswith("enter")
    assert entry.token
    assert entry.price.mu_squared + entry.price.epsilon > 0
    assert sum(promise.epsilon for promise in entry.promises) >= 0.9 * EPSILON


def test_a_search_pays_for_all_its_releases_and_for_each_search(people, accounts, tmp_path):
    people(100.0)
    for _ in range(2):
        found = DOORS["find"](tmp_path)
    first, second = Accounts(accounts).read(ACCOUNT).entries
    assert first.token != second.token
    assert first.promises == (found.guarantee,)
    assert first.price.mu_squared > 0
    assert first.price.epsilon > 0
    assert 0 < first.price.delta < DELTA  # levels that one person holds


def test_a_search_without_a_table_costs_nothing_and_its_plan_warns(people, accounts, tmp_path):
    people(0.001)
    told = CliRunner().invoke(app, ["find", str(searching(tmp_path)), "--plan", "--json"])
    assert "this search would be refused: privacy.account = 'registry'" in told.stdout
    (tmp_path / "people.csv").unlink()
    with pytest.raises(BadInput, match="does not exist"):
        DOORS["userdp find"](tmp_path)
    assert Accounts(accounts).read(ACCOUNT).entries == ()


def test_each_time_that_a_strategy_is_entered_it_pays(people, accounts):
    """A program that starts again may have released something before, with noise that is drawn again."""
    people(100.0)
    for _ in range(2):
        simulations.enter(dropped_in(DropInFedAvg), ACCOUNT)
    first, second = Accounts(accounts).read(ACCOUNT).entries
    assert first.token != second.token
    assert first.price == second.price
    assert {"token", "place"}.isdisjoint(inspect.signature(simulations.enter).parameters)


@pytest.mark.parametrize("drop_in", [True, False])
def test_a_strategy_that_asked_and_heard_nothing_is_entered_too_late(people, accounts, drop_in):
    """It has no record yet: its first round failed, or is under way."""
    people(100.0)
    strategy = dropped_in(DropInFedAvg)
    if not drop_in:
        strategy = DPFedSGD(rounds=2).strategy(Quadratic(2, 1.0, 5.0), PublicFacts(60), Privacy(EPSILON, DELTA))
    inner = strategy.inner if drop_in else strategy
    inner.program.own.ledger.charge(np.arange(2))
    with pytest.raises(BadInput, match="enter it before start"):
        simulations.enter(strategy, ACCOUNT)
    assert Accounts(accounts).read(ACCOUNT).entries == ()


def test_a_strategy_that_has_started_is_entered_too_late(people, monkeypatch):
    people(100.0)
    strategy = dropped_in(DropInFedAvg)
    monkeypatch.setattr(strategy.inner.state.result, "rounds", ["a record"])
    with pytest.raises(BadInput, match="enter it before start"):
        simulations.enter(strategy, ACCOUNT)
