"""The state of a run, and how it resumes after its process was killed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from strategies.core.program import HELD_OUT, Program
from strategies.core.results import Noise, PrivateResult, RoundRecord, Step
from strategies.core.scheme import HoldsNoise
from strategies.core.testers import Testers
from userdp.accounting import NoiseKind
from userdp.arrays.read_only import ReadOnly, frozen
from userdp.arrays.types import Vector
from userdp.errors import BadInput, RunFailed
from userdp.problems.base import Problem
from userdp.problems.in_coordinates import Coordinates
from userdp.snapshots import Snapshot
from userdp.state import OTHER_VERSION, Remembering, put_back, state_of

log = logging.getLogger("userdp")

_MODELS = ("x", "initial", "released")
BEGUN = -1
"""The number of rounds that are done before anybody is asked: the evaluation of the initial model is round 0."""


class Keeper(Protocol):
    """Stores the state of a run; when a method returns, its argument must outlive the process."""

    def ask(self, taken: Snapshot) -> None:
        """Store, under secure noise, the round that is about to ask users: it is charged from now on.

        `BEGUN` comes before the first state, and asks nobody: a state that has no question beside it lost it.
        """

    def keep(self, take: Callable[[], Snapshot], *, must: bool) -> None:
        """Store the state, before the first round and after every one, before the round's record is handed out.

        Without ``must`` it may skip a state: a resumed run computes the rounds since again, to the bit.
        """


@dataclass(frozen=True)
class Resumed:
    """The stored state of a killed run."""

    kept: Snapshot  # the last argument of `Keeper.keep`
    asked: Snapshot | None = None  # the last argument of `Keeper.ask`; None if it was not called


def check_resumable(*, repeats: bool, drawn: bool) -> None:
    """Refuse (`BadInput`) to keep or resume a run whose clients do not ``repeat``, or whose seed was ``drawn``.

    A secret seed is not written down, and with another one users would be drawn for more rounds than accounted, and
    seeded noise drawn anew for the same data.
    """
    if not repeats:
        raise BadInput(
            "ordinary Flower clients are not deterministic, so such a run cannot be resumed: do not pass keeper"
        )
    if drawn:
        raise BadInput(
            "seed is missing: a run that can be resumed draws the same cohorts again, and a secret seed is not kept; "
            "give the strategy a seed, and privacy.noise = 'secure', whose noise no seed can undo"
        )


class RunState:
    """The models of a run, and all else that a process can store and another one resume.

    *Formal guarantees.* *Claim.* A run that is killed at any points and resumed, however often, keeps to the guarantee
    of one that is not. Unit and relation: the strategy's. *Why.*

    1. *Seeded noise.* What a round releases is a function of its users' data, of the state before it and of streams
       named by seed and round. State and streams are the same after a resume, so a round that is computed again
       releases the same numbers. Two copies of one release tell no more than one.
    2. *Secure noise.* Noise drawn again would be a second release of the same data. So a round's number and cohort are
       on disk before any user is asked (`Keeper.ask`), and its state is on disk before its record is handed out
       (`Keeper.keep`). A round that was asked and not kept is LOST: it is charged, nobody is asked again, and it counts
       as a round in which nobody answered. Rounds between it and the last kept one were skipped; if one of them asks,
       the checkpoint is an older one, and the run ends. Count the release that the killed process may have made as
       made. Then each user's data have entered the rounds whose cohorts it was drawn for, each of them once, as in an
       unbroken run; the lost round's second release is a function of no user's data, given what was released before.
       Where it would hold other rounds' data there is none: a phase does not end twice (`strategies.localized.phases`),
       and one test of all rounds counts as failed, as it may have before.
       Other rounds' mechanisms and noise are as planned, chosen adaptively; the ledger accounts their composition.
    3. *Correlated noise.* Rows of C G get fresh noise each. The lost round's row holds earlier rounds' data, so it is
       not released again (`userdp.mechanisms.prefix_sums.PrefixSums.skip`); later rows lack its row of G. All entries
       of C are non-negative, so leaving out a participation lowers the bound of `userdp.mechanisms.prefix_sums` row by
       row, also where rows up to the lost round had it.
    4. *Secret cohorts.* The lost round's cohort is the one that was kept: nobody is drawn for more rounds than
       accounted, and nobody for fewer, which under random allocation would make later rounds likelier.
    5. *Extra rounds.* The rounds of a `Preparation` and of a `LastComparison` are rounds like others here.
    6. *Held-out users.* What was asked of them before the last state was kept is in it. About the model of a lost
       round, the initial model (round 0) and the last one included, their questions are charged and not asked again.

    *Assumptions.* The state is resumed once: resuming a copy of it, or an older one, is a second run. The data are the
    same, and with seeded noise nodes compute the same bits from them again, which GPUs may not. The time at which a
    process dies reveals nothing of the data beyond what it released.

    Attributes:
        program: the rounds of the run, with their memories and ledgers.
        x: (p,) the model at which the next round asks.
        initial: (p,) the model that the run started from.
        released: (p,) the released model.
        result: the result so far.
        testers: the held-out users; None for none.
        lost: number of the round that a killed process asked and did not keep, 0 for the evaluation of the initial
            model; None for none.
        keeper: stores the state; None where no run resumes.
    """

    x, initial, released = ReadOnly(), ReadOnly(), ReadOnly()

    def __init__(self, program: Program, noise: NoiseKind, seed: int, start: Vector, streams: Remembering) -> None:
        self.program, self._noise, self._seed = program, noise, seed
        self._streams = streams
        self.result, self.lost = PrivateResult(), None
        self.x = self.initial = self.released = start

    lost: int | None
    testers: Testers | None = None
    keeper: Keeper | None = None

    def ask(self, server_round: int) -> None:
        """Store that a round is about to ask; under seeded noise it may be asked again."""
        if self.keeper is not None and self._noise == "secure":
            self.keeper.ask(self.question(server_round))

    def keep(self, server_round: int, *, must: bool) -> None:
        """Store the state after a round."""
        if self.keeper is not None:
            self.keeper.keep(partial(self.snapshot, server_round), must=must)

    def take(self, step: Step, coordinates: Coordinates | None, original: Problem) -> None:
        """Take over the next iterate and release the model, unless the step overflows.

        A model is released here alone, within its domain. After an overflow both stay unchanged: a step that releases a
        model follows from released values, and so does this. Inside a phase the iterate is not looked at.
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
        """A function of the epsilon charged NOW, to those who train or to those held out; None without a guarantee.

        Nobody is both, so it is the larger of the two.
        """
        trained, held_out = self.program.spent, 0.0 if self.testers is None else self.testers.spent()
        return None if trained is None else lambda: max(trained(), held_out)

    @property
    def constant(self) -> Vector:
        """(p,) the model of comparisons: the best constant released so far, or else the initial model."""
        return self.initial if self.result.constant is None else self.result.constant

    def check_newest(self, server_round: int) -> None:
        """Refuse (`RunFailed`) to ask a round before the lost one: the checkpoint is older than what was asked."""
        if server_round < (self.lost or 0):
            raise RunFailed(
                f"round {self.lost} was asked before the process ended, and the checkpoint is older than round "
                f"{server_round}: asking it again would be a second release; resume with the checkpoint that the run "
                "wrote last"
            )

    def check_declared(self) -> None:
        """Refuse a memory that does not declare what it remembers; the `BadInput` names the attribute."""
        for part in self._remembering().values():
            part.state()

    def _remembering(self) -> dict[str, Remembering]:
        """Return all that remembers something, by name, in the order in which it is restored."""
        rounds = (self.program.before, self.program.own, self.program.after)
        parts: dict[str, Remembering] = {part.name: part for part in rounds if part is not None}
        if self.testers is not None:
            parts[HELD_OUT] = self.testers
        return parts | {"streams": self._streams}  # last: a memory goes on where its own noise was

    def snapshot(self, server_round: int) -> Snapshot:
        """Return the state after round ``server_round``."""
        taken, result = Snapshot(), self.result
        taken.add("round", server_round)
        taken.add("seed", self._seed)
        for name in _MODELS:
            taken.add(name, getattr(self, name))
        taken.add("constant", result.constant)
        for name, part in self._remembering().items():
            taken.add(name, part.state())
        taken.add("initial_metrics", result.initial_metrics)
        taken.add("records", [record.as_dict() for record in result.rounds])
        return taken

    def question(self, server_round: int) -> Snapshot:
        """Return the number and the cohorts of the round that is about to ask."""
        taken = Snapshot()
        taken.add("round", server_round)
        taken.add("drawn", state_of(self.program.own.drawn))
        return taken

    def resume(self, resumed: Resumed, noise: Noise) -> int:
        """Take over the stored state of a killed run, and return the number of rounds that are done.

        ``noise`` opens that of the strategy's first round. Raises `BadInput`: the state belongs to another run, or to
        another version.
        """
        try:
            return self._taken_over(resumed.kept, resumed.asked, noise)
        except (LookupError, TypeError, AttributeError) as error:
            raise BadInput(f"the checkpoint does not fit this run ({type(error).__name__}): {OTHER_VERSION}") from None

    def _taken_over(self, kept: Snapshot, asked: Snapshot | None, noise: Noise) -> int:
        done, rounds = kept.get("round"), self.program.rounds
        if not isinstance(done, int) or not BEGUN <= done <= rounds:
            raise BadInput(
                f"the checkpoint is of round {done!r}, and the run plans {rounds}: resume with the config.toml in the "
                "same folder"
            )
        if kept.get("seed") != self._seed:
            raise BadInput(
                f"the checkpoint is of a run with seed {kept.get('seed')!r}, and this one has seed {self._seed}: with "
                "other cohorts users would be asked more often than they are charged; resume with the run's seed"
            )
        before, own = self.program.before, self.program.own
        for name, part in self._remembering().items():
            if part is own and before is not None and done >= before.rounds:
                own.begin()
            if part is own and isinstance(own.memory, HoldsNoise):
                own.memory.noise = noise
            part.restore(kept.get(name))
        for name in _MODELS:
            setattr(self, name, self._of_this_run(name, kept.get(name)))
        if (constant := kept.get("constant")) is not None:
            self.result.constant = frozen(self._of_this_run("constant", constant))
        self.result.restore(kept.get("initial_metrics"), [RoundRecord.of(one) for one in kept.get("records")])
        if asked is not None and self._noise == "secure" and asked.get("round") > done:
            self.lost = int(asked.get("round"))
            put_back(own.drawn, asked.get("drawn"))
            log.warning(
                "round %d had begun when the run was killed; it is charged and skipped, because drawing its noise "
                "again would be a second release",
                self.lost,
            )
        return done

    def _of_this_run(self, name: str, model: Any) -> Vector:
        if getattr(model, "shape", None) != self.x.shape or model.dtype != self.x.dtype:
            raise BadInput(
                f"the checkpoint's model {name!r} is no vector of {self.x.size} numbers, as this run's is: resume "
                "with the config.toml in the same folder"
            )
        return np.asarray(model)
