"""What a strategy says about itself: everything that pages, listings and tests know of it is declared in its class."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Literal

from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.secure_noise import check_noise
from userdp.accounting import Privacy
from userdp.errors import BadInput


@dataclass(frozen=True)
class Fact:
    """A number that a round notes in ``self.facts``.

    Attributes:
        kind: public: no user's data enter; noised: a function of what was released under the guarantee; private: of
            users' data, for their holder alone, under a name that ends in `_private`.
        meaning: what it is.
    """

    kind: Literal["public", "noised", "private"]
    meaning: str


DECLARED = ("name", "summary_line", "family", "paper", "cost")
"""Texts that every strategy declares: there is no default for them."""
HOOKS = ("_make_scheme", "_make_plan", "_ask", "_step")
"""Methods that every strategy defines, or the base of its family does."""


class Declarations:
    """The declarations of a strategy's class; `meanings` and `notes` are added to those of its bases."""

    name: ClassVar[str]
    summary_line: ClassVar[str]
    family: ClassVar[str]
    paper: ClassVar[str]
    cost: ClassVar[str]
    """Of one round, where a node has N samples of dimension d, U users take part and K nodes answer."""
    compares_users: ClassVar[bool] = False
    """Whether a round compares each user with each other in every column: such a round is tried with few of both."""
    needs: ClassVar[str] = "any loss"
    units: ClassVar[tuple[str, ...]] = ("user",)
    promise: ClassVar[str] = "user level, against other nodes too"
    """Whom it protects from whom, for tables; the class's docstring has the claim under *Formal guarantees*."""
    release: ClassVar[Literal["round", "phase"]] = "round"
    """Whether every iterate is private, or only the model released at the end of each phase, or of the only one."""
    without_secure_noise: ClassVar[str | None] = None
    """Why ``privacy.noise = "secure"`` is refused; None where rounding is accounted for."""
    with_secure_noise: ClassVar[str] = ""
    """Where it is not refused, what becomes of the strategy's randomness, if there is something to say."""
    without_comparison: ClassVar[str | None] = None
    """Why ``compare_with_initial`` is refused; None where it can be had."""
    pure: ClassVar[bool] = False
    """Whether ``privacy.delta = 0`` can be asked for."""
    masked: ClassVar[bool] = False
    """Whether ``privacy.trust = "sum"`` can be asked for."""
    server_trusted: ClassVar[bool] = True
    """Whether nodes tell the server exact counts of what their users' data are like."""
    hears_silence: ClassVar[bool] = False
    """Whether a step learns how many users did not answer: what is released must not follow from that."""
    adversary: ClassVar[str] = "against other nodes and whoever sees every iterate; the server is trusted"
    """Who may see what, and who is trusted."""
    Options: ClassVar[type[StrategyOptions]] = StrategyOptions
    example: ClassVar[Mapping[str, Any]] = {}
    """Options with which it makes a short run for a few hundred users of two features; tests run it with them."""
    example_problem: ClassVar[Mapping[str, Any]] = {"kind": "quadratic"}
    """A [problem] section that it can be run with."""
    meanings: ClassVar[Mapping[str, str]] = {
        "cohort": "users a round",
        "sampling": "how cohorts are drawn",
        "participations": "rounds that a user takes part in",
        "learning_rate": "step size (of each phase)",
        "clip_norm": "l2 norm that gradients are clipped to",
        "noise_multiplier": "noise over sensitivity",
        "noise_deviation": "standard deviation of the noise per coordinate",
        "l2_sensitivity": "most that one user can move what is released (l2 norm)",
        "l1_sensitivity": "most that one user can move what is released (l1 norm)",
        "replace_one_epsilon": "what the promise means for replacing a user, to compare with other strategies",
        "replace_one_delta": "the delta that goes with it",
        "preparation_rounds": "rounds that find coordinates, clip and steps; the numbers here are those of a stand-in",
        "preparation_epsilon": "epsilon of these rounds",
        "preparation_delta": "delta that goes with it",
        "filled_noise": "standard deviation of the noise on the share of people whose data can be used; the run stops "
        "where that share is below one in ten, unless this is above 0.16",
        "comparison_epsilon": "epsilon of the last comparison with the initial model",
        "comparison_margin": "share of users beyond a half whose preference noise turns round in one run of 20",
    }
    """What the ``numbers`` of its plan mean, by name."""
    notes: ClassVar[Mapping[str, Fact]] = {
        "noise_deviation": Fact(
            "noised", "standard deviation of the noise: planned, or in proportion to a released clip"
        ),
        "filled_share": Fact("noised", "share of people whose data can be used, with noise"),
        "mean_target": Fact("noised", "mean target"),
        "rarest_class": Fact("noised", "share of the rarest class, at least its noise"),
        "floored": Fact("noised", "directions whose second moment is below its noise"),
        "moment_size": Fact("noised", "typical norm of users' second moments in scaled columns"),
        "length": Fact("noised", "typical length of users' gradients"),
        "improved_share": Fact(
            "noised", "share of users whom the model serves better than the initial one, with noise"
        ),
        "went_back": Fact("noised", "1 where the initial model was released instead"),
    }
    """What its rounds note in ``self.facts``, by name; those of what comes before and after them are here."""

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse a strategy that leaves out or misspells what others ask of it; bases of a family have no name.

        Raises:
            BadInput: names the class, what is wrong and the remedy.
        """
        super().__init_subclass__(**more)
        if not {"name", "summary_line"} & vars(cls).keys():
            return
        if (fault := next(_faults(cls), None)) is not None:
            raise BadInput(f"{cls.__module__}.{cls.__qualname__} {fault}")


def _faults(kind: type[Declarations]) -> Iterator[str]:
    """What is wrong with the class of a strategy, each with its remedy."""
    if missing := [name for name in DECLARED if not hasattr(kind, name)]:
        yield (
            f"does not declare {', '.join(missing)}: add {missing[0]}: ClassVar[str] = ... to the class, as every "
            "strategy of the registry has it"
        )
    known = {name for base in kind.__mro__[1:] for name in vars(base)}
    for name in HOOKS:
        if getattr(getattr(kind, name, None), "__isabstractmethod__", False):
            near = get_close_matches(name, vars(kind).keys() - known, n=1, cutoff=0.8)
            yield f"does not define {name}: " + (f"is {near[0]} meant for it?" if near else "add the method")
    for name, value in vars(kind).items():
        near = get_close_matches(name, set(vars(Declarations)) - set(vars(object)), n=1, cutoff=0.85)
        if near and name not in known and not callable(value):
            yield f"declares {name}, which nobody reads: is {near[0]} meant?"
    if not (isinstance(kind.Options, type) and issubclass(kind.Options, StrategyOptions)):
        yield f"declares Options = {kind.Options!r}: make it a class below StrategyOptions"
    elif unknown := sorted(set(kind.example) - set(kind.Options.model_fields)):
        yield f"declares an example with {unknown[0]}, which {kind.Options.__name__} does not have: correct one of them"
    claim = guarantees(kind)
    if kind.promise != "none" and not ("*Claim.*" in claim and "*Assumptions.*" in claim):
        yield (
            "states no guarantee: write *Formal guarantees.* *Claim.* ... *Why.* ... and *Assumptions.* ... into its "
            "docstring, which plans, listings and pages show"
        )


def check_budget(strategy: type[Declarations], privacy: Privacy, users: int) -> None:
    """Refuse a budget of a kind that the strategy cannot keep to.

    Raises:
        BadInput: says which can be kept to.
    """
    privacy.check_population(users)
    if privacy.unit not in strategy.units:
        raise BadInput(
            f"privacy.unit = {privacy.unit!r}: {strategy.name} protects {' or '.join(strategy.units)} level; "
            f"set privacy.unit = {strategy.units[0]!r}, which is the stronger promise, or use sample_clipped_sgd"
        )
    if privacy.delta == 0 and not strategy.pure:
        raise BadInput(
            f"privacy.delta = 0: {strategy.name} cannot promise pure privacy; set a delta well below "
            f"1/n = {1 / users:g}"
        )
    check_noise(privacy, strategy.name, strategy.without_secure_noise)
    if privacy.trust == "sum" and not strategy.masked:
        raise BadInput(
            f"privacy.trust = 'sum': {strategy.name} does not work on sums that nodes make noisy and mask; use "
            "dp_fed_sgd, dp_fed_avg or adaptive_clipping, or trust = 'server'"
        )


def meanings_of(strategy: type[Declarations]) -> dict[str, str]:
    """Name of a plan's number -> what it means, of the class and its bases."""
    return _collected(strategy, "meanings")


def explained(strategy: type[Declarations]) -> dict[str, str]:
    """The same, and what the fields of a `Plan` mean."""
    return meanings_of(strategy) | dict(Plan.meanings)


def notes_of(strategy: type[Declarations]) -> dict[str, Fact]:
    """Name of a round's fact -> what it is, of the class and its bases."""
    return _collected(strategy, "notes")


def _collected(strategy: type[Declarations], attribute: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(strategy.__mro__):
        found |= vars(base).get(attribute, {})
    return found


def guarantees(strategy: type[Declarations]) -> str:
    """The strategy's *Formal guarantees* as its docstring has them, to the end of their *Assumptions*."""
    text = inspect.getdoc(strategy) or ""
    _, _, after = text.partition("*Formal guarantees.*")
    stated = re.match(r".*?\*Assumptions\.\*.*?(?=\n\n|\Z)", after, flags=re.DOTALL)
    return (stated[0] if stated else after.split("\n\n")[0]).strip()


def documentation(strategy: type[Declarations]) -> str:
    """The same in one line."""
    return " ".join(guarantees(strategy).split())
