"""`userdp account`: create, show, list and export, and what a run says that does not fit."""

import json
import re
import sys

import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from examples import call, changed
from flwr import serverapp as flower
from tomli_w import dumps

from simulations.account.accounts import Account, Entry
from simulations.account.command import _list, _show
from simulations.account.export import events, exported
from simulations.terminal import BAD_INPUT
from userdp.accounting import ONE_GAUSSIAN, Guarantee, Price, Total
from userdp.accounting.filter import prices

pytestmark = pytest.mark.usefixtures("accounts")


def values(*words):
    done = call(*words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_an_account_is_made_entered_shown_listed_and_refuses_what_does_not_fit(tmp_path, accounts):
    done = call("account", "create", "registry", "--epsilon", 4, "--delta", 1e-4)
    assert done.exit_code == 0
    assert done.stdout == f"registry: epsilon = 4, delta = 0.0001, replace_one; in {accounts}\n"
    (tmp_path / "run.toml").write_text(dumps(changed(output={"directory": str(tmp_path)}, name="small")))
    words = ("run", tmp_path / "run.toml", "--account", "registry", "--set", "output.reference=false")
    assert call(*words).exit_code == 0
    refused = call(*words, "--set", "privacy.delta=1e-4")
    assert refused.exit_code == BAD_INPUT
    told = " ".join(refused.stderr.split())
    assert "userdp: privacy.account = 'registry': a run of epsilon = 4, delta = 0.0001 exceeds what is left" in told
    left = float(told.partition("at most ")[2].partition(" ")[0])
    assert call(*words, "--set", "privacy.delta=1e-4", "--set", f"privacy.epsilon={left}").exit_code == 0

    shown = values("account", "show", "registry", "--json")
    assert [one["what"] for one in shown["entries"]] == ["small: dp_fed_sgd"] * 2
    assert 0 < shown["left_epsilon"] < 0.3
    assert 3.9 < shown["spent_epsilon"] < 4.0
    assert shown["spent"]["mu_squared"] == pytest.approx(sum(one["mu_squared"] for one in shown["entries"]))
    assert [one["name"] for one in values("account", "list", "--json")] == ["registry"]
    for page in (call("account", "show", "registry").stdout, call("account", "list").stdout):
        assert "registry" in page
        assert "4" in page
    assert "replacing one whole user" in " ".join(call("account", "show", "registry").stdout.split())


@pytest.mark.parametrize(("relation", "told"), [("replace_one", "replacing"), ("add_or_remove", "adding or removing")])
def test_an_account_has_the_relation_and_the_share_of_others_that_were_asked_for_and_says_so(relation, told):
    words = ("--epsilon", 4, "--delta", 1e-4, "--relation", relation)
    assert call("account", "create", "whole", *words).exit_code == 0
    assert call("account", "create", "half", *words, "--others", 0.5).exit_code == 0
    half, whole = values("account", "list", "--json")
    assert (whole["others"], half["others"], half["limits"]["epsilon"]) == (0.0, 0.5, 2.0)
    shown = " ".join(call("account", "show", "half").stdout.split())
    assert f"For {told} one whole user. Spent so far: epsilon = 0" in shown
    assert "others, epsilon" in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("create", "a b", "--epsilon", 1, "--delta", 1e-6), "NAME = 'a b': use letters"),
        (("create", "a", "--epsilon", -1, "--delta", 1e-6), "epsilon = -1.0"),
        (("create", "a", "--epsilon", 1, "--delta", 1e-6, "--relation", "both"), "relation = 'both'"),
        (("create", "a", "--epsilon", 1, "--delta", 1e-6, "--accounts", "mysql://host"), "mysql is not supported"),
        (("show", "a"), "userdp account create"),
        (("export", "a"), "userdp account create"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words, reason):
    done = call("account", *words)
    assert done.exit_code == BAD_INPUT
    assert reason in " ".join(done.stderr.split())


