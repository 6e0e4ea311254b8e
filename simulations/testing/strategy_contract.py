"""The contract of strategies, in the manner of scikit-learn's ``check_estimator``: one call runs every check.

The checks know no strategy. They run the small run that its class declares (``example``, ``example_problem``).
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, cast

import numpy as np

from simulations.engines.grids import LocalGrid, shards
from simulations.testing.tape import Tape, epsilon_between
from strategies.core.base import UserLevelStrategy
from strategies.core.descriptions import example_problem
from strategies.core.mean_rounds import CorrelatedDescent
from strategies.core.public_facts import PublicFacts
from strategies.core.recipe import Recipe, meanings_of, notes_of
from strategies.core.results import PrivateResult
from strategies.core.run_state import Resumed
from strategies.core.snapshots import Snapshot
from strategies.core.streams import Streams
from strategies.wire.questions import model_vector
from userdp.accounting import NoiseKind, Privacy
from userdp.arrays.types import Array, Vector
from userdp.data import Block, ColumnarFederation, Federation
from userdp.data.shape import Shape
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import Node
from userdp.problems import Problem

USERS, EPSILON, DELTA = 400, 8.0, 1e-4
SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=10.0, target_range=(-1.0, 1.0))
"""Two features in [-1, 1], and a target there."""
MIDDLES = 0.5, 0.02
"""About which users lie: with the second, whoever lies elsewhere is far longer than all clips that follow users."""
NOBODY = None
"""A user who is not there."""
APART: tuple[tuple["tuple[float, float] | None", ...], ...] = (
    ((1.0, 1.0), (-1.0, -1.0), (-1.0, 1.0), (0.0, -1.0)),
    ((0.0, 0.0), (2e-3, 2e-3), (1.0, 0.0), NOBODY),
)
"""A user's features in populations that are all neighbours: in opposite directions, and at right angles, where second
moments differ most; and of all lengths, to both ends of what is told of them."""
ROUNDING = 1e-9
"""What a value may exceed its sensitivity by, relatively."""
Strategy = type[Recipe]


class ContractBroken(AssertionError):
    """A strategy does not do what every strategy has to; the sentence names it and what to change."""


@dataclass(frozen=True)
class Small:
    """The small run of a strategy's class.

    Attributes:
        kind: the class.
        users: n.
    """

    kind: Strategy
    users: int = USERS

    def problem(self) -> Problem:
        """The declared example, with models in [-2, 2]^2."""
        return example_problem(self.kind, SHAPE)

    def strategy(self, delta: float = DELTA, noise: NoiseKind = "seeded", **options: Any) -> UserLevelStrategy:
        """The strategy, made anew."""
        public = PublicFacts(self.users, min_samples=1, max_samples=1, samples=self.users)
        privacy = Privacy(EPSILON, delta, self.kind.about.units[0], noise=noise)
        constructor = cast("Callable[..., UserLevelStrategy]", self.kind)
        return constructor(self.problem(), public, privacy, **(dict(self.kind.about.example) | options))

    def people(self, features: Array) -> Federation:
        """Users of one sample each, of (n, 2) features; the target is the first feature, if there is one."""
        targets = features[:, 0].astype(np.float32) if self.problem().has_targets else None
        return ColumnarFederation(Block(features.astype(np.float32), np.arange(self.users + 1), targets))

    def alike(self, middle: float = 0.5) -> Array:
        """(n, 2) features of users who agree, but for a fiftieth of what they are."""
        return np.full((self.users, 2), middle) * np.linspace(0.98, 1.02, 2 * self.users).reshape(self.users, 2)


def run(
    strategy: UserLevelStrategy, people: Federation, nodes: int = 1, *, absent: int | None = None, **more: Any
) -> PrivateResult:
    """A run in this process, on so many nodes, none of which holds a user that is absent."""
    blocks = [users[users != absent] for users in shards(people.users, nodes=nodes)]
    with LocalGrid([Node(strategy.original, people, users) for users in blocks]) as grid:
        return strategy.start(grid, roster_timeout=60 if absent is None else 0, **more)


# --- The checks ------------------------------------------------------------------------------------------------------


def check_declarations(small: Small) -> None:
    """The example of the class makes a plan of plain, explained numbers; its texts were checked when it was made."""
    kind = small.kind
    plan = small.strategy().plan
    json.dumps(plan.as_dict())
    _insist(plan.strategy == kind.about.name, kind, f"plans as {plan.strategy!r} and is called {kind.about.name!r}")
    unexplained = sorted(set(plan.numbers) - set(meanings_of(kind)))
    _insist(not unexplained, kind, f"plans {', '.join(unexplained)}, which `meanings` does not explain: add them there")


def check_refusals(small: Small) -> None:
    """A setting that there is not, and a delta that would allow to publish somebody's data, are refused."""
    _refused(small, "an unknown setting", lambda: small.strategy(no_such_setting=1))
    _refused(small, "a delta of 1 / n", lambda: small.strategy(delta=1 / small.users))


