"""A privacy filter: runs and questions about one data set, chosen as one goes along, within one total.

*Formal guarantees.* *Claim.* Let a `Total` be fixed before the first release, and let everything that is released about
the data come from mechanisms that `Total.charged` priced before they began. Then all releases together are (epsilon,
delta)-DP for a user, under the total's relation, up to rounding (a relative 1e-8 of each limit). Mechanisms, their
prices, their order and their number may depend on all earlier releases; they may be interactive and run side by side,
and stop early. (Filters: Rogers, Roth, Ullman, Vadhan 2016; of Renyi privacy Feldman, Zrnic 2021; of Gaussian privacy
Koskela, Tobaben, Honkela 2023; of approximate and zero-concentrated privacy Whitehouse, Ramdas, Rogers, Wu 2023.)

*Why.* Each charge is one of two claims about the mechanism, for every history: it is no worse than a Gaussian with
neighbours at distance mu, or it is (e, d)-DP. Sums of mu^2, of e and of d stay below the limits M, A and B.

1. *Side by side.* A filter that is valid for mechanisms that answer once, one after the other, is valid for interactive
   ones whose questions are interleaved (Haney, Shoemate, Tian, Vadhan, Vyrros, Xu, Zhang 2023, for trade-off
   functions). A mechanism that stops early shows less of what was priced.
2. *One after the other.* Fix a pair of neighbours. P and Q are the laws of what follows a history, and r, a, b the
   limits that are left. ``G(r, c) = Phi(sqrt(r)/2 - c/sqrt(r)) - e^c Phi(-sqrt(r)/2 - c/sqrt(r))``, or ``(1 - e^c)_+``
   at r = 0, is the divergence of a Gaussian at distance sqrt(r). For every real c and every event S, by induction on
   the number of mechanisms that follow, ``P(S) - e^c Q(S) <= G(r, c - a) + b``. With none left the left side is at
   most ``(1 - e^c)_+``, and G falls in c and rises in r. Let the next answer y have densities p and q, and the loss
   l = ln(p / q).
   *A Gaussian claim:* by induction the left side is at most b plus the mean of ``G(r - mu^2, c - a - l(y))`` over p:
   the divergence, at c - a, of the pair (p, q) beside an independent Gaussian at distance sqrt(r - mu^2). The pair is
   a function of a Gaussian's at distance mu (Blackwell; Dong, Roth, Su 2022), two Gaussians are one at distance
   sqrt(r), so the mean is at most G(r, c - a).
   *An (e, d) claim:* p = d p1 + (1 - d) p0, and q alike, with ``|ln(p0 / q0)| <= e`` (Kairouz, Oh, Viswanath 2015). The
   first parts add at most d. Under p0 the bound is at most ``G(r, c - (a - e) - e) + (b - d)``, because G falls in c.
   Together that is G(r, c - a) + b.
3. *The limits.* At the start the bound at c = epsilon is ``G(M, epsilon - A) + B``, where A and B are the share
   ``others`` of epsilon and delta, and M is such that G is at most the rest of delta. Both orders of the neighbours are
   pairs under a symmetric relation, so this is (epsilon, delta)-DP.

The limits cannot follow what was spent. If the delta that Gaussians have not used yet could still be spent on something
else, an analyst would look at a Gaussian's answer first: if its loss came out small, further Gaussians would be worth
nothing, and the delta is spent instead. A test computes such an analyst's advantage.

*Assumptions.* Those of each priced guarantee. Nobody is two users. Prices are computed from public facts alone.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass

from userdp.accounting.checks import check_relation
from userdp.accounting.composition import add_or_remove_to_replace_one
from userdp.accounting.costs import Cost, calibrate_noise, epsilon_of
from userdp.accounting.guarantee import Guarantee, Relation
from userdp.errors import BadInput

ROUNDING = 1e-8
"""The relative excess of a limit that counts as rounding: that of calibrated noise, and of sums."""
_FAINTEST = 1e-9  # Epsilons below are priced as this one.
_LARGEST = 1000.0  # The largest epsilon of a total; calibrated noise is exact up to ten thousand times it.


@dataclass(frozen=True)
class Price:
    """A price in the two parts of a `Total`: Gaussians, and everything else."""

    mu_squared: float = 0.0  # of Gaussians: squared distance of neighbours, in deviations of the noise
    epsilon: float = 0.0  # of all other mechanisms
    delta: float = 0.0  # of all other mechanisms

    @classmethod
    def sum(cls, prices: Iterable["Price"]) -> "Price":
        """Add prices up, with one rounding."""
        return cls(*map(math.fsum, zip(*map(astuple, prices), strict=True)))

    def within(self, limits: "Price") -> bool:
        """Return whether no part exceeds its limit by more than rounding; false for NaN."""
        pairs = zip(astuple(self), astuple(limits), strict=True)
        return all(spent <= limit * (1 + ROUNDING) for spent, limit in pairs)


@dataclass(frozen=True)
class Total:
    """The most that everything released about a data set may cost, fixed before the first release.

    Attributes:
        epsilon: > 0, at most 1000.
        delta: in [0, 1); 0 needs others = 1.
        relation: the neighbouring relation of everything that is priced.
        others: share of epsilon and delta, in [0, 1], that is set aside for mechanisms that are no Gaussians; their
            epsilons and deltas add up. The rest is for Gaussians, whose squared distances add up.

    Raises `BadInput` for a number out of range.
    """

    epsilon: float
    delta: float
    relation: Relation = "replace_one"
    others: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= _LARGEST:
            raise BadInput(f"epsilon = {self.epsilon}: a total must be positive and at most {_LARGEST:g}, such as 4.0")
        if not 0 <= self.delta < 1:
            raise BadInput(f"delta = {self.delta}: must lie between 0 and 1, such as 1e-6; 0 for pure privacy")
        check_relation(self.relation)
        if not 0 <= self.others <= 1:
            raise BadInput(f"others = {self.others}: must be a share between 0 and 1")
        if self.delta == 0 and self.others < 1:
            raise BadInput(
                f"delta = 0 with others = {self.others:g}: Gaussian noise promises no pure privacy; set others = 1, or "
                "a delta such as 1e-6"
            )

    @property
    def limits(self) -> Price:
        """The most that may be spent on Gaussians and on everything else."""
        rest, mu_squared = 1 - self.others, 0.0
        if rest:
            with suppress(BadInput):  # so little that no noise is loud enough
                mu_squared = _mu_squared(rest * self.epsilon, rest * self.delta)
        return Price(mu_squared, self.others * self.epsilon, self.others * self.delta)

    def charged(self, spent: Price, promises: Sequence[Guarantee], times: int = 1, cost: Cost | None = None) -> Price:
        """Return the price of a run within what is left; `BadInput` if it does not fit, or cannot be priced.

        Args:
            spent: the sum of all prices so far.
            promises: the guarantees of the run's parts, which compose.
            times: how many such runs there are.
            cost: of the first part, if it is known what that consists of.
        """
        total, limits = Price(), self.limits
        for index, promise in enumerate(promises):
            for claim in prices(promise, self.relation, None if index else cost):
                price = Price(*(times * part for part in astuple(claim)))
                if Price.sum((spent, total, price)).within(limits):
                    total = Price.sum((total, price))
                    break
            else:
                raise BadInput(self._refusal(spent, promise))
        return total

    def left(self, spent: Price, delta: float) -> float:
        """Return the largest epsilon, at a delta in (0, 1), of one more Gaussian run; 0 if there is none."""
        most = self.limits.mu_squared
        return epsilon_of(Cost((most - spent.mu_squared) ** -0.5), 1, delta) if spent.mu_squared < most else 0.0

    def spent_epsilon(self, spent: Price) -> float:
        """Return the epsilon that was spent, at the total's delta, as if all prices had been fixed beforehand."""
        noise = spent.mu_squared**-0.5 if spent.mu_squared else math.inf
        cost = Cost(noise_multiplier=noise, pure_epsilon=spent.epsilon, failure_delta=spent.delta)
        return epsilon_of(cost, 1, self.delta)

    def _refusal(self, spent: Price, promise: Guarantee) -> str:
        limits, gaussian = self.limits, promise.is_one_gaussian
        said = f"a run of epsilon = {promise.epsilon:.4g}, delta = {promise.delta:.3g}"
        left = self.left(spent, promise.delta) if gaussian else 0.0
        if left:
            return f"{said} exceeds what is left: set privacy.epsilon to at most {left * 0.999:.4g} at that delta"
        if gaussian and limits.mu_squared:
            return f"{said} exceeds what is left: nothing is left for Gaussian noise"
        if limits.epsilon:
            epsilon, delta = (max(0.0, limits.epsilon - spent.epsilon), max(0.0, limits.delta - spent.delta))
            return f"{said} exceeds what is left: epsilon = {epsilon:.4g}, delta = {delta:.3g} for what is no Gaussian"
        return (
            f"{said} is no single Gaussian mechanism, and this total sets nothing aside for others: choose a strategy "
            "such as auto or dp_fed_sgd, or a total with others above 0"
        )


