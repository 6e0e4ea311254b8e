"""An audit by ONE run of a configuration as it is: its own users and model, and canaries inserted by coins."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
from flwr.app import ArrayRecord

from simulations.account.entering import enter
from simulations.audit.finding import Audit
from simulations.config.run_config import RunConfig
from simulations.engines.grids import LocalGrid, shards
from simulations.runs.build import load_datasets, make_strategy, public_facts, starting_problem
from strategies.core.base import UserLevelStrategy
from strategies.wire.questions import model_vector
from userdp.arrays.sparse_rows import AnyRows, dense
from userdp.arrays.types import Array, Indices, Vector
from userdp.audit.one_run import guessed, one_run_lower_bound
from userdp.errors import BadInput
from userdp.masking.masks import MaskKey
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer, Node
from userdp.nodes.pipeline import RowPipeline
from userdp.problems.base import Problem

LEAST_CANARIES = 20
MOST_CANARIES = 1000
_GUESSED = 1 / 4  # share of canaries whose coins are guessed, those with the most extreme scores; fixed in advance
_REHEARSALS = 4  # runs without canaries, with other noise, that show an attacker where the model moves
_FAR = 1e6  # length of a canary's answer before its clip, in clips


class Canaries:
    """A node of canary users, who answer with a direction of their own instead of their gradient.

    A user may hold any data, so these are the worst answers that users of a loss can give; other questions than those
    for gradients and updates get zeros. The class has the interface of a `Node`, for (m,) ``users`` of the problem who
    pull in (m, p) directions of length one. A coin of -1 is ``absent``, or else sends the negative direction.
    """

    def __init__(self, problem: Problem, users: Indices, pulls: Vector, coins: Indices, *, absent: bool) -> None:
        self.problem, self.users, self.labels, self.clipped_samples = problem, users, None, 0
        self.key, self.door = MaskKey(), None  # nobody is behind it
        self._rows = pulls if absent else pulls * coins[:, None]
        self._there = coins == 1 if absent else np.ones(len(coins), dtype=bool)

    def compute(self, x: Vector, users: Indices, computation: Computation) -> Answer:
        """See `Node.compute`; BadInput if it does not clip each user as a whole: no clip, groups or drawn samples."""
        clip = computation.clip_norm
        if clip is None or computation.partition is not None or computation.coins is not None:
            raise BadInput("canaries of one run need a strategy that clips whole users: audit without --one-run")
        pipeline = RowPipeline(computation, users, self.problem.dimension)
        pipeline.collect(self._clipped(clip, users, computation, pipeline), slice(0, len(users)))
        lengths = np.full(len(users), _FAR * clip) if computation.lengths else None
        hidden = None if computation.masked is None else pipeline.masked(self.key, x)
        return Answer(users, pipeline.values, 0, lengths, hidden)

    def _clipped(self, clip: float, users: Indices, computation: Computation, pipeline: RowPipeline) -> AnyRows:
        """Return the canaries' rows after the clip: directions, or zeros for absent canaries."""
        if not computation.of_parameters:
            return np.zeros((len(users), computation.width(self.problem.dimension)))
        places = np.searchsorted(self.users, users)
        centre = 0.0 if computation.centre is None else computation.centre
        # Models move along updates, and against gradients.
        length = -_FAR * clip if computation.name == "local_update" else _FAR * clip
        rows, _ = pipeline.finite(length * self._rows[places] + centre)
        return np.where(self._there[places, None], dense(pipeline.clipped(rows)), 0.0)


