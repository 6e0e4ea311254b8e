"""A table three times as large as a process may be: `userdp run` trains on it in batches, and cannot at once.

The Parquet file holds numbers of people in no order. The limit is one of the address space (`ulimit -v`), so that all
counts: Python, its libraries, and what is mapped. Arrow takes memory from the system as it needs it, for its own pool
asks for a GiB of addresses at once. ``python research/streaming.py --check``.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

USERS, ROUNDS, TIMES = 20_000, 5, 3
GROUP_MIB = 64
CONFIG = """
name = "streaming"

[data]
kind = "table"
path = "table.parquet"
user = "who"
features = ["x_[1-{columns}]"]
ranges = {{ "x_[1-{columns}]" = [-4, 4] }}
target = "y"
positive = 1
all_users = {users}
memory = {memory}

[problem]
kind = "logistic"

[privacy]
epsilon = 1.0
delta = 1e-6

[strategy]
kind = "dp_fed_sgd"
rounds = {rounds}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=1152, metavar="MIB", help="address space of the run")
    parser.add_argument("--columns", type=int, default=255, help="numbers per row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 unless it trains, in batches alone")
    parser.add_argument("--one", nargs=2, metavar=("LIMIT", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        limited(int(arguments.one[0]), Path(arguments.one[1]))
        return
    with tempfile.TemporaryDirectory(prefix="userdp-") as folder:
        table = write_table(Path(folder), TIMES * arguments.limit, arguments.columns)
        runs = {
            name: trained(Path(folder), arguments.limit, arguments.columns, memory)
            for name, memory in (("in batches", 512), ("at once", 1 << 30))
        }
    found = {"limit_mib": arguments.limit, **table, "rounds": ROUNDS, "runs": runs}
    print(json.dumps(found, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": {"cores": os.cpu_count()}, **found}, indent=2) + "\n")
    sys.exit(1 if arguments.check and not (runs["in batches"]["trained"] and not runs["at once"]["trained"]) else 0)


def write_table(folder: Path, mib: int, columns: int, group_mib: int = GROUP_MIB) -> dict[str, Any]:
    """A file of at least ``mib`` MiB, rows of ``USERS`` people in no order."""
    rng, path = np.random.default_rng(0), folder / "table.parquet"
    names = [f"x_{column + 1}" for column in range(columns)]
    schema = pa.schema([("who", pa.int32()), *((name, pa.float64()) for name in names), ("y", pa.int8())])
    each, rows = (group_mib << 20) // (8 * columns), 0  # the first group has everybody
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        while not path.stat().st_size > mib << 20:
            numbers = rng.standard_normal((columns, each))
            who = np.arange(each, dtype=np.int32) % USERS if not rows else rng.integers(0, USERS, each, dtype=np.int32)
            cells = {"who": who, **dict(zip(names, numbers, strict=True)), "y": (numbers[0] > 0).astype(np.int8)}
            writer.write_table(pa.table(cells, schema=schema))
            rows += each
    return {"file_mib": path.stat().st_size >> 20, "rows": rows, "columns": columns, "users": USERS}


def trained(folder: Path, limit: int, columns: int, memory: int) -> dict[str, Any]:
    """The result of a run in a separate process with at most ``limit`` MiB of address space; 0 sets no limit."""
    text = CONFIG.format(columns=columns, users=USERS, memory=memory, rounds=ROUNDS)
    (folder / "run.toml").write_text(text, encoding="utf-8")
    environment = {
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "TMPDIR": str(folder),
    }
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(limit), str(folder)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    status = dict(line.split(":") for line in done.stderr.splitlines() if line.startswith(("VmPeak:", "VmHWM:")))
    peaks = {name: int(value.split()[0]) >> 10 for name, value in status.items()}
    return {
        "trained": done.returncode == 0,
        "seconds": round(time.perf_counter() - started, 1),
        "address_space_mib": peaks.get("VmPeak"),
        "resident_mib": peaks.get("VmHWM"),
        "told": "" if done.returncode == 0 else _complaint(done.stderr).replace(f"{folder}/", ""),
    }


def _complaint(text: str) -> str:
    """The last line before the process's peaks."""
    return text.partition("Name:")[0].strip().splitlines()[-1]


def limited(limit: int, folder: Path) -> None:
    """The command `userdp run` within the limit; at its end, the most that the process took."""
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))
    from simulations.cli import main as command  # noqa: PLC0415 -- within the limit

    sys.argv = ["userdp", "run", str(folder / "run.toml"), "--output", str(folder / "runs"), "--anyway"]
    try:
        command()
    finally:
        print(Path("/proc/self/status").read_text(), file=sys.stderr)


if __name__ == "__main__":
    main()
