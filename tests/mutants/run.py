"""Plant each listed fault in a copy of the project and see that the tests notice.

``make mutants``, or ``python tests/mutants/run.py [WORD ...] [--change SEED] [--jobs N] [--verbose]``: only the faults
with a WORD in their area (the name of the list), file or name; with ``--change``, those in files changed since the last
long run and 40 others, drawn by SEED. A list is ``tests/mutants/AREA.toml`` and holds, for each fault::

    [[mutant]]
    name = "The noise of a round is half of what its plan says"
    file = "strategies/clipping/dp_fed_sgd.py"
    old = '''what stands in the file, exactly once'''
    new = '''what is wrong'''
    tests = ["tests/strategies/clipping/test_fed_sgd.py::test_the_noise_is_the_planned_one"]

One failing test of ``tests`` suffices. Keep them quick, and name the function without its parameters where all may run.

Verdicts: *killed*, a test failed or hung; *SURVIVED*, all passed; *stale*, ``old`` is not in the file exactly once;
*broken*, the fault or its tests cannot run: they fail, are skipped or missing in the unchanged project (checked first),
or fail for a name that ``new`` misspells. All but *killed* make the exit code 1.

Importing torch, Flower and pytest takes longer than most tests. So this process imports them once, but nothing of the
project, and forks for every fault. The user's own files are only read.
"""

