"""Statistics of a table: a round of noisy sums of users' shares, then a round of private choices of quantiles."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.clipping.clipped_rounds import MaskedRounds
from strategies.core.about import About
from strategies.core.public_facts import Given, Price
from strategies.core.recipe import Recipe
from strategies.core.results import Noise, Step
from strategies.core.scheme import Outline, Scheme
from strategies.wire.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Ledger
from userdp.accounting.costs import together
from userdp.arrays.types import Vector
from userdp.errors import BadInput, RunFailed
from userdp.mechanisms import ExponentialMechanism, GaussianMechanism
from userdp.mechanisms.user_quantile import rank_scores, rank_sensitivity
from userdp.nodes.computations import Computation
from userdp.queries import ranks
from userdp.queries.statistics import Quantiles
from userdp.queries.table import TableQuery
from userdp.sampling import WeightedBatches, WeightedSlots
from userdp.state import Stateful

_SLOTS = "the number of places for users is public, and which of them are empty is not published"


@dataclass(frozen=True)
class AcuteBatches(WeightedBatches):
    """`WeightedBatches` for rows of which any two differ by sqrt(2) at most; see `userdp.queries.table`."""

    @property
    def sensitivity_factor(self) -> float:
        return math.sqrt(2.0)


@dataclass(frozen=True)
class Choice:
    """One choice of an interval: of which statistic, at which rank, by which mechanism.

    An end of an interval may also be chosen below all of them, as number -1, or above.
    """

    statistic: int
    quantile: float
    shift: float  # of the rank, in users; zero for the quantile itself
    mechanism: ExponentialMechanism

    @property
    def is_end(self) -> bool:
        """True for the two ends of an interval."""
        return self.shift != 0.0


class NoiseOfSums(Stateful):
    """The server's memory: the standard deviation of the noise on each released sum."""

    remembered: ClassVar[tuple[str, ...]] = ("deviation",)

    def __init__(self, deviation: float) -> None:
        self.deviation = deviation


@dataclass(frozen=True, kw_only=True)
class QueryRounds(Scheme):
    """A `Scheme` that releases noisy sums, then choices; without one of the two it has one round."""

    query: TableQuery
    users: int
    computations: tuple[Computation, ...]
    mechanism: GaussianMechanism | None  # of the sums; None without sums, or if nodes add the noise
    choices: tuple[Choice, ...]

    def ask(self, index: int, memory: NoiseOfSums) -> Request:
        """See `Scheme`."""
        return Request(np.arange(self.users), self.computations[index])

    def take(self, index: int, x: Vector, gathered: Gathered, memory: NoiseOfSums, noise: Noise) -> Step:
        """See `Scheme`. Raises `RunFailed`: a node of a masked sum fell silent."""
        if gathered.lost:
            raise RunFailed("privacy.trust = 'sum': a node fell silent, so the sum cannot be read; ask again")
        released = x.copy()
        if self.computations[index].name == "user_shares":
            if self.mechanism is None:
                sums, memory.deviation = gathered.values, gathered.noise
            else:
                sums = self.mechanism.release(gathered.values, noise(0))
            released[: self.query.sums] = sums[: self.query.sums]
            return Step(released, released)
        source, ends = noise(0), np.cumsum([len(one.edges(self.query.facts)) - 1 for one in self.query.quantiles])[:-1]
        shares = np.split(gathered.values, ends)
        for place, one in enumerate(self.choices, start=self.query.sums):
            scores = rank_scores(shares[one.statistic], one.quantile, self.query.relation, one.shift, beyond=one.is_end)
            released[place] = one.mechanism.choose(scores, source) - one.is_end
        return Step(released, released)


def answers(query: TableQuery, users: int, released: Vector, memory: NoiseOfSums) -> dict[str, Any]:
    """Return the answers that follow from what the run released (p,)."""
    return {"answers": [one.as_dict() for one in query.answers(released, memory.deviation, users)]}


