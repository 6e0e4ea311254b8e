"""Entries for what other programs released cost no less than their own accountants say."""

import json
import math

import pytest
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as e
from dp_accounting.pld import PLDAccountant
from examples import call
from flwr import serverapp as flower

from simulations.account.accounts import Account, Entry
from simulations.account.elsewhere import spent_elsewhere
from simulations.account.export import RELATIONS, events, exported
from simulations.terminal import BAD_INPUT
from userdp.accounting import Price, Total
from userdp.errors import BadInput

pytestmark = pytest.mark.usefixtures("accounts")
RELATED = list(RELATIONS)


def plain(event):
    """The values of dp-accounting's own named tuples, for JSON."""
    if isinstance(event, list):
        return [plain(each) for each in event]
    if not hasattr(event, "_fields"):
        return event
    return {name: plain(value) for name, value in event._asdict().items()}


def told(event, relation, **more):
    return {
        "neighboring_relation": RELATIONS[relation],
        "entries": [{"events": [plain(event.to_named_tuple())]}],
        **more,
    }


def price(values, relation, total=None):
    total = total or Total(50.0, 1e-4, relation, others=0.5)
    wanted = spent_elsewhere(json.loads(json.dumps(values)), total, "user", "elsewhere")
    return Account("a", total, ()).price(wanted)


GAUSSIANS = [
    e.GaussianDpEvent(2.0),
    e.SelfComposedDpEvent(e.GaussianDpEvent(7.0), 30),
    e.ComposedDpEvent([e.GaussianDpEvent(3.0), e.SelfComposedDpEvent(e.ComposedDpEvent([e.GaussianDpEvent(5.0)]), 2)]),
]
OTHERS = {
    "add_or_remove": [
        e.LaplaceDpEvent(2.0),
        e.DiscreteLaplaceDpEvent(0.2, 3),
        e.ComposedDpEvent([e.SelfComposedDpEvent(e.LaplaceDpEvent(4.0), 3), e.GaussianDpEvent(2.0)]),
        e.PoissonSampledDpEvent(0.1, e.LaplaceDpEvent(1.0)),
        e.SelfComposedDpEvent(e.PoissonSampledDpEvent(0.1, e.GaussianDpEvent(1.0)), 4),
    ],
    "replace_one": [
        e.RandomizedResponseDpEvent(0.7, 5),
        e.ComposedDpEvent([e.RandomizedResponseDpEvent(0.9, 2)] * 4),
        e.SelfComposedDpEvent(e.PoissonSampledDpEvent(0.1, e.GaussianDpEvent(2.0)), 4),
    ],
}


@pytest.mark.parametrize(
    ("relation", "event"), [(relation, event) for relation in RELATED for event in (*GAUSSIANS, *OTHERS[relation])]
)
def test_a_price_covers_what_dp_accounting_says_and_hardly_more(relation, event):
    """Its privacy loss distributions are rounded up, so that an exact price is below theirs by as much."""
    theirs, delta = PLDAccountant(NeighboringRelation[RELATIONS[relation]]).compose(event), 1e-6
    found = price(told(event, relation, target_delta=delta), relation)
    ours = Total(50.0, 2 * delta, relation).spent_epsilon(found)
    assert theirs.get_epsilon(2 * delta) * (1 - 1e-3) - 1e-4 <= ours <= 1.2 * theirs.get_epsilon(delta) + 0.05


def test_answers_that_dp_accounting_counts_once_are_counted_as_often_as_they_were_given():
    """Its privacy loss distributions forget the count of randomised response (0.6)."""
    once = e.RandomizedResponseDpEvent(0.9, 2)
    found = [price(told(event, "replace_one"), "replace_one") for event in (once, e.SelfComposedDpEvent(once, 4))]
    assert found[1].epsilon == pytest.approx(4 * found[0].epsilon)


@pytest.mark.parametrize(("relation", "step"), [("add_or_remove", 1), ("replace_one", 2)])
def test_gaussians_cost_what_they_are(relation, step):
    for event, squared in zip(GAUSSIANS, (1 / 4, 30 / 49, 1 / 9 + 2 / 25), strict=True):
        assert price(told(event, relation), relation) == Price(mu_squared=pytest.approx(step**2 * squared))


@pytest.mark.parametrize("relation", RELATED)
def test_an_account_that_was_exported_costs_the_same_in_another(relation):
    prices = [Price(mu_squared=0.09), Price(mu_squared=0.04, delta=1e-7), Price(epsilon=0.4, delta=1e-6)]
    total = Total(8.0, 1e-5, relation, others=0.5)
    entries = [Entry(number, "", each, "", "", "", "", ()) for number, each in enumerate(prices, 1)]
    (found, whole) = (price(exported(Account("registry", total, tuple(entries))), relation), Price.sum(prices))
    assert found == Price(*(pytest.approx(part) for part in vars(whole).values()))


