"""Builders shared by the tests of strategies, grids and faults. Importable by Ray actors, so no test lives here."""

import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from numpy.typing import ArrayLike, NDArray

from simulations.engines.grids import LocalGrid, shards
from simulations.engines.ray_grid import begin_ray
from simulations.records.observer import Observer
from strategies import PrivateResult, PublicFacts, Recipe, Request, Step, UserLevelStrategy, model_vector
from strategies.wire.questions import common_records, model_record, train_content
from strategies.wire.replies import Gathered
from userdp.accounting import Privacy
from userdp.accounting.costs import together
from userdp.arrays.sparse_rows import AnyRows
from userdp.data import Block, ColumnarFederation, Federation
from userdp.errors import RunFailed
from userdp.mechanisms.prefix_sums import Factorisation
from userdp.mechanisms.toeplitz import FACTORISATIONS
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer, Node
from userdp.nodes.pipeline import RowPipeline
from userdp.nodes.row_maker import RowMaker
from userdp.noise import NoiseSource, in_units
from userdp.problems import Problem, Quadratic
from userdp.streams import Streams

PATIENCE = 600.0
"""Seconds that a test waits for other processes: a process of Ray takes a minute to start beside six busy ones."""
FORGIVING = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
forgive_ray = pytest.mark.filterwarnings(*FORGIVING)
"""Ray leaves the pipes and handles of its processes to the garbage collector."""
MARK = 77.0
"""A first feature with this value marks the user whose node `FaultyQuadratic` makes fail."""


class Watching(Observer):
    """Calls a function with the record of each round and the plan."""

    def __init__(self, look: Callable[[Any, Any], object]) -> None:
        self._look = look

    def on_round(self, record: Any) -> None:
        self._look(record, self.plan)


def federation_of(values: ArrayLike, sizes: list[int] | None = None, targets: ArrayLike | None = None) -> Federation:
    """(U, d) one sample a user, (U, m, d) m samples per user, or (N, d) samples with sizes."""
    samples = np.asarray(values, dtype=np.float32)
    if sizes is None:
        sizes = [samples.shape[1] if samples.ndim == 3 else 1] * len(samples)
    samples = np.ascontiguousarray(samples.reshape(-1, samples.shape[-1]))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return ColumnarFederation(
        Block(samples, offsets, None if targets is None else np.asarray(targets, dtype=np.float32))
    )


def local_grid(problem: Problem, federation: Federation, users_per_node: int | None = None) -> LocalGrid:
    return LocalGrid([Node(problem, federation, users) for users in shards(federation.users, users_per_node)])


@contextmanager
def own_ray(**resources: Any) -> Iterator[Any]:
    """A private Ray with so many CPUs, whose actors import this module and what lies beside it."""
    here = Path(__file__).resolve().parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parent)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray, _ = begin_ray("the tests' Ray cannot be started", **resources)
        yield ray
        with warnings.catch_warnings():  # it ends in the teardown of whichever test is the last, forgiving or not
            warnings.simplefilter("ignore", ResourceWarning)
            ray.shutdown()
            gc.collect()


def content_of(x: NDArray[np.float64], users: NDArray[np.int64], computation: Computation) -> RecordDict:
    return train_content(common_records(model_record(x), computation), users, computation)


def rows_of(problem: Problem, x: NDArray[np.float64], block: Block, computation: Computation) -> tuple[AnyRows, int]:
    """A node's answer for a block: all rows, or their sum, and the number of users that became zero."""
    maker = RowMaker(problem, x, computation, failed=_fail)
    pipeline = RowPipeline(computation, np.arange(block.users), problem.dimension, sparse=problem.sparse)
    everybody = slice(0, block.users)
    rows, unusable = maker.rows(block, everybody)
    pipeline.add(rows, everybody, unusable)
    return pipeline.values, pipeline.non_finite


def _fail(error: Exception) -> None:
    raise error


class ChangedNode(Node):
    def __init__(self, node: Node, change: Callable[[Answer], Answer]) -> None:
        self.__dict__.update(node.__dict__)
        self.change = change

    def compute(self, x: NDArray[np.float64], users: NDArray[np.int64], computation: Computation) -> Answer:
        return self.change(super().compute(x, users, computation))


class ShuffledGrid(LocalGrid):
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return [replies[index] for index in np.random.default_rng(len(replies)).permutation(len(replies))]


def run(
    strategy: UserLevelStrategy, federation: Federation, users_per_node: int | None = None, **start: Any
) -> PrivateResult:
    with local_grid(strategy.original, federation, users_per_node) as grid:
        return strategy.start(grid, **start)


def final(result: PrivateResult) -> NDArray[np.float64]:
    return model_vector(result.arrays)


def make(
    strategy: type[Recipe],
    problem: Problem,
    users: int,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    *,
    unit: str = "user",
    trust: str = "server",
    noise: str = "seeded",
    seed: int = 0,
    facts: dict[str, int] | None = None,
    **options: Any,
) -> UserLevelStrategy:
    privacy = Privacy(epsilon, delta, unit, noise=noise, allow_large_delta=delta * users >= 1, trust=trust)
    return strategy_of(strategy, problem, PublicFacts(users, **(facts or {})), privacy, seed=seed, **options)


def strategy_of(
    kind: type[Recipe], problem: Problem, public: PublicFacts, privacy: Privacy, **settings: Any
) -> UserLevelStrategy:
    """The strategy of these settings, some of which may be those of a run."""
    of_run = {name: settings.pop(name) for name in signature(Recipe.strategy).parameters if name in settings}
    return kind(**settings).strategy(problem, public, privacy, **of_run)


