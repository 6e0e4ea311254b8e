"""Metrics that held-out clients report, and the plan of a run with held-out users."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from strategies.core.about import About
from strategies.core.program import WHOLE_RUN
from strategies.core.public_facts import Given
from strategies.core.testers import Testers, course
from strategies.wire.replies import Gathered, Request
from strategies.wire.roster import Roster
from strategies.wire.untrusted import untrusted
from userdp.accounting import Cost, Guarantee, Privacy
from userdp.accounting.costs import calibrate_noise, epsilon_of
from userdp.accounting.guarantee import Relation, for_everybody
from userdp.accounting.ledger import check_drawn
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer
from userdp.noise import NoiseSource

Ranges = Mapping[str, tuple[float, float]]
"""Name of a metric -> the public range that each client's value is clipped into."""
_REPORTS = "reports"  # the one question


@dataclass
class ReportedMetrics(Testers):
    """The held-out clients of a run, and the metrics that they report of its models.

    *Formal guarantees.* *Claim.* That of `Testers`: with this evaluation a run is (epsilon, delta)-DP for each of the n
    + t users that train or are held out, if the strategy is for the n that train. *Why.* Steps 1 and 2 are those of
    `Testers`; a user's slot is that of its node. A report is a row of K numbers, which the server clips into declared
    ranges and scales to [-1/2, 1/2]; a value that is not finite, and a silent client, count as the middle, zero. So
    replacing a user moves the sum of rows by ``sqrt(K)`` at most, adding or removing one by half of that. Each of the
    planned sums is a Gaussian mechanism of ``z sqrt(E)`` for E of them, together no worse than one of z, which is
    calibrated to (epsilon, delta). Sums are divided by t. *Assumptions.* n, t and ranges are public; the server is
    trusted with the reports before noise; each held-out client reports what it measures on its own user's data.

    Attributes:
        ranges: of the K metrics.
    """

    ranges: Ranges = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        for name, (low, high) in self.ranges.items():
            if not -math.inf < low < high < math.inf:
                raise BadInput(f"metrics[{name!r}] = {(low, high)}: give a finite range that rises, such as (0, 1)")
        if self.users < 2 or not self.ranges:
            raise BadInput(
                f"held_out = {self.users} with metrics of {len(self.ranges)} names: reports need two held-out users at "
                "least, and the range of each metric, such as metrics={'accuracy': (0, 1)}"
            )
        privacy = self.given.privacy
        if privacy.trust == "sum" or privacy.delta == 0:
            raise BadInput("held_out: reports get Gaussian noise by a trusted server; leave held_out and metrics out")
        self._multiplier = calibrate_noise(privacy.epsilon, privacy.delta, 1)
        self._schedule = course(self.rounds)

    def question(self, server_round: int, x: Vector) -> str | None:
        """See `Testers`; the last round is followed by a report."""
        due = server_round in self._schedule and [server_round, _REPORTS] not in self._done
        return _REPORTS if due else None

    def request(self, name: str, reference: Vector, *, constant: bool) -> Request:
        """See `Testers`; a client's report stands in the place of a clipped vector."""
        return Request(self._slots, Computation("user_gradient", "sum", math.sqrt(len(self.ranges)) / 2))

    @property
    def _dimension(self) -> int:
        return len(self.ranges)

    def _share(self, name: str) -> float:
        return 1 / len(self._schedule)

    @property
    def _mechanism(self) -> GaussianMechanism:
        moved = math.sqrt(len(self.ranges)) * (1.0 if self.relation == "replace_one" else 0.5)
        return GaussianMechanism(moved, self._multiplier * math.sqrt(len(self._schedule)))

    def deviation(self, name: str) -> float:
        """Return the noise's standard deviation on each mean, in shares of a metric's range."""
        return self._mechanism.standard_deviation / self.users

    def report(self) -> dict[str, Any]:
        """Return nothing: reports are metrics of rounds."""
        return {}

    def release(
        self, server_round: int, name: str, x: Vector, asked: Computation, sums: Gathered, noise: NoiseSource
    ) -> dict[str, float]:
        """Release each metric's mean over held-out users, and the deviation of its noise."""
        mechanism = self._mechanism
        means = mechanism.release(sums.values, noise) / self.users
        check_drawn(noise.spent, Cost(noise_multiplier=self._multiplier / math.sqrt(self._share(name))))
        found, deviation = dict[str, float](), self.deviation(name)
        for mean, (metric, (low, high)) in zip(means, self.ranges.items(), strict=True):
            found |= {metric: low + (high - low) * (float(mean) + 0.5), f"{metric}_noise": (high - low) * deviation}
        return found

    def _read(
        self, reply: Message, users: NDArray[np.int64], asked: Computation, dimension: int, *, sent: Vector
    ) -> Answer:
        """Return a client's numbers in [-1/2, 1/2]; `BadInput` if one of the metrics is not there."""
        with untrusted(f"it did not report {', '.join(self.ranges)}, each as a number"):
            [record] = reply.content.metric_records.values()
            values = np.array([float(record[name]) for name in self.ranges])  # type: ignore[arg-type]
        lows, highs = np.array(list(self.ranges.values()), dtype=float).T
        with np.errstate(over="ignore", invalid="ignore"):
            inside = (np.clip(values, lows, highs) - lows) / (highs - lows) - 0.5
        return Answer(users, np.where(np.isfinite(values), inside, 0.0)[None], 0)


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
