"""Every path to a guarantee says where its noise comes from, and whatever shows one shows its assumptions."""

import html
import inspect
import logging
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tomli_w
from any_strategy import sources
from examples import ASKED, GUARANTEE, call, changed, write_table
from rich.console import Console

import simulations
import strategies
import userdp.sklearn
from simulations import ComparisonResult, compare, find, load_model, plan, query, train
from simulations.account.command import _show
from simulations.account.entering import accounts_at, enter
from simulations.api.console import show_advice
from simulations.comparison.ranking import rankings
from simulations.config.run_config import parse_config
from simulations.deployment.submit import bring
from simulations.finding.find import declared
from simulations.finding.plan import FindPlan
from simulations.finding.settings import parse_find
from simulations.records.run_directory import read_json
from simulations.reports.explain import assumptions_of, promise_texts, show_promise
from simulations.runs.advice import _advice
from simulations.runs.build import make_plan, make_strategy, public_facts, starting_problem
from simulations.runs.trackers import _ending
from simulations.serving.overview import Overview, Shown, _progress
from simulations.serving.page import _page
from strategies import STRATEGIES, PublicFacts, Statistics, drop_in_report
from strategies.core.recipe import Recipe
from strategies.core.results import PrivateResult
from strategies.drop_in import DropIn
from userdp.accounting import Privacy
from userdp.accounting.filter import Total
from userdp.accounting.guarantee import Guarantee
from userdp.queries import table_query
from userdp.streams import DRAWN_SEED, GIVEN_SEED, SECURE_ASSUMPTIONS

ROOT = Path(__file__).resolve().parents[1]
FIND = {"data": {"path": "t.csv", "user": "who", "all_users": 60}, "find": {"max_samples": True}}
FIND |= {"privacy": {"epsilon": 8.0, "delta": 1e-3}}


# Configurations, Python, scikit-learn -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The results of each public function that gives people a guarantee, by name, and the folder of their files."""
    folder, quiet = tmp_path_factory.mktemp("made"), {"progress": False}
    path, budget = write_table(folder / "people.csv"), {"epsilon": 8.0, "delta": 1e-3}
    several = ASKED | {"strategy": None, "strategies": [ASKED["strategy"], "local_dp"], "seeds": 1}
    columns = {"user": "who", "features": ["height"], "ranges": {"height": [150.0, 200.0]}}
    config = parse_config(changed())
    return {
        "folder": folder,
        "train": train(path, directory=folder / "run", output={"reference": False}, **quiet, **ASKED),
        "load_model": load_model(folder / "run"),
        "plan": plan(path, **ASKED),
        "make_strategy": make_strategy(config, starting_problem(config), public_facts(config)),
        "query": query(path, directory=folder / "query", all_users=60, **columns, **budget, **quiet),
        "find": find(path, user="who", all_users=60, max_samples=True, **budget),
        "compare": compare(path, directory=folder / "compared", **quiet, **several),
    }


def promises_of(value):
    """The guarantees that something public hands out."""
    if isinstance(value, ComparisonResult):
        entries = read_json(value.directory / "comparison.json")["strategies"].values()
        return [Guarantee.from_dict(one["guarantee"]) for one in entries]
    places = [value, getattr(value, "plan", None)]
    return [one.guarantee for one in places if isinstance(getattr(one, "guarantee", None), Guarantee)]


LEADS_TO_NONE = {"build_problem", "enter", "load_config", "load_datasets", "render"}
"""Public functions of `simulations` that hand out no guarantee."""


def test_every_public_function_that_leads_to_a_guarantee_says_where_noise_comes_from(made):
    functions = {name for name in simulations.__all__ if inspect.isfunction(getattr(simulations, name))}
    assert functions - LEADS_TO_NONE == made.keys() - {"folder"}  # a new one belongs here
    for name in functions - LEADS_TO_NONE:
        promises = promises_of(made[name])
        assert promises, name
        assert [sources(one) for one in promises] == [[GIVEN_SEED]] * len(promises), name
    for run_of in ("run", "query"):
        stored = [read_json(made["folder"] / run_of / name) for name in ("guarantee.json", "result.json", "plan.json")]
        for promise in (stored[0], stored[1]["guarantee"], stored[2]["guarantee"]):
            assert sources(Guarantee.from_dict(promise)) == [GIVEN_SEED]


