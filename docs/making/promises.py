"""The limits on speed and size beside the measurements: the first table of research/README.md."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from making.speed import Rows, milliseconds, read, round_rows

SIZES = ((10, 100), (100, 100), (10, 1000), (100, 1000))
AT_MOST = {"numpy": (2.5, 1.8, 1.8, 1.5)}
"""Our time over the tool's, by size."""
AT_LEAST = {"pfl": (200.0, 100.0, 50.0, 15.0), "flower": (1000.0,), "jax": (0.0, 0.0, 0.0, 1.0)}
"""The tool's time over ours, by size."""
ON_RAY = 1.2
"""Our elapsed time on Ray over numpy's, at the largest size."""
ON_EIGHT = 0.3
"""The time of eight workers, by their clocks, over that of one process, at the largest size."""
ROBUST = {("median", "np.median"): 3.0, ("trimmed mean", "np.median"): 3.0}
ROBUST |= {("score, exponential", "scipy pdist and exp"): 4.0}
"""The rival's time over ours, by statistic and rival."""
MOST_SECONDS, MOST_MIB, MOST_GROWTH = 90.0, {"localized_robust_sgd": 4096, "auto": 2560}, 1.3
"""Limits for a million users, and the limit on seconds per user over those of 10,000 users."""
MOST_COMPARING = 20.0
"""Seconds."""
ADAPTERS = {"plain": ("torch and peft without privacy", 1.2), "pfl": ("pfl", 0.9)}
"""Our time for a round of low-rank adapters over the tool's."""
SECURE = {"scores": 1.5, "classes": 2.0, "queries": 2.0, "modules": 3.0, "wide models": 3.5}
"""Processor time of whole runs with secure noise over that with seeded noise, by what is computed."""
NAMES = {"pfl": "pfl", "flower": "Flower with one SuperNode per user", "jax": "jax-privacy's compiled step"}


@dataclass(frozen=True)
class Promise:
    """A line of the table.

    Attributes:
        what: The limited quantity.
        limit: The limit, as text.
        measured: The measurement, as text.
        kept: True if the measurement is within the limit.
        script: The script that measures it, with ``--check``.
    """

    what: str
    limit: str
    measured: str
    kept: bool
    script: str


def section() -> str:
    """Return the table."""
    lines = ["| quantity | limit | measured | within limit | command |", "|---|---|---|---|---|"]
    for promise in promises():
        kept = "yes" if promise.kept else "NO"
        cells = (promise.what, promise.limit, promise.measured, kept, f"`{promise.script} --check`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def promises() -> Iterator[Promise]:
    """Yield all limits."""
    yield from _rounds(round_rows())
    what = f"round at {SIZES[-1]}: eight workers, by the clocks of their parts, over one process"
    yield _at_most(what, ON_EIGHT, read("engine_clocks")["rows"][-1]["ratio"], "research/engine_clocks.py")
    for row in read("robust")["rows"]:
        if limit := ROBUST.get((row["what"], row["rival"])):
            what = f"{row['what']} of {row['rows']} x {row['columns']}: {row['rival']} over ours"
            yield _at_least(what, limit, row["ratio"], "research/robust.py")
    yield from _populations(read("population")["runs"])
    table = read("streaming")
    share = table["file_mib"] / table["limit_mib"]
    what = f"a Parquet file {share:.0f} times as large as the address space of the process"
    trained = table["runs"]["in batches"]["trained"]
    yield Promise(what, "trains", "trains" if trained else "fails", trained and share >= 3, "research/streaming.py")
    for row in read("adapters")["rows"]:
        assert row["pfl_is_real"], "pfl was not installed when benchmarks/adapters.py measured"
        for tool, (name, most) in ADAPTERS.items():
            what = f"round of adapters, windows of {row['window']} tokens: ours over {name}"
            yield _at_most(what, most, row[f"ours_over_{tool}"], "benchmarks/adapters.py")
    for kind, most in SECURE.items():
        ratios = [row["secure"] / row["seeded"] for row in read("secure")["rows"] if row["kind"] == kind]
        what = f"secure over seeded noise, whole runs of {kind}, worst of {len(ratios)}"
        yield _at_most(what, most, max(ratios, default=math.inf), "benchmarks/secure.py")
    start = read("start")
    what = f"`compare-quick.toml`, {start['cells']} cells, seconds"
    yield _at_most(what, MOST_COMPARING, start["rows"][-1]["clock"], "research/start.py")


def _rounds(rows: Rows) -> Iterator[Promise]:
    """Yield the limits of one private round of 1000 users beside other tools."""
    for size, most in zip(SIZES, AT_MOST["numpy"], strict=True):
        ratio = milliseconds(rows[size]["ours"]) / milliseconds(rows[size]["numpy"])
        yield _at_most(f"round at (m, d) = {size}: ours over plain numpy", most, ratio, "research/peers.py")
    largest = rows[SIZES[-1]]
    ratio = milliseconds(largest["ours on ray"], "wall") / milliseconds(largest["numpy"], "wall")
    yield _at_most(
        f"round at {SIZES[-1]}: ours on Ray over plain numpy, elapsed time", ON_RAY, ratio, "research/peers.py"
    )
    for tool, leasts in AT_LEAST.items():
        for size, least in zip(SIZES, leasts, strict=False):
            if least:
                ratio = milliseconds(rows[size][tool]) / milliseconds(rows[size]["ours"])
                yield _at_least(f"round at {size}: {NAMES[tool]} over ours", least, ratio, "research/peers.py")


def _populations(runs: list[dict[str, Any]]) -> Iterator[Promise]:
    """Yield the limits of whole runs on a million users."""
    for strategy, most in MOST_MIB.items():
        by_users = {run["users"]: run for run in runs if run["strategy"] == strategy}
        few, many = by_users[10_000], by_users[1_000_000]
        name = f"`{strategy}`, a million users"
        yield _at_most(f"{name}: seconds", MOST_SECONDS, many["seconds"], "benchmarks/population.py")
        yield _at_most(f"{name}: MiB", most, many["peak_mib"], "benchmarks/population.py")
        growth = many["seconds"] / many["users"] / (few["seconds"] / few["users"])
        yield _at_most(
            f"{name}: seconds per user, over those of 10,000", MOST_GROWTH, growth, "benchmarks/population.py"
        )


def _at_most(what: str, limit: float, measured: float, script: str) -> Promise:
    return Promise(what, f"at most {limit:g}", _number(measured), measured <= limit, script)


def _at_least(what: str, limit: float, measured: float, script: str) -> Promise:
    return Promise(what, f"at least {limit:g}", _number(measured), measured >= limit, script)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
