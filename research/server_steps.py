"""Server steps that cost no privacy, on three neural models of real people: which of them are worth having.

All follow the same noisy means with Adam, the server's optimiser of simulations/configs/compare-neural.toml, and change
what the server does with them; the strategy of each set is the one that its table shows as the best at small budgets.
Every model of a run is kept until its end, so that averages over the last of them are measured on the same run. Adds a
row for each to results/server_steps.csv: it may be stopped at any time, and goes on where it stood. research/README.md
shows the table (docs/make.py).

    python research/server_steps.py                             all that the table does not have yet
    python research/server_steps.py --only pupils --seeds 17    this set, this seed
    python research/server_steps.py --steps adam shrunk         these steps
    python research/server_steps.py --left                      run nothing; say what is missing

First runs have seed 17, and what they show to be promising runs again with the seeds of the table.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from neural_table import comparison
from neural_trivial import TRIVIAL
from scipy import linalg

from simulations.config.run_config import RunConfig
from simulations.configs import neural_models
from simulations.engines.configured import make_grid
from simulations.records.environment import versions
from simulations.records.evaluation import Evaluation
from simulations.runs.build import load_datasets, public_facts, starting_problem
from strategies import STRATEGIES, Descent, Given, Recipe, Scheme, model_vector
from userdp.arrays.types import Array, Vector
from userdp.data import Block
from userdp.data.source import Datasets
from userdp.problems import Problem

RESULTS = Path(__file__).resolve().parent / "results" / "server_steps.csv"
SETS = {
    "pupils": ("dp_fed_sgd", neural_models.NextAnswer),
    "roles": ("adaptive_clipping", neural_models.NextCharacter),
    "writers": ("adaptive_clipping", neural_models.Digit),
}
"""The set, the strategy that is best on it at small budgets, and its model."""
EPSILONS, SEEDS, TRIED = (1.0, 2.0), (0, 1, 2), 17
FIRST = (
    *(("adam", 1.0), ("adam", 2.0), ("falling", 2.0), ("filtered", 1.0), ("filtered", 2.0)),
    *(("orthogonal", 1.0), ("orthogonal_above", 1.0), ("shrunk", 1.0), ("shrunk_momentum", 1.0)),
)
AGAIN = (("adam", 2.0), ("filtered", 1.0))
"""Steps, and their size over the configured one; Adam's own size is in neural_table.csv."""
DECAYS = (0.5, 0.7, 0.8, 0.9)
"""Weight of a model in an average over those of a run, as a share of the weight of the next."""
KEY = ("problem", "strategy", "epsilon", "seed", "step", "rate")
COLUMNS = (*KEY, "released", "metric", "value", "seconds", "torch", "userdp")
KEPT, AHEAD = 0.7, 3 / 7  # DiSK's kappa and gamma


@dataclass(frozen=True)
class Matrix:
    """A weight matrix: where it lies in the model's vector, and its shape; of a convolution a row for each output."""

    place: slice
    rows: int
    columns: int

    def of(self, x: Vector) -> Array:
        return x[self.place].reshape(self.rows, self.columns)