def check_budget(small: Small) -> None:
    """A whole run spends what its plan promises, no more than was asked for, and more in no round than before."""
    strategy = small.strategy()
    result = run(strategy, small.people(small.alike()))
    promised = strategy.plan.guarantee
    if not promised.holds:
        return
    spent = [record.spent_epsilon or 0.0 for record in result.rounds]
    _insist(spent == sorted(spent), small.kind, "spends less after a round than before it")
    _insist(
        math.isclose(spent[-1], promised.epsilon, rel_tol=1e-6),
        small.kind,
        f"spends epsilon = {spent[-1]:.6g} where its plan promises {promised.epsilon:.6g}: let one sampler draw the "
        "cohorts, calibrate the noise and make the ledger",
    )
    # A strategy that promises for samples prices a user of one sample alike.
    _insist(
        promised.epsilon <= EPSILON * (1 + 1e-6),
        small.kind,
        f"promises {promised.epsilon:.6g} where {EPSILON} was asked",
    )


def check_neighbours(small: Small) -> None:
    """Replacing one user moves what enters each release by no more than its noise is made for, and shows nowhere else.

    The runs of the neighbours get the releases of the first. So models, requests and facts have to be the same, but for
    facts that say that they are private; and what noise was added to may differ by the sensitivity that it was charged
    for. Where the promise is about adding or removing a user, one of the neighbours lacks the user, and two who have it
    may differ by twice that. Where cohorts are public, what a user moves in all releases together may cost no more than
    the plan promises.
    """
    strategy = small.strategy()
    promised = strategy.plan.guarantee
    if not (promised.holds and strategy.about.server_trusted and strategy.privacy.trust == "server"):
        return  # nothing is promised; or users or nodes add the noise themselves
    for number, (middle, users) in enumerate(product(MIDDLES, APART)):
        known = users if promised.relation == "add_or_remove" else [one for one in users if one is not NOBODY]
        place = number * (small.users - 1) // (len(MIDDLES) * len(APART) - 1)
        tapes = neighbours(small, middle, place, known)
        for (one, first), (other, second) in combinations(zip(known, tapes, strict=True), 2):
            changes = 1 if promised.relation == "replace_one" or NOBODY in (one, other) else 2
            insist_on_each_release(small, first, second, changes)
            if changes == 1:
                insist_on_what_moves_together(small, strategy, first, second)


def neighbours(small: Small, middle: float, place: int, users: Sequence["tuple[float, float] | None"]) -> list[Tape]:
    """The tapes of runs that differ in the user at one place, of which all get the releases of the first.

    Raises:
        ContractBroken: a run shows more of the user than was released.
    """
    tapes, shown = list[Tape](), list[Any]()
    for user in users:
        people = small.alike(middle)
        people[place] = (0.0, 0.0) if user is NOBODY else user
        tape, seen = taped(small, people, Tape(tapes[0].draws if tapes else None), place if user is NOBODY else None)
        tapes.append(tape)
        shown.append(seen)
        _insist(
            len(tape.draws) == len(tapes[0].draws) and seen == shown[0],
            small.kind,
            "shows more of a user than it released: models or facts of a neighbour's run differ although every release "
            "was the same. Let steps follow from released values and public numbers, and give facts of users' "
            "data names that end in _private",
        )
    return tapes


def insist_on_each_release(small: Small, first: Tape, second: Tape, changes: int) -> None:
    """So many changes of one user move what enters a release by no more than its noise is made for.

    Raises:
        ContractBroken: they move it by more.
    """
    for one, two in zip(first.draws, second.draws, strict=True):
        sensitivity = one.sensitivity
        if sensitivity is not None and one.distance(two) > changes * sensitivity * (1 + ROUNDING):
            raise ContractBroken(
                f"{small.kind.__name__}: replacing one user moves what {one.kind} noise is added to by "
                f"{one.distance(two):.6g}, and the noise is made for {changes * sensitivity:.6g}: clip what users "
                "send to the norm that the mechanism is made for, and divide by a public number"
            )


def check_repeats(small: Small) -> None:
    """One seed gives one model, to the bit, and however many nodes hold the users but for rounding."""
    people = small.people(small.alike())
    once, again, spread = (_model(run(small.strategy(seed=3), people, nodes)) for nodes in (1, 1, 3))
    _insist(
        np.array_equal(once, again), small.kind, "gives another model when it is run again: draw from `_noise` alone"
    )
    _insist(
        np.allclose(once, spread, rtol=1e-6, atol=1e-9),
        small.kind,
        "gives another model on three nodes than on one: add up what nodes send, and use no order of theirs",
    )


