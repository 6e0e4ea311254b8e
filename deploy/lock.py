"""Write requirements.lock: what the image installs, each file by its digest; ``make lock`` runs it.

Torch is not in it, because its build, for the CPU or a GPU, is chosen with the image; nor Ray, which it does not have.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("account", "deploy", "report", "secure", "serve")
HEADER = """\
# What the image installs beside torch, for Python 3.11 on Linux: made by deploy/lock.py from pyproject.toml and
# constraints.txt. pip refuses every file whose digest is not here.
"""


def wanted() -> list[str]:
    """Return the requirements of the package without simulations, of a deployment's extras, and of the build."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = read["project"]
    named = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    kept = [one.replace("[simulation]", "") for one in named if not one.startswith("ray")]
    return [*kept, *read["build-system"]["requires"]]


def main(*options: str) -> None:
    """Ask the package index, by uv, for the digests of what constraints.txt pins."""
    with tempfile.TemporaryDirectory() as folder:
        asked, made = Path(folder, "requirements.in"), Path(folder, "requirements.lock")
        asked.write_text("\n".join(wanted()), encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", str(asked), "-c", str(ROOT / "constraints.txt")]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--python-version", "3.11", "--quiet"]
        command += ["--python-platform", "linux", "--no-emit-package", "torch", "--output-file", str(made), *options]
        subprocess.run(command, check=True)
        LOCK.write_text(HEADER + made.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
