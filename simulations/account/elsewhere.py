"""Entries of an account for what other programs released about the same people.

*Formal guarantees.* *Claim.* The entry's price covers everything that a file says was released. *Why.* Gaussians and
pure mechanisms that meet everybody are a `Cost`: dp-accounting's multipliers of Gaussian noise are for adding or
removing somebody, and replacing moves a sum twice as far. What Poisson sampling keeps secret has the epsilon of
dp-accounting's privacy loss distribution at the file's ``target_delta``. Sampling without replacement, where somebody
is replaced, counts for nothing: an average over cohorts is no worse than its worst cohort. Other events, and numbers
that are not positive and finite, are refused. *Assumptions.* The file says everything, one of its clients or records is
one person, and how much was released did not depend on what was.
"""

import math
import secrets
from collections.abc import Iterator
from typing import Any

from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import UnsupportedEventError

from simulations.account.accounts import Wanted
from simulations.account.export import RELATIONS
from userdp.accounting.composition import add_or_remove_to_replace_one
from userdp.accounting.costs import Cost, epsilon_of, together
from userdp.accounting.filter import Total
from userdp.accounting.guarantee import Guarantee, Relation
from userdp.errors import BadInput


def spent_elsewhere(values: Any, total: Total, unit: str, what: str) -> Wanted:
    """Return what was released as something to enter; each call is another entry.

    Args:
        values: of JSON: what `exported` writes, with ``target_delta`` if events are sampled, or
            ``RdpAccountant.state_dict()`` of Flower.
        total: of the account.
        unit: what one client or record of the file is: "user", since an account protects nothing less.
        what: for people.

    Raises `BadInput`: the file is something else, or has events or numbers without a price.
    """
    if unit != "user":
        raise BadInput(
            f"unit = {unit!r}: an account protects whole users; with unit = 'user' you say that a client is one"
        )
    try:
        told = _flowers(values) if "compositions" in values else values
        theirs = _RELATIONS[told["neighboring_relation"]]
        # Where the account is about people who come and go, `prices` refuses the other relation.
        relation: Relation = "replace_one" if "replace_one" in (theirs, total.relation) else theirs
        accountant, sampled, costs = PLDAccountant(NeighboringRelation[RELATIONS[theirs]]), False, [Cost()]
        for entry in told["entries"]:
            pure = 0.0
            for event, count in (leaf for one in entry["events"] for leaf in _leaves(_event(one), theirs)):
                if isinstance(event, dp_event.GaussianDpEvent):
                    twice = 2 if relation == "replace_one" else 1
                    costs.append(Cost(event.noise_multiplier / twice / math.sqrt(count)))
                elif (epsilon := _pure(event, theirs)) is not None:
                    pure += count * epsilon
                else:
                    accountant.compose(event, count)
                    sampled = True
            delta = _number(entry["delta"]) if entry.get("delta") else 0.0
            pure, delta = (pure, delta) if relation == theirs else add_or_remove_to_replace_one(pure, delta)
            costs.append(Cost(pure_epsilon=pure, failure_delta=delta))
        cost = together(*costs)
        delta = cost.failure_delta + (0.0 if math.isinf(cost.noise_multiplier) else total.delta)
        parts = [(relation, epsilon_of(cost, 1, delta), delta)]
        if sampled:
            parts.append((theirs, accountant.get_epsilon(_number(told["target_delta"])), told["target_delta"]))
    except _MISFITS as error:
        raise BadInput(
            f"{what}: {type(error).__name__}: {error}: give what userdp account export writes, or that form with your "
            "events of dp-accounting, and target_delta if some are sampled, or RdpAccountant.state_dict() of Flower"
        ) from None
    said = (f"{what} says all that was released, and how much that was did not depend on it",)
    promises = [Guarantee("user", *part, "events of dp-accounting", "anybody", said, holds=True) for part in parts]
    return Wanted(what, promises, secrets.token_hex(16), cost=cost, spent=True)


def _flowers(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of Flower's accountant in the form of `exported`; the accountant itself checks it."""
    from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod  # noqa: PLC0415

    if "entries" in state:
        raise ValueError("entries and compositions: give a file of each")
    given = state["config"]
    relation, sampling = NeighboringRelation(given["neighboring_relation"]), SamplingMethod(given["sampling_method"])
    config = PrivacyConfig(given["target_delta"], given["population_size"], relation, sampling, given["max_epsilon"])
    RdpAccountant(config).load_state_dict(state)
    events = []
    for one in state["compositions"]:
        event = {"class_name": "GaussianDpEvent", "noise_multiplier": one["event"]["noise_multiplier"]}
        if sampling is SamplingMethod.POISSON:
            share = one["event"]["sample_size"] / config.population_size
            event = {"class_name": "PoissonSampledDpEvent", "sampling_probability": share, "event": event}
        events.append({"class_name": "SelfComposedDpEvent", "event": event, "count": one["count"]})
    entries = [{"events": events}]
    return {"neighboring_relation": relation.name, "target_delta": config.target_delta, "entries": entries}


def _event(values: Any) -> Any:
    """Return an event, or an argument of one, of plain values."""
    if isinstance(values, list):
        return [_event(one) for one in values]
    if not isinstance(values, dict):
        return _number(values)
    kind = getattr(dp_event, str(values["class_name"]), None)
    if not (isinstance(kind, type) and issubclass(kind, dp_event.DpEvent)):
        raise ValueError(f"there is no event {values['class_name']!r}")  # noqa: TRY004
    given = {name: _event(one) for name, one in values.items() if name not in ("class_name", "module_name")}
    if broken := [name for name in _WHOLE & given.keys() if not isinstance(given[name], int)]:
        raise ValueError(f"{broken[0]} = {given[broken[0]]!r} is no whole number")
    return kind(**given)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no positive number")
    return value


def _leaves(event: Any, relation: Relation, count: int = 1) -> Iterator[tuple[Any, int]]:
    """Yield the events that an event consists of, with how often each is met."""
    if isinstance(event, dp_event.ComposedDpEvent):
        for one in event.events:
            yield from _leaves(one, relation, count)
    elif isinstance(event, dp_event.SelfComposedDpEvent):
        yield from _leaves(event.event, relation, count * event.count)
    elif isinstance(event, dp_event.SampledWithoutReplacementDpEvent) and relation == "replace_one":
        yield from _leaves(event.event, relation, count)
    else:
        yield event, count


def _pure(event: Any, relation: Relation) -> float | None:
    """Return epsilon of a pure mechanism that dp-accounting has under this relation; None for anything else."""
    if isinstance(event, dp_event.RandomizedResponseDpEvent) and relation == "replace_one":
        if event.noise_parameter > 1:  # its epsilon would be negative, and lower the others'
            raise ValueError(f"noise_parameter = {event.noise_parameter} is no probability")
        return math.log1p(event.num_buckets * (1 / event.noise_parameter - 1))
    if isinstance(event, dp_event.LaplaceDpEvent) and relation == "add_or_remove":
        return float(1 / event.noise_multiplier)
    if isinstance(event, dp_event.DiscreteLaplaceDpEvent) and relation == "add_or_remove":
        return float(event.noise_parameter * event.sensitivity)
    return None


_WHOLE = {"count", "num_buckets", "sensitivity", "dataset_size", "truncated_batch_size"}
_RELATIONS = {name: own for own, name in RELATIONS.items()}
_UNFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_MISFITS = (*_UNFIT, UnsupportedEventError)
