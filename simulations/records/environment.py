"""The machine and the packages of a run."""

import platform
import resource
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def peak_memory() -> float:
    """Return the peak resident memory of this process plus its largest finished child, in MiB."""
    kibibytes = sum(resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kibibytes / (1024 * 1024 if sys.platform == "darwin" else 1024)  # macOS counts bytes


def own_version() -> str:
    """Return the version in pyproject.toml beside the running code, as in a Flower app; else that of the package."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
    return version("userdp")


@cache  # reading versions from files takes longer than the arithmetic of a small run
def versions() -> Mapping[str, str]:
    """Return package -> version for everything that a result depends on."""
    found = {"python": platform.python_version(), "userdp": own_version()}
    for package in ("flwr", "ray", "numpy", "torch", "opendp"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