import argparse
import compileall
import contextlib
import gc
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).resolve().parent
COPIED = ("userdp", "strategies", "simulations", "tests", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md")
COPIED += (
    "apps",
    "Dockerfile",
    "docker-compose.yml",
    "docker-compose.insecure.yml",
    "docker-compose.serve.yml",
    "Makefile",
    "research/results/replaced_users.csv",
)
IMPORTED_ONCE = (
    *("numpy", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats", "pandas", "pyarrow.parquet", "torch"),
    *("flwr.app", "flwr.clientapp", "flwr.serverapp.strategy", "pydantic", "dp_accounting", "opendp.prelude"),
    *("threadpoolctl", "rich.table", "rich.progress", "jinja2", "tomli_w", "typer", "pytest", "hypothesis.strategies"),
)
LIMIT = 120.0
"""Seconds after which the tests of a fault count as hung; they take a few."""
DRAWN = 40
"""Faults that a change tries beside those in the files that it touches."""
NO_SUCH_TEST = 4
"""The exit code of pytest where a test's name is wrong; it then runs none."""
MISSPELT = (NameError, SyntaxError, ImportError)
"""Errors of a fault that does not even run."""
PYTEST = ("-q", "--assert=plain", "--tb=line", "-p", "no:cacheprovider", "--no-header")


@dataclass(frozen=True)
class Mutant:
    """One fault: in ``file``, ``old`` becomes ``new``, and one of ``tests`` fails."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def text(self, root: Path) -> str | None:
        """The file with the fault; None where ``old`` is not there exactly once, or nothing would change."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 and self.old != self.new else None


@dataclass
class Outcome:
    """The outcome of pytest; ``first`` says which test failed first and why, ``text`` is the end of what it printed."""

    code: int
    outcomes: dict[str, str] = field(default_factory=dict)
    first: str = ""
    misspelt: bool = False
    text: str = ""

    def passed(self, test: str) -> bool:
        """True if the test, with each of its parameters, ran and passed."""
        found = [
            value for name, value in self.outcomes.items() if name == test or name.startswith((test + "[", test + "::"))
        ]
        return bool(found) and set(found) == {"passed"}


@dataclass(frozen=True)
class Verdict:
    """``kind`` is killed, SURVIVED, stale or broken; ``why`` a short explanation."""

    mutant: Mutant
    kind: str
    why: str


def read_lists(folder: Path = LISTS) -> list[Mutant]:
    """Every fault of every list in the folder."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        held = tomllib.loads(path.read_text(encoding="utf-8"))
        if others := held.keys() - {"mutant"}:
            raise SystemExit(f"{path.name} holds {', '.join(others)}, which nobody reads: call each fault [[mutant]]")
        found += [Mutant(area=path.stem, **{**entry, "tests": tuple(entry["tests"])}) for entry in held["mutant"]]
    return found


class _Watch:
    """A pytest plugin that remembers how each test ended."""

    def __init__(self) -> None:
        self.outcome = Outcome(0)

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """After set-up, test and tear-down of each test."""
        error = call.excinfo
        if error is None:
            if call.when == "call":
                self.outcome.outcomes.setdefault(item.nodeid, "passed")
        elif error.typename == "Skipped":
            self.outcome.outcomes[item.nodeid] = "skipped"
        else:
            self.outcome.outcomes[item.nodeid] = "failed"
            if not self.outcome.first:
                lines = str(error.value).strip().splitlines() or [""]
                self.outcome.first = f"{item.nodeid}: {error.typename} {lines[0][:160]}"
                self.outcome.misspelt = isinstance(error.value, MISSPELT)


def _child(tree: Path, arguments: list[str], sender: Connection) -> None:
    """In a fork: pytest in the copy, its output to a file, the outcome to the parent."""
    os.setsid()  # the time limit ends what the tests started, too
    os.chdir(tree)
    with (tree / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.dont_write_bytecode = True
        sys.path[0] = str(tree)
        os.environ["PYTHONPATH"] = str(tree)  # for what the tests start
        os.environ["CI"] = "true"  # hypothesis draws the cases that it draws there, in every run
        watch = _Watch()
        watch.outcome.code = int(sys.modules["pytest"].main([*PYTEST, *arguments], plugins=[watch]))
        sys.stdout.flush()
        package = sys.modules.get("userdp")
        if package is not None and not Path(str(package.__file__)).is_relative_to(tree):
            watch.outcome.code, watch.outcome.first = 2, "the tests did not import userdp from the copy"
        output.flush()
        watch.outcome.text = (tree / "output.txt").read_text(encoding="utf-8", errors="replace")[-2000:]
        sender.send(watch.outcome)
    os._exit(0)


@dataclass
class _Running:
    job: Any
    tree: Path
    process: multiprocessing.process.BaseProcess
    receiver: Connection
    deadline: float


class Workers:
    """Runs pytest in forks of this process, each in a tree of its own that shares the template's files."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self._folder, self._jobs = folder, jobs
        self.template = folder / "template"
        self._context = multiprocessing.get_context("fork")
        self._count = 0
        for name in COPIED:
            if (root / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(root / name, self.template / name, ignore=ignored)
            elif (root / name).is_file():
                (self.template / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.template / name)
        compileall.compile_dir(str(self.template), quiet=2)

    def outcomes(
        self, jobs: Iterable[tuple[Any, Mutant | None, list[str]]], limit: float
    ) -> Iterator[tuple[Any, Outcome]]:
        """Yield the key and the outcome of each (key, fault to plant, arguments of pytest), in the order they end.

        After ``limit`` seconds a job is ended and counts as failed.
        """
        waiting = list(jobs)[::-1]
        running: list[_Running] = []
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    running.append(self._start(*waiting.pop(), limit))
                left = min(each.deadline for each in running) - time.monotonic()
                ended = wait([each.receiver for each in running], max(0.0, left))  # also where a process died
                for each in list(running):
                    if each.receiver in ended or time.monotonic() >= each.deadline:
                        running.remove(each)
                        yield each.job, self._end(each)
        finally:
            for each in running:
                self._end(each)

    def _start(self, job: Any, mutant: Mutant | None, arguments: list[str], limit: float) -> _Running:
        self._count += 1
        tree = self._folder / str(self._count)
        shutil.copytree(self.template, tree, copy_function=os.link)
        if mutant is not None:
            text = mutant.text(self.template)
            assert text is not None
            (tree / mutant.file).unlink()  # a link: writing into it would change the template
            for compiled in (tree / mutant.file).parent.glob(f"__pycache__/{Path(mutant.file).stem}.*"):
                compiled.unlink()
            (tree / mutant.file).write_text(text, encoding="utf-8")
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_child, args=(tree, arguments, sender))
        process.start()
        sender.close()
        return _Running(job, tree, process, receiver, time.monotonic() + limit)

    def _end(self, running: _Running) -> Outcome:
        try:
            hung = not running.receiver.poll()
            outcome = Outcome(1, first="hung") if hung else running.receiver.recv()
        except EOFError:
            text = (running.tree / "output.txt").read_text(encoding="utf-8", errors="replace")[-2000:]
            outcome = Outcome(3, first="the process of the tests died", text=text)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid or 0, signal.SIGKILL)
        running.process.join()
        shutil.rmtree(running.tree, ignore_errors=True)
        return outcome


def unusable(mutants: list[Mutant], workers: Workers) -> dict[Mutant, Verdict]:
    """The stale faults, and those whose tests do not pass, in the unchanged project."""
    stale = (m for m in mutants if m.text(workers.template) is None)
    verdicts = {m: Verdict(m, "stale", f"old is not exactly once in {m.file}") for m in stale}
    areas: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        if mutant not in verdicts:
            areas.setdefault(mutant.area, []).append(mutant)
    groups = list(areas.values())
    while groups:
        wrong = []
        jobs = [(group, None, sorted({test for mutant in group for test in mutant.tests})) for group in groups]
        for group, outcome in workers.outcomes(jobs, 10 * LIMIT):
            if outcome.code == NO_SUCH_TEST and len(group) > 1:
                wrong += [[mutant] for mutant in group]  # one wrong name: whose?
                continue
            for mutant in group:
                if bad := [test for test in mutant.tests if not outcome.passed(test)]:
                    why = outcome.first or outcome.text.strip().replace("\n", " | ")[-400:]
                    verdicts[mutant] = Verdict(mutant, "broken", f"{bad[0]} does not pass without the fault ({why})")
        groups = wrong
    return verdicts


def verdict(mutant: Mutant, outcome: Outcome) -> Verdict:
    """The verdict on a fault from the outcome of its tests."""
    if outcome.code == 0:
        return Verdict(mutant, "SURVIVED", ", ".join(mutant.tests))
    if outcome.code != 1 or outcome.misspelt:
        return Verdict(mutant, "broken", outcome.first or outcome.text.strip().replace("\n", " | ")[-400:])
    return Verdict(mutant, "killed", outcome.first)


def judge(mutants: list[Mutant], root: Path, folder: Path, jobs: int) -> Iterator[Verdict]:
    """A verdict for each fault; ``folder`` is empty and takes the copies."""
    workers = Workers(root, folder, jobs)
    bad = unusable(mutants, workers)
    yield from bad.values()
    planted = [(m, m, ["-x", *m.tests]) for m in mutants if m not in bad]
    for mutant, outcome in workers.outcomes(planted, LIMIT):
        yield verdict(mutant, outcome)


def import_once() -> None:
    """Imports what tests need and the project does not contain."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "FLWR_DISABLE_UPDATE_CHECK"):
        os.environ.setdefault(name, "1")
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    # The one other thread is an allocator's, which a fork can do without.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    gc.freeze()  # the forks share what is imported


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 where every chosen fault was killed."""
    parser = argparse.ArgumentParser(description="Plant the listed faults, one by one, and run the tests that notice.")
    parser.add_argument("words", nargs="*", help="only faults with one of these in their area, file or name")
    parser.add_argument("--change", metavar="SEED", help="those in changed files, and others drawn by SEED")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at the same time (2)")
    parser.add_argument("--verbose", action="store_true", help="say which test noticed each fault, and how")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in read_lists() if _matches(m, chosen.words)]
    if mutants and chosen.change:
        mutants = of_a_change(mutants, chosen.change)
    if not mutants:
        parser.error(f"no fault has {' or '.join(chosen.words)} in its area, file or name")
    import_once()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    console, verdicts = Console(), []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Without a thread of its own: this process forks.
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(
            *columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as progress,
    ):
        task = progress.add_task("checking the tests themselves", total=len(mutants))
        for each in judge(mutants, ROOT, Path(folder).resolve(), chosen.jobs):
            verdicts.append(each)
            if chosen.verbose or each.kind != "killed":
                console.print(f"{each.kind}: {each.mutant.name} ({each.why})", markup=False, highlight=False)
            progress.update(task, advance=1, description=each.mutant.area)
            progress.refresh()
    left = [each for each in verdicts if each.kind != "killed"]
    if left:
        table = Table("verdict", "area", "fault", "file", title="Not killed")
        for each in left:
            table.add_row(each.kind, each.mutant.area, each.mutant.name, each.mutant.file)
        console.print(table)
    console.print(f"{len(verdicts) - len(left)} of {len(verdicts)} faults killed.")
    return 1 if left else 0


def of_a_change(mutants: list[Mutant], seed: str) -> list[Mutant]:
    """The faults in files that changed since the last long run, and some others, drawn by the seed."""
    sys.path.insert(1, str(LISTS.parent))
    import selection

    changed = selection.since("planted faults") or frozenset()
    touched = [m for m in mutants if m.file in changed or f"tests/mutants/{m.area}.toml" in changed]
    others = [m for m in mutants if m not in touched]
    return touched + random.Random(seed).sample(others, min(DRAWN, len(others)))


def _matches(mutant: Mutant, words: list[str]) -> bool:
    return not words or any(word in text for word in words for text in (mutant.area, mutant.file, mutant.name))


if __name__ == "__main__":
    sys.exit(main())
