"""`userdp compare`: strategies x settings x problems x seeds, every cell a run of its own at the same budget.

A cell's directory is named by the hash of its whole configuration, and its last file is cell.json: what is there is
never run again, so a comparison that was stopped continues where it stood. A cell that failed is a row with its reason.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulations.comparison.cells import Cell
from simulations.comparison.config import Comparison
from simulations.comparison.one_cell import Record, finished, run_job
from simulations.comparison.oracle import scales_of
from simulations.comparison.table import NOT_RUN, row, write_table
from simulations.config.run_config import RunConfig
from simulations.records.environment import versions
from simulations.records.evaluation import main_metric
from userdp.errors import BadInput, RunFailed

log = logging.getLogger("userdp")


@dataclass(frozen=True)
class Job:
    """One run: a cell, a candidate of a search, or a reference without privacy.

    Attributes:
        stage: "cells", "tuning", "oracle" (its search) or "reference".
        label: of the strategy.
        config: the run.
        private: its settings were chosen without looking at the data; where they were not, the run promises nothing.
    """

    stage: str
    label: str
    config: RunConfig
    private: bool = True
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        text = f"{versions()['userdp']}\n{self.config.toml()}"
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest())

    @property
    def folder(self) -> str:
        """Relative to the comparison's directory."""
        return f"{self.stage}/{self.label}-seed{self.config.seed}-{self.digest[:10]}"


Watch = Callable[[Job, Record, bool], None]
"""Called with every finished run, and whether it was made now: those of earlier calls are told as well."""


@dataclass(frozen=True)
class ComparisonOutcome:
    """What a comparison left.

    Attributes:
        directory: with results.parquet, rounds.parquet, comparison.toml, comparison.json, report.html, report.md
            and the cells.
        rows: of results.parquet.
        ran: runs that this call made; the others were there.
    """

    directory: Path
    rows: list[dict[str, Any]]
    ran: int


def compare(
    comparison: Comparison,
    *,
    workers: int | None = None,
    directory: Path | None = None,
    limit: int | None = None,
    watch: Watch | None = None,
) -> ComparisonOutcome:
    """Run every cell that has not been run, and write the table and the report.

    Args:
        comparison: what to run.
        workers: Ray processes with one CPU each, all CPUs if None; 0 runs the cells one by one in this process.
        directory: where to write; ``comparison.directory`` if not given.
        limit: make at most so many runs, and call what remains "not run yet".
        watch: called after every run.

    Raises:
        BadInput: the directory cannot be written.
        RunFailed: Ray cannot be started.
    """
    root = directory or comparison.directory
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / "comparison.toml").write_text(comparison.toml(), encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"output.directory: {root} cannot be written ({type(error).__name__}); choose another folder"
        ) from None
    course = _Course(comparison, root, math.inf if limit is None else limit, watch)
    try:
        with _executor(workers) as execute:
            course.run(execute)
    finally:
        # Also when it is interrupted: the table then says what is missing.
        rows = course.rows()
        write_table(root, comparison, rows, course.chosen)
    from simulations.comparison.report import render_comparison  # noqa: PLC0415 -- charts are slow to import

    render_comparison(root)
    return ComparisonOutcome(root, rows, course.ran)


Execute = Callable[[Sequence[Job], Path], Iterator[tuple[Job, Record]]]


