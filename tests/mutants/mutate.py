"""Change given files in every small way and see which changes the fast tests of their rooms do not notice.

``make mutate FILES="userdp/sampling/allocated.py ..."``, or ``python tests/mutants/mutate.py FILE ... [--jobs N]``.
`mutmut` makes the changes, in a copy of the project in ``build/mutate``, and counts those that tests noticed; the
others are printed as diffs. Not every one is a hole: some change nothing that matters.

A room is tested by its folder of tests, and what has none by the tests right in the folder of its package; ``--tests``
names others. Nothing changes in functions with decorators, such as properties and what numba compiles, nor outside
functions.

Needs ``pip install mutmut``. Minutes a file: about two changes a second on one quiet core.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutate"
PACKAGES = ("userdp", "strategies", "simulations")
MESSAGES = ["raise ", r"log\.", r'^\s*f?"']
"""Lines whose text nobody computes with."""


def room_tests(file: str) -> list[str]:
    """The tests of a module's room: a folder, or the files right in the folder of its package."""
    package, *rest = PurePosixPath(file).parts
    if len(rest) > 1 and (ROOT / "tests" / package / rest[0]).is_dir():
        return [f"tests/{package}/{rest[0]}"]
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / package).glob("test_*.py"))


def copy(files: list[str], tests: list[str]) -> None:
    """A copy of the project in which mutmut finds what to change and which tests to run."""
    shutil.rmtree(PLACE, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (PLACE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, PLACE / name)
    settings = {
        "source_paths": list(PACKAGES),
        "only_mutate": files,
        "also_copy": [path.name for path in PLACE.iterdir() if path.name not in PACKAGES],
        "pytest_add_cli_args": ["-m", "not slow and not containers", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": tests,
        "do_not_mutate_patterns": MESSAGES,
    }
    with (PLACE / "pyproject.toml").open("a", encoding="utf-8") as project:
        project.write(
            "\n[tool.mutmut]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        )


def main() -> int:
    """The exit code of mutmut; survivors are no failure."""
    parser = argparse.ArgumentParser(description="Which small changes of a file do the tests of its room not notice?")
    parser.add_argument("files", nargs="+", help="modules, from the root of the project")
    parser.add_argument("--tests", nargs="+", help="files or folders of tests, in place of those of the rooms")
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at the same time (2)")
    chosen = parser.parse_args()
    for file in chosen.files:
        if not (ROOT / file).is_file() or PurePosixPath(file).parts[0] not in PACKAGES:
            parser.error(f"{file} is no module of {', '.join(PACKAGES)}")
    copy(chosen.files, chosen.tests or sorted({test for file in chosen.files for test in room_tests(file)}))
    mutmut = [sys.executable, "-m", "mutmut"]
    done = subprocess.run([*mutmut, "run", "--max-children", str(chosen.jobs)], cwd=PLACE, check=False)
    found = subprocess.run([*mutmut, "results"], cwd=PLACE, capture_output=True, text=True, check=False)
    for line in found.stdout.splitlines():
        name, _, state = line.strip().rpartition(": ")
        if state == "survived":
            subprocess.run([*mutmut, "show", name], cwd=PLACE, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
