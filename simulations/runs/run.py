"""A run: one strategy on one federation with one seed, and its directory."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from simulations.account.entering import admitted
from simulations.config.run_config import REFERENCE, RunConfig
from simulations.engines.grids import MOST_NODES, LocalGrid, populated, shards, worthwhile_nodes
from simulations.engines.ray_grid import RayGrid
from simulations.records.checkpoints import Checkpoints, remove_checkpoints
from simulations.records.coefficients import with_errors
from simulations.records.environment import peak_memory, versions
from simulations.records.evaluation import Evaluation, Schedule, best_constant, better
from simulations.records.named_code import digests
from simulations.records.released_fields import ALL_KINDS, SHARED, Kind
from simulations.records.run_directory import RunDirectory, new_directory, plain, remove_empty
from simulations.runs.build import (
    check_places,
    check_samples,
    held_out_users,
    load_datasets,
    make_strategy,
    public_facts,
    server_datasets,
    starting_problem,
    with_assumptions,
    with_declarations,
)
from simulations.runs.policy import claim_of
from simulations.runs.trackers import check_installed, tracking
from strategies.auto.staged import AutoScheme
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord
from strategies.core.run_state import Resumed
from strategies.core.testers import Testers
from strategies.queries.statistics import QueryRounds
from strategies.wire.questions import model_vector
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.data.source import Datasets
from userdp.errors import BadInput, RunFailed, UserdpError
from userdp.extras import check_extra
from userdp.nodes.node import Node
from userdp.problems import Problem
from userdp.tracebacks import shows_internals, told

log = logging.getLogger("userdp")
Progress = Callable[[RoundRecord, Plan], None]  # called after every round


@dataclass(frozen=True)
class RunOutcome:
    """The directory of a run, the content of result.json, the released model (p,), the plan, and the guarantee.

    The plan was fixed before the run read data; the guarantee is that of the rounds that were run.
    """

    directory: Path
    result: dict[str, Any]
    model: Vector
    plan: Plan
    guarantee: Guarantee


@contextmanager
def make_grid(config: RunConfig, problem: Problem, datasets: Datasets) -> Iterator[Grid]:
    """Yield the configured grid, its nodes ready to answer; close it afterwards."""
    engine, train = config.engine, datasets.users
    # Masks hide nothing unless several nodes share a sum.
    nodes = MOST_NODES if config.privacy.trust == "sum" else worthwhile_nodes(problem, train)
    blocks = shards(train.users, engine.users_per_node, nodes=nodes)
    places = config.data.declared_users or train.users
    train, blocks = populated(datasets, blocks, evaluate=bool(config.privacy.evaluate), places=places)
    if engine.kind == "ray":
        grid: LocalGrid | RayGrid = RayGrid(
            problem, train, blocks, engine.workers, engine.address, engine.gpus_per_actor
        )
    else:
        grid = LocalGrid([Node(problem, train, users) for users in blocks])
    with grid:
        yield grid


def run(
    config: RunConfig,
    *,
    grid: Grid | None = None,
    datasets: Datasets | None = None,
    directory: Path | None = None,
    progress: Progress | None = None,
    report: bool = True,
    deployed: bool = False,
    checkpoint: bool = False,
    resume: bool = False,
) -> RunOutcome:
    """Train, evaluate, compare with the initial model and with training without privacy, and write all files.

    Args:
        config: the run.
        grid: where to run; the configured engine's by default. Its nodes must hold the configured users.
        datasets: the configured users, if they are in memory already.
        directory: the folder to write, replacing a run in it; a new ``config.run_directory`` by default.
        progress: called after every round.
        report: also write report.html; `simulations.reports.report.render` can write it later.
        deployed: this is the server of a deployment: it has no users' data, needs a grid, and every node has to say who
            its users are.
        checkpoint: keep on disk, until the run has ended, the state from which a killed run resumes.
        resume: resume the killed run with this configuration in ``directory``.

    Raises:
        BadInput: something does not fit; the directory is then untouched, unless a node or a tracker finds it.
        RunFailed: the run stopped; its directory holds config.toml, plan.json, the rounds so far, the last released
            model, guarantee.json with the spent budget, and result.json with "error".
    """
    if resume and directory is not None:
        Checkpoints(directory, config).read()  # refused before the code that it names is imported
    this = _Run(config, datasets, deployed=deployed)
    check_installed(config.output.trackers)
    secure = config.privacy.noise == "secure"
    path = directory or new_directory(config.run_directory, secure=secure)
    with ExitStack() as stack:
        stack.callback(remove_empty, path)
        checkpoints = Checkpoints(path, config)
        keeper = checkpoints if checkpoint or resume else None
        if keeper is not None or secure:
            stack.enter_context(checkpoints.held())
        resumes = keeper is not None or not secure
        resumed = admitted(config, this.strategy, path, resume=resume, resumes=resumes, deployed=deployed)
        if deployed:
            this.strategy.claim = claim_of(config, this.strategy.plan.guarantee, path)
        this.resumed = resume
        this.files = files = RunDirectory(path, resumed=resumed is not None)
        files.text("config.toml", config.toml())
        files.json("plan.json", this.plan.as_dict())
        track = stack.enter_context(tracking(config.output.trackers, files.path))

        def on_round(record: RoundRecord, plan: Plan) -> None:
            track(record)
            if progress is not None:
                progress(record, plan)

        try:
            with nullcontext(grid) if grid is not None else make_grid(config, this.problem, this.datasets) as own:
                this.train(own, on_round, keeper, resumed)
        except BaseException as error:
            this.finish(_reason(error))
            if isinstance(error, Exception) and not isinstance(error, UserdpError):
                cause = error if shows_internals() else None  # its text may quote data
                raise RunFailed(f"unexpected {told(error)}; what the run had written is in {files.path}") from cause
            raise
        outcome = this.finish(None)
        if report:
            _render(files.path, ALL_KINDS if config.shows_private else SHARED)
        checkpoints.remove()
    return outcome


def conclude(path: Path, config: RunConfig) -> None:
    """Do what a run that was killed after its result.json had left to do: its report, and removing its checkpoints."""
    if not (path / "report.html").is_file():
        _render(path, ALL_KINDS if config.shows_private else SHARED)
    remove_checkpoints(path)


def _render(path: Path, kinds: tuple[Kind, ...]) -> None:
    """Write the report; without its extra the run is complete all the same, and a line says how to get the page."""
    try:
        check_extra("report", "report.html")
    except BadInput as missing:
        log.warning("no report.html was written: %s; then: userdp report %s", missing, path)
        return
    from simulations.reports.report import render  # noqa: PLC0415 -- charts are slow to import

    render(path, kinds)


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    # Foreign messages may quote data.
    return str(error) if isinstance(error, UserdpError) else f"unexpected {type(error).__name__}"


def insist(config: RunConfig, plan: Plan) -> None:
    """Refuse a run whose plan predicts a model far worse than the initial one, unless ``output.anyway`` is set."""
    if plan.forecast is None or not plan.forecast.hopeless or config.output.anyway:
        return
    reasons = "; ".join(plan.forecast.warnings())
    raise BadInput(f"strategy.kind = {plan.strategy!r}: {reasons}. To run it anyway, use --anyway or output.anyway")


class _Run:
    """The parts of a run, checked against each other, and the content of its files."""

    files: RunDirectory

    def __init__(self, config: RunConfig, datasets: Datasets | None, *, deployed: bool) -> None:
        self.config, self.deployed = config, deployed
        self.started, self.code = time.perf_counter(), digests(config)
        self.problem = starting_problem(config)
        if datasets is None or deployed:
            datasets = server_datasets(config) if deployed else load_datasets(config)
        self.datasets, self.facts = datasets, public_facts(config, datasets.train)
        self.held_out = held_out_users(config, datasets)
        self.strategy = make_strategy(config, self.problem, self.facts, held_out=self.held_out)
        check_places(config, self.strategy.plan.guarantee)
        insist(config, self.strategy.plan)
        if not deployed:  # a server without data computes nothing
            self.problem.settle_device()
        if datasets.train is not None:
            check_samples(self.facts, datasets.train, self.strategy.plan.guarantee)
        self.evaluation = Evaluation(self.problem, datasets.train, datasets.test)
        self.schedule = Schedule(self.evaluation, config.output.evaluate_every, self.strategy.plan.rounds)
        self.engine: str = config.engine.kind
        self.shown, self.resumed = 0, False
        self.non_private: dict[str, float] | None = None

    def train(self, grid: Grid, progress: Progress, keeper: Checkpoints | None, resumed: Resumed | None) -> None:
        """Run the strategy, then the reference."""
        self.engine = {LocalGrid: "local", RayGrid: "ray"}.get(type(grid), "flower")
        settings = self.config.engine

        def on_round(_: RoundRecord) -> None:
            # A process that is killed writes nothing more, whatever it asked meanwhile.
            self.files.progress(
                self.strategy.result.rounds, self.model, lambda: self._promise(self.plan.guarantee, whole=True)
            )
            show()

        def show() -> None:
            for each in self.strategy.result.rounds[self.shown :]:  # those of a killed process included
                self.shown += 1
                progress(each, self.strategy.plan)

        self.strategy.require_identities = self.deployed
        self.strategy.start(
            grid,
            timeout=settings.timeout,
            roster_timeout=settings.roster_timeout,
            evaluate_fn=self.schedule,
            on_round=on_round,
            keeper=keeper,
            resumed=resumed,
        )
        show()
        if self.deployed or not self.config.trains_reference:
            return
        try:
            reference = make_strategy(
                self.config, self.problem, self.facts, name=REFERENCE, held_out=self.held_out
            ).start(grid, timeout=settings.timeout, roster_timeout=settings.roster_timeout)
        except RunFailed as error:
            log.warning("the reference without privacy could not be trained: %s", error)
        else:
            self.non_private = self.evaluation.whole(model_vector(reference.arrays))

    @property
    def plan(self) -> Plan:
        """The strategy's plan with the declarations of the configuration."""
        return with_declarations(self.strategy.plan, self.config)

    @property
    def model(self) -> Vector:
        """The last released model; the initial one before the first release."""
        arrays = self.strategy.result.arrays
        return model_vector(arrays) if len(arrays) else self.problem.initial()

    def finish(self, error: str | None) -> RunOutcome:
        """Write every file but the report."""
        outcome, model = self.strategy.result, self.model
        whole = error is not None and self.resumed  # the killed process may have asked more than its checkpoint tells
        guarantee = self.plan.guarantee if whole else self._guarantee(failed=error is not None)
        self.files.progress(outcome.rounds, model, lambda: self._promise(guarantee, whole=whole), now=True)
        self.files.json("data.json", self._data())
        measured = [record.metrics for record in outcome.rounds if record.metrics]
        metrics, initial = measured[-1] if measured else outcome.initial_metrics, outcome.initial_metrics
        reference: dict[str, Any] = {"initial": initial}
        shown: dict[str, Any] = {}
        if error is None:  # a failed run measures nothing more
            measure, released = self.evaluation, outcome.constant
            metrics = self.schedule.of(model)
            metrics |= measure.details(model, metrics)
            reference = {
                "initial": initial | measure.details(self.problem.initial(), initial),
                "constant": measure.constant or None,
                "released_constant": None if released is None else measure.whole(released) or None,
            }
            shown = measure.shown(model) | self._held_out() | self._coefficients()
        result: dict[str, Any] = plain(self._result(guarantee, metrics, reference) | shown)
        if self.code:
            result["code"] = self.code
        answers = self._answers(model) if error is None else []
        if error is not None:
            result["error"] = error
        elif answers:
            result["answers"] = answers
            self.files.answers(answers)
        elif (reason := self.evaluation.not_measured(model, metrics)) is not None:
            result |= {"not_measured": reason, "better_than_initial": None, "better_than_constant": None}
        self.files.json("result.json", result)
        return RunOutcome(self.files.path, result, model, self.plan, guarantee)

    def _answers(self, model: Vector) -> list[dict[str, Any]]:
        """Return result.json's "answers" to a query; empty for training."""
        scheme = self.strategy.scheme
        if not isinstance(scheme, QueryRounds):
            return []
        return [plain(one.as_dict()) for one in scheme.answers(model, self.strategy.memory)]

    def _held_out(self) -> dict[str, Any]:
        """Return result.json's "held_out": the metrics that the guarantee covers."""
        testers = self.strategy.testers
        if not isinstance(testers, Testers):
            return {}
        metrics = {
            name: {"value": one.value, "standard_error": one.standard_error, "interval": list(one.interval)}
            for name, one in testers.found.items()
        }
        return {"held_out": {"users": testers.users, "largest_loss": testers.limit, "metrics": metrics}}

    def _coefficients(self) -> dict[str, Any]:
        """Return result.json's "coefficients", of runs that set a share of the budget aside for them."""
        scheme = self.strategy.scheme
        found = scheme.coefficients(self.strategy.memory) if isinstance(scheme, AutoScheme) else None
        return {} if found is None else {"coefficients": with_errors(*found)}

    def _promise(self, guarantee: Guarantee, *, whole: bool) -> dict[str, Any]:
        """Return the content of guarantee.json; with ``whole`` everything that is promised counts as spent."""
        testers = self.strategy.testers
        held_out = {} if testers is None else {"held_out_spent_epsilon": testers.spent()}
        spent = {"spent_epsilon": self.strategy.spent_epsilon, **held_out}
        return guarantee.as_dict() | {
            "sentence": guarantee.sentence(),
            **(dict.fromkeys(spent, guarantee.epsilon) if whole else spent),
            "noise": self.strategy.noise_source,
        }

    def _guarantee(self, *, failed: bool) -> Guarantee:
        """Return the promise; of a run that failed, for what it spent on whoever was charged most."""
        guarantee = with_assumptions(self.strategy.result.guarantee, self.config)
        if failed and guarantee.holds:
            return replace(guarantee, epsilon=self.strategy.spent_epsilon or 0.0)
        return guarantee

    def _data(self) -> dict[str, Any]:
        report, declared = self.datasets.report, self.config.data.declared_held_out
        return {
            "training_users": self.facts.users,
            "held_out_users": 0 if self.datasets.test is None else declared or self.datasets.test.users,
            "clipped_samples_private": self.strategy.result.clipped_samples,
            "table_private": None if report is None else report.as_dict(),
        }

    def _result(self, guarantee: Guarantee, metrics: dict[str, float], reference: dict[str, Any]) -> dict[str, Any]:
        """Return the content of result.json; released_fields.toml lists the kinds of its fields."""
        outcome, train = self.strategy.result, self.datasets.train
        if self.config.strategy.kind == REFERENCE:
            self.non_private = metrics
        seconds = [record.seconds for record in outcome.rounds]
        return {
            "name": self.config.name,
            "strategy": self.config.strategy_name,
            "problem": self.config.problem.kind,
            "engine": self.engine,
            "seed": self.config.seed,
            "users": self.facts.users,
            "samples": self.facts.samples,
            "samples_private": None if train is None or self.facts.samples is not None else train.samples,
            "dimension": self.problem.dimension,
            "rounds": len(outcome.rounds),
            "guarantee": guarantee.as_dict(),
            "metrics": metrics,
            "reference": reference,
            "reference_private": {"non_private": self.non_private},
            "better_than_constant": better(metrics, best_constant(reference)),
            "better_than_initial": better(metrics, reference["initial"]),
            "missing_users_private": outcome.missing_users,
            "non_finite_users_private": outcome.non_finite_users,
            "seconds": {
                "total": time.perf_counter() - self.started,
                "per_round": sum(seconds) / len(seconds) if seconds else 0.0,
            },
            "peak_memory_mib": peak_memory(),
            "computed": self.problem.computed() or None,
            "versions": versions(),
        }
