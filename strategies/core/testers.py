"""Private evaluation: held-out users answer about released models, within a budget of their own."""

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType
from numpy.typing import NDArray

from strategies.core.public_facts import Given
from strategies.core.results import Noise
from strategies.wire.replies import Gathered, Request, gather
from strategies.wire.roster import Roster
from userdp.accounting import Cost
from userdp.accounting.costs import calibrate_noise, epsilon_of
from userdp.accounting.guarantee import Relation
from userdp.accounting.ledger import check_drawn
from userdp.arrays.types import Vector
from userdp.errors import BadInput, RunFailed
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.answers import Measures, longest, measures
from userdp.nodes.computations import Computation
from userdp.nodes.measured import Estimate, Histogram, estimates
from userdp.nodes.node import Answer
from userdp.noise import NoiseSource
from userdp.state import State

_SHARES = {"scale": 0.05, "course": 0.25, "ranking": 0.1, "answers": 0.6}  # Parts of 1 / multiplier^2, adding up to 1
_WEIGHT = 0.5  # Weight of products in `answers`: they tell how users differ, which matters less than the means
_LOSS_EDGES = 2.0 ** np.arange(-8, 10.5, 0.5)
_SCORE_EDGES = np.linspace(-4.0, 4.0, 15)
_WITHIN = 0.9  # Share of users whose loss at the initial model is to lie below half the limit
_REMEMBERED = ("limit", "charged", "losses", "_done", "_best", "_asked")  # for a killed run, beside ``found``
_COURSE = 8  # Rounds, at most, after which they are asked how good the model is
_SURE = 2.0  # Standard deviations of noise by which an earlier model must be better to be chosen


def course(rounds: int) -> list[int]:
    """Return the rounds, counted from 1, after which held-out users are asked: up to eight, the last one included."""
    return sorted({math.ceil(one) for one in np.linspace(0, rounds, min(_COURSE, rounds) + 1)[1:]})


