"""One run of a comparison and its record; this module imports no more than a run needs."""

import logging
import time
import tomllib
from pathlib import Path
from typing import Any

from simulations.config.run_config import parse_config
from simulations.records.run_directory import as_json, plain, private_folder, read_json, write_text
from simulations.runs.run import run
from userdp.errors import UserdpError

log = logging.getLogger("userdp")
DONE = "cell.json"
Record = dict[str, Any]


def finished(directory: Path, digest: str) -> Record | None:
    """Return the record of a finished run with this configuration; None after a failure, so that it is repeated."""
    try:
        record: Record = read_json(directory / DONE)
    except (OSError, ValueError):
        return None
    return record if record.get("digest") == digest and record.get("error_private", "unknown") is None else None


def run_job(toml: str, digest: str, directory: Path) -> Record:
    """Run a configuration and write cell.json last.

    The record holds digest, error_private (None or the reason), seconds, result, numbers (of the plan),
    predicted_excess.
    """
    started, error = time.perf_counter(), None
    (directory / DONE).unlink(missing_ok=True)
    (directory / "result.json").unlink(missing_ok=True)
    try:
        run(parse_config(tomllib.loads(toml)), directory=directory, report=False)
    except UserdpError as caught:
        error = str(caught)
    except Exception as caught:
        log.warning("a cell failed: unexpected %s", type(caught).__name__)
        error = f"unexpected {type(caught).__name__}"
    files = [directory / name for name in ("plan.json", "result.json")]
    plan, result = (read_json(file) if file.is_file() else None for file in files)
    record: Record = plain(
        {
            "digest": digest,
            "error_private": error,
            "seconds": time.perf_counter() - started,
            "result": result,
            "numbers": (plan or {}).get("numbers", {}),
            "predicted_excess": ((plan or {}).get("forecast") or {}).get("predicted_excess"),
        }
    )
    private_folder(directory)
    write_text(directory / DONE, as_json(record))
    return record
