"""What changes during a run, and how it goes on where another process was killed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from strategies.core.around import Around
from strategies.core.read_only import ReadOnly, frozen
from strategies.core.results import PrivateResult, RoundRecord
from strategies.core.scheme import Scheme
from strategies.core.snapshots import Snapshot
from strategies.core.step import Step
from userdp.accounting import AnyLedger, Privacy
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.in_coordinates import Coordinates
from userdp.sampling import Sampler
from userdp.state import OTHER_VERSION, Stateful, put_back, state_of

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


class RunState:
    """The models, memory and ledger of a run, and what is needed to go on after the process was killed.

    *Formal guarantees.* *Claim.* A run that is killed at any points and resumed, however often, keeps to the guarantee
    of one that is not. Unit and relation: the strategy's. *Why.*

    1. *Seeded noise.* What a round releases is a function of its users' data, of the state before it and of streams
       named by seed and round. State and streams are the same after a resume, so a round that is computed again
       releases the same numbers. Two copies of one release tell no more than one.
    2. *Secure noise.* Noise drawn again would be a second release of the same data. So a round's number and cohort are
       on disk before any user is asked (`Keeper.ask`), and its state is on disk before its record is handed out
       (`Keeper.keep`). A round that was asked and not kept is LOST: it is charged, nobody is asked again, and it goes
       on as a round in which nobody answered. Rounds before it that are not kept are skipped ones: should one ask, the
       run ends. Count the release that the killed process may have made as made. Then
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

    Args:
        scheme: of the strategy's own rounds.
        around: what comes before and after them.
        privacy: the budget of the strategy's own rounds.
        start: (p,) the initial model.

    Attributes:
        scheme: as given; with a preparation, made anew once it has found what it looks for.
        memory: what the server remembers between rounds, made by the scheme.
        ledger: of the strategy's own rounds; None where nothing is promised.
        x: (p,) the model at which the next round asks.
        initial: (p,) the model that the run started from.
        released: (p,) the released model.
        result: what the run hands back so far.
        lost: number of the round that a killed process asked and did not keep; None for none.
    """

    x, initial, released = ReadOnly(), ReadOnly(), ReadOnly()

    def __init__(self, scheme: Scheme, around: Around, privacy: Privacy, start: Vector) -> None:
        self.around, self._privacy = around, privacy
        self.result, self.lost = PrivateResult(), None
        self.begin(scheme)
        self.x = self.initial = self.released = start

    lost: int | None

    def begin(self, scheme: Scheme) -> None:
        """Take over a scheme, with a fresh memory and a fresh ledger."""
        self.scheme, self.memory = scheme, scheme.new_memory()
        self.ledger: AnyLedger | None = scheme.ledger(self._privacy) if scheme.guarantee.holds else None

    def take(self, step: Step, coordinates: Coordinates | None, original: Problem) -> None:
        """Go on from the next iterate and hand out the released model, unless such a step overflows.

        A model is released here alone, within its domain. After an overflow both stay what they were: a step that
        releases a model follows from released values, and so does this. Inside a phase, where nothing is released, the
        iterate is what the step says, for it may not be looked at.

        Args:
            step: what a round came to.
            coordinates: in which its models are; None for the loss's own parameters.
            original: the loss as nodes know it.
        """
        if step.constant is not None:
            self.result.constant = frozen(step.constant)
        if step.released is None:
            self.x = self.released if step.goes_back else step.following
            return
        released = step.released if coordinates is None else coordinates.models(step.released)
        if np.isfinite(step.following).all() and np.isfinite(released).all():
            self.x, self.released = step.following, original.domain.project(released)
        else:
            log.warning("a step overflows, and is not taken: lower the step size")

    @property
    def spent(self) -> Callable[[], float] | None:
        """Computes what all ledgers have been charged so far, as they are NOW; None where nothing is promised."""
        return None if self.ledger is None else self.around.spent(self.ledger.spent())

    @property
    def constant(self) -> Vector:
        """(p,) what a model is compared with: the best constant that was released, before there is one the initial."""
        return self.initial if self.result.constant is None else self.result.constant

    @property
    def _drawn(self) -> Stateful | None:
        """The cohorts that the operating system drew; None where they follow from a seed."""
        sampler = getattr(self.scheme, "sampler", None)
        return sampler.drawn if isinstance(sampler, Sampler) and sampler.seed is None else None

    def check_declared(self) -> None:
        """Refuse a memory whose class does not say what it remembers, before anything is asked.

        Raises:
            BadInput: names class and attribute.
        """
        for memory in (self.memory, self._drawn):
            state_of(memory)
        for part in self.around.parts:
            part.keep(Snapshot())

    def snapshot(self, server_round: int) -> Snapshot:
        """The state after round ``server_round``."""
        taken, result = Snapshot(), self.result
        taken.add("round", server_round)
        for name, model in {"x": self.x, "initial": self.initial, "released": self.released}.items():
            taken.add(name, model)
        taken.add("constant", result.constant)
        for part in self.around.parts:
            part.keep(taken)
        taken.add("memory", state_of(self.memory))
        taken.add("ledger", None if self.ledger is None else self.ledger.state())
        taken.add("drawn", state_of(self._drawn))
        taken.add("initial_metrics", result.initial_metrics)
        taken.add("records", [record.as_dict() for record in result.rounds])
        return taken

    def question(self, server_round: int) -> Snapshot:
        """The round that is about to ask, and its cohort."""
        taken = Snapshot()
        taken.add("round", server_round)
        taken.add("drawn", state_of(self._drawn))
        return taken

    def resume(self, resumed: Resumed, rounds: int, new_scheme: Callable[[], Scheme]) -> int:
        """Take over what a killed run left; returns the number of rounds that are done.

        Args:
            resumed: what it left.
            rounds: of the plan.
            new_scheme: makes the scheme from what a preparation has found.

        Raises:
            BadInput: it is of another run, or of another version.
        """
        try:
            return self._taken_over(resumed.kept, resumed.asked, rounds, new_scheme)
        except (LookupError, TypeError, AttributeError) as error:
            raise BadInput(f"the checkpoint does not fit this run ({type(error).__name__}): {OTHER_VERSION}") from None

    def _taken_over(self, kept: Snapshot, asked: Snapshot | None, rounds: int, new_scheme: Callable[[], Scheme]) -> int:
        done = kept.get("round")
        if not isinstance(done, int) or not 0 <= done <= rounds:
            raise BadInput(
                f"the checkpoint is of round {done!r}, and the run plans {rounds}: resume with the config.toml in the "
                "same folder"
            )
        for part in self.around.parts:
            part.recall(kept)
        if self.around.before is not None and done >= self.around.before.rounds:
            self.begin(new_scheme())
        self.memory = self.scheme.new_memory()
        put_back(self.memory, kept.get("memory"))
        if self.ledger is not None:
            self.ledger.restore(kept.get("ledger"))
        for name in ("x", "initial", "released"):
            setattr(self, name, self._of_this_run(name, kept.get(name)))
        # Former versions knew none.
        if (constant := kept.get("constant") if "constant" in kept.values else None) is not None:
            self.result.constant = frozen(self._of_this_run("constant", constant))
        self.result.restore(kept.get("initial_metrics"), [RoundRecord.of(one) for one in kept.get("records")])
        put_back(self._drawn, kept.get("drawn"))
        if asked is not None and self._privacy.noise == "secure" and asked.get("round") > done:
            self.lost = int(asked.get("round"))
            put_back(self._drawn, asked.get("drawn"))
            log.warning(
                "round %d had begun when the run was killed; it is charged and skipped, because drawing its noise "
                "again would be a second release",
                self.lost,
            )
        return done

    def _of_this_run(self, name: str, model: Any) -> Vector:
        """The checkpoint's model of that name.

        Raises:
            BadInput: it is of another shape.
        """
        if getattr(model, "shape", None) != self.x.shape or model.dtype != self.x.dtype:
            raise BadInput(
                f"the checkpoint's model {name!r} is no vector of {self.x.size} numbers, as this run's is: resume "
                "with the config.toml in the same folder"
            )
        return np.asarray(model)
