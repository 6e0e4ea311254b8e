"""`userdp compare`: strategies x settings x problems x seeds, every cell a run of its own at the same budget.

A cell's directory is named by the hash of its whole configuration, and its last file is cell.json. A finished cell is
never run again, so a stopped comparison resumes. A failed cell is a row with its reason.
"""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from simulations.comparison.config import Cell, Comparison
from simulations.comparison.one_cell import Record, finished, run_job
from simulations.comparison.table import NOT_RUN, row, write_table
from simulations.config.run_config import EngineSection, RunConfig
from simulations.engines.ray_grid import begin_ray
from simulations.records.environment import versions
from simulations.records.evaluation import main_metric
from simulations.records.run_directory import private_folder, write_text, writing
from simulations.reports.progress import Clock, how_far
from simulations.runs.build import build_problem


@dataclass(frozen=True)
class Job:
    """One run, of a stage: "cells", "tuning" or "reference"."""

    stage: str
    label: str
    config: RunConfig

    @cached_property
    def digest(self) -> str:
        """The hash of version and configuration."""
        return hashlib.sha256(f"{versions()['userdp']}\n{self.config.toml()}".encode()).hexdigest()

    @property
    def folder(self) -> str:
        """The run's directory, relative to the comparison's."""
        return f"{self.stage}/{self.label}-seed{self.config.seed}-{self.digest[:10]}"


Watch = Callable[[Job, Record, bool], None]  # called with every finished run, and whether this call made it
Execute = Callable[[Sequence[Job], Path], Iterator[tuple[Job, Record]]]
Search = list[tuple[dict[str, Any], Job]]  # (settings, their run) of everything that a search tries


@dataclass(frozen=True)
class ComparisonOutcome:
    """The result of a comparison: its directory, the rows of results.parquet, and the number of runs made now."""

    directory: Path
    rows: list[dict[str, Any]]
    ran: int


def compare(
    comparison: Comparison,
    *,
    workers: int | None = None,
    directory: Path | None = None,
    watch: Watch | None = None,
) -> ComparisonOutcome:
    """Run every cell that has not been run, and write the table and the report.

    ``workers`` are Ray processes with one CPU each, all CPUs if None; 0 runs the cells one by one in this process, and
    so does the ray engine, whose actors need the CPUs. The ``directory`` is by default the file's output directory and
    name; ``watch`` is called after every run. BadInput if a problem cannot be built or the directory not be written,
    RunFailed without Ray.
    """
    root = directory or Path(comparison.config.output.directory) / comparison.config.name
    state = _State(comparison, root, watch)
    left = [cell for cell in comparison.cells if not state.finished(cell)]
    for cell in {json.dumps([cell.raw["problem"], cell.raw["data"]]): cell for cell in left}.values():
        build_problem(cell.reference())  # before the first cell, of which each would fail
    with writing(f"output.directory: {root}"):
        private_folder(root)
        write_text(root / "comparison.toml", comparison.toml())
    try:
        with _executor(workers, comparison.cells[0].config().engine) as execute:
            state.run(execute)
    finally:
        # After an interruption the table says what is missing.
        rows = state.rows()
        write_table(root, comparison, rows, state.chosen)
    from simulations.comparison.report import render_comparison  # noqa: PLC0415 -- charts are slow to import

    render_comparison(root)
    return ComparisonOutcome(root, rows, state.ran)


@dataclass
class _State:
    """A comparison under way: runs made, records by digest, chosen settings by group of cells."""

    comparison: Comparison
    root: Path
    watch: Watch | None
    ran: int = 0
    records: dict[str, Record] = field(default_factory=dict)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)

    def finished(self, cell: Cell) -> bool:
        """Return whether a cell is there, with its reference; one whose settings are searched for counts as missing."""
        jobs = (reference_job(cell), self._job(cell))
        return all(job is not None and finished(self.root / job.folder, job.digest) is not None for job in jobs)

    def run(self, execute: Execute) -> None:
        cells = self.comparison.cells
        searches = {cell.group: self._tuning(cell) for cell in cells if self.comparison.candidates(cell)}
        references = [reference_job(cell) for cell in cells]
        self._finish([*references, *(job for jobs in searches.values() for _, job in jobs)], execute)
        self.chosen = {group: choice for group, jobs in searches.items() if (choice := self._best(jobs)) is not None}
        self._finish([job for cell in cells if (job := self._job(cell)) is not None], execute)

    def _tuning(self, cell: Cell) -> Search:
        return [
            (options, Job("tuning", cell.strategy, _in_process(cell.config(seed=seed, **options))))
            for options in self.comparison.candidates(cell)
            for seed in self.comparison.public_seeds
        ]

    def _best(self, jobs: Search) -> dict[str, Any] | None:
        if any(job.digest not in self.records for _, job in jobs):
            return None
        totals: dict[str, float] = {}
        for options, job in jobs:
            key = json.dumps(options)
            totals[key] = totals.get(key, 0.0) + measured(self.records[job.digest])
        return dict(json.loads(min(totals, key=totals.__getitem__)))

    def _job(self, cell: Cell) -> Job | None:
        """Return the run of a cell; None until its settings are chosen."""
        if not self.comparison.candidates(cell):
            return Job("cells", cell.strategy, cell.config())
        options = self.chosen.get(cell.group)
        return None if options is None else Job("cells", cell.strategy, cell.config(**options))

    def _finish(self, jobs: Sequence[Job], execute: Execute) -> None:
        missing = []
        for job in {job.digest: job for job in jobs}.values():
            record = finished(self.root / job.folder, job.digest)
            if record is None:
                missing.append(job)
            else:
                self._note(job, record, made_now=False)
        for job, record in execute(missing, self.root):
            self.ran += 1
            self._note(job, record, made_now=True)

    def _note(self, job: Job, record: Record, *, made_now: bool) -> None:
        self.records[job.digest] = record
        if self.watch is not None:
            self.watch(job, record, made_now)

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for cell in self.comparison.cells:
            job = self._job(cell)
            record = self.records.get(job.digest) if job else None
            reference = self.records.get(reference_job(cell).digest)
            folder = job.folder if job else None
            rows.append(row(cell, record or {"error_private": NOT_RUN}, reference, self.chosen.get(cell.group), folder))
        return rows


