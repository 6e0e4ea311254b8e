"""Golden values: plans, guarantees, models and metrics of many small runs, and whether they are still the same.

    python tests/golden/record.py            runs the cases of cases.toml and rewrites values.json
    python tests/golden/record.py --check    runs them and prints what differs from values.json; exit code 1 if any does
    python tests/golden/record.py --fast     leaves out the slow cases (with --check only)

A change that is not meant to change numbers leaves values.json alone. One that is meant to rewrites it, and its diff
shows which. Where the machine's fingerprint is the recorded one, floats must be equal bit by bit; elsewhere up to
1e-12 of themselves, or of the largest number of their vector. Two things are less exact than that by their making:
an epsilon or a delta is a root that is rounded outward in steps of 1e-10 of itself, so that another machine may take
one step more; and what a case calls its own `tolerance`, where samples are made in single precision or noise is
calibrated by a numerical composition, whose sums carry 1e-16 into tails of delta.

A case is a run (its sections, over those of its `base`), a file of simulations/configs or of a paper's room (`shipped`:
what it plans; with `run = true` also what it gives; a comparison's plans are those at both ends of its grid and its
search), a table of a comparison (`comparison`), or a strategy for ordinary Flower clients (`drop_in`). A table that
data.path names is written first.
"""

import argparse
import copy
import hashlib
import json
import math
import platform
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from threadpoolctl import threadpool_info, threadpool_limits
from typer.testing import CliRunner

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [entry for entry in (str(ROOT), str(HERE.parent)) if entry not in sys.path]

from examples import SHIPPED  # noqa: E402
from helpers_flower import RUN, ClientGrid, run_on_flower  # noqa: E402

import strategies  # noqa: E402
from simulations import load_config  # noqa: E402
from simulations.cli import app  # noqa: E402
from simulations.runs.run import run  # noqa: E402

VALUES = HERE / "values.json"
COMMAND = "python tests/golden/record.py"
TOLERANCE = 1e-12
ACCOUNTED = 1e-9
"""The tolerance of an epsilon or a delta, which accountants round outward by a few steps of 1e-10."""
LONG = 200
"""Entries from which on a vector is recorded by its digest and its sums."""
ENVIRONMENT = {"seconds", "peak_memory_mib", "computed", "versions", "directory"}
"""Fields of a run's files about the machine and the day."""

Case = Mapping[str, Any]
Values = dict[str, Any]


# Cases ---------------------------------------------------------------------------------------------------------------


def load_cases() -> list[Case]:
    """The cases of cases.toml, sections of their bases filled in; a strategy's section always is the case's own."""
    content = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))
    cases = []
    for case in content["case"]:
        base = copy.deepcopy(content["base"][case["base"]]) if "base" in case else {}
        for key, value in case.items():
            merged = isinstance(value, dict) and key in base and "kind" not in value
            base[key] = base[key] | value if merged else value
        cases.append({"name": f"shipped-{base.get('shipped')}"} | base)
    names = [case["name"] for case in cases]
    assert len(names) == len(set(names)), "every case has a name of its own"
    return cases


def write_table(path: Path) -> None:
    """120 people with 2 to 5 rows each: two measures, one with gaps, a count, a team, a class and a yes or no."""
    rng = np.random.default_rng(12)
    who = np.repeat([f"user{i:03d}" for i in range(120)], rng.integers(2, 6, 120))
    rows = len(who)
    table = pd.DataFrame(
        {
            "who": who,
            "a": np.where(rng.random(rows) < 0.05, np.nan, rng.uniform(-1.5, 1.5, rows).round(3)),
            "b": rng.uniform(0, 10, rows).round(3),
            "n": rng.integers(0, 10, rows),
            "team": rng.choice(["red", "green", "blue", "grey"], rows),
            "k": rng.integers(0, 3, rows),
            "y": rng.uniform(-1.2, 1.2, rows).round(3),
            "passed": rng.choice(["yes", "no"], rows),
        }
    )
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)


# What a case gives ----------------------------------------------------------------------------------------------------


def values_of(case: Case) -> Values:
    """Everything that is recorded of a case, as JSON has it; on one thread, so that sums are added in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), tempfile.TemporaryDirectory() as folder:
            found = _kind(case)(case, Path(folder))
    finally:
        torch.set_num_threads(threads)
    values: Values = json.loads(json.dumps(plain(found)))
    return values


def _kind(case: Case) -> Callable[[Case, Path], Values]:
    kinds = {"shipped": _shipped, "comparison": _comparison, "drop_in": _drop_in, "flower": _flower}
    return next((make for key, make in kinds.items() if key in case), _run)


def _run(case: Case, folder: Path) -> Values:
    path = _config(case, folder)
    run(load_config(path), directory=folder / "run", report=False)
    return _files(folder / "run")


def _flower(case: Case, folder: Path) -> Values:
    settings = {"config": str(_config(case, folder)), "output": str(folder / "run")}
    run_on_flower(folder / "home", RUN, case["flower"], settings)
    return _files(folder / "run")


def _config(case: Case, folder: Path) -> Path:
    """The case's sections as a file, with the table that they name beside it."""
    sections = ("seed", "problem", "data", "privacy", "strategy", "engine", "output")
    raw = {"name": "golden"} | {key: case[key] for key in sections if key in case}
    raw["output"] = {**raw.get("output", {}), "anyway": True}  # small cases need not be good ones
    raw["preparation"] = case.get("preparation", "none")
    if "path" in raw["data"]:
        write_table(folder / raw["data"]["path"])
    path = folder / "run.toml"
    path.write_text(tomli_w.dumps(raw), encoding="utf-8")
    return path


