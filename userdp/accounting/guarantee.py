"""Privacy promises: who is protected, by how much, against which adversary.

>>> from userdp.accounting.guarantee import Privacy
>>> Privacy(epsilon=1.0, delta=1e-6).unit
'user'
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, Context, Decimal
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from userdp.errors import BadInput

Unit = Literal["user", "sample"]
Relation = Literal["replace_one", "add_or_remove"]
NoiseKind = Literal["seeded", "secure"]
Trust = Literal["server", "sum"]


@dataclass(frozen=True)
class Privacy:
    """The budget asked for; its fields are keys of [privacy] in a configuration, which these words describe."""

    epsilon: Annotated[float, Field(gt=0, description="Budget; 1 is strong, 10 is weak.")]
    delta: Annotated[
        float,
        Field(ge=0, lt=1, description="Well below 1/users; 0 is pure privacy, which few strategies promise."),
    ]
    unit: Annotated[Unit, Field(description="One whole user, or one sample (much weaker).")] = "user"
    allow_large_delta: Annotated[
        bool, Field(description="Accept delta >= 1/users, which may publish a user's data.")
    ] = False
    noise: Annotated[
        NoiseKind,
        Field(
            description="Source of the noise. seeded: the seed, so that a run can be repeated; for simulations, never "
            "for real releases. secure: the operating system, safe in floating point; fresh noise in each run."
        ),
    ] = "seeded"
    trust: Annotated[
        Trust,
        Field(
            description="Whom users have to trust with what leaves their node. server: the server, which sees nodes' "
            "sums. sum: nodes add the noise themselves and mask what they send, so that the server sees nothing but "
            "noisy sums over all nodes; for dp_fed_sgd, dp_fed_avg, adaptive_clipping and vote_descent, with two nodes "
            "or more in every round."
        ),
    ] = "server"
    colluding: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="Largest share of a sum's nodes that may combine their knowledge, with the server or without "
            "it, for trust = sum: the noise of the others then suffices. A single node may do so in any case.",
        ),
    ] = 0.0
    lost_nodes: Annotated[
        int,
        Field(
            ge=0,
            description="Nodes of a sum that may fall silent in a round, for trust = sum: the round then releases the "
            "sum of the others, which have enough noise without them, and the nodes share secrets before the first "
            "round to take the masks off. With 0 such a round is lost. Raise strategy.max_missing to the share of the "
            "users whom so many nodes hold.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        for name, kind in {"epsilon": Real, "delta": Real, "colluding": Real, "lost_nodes": Integral}.items():
            if not isinstance(value := getattr(self, name), kind) or isinstance(value, bool):
                wanted = "number" if kind is Real else "whole number"
                raise BadInput(f"privacy.{name} = {value!r} is a {type(value).__name__}: give a {wanted}")
        if self.allow_large_delta not in (True, False):
            raise BadInput(f"privacy.allow_large_delta = {self.allow_large_delta!r}: give True or False")
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise BadInput(f"privacy.epsilon = {self.epsilon}: must be a positive number, such as 1.0")
        if not 0 <= self.delta < 1:
            raise BadInput(f"privacy.delta = {self.delta}: must lie between 0 and 1, such as 1e-6; 0 for pure privacy")
        for name, allowed in {"unit": Unit, "noise": NoiseKind, "trust": Trust}.items():
            if (value := getattr(self, name)) not in get_args(allowed):
                raise BadInput(f"privacy.{name} = {value!r}: must be {' or '.join(map(repr, get_args(allowed)))}")
        if not 0 <= self.colluding < 1:
            raise BadInput(f"privacy.colluding = {self.colluding}: must be at least 0 and below 1, such as 0.1")
        if self.lost_nodes < 0 or (self.lost_nodes and self.trust == "server"):
            raise BadInput(
                f"privacy.lost_nodes = {self.lost_nodes} with privacy.trust = {self.trust!r}: it is how many nodes of "
                "a masked sum may fall silent; leave it out, or set privacy.trust = 'sum' and a number, such as 1"
            )
        if self.colluding and self.trust == "server":
            raise BadInput(
                f"privacy.colluding = {self.colluding} with privacy.trust = 'server': nodes can side with a server "
                "only if it is not trusted; set privacy.trust = 'sum', or leave privacy.colluding out"
            )

    def check_population(self, users: int) -> None:
        """Refuse (`BadInput`) a delta of 1/users or more, which permits publishing a user, unless it is allowed."""
        if self.delta * users >= 1 and not self.allow_large_delta:
            raise BadInput(
                f"privacy.delta = {self.delta:g} is at least 1/n = {1 / users:g} for n = {users} users, which "
                f"permits publishing one user's data; use a delta below {0.1 / users:.0e}, or set "
                "privacy.allow_large_delta = true"
            )


ONE_GAUSSIAN = "analytic Gaussian mechanism"
"""The first words of an accountant that claims the whole run to be no worse than one Gaussian mechanism.

