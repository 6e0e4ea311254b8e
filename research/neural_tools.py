"""The tools of research/neural.py: their environments, and their processes."""

import subprocess
import sys
from pathlib import Path

from contestant import HERE, Contestant, make_environment, python_of
from contestant import start as start_process

TOOLS = {"loop": "neural_loop.py", "pfl": "neural_pfl.py", "flower": "neural_flower.py", "ours": "neural_ours.py"}
PFL = "pfl[pytorch]==0.6.*"
DIGITS = """
import sys
import numpy as np
from sklearn.datasets import load_digits
digits = load_digits()
np.savez(sys.argv[1], pixels=(digits.data / 16).astype(np.float32), labels=digits.target[:, None])
"""


def start(tool: str, model: str, data: Path, folder: Path, peers: Path, threads: int | None) -> Contestant:
    """A process of the tool; it speaks when it is ready."""
    python = python_of(peers / "pfl") if tool == "pfl" else Path(sys.executable)
    return start_process(python, TOOLS[tool], [model, str(data)], folder / f"{model}-{tool}", threads)


def make_environments(peers: Path) -> None:
    """pfl's, and scikit-learn's digits; once."""
    make_environment(peers / "pfl", PFL, "scikit-learn", torch=True)
    if not images_of(peers).exists():
        subprocess.run([str(python_of(peers / "pfl")), "-c", DIGITS, str(images_of(peers))], check=True)


def images_of(peers: Path) -> Path:
    """The file of scikit-learn's digits."""
    return peers / "digits.npz"


def make_data(folder: Path, peers: Path, *, quick: bool) -> None:
    """The users of every model, in a process whose memory does not count (a child begins with its parent's peak)."""
    script = [sys.executable, str(HERE / "neural_data.py"), str(folder), "--images", str(images_of(peers))]
    subprocess.run([*script, *(["--quick"] if quick else [])], check=True)
