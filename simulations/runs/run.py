"""A run: one strategy on one federation with one seed, and its directory."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from simulations.config.run_config import RunConfig
from simulations.engines.configured import make_grid
from simulations.records.checkpoints import Checkpoints
from simulations.records.evaluation import Evaluation, Schedule
from simulations.records.observer import Observer
from simulations.runs.build import Prepared, load_datasets, server_datasets
from simulations.runs.folder import RunFolder, conclude
from simulations.runs.policy import claim_of
from simulations.runs.result import Result
from simulations.runs.trackers import Tracked
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord
from strategies.wire.questions import model_vector
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.data.source import Datasets
from userdp.errors import RunFailed, UserdpError
from userdp.tracebacks import shows_internals, told

log = logging.getLogger("userdp")


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


def run(
    config: RunConfig,
    *,
    grid: Grid | None = None,
    datasets: Datasets | None = None,
    directory: Path | None = None,
    observers: Sequence[Observer] = (),
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
        observers: follow the run, after its trackers.
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
    prepared = Prepared.of(config, server_datasets if deployed else datasets or load_datasets)
    prepared.check_run(computes=not deployed)
    evaluation = Evaluation(prepared.problem, prepared.datasets.train, prepared.datasets.test)
    schedule = Schedule(evaluation, config.output.evaluate_every, prepared.plan.rounds)
    keeps = checkpoint or resume
    with (
        RunFolder.opened(prepared, directory, keeps=keeps, again=resume, deployed=deployed) as folder,
        ExitStack() as stack,
    ):
        if deployed:
            prepared.strategy.require_identities = True
            prepared.strategy.claim = claim_of(config, prepared.strategy.plan.guarantee, folder.path)
        trackers = [Tracked(name, folder.path) for name in dict.fromkeys(config.output.trackers)]
        followers = [folder, *trackers, *observers]
        for one in followers:
            one.on_start(prepared.plan)
            stack.callback(one.on_end)
        result = Result(prepared, schedule, config.engine.kind, again=resume)
        try:
            with make_grid(config, prepared.problem, prepared.datasets) if grid is None else nullcontext(grid) as used:
                result.engine = getattr(used, "engine", "flower")
                _train(prepared, used, schedule, folder, followers)
                if not deployed and config.trains_reference:
                    result.non_private = _reference(prepared, used, evaluation)
        except BaseException as error:
            result.error = _reason(error)
            folder.finish(result)
            if isinstance(error, Exception) and not isinstance(error, UserdpError):
                cause = error if shows_internals() else None  # its text may quote data
                raise RunFailed(f"unexpected {told(error)}; what the run had written is in {folder.path}") from cause
            raise
        content = folder.finish(result)
        conclude(folder.path, config, report=report)
    return RunOutcome(folder.path, content, prepared.model, prepared.plan, result.guarantee)


def _train(
    prepared: Prepared, grid: Grid, schedule: Schedule, folder: RunFolder, followers: Sequence[Observer]
) -> None:
    """Run the strategy's rounds."""
    strategy, settings, shown = prepared.strategy, prepared.config.engine, 0

    def show(_: RoundRecord | None = None) -> None:
        nonlocal shown
        for record in strategy.result.rounds[shown:]:  # those of a killed process included
            shown += 1
            for one in followers:
                one.on_round(record)

    strategy.start(
        grid,
        timeout=settings.timeout,
        roster_timeout=settings.roster_timeout,
        nodes=settings.nodes,
        evaluate_fn=schedule,
        on_round=show,
        keeper=folder.keeper,
        resumed=folder.resumed,
    )
    show()


def _reference(prepared: Prepared, grid: Grid, evaluation: Evaluation) -> dict[str, float] | None:
    """Train without privacy, and return the metrics; None if that stopped."""
    settings = prepared.config.engine
    try:
        result = prepared.reference().start(grid, timeout=settings.timeout, roster_timeout=settings.roster_timeout)
    except RunFailed as error:
        log.warning("the reference without privacy could not be trained: %s", error)
        return None
    return evaluation.whole(model_vector(result.arrays))


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    # Foreign messages may quote data.
    return str(error) if isinstance(error, UserdpError) else f"unexpected {type(error).__name__}"