def test_people_who_come_and_go_cost_more_where_one_is_replaced_and_never_the_other_way():
    values = {"neighboring_relation": "ADD_OR_REMOVE_ONE", "entries": []}
    for part in (Price(mu_squared=0.09), Price(epsilon=0.4, delta=1e-6)):
        values["entries"].append({"events": events(part, "add_or_remove"), "delta": part.delta})
    replaced = price(values, "replace_one")
    assert replaced == Price(pytest.approx(0.36), pytest.approx(0.8), pytest.approx(1e-6 * (1 + math.exp(0.4))))
    with pytest.raises(BadInput, match="does not follow"):
        price(values | {"neighboring_relation": "REPLACE_ONE", "entries": []}, "add_or_remove")


def flowers(relation, sampling, rounds=20, noise=1.5):
    config = flower.PrivacyConfig(1e-6, 1000, flower.NeighboringRelation(relation), flower.SamplingMethod(sampling))
    accountant = flower.RdpAccountant(config, orders=(4.0, 8.0, 16.0))
    accountant.compose(flower.GaussianPrivacyEvent(noise, sample_size=100, population_size=1000), rounds)
    accountant.compose(flower.GaussianPrivacyEvent(2 * noise, sample_size=100, population_size=1000))
    return accountant


@pytest.mark.parametrize("own", RELATED)
@pytest.mark.parametrize(
    ("relation", "sampling"),
    [
        ("add-or-remove-one", "no-amplification"),
        ("add-or-remove-one", "poisson"),
        ("replace-one", "without-replacement"),
    ],
)
def test_the_state_of_flowers_accountant_is_covered(relation, sampling, own):
    """Its Renyi accountant is looser, so where it counts the same mechanism the tight price may be a bit lower."""
    accountant = flowers(relation, sampling)
    state = accountant.state_dict()
    if (relation, own) == ("replace-one", "add_or_remove"):
        with pytest.raises(BadInput, match="does not follow"):
            price(state, own)
        return
    found = price(state, own)
    whole = (4 if own == "replace_one" else 1) * (20 / 1.5**2 + 1 / 3**2)
    if sampling == "poisson":
        tight = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
        for count, noise in ((20, 1.5), (1, 3.0)):
            tight.compose(e.SelfComposedDpEvent(e.PoissonSampledDpEvent(0.1, e.GaussianDpEvent(noise)), count))
        steps = {"add_or_remove": 1, "replace_one": 2}[own]
        assert found.epsilon == pytest.approx(steps * tight.get_epsilon(1e-6), rel=1e-6)
        assert found.delta >= 1e-6
        return
    assert found == Price(mu_squared=pytest.approx(whole))
    epsilon = Total(500.0, 1e-6, own).spent_epsilon(found)
    assert sampling == "no-amplification" or epsilon >= accountant.get_epsilon(1e-6)


def one(name, **arguments):
    return {"class_name": f"{name}DpEvent"} | arguments


def of(event, relation="ADD_OR_REMOVE_ONE", **more):
    return {"neighboring_relation": relation, "entries": [{"events": [event]}]} | more


GAUSSIAN = one("Gaussian", noise_multiplier=2.0)
STATE = flowers("add-or-remove-one", "no-amplification").state_dict()
RELEASED = {"noise_multiplier": 1.0, "sample_size": 1, "population_size": 1000}
SAMPLED = one("PoissonSampled", event=GAUSSIAN, sampling_probability=0.5)
WITHOUT_A_PRICE = [
    *([], {}, 3, None, "told", {"neighboring_relation": "REPLACE_ONE"}),
    {"neighboring_relation": "REPLACE_SPECIAL", "entries": []},
    {"entries": [{"events": [GAUSSIAN]}]},
    *(of(one("Gaussian", noise_multiplier=bad)) for bad in (math.nan, math.inf, 0, -1.0, "2", True, 1e-200, 10**400)),
    *(of(GAUSSIAN, **{"entries": [{"events": [GAUSSIAN], "delta": bad}]}) for bad in (math.nan, 1.0, -1e-6)),
    *(of(one("SelfComposed", event=GAUSSIAN, count=bad)) for bad in (2.5, 0, -3, 10**400)),
    *(of(one(name)) for name in ("Gaussian", "", "NoSuch", "NonPrivate", "Unsupported")),
    *(of(bad) for bad in (GAUSSIAN | {"more": 1.0}, {"class_name": "attr"}, "GaussianDpEvent", SAMPLED)),
    of(one("Composed", events=GAUSSIAN)),
    of(one("ZC", rho=0.1), target_delta=1e-6),
    of(SAMPLED | {"sampling_probability": 1.5}, target_delta=1e-6),
    of(SAMPLED | {"event": one("NonPrivate")}, target_delta=1e-6),
    of(one("RandomizedResponse", noise_parameter=0.5, num_buckets=2)),
    of(one("RandomizedResponse", noise_parameter=1.5, num_buckets=2), "REPLACE_ONE"),
    of(one("Laplace", noise_multiplier=1.5), "REPLACE_ONE"),
    of(one("SampledWithoutReplacement", source_dataset_size=9, sample_size=3, event=GAUSSIAN)),
    *(STATE | bad for bad in ({"schema_version": 2}, {"backend": "pld"}, {"config": {}}, {"compositions": 3})),
    STATE | {"config": STATE["config"] | {"neighboring_relation": "replace-one"}},
    STATE | {"compositions": [{"event": RELEASED | {"noise_multiplier": math.nan}, "count": 1}]},
    STATE | {"compositions": [{"event": RELEASED, "count": -1}]},
    STATE | of(GAUSSIAN),  # two lists, of which either would be forgotten
]


