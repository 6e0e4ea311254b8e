"""Metrics that held-out clients of an ordinary Flower app report, released with noise."""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from strategies.core.public_facts import Given
from strategies.wire.protocol import failure
from strategies.wire.roster import Roster
from strategies.wire.untrusted import untrusted
from userdp.accounting.costs import calibrate_noise, epsilon_of
from userdp.accounting.guarantee import Relation
from userdp.accounting.ledger import check_drawn
from userdp.arrays.types import Vector
from userdp.errors import BadInput, RunFailed
from userdp.mechanisms import GaussianMechanism

log = logging.getLogger("userdp")
_COURSE = 8  # Rounds, at most, after which held-out users are asked

Ranges = Mapping[str, tuple[float, float]]
"""Name of a metric -> the public range that each client's value is clipped into."""


def course(rounds: int) -> list[int]:
    """Return the rounds, counted from 1, after which held-out users are asked: up to eight, the last one included."""
    return sorted({math.ceil(one) for one in np.linspace(0, rounds, min(_COURSE, rounds) + 1)[1:]})


@dataclass
class ReportedMetrics:
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
        given: the strategy's own facts; its users are numbered 0 to n - 1, held-out ones n to n + t - 1.
        users: t.
        relation: the strategy's neighbouring relation.
        rounds: of the strategy; the last one is followed by a report.
        roster: the nodes of all n + t users.
        max_missing: largest share of held-out users that may be silent.
        ranges: of the K metrics.
    """

    given: Given
    users: int
    relation: Relation
    rounds: int
    roster: Roster
    max_missing: float
    ranges: Ranges
    _asked: list[int] = field(default_factory=list)

    worse: ClassVar[bool] = False  # no report ends a run
    losses: ClassVar[Mapping[int, float]] = {}

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

    @property
    def _mechanism(self) -> GaussianMechanism:
        moved = math.sqrt(len(self.ranges)) * (1.0 if self.relation == "replace_one" else 0.5)
        return GaussianMechanism(moved, self._multiplier * math.sqrt(len(self._schedule)))

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that a plan states; noise is in shares of a metric's range."""
        return {"held_out_users": self.users, "held_out_noise": self._mechanism.standard_deviation / self.users}

    def spent(self) -> float:
        """Compute the epsilon that held-out users are charged so far."""
        return epsilon_of(self._mechanism.cost, len(self._asked), self.given.privacy.delta) if self._asked else 0.0

    def report(self) -> dict[str, Any]:
        """Return nothing: reports are metrics of rounds."""
        return {}

    def chosen(self, last: Vector) -> Vector:
        """Return the model to release."""
        return last

    def ask(
        self, server_round: int, x: Vector, reference: Vector, config: ConfigRecord, *, constant: bool
    ) -> list[Message]:
        """Return the messages that ask for reports on the released model x, if they are due, and charge them."""
        if server_round not in self._schedule or server_round in self._asked:
            return []
        self._asked.append(server_round)
        content = RecordDict({"arrays": self.given.wire.record(x), "config": config})
        nodes = [node for node, _ in self.roster.assign(self._slots)]
        return [Message(content, node, MessageType.EVALUATE, group_id=str(server_round)) for node in nodes]

    @property
    def _slots(self) -> np.ndarray:
        return self.given.users + np.arange(self.users)

    def take(self, server_round: int, replies: Iterable[Message]) -> dict[str, float]:
        """Release each metric's mean over held-out users, and the deviation of its noise.

        Raises `RunFailed`: more users than ``max_missing`` allows did not report.
        """
        rows, silent = np.zeros((self.users, len(self.ranges))), self.users
        places = {node: int(users[0]) - self.given.users for node, users in self.roster.assign(self._slots)}
        complaint = "no reply in time"
        for reply in replies:
            place = places.pop(reply.metadata.src_node_id, None)
            if place is None:
                continue
            try:
                rows[place] = self._row(reply)
            except BadInput as error:
                complaint = str(error)
                log.warning("node %d counts as missing: %s", reply.metadata.src_node_id, complaint)
            else:
                silent -= 1
        if silent > self.max_missing * self.users:
            raise RunFailed(
                f"too many held-out users did not report ({complaint}): strategy.max_missing = {self.max_missing} is "
                "the largest share that may be missing"
            )
        noise = self.given.noise(2 * self.rounds + len(self._asked), 0)
        mechanism = self._mechanism
        means = mechanism.release(rows.sum(axis=0), noise) / self.users
        check_drawn(noise.spent, mechanism.cost)
        found, deviation = dict[str, float](), mechanism.standard_deviation / self.users
        for mean, (name, (low, high)) in zip(means, self.ranges.items(), strict=True):
            found |= {name: low + (high - low) * (float(mean) + 0.5), f"{name}_noise": (high - low) * deviation}
        return found

    def _row(self, reply: Message) -> Vector:
        """Return (K,) a client's numbers in [-1/2, 1/2]; `BadInput` if one of the metrics is not there."""
        if reply.has_error():
            raise BadInput(f"its app failed: {failure(reply)}")
        with untrusted(f"it did not report {', '.join(self.ranges)}, each as a number"):
            [record] = reply.content.metric_records.values()
            values = np.array([float(record[name]) for name in self.ranges])  # type: ignore[arg-type]
        lows, highs = np.array(list(self.ranges.values()), dtype=float).T
        with np.errstate(over="ignore", invalid="ignore"):
            inside = (np.clip(values, lows, highs) - lows) / (highs - lows) - 0.5
        return np.where(np.isfinite(values), inside, 0.0)