The (epsilon, delta) of that Gaussian is then stated exactly. Additions to the claim follow a semicolon.
"""

ZERO_CONCENTRATED = "zero-concentrated privacy"
"""The first words of an accountant that adds up rho, and converts the sum to (epsilon, delta)."""

_GROUP = " group privacy for "  # An addition that keeps the claim: the noise for a group is of the same kind.


def rounded_up(value: float, digits: int = 4) -> str:
    """Format an epsilon or a delta, rounded up to so many digits, so that a promise never looks smaller than it is.

    *Formal guarantee*: the printed number is at least ``value``, read as the decimals that Python prints.

    >>> rounded_up(3.999999995897852), rounded_up(1.00001), rounded_up(1e-6, 3)
    ('4', '1.001', '1e-06')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    above = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(float(value))))
    return f"{float(above):.{digits}g}"


@dataclass(frozen=True)
class Guarantee:
    """A privacy guarantee in full, or the plain statement that there is none.

    Attributes:
        unit: the unit whose data is protected.
        relation: the neighbouring relation; ``replace_one`` keeps n fixed and public.
        epsilon: the epsilon spent; infinite without a guarantee.
        delta: the delta spent; 1 without a guarantee.
        accountant: the method that computed epsilon.
        adversary: who may see what, and who is trusted.
        assumptions: the assumptions of the proof, one sentence each.
        holds: False if an assumption is known to fail or no mechanism protects anybody.
    """

    unit: Unit
    relation: Relation
    epsilon: float
    delta: float
    accountant: str
    adversary: str
    assumptions: tuple[str, ...]
    holds: bool

    @property
    def is_one_gaussian(self) -> bool:
        """The claim is that of one Gaussian mechanism, beyond its (epsilon, delta): see `ONE_GAUSSIAN`."""
        return self._is_all(ONE_GAUSSIAN)

    @property
    def is_zero_concentrated(self) -> bool:
        """The claim is rho-zCDP, of which (epsilon, delta) is the conversion: see `ZERO_CONCENTRATED`."""
        return self._is_all(ZERO_CONCENTRATED)

    @property
    def users_come_and_go(self) -> bool:
        """A whole user may be added or removed: that hides how many users there are, and places are public."""
        return (self.unit, self.relation) == ("user", "add_or_remove")

    def _is_all(self, accounting: str) -> bool:
        """Return whether an accountant that begins so counts every release; others are added after a semicolon."""
        first, *added = self.accountant.split(";")
        return first.startswith(accounting) and all(one.startswith(_GROUP) for one in added)

    @classmethod
    def none(cls, reason: str) -> "Guarantee":
        """State that there is no privacy guarantee, and why."""
        return cls("user", "replace_one", math.inf, 1.0, "none", f"no privacy guarantee: {reason}", (), False)

    def assuming(self, *assumptions: str) -> "Guarantee":
        """Return the same guarantee with further assumptions."""
        return replace(self, assumptions=(*self.assumptions, *assumptions))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """Restore the guarantee from `as_dict`; further values are ignored."""
        known = {field.name: values[field.name] for field in fields(cls)}
        epsilon = math.inf if known["epsilon"] is None else known["epsilon"]
        return cls(**(known | {"epsilon": epsilon, "assumptions": tuple(known["assumptions"])}))

    def sentence(self) -> str:
        """Describe the promise in one line, without what it rests on, for a place that lists the assumptions itself."""
        if not self.holds:
            return f"no privacy guarantee: {self.adversary.removeprefix('no privacy guarantee: ')}"
        relation = "replacing" if self.relation == "replace_one" else "adding or removing"
        whom = "one whole user" if self.unit == "user" else "one single sample (NOT a whole user)"
        epsilon = rounded_up(self.epsilon)
        budget = f"({epsilon}, {rounded_up(self.delta, 3)})" if self.delta else f"pure {epsilon}"
        return f"{budget}-differential privacy for {relation} {whom}, by {self.accountant}; {self.adversary}"

    def __repr__(self) -> str:
        """Return what people see of a guarantee: its sentence, and each assumption on a line below it."""
        return "\n".join([self.sentence(), *(f"  assuming: {one}" for one in self.assumptions)])

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON; an infinite epsilon becomes None."""
        epsilon = self.epsilon if math.isfinite(self.epsilon) else None
        return asdict(self) | {"assumptions": list(self.assumptions), "epsilon": epsilon}


def for_everybody(parts: tuple[Guarantee, ...], budget: Privacy) -> Guarantee:
    """Return one guarantee for those who train, by ``parts`` that compose, and for those who are held out.

    *Formal guarantees.* *Claim.* It covers both, as (epsilon, delta) and as whatever its accountant claims beyond that.
    *Why.* Held-out users meet one Gaussian that is just (epsilon, delta)-DP for the whole ``budget``, whatever the
    parts promise: these may keep to less, or be pure. Neither number is below that of either group. If every part is
    one Gaussian, together they are one that keeps to the sums of their epsilons and deltas, by basic composition; a
    Gaussian's distance rises with both numbers, so one Gaussian at the larger of each is no better than either group's.
    Else no Gaussian, no rho and no pure epsilon is claimed for all.
    """
    own, epsilon, delta = parts[0], sum(part.epsilon for part in parts), sum(part.delta for part in parts)
    alike = all(part.is_one_gaussian for part in parts)
    return replace(
        own,
        epsilon=max(epsilon, budget.epsilon),
        delta=max(delta, budget.delta),
        accountant=own.accountant if alike else f"{own.accountant}; one Gaussian mechanism for held-out users",
    )
