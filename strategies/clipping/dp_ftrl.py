"""Follow the regularised leader on privately released sums of gradients, with noise correlated over rounds."""

import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from strategies.clipping.clip_facts import CLIP_FACTS, ClipNotes
from strategies.core.about import About, Fact
from strategies.core.mean_rounds import Descent, MeanRounds
from strategies.core.options import Found, PreparedOptions
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.core.scheme import Number, Outline
from userdp.accounting import Relation
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.mechanisms.prefix_sums import PrefixSums
from userdp.mechanisms.toeplitz import FactorisationName
from userdp.nodes.computations import Computation
from userdp.problems.noise_paths import NoisyRelease
from userdp.sampling import AmplifiedBands, CorrelatedBatches
from userdp.sampling.amplified_bands import BANDED, best_bands


class FromStart(Descent):
    """Steps from the start, against the sum of all gradients, which its mechanism releases."""

    remembered: ClassVar[tuple[str, ...]] = ("start",)
    parts: ClassVar[tuple[str, ...]] = ("mechanism",)

    def __init__(self, rate: float, mechanism: PrefixSums) -> None:
        super().__init__(rate)
        self.start: Vector | None = None
        self.mechanism = mechanism

    def step(self, x: Vector, gradient: Vector, deviation: float) -> Vector:
        if self.start is None:
            self.start = x
        return self.start - self.rate * gradient