def test_a_pure_total_is_for_what_is_no_gaussian():
    assert call("account", "create", "pure", "--epsilon", 1, "--delta", 0).exit_code == 0
    (pure,) = values("account", "list", "--json")
    assert (pure["others"], pure["limits"]["epsilon"], pure["limits"]["mu_squared"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_what_is_exported_costs_another_accountant_the_same(relation):
    prices = [Price(mu_squared=0.09), Price(mu_squared=0.04, delta=1e-7), Price(epsilon=0.4, delta=1e-6)]
    total = Total(8.0, 1e-5, relation, others=0.5)
    entries = [Entry(number, "", price, "", "", "", "", ()) for number, price in enumerate(prices, 1)]
    found = json.loads(json.dumps(exported(Account("registry", total, tuple(entries)))))
    accountant = PLDAccountant(NeighboringRelation[found["neighboring_relation"]])
    for entry in found["entries"]:
        for event in entry["events"]:
            accountant.compose(getattr(dp_event, event.pop("class_name"))(**event))
    added = sum(entry["delta"] for entry in found["entries"])
    spent = found["privacy_spent"]
    assert (spent["num_releases"], added) == (3, pytest.approx(1.1e-6))
    assert accountant.get_epsilon(spent["delta"] - added) == pytest.approx(spent["epsilon"], rel=1e-3)


@pytest.mark.parametrize("relation", flower.NeighboringRelation)
@pytest.mark.parametrize(
    ("accountant", "epsilon", "delta"),
    [(ONE_GAUSSIAN, 0.3, 1e-6), (ONE_GAUSSIAN, 6.0, 1e-9), ("any", 0.7, 0.0), ("any", 3.0, 1e-7)],
)
def test_the_events_of_a_guarantee_cost_another_accountant_no_less_and_hardly_more(
    relation, accountant, epsilon, delta
):
    """It is asked at the guarantee's own delta, and about one Gaussian at further ones, too."""
    own = relation.value.removesuffix("-one").replace("-", "_").replace("replace", "replace_one")
    promise = Guarantee("user", own, epsilon, delta, accountant, "others", (), True)
    price = prices(promise, own)[0]
    theirs = PLDAccountant(NeighboringRelation[relation.name])
    for event in events(price, own):
        theirs.compose(getattr(dp_event, event.pop("class_name"))(**event))
    for at in (delta, *([1e-4, 1e-12] if promise.is_one_gaussian else [])):
        ours = epsilon if at == delta else Total(8.0, at, own).spent_epsilon(price)
        their = theirs.get_epsilon(max(at - price.delta, 1e-15))
        assert ours - 1e-6 <= their <= ours * 1.001 + 1e-4


@pytest.mark.parametrize("epsilon", [0.3, 6.0])
def test_flowers_accountant_takes_what_is_exported_and_its_state_goes_out_and_in(epsilon):
    promise = Guarantee("user", "add_or_remove", epsilon, 1e-6, ONE_GAUSSIAN, "others", (), True)
    (event,) = events(prices(promise, "add_or_remove")[0], "add_or_remove")
    come_and_go, whole = flower.NeighboringRelation.ADD_OR_REMOVE_ONE, flower.SamplingMethod.NO_AMPLIFICATION
    config = flower.PrivacyConfig(1e-6, 100, come_and_go, whole)
    first, again = flower.RdpAccountant(config), flower.RdpAccountant(config)
    first.compose(flower.GaussianPrivacyEvent(event["noise_multiplier"], sample_size=100, population_size=100))
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    spent = again.get_privacy_spent()
    assert spent == first.get_privacy_spent()
    assert epsilon - 1e-6 <= spent.epsilon <= 1.3 * epsilon  # Renyi privacy is looser than the exact price


@pytest.mark.parametrize("module", ["sqlalchemy", "psycopg"])
def test_without_a_module_of_the_extra_the_extra_is_named(monkeypatch, module):
    monkeypatch.delitem(sys.modules, "simulations.account.accounts")
    monkeypatch.setitem(sys.modules, module, None)
    done = call("account", "list", "--accounts", "postgresql://me@host/database")
    assert done.exit_code == BAD_INPUT
    reason = f"this needs {module}, which is not installed: pip install 'userdp[account]'"
    assert reason in " ".join(done.stderr.split())


def test_no_epsilon_of_an_account_is_rounded_down(capsys):
    promised = Guarantee("user", "replace_one", 1.00049, 1.0049e-5, "an accountant", "others", (), True)
    entry = Entry(1, "t", Price(mu_squared=0.10049), "a run", "", "me", "2026-12-01T12:00", (promised,))
    account = Account("clinic", Total(4.0, 1e-3), (entry,))
    _show(account)
    shown = " ".join(capsys.readouterr().out.split())
    assert "(1.01, 1.01e-05)" in shown
    assert "mu^2 = 0.101" in shown
    assert re.search(r"at delta = 0.001, .* fits with epsilon up to [0-9.]+ at that delta", shown)
    stated = float(re.search(r"Spent so far: epsilon = ([0-9.]+)", shown)[1])
    assert account.spent_epsilon <= stated < account.spent_epsilon * 1.001
    _list([account])
    assert str(stated) in capsys.readouterr().out
