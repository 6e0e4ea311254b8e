"""Two tables that differ in one person's rows, run by the command line: nothing released moves further than it may.

Noise is taken off by looking at what each mechanism is given. Up to the first release that differs, everything that
a mechanism is given may differ by its sensitivity and no more, on every path from a cell to a release: the table
reader, bounds, losses, nodes, grids, strategies. The two runs end alike, and no node falls silent.
"""

import gc
import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from any_strategy import options_of
from helpers import PATIENCE, forgive_ray
from typer.testing import CliRunner

from simulations.cli import app
from simulations.config.run_config import parse_config
from simulations.deployment.__main__ import app as silo_app
from simulations.engines.grids import LocalGrid
from simulations.runs.build import build_problem
from simulations.runs.policy import POLICY, RUNS
from simulations.runs.run import run
from simulations.runs.silos import silo_node
from strategies import STRATEGIES
from strategies.baselines.peeling import Peeling
from strategies.baselines.rotation.rotation import CellGrid
from strategies.core.base import UserLevelStrategy
from strategies.core.mean_rounds import MeanRounds
from userdp.data.tables.public import PUBLIC_DATASETS
from userdp.errors import BadInput
from userdp.mechanisms import (
    AboveThreshold,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    MinimumScore,
    Session,
)
from userdp.mechanisms.prefix_sums import PrefixSums
from userdp.nodes.computations import LocalNoise
from userdp.noise import SecureNoise, SeededNoise, in_units

# What mechanisms are given ------------------------------------------------------------------------------------------


@dataclass
class Given:
    """The input of one mechanism in one round, and how far one user (or sample) may move it."""

    round: int
    kind: str
    value: np.ndarray
    sensitivity: float
    outcome: Any = None

    def distance(self, other: "Given") -> float:
        moved = (self.value - other.value).ravel()
        if self.kind == "choice":  # the same constant on all scores changes no probability
            return float(np.ptp(moved)) / 2
        if self.kind == "rows":  # each user releases its own
            return float(np.linalg.norm(self.value - other.value, axis=1).max())
        return float(np.linalg.norm(moved, {"gaussian": 2, "laplace": 1}.get(self.kind, np.inf)))


@dataclass
class Log:
    given: list[Given] = field(default_factory=list)
    round: int = 0
    scheme: Any = None
    inside: int = 0

    def add(self, kind: str, value: Any, sensitivity: float) -> Given:
        values = np.array(value, dtype=np.float64)
        assert np.isfinite(values).all()
        self.given.append(Given(self.round, kind, values, sensitivity))
        return self.given[-1]