class Statistics(Recipe, restates={"max_missing"}):
    """Statistics of a table: noisy sums of users' shares, and quantiles chosen privately among intervals.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, for all answers of a query together; replace-one or
    add-or-remove, as the query says. *Why.* A user's part of the sums is one row of l2 norm at most 1, and if users are
    replaced, any two rows differ by sqrt(2) at most (`userdp.queries.table`). Adding or removing one moves sums by 1 at
    most. So the sums are one Gaussian mechanism, whatever their number. Quantiles are choices by the exponential
    mechanism (`rank_scores`), each no worse than a Gaussian mechanism; with the sums they compose to one Gaussian
    mechanism, calibrated to epsilon and delta. A query of nothing but quantiles divides epsilon among them instead, if
    that leaves each of them more; then they are chosen by permute-and-flip. Weights and the intervals to choose from
    are public. Estimates and their intervals, divisors included, are functions of what was released.

    *Assumptions.* The server is trusted, or with ``privacy.trust = "sum"`` curious and not active. Nodes clip each of
    their users' rows. Replace-one: n and who takes part are public. Add-or-remove: the number of places is public, and
    which of them are empty is not published.
    """

    about: ClassVar[About] = About(
        name="statistics",
        summary_line="statistics of a table with intervals, from one budget",
        family="queries",
        masked=True,
        cost="node O(N d), a sum of a number an answer up; server O(K) for each answer",
        paper="Dwork, Roth 2014; McSherry, Talwar 2007",
        needs="a query of a table",
        without_comparison="a query has no model to compare",
        promise="user level, against other nodes too",
        example_problem={
            "kind": "table",
            "ask": [{"statistic": "mean", "of": "0"}, {"statistic": "quantiles", "of": "1", "at": [0.5]}],
        },
        meanings={"share_of_sums": "share of the budget that noisy sums get; the rest goes to choices of quantiles"},
    )

    max_missing: float = Field(0.0, ge=0, lt=1)
    """Largest share of users that may fail to answer: they are then missing in all sums, and answers are off by as
    much."""

    def scheme(self, given: Given) -> QueryRounds:
        query = given.problem
        if not isinstance(query, TableQuery):
            raise BadInput(
                f"strategy.kind = 'statistics' answers queries of tables, and problem.kind = {query.name!r} is none: "
                "ask by userdp query"
            )
        if query.quantiles and given.privacy.trust == "sum":
            raise BadInput(
                f"privacy.trust = 'sum': statistic = 'quantiles' of {query.quantiles[0].of!r} chooses among sums "
                "without noise, with which the server would have to be trusted; ask a histogram with many bins instead"
            )
        if query.sums == 0 and (alone := _choices_alone(given, query)) is not None:
            return alone
        shares = tuple(share for chooses in (False, True) if (share := query.share(chooses)))
        kind = AcuteBatches if query.relation == "replace_one" else WeightedSlots
        sampler = kind(given.users, given.users, len(shares), given.seed, shares)
        asked = Computation("user_shares", "sum", clip_norm=1.0) if query.sums else None
        if given.privacy.trust == "sum":
            return _masked(given, query, sampler, asked)
        multiplier = sampler.calibrate(given.privacy.epsilon, given.privacy.delta)
        mechanism = None
        if asked is not None:
            sensitivity = asked.sensitivity(query.relation)
            assert sensitivity is not None
            mechanism = GaussianMechanism(sensitivity, sampler.multiplier(0, multiplier))
        choices = _choices(given, query, multiplier)
        deviation = 0.0 if mechanism is None else mechanism.standard_deviation
        return QueryRounds(
            price=_rounded(given.price(sampler, multiplier), given, query),
            outline=_outline(given, query, len(shares), multiplier, deviation),
            query=query,
            report=partial(answers, query, given.users),
            users=given.users,
            computations=tuple(one for one in (asked, _rank_sums(query)) if one is not None),
            mechanism=mechanism,
            new_memory=partial(NoiseOfSums, deviation),
            choices=choices,
        )


def _rank_sums(query: TableQuery) -> Computation | None:
    if not query.quantiles:
        return None
    widths = [float(one.width(query.facts)) for one in query.quantiles]
    longest = float(len(widths))  # one vote of a user for each statistic, which is all that ranks may count
    return Computation("user_ranks", "sum", math.sqrt(longest), longest, arrays={"bins": np.array(widths)})


def _rounded(price: Price, given: Given, query: TableQuery) -> Price:
    """Return the price with the rounding of sums.

    A rank adds up the users and the intervals below it, of shares that are 1 together for a user, twice the least
    sensitivity of a score at most.
    """
    if not query.quantiles:
        return price
    widths = sum(one.width(query.facts) for one in query.quantiles)
    return replace(price, summands=given.users + widths, spread=2.0)


def _outline(given: Given, query: TableQuery, rounds: int, multiplier: float, deviation: float) -> Outline:
    n, numbers = given.users, {"noise_multiplier": multiplier, "share_of_sums": query.share(False)}
    return Outline(rounds=rounds, cohort=n, users_needed=2, numbers=numbers, warnings=query.doubts(deviation, n))