def _shipped(case: Case, folder: Path) -> Values:
    path = SHIPPED[case["shipped"]]
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    if isinstance(raw["strategy"], dict):
        values: Values = {"plan": _plan(path)}
        if case.get("run"):
            run(load_config(path, case.get("set", [])), directory=folder / "run", report=False)
            values |= _files(folder / "run")
        return values
    values = {}
    for label, one in _cells(raw):
        path = folder / "cell.toml"
        path.write_text(tomli_w.dumps(one), encoding="utf-8")
        values[label] = _plan(path)
    return values


def _cells(raw: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A comparison's strategies as runs, with what is first in its grid and its search, and with what is last."""
    searched = raw.get("tuning", {}).get("search", {})
    for problem in raw.get("problems", [raw]):
        for number, strategy in enumerate(raw["strategy"], 1):
            for end in (0, -1):
                cell = {"name": "golden", "problem": problem["problem"], "data": problem["data"]}
                cell = copy.deepcopy(cell | {"privacy": raw["privacy"], "strategy": strategy})
                label = cell["strategy"].pop("label", strategy["kind"])
                for key, choices in searched.get(label, searched.get(strategy["kind"], {})).items():
                    cell["strategy"][key] = choices[end]
                for key, choices in raw.get("grid", {}).items():
                    section, _, name = key.partition(".")
                    cell[section][name] = choices[end]
                where = f"{problem.get('label', '')} {number} {strategy['kind']} {('first', 'last')[end]}"
                yield where.strip(), cell


def _plan(path: Path) -> Values:
    """`userdp plan`, or why it is refused."""
    outcome = CliRunner().invoke(app, ["plan", str(path), "--json"])
    if outcome.exit_code:
        return {"refused": outcome.stderr.strip()}
    planned: Values = json.loads(outcome.stdout)
    return planned


def _comparison(case: Case, folder: Path) -> Values:
    path = SHIPPED[case["comparison"]]
    outcome = CliRunner().invoke(app, ["compare", str(path), "--workers", "0", "--output", str(folder), "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    rows = [{key: value for key, value in row.items() if key not in ENVIRONMENT} for row in json.loads(outcome.stdout)]
    return {"table": {str(number): row for number, row in enumerate(rows)}}


def _files(directory: Path) -> Values:
    """The contents of a run's files, each number once."""
    planned, promised, result, data = (
        json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("plan", "guarantee", "result", "data")
    )
    rounds = pd.read_parquet(directory / "rounds.parquet").drop(columns="seconds").to_dict("list")
    with np.load(directory / "model.npz") as arrays:
        model = arrays["x"]
    return {
        "plan": planned,
        # Only what the plan has not promised yet.
        "guarantee": {key: one for key, one in promised.items() if planned["guarantee"].get(key, ...) != one},
        "result": {key: one for key, one in result.items() if key not in ENVIRONMENT | {"guarantee"}},
        "data": data,
        "rounds": {name: vector(column) for name, column in rounds.items()},
        "model": vector(model.tolist()),
    }


def _drop_in(case: Case, folder: Path) -> Values:
    """A strategy for ordinary clients, whose updates are waves that depend on the user."""
    clients = ClientApp()

    @clients.train()
    def train(message: Message, context: Context) -> Message:
        user = int(context.node_config["partition-id"])
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        moved = {
            name: (one + 0.3 * np.cos(user + np.arange(one.size)).reshape(one.shape)).astype(one.dtype)
            for name, one in arrays.items()
        }
        return Message(RecordDict({"arrays": _record(moved)}), reply_to=message)

    options = case["options"]
    strategy = getattr(strategies, case["drop_in"])(**options)
    initial = {"weights": np.ones((3, 2), np.float32), "bias": np.zeros(2), "counter": np.array(7)}
    with ClientGrid(clients, options["users"]) as grid:
        result = strategy.start(grid, _record(initial))
    return {
        "plan": strategy.plan.as_dict(),
        "guarantee": result.guarantee.as_dict(),
        "rounds": {str(one.round): one.facts | {"spent_epsilon": one.spent_epsilon} for one in result.rounds},
        "model": {name: array.numpy().astype(float).ravel().tolist() for name, array in result.arrays.items()},
    }


def _record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def vector(entries: Sequence[Any]) -> Any:
    """The entries, or, of many numbers, their digest with the sums that can be compared up to rounding."""
    if len(entries) <= LONG:
        return list(entries)
    numbers = np.asarray(entries, dtype=np.float64)
    waves = numbers * np.cos(np.arange(len(numbers)))
    return {
        "entries": len(entries),
        "sha256": hashlib.sha256(numbers.tobytes()).hexdigest(),
        "sums": [math.fsum(np.abs(numbers)), math.fsum(numbers), math.fsum(waves)],
    }


def plain(value: Any) -> Any:
    """A value that JSON has: numbers that are not finite are named."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


# Machines -------------------------------------------------------------------------------------------------------------


def fingerprint() -> dict[str, Any]:
    """The properties of a machine that decide the last bits of a float."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.is_file() else []
    pools = {tuple(str(pool.get(key)) for key in ("internal_api", "version", "architecture")) for pool in _pools()}
    return {
        "cpu": next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("numpy", "scipy", "torch", "dp-accounting", "opendp")},
        "blas": sorted(" ".join(pool) for pool in pools),
    }


def _pools() -> list[dict[str, Any]]:
    return [pool for pool in threadpool_info() if pool["user_api"] == "blas"]


# Comparison -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A number or a text that is not what was recorded."""

    case: str
    field: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.case}  {self.field}\n    was {self.was!r}\n    is  {self.now!r}"


ABSENT = "(absent)"
_ACCOUNTED = re.compile(r"(epsilon|delta)(\.sums)?(\[\d+\])?$")


def differences(case: Case, was: Values, now: Values, *, exact: bool) -> list[Difference]:
    """The differences between the recorded values of a case and today's."""
    tolerance = 0.0 if exact else case.get("tolerance", TOLERANCE)
    first, second = dict(_leaves(was)), dict(_leaves(now))
    found = []
    for field in [*first, *(field for field in second if field not in first)]:
        one, two = first.get(field, (ABSENT, 0.0)), second.get(field, (ABSENT, 0.0))
        hidden = tolerance > 0 and field.endswith(".sha256")
        allowed = 0.0 if exact else max(tolerance, ACCOUNTED if _ACCOUNTED.search(field) else 0.0)
        if not hidden and not _same(one[0], two[0], allowed, one[1]):
            found.append(Difference(case["name"], field, one[0], two[0]))
    return found


def _same(one: Any, two: Any, tolerance: float, scale: float) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, two))
    if numbers and tolerance > 0:
        return abs(one - two) <= tolerance * max(abs(one), scale)
    return type(one) is type(two) and bool(one == two)