@contextmanager
def recording():
    """A `Log` of what happens within; noise that no recorded mechanism draws is an error."""
    log = Log()
    with pytest.MonkeyPatch.context() as patch:

        def around(owner, name, describe):
            original = getattr(owner, name)

            def wrapped(self, *arguments):
                entry = describe(self, *arguments)
                log.inside += 1
                try:
                    result = original(self, *arguments)
                finally:
                    log.inside -= 1
                if entry is not None:
                    entry.outcome = result
                return result

            patch.setattr(owner, name, wrapped)

        around(GaussianMechanism, "release", lambda m, value, noise: log.add("gaussian", value, m.l2_sensitivity))
        around(LaplaceMechanism, "release", lambda m, value, noise: log.add("laplace", value, m.sensitivity))
        around(ExponentialMechanism, "choose", lambda m, scores, noise: log.add("choice", scores.values, m.sensitivity))
        around(Peeling, "release", lambda m, step, noise: log.add("peeling", step.values, m.sensitivity))
        around(CellGrid, "select", lambda grid, rows, epsilon, noise: log.add("cells", grid.scores(rows).values, 1.0))
        around(PrefixSums, "release", lambda sums, mean, noise: log.add("gaussian", mean, one_round(log.scheme)))
        around(LocalNoise, "add", lambda noise, rows, users: own_rows(log, rows))
        started_by = []  # a session has no attribute for it: whenever a checkpoint is written it would be refused
        for test in (AboveThreshold, MinimumScore):
            session = test.session

            def started(self, noise, session=session):
                log.inside += 1
                made = session(self, noise)
                log.inside -= 1
                started_by.append((made, self.sensitivity))
                return made

            patch.setattr(test, "session", started)

        def observed(session, score):
            (moved,) = (sensitivity for made, sensitivity in started_by if made is session)
            return log.add("score", score.values, moved)

        around(Session, "observe", observed)

        def drawn(original):
            def wrapped(self, *arguments, **options):
                assert log.inside, "noise is drawn outside of all mechanisms that this test knows"
                return original(self, *arguments, **options)

            return wrapped

        for method in ("gaussian", "laplace", "choose"):
            patch.setattr(SeededNoise, method, drawn(getattr(SeededNoise, method)))
            # What the operating system draws would differ between two runs.
            plain = {"choose": lambda self, scores, epsilon, flips: np.argmax(in_units(scores), axis=1)}
            same = plain.get(method, lambda self, value, scale: np.asarray(value, dtype=np.float64))
            patch.setattr(SecureNoise, method, drawn(same))
        aggregate = UserLevelStrategy.aggregate_train

        def aggregated(self, server_round, replies):
            log.round, log.scheme = server_round, self.scheme
            return aggregate(self, server_round, replies)

        patch.setattr(UserLevelStrategy, "aggregate_train", aggregated)
        yield log


def one_round(scheme: MeanRounds) -> float:
    return scheme.mechanism.l2_sensitivity / scheme.sampler.sensitivity


def own_rows(log: Log, rows: np.ndarray) -> Given:
    """The rows that users release themselves, block by block; only one may differ, and by twice the clip (1)."""
    last = log.given[-1] if log.given else None
    if last is None or (last.round, last.kind) != (log.round, "own"):
        return log.add("own", rows, 2.0)
    last.value = np.concatenate([last.value, rows])
    return last


def check(first: Log, second: Log, group: float, fault: str) -> bool:
    """Everything given up to the end of the round of the first release that differs; whether one differs."""
    moved = None
    for one, two in zip(first.given, second.given, strict=False):
        if moved is not None and one.round > moved:
            return True
        assert (one.round, one.kind, one.value.shape) == (two.round, two.kind, two.value.shape)
        assert one.sensitivity == two.sensitivity
        distance = one.distance(two)
        assert distance <= group * one.sensitivity * (1 + 1e-9), (fault, one.kind, one.round, distance)
        if one.kind != "score" and distance > 0:
            moved = one.round
        if one.kind in ("choice", "cells", "score") and not np.array_equal(one.outcome, two.outcome):
            return True
    assert len(first.given) == len(second.given)
    return moved is not None


# Tables -------------------------------------------------------------------------------------------------------------

USERS, ROWS = 320, 2
CELLS = {"a": 0.3, "b": -0.4, "n": 3, "team": "red", "k": 1, "y": 0.5, "passed": "yes", "d": "2001-05-05"}
"""Columns: two measures, a whole number, a level, a class, a target, a target of two, and a date."""


def everybody(own: list[dict[str, Any]]) -> dict[str, list]:
    """The columns of a table whose last person, "zoe", holds these rows."""
    rng = np.random.default_rng(5)
    total = (USERS - 1) * ROWS
    columns = {
        "who": [f"u{user:03d}" for user in np.repeat(np.arange(USERS - 1), ROWS)],
        "a": rng.uniform(0.2, 0.4, total).round(3).tolist(),
        "b": rng.uniform(-0.5, -0.3, total).round(3).tolist(),
        "n": rng.integers(0, 10, total).tolist(),
        "team": rng.choice(["red", "green", "blue"], total).tolist(),
        "k": rng.integers(0, 3, total).tolist(),
        "y": rng.uniform(0.4, 0.6, total).round(3).tolist(),
        "passed": rng.choice(["yes", "no"], total).tolist(),
        "d": [f"200{day // 28}-03-{day % 28 + 1:02}" for day in rng.integers(0, 280, total)],
    }
    return {name: cells + [({"who": "zoe"} | row)[name] for row in own] for name, cells in columns.items()}


