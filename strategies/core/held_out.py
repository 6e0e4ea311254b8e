"""The promise of a run with held-out users, for those who train and for those who are held out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strategies.core.about import About
from strategies.core.program import WHOLE_RUN
from strategies.core.public_facts import Given
from strategies.core.reported_metrics import ReportedMetrics
from strategies.core.testers import Testers
from strategies.wire.roster import Roster
from userdp.accounting import Cost, Guarantee, Privacy
from userdp.accounting.costs import calibrate_noise, epsilon_of
from userdp.accounting.guarantee import Relation
from userdp.errors import BadInput


def for_everybody(parts: tuple[Guarantee, ...], budget: Privacy) -> Guarantee:
    """Return one guarantee for those who train, by ``parts`` that compose, and for those who are held out.

    *Formal guarantees.* *Claim.* It covers both, as (epsilon, delta) and as whatever its accountant claims beyond that.
    *Why.* Held-out users meet one Gaussian that is just (epsilon, delta)-DP for the whole ``budget``, whatever the
    parts promise: these may keep to less, or be pure. Neither number is below that of either group. If every part is
    one Gaussian, together they are one that keeps to the sums of their epsilons and deltas, by basic composition; a
    Gaussian's distance rises with both numbers, so one Gaussian at the larger of each is no better than either group's.
    Else no Gaussian, no rho and no pure epsilon is claimed for all.
    """
    own, epsilon, delta = parts[0], sum(part.epsilon for part in parts), sum(part.delta for part in parts)
    alike = all(part.is_one_gaussian for part in parts)
    return replace(
        own,
        epsilon=max(epsilon, budget.epsilon),
        delta=max(delta, budget.delta),
        accountant=own.accountant if alike else f"{own.accountant}; one Gaussian mechanism for held-out users",
    )


def beside(
    given: Given,
    about: About,
    own: Guarantee,
    numbers: Mapping[str, Any],
    users: int,
    rounds: int,
    roster: Roster,
    max_missing: float,
    choose: bool,
) -> tuple[Guarantee, dict[str, Any], Testers]:
    """Return a plan's promise and numbers with its held-out users, and these; other arguments are those of `Testers`.

    Raises `BadInput`: the strategy does not suit them.
    """
    if not about.server_trusted:
        raise BadInput(
            f"privacy.evaluate = true: {about.name} does not trust a server with the answers of held-out users; leave "
            "it out, or use a strategy such as auto or dp_fed_sgd"
        )
    # Another sample makes its user another one.
    relation: Relation = "replace_one" if own.unit == "sample" else own.relation
    promise = for_everybody((own,), given.privacy).assuming(
        f"{users} held-out users are protected alike: all their answers together keep to the same epsilon and delta, "
        "and who is held out follows from public numbers",
        "the server is trusted with sums of held-out users' answers",
    )
    who = given, users, relation, rounds, roster, max_missing
    ranges = given.wire.metrics
    made = Testers(*who, choose) if ranges is None else ReportedMetrics(*who, ranges=ranges)
    return promise, {**numbers, **_covering(numbers, given.privacy, relation), **made.numbers}, made


def _covering(numbers: Mapping[str, Any], budget: Privacy, relation: Relation) -> dict[str, float]:
    """Return those of a plan's ``numbers`` that price the whole run, raised to what held-out users meet.

    One sample of theirs may move an answer as far as all of them. Replacing a user is removing one and adding another,
    which moves a Gaussian by twice as much.
    """
    priced = {name: numbers[name] for name, part in WHOLE_RUN.items() if part == "epsilon" and name in numbers}
    met = dict.fromkeys(priced, budget.epsilon)
    if "replace_one_epsilon" in met and relation == "add_or_remove" and (delta := numbers["replace_one_delta"]) < 1:
        multiplier = calibrate_noise(budget.epsilon, budget.delta, 1)
        met["replace_one_epsilon"] = epsilon_of(Cost(multiplier / 2), 1, delta)
    return {name: max(price, met[name]) for name, price in priced.items()}