@dataclass
class _Course:
    """A comparison under way."""

    comparison: Comparison
    root: Path
    left: float
    watch: Watch | None
    ran: int = 0
    records: dict[str, Record] = field(default_factory=dict)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, execute: Execute) -> None:
        """References and searches first, then the cells with what was found."""
        searches = {
            cell.group: self._search(cell) for cell in self.comparison.cells if self.comparison.candidates(cell)
        }
        looking = {cell.group: cell for cell in reversed(self.comparison.cells) if cell.oracle}
        searches |= {group: self._look(cell) for group, cell in reversed(looking.items())}
        references = [reference_job(cell) for cell in self.comparison.cells]
        self._finish([*references, *(job for jobs in searches.values() for _, job in jobs)], execute)
        self.chosen = {group: choice for group, jobs in searches.items() if (choice := self._best(jobs)) is not None}
        ready = [job for cell in self.comparison.cells if (job := self._job(cell)) is not None]
        self._finish(ready, execute)

    def _search(self, cell: Cell) -> list[tuple[dict[str, Any], Job]]:
        """(settings, run on a public federation) of everything that tuning tries for a cell."""
        return [
            (options, Job("tuning", cell.strategy, cell.config(seed=seed, **options)))
            for options in self.comparison.candidates(cell)
            for seed in self.comparison.public_seeds
        ]

    def _look(self, cell: Cell) -> list[tuple[dict[str, Any], Job]]:
        """(settings, run) of everything that the oracle tries for a cell: on a seed of its own, of the same data."""
        seed = self.comparison.oracle_seed
        try:
            settings = scales_of(cell.config(seed=seed), self.root / "oracle").settings()
        except Exception as error:
            # Whoever's data cannot be looked at cannot be trained on either: the cells say why.
            log.warning("the oracle could not look at the data (%s): it has no settings to try", type(error).__name__)
            settings = [{}]
        return [
            (options, Job("oracle", cell.strategy, cell.config(seed=seed, **options), private=False))
            for options in settings
        ]

    def _best(self, jobs: Sequence[tuple[dict[str, Any], Job]]) -> dict[str, Any] | None:
        """The settings with the least mean of the main metric, or None while runs are missing."""
        if any(job.digest not in self.records for _, job in jobs):
            return None
        totals: dict[str, float] = {}
        for options, job in jobs:
            key = json.dumps(options)
            totals[key] = totals.get(key, 0.0) + measured(self.records[job.digest])
        best: dict[str, Any] = json.loads(min(totals, key=totals.__getitem__))
        return best

    def _job(self, cell: Cell) -> Job | None:
        """The run of a cell, once its settings are known."""
        if not cell.oracle and not self.comparison.candidates(cell):
            return Job("cells", cell.strategy, cell.config())
        options = self.chosen.get(cell.group)
        if options is None:
            return None
        return Job("cells", cell.strategy, cell.config(**options), private=not cell.oracle)

    def _finish(self, jobs: Sequence[Job], execute: Execute) -> None:
        """Look up what was run before, and run the rest."""
        missing = []
        for job in {job.digest: job for job in jobs}.values():
            record = finished(self.root / job.folder, job.digest)
            if record is None:
                missing.append(job)
            else:
                self._note(job, record, made_now=False)
        now = missing[: int(min(self.left, len(missing)))]
        for job, record in execute(now, self.root):
            self.left, self.ran = self.left - 1, self.ran + 1
            self._note(job, record, made_now=True)

    def _note(self, job: Job, record: Record, *, made_now: bool) -> None:
        self.records[job.digest] = record
        if self.watch is not None:
            self.watch(job, record, made_now)

    def rows(self) -> list[dict[str, Any]]:
        """One a cell, in the order of the file."""
        rows = []
        for cell in self.comparison.cells:
            job = self._job(cell)
            record = self.records.get(job.digest) if job else None
            reference = self.records.get(reference_job(cell).digest)
            tuned = self.chosen.get(cell.group)
            rows.append(
                row(
                    cell,
                    record or {"error_private": NOT_RUN},
                    reference,
                    tuned,
                    job.folder if job is not None else None,
                )
            )
        return rows


def reference_job(cell: Cell) -> Job:
    """Training without privacy on a cell's data: the same run for all strategies and all budgets."""
    config = cell.reference()
    budget = config.privacy.model_copy(update={"epsilon": 1.0, "delta": 1e-12, "trust": "server", "colluding": 0.0})
    return Job("reference", "non_private", config.model_copy(update={"privacy": budget}))


def measured(record: Record) -> float:
    """The main metric of a run; infinite for one that failed or measured nothing."""
    metrics = (record.get("result") or {}).get("metrics") or {}
    name = main_metric(metrics)
    value = None if record.get("error_private") or name is None else metrics[name]
    return math.inf if value is None else float(value)


@contextmanager
def _executor(workers: int | None) -> Iterator[Execute]:
    """How runs are made: in this process, or in Ray processes that are stopped afterwards."""
    if workers == 0:
        yield _one_by_one
        return
    # As Ray will do by itself in future; it warns where this is not said.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray  # noqa: PLC0415

    own = not ray.is_initialized()
    if own:
        try:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RunFailed(f"Ray cannot be started ({error}); --workers 0 runs without it") from error
    try:
        yield _side_by_side
    finally:
        if own:
            ray.shutdown()


def _one_by_one(jobs: Sequence[Job], root: Path) -> Iterator[tuple[Job, Record]]:
    for job in jobs:
        yield job, run_job(job.config.toml(), job.digest, root / job.folder, job.private)


def _side_by_side(jobs: Sequence[Job], root: Path) -> Iterator[tuple[Job, Record]]:
    """One Ray task a run, with one CPU; in the order in which they finish."""
    import ray  # noqa: PLC0415

    task = ray.remote(num_cpus=1, max_retries=0)(run_job)
    # Absolute: a worker has a working directory of its own.
    home = root.resolve()
    waiting: Mapping[Any, Job] = {
        task.remote(job.config.toml(), job.digest, home / job.folder, job.private): job for job in jobs
    }
    pending = list(waiting)
    while pending:
        (done,), pending = ray.wait(pending, num_returns=1)
        try:
            record: Record = ray.get(done)
        except ray.exceptions.RayError as error:
            record = {
                "digest": waiting[done].digest,
                "error_private": f"the process of this cell ended ({type(error).__name__})",
            }
        yield waiting[done], record