def write(path, columns: dict[str, list]) -> None:
    """CSV, or Parquet with the types that programs choose: one text makes all of a column texts."""
    if path.suffix == ".csv":
        pd.DataFrame(columns, dtype=object).to_csv(path, index=False)
        return
    texts = {name for name, cells in columns.items() if any(isinstance(cell, str) for cell in cells)}
    as_text = {name: [None if cell is None else str(cell) for cell in columns[name]] for name in texts}
    pd.DataFrame(columns | as_text).to_parquet(path)


def person(fault: str | None = None) -> list[dict[str, Any]]:
    rows = [dict(CELLS) for _ in range(ROWS)]
    if fault == "fewer":
        return rows[:1]
    if fault == "more":
        return rows + [CELLS | {"a": -0.9, "y": -0.9, "team": "blue", "n": 9, "k": 2}] * 1000
    if fault is not None:
        rows[1] |= dict([FAULTS[fault]])
    return rows


FAULTS = {
    "nothing": ("a", None),
    "not a number": ("a", "nan"),
    "infinite": ("a", float("-inf")),
    "out of range": ("a", -7.5),
    "huge": ("a", 1e300),
    "text": ("a", "tall"),
    "half": ("n", 2.5),
    "huge count": ("n", 1e300),
    "level": ("team", "violet"),
    "no level": ("team", None),
    "no class": ("k", 7),
    "half a class": ("k", 1.5),
    "no target": ("y", None),
    "infinite target": ("y", float("inf")),
    "huge target": ("y", 1e300),
    "text as target": ("y", "good"),
    "unknown answer": ("passed", "maybe"),
    "no answer": ("passed", None),
    "no date": ("d", "05/06/2001"),
    "far date": ("d", "9999-12-31T23:59:59-12:00"),
    "date of another kind": ("d", 20010506),
}
"""Each puts one cell into one row of zoe's."""
COMMON = {"nothing", "text", "level", "no target", "no class", "fewer", "more"}
COMMON |= {"half", "no level", "unknown answer", "no answer"}
"""What every strategy is tried with at once; the other faults take longer."""


# Runs ---------------------------------------------------------------------------------------------------------------

NUMBERS = {
    "features": ["a", "b"],
    "ranges": {"a": [-1.0, 1.0], "b": [-1.0, 1.0]},
    "categorical": {"team": ["red", "green", "blue"]},
    "target": "y",
    "target_range": [-1.0, 1.0],
}
FILLED = NUMBERS | {
    "impute": {"a": 0.5, "team": "own level"},
    "missing_indicators": ["a"],
    "dates": {"d": ["2000-01-01", "2009-12-31"]},
    "date_parts": {"d": ["month", "weekday"]},
    "derive": {
        "share": {"kind": "ratio", "of": ["a", "n"], "range": [-1.0, 1.0], "otherwise": 0.0},
        "many": {"kind": "count_above", "of": ["b", "n"], "threshold": 2.0, "range": [0.0, 2.0], "otherwise": 0.0},
        "size": {"kind": "log1p", "of": ["n"], "range": [0.0, 3.0], "otherwise": 0.0},
    },
}
"""Missing cells with declared values, and columns made of others."""
QUADRATIC = {"kind": "quadratic", "radius": 2.0}
ALONE = {key: cells for key, cells in NUMBERS.items() if "target" not in key}
SQUARED = {"kind": "squared", "radius": 2.0}
SGD = {"rounds": 2, "clip_norm": 0.5}
ROBUST = {"rounds": 2, "radius": 1.0}


