"""The contract of strategies, in the manner of scikit-learn's ``check_estimator``: one call runs every check.

The checks know no strategy. They run the small run that its class declares (``example``, ``example_problem``).
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from simulations.engines.grids import LocalGrid, shards
from simulations.testing.tape import Tape, epsilon_between
from strategies.core.base import UserLevelStrategy
from strategies.core.public_facts import PublicFacts
from strategies.core.recipe import Recipe, example_problem, meanings_of, notes_of
from strategies.core.results import PrivateResult
from strategies.core.run_state import Resumed
from strategies.wire.questions import model_vector
from userdp.accounting import NoiseKind, Privacy
from userdp.arrays.types import Array, Vector
from userdp.data import Block, ColumnarFederation, Federation
from userdp.data.shape import Shape
from userdp.errors import BadInput, ContractBroken, RunFailed
from userdp.nodes.node import Node
from userdp.problems import Problem
from userdp.snapshots import Snapshot
from userdp.streams import Streams

USERS, EPSILON, DELTA = 400, 8.0, 1e-4
SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=10.0, target_range=(-1.0, 1.0))
MIDDLES = 0.5, 0.02  # centres of the users; users elsewhere are far longer than a clip that follows the second
NOBODY = None
"""An absent user."""
APART: tuple[tuple["tuple[float, float] | None", ...], ...] = (
    ((1.0, 1.0), (-1.0, -1.0), (-1.0, 1.0), (0.0, -1.0)),
    ((0.0, 0.0), (2e-3, 2e-3), (1.0, 0.0), NOBODY),
)
"""One user's features in neighbouring data sets: in opposite and in orthogonal directions, where second moments differ
most; and of all lengths, to both ends of a statistic's interval."""
ROUNDING = 1e-9  # relative excess over a sensitivity that counts as rounding
Strategy = type[Recipe]


@dataclass(frozen=True)
class Small:
    """The small run of a strategy's class, with n = ``users``."""

    kind: Strategy
    users: int = USERS

    def problem(self) -> Problem:
        """Return the declared example, with models in [-2, 2]^2."""
        return example_problem(self.kind, SHAPE)

    def strategy(
        self, delta: float = DELTA, noise: NoiseKind = "seeded", seed: int = 0, **options: Any
    ) -> UserLevelStrategy:
        """Make the strategy of the example, or of other options."""
        public = PublicFacts(self.users, min_samples=1, max_samples=1, samples=self.users)
        privacy = Privacy(EPSILON, delta, self.kind.about.units[0], noise=noise)
        recipe = self.kind(**{**self.kind.about.example, **options})
        return recipe.strategy(self.problem(), public, privacy, seed=seed)

    def people(self, features: Array) -> Federation:
        """Make users of one sample each from (n, 2) features; a target is the first feature."""
        targets = features[:, 0].astype(np.float32) if self.problem().has_targets else None
        return ColumnarFederation(Block(features.astype(np.float32), np.arange(self.users + 1), targets))

    def alike(self, middle: float = 0.5) -> Array:
        """Return (n, 2) features that differ between users by at most 4 %."""
        return np.full((self.users, 2), middle) * np.linspace(0.98, 1.02, 2 * self.users).reshape(self.users, 2)

    def insist(self, held: bool, fault: str) -> None:
        """Raise ContractBroken with the fault, a sentence without its subject, unless the condition held."""
        if not held:
            raise ContractBroken(f"{self.kind.__name__} {fault}")


def run(
    strategy: UserLevelStrategy, people: Federation, nodes: int = 1, *, absent: int | None = None, **more: Any
) -> PrivateResult:
    """Run a strategy in this process, with this many nodes, without the absent user."""
    blocks = [users[users != absent] for users in shards(people.users, nodes=nodes)]
    with LocalGrid([Node(strategy.original, people, users) for users in blocks]) as grid:
        return strategy.start(grid, roster_timeout=60 if absent is None else 0, **more)


# --- The checks ------------------------------------------------------------------------------------------------------


def check_declarations(small: Small) -> None:
    """Check that the class's example makes a plan of plain, explained numbers; texts are checked with the class."""
    plan = small.strategy().plan
    json.dumps(plan.as_dict())
    name = small.kind.about.name
    small.insist(plan.strategy == name, f"has plans of {plan.strategy!r} but the name {name!r}: use one name")
    unexplained = ", ".join(sorted(set(plan.numbers) - set(meanings_of(small.kind))))
    small.insist(not unexplained, f"plans {unexplained}, which `meanings` does not explain: add them there")


