"""What a run promises: to whom, about what, against whom.

>>> from userdp.accounting.guarantee import Privacy
>>> Privacy(epsilon=1.0, delta=1e-6).unit
'user'
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Literal

from userdp.errors import BadInput

Unit = Literal["user", "sample"]
Relation = Literal["replace_one", "add_or_remove"]
NoiseKind = Literal["seeded", "secure"]
Trust = Literal["server", "sum"]


@dataclass(frozen=True)
class Privacy:
    """The budget asked for.

    Attributes:
        epsilon: > 0.
        delta: in [0, 1), 0 for pure privacy, which few strategies promise; refused at 1/n or above unless
            ``allow_large_delta``.
        unit: whose replacement the promise is about: one whole user, or one sample (a weaker promise).
        allow_large_delta: accept a delta of 1/n or more, which permits publishing one user's data outright.
        noise: where noise comes from, see `userdp.noise`: "seeded" (simulation) or "secure" (the operating system).
        trust: whom users have to trust with what leaves their nodes: "server", or "sum": nobody, for the server sees
            nothing but noisy sums over nodes (`userdp.masking`).
        colluding: largest share of the nodes of a sum, in [0, 1), that may put together what they know, with the
            server or without; one node may in any case. For "sum" alone.
    """

    epsilon: float
    delta: float
    unit: Unit = "user"
    allow_large_delta: bool = False
    noise: NoiseKind = "seeded"
    trust: Trust = "server"
    colluding: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise BadInput(f"privacy.epsilon = {self.epsilon}: must be a positive number, such as 1.0")
        if not 0 <= self.delta < 1:
            raise BadInput(f"privacy.delta = {self.delta}: must lie between 0 and 1, such as 1e-6; 0 for pure privacy")
        if self.unit not in ("user", "sample"):
            raise BadInput(f"privacy.unit = {self.unit!r}: must be 'user' or 'sample'")
        if self.noise not in ("seeded", "secure"):
            raise BadInput(f"privacy.noise = {self.noise!r}: must be 'seeded' or 'secure'")
        if self.trust not in ("server", "sum"):
            raise BadInput(f"privacy.trust = {self.trust!r}: must be 'server' or 'sum'")
        if not 0 <= self.colluding < 1:
            raise BadInput(f"privacy.colluding = {self.colluding}: must be at least 0 and below 1, such as 0.1")
        if self.colluding and self.trust == "server":
            raise BadInput(
                f"privacy.colluding = {self.colluding} with privacy.trust = 'server': nodes can side with a server "
                "only where it is not trusted; set privacy.trust = 'sum', or leave privacy.colluding out"
            )

    def check_population(self, users: int) -> None:
        """Refuse a delta that would permit publishing a whole user.

        Raises:
            BadInput: delta >= 1/users without ``allow_large_delta``.
        """
        if self.delta * users >= 1 and not self.allow_large_delta:
            raise BadInput(
                f"privacy.delta = {self.delta:g} is at least 1/n = {1 / users:g} for n = {users} users, which "
                f"permits publishing one user's data; use a delta below {0.1 / users:.0e}, or set "
                "privacy.allow_large_delta = true"
            )


ONE_GAUSSIAN = "analytic Gaussian mechanism"
"""How the accountant's name begins of whoever claims that a whole run is no worse than one Gaussian mechanism, whose
(epsilon, delta) is then told exactly. What is added to such a claim follows a semicolon."""

_GROUP = " group privacy for "
"""How it begins if nothing is: what noise for several samples together makes of one Gaussian is one Gaussian."""


def rounded_up(value: float, digits: int = 4) -> str:
    """An epsilon or a delta for people, rounded up to so many digits: what is promised may not look like less.

    *Formal guarantee*: the number that is shown is at least ``value``, whose decimals are those that Python prints.

    >>> rounded_up(3.999999995897852), rounded_up(1.00001), rounded_up(1e-6, 3)
    ('4', '1.001', '1e-06')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    return (
        f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(float(value))))):.{digits}g}"
    )


@dataclass(frozen=True)
class Guarantee:
    """A privacy guarantee in full, or the plain statement that there is none.

    Attributes:
        unit: whose data is protected.
        relation: the neighbouring relation; ``replace_one`` keeps n fixed and public.
        epsilon: what was spent; infinite when there is no guarantee.
        delta: likewise; 1 when there is no guarantee.
        accountant: how epsilon was computed.
        adversary: who may see what, and who is trusted.
        assumptions: what the proof rests on, one sentence each.
        holds: False when an assumption is known to fail or no mechanism protects anybody.
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
        """Whether the claim is that of one Gaussian mechanism, beyond its (epsilon, delta): see `ONE_GAUSSIAN`."""
        _, _, added = self.accountant.partition(";")
        return self.accountant.startswith(ONE_GAUSSIAN) and (not added or added.startswith(_GROUP))

    @classmethod
    def none(cls, reason: str) -> "Guarantee":
        """No privacy guarantee, and why."""
        return cls("user", "replace_one", math.inf, 1.0, "none", f"no privacy guarantee: {reason}", (), False)

    def assuming(self, *assumptions: str) -> "Guarantee":
        """The same, resting on these assumptions as well."""
        return replace(self, assumptions=(*self.assumptions, *assumptions))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """The guarantee that `as_dict` was made of; further values are left aside."""
        known = {field.name: values[field.name] for field in fields(cls)}
        epsilon = math.inf if known["epsilon"] is None else known["epsilon"]
        return cls(**(known | {"epsilon": epsilon, "assumptions": tuple(known["assumptions"])}))

    def sentence(self) -> str:
        """The guarantee in one line for people."""
        if not self.holds:
            return (
                self.adversary if self.adversary.startswith("no privacy") else f"no privacy guarantee: {self.adversary}"
            )
        relation = "replacing" if self.relation == "replace_one" else "adding or removing"
        whom = "one whole user" if self.unit == "user" else "one single sample (NOT a whole user)"
        epsilon = rounded_up(self.epsilon)
        budget = f"({epsilon}, {rounded_up(self.delta, 3)})" if self.delta else f"pure {epsilon}"
        return f"{budget}-differential privacy for {relation} {whom}, by {self.accountant}; {self.adversary}"

    def __str__(self) -> str:
        return self.sentence()

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON; an infinite epsilon becomes None."""
        values = asdict(self)
        values["assumptions"] = list(self.assumptions)
        values["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else None
        return values