@dataclass(frozen=True)
class Case:
    """A configuration, and how many of its mechanisms' sensitivities one replaced user (or sample) may cost."""

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    problem: dict[str, Any] = field(default_factory=lambda: SQUARED)
    data: dict[str, Any] = field(default_factory=lambda: NUMBERS)
    unit: str = "user"
    suffix: str = "csv"
    bounded: bool = True
    group: float = 1.0
    epsilon: float = 16.0
    seed: int = 3
    engine: dict[str, Any] = field(default_factory=dict)
    reference: bool = False

    def raw(self, path) -> dict[str, Any]:
        own = {} if self.data.get("kind") == "public" else {"kind": "table", "user": "who", "path": str(path)}
        data = own | {"users": USERS, "test_fraction": 0.0} | self.data
        data = {key: value for key, value in data.items() if value is not None}
        if self.bounded:
            data |= {"max_samples": ROWS, "samples": USERS * ROWS}
        return {
            "name": "neighbour",
            "seed": self.seed,
            "problem": self.problem,
            "data": data,
            "privacy": {"epsilon": self.epsilon, "delta": 1e-3, "unit": self.unit},
            "strategy": {"kind": self.strategy, **self.options},
            "engine": self.engine,
            "output": {"directory": str(path.parent / "runs"), "reference": self.reference, "anyway": True},
        }

    @property
    def columns(self) -> set[str]:
        named = [self.data.get(key) or [] for key in ("features", "codes", "categorical", "dates", "target")]
        derived = [column for made in self.data.get("derive", {}).values() for column in made["of"]]
        return {column for one in [*named, derived] for column in ([one] if isinstance(one, str) else one)}

    def faults(self, among=None) -> list[str]:
        """Faults in a column that is read, and other numbers of samples where these make neighbours."""
        found = [name for name, (column, _) in FAULTS.items() if column in self.columns]
        if self.unit == "user":
            found += ["fewer", "more"]
        elif self.group > 1:  # samples that come or go
            found += ["fewer"]
        return [name for name in found if among is None or name in among]

    def __str__(self) -> str:
        source = "+".join(sorted(self.columns))
        how = self.options.get("sampling", self.options.get("batches", "all"))
        source += "-filled" if "impute" in self.data else ""
        return f"{self.strategy}-{how}-{self.unit}-{self.problem['kind']}-{source}-{self.suffix}"


NAMED = [
    Case("localized_robust_sgd", {"radius": 2.0, "phases": 1, "batch": 100}, QUADRATIC, ALONE),
    Case("robust_rounds", ROBUST),
    Case("recentred_clipping", {"rounds": 3}),
    Case("localized_clipping", {}, QUADRATIC, ALONE),
    Case("local_dp", {"rounds": 2}),
    Case("outlier_removal", ROBUST),
    Case("winsorized_rotation", {"rounds": 2}),
    Case("dp_fed_sgd", {"rounds": 2}, bounded=False),
    Case("dp_fed_sgd", {"rounds": 2, "sampling": "poisson", "cohort": 160}, group=2.0),
    Case("dp_fed_sgd", {"rounds": 2, "sampling": "fixed_size", "cohort": 160}, seed=4),
    Case("projected_sgd", {"rounds": 2, "sparsity": 2}),
    Case("dp_fed_avg", {"rounds": 2}),
    Case("adaptive_clipping", {"rounds": 2}),
    Case("vote_descent", {"rounds": 2}),
    Case("dp_ftrl", {"rounds": 4}),
    Case("sample_clipped_sgd", {"rounds": 2}),
    Case("iterative_mean_sgd", {"rounds": 2, "centre": "mean"}),
    Case("averaged_clipping", {"rounds": 2, "batches": "full"}),
    Case("averaged_clipping", {"rounds": 2, "batch": 320}, group=2.0),
    Case("averaged_clipping_restarted", {"rounds": 2, "runs": 1, "batch": 320}, QUADRATIC, ALONE, group=2.0),
    Case("poisson_sample_sgd", {"rounds": 2, "batch": 320}, group=2.0 * ROWS),
    Case("smoothed_truncation_gd", {"rounds": 2}),
    Case("robust_frank_wolfe", {"rounds": 2}),
    Case("private_lasso", {"rounds": 2}, SQUARED | {"intercept": False}),
    Case("private_hard_thresholding", {"rounds": 2}),
    Case("sparse_optimisation", {"rounds": 2}),
    Case("output_perturbation", {"rounds": 2}),
    Case("stopped_sgd", epsilon=1.0),
    Case("non_private", {"rounds": 2}),
]
USER_CASES = NAMED + [
    Case(name, options_of(name)) for name in STRATEGIES if name not in {case.strategy for case in NAMED}
]
"""Every strategy on a table of numbers and levels."""