@pytest.mark.parametrize("values", WITHOUT_A_PRICE)
def test_what_has_no_price_is_one_sentence(values):
    with pytest.raises(BadInput):
        price(values, "add_or_remove")


RESPONSE = one("RandomizedResponse", noise_parameter=0.5, num_buckets=2)
TRUNCATED = one("TruncatedSubsampledGaussian", sampling_probability=0.1, noise_multiplier=1.0)
CHEAPENED = [
    (RESPONSE, RESPONSE | {"noise_parameter": 1.2}),  # a negative epsilon beside a positive one
    (RESPONSE | {"num_buckets": 1e-9},),
    (TRUNCATED | {"dataset_size": 1000, "truncated_batch_size": 1e-9},),
]


@pytest.mark.parametrize("events", CHEAPENED)
def test_no_number_that_an_event_cannot_have_lowers_the_price_of_any(events):
    values = of(RESPONSE, "REPLACE_ONE", target_delta=1e-6)
    assert price(values, "replace_one").epsilon > 1
    with pytest.raises(BadInput, match=r"no whole number|no probability"):
        price(values | {"entries": [{"events": [*events]}]}, "replace_one")


def test_a_sensitivity_below_one_does_not_lower_the_price():
    event = one("DiscreteLaplace", noise_parameter=0.5, sensitivity=1e-9)
    with pytest.raises(BadInput, match="no whole number"):
        price(of(event), "add_or_remove")


def test_it_counts_each_time_beyond_the_total_too_and_nothing_fits_any_more(tmp_path):
    file, empty = tmp_path / "state.json", tmp_path / "empty.json"
    file.write_text(json.dumps(flowers("add-or-remove-one", "no-amplification", rounds=1, noise=4.0).state_dict()))
    empty.write_text(json.dumps({"neighboring_relation": "REPLACE_ONE", "entries": []}))
    assert call("account", "create", "clinic", "--epsilon", 4, "--delta", 1e-6).exit_code == 0
    entered = ("account", "enter", "clinic", file)
    refused = call(*entered, "--unit", "sample")
    assert (refused.exit_code, "whole users" in refused.stderr) == (BAD_INPUT, True)
    squared, left = 4 * (1 / 16 + 1 / 64), []
    for times in (1, 2):
        assert call(*entered, "--unit", "user").exit_code == 0
        shown = json.loads(call("account", "show", "clinic", "--json").stdout)
        assert shown["spent"]["mu_squared"] == pytest.approx(times * squared)
        left.append(shown["left_epsilon"])
    assert left[0] > left[1] > 0
    over = call(*entered, "--unit", "user")
    assert over.exit_code == BAD_INPUT
    assert "was entered into clinic and exceeds the total" in " ".join(over.stderr.split())
    shown = json.loads(call("account", "show", "clinic", "--json").stdout)
    assert (len(shown["entries"]), shown["left_epsilon"]) == (3, 0.0)
    assert shown["spent_epsilon"] > 4
    # Even what costs nothing is one more entry, and the account says again that it is over.
    assert call("account", "enter", "clinic", empty, "--unit", "user").exit_code == BAD_INPUT


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_a_file_that_is_no_json_is_one_sentence(tmp_path, text):
    file = tmp_path / "state.json"
    file.write_text(text)
    assert call("account", "create", "clinic", "--epsilon", 4, "--delta", 1e-6).exit_code == 0
    done = call("account", "enter", "clinic", file, "--unit", "user")
    assert (done.exit_code, "give a file of JSON" in " ".join(done.stderr.split())) == (BAD_INPUT, True)
