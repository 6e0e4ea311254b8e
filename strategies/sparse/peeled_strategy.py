"""Sparse models: rounds of one gradient step on a fold of users, of which peeling keeps a few entries."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Number, Scheme, Step
from strategies.core.ways import NoisyPhase, Phases
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee, Ledger, epsilon_of
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms.peeling import Peeling, PeelingAccounting
from userdp.nodes.computations import Computation
from userdp.papers.high_dimensional.hard_thresholding import log_rounds
from userdp.sampling import DisjointBatches


class SparseRoundsOptions(StrategyOptions):
    """Settings of every strategy here."""

    sparsity: int = Field(10, ge=1, description="s: most entries of the model that are not zero.")
    rounds: int | None = Field(
        None, ge=1, description="T; floor(ln n) if not given. Each round has users of its own, n / T of them."
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size; 2 / (3 smoothness) if not given.")
    smoothness: float | None = Field(
        None, gt=0, description="gamma, of the expected loss; the problem's certified bound, or 1, if not given."
    )
    accounting: PeelingAccounting = Field(
        "tight",
        description="Noise of peeling. tight: what is proven; paper: its formula, refused where it does not hold.",
    )


@dataclass(frozen=True)
class Folds:
    """Disjoint folds of users, one a round.

    Attributes:
        rounds: T.
        records: users or samples, whichever are protected, of all folds together.
        sampler: who is in each fold.
    """

    rounds: int
    records: int
    sampler: DisjointBatches

    @property
    def size(self) -> float:
        """m, the public number of records of a fold: by how much a sum over it is divided."""
        return self.records * self.sampler.batch / self.sampler.users


@dataclass(frozen=True, kw_only=True)
class PeeledScheme(Scheme):
    """A `Scheme` of peeled steps.

    Attributes:
        folds: who takes part in each round.
        computation: what users send: vectors whose coordinates (or those of their samples) are bounded.
        gradient: the estimated gradient, from the sum of what users sent.
        rate: step size.
        peeling: of a step.
        settle: the model that a peeled one becomes: post-processing.
        size: largest l2 norm of a model.
        numbers: of the plan, about the truncation.
    """

    folds: Folds
    computation: Computation
    gradient: Callable[[Vector], Vector]
    rate: float
    peeling: Peeling
    settle: Callable[[Vector], Vector]
    size: float
    numbers: Mapping[str, Number]

    @property
    def noise(self) -> float:
        """l2 norm of s independent Laplace noises: the root of the expected square."""
        return math.sqrt(2 * self.peeling.sparsity) * self.peeling.scale

    def selection_noise(self, dimension: int) -> float:
        """About the largest of the d noises among which entries are chosen."""
        return self.peeling.scale * math.log(max(2, dimension))


def drowned_model(scheme: PeeledScheme, dimension: int) -> tuple[str, ...]:
    """The warning that noise is as long as models can be, or may choose wrong entries, if it is or may."""
    size, selection = scheme.size, scheme.selection_noise(dimension)
    entry = size / math.sqrt(scheme.peeling.sparsity)
    fix = "bring more users, raise privacy.epsilon, or lower strategy.sparsity or strategy.rounds"
    if scheme.noise >= size:
        return (
            f"the noise of the released model ({scheme.noise:.3g}) is as long as models can be ({size:.3g}): "
            f"the zero model is expected to be better; {fix}",
        )
    if selection >= entry:
        return (
            f"the largest noise of a selection ({selection:.3g}) exceeds a typical entry of "
            f"the model ({entry:.3g}): wrong entries may be chosen; {fix}",
        )
    return ()


class PeeledStrategy(UserLevelStrategy):
    """Rounds of one gradient step on fresh users, of which peeling keeps s entries.

    A strategy defines `_make_scheme`: it draws `_folds`, truncates, and leaves the rest to `_peeled`.
    """

    family: ClassVar[str] = "high-dimensional"
    units: ClassVar[tuple[str, ...]] = ("user", "sample")
    pure: ClassVar[bool] = True
    meanings: ClassVar[Mapping[str, str]] = {
        "fold": "users (samples, at sample level) of a round, the public divisor",
        "model_sparsity": "most entries of the model that are not zero",
        "noise_scale": "scale of the noise of selecting entries and of releasing them",
        "selection_noise": "about the largest noise among the entries that are selected from",
        "sup_sensitivity_of_a_step": "most that one user can move a robust gradient (sup norm)",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "noise_scale": Fact("public", "scale of the noise of selecting and releasing entries"),
    }
    options: SparseRoundsOptions
    scheme: PeeledScheme

    def _folds(self) -> Folds:
        """Of `SparseRoundsOptions.rounds`, or as many as theory says.

        Raises:
            BadInput: more rounds than users, or samples are protected and their number is not declared.
        """
        options, users = self.options, self.public.users
        records = self.public.records(self.privacy.unit, self.name)
        rounds = min(log_rounds(records), users) if options.rounds is None else options.rounds
        if rounds > users:
            raise BadInput(f"strategy.rounds = {rounds}: each takes users of its own, and there are {users}")
        return Folds(rounds, records, DisjointBatches(users, users // rounds, 1, self.seed))

    @property
    def _sparsity(self) -> int:
        return min(self.options.sparsity, self.problem.dimension)

    def _peeling(self, sensitivity: float) -> Peeling:
        """Of steps of this sensitivity, with all of the budget."""
        return Peeling(self._sparsity, sensitivity, self.privacy.epsilon, self.privacy.delta, self.options.accounting)

    def _peeled(
        self,
        folds: Folds,
        bound: float,
        computation: Computation,
        gradient: Callable[[Vector], Vector],
        settle: Callable[[Vector], Vector],
        size: float,
        numbers: Mapping[str, Number],
    ) -> PeeledScheme:
        """The scheme of these parts; ``bound`` is the largest coordinate of a record's gradient."""
        options = self.options
        rate = options.learning_rate or 2 / (3 * (options.smoothness or self.problem.certificate.smoothness or 1.0))
        peeling = self._peeling(2 * bound * rate / folds.size)
        return PeeledScheme(
            guarantee=self._guarantee_of(peeling),
            ledger=partial(Ledger, self.public.users, peeling.cost, 1),
            folds=folds,
            computation=computation,
            gradient=gradient,
            rate=rate,
            peeling=peeling,
            settle=settle,
            size=size,
            numbers=numbers,
        )

    def _guarantee_of(self, peeling: Peeling) -> Guarantee:
        kind = "pure composition" if peeling.pure else "zero-concentrated privacy"
        counted = ("the number of samples is public",) if self.privacy.unit == "sample" else ()
        return self._promise(
            epsilon_of(peeling.cost, 1, self.privacy.delta),
            f"{kind} of peeling, parallel over disjoint users",
            (DisjointBatches.assumption, *counted, "nodes truncate as told, and the server is trusted"),
        )

    def _make_plan(self) -> Plan:
        scheme, dimension = self.scheme, self.problem.dimension
        step = NoisyPhase(steps=1, rate=scheme.rate, deviation=scheme.noise / math.sqrt(dimension))
        return self._planned(
            Phases((step,) * scheme.folds.rounds, scheme.size),
            rounds=scheme.folds.rounds,
            cohort=scheme.folds.sampler.batch,
            users_needed=scheme.folds.rounds,
            noise=scheme.noise,
            signal=scheme.size,
            numbers={
                "model_sparsity": scheme.peeling.sparsity,
                **scheme.numbers,
                "learning_rate": scheme.rate,
                "sup_sensitivity_of_a_step": scheme.peeling.sensitivity,
                "noise_scale": scheme.peeling.scale,
                "selection_noise": scheme.selection_noise(dimension),
            },
            warnings=drowned_model(scheme, dimension),
        )

    def _ask(self, index: int) -> Request:
        return Request(self.scheme.folds.sampler.cohort(index), self.scheme.computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        peeled = scheme.peeling.release(x - scheme.rate * scheme.gradient(gathered.values), self._noise(index))
        following = scheme.settle(peeled)
        return Step(following, following, {"noise_scale": scheme.peeling.scale})