def check_refusals(small: Small) -> None:
    """Check that an unknown setting is refused, and a delta that would allow to publish somebody's data."""
    attempts: dict[str, dict[str, Any]] = {
        "an unknown setting": {"no_such_setting": 1},
        "a delta of 1 / n": {"delta": 1 / small.users},
    }
    for name, options in attempts.items():
        with suppress(BadInput):
            small.strategy(**options)
            small.insist(False, f"accepts {name}: leave its checks to Recipe")


def check_budget(small: Small) -> None:
    """Check that a run spends what its plan promises, no more than requested, and never less after a later round."""
    strategy = small.strategy()
    result = run(strategy, small.people(small.alike()))
    promised = strategy.plan.guarantee
    if not promised.holds:
        return
    spent = [record.spent_epsilon or 0.0 for record in result.rounds]
    small.insist(spent == sorted(spent), "has spent less after a round than before it")
    small.insist(
        math.isclose(spent[-1], promised.epsilon, rel_tol=1e-6),
        f"spends epsilon = {spent[-1]:.6g} but its plan promises {promised.epsilon:.6g}: let one sampler draw the "
        "cohorts, calibrate the noise and make the ledger",
    )
    # A promise for samples has the same price for users of one sample.
    small.insist(
        promised.epsilon <= EPSILON * (1 + 1e-6),
        f"promises epsilon = {promised.epsilon:.6g} but {EPSILON} was requested: calibrate the noise to the request",
    )


def check_neighbours(small: Small) -> None:
    """Check that replacing one user moves the value of each release by at most its sensitivity, and shows nowhere else.

    The neighbours' runs get the releases of the first run. So models, requests and facts must be equal, except for
    facts marked as private, and the values before the noise may differ by the sensitivity that the mechanism charged.
    If the promise is about adding or removing a user, one neighbour lacks the user, and two that have it may differ by
    twice that. With public cohorts, all releases together may cost no more for one user than the plan promises.
    """
    strategy = small.strategy()
    promised = strategy.plan.guarantee
    if not (promised.holds and strategy.about.server_trusted and strategy.privacy.trust == "server"):
        return  # there is no promise, or users or nodes add the noise themselves
    for number, (middle, users) in enumerate(product(MIDDLES, APART)):
        known = users if promised.relation == "add_or_remove" else [user for user in users if user is not NOBODY]
        place = number * (small.users - 1) // (len(MIDDLES) * len(APART) - 1)
        tapes = neighbours(small, middle, place, known)
        for (one, first), (other, second) in combinations(zip(known, tapes, strict=True), 2):
            if promised.relation == "add_or_remove" and NOBODY not in (one, other):
                insist_on_each_release(small, first, second, changes=2)
            else:
                insist_on_each_release(small, first, second)
                insist_on_what_moves_together(small, strategy, first, second)


def neighbours(small: Small, middle: float, place: int, users: Sequence["tuple[float, float] | None"]) -> list[Tape]:
    """Run data sets that differ in one user, with the first run's releases; return the tapes.

    Raises:
        ContractBroken: a run shows more of the user than its releases.
    """
    tapes, shown = list[Tape](), list[Any]()
    for user in users:
        people = small.alike(middle)
        people[place] = (0.0, 0.0) if user is NOBODY else user
        tape, seen = taped(small, people, Tape(tapes[0].draws if tapes else None), place if user is NOBODY else None)
        tapes.append(tape)
        shown.append(seen)
        small.insist(
            len(tape.draws) == len(tapes[0].draws) and seen == shown[0],
            "shows more of a user than it released: models or facts of a neighbour's run differ although every release "
            "was the same. Compute steps from released values and public numbers, and give facts of users' data names "
            "that end in _private",
        )
    return tapes


def insist_on_each_release(small: Small, first: Tape, second: Tape, changes: int = 1) -> None:
    """Raise ContractBroken if this many changes of one user move a value by more than its noise is made for."""
    for one, two in zip(first.draws, second.draws, strict=True):
        sensitivity, moved = one.sensitivity, one.distance(two)
        small.insist(
            sensitivity is None or moved <= changes * sensitivity * (1 + ROUNDING),
            f"moves the value before {one.kind} noise by {moved:.6g} for one replaced user, and the noise is made "
            f"for {changes * (sensitivity or 0.0):.6g}: clip users' answers to the norm that the mechanism is made "
            "for, and divide by a public number",
        )


