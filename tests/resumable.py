"""Small runs of every strategy that tests stop and continue. A fresh process imports it, so no test lives here."""

import contextlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from any_strategy import halves, options_of, problem_of
from flwr.app import MetricRecord
from helpers import local_grid, strategy_of

from strategies import STRATEGIES, UserLevelStrategy, model_vector
from strategies.auto.preparation import LearnCoordinates
from strategies.core.public_facts import PublicFacts
from strategies.core.run_state import Resumed
from userdp.accounting import Privacy
from userdp.data import ColumnarFederation, Federation
from userdp.problems.base import Problem
from userdp.snapshots import Snapshot

USERS = 400
FACTORISATIONS = ("square_root", "tree", "banded", "banded_inverse_square_root", "banded_inverse", "buffered")


@dataclass(frozen=True)
class Run:
    """A small run.

    Attributes:
        strategy: its name.
        options: those that are not the strategy's example's.
        problem: a name of `problem_cases.cases`; the strategy's example problem if not given.
        noise: of `Privacy`.
        epsilon: the same.
    """

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    noise: str = "seeded"
    epsilon: float = 8.0

    def method(self) -> UserLevelStrategy:
        kind = STRATEGIES[self.strategy]
        known = {"deviation": 1.0} if "deviation" in kind.model_fields else {}
        return strategy_of(
            kind,
            self._problem(),
            PublicFacts(USERS, min_samples=1, max_samples=1, samples=USERS),
            Privacy(self.epsilon, 1e-4, kind.about.units[0], allow_large_delta=True, noise=self.noise),
            seed=0,
            **options_of(self.strategy) | known | self.options,
        )

    def _problem(self) -> Problem:
        if self.problem is None:
            return problem_of(self.strategy)
        from problem_cases import cases

        return cases(2)[self.problem].problem

    def _data(self, problem: Problem) -> Federation:
        if self.problem is None:
            return halves(problem, USERS)
        from problem_cases import cases

        return ColumnarFederation(cases(2)[self.problem].block([1] * USERS))

    def trained(self, method: UserLevelStrategy | None = None, **start: Any) -> dict[str, Any]:
        """Every number that the run hands out, but for seconds: models, records, what is spent."""
        method = method or self.method()
        with local_grid(method.original, self._data(method.original)) as grid:
            result = method.start(grid, **start)
        ledger = None if method.program.own.ledger is None else method.program.own.ledger.state()
        rounds = [record.as_dict() | {"seconds": None, "spent": record.spent_epsilon} for record in result.rounds]
        return {
            "model": model_vector(result.arrays).tobytes(),
            "rounds": [{name: str(value) for name, value in values.items()} for values in rounds],
            "guarantee": result.guarantee,
            "initial": result.initial_metrics,
            "ledger": None if ledger is None else {key: np.asarray(value).tobytes() for key, value in ledger.items()},
            "spent": method.spent_epsilon,
            "evaluated": {number: dict(one) for number, one in result.evaluate_metrics_serverapp.items()},
            "missing": {number: dict(one) for number, one in result.train_metrics_clientapp.items()},
        }


def measured(server_round, arrays):
    return MetricRecord({"first": float(model_vector(arrays)[0]), "round": float(server_round)})


class Kept:
    """Keeps everything in the form of a file: JSON text and arrays."""

    def __init__(self):
        self.kept, self.asked = [], {}

    def ask(self, taken):
        self.asked[len(self.kept)] = stored(taken)

    def keep(self, take, *, must):
        self.kept.append(stored(take()))


def stored(taken):
    return Snapshot(json.loads(json.dumps(taken.values, allow_nan=False)), taken.arrays)


class Killed(Exception):
    """Ends a run after a round."""


def kept_by(run: Run, resumed: Snapshot | None = None, rounds: int | None = None) -> list[Snapshot]:
    """The snapshots of a process: at its start, then after each round, for so many rounds or to the end of the run."""
    keeper = Kept()

    def killed(record):
        if rounds is not None and len(keeper.kept) > rounds:
            raise Killed

    with contextlib.suppress(Killed):
        resumption = {} if resumed is None else {"resumed": Resumed(resumed)}
        run.trained(evaluate_fn=measured, keeper=keeper, on_round=killed, **resumption)
    return keeper.kept


def bits(kept: Snapshot) -> tuple[str, list[tuple[Any, ...]]]:
    """A snapshot but for the seconds that rounds took."""
    records = [
        {"dict": [pair for pair in record["dict"] if pair[0] != "seconds"]} for record in kept.values["records"]["list"]
    ]
    values = kept.values | {"records": records}
    arrays = [
        # How an array lies in memory; one of no numbers lies anyhow.
        (key, array.dtype.str, array.shape, array.strides if array.size else (), array.tobytes())
        for key, array in kept.arrays.items()
    ]
    return json.dumps(values, sort_keys=True), arrays


def strays(run: Run, kept: list[Snapshot], after: Iterable[int] | None = None) -> list[int]:
    """After which rounds, of all or of those named, a new strategy does not go on as the one did that kept all this.

    It takes a checkpoint over, keeps its own at once, which must be the same, and plays one more round, which must end
    in the next checkpoint. So if all are tried, by induction it ends in the same model from whichever round it starts.
    """
    found = []
    for number in range(len(kept)) if after is None else after:
        expected = kept[number : number + 2] if run.noise == "seeded" else kept[number : number + 1]
        again = kept_by(run, kept[number], rounds=1)[: len(expected)]
        if list(map(bits, again)) != list(map(bits, expected)):
            found.append(number)
    return found


