"""A run that goes on where another process was killed: what is kept of it, and what becomes of the round under way."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from strategies.core.around import Around
from strategies.core.read_only import frozen
from strategies.core.results import PrivateResult, RoundRecord
from strategies.core.scheme import Scheme
from strategies.core.secure_noise import NOISE_SOURCES
from strategies.core.snapshots import Snapshot
from userdp.accounting import AnyLedger, Privacy
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.sampling import Sampler
from userdp.state import OTHER_VERSION, State, Stateful

log = logging.getLogger("userdp")


class Keeper(Protocol):
    """Where a run's state is kept; when a method returns, what it was given must outlive the process."""

    def ask(self, taken: Snapshot) -> None:
        """Called under secure noise before users are asked: the round is charged from now on."""

    def keep(self, take: Callable[[], Snapshot], *, must: bool) -> None:
        """Called before the first round and after every one, before its record is handed out.

        May leave out what need not be kept: then the rounds since are computed again, to the bit.
        """


@dataclass(frozen=True)
class Resumed:
    """What a killed run left.

    Attributes:
        kept: what `Keeper.keep` was last given.
        asked: what `Keeper.ask` was; None if it was not called.
    """

    kept: Snapshot
    asked: Snapshot | None = None


class Resumable:
    """The part of a strategy that knows how far a run is: what is spent, and what it needs to go on.

    *Formal guarantees.* *Claim.* A run that is killed at any points and resumed, however often, keeps to the guarantee
    of one that is not. Unit and relation: the strategy's. *Why.*

    1. *Seeded noise.* What a round releases is a function of its users' data, of the state before it and of streams
       named by seed and round. State and streams are the same after a resume, so a round that is computed again
       releases the same numbers. Two copies of one release tell no more than one.
    2. *Secure noise.* Noise drawn again would be a second release of the same data. So a round's number and cohort are
       on disk before any user is asked (`Keeper.ask`), and its state is on disk before its record is handed out
       (`Keeper.keep`). A round that was asked and not kept is LOST: it is charged, nobody is asked again, and it goes
       on as a round in which nobody answered. Count the release that the killed process may have made as made. Then
       each user's data have entered the rounds whose cohorts it was drawn for, each of them once, as in an unbroken
       run; the lost round's second release is a function of no user's data, given what was released before. The other
       rounds' mechanisms and noise are the planned ones, chosen adaptively, and their composition is what the ledger
       accounts.
    3. *Correlated noise.* Rows of C G get fresh noise each, and later rows lack the lost round's row of G. All entries
       of C are non-negative, so leaving out a participation lowers the bound of `userdp.mechanisms.prefix_sums` row by
       row, also where rows up to the lost round had it.
    4. *Secret cohorts.* The lost round's cohort is the one that was kept: nobody is drawn for more rounds than
       accounted, and nobody for fewer, which under random allocation would make later rounds likelier.
    5. *Around a strategy.* The rounds of a `Preparation` and of a `LastComparison` are rounds like others here.

    *Assumptions.* The state goes on in one place: whoever resumes a copy of it, or an older one, runs twice. The data
    are the same, and with seeded noise nodes compute the same bits from them again, which GPUs may not. When a process
    dies tells nothing of the data beyond what it released.
    """

    memory: Any
    plan: Any
    privacy: Privacy
    scheme: Scheme
    result: PrivateResult
    _around: Around
    _build: Callable[[], None]
    _initial: Vector
    _ledger: AnyLedger | None
    _lost: int | None = None
    _released: Vector
    _x: Vector

    @property
    def spent_epsilon(self) -> float | None:
        """What the ledger has been charged so far, recorded rounds or not; None when nothing is promised."""
        return None if self._spent is None else self._spent()

    @property
    def _spent(self) -> Callable[[], float] | None:
        own = None if self._ledger is None else self._ledger.spent()
        return None if own is None else self._around.spent(own)

    @property
    def noise_source(self) -> str:
        """Where the noise comes from, for people."""
        return NOISE_SOURCES[self.privacy.noise]

    def _snapshot(self, server_round: int) -> Snapshot:
        """What is needed to go on after round ``server_round``."""
        taken, result = Snapshot(), self.result
        taken.add("round", server_round)
        for name, model in {"x": self._x, "initial": self._initial, "released": self._released}.items():
            taken.add(name, model)
        taken.add("constant", result.constant)
        if (before := self._around.before) is not None:
            taken.add("found", state_of(before.memory))
            taken.add("found_ledger", before.ledger.state())
        if (after := self._around.after) is not None:
            taken.add("compared", after.charged)
        taken.add("memory", state_of(self.memory))
        taken.add("ledger", None if self._ledger is None else self._ledger.state())
        taken.add("drawn", state_of(self._drawn))
        taken.add("initial_metrics", result.initial_metrics)
        taken.add("records", [record.as_dict() for record in result.rounds])
        return taken

    def _question(self, server_round: int) -> Snapshot:
        """Which round asks whom."""
        taken = Snapshot()
        taken.add("round", server_round)
        taken.add("drawn", state_of(self._drawn))
        return taken

    def _check_declared(self) -> None:
        """Refuse a memory whose class does not say what it remembers, before anything is asked.

        Raises:
            BadInput: names class and attribute.
        """
        before = self._around.before
        for memory in (self.memory, self._drawn, None if before is None else before.memory):
            state_of(memory)

    def _resume(self, resumed: Resumed) -> int:
        """Take the state over; the number of rounds that are done.

        Raises:
            BadInput: it is of another run, or of another version.
        """
        try:
            return self._taken_over(resumed.kept, resumed.asked)
        except (LookupError, TypeError, AttributeError) as error:
            raise BadInput(f"the checkpoint does not fit this run ({type(error).__name__}): {OTHER_VERSION}") from None

    def _taken_over(self, kept: Snapshot, asked: Snapshot | None) -> int:
        done = kept.get("round")
        if not isinstance(done, int) or not 0 <= done <= self.plan.rounds:
            raise BadInput(
                f"the checkpoint is of round {done!r}, and the run plans {self.plan.rounds}: resume with the "
                "config.toml in the same folder"
            )
        if (before := self._around.before) is not None:
            before.memory = before.new_memory()
            put_back(before.memory, kept.get("found"))
            before.ledger.restore(kept.get("found_ledger"))
            if done >= before.rounds:
                self._build()
        if (after := self._around.after) is not None:
            after.charged = bool(kept.get("compared"))
        self.memory = self.scheme.new_memory()
        put_back(self.memory, kept.get("memory"))
        if self._ledger is not None:
            self._ledger.restore(kept.get("ledger"))
        for name in ("x", "initial", "released"):
            setattr(self, f"_{name}", self._of_this_run(name, kept.get(name)))
        # Former versions knew none.
        if (constant := kept.get("constant") if "constant" in kept.values else None) is not None:
            self.result.constant = frozen(self._of_this_run("constant", constant))
        self.result.restore(kept.get("initial_metrics"), [RoundRecord.of(one) for one in kept.get("records")])
        self._draw_again(kept)
        if asked is not None and self.privacy.noise == "secure" and asked.get("round") == done + 1:
            self._lost = done + 1
            self._draw_again(asked)
            log.warning(
                "round %d had begun when the run was killed; it is charged and skipped, because drawing its noise "
                "again would be a second release",
                self._lost,
            )
        return done

    def _of_this_run(self, name: str, model: Any) -> Vector:
        """The checkpoint's model of that name.

        Raises:
            BadInput: it is of another shape.
        """
        if getattr(model, "shape", None) != self._x.shape or model.dtype != self._x.dtype:
            raise BadInput(
                f"the checkpoint's model {name!r} is no vector of {self._x.size} numbers, as this run's is: resume "
                "with the config.toml in the same folder"
            )
        return np.asarray(model)

    @property
    def _constant(self) -> Vector:
        """(p,) what a model is compared with: the best constant that was released, before there is one the initial."""
        return self._initial if self.result.constant is None else self.result.constant

    @property
    def _drawn(self) -> Stateful | None:
        """What the operating system drew of cohorts; None where they follow from a seed."""
        sampler = getattr(self.scheme, "sampler", None)
        return sampler.drawn if isinstance(sampler, Sampler) and sampler.seed is None else None

    def _draw_again(self, taken: Snapshot) -> None:
        """Put back what was drawn."""
        put_back(self._drawn, taken.get("drawn"))


def state_of(memory: Any) -> State | None:
    """What an object remembers that a run needs to go on; None where there is nothing to remember.

    Raises:
        BadInput: it does not declare all of that.
    """
    if memory is None:
        return None
    if not isinstance(memory, Stateful):
        raise BadInput(
            f"{type(memory).__name__} is what a server remembers between rounds, and does not declare its attributes: "
            "make it a userdp.state.Stateful"
        )
    return memory.state()


def put_back(memory: Any, state: State | None) -> None:
    """Have a fresh object go on from what `state_of` gave.

    Raises:
        BadInput: that was of another class.
    """
    if (memory is None) != (state is None):
        raise BadInput(f"the checkpoint and this run do not remember the same between rounds: {OTHER_VERSION}")
    if memory is not None and state is not None:
        memory.restore(state)