SAMPLE_CASES = [
    replace(case, unit="sample", group=2.0 if case.group > 1 else 1.0, seed=4)
    for case in USER_CASES
    if "sample" in STRATEGIES[case.strategy].about.units
]
"""Neighbours differ in one sample, and the user's other one must stay. Replacing one is adding and removing one."""

ONE_HOT = {"kind": "one_hot_squared"}
SPARSE = {"kind": "sparse_squared"}
HASHED = {"codes": ["team", "n"], "buckets": 24, "target": "y", "target_range": [-1.0, 1.0]}
CLASSES = {"kind": "torch", "outputs": 3, "loss": "cross_entropy"}
TO_CLASSES = {"categorical": NUMBERS["categorical"], "target": "k"}
SOFTMAX = {"kind": "softmax"}
TO_LEVELS = {**NUMBERS, "categorical": None, "target_range": None, "target": "team", "target_levels": ["red", "green"]}
SOURCES = [
    *(
        Case("dp_fed_sgd", SGD, problem, data, suffix=suffix)
        for suffix in ("csv", "parquet")
        for problem, data in (
            (SQUARED, NUMBERS),
            (SQUARED, FILLED),
            (SQUARED | {"target_range": [-1.0, 1.0]}, {**NUMBERS, "target_range": None}),
            ({"kind": "quadratic"}, {"features": ["n"], "ranges": {"n": [0, 9]}, "scale": "unit"}),
            ({"kind": "logistic"}, {**NUMBERS, "target_range": None, "target": "passed", "positive": "yes"}),
            ({"kind": "poisson", "count_bound": 5.0}, {**NUMBERS, "target_range": None, "target": "n"}),
            (ONE_HOT, {"codes": "n", "levels": 10, "target": "y", "target_range": [-1.0, 1.0]}),
            (
                ONE_HOT,
                {"codes": "team", "levels": ["red", "green", "blue"], "target": "y", "target_range": [-1.0, 1.0]},
            ),
            (SPARSE, HASHED),
        )
    ),
    Case("dp_fed_sgd", SGD, CLASSES, TO_CLASSES),
    *(Case("dp_fed_sgd", SGD, SOFTMAX, TO_LEVELS, suffix=suffix) for suffix in ("csv", "parquet")),
    Case("auto", {}, SOFTMAX, TO_LEVELS),
    Case("output_perturbation", {"rounds": 2}, SPARSE, HASHED),
    Case("output_perturbation", {"rounds": 2}, SPARSE, HASHED, unit="sample"),
    Case("stopped_sgd", {}, SPARSE, HASHED, epsilon=1.0),
    Case("sample_clipped_sgd", {"rounds": 2}, SPARSE, HASHED),
]


@dataclass
class Ending:
    code: int
    log: Log
    result: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)

    def like(self, other: "Ending") -> None:
        assert self.code == other.code
        if self.code == 0:
            assert (self.result["missing_users_private"], other.result["missing_users_private"]) == (0, 0)
            assert self.result["guarantee"] == other.result["guarantee"]
            assert self.plan == other.plan