def test_every_public_class_of_strategies_is_one_of_those_looked_at():
    public = {one for one in map(partial(getattr, strategies), strategies.__all__) if isinstance(one, type)}
    drop_ins = {one for one in public if issubclass(one, DropIn)}
    recipes = {one for one in public if issubclass(one, Recipe) and "about" in vars(one)}
    assert drop_ins == set(DropIn.__subclasses__())
    assert recipes - {Statistics} <= {STRATEGIES[name] for name in STRATEGIES}


def test_statistics_of_nodes_say_where_their_noise_comes_from():
    query = table_query(
        [{"statistic": "mean", "of": "height"}], user="who", features=["height"], ranges={"height": [150.0, 200.0]}
    )
    secure = list(SECURE_ASSUMPTIONS["user"])
    for noise, seed, said in (("seeded", 5, [GIVEN_SEED]), ("seeded", None, [DRAWN_SEED]), ("secure", None, secure)):
        strategy = Statistics().strategy(query, PublicFacts(60), Privacy(8.0, 1e-3, noise=noise), seed=seed)
        assert sources(strategy.plan.guarantee) == said


@pytest.mark.parametrize("name", userdp.sklearn.__all__)
def test_an_estimator_says_where_its_noise_comes_from(name):
    rng, quick = np.random.default_rng(0), {"kind": "dp_fed_sgd", "clip_norm": 1.0, "rounds": 1}
    features, target = pd.DataFrame({"x": rng.uniform(0, 1, 90)}), rng.integers(0, 2, 90)
    classes = name in ("PrivateLogisticRegression", "PrivateClassifier")
    target_is = {"classes": [0, 1]} if classes else {"target_range": (0, 1)}
    for given in ({"random_state": None}, {"random_state": 0}):
        settings = {"epsilon": 4.0, "delta": 1e-4, "bounds": (0, 1), "strategy": quick, "rows_are_users": True} | given
        settings["settings"] = {"output": {"reference": False}}
        fitted = getattr(userdp.sklearn, name)(**settings, **target_is).fit(features, target)
        # A seed that nobody gave is in the model's configuration, for whoever has the model.
        assert sources(fitted.guarantee_) == [GIVEN_SEED]


def test_a_configuration_with_secure_noise_says_so():
    guarantee = make_plan(parse_config(changed(privacy__noise="secure"))).guarantee
    assert sources(guarantee) == list(SECURE_ASSUMPTIONS["user"])
    secure = FIND | {"privacy": FIND["privacy"] | {"noise": "secure"}}
    assert [sources(FindPlan(parse_find(one)).guarantee) for one in (FIND, secure)] == [[GIVEN_SEED], []]


# What people see ------------------------------------------------------------------------------------------------------


def words(text):
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def shown_whole(text, *promises):
    """True if a text has the assumptions of guarantees, wherever its lines break."""
    return all(" ".join(one.split()) in words(text) for promise in promises for one in promise.assumptions)


def printed(show, *values):
    console = Console(record=True, width=10_000, file=StringIO())
    show(*values, console)
    return console.export_text()


def test_a_guarantee_is_its_sentence_and_its_assumptions_one_a_line():
    whole = str(GUARANTEE).splitlines()
    assert whole == [GUARANTEE.sentence(), *(f"  assuming: {one}" for one in GUARANTEE.assumptions)]
    assert f"{Guarantee.none('noise is off')}" == "no privacy guarantee: noise is off"
    assert printed(show_promise, GUARANTEE).splitlines() == [f"Guarantee. {whole[0]}", *whole[1:]]
    assert promise_texts(GUARANTEE)["userdp.guarantee"] == str(GUARANTEE)


def test_below_a_table_each_assumption_stands_once_with_those_that_rest_on_it():
    other = replace(GUARANTEE, assumptions=(GUARANTEE.assumptions[0], "another"))
    found = assumptions_of({"a": GUARANTEE, "b": other, "none": Guarantee.none("noise is off")})
    first, second = GUARANTEE.assumptions
    assert found == [f"  assuming: {first}", f"  assuming: {second} (a)", "  assuming: another (b)"]


def test_everything_that_python_prints_has_the_assumptions(made):
    for name in ("train", "plan", "query", "compare"):
        shown = [repr(made[name]), *([made[name]._repr_html_()] if hasattr(made[name], "_repr_html_") else [])]
        for text in shown:
            assert shown_whole(text, *promises_of(made[name])), name
            assert GIVEN_SEED in words(text), name
    assert shown_whole(declared(parse_find(FIND), made["find"]), made["find"].guarantee)