def reference_job(cell: Cell) -> Job:
    """Return the run without privacy on a cell's data, which all strategies and budgets share."""
    config = _in_process(cell.reference())
    trusting = {"trust": "server", "colluding": 0.0, "lost_nodes": 0}
    budget = config.privacy.model_copy(update={"epsilon": 1.0, "delta": 1e-12, **trusting})
    return Job("reference", "non_private", config.model_copy(update={"privacy": budget}))


def _in_process(config: RunConfig) -> RunConfig:
    """Return the run on the local engine, which gives the same model."""
    return config.model_copy(update={"engine": config.engine.model_copy(update={"kind": "local"})})


def measured(record: Record) -> float:
    """Return the main metric of a run; infinite if it failed or measured nothing."""
    metrics = (record.get("result") or {}).get("metrics") or {}
    name = main_metric(metrics)
    value = None if record.get("error_private") or name is None else metrics[name]
    return math.inf if value is None else float(value)


@contextmanager
def _executor(workers: int | None, engine: EngineSection) -> Iterator[Execute]:
    actors = engine.kind == "ray"
    if workers == 0 and not actors:
        yield _one_by_one
        return
    where = {"address": engine.address or "local", "num_cpus": None if engine.address else engine.workers}
    remedy = "engine.kind = 'local' and --workers 0 run" if actors else "--workers 0 runs"
    settings = where if actors else {"num_cpus": workers}
    ray, own = begin_ray("Ray cannot be started", f"; {remedy} without it", **settings)
    try:
        yield _one_by_one if actors else _side_by_side  # the grids of all cells use one Ray
    finally:
        if own:
            ray.shutdown()


def _one_by_one(jobs: Sequence[Job], root: Path) -> Iterator[tuple[Job, Record]]:
    for job in jobs:
        yield job, run_job(job.config.toml(), job.digest, root / job.folder)


def _side_by_side(jobs: Sequence[Job], root: Path) -> Iterator[tuple[Job, Record]]:
    """Make each run in a Ray task with one CPU; yield in the order in which they finish."""
    import ray  # noqa: PLC0415

    task = ray.remote(num_cpus=1, max_retries=0)(run_job)
    # Absolute: a worker has a working directory of its own.
    home = root.resolve()
    waiting: Mapping[Any, Job] = {task.remote(job.config.toml(), job.digest, home / job.folder): job for job in jobs}
    pending = list(waiting)
    while pending:
        (done,), pending = ray.wait(pending, num_returns=1)
        try:
            record: Record = ray.get(done)
        except ray.exceptions.RayError as error:
            reason = f"the process of this cell ended ({type(error).__name__})"
            record = {"digest": waiting[done].digest, "error_private": reason}
        yield waiting[done], record


@contextmanager
def live(comparison: Comparison, clock: Clock = time.monotonic) -> Iterator[Watch]:
    """Provide the function that a comparison calls after every run, to show its progress on standard error."""
    runs, of = Counter[str](), len(comparison.cells)

    def before() -> str:
        count = runs.total() - runs["cells"]
        return f" after {count} run{'' if count == 1 else 's'} of searches and references" if count else ""

    with how_far("cell", clock) as told:
        told.begin(beside="")

        def watch(job: Job, record: Record, made_now: bool) -> None:
            runs[job.stage] += 1
            done = runs["cells"]
            if job.stage != "cells" or not made_now:
                # Other runs say nothing about the duration of a cell.
                told.count_from(done)
            told.tell(done, of, lambda: f"{done} of {of} cells done{before()}", before)

        yield watch
