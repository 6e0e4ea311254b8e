"""Rounds over drawn batches of samples: settings, promises, and numbers of plans."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from strategies import Given, MeanRounds, Number, Price
from strategies.baselines.samples.poisson_samples import PoissonSamples
from strategies.baselines.samples.sample_options import SampleLevelOptions, rounds_by_theory, samples_of
from userdp.accounting import Guarantee
from userdp.mechanisms import GaussianMechanism
from userdp.nodes import Computation
from userdp.sampling import Sampler

log = logging.getLogger("userdp")

BATCH_MEANING: Mapping[str, str] = {"sample_batch": "samples per round, expected; the public divisor"}


class SampleRateOptions(SampleLevelOptions):
    """Settings of strategies whose theory sets the step size."""

    learning_rate: float | None = Field(None, gt=0, description="Step size; by the theory in use if not given.")


class BatchOptions(SampleRateOptions):
    """Settings of strategies that draw batches of samples and clip."""

    rounds: int | None = Field(None, ge=1, description="N; by theory (at most max_rounds) if not given.")
    max_rounds: int = Field(200, ge=1, description="Cap on the number of rounds where it is not given.")
    batch: int | None = Field(None, ge=1, description="m, expected samples per round; the public divisor.")
    clip_norm: float | None = Field(None, gt=0, description="l2 clip; by theory (1 for samples) if not given.")
    radius: float | None = Field(
        None, gt=0, description="R, bound on the l2 distance from start to minimiser; from the domain if not given."
    )
    calibration: Literal["accountant", "paper"] = Field(
        "accountant",
        description="accountant: certified noise. paper: the closed form with noise_constant, to reproduce rates; it "
        "gives NO guarantee.",
    )
    noise_constant: float = Field(1.0, gt=0, description="c of the paper's closed form.")

    def wanted_rounds(self, wanted: Callable[[], float]) -> tuple[int, tuple[str, ...]]:
        """See `rounds_by_theory`."""
        return rounds_by_theory(self.rounds, wanted, self.max_rounds)

    def drawn(
        self,
        given: Given,
        sampler: Sampler,
        mechanism: GaussianMechanism,
        rate: float,
        rests_on: tuple[str, ...],
        *,
        numbers: Mapping[str, Number],
        **outline: Any,
    ) -> MeanRounds:
        """Return the rounds of `followed`, with the promise that ``calibration`` allows and its epsilons."""
        price, numbers = self.promised(given, sampler, mechanism, rests_on, numbers)
        return self.followed(given, sampler, mechanism, rate, price=price, numbers=numbers, **outline)

    def promised(
        self,
        given: Given,
        sampler: Sampler,
        mechanism: GaussianMechanism,
        rests_on: tuple[str, ...],
        numbers: Mapping[str, Number],
        spent: float | None = None,
    ) -> tuple[Price, Mapping[str, Number]]:
        """Return the price that ``calibration`` allows, and the plan's numbers with its epsilons.

        ``spent`` is what noise by the paper's formula costs, where it differs from round to round.
        """
        multiplier = mechanism.noise_multiplier
        costs = epsilons(given, sampler, multiplier) if spent is None else {}
        if self.calibration == "paper":
            spent = sampler.epsilon(multiplier, given.privacy.delta) if spent is None else spent
            costs["accounted_epsilon"] = spent
        price = price_of(given, sampler, multiplier, rests_on, spent)
        return price, {
            **numbers,
            **noise_numbers(given, mechanism, drawn_apart(sampler)),
            **costs,
            **promised_numbers(sampler, price.guarantee, multiplier),
        }


def price_of(
    given: Given, sampler: Sampler, multiplier: float, rests_on: tuple[str, ...], spent: float | None = None
) -> Price:
    """Return the price for the unit asked for (see `Given.price`); no promise for noise by the paper's formula.

    ``rests_on`` are assumptions beyond the sampler's own; ``spent`` is the epsilon that noise by the paper's formula
    really costs, None where noise is certified.
    """
    if spent is not None:
        return Price.none(
            "noise by the paper's formula is for reproducing rates and is not certified; the accountant finds "
            f"epsilon = {spent:.4g} where {given.privacy.epsilon:g} was asked for"
        )
    price = given.price(sampler, multiplier, rests_on)
    # What protects a user protects each of its samples, never the other way.
    if price.guarantee.unit == "user":
        price = replace(price, guarantee=replace(price.guarantee, unit=given.privacy.unit))
    return price


def drawn_apart(sampler: Sampler) -> int:
    """Samples of a user that are drawn apart from each other; 1 where samples are protected, or users drawn whole."""
    return sampler.group if isinstance(sampler, PoissonSamples) else 1


def sample_rate(sampler: Sampler) -> float:
    """The chance of a sample to be drawn; 1 where whole users are."""
    return sampler.rate if isinstance(sampler, PoissonSamples) else 1.0


def sample_sum(sampler: Sampler, index: int) -> Computation:
    """The sum of the gradients of the samples drawn in round ``index``, without a clip; of all if users are drawn."""
    coins = sampler.coins(index) if isinstance(sampler, PoissonSamples) else None
    return Computation("sample_sum", reduce="sum", coins=coins)


def noise_numbers(given: Given, mechanism: GaussianMechanism, group: int) -> dict[str, Number]:
    """Return the numbers of a plan about its noise, N, and the samples that the promise covers at once."""
    return {
        "group": group,
        "samples": samples_of(given),
        "noise_multiplier": mechanism.noise_multiplier,
        "l2_sensitivity": mechanism.l2_sensitivity,
        "noise_deviation": mechanism.standard_deviation,
    }


def epsilons(given: Given, sampler: Sampler, multiplier: float) -> dict[str, Number]:
    """Epsilons for one sample and for a whole user, side by side; that of a user where it can be known."""
    delta, most = given.privacy.delta, given.public.max_samples
    if not isinstance(sampler, PoissonSamples):
        epsilon = sampler.epsilon(multiplier, delta)
        return {"sample_level_epsilon": epsilon, "user_level_epsilon": epsilon}
    numbers: dict[str, Number] = {"sample_level_epsilon": replace(sampler, most=None).epsilon(multiplier, delta)}
    if most is not None:
        numbers["user_level_epsilon"] = replace(sampler, most=most).epsilon(multiplier, delta)
    return numbers


def promised_numbers(sampler: Sampler, guarantee: Guarantee, multiplier: float) -> dict[str, float]:
    """Return `Sampler.numbers`; none if nothing is promised."""
    return sampler.numbers(multiplier, guarantee) if guarantee.holds else {}


def clamped_batch(batch: int, samples: int) -> int:
    """Return ``batch``, at most ``samples``: formulas may ask for more than there are."""
    if batch > samples:
        log.warning("a batch of %d samples was asked for where there are %d: every sample is in it", batch, samples)
    return min(batch, samples)


def balanced_batch(samples: int) -> int:
    """The batch that balances one pass over N samples, ``sqrt(N)``."""
    return max(1, round(math.sqrt(samples)))
