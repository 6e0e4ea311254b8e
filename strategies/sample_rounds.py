"""What sample-level strategies share that sum over samples: public numbers, the output, epsilons at both units."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from strategies.plan import Plan, sampler_numbers
from strategies.sample_level import SampleLevel, SampleLevelOptions
from userdp.accounting import Guarantee
from userdp.averaged_clipping import Setting
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.sampling import Sampler

Calibration = Literal["accountant", "paper"]
Numbers = dict[str, float | int | str]


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


class SampleRounds(SampleLevel):
    """Rounds that sum over samples and divide by a public number of them."""

    needs: ClassVar[str] = "any loss; public number of samples"
    set_by_smoothness: ClassVar[str] = "its clip"
    adversary: ClassVar[str] = "against other nodes and whoever sees every iterate; the server is trusted"
    meanings: ClassVar[Mapping[str, str]] = {
        "accounted_epsilon": "what noise by the paper's formula really costs, by an accountant",
    }
    options: SampleRoundsOptions

    @property
    def _samples(self) -> int:
        return self._public("samples")

    @property
    def _half_step(self) -> float:
        """1 / (2 smoothness); half where no smoothness is known."""
        return 1 / (2 * (self.options.smoothness or self.problem.certificate.smoothness or 1.0))

    def _corner(self) -> float:
        """From the centre of the domain to its corners."""
        return float(self.problem.domain.radius * math.sqrt(self.problem.dimension))

    def _noise_norm(self, mechanism: GaussianMechanism) -> float:
        """l2 norm that the noise of a round is expected to have."""
        return mechanism.standard_deviation * math.sqrt(self.problem.dimension)

    def _planned(
        self,
        rounds: int,
        guarantee: Guarantee,
        mechanism: GaussianMechanism,
        *,
        signal: float,
        numbers: Numbers,
        costs: Numbers,
        warnings: Sequence[str],
        group: int | None = None,
        cohort: int | None = None,
    ) -> Plan:
        """The plan, with the numbers that all have: noise, samples, and how many of them the promise covers at once."""
        users = self.public.users
        noise: Numbers = {
            "group": self._group if group is None else group,
            "samples": self._samples,
            "noise_multiplier": mechanism.noise_multiplier,
            "l2_sensitivity": mechanism.l2_sensitivity,
            "noise_deviation": mechanism.standard_deviation,
        }
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=users if cohort is None else cohort,
            users=users,
            users_needed=1,
            guarantee=guarantee,
            noise=self._noise_norm(mechanism),
            signal=signal,
            numbers=numbers | noise | costs | self._relation_numbers(guarantee),
            warnings=tuple(warnings),
        )

    def _promise(self, multiplier: float) -> Guarantee:
        """What the accountant finds for the rounds as they are drawn."""
        made = self._sampler.guarantee(multiplier, self.privacy.delta, self.adversary, self._assumptions())
        # What protects a user protects each of its samples, never the other way.
        return replace(made, unit=self.privacy.unit) if made.unit == "user" else made

    def _assumptions(self) -> tuple[str, ...]:
        """Beyond those of the sampler."""
        return ("the number of samples is public", "nodes compute as told, and the server is trusted")

    def _uncertified(self, multiplier: float) -> tuple[Guarantee, Numbers]:
        """No promise for noise by the paper's formula, and what it really costs."""
        return self._not_certified(self._sampler.epsilon(multiplier, self.privacy.delta))

    def _not_certified(self, spent: float) -> tuple[Guarantee, Numbers]:
        reason = (
            "noise by the paper's formula is for reproducing rates and is not certified; the accountant finds "
            f"epsilon = {spent:.4g} where {self.privacy.epsilon:g} was asked for"
        )
        return Guarantee.none(reason), {"accounted_epsilon": spent}

    def _both_units(self, multiplier: float, sample: Sampler, user: Sampler | None) -> Numbers:
        """Epsilons for one sample and for a whole user, side by side."""
        numbers: Numbers = {"sample_level_epsilon": sample.epsilon(multiplier, self.privacy.delta)}
        if user is not None:
            numbers["user_level_epsilon"] = user.epsilon(multiplier, self.privacy.delta)
        return numbers

    def _relation_numbers(self, guarantee: Guarantee) -> Numbers:
        return sampler_numbers(self._sampler, guarantee) if guarantee.holds else {}


class TheoryRounds(SampleRounds):
    """Rounds whose clips follow from public constants of the loss."""

    options: TheoryOptions

    def _setting(self, spread: float = 1.0) -> Setting:
        """The constants; ``spread`` scales the distance that the domain allows, where none is declared."""
        options, radius = self.options, self.options.radius or spread * self._corner()
        if not math.isfinite(radius):
            raise BadInput(
                f"strategy.radius must be declared: {self.name} sets its clip by it, and the domain is unbounded"
            )
        return Setting(
            samples=self._samples,
            dimension=self.problem.dimension,
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            radius=radius,
            smoothness=self._smoothness(),
            deviation=options.deviation,
            failure=options.failure,
            constant=options.noise_constant,
        )