def check_repeats(small: Small) -> None:
    """Check that one seed gives one model, to the bit, and up to rounding for any number of nodes."""
    people = small.people(small.alike())
    once, again, spread = (_model(run(small.strategy(seed=3), people, nodes)) for nodes in (1, 1, 3))
    small.insist(np.array_equal(once, again), "gives another model when it is run again: draw from `_noise` alone")
    small.insist(
        np.allclose(once, spread, rtol=1e-6, atol=1e-9),
        "gives another model on three nodes than on one: add up the nodes' answers, and do not depend on their order",
    )


def check_resumes(small: Small) -> None:
    """Check that a run that is killed after its first round resumes to the model of an uninterrupted run."""
    people, keeper = small.people(small.alike()), _Keeper()

    def stop(_: Any) -> None:
        raise _Killed

    with suppress(_Killed):
        run(small.strategy(), people, keeper=keeper, on_round=stop)
    whole = run(small.strategy(), people)
    resumed = run(small.strategy(), people, keeper=_Keeper(), resumed=Resumed(keeper.kept[-1]))
    small.insist(
        np.array_equal(_model(whole), _model(resumed)),
        "does not resume where it was killed: keep the server's memory between rounds in a `Stateful` that the "
        "scheme's `new_memory` makes, and declare every attribute",
    )


def check_facts(small: Small) -> None:
    """Check that every fact of a round is declared."""
    result = run(small.strategy(), small.people(small.alike()))
    noted = {name for record in result.rounds for name in record.facts}
    undeclared = ", ".join(sorted(noted - set(notes_of(small.kind))))
    small.insist(not undeclared, f"notes {undeclared}, which `notes` does not declare: add them there")


CHECKS: dict[str, Callable[[Small], None]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and callable(check)
}
"""Name -> check."""


def check_strategy(kind: Strategy) -> None:
    """Run every check on a strategy's class, from any package.

    Raises:
        ContractBroken: the first check that fails, in a sentence that names the class and the remedy.
        BadInput: the class, or the example that it declares, cannot be used.
    """
    for check in CHECKS.values():
        try:
            check(Small(kind))
        except RunFailed as refused:
            raise ContractBroken(f"{kind.__name__} makes a run that is refused: {refused}") from refused


def insist_on_what_moves_together(small: Small, strategy: UserLevelStrategy, first: Tape, second: Tape) -> None:
    """Raise ContractBroken if one user moves all releases at a cost above the promise."""
    promised, sampler = strategy.plan.guarantee, strategy.scheme.sampler
    # Secret cohorts cost less than all releases together.
    if getattr(sampler, "secret", False) and getattr(sampler, "rate", 0.0) < 1:
        return
    spent = epsilon_between(first, second, promised.delta)
    small.insist(
        spent <= promised.epsilon * (1 + 1e-6),
        f"lets one user move all its releases together at a cost of epsilon = {spent:.6g}, but its plan promises "
        f"{promised.epsilon:.6g}: let data enter no more releases than the ledger is charged for",
    )


def taped(small: Small, features: Array, tape: Tape, absent: int | None = None) -> tuple[Tape, list[Any]]:
    """Run with recorded noise, without the absent user; return the tape, and the released models and public facts."""
    strategy, seen = small.strategy(), list[Any]()
    if getattr(strategy.memory, "mechanism", None) is not None:  # with a memory: simulated noise is added to no value
        strategy = small.strategy(noise="secure")
    strategy.streams = Streams(secure=False, source=tape.source)
    private = {name for name, fact in notes_of(small.kind).items() if fact.kind == "private"}

    def evaluate(number: int, arrays: Any) -> None:
        seen.append(model_vector(arrays).tolist())

    result = run(strategy, small.people(features), absent=absent, evaluate_fn=evaluate)
    for record in result.rounds:
        # The name alone marks an undeclared fact as private.
        seen.append([fact for fact in record.facts.items() if not (fact[0] in private or fact[0].endswith("_private"))])
    return tape, seen


def _model(result: PrivateResult) -> Vector:
    return model_vector(result.arrays)


class _Killed(Exception):
    """Ends a run after a round."""


class _Keeper:
    """Keeps snapshots in memory, as a file would."""

    def __init__(self) -> None:
        self.kept: list[Snapshot] = []

    def ask(self, taken: Snapshot) -> None:
        """Do nothing: no question is asked twice here."""

    def keep(self, take: Callable[[], Snapshot], *, must: bool) -> None:
        taken = take()
        self.kept.append(Snapshot(json.loads(json.dumps(taken.values, allow_nan=False)), taken.arrays))
