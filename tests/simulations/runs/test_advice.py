"""Advice: every strategy planned for the declared facts, the best prediction first, and why others refuse."""

import json
from pathlib import Path

import pytest
from examples import call
from scipy import stats

from simulations.comparison.config import parse_comparison
from simulations.comparison.jobs import compare
from simulations.config.run_config import parse_config
from simulations.reports.explain import shown
from simulations.runs.advice import _advice, advise
from simulations.runs.build import public_facts, starting_problem
from strategies import STRATEGIES
from userdp.errors import BadInput

CONFIGS = Path(__file__).resolve().parents[3] / "simulations" / "configs"
DATA = {"kind": "synthetic", "population": "gaussian", "users": 3000, "dimension": 10, "samples_per_user": 5}
RAW = {
    "name": "advice",
    "problem": {"kind": "quadratic", "bound": 4.0, "radius": 1.0},
    "data": DATA | {"test_users": 0, "samples": 15_000},
    "privacy": {"epsilon": 1.0, "delta": 1e-6},
    "strategy": {"kind": "dp_fed_sgd", "rounds": 7},
}


@pytest.fixture(scope="module")
def found():
    return advise(parse_config(RAW))


def test_the_best_prediction_comes_first_and_those_that_refuse_last(found):
    kinds = [0 if each.predicted is not None else 1 if each.plan is not None else 2 for each in found]
    assert kinds == sorted(kinds)
    assert len(set(kinds)) == 3
    predicted = [each.predicted for each in found if each.predicted is not None]
    assert predicted == sorted(predicted)


def test_those_that_refuse_say_why_and_the_others_what_they_do(found):
    for each in found:
        values = each.as_dict()
        assert (each.plan is None) == bool(values["refused"])
        assert values["adversary"]
        assert (values["relation"] is None) == (each.plan is None or not each.plan.guarantee.holds)
        assert values["cost"]
        if each.plan is not None:
            assert values["rounds"] >= 1
            assert 0 < each.plan.guarantee.epsilon <= 1 + 1e-6


def test_the_files_own_strategy_has_the_files_settings(found):
    own = next(each for each in found if each.configured)
    numbers = own.plan.numbers
    assert (own.strategy, own.plan.rounds - numbers["preparation_rounds"]) == ("dp_fed_sgd", 7)
    assert sum(each.configured for each in found) == 1


TABLE = {"kind": "table", "path": "/nowhere/visits.csv", "user": "patient", "target": "y", "target_range": [0.0, 1.0]}
TABLE |= {"features": ["age"], "ranges": {"age": [0.0, 100.0]}}
WORDS = ["auto (*)", "refuses:", "one user is", "compare risks within one relation"]
WORDS += ["Predicted for a loss equally curved in all directions"]


def test_no_data_are_opened_and_facts_that_are_not_declared_are_asked_for():
    raw = RAW | {"problem": {"kind": "squared"}, "data": TABLE | {"users": 500}}
    assert any(each.plan is not None for each in advise(parse_config(raw)))
    with pytest.raises(BadInput, match=r"data\.users is missing"):
        advise(parse_config(raw | {"data": TABLE}))


@pytest.mark.parametrize(("width", "words"), [("80", []), ("120", WORDS)])
def test_the_command_shows_a_table_in_which_no_number_is_cut_off(monkeypatch, width, words):
    monkeypatch.setenv("COLUMNS", width)
    table = call("plan", "--all", CONFIGS / "quickstart.toml")
    assert table.exit_code == 0, table.output
    assert "…" not in table.output
    told = " ".join(table.output.split())
    assert [one for one in ["replaced", *words] if one not in told] == []


def test_the_command_tells_of_every_strategy_as_json():
    values = json.loads(call("plan", "--all", CONFIGS / "quickstart.toml", "--json").stdout)
    assert {each["strategy"] for each in values} == set(STRATEGIES) - {"non_private"}


@pytest.mark.slow
def test_strategies_come_out_in_about_the_order_that_advice_gives(tmp_path):
    names = ["auto", "dp_fed_sgd", "dp_fed_avg", "dp_ftrl", "local_dp", "winsorized_rotation", "localized_clipping"]
    raw = RAW | {"name": "order", "seeds": 2, "strategy": [{"kind": name} for name in names]}
    outcome = compare(parse_comparison(raw), workers=0, directory=tmp_path)
    rows = outcome.rows
    predicted = {each.strategy: each.predicted for each in advise(parse_config(RAW | {"strategy": {"kind": "auto"}}))}
    measured = {name: sum(row["metric.excess_risk"] for row in rows if row["strategy"] == name) for name in names}
    correlation = stats.spearmanr([predicted[name] for name in names], [measured[name] for name in names]).statistic
    assert correlation > 0.7
    # The comparison's own report says the same.
    page = (outcome.directory / "report.md").read_text(encoding="utf-8")
    assert f"with a rank correlation of {shown(correlation)}" in page


def test_who_has_to_trust_the_server_is_told(found):
    """Nobody has to, with masked sums."""
    assert all(one.trusting == STRATEGIES[one.strategy].about.server_trusted for one in found)
    masked = parse_config(RAW | {"privacy": RAW["privacy"] | {"trust": "sum"}})
    assert not _advice(masked, starting_problem(masked), public_facts(masked), "dp_ftrl").trusting