def command(case: Case, path) -> Ending:
    file = path.parent / "run.toml"
    file.write_text(tomli_w.dumps(case.raw(path)), encoding="utf-8")
    with recording() as log:
        outcome = CliRunner().invoke(app, ["run", str(file), "--json"])
    if outcome.exit_code:
        return Ending(outcome.exit_code, log)
    directory = max((path.parent / "runs").iterdir())
    return Ending(0, log, json.loads(outcome.stdout), json.loads((directory / "plan.json").read_text()))


def go(case: Case, folder, fault: str | None = None) -> Ending:
    path = folder / f"table.{case.suffix}"
    write(path, everybody(person(fault)))
    return command(case, path)


def compare(case: Case, faults, run) -> None:
    ordinary, moves = run(None), set()
    assert ordinary.code == 0
    released = any(given.kind != "score" for given in ordinary.log.given)
    assert ordinary.result["guarantee"]["holds"] == released == (case.strategy != "non_private")
    for fault in faults:
        other = run(fault)
        ordinary.like(other)
        if check(ordinary.log, other.log, case.group, fault):
            moves.add(fault)
    # Were zoe in no round, nothing would have been tried.
    assert moves or case.strategy == "non_private"


# Tests --------------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", [*USER_CASES, *SAMPLE_CASES, *SOURCES], ids=str)
def test_one_persons_cells_move_no_release_further_than_its_sensitivity(case, tmp_path):
    compare(case, case.faults(COMMON), lambda fault: go(case, tmp_path, fault))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("case", [*USER_CASES, *SAMPLE_CASES, *SOURCES], ids=str)
def test_every_fault_in_every_form_of_file(case, suffix, tmp_path):
    case = replace(case, suffix=suffix)
    compare(case, case.faults(), lambda fault: go(case, tmp_path, fault))


@pytest.mark.slow
@forgive_ray
@pytest.mark.parametrize("case", [Case("dp_fed_sgd", SGD, CLASSES, TO_CLASSES), Case("robust_rounds", ROBUST)], ids=str)
def test_on_ray(case, tmp_path):
    """A node that fails on one person's class leaves 40 people missing, which the run would bear."""
    case = replace(case, engine={"kind": "ray", "workers": 1, "roster_timeout": PATIENCE})
    compare(case, case.faults({"no class", "text", "more"}), lambda fault: go(case, tmp_path, fault))
    gc.collect()  # here, where the warnings about Ray's handles are expected


@pytest.mark.slow
def test_from_a_public_data_set(tmp_path, monkeypatch):
    case = Case("dp_fed_sgd", SGD, data={"kind": "public", "name": "males", "cache": str(tmp_path)}, suffix="parquet")

    def published(fault):
        path = tmp_path / "table.parquet"
        write(path, everybody(person(fault)))
        entry = replace(
            PUBLIC_DATASETS["males"],
            file=path.name,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            users=USERS,
            columns={"user": "who", **NUMBERS},
        )
        monkeypatch.setitem(PUBLIC_DATASETS, "males", entry)
        return command(case, path)

    compare(case, Case("dp_fed_sgd").faults(COMMON), published)