def audit_one_run(
    config: RunConfig,
    *,
    canaries: int | None = None,
    confidence: float = 0.95,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Audit:
    """Run a configuration once, with canaries among its users, and guess their coins.

    *Formal guarantees.* If the run is (epsilon, delta)-DP under its own relation, the bound exceeds epsilon with
    probability at most ``1 - confidence``, for any data of the others (`one_run_p_value`). A coin decides whether a
    canary is present or absent, under add-or-remove, or whether it sends its direction or the negative, under
    replace-one: each time one step of the relation.

    By default there are as many canaries as parameters, but 20 at least and 1000 at most. ``progress`` is called with
    the finished rounds and their total, rehearsals included. The file's account is charged for all of these runs.
    BadInput if the strategy promises nothing or clips no user, a number is out of range, or the account does not have
    so much left; RunFailed if the run stopped.
    """
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"noise": "seeded"})})
    problem, train = starting_problem(config), load_datasets(config).users
    dimension = problem.dimension
    count = min(MOST_CANARIES, max(LEAST_CANARIES, dimension)) if canaries is None else canaries
    if count < LEAST_CANARIES:
        raise BadInput(f"canaries = {count}: fewer than {LEAST_CANARIES} canaries prove no useful bound; take more")
    facts, n = public_facts(config, train), train.users
    samples = None if facts.samples is None else facts.samples + count * facts.min_samples
    strategy = make_strategy(config, problem, replace(facts, users=n + count, samples=samples))
    guarantee = strategy.plan.guarantee
    if not guarantee.holds or guarantee.unit != "user":
        raise BadInput(
            f"strategy.kind = {config.strategy.kind!r} promises nothing to whole users, and canaries are whole users: "
            "choose a strategy with a guarantee at user level"
        )
    if config.privacy.account is not None:
        what = f"{config.name}: audit of {strategy.plan.strategy}, {1 + _REHEARSALS} runs"
        enter(strategy, config.privacy.account, what, accounts=config.privacy.accounts, times=1 + _REHEARSALS)
    # No stream of the run itself has this key.
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(1 << 30,)))
    coins = 2 * rng.integers(0, 2, count) - 1
    pulls = directions(count, dimension, rng)
    crowd = [Node(problem, train, users) for users in shards(n, config.engine.users_per_node)]
    absent = guarantee.relation == "add_or_remove"
    users = np.arange(n, n + count)

    finished = 0

    def moved(made: UserLevelStrategy, node: Canaries) -> Vector:
        """Return the (p,) mean distance of a run's released models from the first."""
        nonlocal finished
        models, rounds = list[Vector](), strategy.plan.rounds

        def seen(server_round: int, arrays: ArrayRecord) -> None:
            models.append(model_vector(arrays))
            # With cohorts drawn anew, a run may have more rounds than its plan.
            progress(finished * rounds + min(server_round, rounds), (1 + _REHEARSALS) * rounds)

        with LocalGrid([*crowd, cast(Node, node)]) as grid:
            made.start(grid, evaluate_fn=seen)
        finished += 1
        return np.asarray(np.mean(models[1:], axis=0) - models[0])

    audited = moved(strategy, Canaries(problem, users, pulls, coins, absent=absent))
    # An attacker knows everybody else's data, and therefore where the model moves without canaries.
    nobody = Canaries(problem, users, pulls, np.full(count, -1), absent=True)
    seeds = [int(seed) for seed in rng.integers(0, 2**62, _REHEARSALS)]
    rehearsals = [make_strategy(config.model_copy(update={"seed": one}), problem, strategy.public) for one in seeds]
    expected = np.mean([moved(rehearsal, nobody) for rehearsal in rehearsals], axis=0)
    guesses = max(2, 2 * round(_GUESSED * count / 2))
    # A present canary pulls the model against its direction, as a gradient does.
    found = guessed(pulls @ (expected - audited), guesses)
    correct = int(np.count_nonzero(found == coins))
    against = "each there or not" if absent else "each there or replaced by its negative"
    return Audit(
        strategy=strategy.plan.strategy,
        guarantee=guarantee,
        attack=f"{count} canaries at the clip, {against}",
        bound="one run",
        canaries=count,
        users=n + count,
        rounds=strategy.plan.rounds,
        runs=1,
        guesses=guesses,
        correct=correct,
        confidence=confidence,
        measured=one_run_lower_bound(count, guesses, correct, guarantee.delta, confidence),
    )


def directions(count: int, dimension: int, rng: np.random.Generator) -> Array:
    """Draw (m, p) random directions of length one, orthogonal if there are enough dimensions."""
    drawn = rng.normal(size=(count, dimension))
    if count <= dimension:
        drawn = np.linalg.qr(drawn.T)[0].T
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