def check_resumes(small: Small) -> None:
    """A run that is killed after its first round and resumed ends as one that is not."""
    people, keeper = small.people(small.alike()), _Keeper()

    def stop(_: Any) -> None:
        raise _Killed

    with suppress(_Killed):
        run(small.strategy(), people, keeper=keeper, on_round=stop)
    whole = run(small.strategy(), people)
    resumed = run(small.strategy(), people, keeper=_Keeper(), resumed=Resumed(keeper.kept[-1]))
    _insist(
        np.array_equal(_model(whole), _model(resumed)),
        small.kind,
        "does not go on where it was killed: what the server remembers between rounds is a `Stateful` that the "
        "scheme's `new_memory` makes, and it declares every attribute",
    )


def check_facts(small: Small) -> None:
    """Every fact that a round notes is declared."""
    result = run(small.strategy(), small.people(small.alike()))
    noted = {name for record in result.rounds for name in record.facts}
    undeclared = sorted(noted - set(notes_of(small.kind)))
    _insist(
        not undeclared, small.kind, f"notes {', '.join(undeclared)}, which `notes` does not declare: add them there"
    )


CHECKS: dict[str, Callable[[Small], None]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and callable(check)
}
"""Name -> check."""


def check_strategy(kind: Strategy) -> None:
    """Run every check on a strategy's class.

    Args:
        kind: a class below `strategies.UserLevelStrategy`, in whatever package.

    Raises:
        ContractBroken: the first check that fails, in a sentence that names the class and what to change.
        BadInput: the class, or the example that it declares, cannot be used.
    """
    for check in CHECKS.values():
        try:
            check(Small(kind))
        except RunFailed as refused:
            raise ContractBroken(f"{kind.__name__} makes a run that is refused: {refused}") from refused


def insist_on_what_moves_together(small: Small, strategy: UserLevelStrategy, first: Tape, second: Tape) -> None:
    """What one user moves all releases of two runs by costs no more than is promised; secret draws cost less.

    Raises:
        ContractBroken: it costs more.
    """
    promised, sampler = strategy.plan.guarantee, getattr(strategy.scheme, "sampler", None)
    if getattr(sampler, "secret", False) and getattr(sampler, "rate", 0.0) < 1:
        return
    spent = epsilon_between(first, second, promised.delta)
    _insist(
        spent <= promised.epsilon * (1 + 1e-6),
        small.kind,
        f"lets one user move all its releases together by what costs epsilon = {spent:.6g}, and its plan promises "
        f"{promised.epsilon:.6g}: let data enter no more releases than the ledger is charged for",
    )


def _insist(held: bool, kind: Strategy, told: str) -> None:
    if not held:
        raise ContractBroken(f"{kind.__name__} {told}")


def _refused(small: Small, what: str, attempt: Callable[[], Any]) -> None:
    try:
        attempt()
    except BadInput:
        return
    raise ContractBroken(f"{small.kind.__name__} accepts {what}: leave its checks to UserLevelStrategy")


def taped(small: Small, features: Array, tape: Tape, absent: int | None = None) -> tuple[Tape, list[Any]]:
    """(the tape, released models and facts that are not private) of a run; without a user, if one is absent.

    A strategy that correlates noise over rounds draws it apart where it is simulated, and here as where it is secure.
    """
    strategy, seen = small.strategy(), list[Any]()
    if isinstance(strategy.memory, CorrelatedDescent):
        strategy = small.strategy(noise="secure")
    strategy.streams = Streams(secure=False, source=tape.source)
    kinds = notes_of(small.kind)

    def evaluate(number: int, arrays: Any) -> None:
        seen.append(model_vector(arrays).tolist())

    result = run(strategy, small.people(features), absent=absent, evaluate_fn=evaluate)
    seen += [list(_shown(record.facts, kinds)) for record in result.rounds]
    return tape, seen


def _shown(facts: Any, kinds: Any) -> Iterator[tuple[str, float]]:
    """Facts that others may see; one that is not declared is judged by its name."""
    for name, value in facts.items():
        if not (name.endswith("_private") or (name in kinds and kinds[name].kind == "private")):
            yield name, value


def _model(result: PrivateResult) -> Vector:
    return model_vector(result.arrays)


class _Killed(Exception):
    """Ends a run after a round."""


class _Keeper:
    """Keeps what a file would hold."""

    def __init__(self) -> None:
        self.kept: list[Snapshot] = []

    def ask(self, taken: Snapshot) -> None:
        """Nothing is asked twice here."""

    def keep(self, take: Callable[[], Snapshot], *, must: bool) -> None:
        taken = take()
        self.kept.append(Snapshot(json.loads(json.dumps(taken.values, allow_nan=False)), taken.arrays))