def _leaves(value: Any, path: str = "", scale: float = 0.0) -> Iterator[tuple[str, tuple[Any, float]]]:
    """(path of a value, (the value, the largest number beside it)); metrics are differences of each other's size."""
    if isinstance(value, dict):
        beside = _largest(value.values()) if "metric" in path or "reference" in path else 0.0
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key, beside)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{number}]", _largest(value))
    else:
        yield path, (value, scale)


def _largest(values: Any) -> float:
    return max((abs(one) for one in values if isinstance(one, int | float)), default=0.0)


# The recorded file ----------------------------------------------------------------------------------------------------


def read() -> dict[str, Any]:
    """The content of values.json: "fingerprint", and "cases" by their names."""
    content: dict[str, Any] = json.loads(VALUES.read_text(encoding="utf-8"))
    return content


def write(cases: Mapping[str, Values]) -> None:
    """A line for each part of a case, so that a diff shows which changed."""
    lines = []
    for name, values in cases.items():
        parts = ",\n".join(f"  {json.dumps(key)}: {json.dumps(part)}" for key, part in values.items())
        lines.append(f" {json.dumps(name)}: {{\n{parts}\n }}")
    body = ",\n".join(lines)
    VALUES.write_text(
        f'{{\n"fingerprint": {json.dumps(fingerprint())},\n"cases": {{\n{body}\n}}\n}}\n', encoding="utf-8"
    )


def check(case: Case, recorded: Mapping[str, Any]) -> list[Difference]:
    """Run the case; what differs from ``recorded``, the content of values.json."""
    if case["name"] not in recorded["cases"]:
        return [Difference(case["name"], "", ABSENT, "not recorded yet")]
    exact = recorded["fingerprint"] == fingerprint()
    return differences(case, recorded["cases"][case["name"]], values_of(case), exact=exact)


def main() -> int:
    """Record, or check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with values.json, and change nothing")
    parser.add_argument("--fast", action="store_true", help="with --check: leave out the slow cases")
    options = parser.parse_args()
    cases = [case for case in load_cases() if not (options.fast and case.get("slow"))]
    if not options.check:
        if options.fast:
            parser.error("--fast goes with --check alone: values.json holds every case")
        write({case["name"]: values_of(case) for case in cases})
        return 0
    recorded = read()
    found = [one for case in cases for one in check(case, recorded)]
    for difference in found:
        print(difference)
    bits = "bit by bit" if recorded["fingerprint"] == fingerprint() else "up to rounding: this is another machine"
    changed = len({one.case for one in found})
    print(f"{len(cases)} cases compared {bits}: {changed} changed, in {len(found)} values")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