class DPFTRL(Recipe, PreparedOptions):
    """Steps by the noisy SUM of all clipped gradients so far: ``x_t = project(x_0 - rate (sum_{s<=t} g_s + noise_t))``.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole
    user; relation: replace-one, n public. Each user's average gradient is clipped to l2 norm C, so replacing a user
    moves the sum of a round in which it takes part by at most 2C; cohorts are cyclic, so those rounds are fixed and
    equally far apart. All prefix sums are released by one factorisation ``A = B C`` with noise ``B Z``, calibrated
    to the Frobenius norm of what one user can move in all rounds together: the whole run is ONE Gaussian mechanism,
    also though each gradient is taken at the model released before (proof in `userdp.mechanisms.prefix_sums`). No
    amplification by sampling is claimed. With ``sampling = "amplified"`` the relation is add-or-remove, a user
    moving the sum of a round by at most C, or replace-one if so set; `AmplifiedBands` draws and prices the rounds.
    Projection and steps are
    post-processing. The divisor is the planned cohort; a missing or non-finite answer counts as zero. The server is
    trusted.

    *Assumptions.* n and participation are public; of amplified rounds the groups, while coins are secret. The server is
    trusted. Nodes clip as asked; sums that are too large are refused.
    """

    about: ClassVar[About] = About(
        name="dp_ftrl",
        summary_line="sums of clipped user gradients with noise correlated over rounds",
        family="clipping",
        cost="node O(N d), one sum of d numbers up; server O(K d) and d numbers kept for each band, buffer or level of "
        "the noise",
        paper="Kairouz et al. 2021; Fichtenberger, Henzinger, Upadhyay 2023; Choquette-Choo et al. 2023",
        with_secure_noise=(
            "the rows of C G are released with independent noise, prefix sums are computed from them; coins come from "
            "the operating system, once per round"
        ),
        example={"rounds": 4},
        meanings={
            "separation": "rounds between two participations of a user",
            "factorisation": "how noise is correlated over rounds",
        },
        notes={
            "fresh_noise_deviation": Fact(
                "noised",
                "standard deviation of the noise drawn in the round: planned, or in proportion to a released clip",
            ),
            **CLIP_FACTS,
        },
    )

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's average gradient is clipped to.")
    rounds: int = Field(20, ge=1, description="Rounds in all.")
    cohort: int | None = Field(None, ge=1)
    """Users a round, the same partition every epoch; n / rounds (one epoch) if not given."""
    sampling: Literal["cyclic", "amplified"] = "cyclic"
    """cyclic: the same partition every epoch. amplified: groups in turn, and secret coins among a group's users; with
    as many groups as have the least predicted noise."""
    relation: Relation | None = None
    """Neighbouring relation; default replace_one for cyclic, which has no other, and add_or_remove for amplified.
    Add-or-remove promises less, and takes less noise."""
    factorisation: FactorisationName | Literal["best"] = "square_root"
    """Correlation of noise over rounds. best: whichever has the least predicted noise in the last round, from public
    numbers. Mostly that is banded (up to 64 vectors kept) where users return within 64 rounds, and else buffered (four,
    however long the run). The tree is the classic baseline."""
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")

    def found(self, found: Found) -> dict[str, float]:
        return {"clip_norm": found.clip(self.rounds), **found.steps(self.rounds)}

    def _sampler(self, given: Given, cohort: int) -> CorrelatedBatches | AmplifiedBands:
        """Make the sampler.

        Raises `BadInput`: the factorisation has more diagonals than groups can have turns, or the sampling has no price
        for the relation.
        """
        if self.sampling == "cyclic":
            if self.relation == "add_or_remove":
                raise BadInput(
                    "strategy.relation = 'add_or_remove' with sampling = 'cyclic': such cohorts are priced for "
                    "replacing a user; leave it out, or set sampling = 'amplified'"
                )
            return CorrelatedBatches(given.users, cohort, self.rounds, given.seed, self.factorisation)
        kinds = tuple(kind for kind in BANDED if self.factorisation in (kind, "best"))
        if not kinds:
            raise BadInput(
                f"strategy.factorisation = {self.factorisation!r} with sampling = 'amplified': noise must be "
                f"correlated over few rounds; set {', '.join(BANDED)} or best"
            )
        privacy, relation = given.privacy, self.relation or "add_or_remove"
        numbers = given.users, cohort, self.rounds
        bands, kind = best_bands(*numbers, privacy.epsilon, privacy.delta, kinds, relation)
        return AmplifiedBands(*numbers, bands, kind, given.secret_seed, given.seed, relation=relation)

    def scheme(self, given: Given) -> MeanRounds:
        p, clip = given.dimension, self.clip_norm
        cohort = self.cohort or max(1, given.users // self.rounds)
        sampler = self._sampler(given, cohort)
        factorisation, rate = sampler.factorisation, self.learning_rate or given.default_step
        multiplier = sampler.calibrate(given.privacy.epsilon, given.privacy.delta)
        mechanism = GaussianMechanism(sampler.sensitivity_factor * clip / cohort * sampler.sensitivity, multiplier)
        gradient = Computation("user_gradient", reduce="sum", clip_norm=clip, lengths=True)
        last, signal = mechanism.standard_deviation * float(factorisation.deviations()[-1]), self.rounds * clip
        most = cohort if isinstance(sampler, CorrelatedBatches) else given.users
        # Row t of C G adds up to all answers of the run, and errors of T rows together are sqrt(T) times as long.
        # Where an encoder works on its own rows, each round since has rounded an answer a few times more.
        summands, spread = self.rounds * (most + factorisation.recursion), math.sqrt(self.rounds)
        price = replace(given.price(sampler, multiplier), summands=summands, spread=spread)
        return MeanRounds(
            price=price,
            outline=Outline(
                rounds=self.rounds,
                cohort=cohort,
                users_needed=cohort,
                path=NoisyRelease(deviation=rate * last, reach=rate * signal),
                noise=last * math.sqrt(p),
                signal=signal,
                numbers={
                    "clip_norm": clip,
                    "cohort": cohort,
                    **_turns(sampler),
                    **sampler.numbers(multiplier, price.guarantee),
                    "learning_rate": rate,
                    "noise_multiplier": multiplier,
                    "l2_sensitivity": mechanism.l2_sensitivity,
                    "noise_deviation": last,
                },
            ),
            new_memory=lambda: FromStart(rate, PrefixSums(factorisation, mechanism, p, encodes=given.secure)),
            domain=given.problem.domain,
            sampler=sampler,
            query=lambda _: gradient,
            divisor=sampler.expected_batch,
            mechanism=mechanism,
            noted=ClipNotes(clip, mechanism.standard_deviation * math.sqrt(p), "fresh_noise_deviation"),
        )


def _turns(sampler: CorrelatedBatches | AmplifiedBands) -> dict[str, Number]:
    """Return a plan's numbers about the rounds that a user can take part in, and the correlation of their noise."""
    if isinstance(sampler, AmplifiedBands):
        return {"separation": sampler.bands, "rate": sampler.rate, "factorisation": sampler.kind}
    separation = sampler.batches.separation
    return {
        "participations": -(-sampler.rounds // separation),
        "separation": separation,
        "factorisation": sampler.chosen,
    }
