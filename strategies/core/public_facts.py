"""Public facts about the users, and everything that a recipe makes its scheme from."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from strategies.wire.wire import Wire
from userdp.accounting import AnyLedger, Cost, Guarantee, Ledger, Privacy, epsilon_of
from userdp.data.coefficients import CoefficientMap
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.noise import rounding_slack
from userdp.problems.base import Problem
from userdp.problems.bounds import count
from userdp.sampling import Sampler

MOST_USERS = 10**9


@dataclass(frozen=True)
class PublicFacts:
    """Public facts about the users: the plan and the privacy proof use these numbers and nothing else.

    Attributes:
        users: n.
        min_samples: fewest samples that a user holds.
        max_samples: most samples that a user holds (contribution bound).
        samples: N, samples of all users together; sample-level strategies divide by it.
        reading: the coefficients that people read off a linear model, by the declared columns; None if none are
            declared.
        assumptions: what the guarantee rests on beside the strategy's own assumptions, one sentence each.
        user_is: the words in which the guarantee says who a user is, where it is no person.
    """

    users: int
    min_samples: int = 1
    max_samples: int | None = None
    samples: int | None = None
    reading: CoefficientMap | None = field(default=None, compare=False)
    assumptions: tuple[str, ...] = ()
    user_is: str | None = None

    def __post_init__(self) -> None:
        for name in ("users", "min_samples", "max_samples", "samples"):
            if (value := getattr(self, name)) is not None or name in ("users", "min_samples"):
                count(f"data.{name}", value)
        if self.users > MOST_USERS:
            raise BadInput(f"data.users = {self.users}: give the number of users who take part, 1 to {MOST_USERS:,}")
        if self.max_samples is not None and self.max_samples < self.min_samples:
            raise BadInput(f"data.max_samples = {self.max_samples} lies below data.min_samples = {self.min_samples}")


@dataclass(frozen=True)
class Price:
    """The promise and the cost of all rounds of a scheme together, and how rounding moves what they release."""

    guarantee: Guarantee
    ledger: Callable[[Privacy], AnyLedger]  # makes the ledger of the rounds; not called without a guarantee
    summands: int | None = None  # most vectors that one release adds up, for the rounding of sums; n if not given
    spread: float = 1.0  # largest norm of such a vector over the sum's sensitivity (see `userdp.noise.rounding_slack`)
    rounding: float = 0.0  # relative growth of a release's sensitivity by rounding, where it is no such sum

    @classmethod
    def none(cls, reason: str) -> "Price":
        """Return the price of rounds that promise nothing, and why."""
        return cls(Guarantee.none(reason), _no_ledger)

    def rounding_slack(self, users: int) -> float:
        """Return how much rounding adds to sensitivities, relatively. Raises `BadInput`: too much for secure noise."""
        return rounding_slack(self.summands or users, self.spread, self.rounding)


def _no_ledger(privacy: Privacy) -> AnyLedger:
    raise BadInput("no privacy guarantee: there is no budget to charge rounds to")


@dataclass(frozen=True)
class Given:
    """Everything that a recipe makes its scheme from; no users' data."""

    strategy: str
    adversary: str  # who may see what and who is trusted, as the strategy declares
    problem: Problem
    public: PublicFacts
    privacy: Privacy  # the budget of the strategy's own rounds
    seed: int = field(repr=False)  # of sampling, and if it was given of simulated noise
    wire: Wire

    @property
    def users(self) -> int:
        """The public number of users, n."""
        return self.public.users

    @property
    def dimension(self) -> int:
        """The number of the model's parameters, p."""
        return self.problem.dimension

    @property
    def secure(self) -> bool:
        """Noise comes from the operating system."""
        return self.privacy.noise == "secure"

    @property
    def secret_seed(self) -> int | None:
        """The seed of cohorts that must stay secret; None, for the operating system, where noise is secure."""
        return None if self.secure else self.seed

    @property
    def default_step(self) -> float:
        """The step size 1 / curvature; one half where nothing bounds the curvature, or the loss is linear."""
        return 1 / (self.problem.curvature or 2.0)

    def promise(self, epsilon: float, accountant: str, assumptions: Iterable[str]) -> Guarantee:
        """Return the guarantee of a scheme under replace-one, for the budget's unit."""
        return Guarantee(
            unit=self.privacy.unit,
            relation="replace_one",
            epsilon=epsilon,
            delta=self.privacy.delta,
            accountant=accountant,
            adversary=self.adversary,
            assumptions=tuple(assumptions),
            holds=True,
        )

    def mean_mechanism(self, sampler: Sampler, clip_norm: float) -> GaussianMechanism:
        """Return the mechanism of the mean of a cohort's vectors of l2 norm at most ``clip_norm``.

        Raises `BadInput`: the sampler cannot keep to the budget.
        """
        return sampler.mean_mechanism(clip_norm, sampler.calibrate(self.privacy.epsilon, self.privacy.delta))

    def price(self, sampler: Sampler, multiplier: float, rests_on: tuple[str, ...] | None = None) -> Price:
        """Return the price of rounds that one sampler draws and accounts.

        ``multiplier`` is noise over sensitivity; ``rests_on`` holds assumptions beyond the sampler's own, by default
        those of clipping on this wire.
        """
        rests_on = self.wire.clipping if rests_on is None else rests_on
        guarantee = sampler.guarantee(multiplier, self.privacy.delta, self.adversary, rests_on)
        return Price(guarantee, partial(sampler.ledger, multiplier))

    def price_of(self, cost: Cost, accountant: str, assumptions: Iterable[str], times: int = 1) -> Price:
        """Return the price of rounds of that cost, in so many of which each user takes part, under replace-one."""
        promise = self.promise(epsilon_of(cost, times, self.privacy.delta), accountant, assumptions)
        return Price(promise, partial(Ledger, self.users, cost, times))