def gathered(strategy: UserLevelStrategy, federation: Federation, index: int, x: NDArray[np.float64]) -> Gathered:
    """The values that round ``index`` gathers at model x when everybody answers: the node's code, without messages."""
    request = requested(strategy, index)
    node = Node(strategy.original, federation, np.arange(federation.users))
    answer = node.compute(x, request.users, request.computation)
    values = answer.values[0] if request.computation.reduce == "sum" else answer.values
    return Gathered(values, 0, answer.non_finite)


def requested(strategy: UserLevelStrategy, index: int) -> Request | None:
    before = strategy.program.before
    return strategy.request_of(index + 1 + (0 if before is None else before.rounds))


def taken(strategy: UserLevelStrategy, index: int, x: NDArray[np.float64], answers: Gathered) -> Step:
    """The step of the strategy's own round ``index`` from these answers, with the run's noise."""
    return strategy.scheme.take(index, x, answers, strategy.memory, strategy.noise_of("own", index))


def noise_again(strategy: UserLevelStrategy, index: int, purpose: int = 0) -> NoiseSource:
    """The noise source of a round as it is opened, however often a test looks; a run opens each once."""
    return Streams(secure=strategy.streams.secure).open(strategy.noise_seed, index, purpose, strategy.program.own.slack)


def afresh(strategy: UserLevelStrategy) -> UserLevelStrategy:
    """The strategy as another run of it begins: what noise it had drawn may be drawn again."""
    strategy.streams = Streams(secure=strategy.streams.secure)
    return strategy


def silenced(strategy: UserLevelStrategy) -> UserLevelStrategy:
    """The strategy without noise, which draws from nowhere and is not charged."""
    strategy._noise = lambda index, purpose=0: Silent()
    return strategy


def with_scheme(strategy: UserLevelStrategy, **changes: Any) -> UserLevelStrategy:
    """The strategy with parts of its scheme replaced: what no configuration can ask for."""
    strategy.program.own._take_over(replace(strategy.scheme, **changes))
    return strategy


class FaultyQuadratic(Quadratic):
    """Fails on the block that holds the marked user, as ``fault`` says; once, if ``once`` names a file to remember by.

    Faults: "raise" (an error of our own, which is about the node and no user), "exit" (the process dies), "sleep" (it
    never answers), "machine" (the process that started this one is killed, which takes all of Ray on its machine along:
    anywhere but on the machine ``spared``).
    """

    def __init__(self, dimension: int, fault: str, once: Path | None = None, spared: str = "") -> None:
        super().__init__(dimension, 100.0, 200.0)
        self.fault, self.once, self.spared = fault, once, spared

    def user_gradients(self, x: NDArray[np.float64], block: Block) -> NDArray[np.float64]:
        marked = np.any(block.features[:, 0] == MARK) and not (self.once and self.once.exists())
        if marked and not (self.spared and self._machine() == self.spared):
            if self.once:
                self.once.touch()
            if self.fault == "exit":
                os._exit(1)
            if self.fault == "machine":
                os.kill(os.getppid(), signal.SIGKILL)
            if self.fault in ("machine", "sleep"):
                time.sleep(600)
            raise RunFailed("the node is out of order")
        return super().user_gradients(x, block)

    def _machine(self) -> str:
        import ray

        return ray.get_runtime_context().get_node_id()


WILD = np.array([0.0, 1.0, -1.0, 0.3, 1e300, -1e300, 5e-324, np.nan, np.inf, -np.inf])
"""The values that a user of `Wild` may answer in a coordinate."""


class Wild(Quadratic):
    """Each user's one sample says which entries of `WILD` its gradient has: the worst users there can be."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension, 100.0, 200.0)

    def user_gradients(self, x: NDArray[np.float64], block: Block) -> NDArray[np.float64]:
        return np.asarray(WILD[block.features.astype(np.int64)])

    def sample_gradients(self, x: NDArray[np.float64], block: Block) -> NDArray[np.float64]:
        return np.asarray(WILD[block.features.astype(np.int64)])

    def sample_losses(self, x: NDArray[np.float64], block: Block) -> NDArray[np.float64]:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(WILD[block.features.astype(np.int64)] @ x)


class Silent(NoiseSource):
    def gaussian(self, value, deviation):
        return np.array(value)

    def laplace(self, value, scale):
        return np.array(value)

    def choose(self, scores, epsilon, *, flips=False):
        return np.argmax(in_units(scores), axis=1)


def noise_matrix(factorisation: Factorisation) -> NDArray[np.float64]:
    """B, column by column: what unit vectors come out as."""
    noise = factorisation.noise()
    return np.array([noise.add(row) for row in np.eye(factorisation.rounds)])


@cache
def encoder(kind: str, rounds: int, separation: int) -> NDArray[np.float64]:
    """C = B^-1 A, from the noise that is really added."""
    return np.linalg.solve(noise_matrix(FACTORISATIONS[kind](rounds, separation)), np.tril(np.ones((rounds, rounds))))


@contextmanager
def at_most(runs):
    """Comparisons make no more runs than these, as if they were stopped then and wrote their files; None for all."""
    from simulations.comparison import jobs

    made = jobs._executor

    @contextmanager
    def stopped(workers, engine):
        left = runs
        with made(workers, engine) as execute:

            def some(wanted, root):
                nonlocal left
                now = wanted if left is None else wanted[:left]
                left = left and left - len(now)
                return execute(now, root)

            yield some

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "_executor", stopped)
        yield


def charged_twice(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> None:
    """Let whatever that method of a class draws cost twice what it does, as if noise were too little."""
    of, charge = getattr(kind, method), NoiseSource.charge

    def costly(*given: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NoiseSource, "charge", lambda source, cost: charge(source, together(cost, cost)))
            return of(*given, **options)

    monkeypatch.setattr(kind, method, costly)