def prices(promise: Guarantee, relation: Relation, cost: Cost | None = None) -> tuple[Price, ...]:
    """Return the prices of a guarantee under a relation, and of its ``cost`` where it is known; any of them covers it.

    A claim of one Gaussian is priced as such, or at its (epsilon, delta). A `Cost` is a Gaussian beside steps of pure
    epsilons that fail with a probability, so it has a share in both parts; a pure epsilon that cannot fail may also be
    priced as the Gaussian at distance ``-2 Phi^-1(1 / (1 + e^epsilon))``: its trade-off function is convex and meets
    that of epsilon at the ends and in the corner, so it lies below. Replacing a user is removing one and adding
    another, so it costs twice the distance (Dong, Roth, Su 2022), or `group_privacy` for two; nothing follows for the
    other direction.

    Raises `BadInput`: the guarantee does not hold, is not about users, or is about another relation.
    """
    if not promise.holds or not math.isfinite(promise.epsilon):
        raise BadInput("a run without a privacy guarantee has no price: choose a strategy that promises something")
    if promise.unit != "user":
        raise BadInput(
            "privacy.unit = 'sample': an account protects whole users, and such a run protects single samples; choose "
            "a strategy with privacy.unit = 'user'"
        )
    epsilon, delta, steps = promise.epsilon, promise.delta, 1
    if promise.relation != relation:
        if relation == "add_or_remove":
            raise BadInput(
                "the run's guarantee is about replacing a user (replace_one) and the account's about adding or "
                "removing one (add_or_remove), which does not follow: choose a strategy with that relation, or an "
                "account with relation = 'replace_one'"
            )
        (epsilon, delta), steps = add_or_remove_to_replace_one(epsilon, delta), 2
    plain = Price(epsilon=epsilon, delta=delta)
    if promise.is_one_gaussian:
        return Price(mu_squared=steps**2 * _mu_squared(promise.epsilon, promise.delta)), plain
    noise, pure, failure = 0.0, epsilon, delta
    if cost is not None and steps == 1:
        noise, pure, failure = cost.noise_multiplier**-2, cost.pure_epsilon + cost.shared_epsilon, cost.failure_delta
    gaussian = () if failure else (Price(mu_squared=noise + _pure_mu(pure) ** 2),)
    return Price(noise, pure, failure), *gaussian, plain


def _mu_squared(epsilon: float, delta: float) -> float:
    """Compute the squared distance at which a Gaussian is just (epsilon, delta)-DP."""
    return calibrate_noise(max(epsilon, _FAINTEST), delta, 1) ** -2


def _pure_mu(epsilon: float) -> float:
    from scipy.special import log_expit, ndtri_exp  # noqa: PLC0415

    return -2 * float(ndtri_exp(log_expit(-epsilon)))
