"""Sums over samples, divided by a public number of them: settings, promises, and numbers of plans."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pydantic import Field

from strategies.core.mean_rounds import sampler_numbers
from strategies.core.scheme import Number, no_ledger
from strategies.samples.sample_strategy import OutputAverage, Rounds, SampleLevelOptions, SampleScheme, SampleStrategy
from strategies.wire.replies import Request
from userdp.accounting import Guarantee
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.papers.averaged_clipping.parameters import TheoryConstants
from userdp.sampling import PoissonSamples, Sampler
from userdp.sampling.coins import SampleCoins

Calibration = Literal["accountant", "paper"]


class SampleRoundsOptions(SampleLevelOptions):
    """Settings of every strategy here."""

    learning_rate: float | None = Field(None, gt=0, description="Step size; by the theory in use if not given.")


class BatchOptions(SampleRoundsOptions):
    """Settings of strategies that draw batches of samples and clip."""

    rounds: int | None = Field(None, ge=1, description="N; by theory (at most max_rounds) if not given.")
    max_rounds: int = Field(200, ge=1, description="Cap on the number of rounds where it is not given.")
    batch: int | None = Field(None, ge=1, description="m, expected samples a round; the public divisor.")
    clip_norm: float | None = Field(None, gt=0, description="l2 clip; by theory (1 for samples) if not given.")
    radius: float | None = Field(
        None, gt=0, description="R, bound on the l2 distance from start to minimiser; from the domain if not given."
    )
    calibration: Calibration = Field(
        "accountant",
        description="accountant: certified noise. paper: the closed form with noise_constant, to reproduce rates; it "
        "gives NO guarantee.",
    )
    noise_constant: float = Field(1.0, gt=0, description="c of the paper's closed form.")


class TheoryOptions(BatchOptions):
    """Settings of strategies that clip to a level of the theory."""

    deviation: float = Field(1.0, gt=0, description="sigma: E ||sample gradient - its mean||^2 <= sigma^2.")
    failure: float = Field(0.1, gt=0, lt=1, description="beta, the chance that a risk bound fails.")


# Promises ------------------------------------------------------------------------------------------------------------


def promised(
    strategy: SampleStrategy,
    sampler: Sampler,
    multiplier: float,
    assumptions: Iterable[str],
    spent: float | None = None,
) -> Guarantee:
    """What the accountant finds for rounds as they are drawn; nothing for noise by the paper's formula.

    Args:
        strategy: whose rounds.
        sampler: who takes part.
        multiplier: noise over sensitivity.
        assumptions: beyond the sampler's own.
        spent: epsilon that noise by the paper's formula really costs; None where noise is certified.
    """
    if spent is not None:
        return Guarantee.none(
            "noise by the paper's formula is for reproducing rates and is not certified; the accountant finds "
            f"epsilon = {spent:.4g} where {strategy.privacy.epsilon:g} was asked for"
        )
    made = sampler.guarantee(multiplier, strategy.privacy.delta, strategy.adversary, tuple(assumptions))
    # What protects a user protects each of its samples, never the other way.
    return replace(made, unit=strategy.privacy.unit) if made.unit == "user" else made


# Rounds that draw batches --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DrawnScheme(SampleScheme):
    """A `SampleScheme` of batches as a sampler draws and accounts them.

    Attributes:
        sampler: who takes part in each round.
        accounted: epsilon that noise by the paper's formula really costs; None where noise is certified.
    """

    sampler: Sampler
    accounted: float | None

    @property
    def group(self) -> int:
        """Samples of a user that are drawn apart from each other, and that the promise covers at once."""
        return drawn_apart(self.sampler)


def drawn_scheme(
    strategy: SampleStrategy,
    options: BatchOptions,
    sampler: Sampler,
    mechanism: GaussianMechanism,
    assumptions: Iterable[str],
    *,
    chosen: Rounds,
    clip: float,
    divisor: float,
    rate: float,
) -> DrawnScheme:
    """The scheme of these parts, with the promise that ``options.calibration`` allows."""
    multiplier, by_paper = mechanism.noise_multiplier, options.calibration == "paper"
    spent = sampler.epsilon(multiplier, strategy.privacy.delta) if by_paper else None
    promise = promised(strategy, sampler, multiplier, assumptions, spent)
    return DrawnScheme(
        guarantee=promise,
        ledger=partial(sampler.ledger, multiplier) if promise.holds else no_ledger,
        new_memory=partial(OutputAverage, options.output, strategy.problem.dimension),
        chosen=chosen,
        clip=clip,
        divisor=divisor,
        mechanism=mechanism,
        rate=rate,
        sampler=sampler,
        accounted=spent,
    )


def drawn_apart(sampler: Sampler) -> int:
    """Samples of a user that are drawn apart from each other; 1 where samples are protected, or users drawn whole."""
    return sampler.group if isinstance(sampler, PoissonSamples) else 1


def coins_of(sampler: Sampler, index: int) -> SampleCoins | None:
    """What nodes draw the samples of round ``index`` by; None where whole users are drawn."""
    return sampler.coins(index) if isinstance(sampler, PoissonSamples) else None


def sample_sums(sampler: Sampler, index: int) -> Request:
    """Asks those drawn in round ``index`` for the sum of the gradients of their drawn samples, without a clip."""
    return Request(sampler.cohort(index), Computation("sample_sum", reduce="sum", coins=coins_of(sampler, index)))


# Numbers -------------------------------------------------------------------------------------------------------------


def noise_numbers(strategy: SampleStrategy, mechanism: GaussianMechanism, group: int) -> dict[str, Number]:
    """What a plan prints of its noise, of N, and of how many samples the promise covers at once."""
    return {
        "group": group,
        "samples": strategy.samples,
        "noise_multiplier": mechanism.noise_multiplier,
        "l2_sensitivity": mechanism.l2_sensitivity,
        "noise_deviation": mechanism.standard_deviation,
    }


def cost_numbers(strategy: SampleStrategy, scheme: DrawnScheme) -> dict[str, Number]:
    """What a plan prints of its costs: at both units, of noise that is not certified, and for replacing a record."""
    numbers = epsilons(strategy, scheme.sampler, scheme.mechanism.noise_multiplier)
    if scheme.accounted is not None:
        numbers["accounted_epsilon"] = scheme.accounted
    return numbers | promised_numbers(scheme.sampler, scheme.guarantee)


def epsilons(strategy: SampleStrategy, sampler: Sampler, multiplier: float) -> dict[str, Number]:
    """Epsilons for one sample and for a whole user, side by side; that of a user where it can be known."""
    delta, most = strategy.privacy.delta, strategy.public.max_samples
    if not isinstance(sampler, PoissonSamples):
        epsilon = sampler.epsilon(multiplier, delta)
        return {"sample_level_epsilon": epsilon, "user_level_epsilon": epsilon}
    numbers: dict[str, Number] = {"sample_level_epsilon": replace(sampler, most=None).epsilon(multiplier, delta)}
    if most is not None:
        numbers["user_level_epsilon"] = replace(sampler, most=most).epsilon(multiplier, delta)
    return numbers


def promised_numbers(sampler: Sampler, guarantee: Guarantee) -> dict[str, Number]:
    """Those of `sampler_numbers`, where anything is promised."""
    return sampler_numbers(sampler, guarantee) if guarantee.holds else {}


# Theory --------------------------------------------------------------------------------------------------------------


def theory_constants(
    strategy: SampleStrategy, options: TheoryOptions, smoothness: float, spread: float = 1.0
) -> TheoryConstants:
    """Public constants of the loss; ``spread`` scales the distance that the domain allows, where none is declared.

    Raises:
        BadInput: no radius is declared, and the domain has none.
    """
    radius = options.radius or spread * strategy.corner
    if not math.isfinite(radius):
        raise BadInput(
            f"strategy.radius must be declared: {strategy.name} sets its clip by it, and the domain is unbounded"
        )
    return TheoryConstants(
        samples=strategy.samples,
        dimension=strategy.problem.dimension,
        epsilon=strategy.privacy.epsilon,
        delta=strategy.privacy.delta,
        radius=radius,
        smoothness=smoothness,
        deviation=options.deviation,
        failure=options.failure,
        constant=options.noise_constant,
    )


def balanced_batch(samples: int) -> int:
    """The batch that balances one pass over N samples, ``sqrt(N)``."""
    return max(1, round(math.sqrt(samples)))