def test_everything_that_a_terminal_prints_has_the_assumptions(made, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10000")
    monkeypatch.chdir(tmp_path)
    folder, promise = made["folder"], made["train"].guarantee
    facts = FIND | {"data": FIND["data"] | {"path": str(folder / "people.csv")}}
    (tmp_path / "find.toml").write_text(tomli_w.dumps(facts))
    asked = {
        "plan": (folder / "run" / "config.toml",),
        "run": (folder / "run" / "config.toml", "--output", tmp_path / "runs"),
        "predict": (folder / "run", folder / "people.csv"),
        "find": ("find.toml", "--output", "found.toml"),
        "query": (folder / "query" / "config.toml", "--output", tmp_path / "runs"),
        "report": (folder / "run", "--card"),
    }
    for verb, arguments in asked.items():
        done = call(verb, *arguments)
        assert done.exit_code == 0, done.output
        assert verb == "report" or GIVEN_SEED in words(done.stdout), verb
    for page in ("report.html", "card.html"):
        assert shown_whole((folder / "run" / page).read_text(encoding="utf-8"), promise)
    for page in ("report.html", "report.md"):
        assert shown_whole((folder / "compared" / page).read_text(encoding="utf-8"), *promises_of(made["compare"]))
    assert shown_whole(rankings(folder / "compared"), *promises_of(made["compare"]))


def test_plans_of_all_strategies_say_what_their_epsilon_rests_on(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "10000")
    config = parse_config(changed())
    found = [_advice(config, starting_problem(config), public_facts(config), name) for name in ("auto", "local_dp")]
    show_advice(found)
    shown = capsys.readouterr().out
    for one in found:
        assert one.as_dict()["assumptions"] == list(one.plan.guarantee.assumptions)
        assert shown_whole(shown, one.plan.guarantee)


def test_logs_have_the_assumptions(made, tmp_path, caplog):
    promise, folder = made["train"].guarantee, made["folder"] / "run"
    with caplog.at_level(logging.INFO):
        made["make_strategy"].summary()
        drop_in = strategies.DropInFedAvg(users=400, epsilon=4.0, delta=1e-4, rounds=2)
        drop_in_report.run_begins("DropInFedAvg", drop_in.plan)
        drop_in_report.run_ends(PrivateResult(guarantee=drop_in.plan.guarantee), 1.0)
        bring(folder, tmp_path, "finished:completed")
    began, ended = (one.getMessage() for one in caplog.records if "Guarantee: " in one.getMessage())
    assert shown_whole(began, drop_in.plan.guarantee)
    assert shown_whole(ended, drop_in.plan.guarantee)
    logged = [one.getMessage() for one in caplog.records]
    assert str(made["make_strategy"].plan.guarantee) in logged
    assert f"guarantee: {promise}" in logged


def test_accounts_trackers_and_the_page_of_a_federation_have_the_assumptions(made, capsys, accounts):
    promise, folder = made["train"].guarantee, made["folder"] / "run"
    assert _ending(folder).texts["guarantee"] == str(promise)
    place = accounts_at(accounts)
    place.create("people", Total(20.0, 1e-2, "replace_one", 0.5))
    enter(made["make_strategy"], "people", "a run")
    _show(place.read("people"))
    assert GIVEN_SEED in words(capsys.readouterr().out)
    due = {"earliest": datetime(2030, 1, 1, tzinfo=UTC), "every": None, "state": "done"}
    queued = SimpleNamespace(number=1, name="mine", account=None, silos={}, **due)
    shown = Shown(queued, *_progress(folder), None, None)
    seen = Overview(datetime.now(UTC), [queued], [shown], shown, [], [], 1, 1)
    assert shown_whole(_page(seen, []), promise)


def test_no_other_code_shows_a_guarantee_without_its_assumptions():
    """`sentence()` and the stored sentence are for places that list the assumptions themselves."""
    folders = [ROOT / name for name in ("userdp", "strategies", "simulations", "apps", "docs", "research")]
    written = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md", ".ipynb")]
    files = [path for path in (ROOT / "README.md", *written) if ALONE.search(path.read_text(encoding="utf-8"))]
    found = {str(path.relative_to(ROOT)) for path in files}
    assert found <= LISTS_THEM


ALONE = re.compile(r"""\.sentence\(\)|\["sentence"\]|guarantee\.sentence\b""")
LISTS_THEM = {
    "docs/making/excerpts.py",
    "research/byzantine.py",
    "simulations/api/language.py",
    "simulations/audit/finding.py",
    "simulations/reports/templates/run.html.md",
    "simulations/runs/advice.py",
    "simulations/runs/result.py",
    "userdp/accounting/guarantee.py",
}
"""Files with a sentence beside a list of the assumptions."""
