"""Sparse models: rounds of one gradient step on a fold of users, of which peeling keeps a few entries."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pydantic import Field

from strategies import Fact, Given, NoisyPhase, Number, Outline, Phases, StrategyOptions
from strategies.baselines.high_dimensional.hard_thresholding import log_rounds
from strategies.baselines.peeling import Peeling, PeelingAccounting
from strategies.baselines.propose_then_release import ProposeThenRelease
from strategies.baselines.samples.sample_options import records_of
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.nodes import Computation
from userdp.noise import Scores
from userdp.sampling import DisjointBatches

MEANINGS: Mapping[str, str] = {
    "model_sparsity": "most entries of the model that are not zero",
    "noise_scale": "scale of the noise of selecting entries and of releasing them",
    "selection_noise": "about the largest noise among the entries that are selected from",
    "sup_sensitivity_of_a_step": "most that one user can move a robust gradient (sup norm)",
}
NOTES: Mapping[str, Fact] = {"noise_scale": Fact("public", "scale of the noise of selecting and releasing entries")}


class Folds(NamedTuple):
    """Disjoint folds of users, one a round: T, records (users or samples) in all and, m, in each, and who is in it."""

    rounds: int
    records: int
    size: float
    sampler: DisjointBatches


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

    def folds(self, given: Given) -> Folds:
        """The folds of ``rounds``, or of theory; `BadInput` for more rounds than users, or no sample count."""
        users, records = given.users, records_of(given)
        rounds = min(log_rounds(records), users) if self.rounds is None else self.rounds
        if rounds > users:
            raise BadInput(f"strategy.rounds = {rounds}: each takes users of its own, and there are {users}")
        sampler = DisjointBatches(users, users // rounds, 1, given.seed)
        return Folds(rounds, records, records * sampler.batch / users, sampler)

    def peeling(self, given: Given, sensitivity: float) -> Peeling:
        """Peeling of steps of this sensitivity, with all of the budget."""
        entries = min(self.sparsity, given.dimension)
        return Peeling(entries, sensitivity, given.privacy.epsilon, given.privacy.delta, self.accounting)


def peeled_rounds(
    given: Given,
    options: SparseRoundsOptions,
    folds: Folds,
    bound: float,
    computation: Computation,
    *,
    gradient: Callable[[Vector], Vector],
    settle: Callable[[Vector], Vector],
    size: float,
    numbers: Mapping[str, Number],
) -> ProposeThenRelease:
    """The scheme of peeled steps.

    No coordinate of a record's gradient exceeds ``bound``. ``gradient`` makes the estimate from the sum of what users
    send, ``settle`` the model from a peeled one; no model is longer than ``size`` (l2 norm).
    """
    rate = options.learning_rate or 2 / (3 * (options.smoothness or given.problem.certificate.smoothness or 1.0))
    moved = 2 * bound / folds.size  # by a replaced record, in each coordinate of the mean
    peeling = options.peeling(given, 2 * bound * rate / folds.size)
    # The root of the expected square of s independent Laplace noises, and about the largest of d.
    noise = math.sqrt(2 * peeling.sparsity) * peeling.scale
    selection = peeling.scale * math.log(max(2, given.dimension))
    kind = "pure composition" if peeling.pure else "zero-concentrated privacy"
    counted = ("the number of samples is public",) if given.privacy.unit == "sample" else ()
    assumptions = (DisjointBatches.assumption, *counted, "nodes truncate as requested, and the server is trusted")
    step = NoisyPhase(steps=1, rate=rate, deviation=noise / math.sqrt(given.dimension))
    return ProposeThenRelease(
        price=given.price_of(peeling.cost, f"{kind} of peeling, parallel over disjoint users", assumptions),
        outline=Outline(
            rounds=folds.rounds,
            cohort=folds.sampler.batch,
            users_needed=folds.rounds,
            path=Phases((step,) * folds.rounds, size),
            noise=noise,
            signal=size,
            numbers={
                "model_sparsity": peeling.sparsity,
                **numbers,
                "learning_rate": rate,
                "sup_sensitivity_of_a_step": peeling.sensitivity,
                "noise_scale": peeling.scale,
                "selection_noise": selection,
            },
            warnings=_drowned_model(noise, selection, size, peeling.sparsity),
        ),
        cohorts=folds.sampler,
        query=lambda _: computation,
        propose=lambda x, total: Scores(x - rate * gradient(total), rate * moved),
        mechanism=peeling,
        follow=lambda index, x, peeled: (settle(peeled), {"noise_scale": peeling.scale}),
    )


def _drowned_model(noise: float, selection: float, size: float, sparsity: int) -> tuple[str, ...]:
    """The warning that noise is as long as models can be, or may choose wrong entries, if it is or may."""
    entry = size / math.sqrt(sparsity)
    if noise >= size:
        lost = (
            f"the noise of the released model ({noise:.3g}) is as long as models can be ({size:.3g}): the zero model "
            "is expected to be better"
        )
    elif selection >= entry:
        lost = (
            f"the largest noise of a selection ({selection:.3g}) exceeds a typical entry of the model ({entry:.3g}): "
            "wrong entries may be chosen"
        )
    else:
        return ()
    return (f"{lost}; bring more users, raise privacy.epsilon, or lower strategy.sparsity or strategy.rounds",)
