"""The tools of benchmarks/neural.py: the environment of each, and a process of it that does rounds when told to."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neural_worker import ANSWER

HERE = Path(__file__).resolve().parent
TOOLS = {"loop": "neural_loop.py", "pfl": "neural_pfl.py", "flower": "neural_flower.py", "ours": "neural_ours.py"}
PFL = "pfl[pytorch]==0.6.*"
DIGITS = """
import sys
import numpy as np
from sklearn.datasets import load_digits
digits = load_digits()
np.savez(sys.argv[1], pixels=(digits.data / 16).astype(np.float32), labels=digits.target[:, None])
"""
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


def start(tool: str, model: str, data: Path, folder: Path, peers: Path, threads: int | None) -> Contestant:
    """A process of the tool; it speaks when it is ready."""
    environment = dict(os.environ)
    for name in THREADS:
        environment.pop(name, None)
        if threads is not None:
            environment[name] = str(threads)
    # The tree that is measured, whatever is installed; and the workers' own modules, for processes of the engines.
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent)])
    python = python_of(peers / "pfl") if tool == "pfl" else Path(sys.executable)
    total, log = folder / f"{model}-{tool}.npy", folder / f"{model}-{tool}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(python), str(HERE / TOOLS[tool]), model, str(data), str(total)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )
    return Contestant(process, log, total)


def make_environments(peers: Path) -> None:
    """pfl, with the tested torch (not the one that brings a GPU's libraries), and scikit-learn's digits; once."""
    folder, images = peers / "pfl", images_of(peers)
    if images.exists():
        return
    print(f"making an environment for pfl in {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pins = (HERE.parent / "constraints.txt").read_text()
    torch = next(line for line in pins.splitlines() if line.startswith("torch=="))
    install = [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, torch], check=True)
    subprocess.run([*install, torch, PFL, "scikit-learn"], check=True)
    # Last, so that an environment that was not finished is made again.
    subprocess.run([str(python_of(folder)), "-c", DIGITS, str(images)], check=True)


def images_of(peers: Path) -> Path:
    """The file of scikit-learn's digits."""
    return peers / "digits.npz"


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


def make_data(folder: Path, peers: Path, *, quick: bool) -> None:
    """The users of every model, in a process whose memory does not count (a child begins with its parent's peak)."""
    script = [sys.executable, str(HERE / "neural_data.py"), str(folder), "--images", str(images_of(peers))]
    subprocess.run([*script, *(["--quick"] if quick else [])], check=True)