def _shared(query: TableQuery) -> list[tuple[Quantiles, float]]:
    """Return the statistics that are choices, each with its share of the budget."""
    return [(one, share) for one, share in zip(query.asked, query.shares, strict=True) if isinstance(one, Quantiles)]


def _choices(given: Given, query: TableQuery, multiplier: float) -> tuple[Choice, ...]:
    """Return the choices that compose with all sums to one Gaussian mechanism of ``multiplier``."""
    found = []
    for k, (one, whole) in enumerate(_shared(query)):
        for quantile in one.at:
            moved, share = rank_sensitivity(quantile, query.relation), whole / len(one.at)
            mechanisms = [
                ExponentialMechanism.like_gaussian(moved, multiplier / math.sqrt(part * share))
                for part in (1 - sum(ranks.ENDS), *ranks.ENDS)
            ]
            found += _three(k, quantile, (given.users, one.width(query.facts)), mechanisms)
    return tuple(found)


def _choices_alone(given: Given, query: TableQuery) -> QueryRounds | None:
    """Return the scheme that divides epsilon among choices; None if composing them as Gaussians leaves each more."""
    privacy, found = given.privacy, []
    for k, (one, whole) in enumerate(_shared(query)):
        for quantile in one.at:
            moved = rank_sensitivity(quantile, query.relation)
            share = privacy.epsilon * (1 - 1e-9) * whole / len(one.at)
            parts = (1 - sum(ranks.PURE_ENDS), *ranks.PURE_ENDS)
            mechanisms = [ExponentialMechanism(moved, part * share, flips=True) for part in parts]
            found += _three(k, quantile, (given.users, one.width(query.facts)), mechanisms)
    choices = tuple(found)
    multiplier = AcuteBatches(given.users, given.users).calibrate(privacy.epsilon, privacy.delta)
    others = _choices(given, query, multiplier)
    if choices[0].mechanism.epsilon < others[0].mechanism.epsilon:
        return None
    cost = together(*(one.mechanism.cost for one in choices))
    rests_on = ("n and who takes part are public" if query.relation == "replace_one" else _SLOTS, *given.wire.clipping)
    promise = given.promise(privacy.epsilon, ACCOUNTANT, rests_on)
    asked = _rank_sums(query)
    assert asked is not None
    return QueryRounds(
        price=_rounded(
            Price(replace(promise, relation=query.relation), partial(Ledger, given.users, cost, 1)), given, query
        ),
        outline=replace(_outline(given, query, 1, 0.0, 0.0), numbers={"choice_epsilon": choices[0].mechanism.epsilon}),
        query=query,
        report=partial(answers, query, given.users),
        users=given.users,
        computations=(asked,),
        mechanism=None,
        new_memory=partial(NoiseOfSums, 0.0),
        choices=choices,
    )


def _three(k: int, quantile: float, facts: tuple[int, int], mechanisms: list[ExponentialMechanism]) -> list[Choice]:
    """Return the choice of a quantile and those of both ends of its interval; facts are n and how many intervals."""
    users, intervals = facts
    middle, *ends = mechanisms
    found = [Choice(k, quantile, 0.0, middle)]
    for sign, one in zip((-1.0, 1.0), ends, strict=True):
        distance = ranks.reach(quantile, users, 2 * one.sensitivity / one.epsilon, intervals + 2)
        found.append(Choice(k, quantile, sign * distance, one))
    return found


def _masked(
    given: Given, query: TableQuery, sampler: AcuteBatches | WeightedSlots, asked: Computation | None
) -> QueryRounds:
    """Return the scheme whose nodes add the noise and mask their sums."""
    assert asked is not None
    masked = MaskedRounds.of(given, sampler, 1.0, query.dimension)
    multiplier = masked.multiplier * masked.louder
    deviation = sampler.sensitivity_factor * multiplier
    return QueryRounds(
        price=masked.price,
        outline=replace(
            _outline(given, query, 1, multiplier, deviation), numbers={"noise_multiplier": multiplier, **masked.numbers}
        ),
        query=query,
        report=partial(answers, query, given.users),
        users=given.users,
        computations=(replace(asked, masked=masked.sum(1.0)),),
        mechanism=None,
        new_memory=partial(NoiseOfSums, deviation),
        choices=(),
    )
