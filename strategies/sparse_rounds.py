"""What the strategies share that keep a few entries of the model: disjoint folds of users, one peeling each."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.declarations import Fact
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import Guarantee, Ledger, epsilon_of
from userdp.computations import Computation
from userdp.errors import BadInput
from userdp.high_dimensional.hard_thresholding import log_rounds
from userdp.high_dimensional.peeling import Peeling, PeelingAccounting
from userdp.problems.base import Vector
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


class SparseRounds(UserLevelStrategy):
    """Rounds of one gradient step on fresh users, of which peeling keeps s entries."""

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

    @abstractmethod
    def _truncate(self) -> tuple[float, dict[str, float | int | str]]:
        """Fixes the truncation; returns the largest coordinate of a record's gradient, and numbers for the plan."""

    @abstractmethod
    def _size(self) -> float:
        """Largest l2 norm of a model."""

    @abstractmethod
    def _computation(self) -> Computation:
        """What a user sends: a vector whose coordinates (or those of its samples) are bounded."""

    @abstractmethod
    def _gradient(self, total: Vector) -> Vector:
        """The estimated gradient from the sum of what users sent."""

    def _settle(self, x: Vector) -> Vector:
        """The model that a peeled one becomes: post-processing."""
        return self.problem.domain.project(x)

    def _make_plan(self) -> Plan:
        options, users = self.options, self.public.users
        records = self._records()
        self._sparsity = min(options.sparsity, self.problem.dimension)
        rounds = min(log_rounds(records), users) if options.rounds is None else options.rounds
        if rounds > users:
            raise BadInput(f"strategy.rounds = {rounds}: each takes users of its own, and there are {users}")
        self._rounds = rounds
        self._sampler = DisjointBatches(users, users // rounds, 1, self.seed)
        self._divisor = records * self._sampler.batch / users
        self._rate = options.learning_rate or 2 / (
            3 * (options.smoothness or self.problem.certificate.smoothness or 1.0)
        )
        bound, numbers = self._truncate()
        self._peeling = self._peel(2 * bound * self._rate / self._divisor)
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=self._sampler.batch,
            users=users,
            users_needed=rounds,
            guarantee=self._promise(),
            noise=self._noise_norm(),
            signal=self._size(),
            numbers={
                "model_sparsity": self._sparsity,
                **numbers,
                "learning_rate": self._rate,
                "sup_sensitivity_of_a_step": self._peeling.sensitivity,
                "noise_scale": self._peeling.scale,
                "selection_noise": self._selection_noise(),
            },
            warnings=self._warnings(),
        )

    def _records(self) -> int:
        """Records that a mean is over: users, or samples."""
        return self.public.records(self.privacy.unit, self.name)

    def _peel(self, sensitivity: float) -> Peeling:
        return Peeling(self._sparsity, sensitivity, self.privacy.epsilon, self.privacy.delta, self.options.accounting)

    def _noise_norm(self) -> float:
        """Of s independent Laplace noises: the root of the expected square."""
        return math.sqrt(2 * self._sparsity) * self._peeling.scale

    def _selection_noise(self) -> float:
        """About the largest of the d noises among which entries are chosen."""
        return self._peeling.scale * math.log(max(2, self.problem.dimension))

    def _warnings(self) -> tuple[str, ...]:
        size, entry = self._size(), self._size() / math.sqrt(self._sparsity)
        mend = "bring more users, raise privacy.epsilon, or lower strategy.sparsity or strategy.rounds"
        if self._noise_norm() >= size:
            return (
                f"the noise of the released model ({self._noise_norm():.3g}) is as long as models can be ({size:.3g}): "
                f"the zero model is expected to be better; {mend}",
            )
        if self._selection_noise() >= entry:
            return (
                f"the largest noise of a selection ({self._selection_noise():.3g}) exceeds a typical entry of "
                f"the model ({entry:.3g}): wrong entries may be chosen; {mend}",
            )
        return ()

    def _promise(self) -> Guarantee:
        kind = "pure composition" if self._peeling.pure else "zero-concentrated privacy"
        return Guarantee(
            unit=self.privacy.unit,
            relation="replace_one",
            epsilon=epsilon_of(self._peeling.cost, 1, self.privacy.delta),
            delta=self.privacy.delta,
            accountant=f"{kind} of peeling, parallel over disjoint users",
            adversary="against other nodes and whoever sees every iterate; the server is trusted",
            assumptions=(
                "n and who takes part are public",
                *(("the number of samples is public",) if self.privacy.unit == "sample" else ()),
                "nodes truncate as told, and the server is trusted",
            ),
            holds=True,
        )

    def _make_ledger(self) -> Ledger:
        return Ledger(self.public.users, self._peeling.cost, 1, self.privacy)

    def _ask(self, index: int) -> Request:
        return Request(self._sampler.cohort(index), self._computation())

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        peeled = self._peeling.release(x - self._rate * self._gradient(gathered.values), self._noise(index))
        self.facts = {"noise_scale": self._peeling.scale}
        following = self._settle(peeled)
        return following, following