def written(kept: list[Snapshot], path: Path) -> None:
    arrays = {f"{number}.{key}": array for number, one in enumerate(kept) for key, array in one.arrays.items()}
    texts = json.dumps([one.values for one in kept]).encode()
    np.savez(path, values=np.frombuffer(texts, np.uint8), **arrays)


def read(path: Path) -> list[Snapshot]:
    with np.load(path, allow_pickle=False) as archive:
        texts = json.loads(archive["values"].tobytes())
        arrays: list[dict[str, Any]] = [{} for _ in texts]
        for key in archive.files:
            number, _, name = key.partition(".")
            if name:
                arrays[int(number)][name] = archive[key]
    return [Snapshot(values, held) for values, held in zip(texts, arrays, strict=True)]


RUNS = {
    **{name: Run(name) for name in STRATEGIES},
    # Its example plans a single round.
    "localized_robust_sgd": Run("localized_robust_sgd", {"phases": 3}),
    **{f"dp_ftrl, {kind}": Run("dp_ftrl", {"factorisation": kind, "rounds": 7}) for kind in FACTORISATIONS},
    **{
        f"{name}, {kind}": Run(name, {"server_optimiser": kind, "rounds": 4})
        for name in ("adaptive_clipping", "dp_fed_sgd", "dp_fed_avg")
        for kind in ("momentum", "adam")
    },
    **{f"{name}, averaged": Run(name, {"ema_decay": 0.8, "rounds": 4}) for name in ("adaptive_clipping", "dp_fed_sgd")},
    "adaptive_clipping, found": Run("adaptive_clipping", {"find_clip": True, "local_steps": 1, "rounds": 3}),
    **{f"{kind}, sampled": Run("dp_fed_sgd", {"sampling": kind, "rounds": 4}) for kind in ("poisson", "allocation")},
    "stopped_sgd, runs": Run("stopped_sgd", {"runs": 3}),
    "stopped_sgd, random runs": Run("stopped_sgd", {"runs": 3, "output": "random", "gap": 1.0}),
    **{f"stopped_sgd, {kind}": Run("stopped_sgd", {"output": kind, "gap": 1.0}) for kind in ("average", "random")},
    **{
        f"localized_robust_sgd, {kind}": Run("localized_robust_sgd", {"phases": 3, "test": kind})
        for kind in ("above_threshold", "min_score")
    },
    "robust_rounds, above_threshold": Run(
        "robust_rounds", {"radius": 1.0, "rounds": 4, "epochs": 4, "test": "above_threshold"}
    ),
    "non_private, accelerated": Run("non_private", {"rounds": 5, "learning_rate": 0.1}),
    "non_private, adam": Run("non_private", {"rounds": 5, "optimiser": "adam"}),
    "compared": Run("dp_fed_sgd", {"rounds": 3, "compare_with_initial": True}),
    "prepared": Run("dp_fed_sgd", {"rounds": 3, "preparation": LearnCoordinates}),
    "prepared and compared": Run(
        "dp_ftrl", {"rounds": 3, "preparation": LearnCoordinates, "compare_with_initial": True}
    ),
    **{
        f"secure, {name}": Run(name, options, noise="secure")
        for name, options in (
            ("dp_fed_sgd", {"sampling": "poisson", "rounds": 4}),
            ("adaptive_clipping", {"sampling": "allocation", "rounds": 4}),
            ("dp_ftrl", {"rounds": 4}),
            ("robust_rounds", {"radius": 1.0, "rounds": 4, "epochs": 4, "test": "above_threshold"}),
            ("localized_robust_sgd", {"phases": 3}),
            ("auto", {}),
        )
    },
    **{f"auto, {kind}": Run("auto", {}, kind) for kind in ("poisson_ridge", "softmax_ridge_intercept", "huber")},
    "auto, coefficients": Run("auto", {"coefficients": 0.5}, "squared_intercept"),
    # Of many steps, so small an epsilon takes few.
    "auto, torch_bce": Run("auto", {}, "torch_bce", epsilon=0.01),
    "auto, torch_bce, replace_one": Run("auto", {"relation": "replace_one"}, "torch_bce", epsilon=0.01),
}
"""Every memory that a server can have."""

PROBLEMS = (
    *("linear", "quadratic", "huber", "bernoulli", "logistic", "squared_intercept", "huber_regression_ridge"),
    *("biweight_regression_ridge", "lp_regression", "poisson_ridge", "softmax", "sparse_logistic", "sparse_squared"),
    *("one_hot_logistic", "one_hot_squared", "one_hot_poisson", "torch_bce"),
)
"""One of each kind."""
PAIRS = {
    f"{name} on {problem}": Run(name, {}, problem, epsilon=0.01 if (name, problem) == ("auto", "torch_bce") else 8.0)
    for name in STRATEGIES
    for problem in PROBLEMS
}
"""Every strategy on every kind of problem; many are refused."""


def main(folder: Path) -> None:
    """In a fresh process: go on from every checkpoint of the folder, and say what strays."""
    files = sorted(folder.glob("*.npz"))
    for path in files:
        for number in strays((RUNS | PAIRS)[path.stem], read(path)):
            print(f"{path.stem}: not from round {number}")
    print(f"{len(files)} runs resumed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