@pytest.mark.slow
def test_from_somebody_who_is_held_out_nothing_is_released(tmp_path):
    """Measurements on held-out people, and the reference without privacy, cannot end a run either."""
    held_out = {"test_fraction": 0.5, "users": USERS // 2}
    case = Case("dp_fed_sgd", SGD, data=NUMBERS | held_out, bounded=False, reference=True)
    ordinary, measured = go(case, tmp_path), set()
    for fault in ("nothing", "text", "more"):
        other = go(case, tmp_path, fault)
        ordinary.like(other)
        assert not check(ordinary.log, other.log, 0.0, fault)
        measured.add(other.result["metrics"]["test_loss"])
    assert len(measured | {ordinary.result["metrics"]["test_loss"]}) > 1  # zoe is among them


AT_ONCE = {"dp_fed_sgd", "local_dp", "winsorized_rotation", "sample_clipped_sgd"}
SECURE = [
    case if case.strategy in AT_ONCE else pytest.param(case, marks=pytest.mark.slow)
    for case in USER_CASES
    # Cohorts that the operating system draws differ between two runs.
    if STRATEGIES[case.strategy].about.without_secure_noise is None and "sampling" not in case.options
]
SILOS = 4


@pytest.mark.sweep(1)
@pytest.mark.parametrize("case", SECURE, ids=str)
def test_from_the_folders_of_silos(case, tmp_path, monkeypatch):
    """The folders are made by `prepare` from each silo's table; zoe is in the last one."""
    raw = case.raw(tmp_path / "table.csv")
    raw["privacy"]["noise"] = "secure"
    folders = [tmp_path / f"silo{number}" for number in range(SILOS)]

    def prepared(columns, number):
        first, most = number * USERS // SILOS, (number + 1) * USERS // SILOS
        rows = slice(first * ROWS, most * ROWS if most < USERS else None)
        write(tmp_path / "table.csv", {name: cells[rows] for name, cells in columns.items()})
        own = raw | {"data": raw["data"] | {"users": most - first, "path": str(tmp_path / "table.csv")}}
        (tmp_path / "silo.toml").write_text(tomli_w.dumps(own), encoding="utf-8")
        arguments = ["--config", str(tmp_path / "silo.toml"), "--output", str(folders[number])]
        done = CliRunner().invoke(silo_app, ["prepare", *arguments, "--first-user", str(first)])
        assert done.exit_code == 0, done.output

    config = parse_config(raw)
    problem = build_problem(config)
    for number in range(SILOS - 1):
        prepared(everybody(person()), number)

    def deployed(fault):
        prepared(everybody(person(fault)), SILOS - 1)
        for folder in folders:  # the same people in another world: neither had an earlier run
            (folder / RUNS).unlink(missing_ok=True)
            mild = (folder / POLICY).read_text()
            (folder / POLICY).write_text(mild.replace("epsilon = 10.0", f"epsilon = {case.epsilon}"))
        grid = LocalGrid([silo_node(config, problem, folder) for folder in folders])
        monkeypatch.setenv("USERDP_ACCOUNTS", f"sqlite:///{tmp_path / str(fault)}.sqlite")
        with recording() as log:
            done = run(config, grid=grid, directory=tmp_path / str(fault), report=False, deployed=True)
        return Ending(0, log, done.result, json.loads((done.directory / "plan.json").read_text()))

    compare(case, case.faults({"nothing", "text", "level", "more"}), deployed)


@pytest.mark.parametrize("fault", ["fewer", None])
def test_a_number_of_samples_that_is_not_the_declared_one_is_for_the_holder_of_the_data(fault, tmp_path, caplog):
    config = parse_config(Case("sample_clipped_sgd", {"rounds": 2}).raw(tmp_path / "table.csv"))
    write(tmp_path / "table.csv", everybody(person(fault)))
    run(config, directory=tmp_path / "run")
    told = [record.getMessage() for record in caplog.records if "data.samples" in record.getMessage()]
    assert len(told) == (fault == "fewer")
    assert all("data.samples = 640 is not the number" in one and "639" not in one for one in told)


def test_where_a_sample_is_replaced_the_number_of_samples_is_public_and_must_be_right(tmp_path):
    case = Case("sample_clipped_sgd", {"rounds": 2}, unit="sample")
    assert go(case, tmp_path, "fewer").code == 2
    with pytest.raises(BadInput, match=r"data\.samples = 640, but training users hold 639: correct data\.samples"):
        run(parse_config(case.raw(tmp_path / "table.csv")), directory=tmp_path / "run")