@dataclass
class Testers:
    """The held-out users of a run, what they are asked, and what that costs them.

    *Formal guarantees.* *Claim.* Let a strategy be (epsilon, delta)-DP for the n users that train. Then all that a run
    with private evaluation releases together (models, metrics, and the choice of the best model) is (epsilon,
    delta)-DP for each of the n + t users that train or are held out, under the strategy's relation. *Why.*

    1. Which slots are held out follows from n, t and a public seed. A user who is replaced, added or removed keeps its
       slot, and nobody else's slot moves. So neighbouring populations differ in one part alone.
    2. *A training user.* Metrics are a function of the released models, of the held-out users' data, which do not
       change, and of independent noise: post-processing of what the strategy releases.
    3. *A held-out user.* Training asks no held-out user, and no step depends on a metric, so what all planned rounds
       would release, T, has the same law in both populations; a run that ends early shows less of it. Given T, the
       answers are Gaussian mechanisms, each chosen by T and by earlier answers. With ``1 / z_i^2`` adding up to
       ``1 / z^2`` their adaptive composition is no worse than one Gaussian of multiplier z (Dong, Roth, Su 2022), which
       is calibrated to (epsilon, delta). So for all sets S, ``P[A in S | T] <= e^epsilon P'[A in S | T] + delta``, and
       the mean over T keeps the inequality.
    4. *Sensitivity.* A question is a sum over the t slots of rows that nodes clip (`Computation.sensitivity`). An empty
       or silent slot adds zero, and sums are divided by t, so no divisor depends on data.

    *Assumptions.* n and t are public. The server is trusted with the sums before noise. Nobody is in two slots.
    Comparing many runs by the same held-out users adds up their budgets.

    Attributes:
        given: the strategy's own facts; its users are numbered 0 to n - 1, held-out ones n to n + t - 1.
        users: t.
        relation: the strategy's neighbouring relation.
        rounds: of the strategy.
        roster: the nodes of all n + t users.
        max_missing: largest share of held-out users that may be silent; they count as the middle of every range.
        choose: end the rounds once a model is worse than the best by more than noise, and release the best.
        limit: largest average loss of a user that counts: twice that of even odds on all classes; without classes it is
            found from the losses of the initial model.
        charged: share of ``1 / z^2`` spent so far.
        losses: round -> noisy mean loss of the model released after it.
        found: name -> the estimate of a metric of the released model.
    """

    given: Given
    users: int
    relation: Relation
    rounds: int
    roster: Roster
    max_missing: float
    choose: bool = False
    limit: float = math.nan
    charged: float = 0.0
    losses: dict[int, float] = field(default_factory=dict)
    found: dict[str, Estimate] = field(default_factory=dict)
    _done: list[list[Any]] = field(default_factory=list)
    _best: Vector | None = None
    _asked: Vector | None = None
    _ranking: Histogram | None = None
    _constant: bool = False
    _pending: tuple[str, Request, Vector] | None = None

    def __post_init__(self) -> None:
        if self.users < 2:
            raise BadInput(f"privacy.evaluate = true: {self.users} users are held out, and it takes two at least")
        privacy = self.given.privacy
        if privacy.delta == 0:
            raise BadInput("privacy.evaluate = true: metrics get Gaussian noise; set a privacy.delta above 0")
        if privacy.trust == "sum":
            raise BadInput("privacy.evaluate = true: held-out users trust the server; set privacy.trust = 'server'")
        self._multiplier = calibrate_noise(privacy.epsilon, privacy.delta, 1)
        self._measures: Measures = measures(self.given.problem)
        if self._measures.classes:
            self.limit = 2 * math.log(self._measures.classes)
        self._schedule = course(self.rounds)

    # What is asked --------------------------------------------------------------------------------------------------

    def question(self, server_round: int, x: Vector) -> str | None:
        """Return the next question after a round (0: before the first; one more than the last: at the end), or None."""
        last, what = server_round > self.rounds, self._measures
        due = {
            "scale": server_round == 0 and not what.classes,
            "course": server_round in self._schedule and (self._asked is None or not np.array_equal(x, self._asked)),
            "ranking": last and what.ranking,
            "answers": last,
        }
        return next((name for name, now in due.items() if now and [server_round, name] not in self._done), None)

    def skip(self, server_round: int) -> None:
        """Charge the questions of a round without asking them: a process that was killed may have had the answers.

        Without the answer that finds it, ``limit`` is the largest, at which no loss that counts is cut.
        """
        while (name := self.question(server_round, np.full(1, np.nan))) is not None:
            self.charge(server_round, name)
            if name == "scale":
                self.limit = 2.0 * float(_LOSS_EDGES[-1])

    def charge(self, server_round: int, name: str) -> None:
        """Charge a question; it is not asked again. Raises `RunFailed` beyond the budget."""
        self._done.append([server_round, name])
        self.charged += self._share(name)
        if self.charged > 1 + 1e-9:
            raise RunFailed("held-out users would be asked for more than their budget: stopped")

    def ask(
        self, server_round: int, x: Vector, reference: Vector, config: ConfigRecord, *, constant: bool
    ) -> list[Message]:
        """Return the messages of the next question about the released model x, and charge it; none without one."""
        name = self.question(server_round, x)
        self._pending = None
        if name is None:
            return []
        self.charge(server_round, name)
        request = self.request(name, reference, constant=constant)
        self._pending = name, request, x
        wire = self.given.wire
        return wire.messages(MessageType.EVALUATE, server_round, wire.record(x), config, self.roster, request)

    @property
    def asked(self) -> int:
        """The number of questions that were charged so far."""
        return len(self._done)

    def take(self, server_round: int, replies: Iterable[Message], noise: Noise) -> dict[str, float]:
        """Release the answer to the pending question, and return the metrics; `RunFailed` for too many missing."""
        if self._pending is None:
            return {}
        name, request, x = self._pending
        read = partial(self._read, sent=x)
        try:
            gathered = gather(request, self.roster, replies, self._dimension, self.max_missing, read)
        except RunFailed as error:
            raise RunFailed(f"held-out users: {error}") from None
        return self.release(server_round, name, x, request.computation, gathered, noise(0))

    @property
    def _dimension(self) -> int:
        """The entries of a row, where the question does not say it."""
        return self.given.dimension

    def _read(
        self, reply: Message, users: NDArray[np.int64], asked: Computation, dimension: int, *, sent: Vector
    ) -> Answer:
        return self.given.wire.read(reply, users, asked, dimension, sent)

    @property
    def _slots(self) -> NDArray[np.int64]:
        return self.given.users + np.arange(self.users)

    def request(self, name: str, reference: Vector, *, constant: bool) -> Request:
        """Return the request of a question; ``reference`` (p,) is the model to compare with, maybe a constant."""
        self._constant = constant
        asked = {
            "scale": Computation("loss_sizes", "sum", 1.0, arrays={"edges": _LOSS_EDGES}),
            "course": Computation("loss_answer", "sum", 0.5, parameters={"limit": self.limit}),
            "ranking": Computation("score_shares", "sum", 1.0, arrays={"edges": _SCORE_EDGES}),
            "answers": self._answers(reference),
        }
        return Request(self._slots, replace(asked[name], separate=self.given.secure))

    def _answers(self, reference: Vector) -> Computation:
        what = self._measures
        numbers = {"limit": self.limit, "width": what.difference or 1.0, "weight": _WEIGHT}
        arrays = {"asked": what.asked, "reference": reference}
        if self._ranking is not None:
            arrays |= {"edges": _SCORE_EDGES, "below": self._ranking.below}
        return Computation("answers", "sum", longest(what.means, _WEIGHT), parameters=numbers, arrays=arrays)

    # What is released -----------------------------------------------------------------------------------------------

    def release(
        self, server_round: int, name: str, x: Vector, asked: Computation, sums: Gathered, noise: NoiseSource
    ) -> dict[str, float]:
        """Release the answer to a question about the model x, and return the metrics that follow from it."""
        sensitivity = asked.sensitivity(self.relation)
        assert sensitivity is not None
        mechanism = GaussianMechanism(sensitivity, self._multiplier / math.sqrt(self._share(name)))
        released = mechanism.release(sums.values, noise)
        check_drawn(noise.spent, mechanism.cost)
        means, deviation = released / self.users, mechanism.standard_deviation / self.users
        metrics = {}
        match name:
            case "scale":
                self.limit = self._limit(released)
            case "ranking":
                self._ranking = Histogram.of(released)
            case "course":
                metrics["held_out_loss"] = loss = (float(means[0]) + 0.5) * self.limit
                self._asked = x.copy()
                if loss < min(self.losses.values(), default=math.inf):
                    self._best = self._asked
                self.losses[server_round] = loss
            case _:
                described = self._measures, means, deviation, self.users, self.limit, _WEIGHT
                self.found = estimates(*described, self._ranking, self._constant)
                metrics = {name: one.value for name, one in self.found.items()}
        return metrics

    def _limit(self, counts: Vector) -> float:
        """Return twice the edge below which nine of ten users' losses lie, as far as noise lets tell."""
        below = np.cumsum(counts)[:-1]
        enough = np.flatnonzero(below >= _WITHIN * self.users)
        return 2.0 * float(_LOSS_EDGES[enough[0] if len(enough) else int(below.argmax())])

    @property
    def worse(self) -> bool:
        """The newest model is worse than the best one by more than noise explains, and the best is wanted."""
        if not self.choose or not self.losses:
            return False
        noise = math.sqrt(2) * self.deviation("course") * self.limit
        return self.losses[max(self.losses)] - min(self.losses.values()) > _SURE * noise

    def chosen(self, last: Vector) -> Vector:
        """Return the model to release: the last one, unless the best is better by more than noise."""
        return self._best if self.worse and self._best is not None else last

    # What it costs --------------------------------------------------------------------------------------------------

    def _share(self, name: str) -> float:
        if name == "course":
            return _SHARES[name] / len(self._schedule)
        if name != "answers":
            return _SHARES[name]
        asked = {"scale": not self._measures.classes, "ranking": self._measures.ranking}
        return _SHARES[name] + sum(_SHARES[each] for each, whether in asked.items() if not whether)

    def deviation(self, name: str) -> float:
        """Return the noise's standard deviation on each mean of a question, whose rows lie in [-1/2, 1/2]."""
        norms = {"course": 0.5, "answers": longest(self._measures.means, _WEIGHT)}
        moved = norms[name] * (2 if self.relation == "replace_one" else 1)
        return moved * self._multiplier / math.sqrt(self._share(name)) / self.users

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that a plan states."""
        return {"held_out_users": self.users, "held_out_noise": self.deviation("answers")}

    def spent(self) -> float:
        """Compute the epsilon that held-out users are charged so far."""
        if not self.charged:
            return 0.0
        cost = Cost(noise_multiplier=self._multiplier / math.sqrt(min(self.charged, 1.0)))
        return epsilon_of(cost, 1, self.given.privacy.delta)

    def report(self) -> dict[str, Any]:
        """Return the section of result.json: the metrics that the guarantee covers."""
        metrics = {name: one.as_dict() for name, one in self.found.items()}
        return {"held_out": {"users": self.users, "largest_loss": self.limit, "metrics": metrics}}

    # What a killed run needs ----------------------------------------------------------------------------------------

    def state(self) -> State:
        """Return what a killed run needs to resume."""
        found = {name: list(astuple(one)) for name, one in self.found.items()}
        return {name: getattr(self, name) for name in _REMEMBERED} | {"found": found}

    def restore(self, state: State) -> None:
        """Resume from what `state` returned."""
        for name in _REMEMBERED:
            setattr(self, name, state[name])
        self.found = {name: Estimate(*numbers) for name, numbers in state["found"].items()}
