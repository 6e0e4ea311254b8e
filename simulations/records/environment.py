"""The machine and the packages that a run was computed with."""

import platform
import resource
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def peak_memory() -> float:
    """Peak resident memory of this process and the largest of its finished children, in MiB."""
    kibibytes = sum(resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    # macOS counts bytes.
    return kibibytes / (1024 * 1024 if sys.platform == "darwin" else 1024)


def own_version() -> str:
    """Of the code that runs: a Flower app brings its own beside pyproject.toml, whatever is installed."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
    return version("userdp")


def versions() -> dict[str, str]:
    """Package -> version, of what a result depends on."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    """Looked up once: a package's version is read from files, which takes longer than many a run's arithmetic."""
    found = {"python": platform.python_version(), "userdp": own_version()}
    for package in ("flwr", "ray", "numpy", "torch", "opendp"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