def matrices(make: Callable[[], Any]) -> tuple[Matrix, ...]:
    """The weight matrices of a torch module, in the order of its parameters."""
    found, start = [], 0
    for tensor in make().parameters():
        size = tensor.numel()
        if tensor.ndim > 1:
            found.append(Matrix(slice(start, start + size), len(tensor), size // len(tensor)))
        start += size
    return tuple(found)


def shrunk(matrix: Array, deviation: float) -> Array:
    """A matrix whose entries have noise of this deviation, its singular values cut back by what the noise added.

    With y = value / (s sqrt n) for an m x n matrix, beta = m / n <= 1: sqrt((y^2 - beta - 1)^2 - 4 beta) / y above
    1 + sqrt(beta), else 0, which has the least squared error (Gavish, Donoho 2017, Frobenius norm).
    """
    if not deviation:
        return matrix
    small, large = sorted(matrix.shape)
    beta, unit = small / large, deviation * math.sqrt(large)
    left, values, right = linalg.svd(matrix, full_matrices=False)
    y = values / unit
    above = y > 1 + math.sqrt(beta)
    kept = np.zeros_like(y)
    kept[above] = np.sqrt((y[above] ** 2 - beta - 1) ** 2 - 4 * beta) / y[above] * unit
    return np.asarray(left * kept @ right)


def orthogonal(matrix: Array, deviation: float, *, gated: bool) -> Array:
    """Polar factor as long as an Adam step (Liu et al. 2025); ``gated``: of singular values above the noise's alone."""
    left, values, right = linalg.svd(matrix, full_matrices=False)
    edge = deviation * (math.sqrt(len(matrix)) + math.sqrt(matrix.shape[1])) if gated else 0.0
    return np.asarray(0.2 * math.sqrt(max(matrix.shape)) * (left * (values > edge)) @ right)


class Adam(Descent):
    """The product's Adam, whose parts others change."""

    remembered: ClassVar[tuple[str, ...]] = ("first", "second", "variance", "steps", "spread")
    given: ClassVar[tuple[str, ...]] = (*Descent.given, "matrices", "rounds")
    MOMENTUM, SECOND, ADAPTIVITY = 0.9, 0.99, 1e-6

    def __init__(self, rate: float, dimension: int, rounds: int, matrices: Sequence[Matrix]) -> None:
        super().__init__(rate)
        self.first, self.second = np.zeros(dimension), np.zeros(dimension)
        self.variance, self.steps, self.rounds, self.matrices = 0.0, 0, rounds, matrices
        self.spread = np.zeros(dimension)

    def step(self, x: Vector, gradient: Vector, deviation: float) -> Vector:
        gradient = self.read(gradient, deviation)
        self.steps += 1
        self.first = self.MOMENTUM * self.first + (1 - self.MOMENTUM) * gradient
        self.second = self.SECOND * self.second + (1 - self.SECOND) * gradient**2
        self.variance = self.MOMENTUM**2 * self.variance + (1 - self.MOMENTUM) ** 2 * deviation**2
        begun = 1 - self.MOMENTUM**self.steps
        root = np.sqrt(self.second / (1 - self.SECOND**self.steps)) + self.ADAPTIVITY
        moved = self.direction(self.first / begun, root, math.sqrt(self.variance) / begun)
        self.spread += (self.rate_now() * deviation / root) ** 2
        return np.asarray(x - self.rate_now() * moved)

    def read(self, gradient: Vector, deviation: float) -> Vector:
        """The gradient to follow."""
        return gradient

    def direction(self, first: Vector, root: Vector, deviation: float) -> Vector:
        """The step, from the mean of gradients, whose entries have noise of this deviation, and Adam's root."""
        return first / root

    def rate_now(self) -> float:
        return self.rate

    def cut_back(self, start: Vector, end: Vector) -> Vector:
        """The model, with singular values of the whole way from the start cut back by the noise of all steps."""
        result = end.copy()
        for matrix in self.matrices:
            deviation = math.sqrt(self.spread[matrix.place].mean())
            moved = matrix.of(end) - matrix.of(start)
            result[matrix.place] = (matrix.of(start) + shrunk(moved, deviation)).ravel()
        return result

    def each(self, x: Vector, change: Callable[[Array], Array], into: Vector | None = None) -> Vector:
        """Change each weight matrix of x, and put it into a copy of another vector."""
        result = (x if into is None else into).copy()
        for matrix in self.matrices:
            result[matrix.place] = change(matrix.of(x)).ravel()
        return result


class Shrunk(Adam):
    """Singular values of every gradient are cut back."""

    def read(self, gradient: Vector, deviation: float) -> Vector:
        return self.each(gradient, partial(shrunk, deviation=deviation))


class ShrunkMomentum(Adam):
    """Singular values of the mean of gradients are cut back, by its noise."""

    def direction(self, first: Vector, root: Vector, deviation: float) -> Vector:
        return self.each(first, partial(shrunk, deviation=deviation)) / root


class Orthogonal(Adam):
    """Muon: polar factor of the mean of gradients for matrices, Adam for the rest."""

    gated: ClassVar[bool] = False

    def direction(self, first: Vector, root: Vector, deviation: float) -> Vector:
        return self.each(first, partial(orthogonal, deviation=deviation, gated=self.gated), first / root)


class OrthogonalAbove(Orthogonal):
    """The same, of those directions that stand out of the noise."""

    gated: ClassVar[bool] = True


class Falling(Adam):
    """A step size that falls linearly to nothing."""

    def rate_now(self) -> float:
        return self.rate * (1 - (self.steps - 1) / self.rounds)


class Filtered(Adam):
    """DiSK: a filter of gradients, taken ahead of the model by a share of its last step."""

    remembered: ClassVar[tuple[str, ...]] = (*Adam.remembered, "filtered")
    given: ClassVar[tuple[str, ...]] = (*Adam.given, "ahead")

    def __init__(self, *given: Any, ahead: "Ahead") -> None:
        super().__init__(*given)
        self.ahead, self.filtered = ahead, np.zeros(len(self.first))

    def read(self, gradient: Vector, deviation: float) -> Vector:
        self.filtered = (1 - KEPT) * self.filtered + KEPT * gradient if self.steps else gradient
        return self.filtered

    def step(self, x: Vector, gradient: Vector, deviation: float) -> Vector:
        moved = super().step(x, gradient, deviation)
        self.ahead.move = moved - x
        return moved


class Ahead:
    """Users' gradients for DiSK: ``a grad(x + gamma d) + (1 - a) grad(x)``, a = (1 - kappa) / (kappa gamma)."""

    def __init__(self, problem: Problem) -> None:
        self.move: Vector | None = None
        self.plain = problem.user_gradients_at
        problem.user_gradients_at = self.gradients  # type: ignore[method-assign]

    def gradients(self, models: Array, block: Block) -> Any:
        share = (1 - KEPT) / (KEPT * AHEAD)
        if self.move is None:
            return self.plain(models, block)
        found = self.plain(models + AHEAD * self.move, block)
        return found if math.isclose(share, 1) else share * found + (1 - share) * self.plain(models, block)


STEPS: dict[str, type[Adam]] = {
    "adam": Adam,
    "falling": Falling,
    "shrunk": Shrunk,
    "shrunk_momentum": ShrunkMomentum,
    "orthogonal": Orthogonal,
    "orthogonal_above": OrthogonalAbove,
    "filtered": Filtered,
}


@dataclass(frozen=True)
class Piece:
    """A run of the script; its step size is ``rate`` times the configured one."""

    problem: str
    epsilon: float
    seed: int
    step: str
    rate: float

    @property
    def key(self) -> tuple[str, str, float, int, str, float]:
        """The values that identify it."""
        return self.problem, SETS[self.problem][0], self.epsilon, self.seed, self.step, self.rate

    def rows(self) -> list[dict[str, Any]]:
        """Run it, and measure its models: the last, averages, and the last cut back."""
        started = time.perf_counter()
        strategy = SETS[self.problem][0]
        config = config_of(self.problem, strategy, self.epsilon, self.seed)
        problem, datasets = starting_problem(config), datasets_of(self.problem, self.seed)
        facts = public_facts(config, datasets.train)
        recipe = stepping(type(STRATEGIES[strategy]()), partial(self._descent, problem))
        run = recipe(**config.strategy_options).strategy(problem, facts, config.privacy.budget, seed=self.seed)
        models: list[Vector] = []
        with make_grid(config, problem, datasets) as grid:
            run.start(grid, evaluate_fn=lambda _, arrays: models.append(model_vector(arrays)))
        own: Adam = getattr(run.memory, "optimiser", run.memory)
        released = {f"average {decay:g}": averaged(models[1:], decay) for decay in DECAYS}
        released |= {"last": models[-1], "shrunk": own.cut_back(models[0], models[-1])}
        measure, metric, told = Evaluation(problem, datasets.train, datasets.test), TRIVIAL[self.problem][0], versions()
        values = {name: measure.whole(model)[metric] for name, model in released.items()}
        common = dict(zip(KEY, self.key, strict=True)) | {"metric": metric, "seconds": time.perf_counter() - started}
        common |= {name: told[name] for name in ("torch", "userdp")}
        return [common | {"released": name, "value": value} for name, value in values.items()]

    def _descent(self, problem: Problem, plain: Descent, rounds: int) -> Adam:
        """This step in the place of a strategy's own."""
        given = self.rate * plain.rate, problem.dimension, rounds, matrices(SETS[self.problem][1])
        return Filtered(*given, ahead=Ahead(problem)) if self.step == "filtered" else STEPS[self.step](*given)


def stepping(recipe: type[Recipe], descent: Callable[[Descent, int], Descent]) -> type[Recipe]:
    """A recipe whose server follows its noisy means by another descent."""

    class Stepping(recipe):  # type: ignore[misc,valid-type]
        def scheme(self, given: Given) -> Scheme:
            plain = super().scheme(given)

            def memory() -> Any:
                first = plain.new_memory()
                if isinstance(first, Descent):
                    return descent(first, plain.outline.rounds)
                return replace(first, optimiser=descent(first.optimiser, plain.outline.rounds))

            return replace(plain, new_memory=memory)

    return Stepping


def config_of(problem: str, strategy: str, epsilon: float, seed: int) -> RunConfig:
    """A cell of the table, with any seed."""
    cells = comparison().cells
    wanted = problem, strategy, epsilon
    cell = next(one for one in cells if (one.problem, one.strategy, one.grid["privacy.epsilon"]) == wanted)
    return cell.config(seed=seed)


@lru_cache(maxsize=len(SETS))
def datasets_of(problem: str, seed: int) -> Datasets:
    """Users of a set, read once for many runs."""
    return load_datasets(config_of(problem, SETS[problem][0], EPSILONS[0], seed))


def averaged(models: Sequence[Vector], decay: float) -> Vector:
    """The average of models, the last of weight one, and each before it of ``decay`` times the weight of the next."""
    weights = decay ** np.arange(len(models))[::-1]
    return np.asarray(np.average(models, axis=0, weights=weights))


def measured(path: Path) -> pd.DataFrame:
    """The rows that there are."""
    return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=list(COLUMNS))


def add(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows to the table; written whole, so that a stop leaves no half."""
    table, new = measured(path), pd.DataFrame(rows, columns=list(COLUMNS))
    frame = new if table.empty else pd.concat([table, new], ignore_index=True)
    partial_file = path.with_name(f".{path.name}.partial")
    frame.sort_values([*KEY, "released"]).to_csv(partial_file, index=False, float_format="%.6g")
    partial_file.replace(path)


def pieces() -> list[Piece]:
    """The runs that the page shows: every step once, then the promising ones with the table's seeds."""
    first = [Piece(problem, EPSILONS[0], TRIED, *one) for problem in SETS for one in FIRST]
    again = product(EPSILONS, SETS, AGAIN, SEEDS)
    return first + [Piece(problem, epsilon, seed, *one) for epsilon, problem, one, seed in again]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS), help="sets to run")
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS), help="steps to run")
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0, 2.0], help="step sizes over the configured one")
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS), help="budgets to run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[TRIED, *SEEDS], help="seeds to run")
    parser.add_argument("--left", action="store_true", help="run nothing; say what is missing")
    parser.add_argument("--csv", type=Path, default=RESULTS, help=f"the table (default {RESULTS.name} in results)")
    arguments = parser.parse_args()
    wanted = [
        piece
        for piece in pieces()
        if piece.problem in arguments.only
        and piece.step in arguments.steps
        and piece.rate in arguments.rates
        and piece.epsilon in arguments.epsilons
        and piece.seed in arguments.seeds
    ]
    there = set(measured(arguments.csv)[list(KEY)].itertuples(index=False, name=None))
    left = [piece for piece in wanted if piece.key not in there]
    for piece in left:
        if arguments.left:
            print(*piece.key)
            continue
        rows = piece.rows()
        add(arguments.csv, rows)
        told = ", ".join(f"{row['released']} {row['value']:.4f}" for row in rows)
        print(*piece.key, f"{told}, {rows[0]['seconds']:.0f} s", flush=True)
    if arguments.left:
        print(f"{len(left)} of {len(wanted)} are missing")


if __name__ == "__main__":
    main()
