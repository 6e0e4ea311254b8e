"""A tool of a benchmark as the process that measures it sees it, and the environment that it needs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker import ANSWER

HERE = Path(__file__).resolve().parent
PEERS = Path.home() / ".cache" / "userdp" / "peers"
"""The default folder for the environments of other tools."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Contestant:
    """A process that does rounds of one model with one tool; closed at the end of a ``with`` statement.

    Attributes:
        process: the worker.
        log: what it and its engine say besides answers.
        total: where it leaves the sum of a round.
        error: why it cannot do the model, "" if it can.
        versions: of what it uses.
    """

    process: subprocess.Popen[str]
    log: Path
    total: Path
    error: str = ""
    versions: dict[str, str] | None = None

    def __enter__(self) -> "Contestant":
        self.versions = self._answer().get("versions")
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def round(self) -> dict[str, float]:
        """Seconds and peak memory of one more round; empty, with ``error`` set, if it fails."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                self.error = answer.pop("error", "")
                return answer
        said = [line for line in self.log.read_text().splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
        self.error = said[-1] if said else f"the process ended; see {self.log}"
        return {}


def start(python: Path, script: str, arguments: Sequence[str], stem: Path, threads: int | None) -> Contestant:
    """A process of a tool; it speaks when it is ready.

    Args:
        python: the interpreter of its environment.
        script: of this folder.
        arguments: of the script; the file for the sum of a round follows.
        stem: that file and the log, without their endings.
        threads: of the tool's mathematics; None for as many as it takes.
    """
    environment = dict(os.environ)
    for name in THREADS:
        environment.pop(name, None)
        if threads is not None:
            environment[name] = str(threads)
    if threads == 1:  # XLA knows none of those names
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    # The tree that is measured, whatever is installed; and the workers' own modules, for processes of the engines.
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent)])
    total, log = stem.with_suffix(".npy"), stem.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(python), str(HERE / script), *arguments, str(total)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )
    return Contestant(process, log, total)


def make_environment(folder: Path, *packages: str, torch: bool = False) -> None:
    """An environment with these packages, made once; with the tested torch, not one that brings a GPU's libraries."""
    done = folder / "done"
    if done.exists():
        return
    print(f"making an environment for {packages[0]} in {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pins = (HERE.parent / "constraints.txt").read_text().splitlines()
    tested = [line for line in pins if torch and line.startswith("torch==")]
    if tested:
        subprocess.run([*install, *tested], check=True)
    subprocess.run([*install, *tested, *packages], check=True)
    done.touch()  # last, so that an environment that was not finished is made again


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"
