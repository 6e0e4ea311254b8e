"""The folder of a run: whom it admits, and the order in which it is written.

The order is part of the guarantee. The folder is held, then nothing in it may be a release of another run, then the
account is charged for the whole plan; all of this before anybody is asked. While rounds go on, the promise of the whole
plan is on the disk before the model that it covers. At the end come the promise and the model, what was measured, and
result.json last, by which a run that has ended is known.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from simulations.account.entering import admitted
from simulations.config.run_config import RunConfig
from simulations.records.checkpoints import Checkpoints, remove_checkpoints
from simulations.records.observer import Observer
from simulations.records.released_fields import ALL_KINDS, SHARED, Kind
from simulations.records.run_directory import RunDirectory, new_directory, remove_empty
from simulations.runs.build import Prepared
from simulations.runs.result import Result, promise
from strategies.core.plan import Plan
from strategies.core.results import ANSWERS, RoundRecord, answers_text
from strategies.core.run_state import Resumed
from userdp.errors import BadInput
from userdp.extras import check_extra

log = logging.getLogger("userdp")


@dataclass(eq=False)
class RunFolder(Observer):
    """The folder of one run, which alone writes into it; `opened` makes it.

    ``keeper`` stores the state from which the run resumes; None where none is kept. ``resumed`` is the state of a
    killed process, None where it kept none. With ``again`` there was one, which may have asked more than its state
    tells.
    """

    prepared: Prepared
    files: RunDirectory
    keeper: Checkpoints | None
    resumed: Resumed | None
    again: bool

    @classmethod
    @contextmanager
    def opened(
        cls, prepared: Prepared, directory: Path | None, *, keeps: bool, again: bool, deployed: bool
    ) -> Iterator[Self]:
        """Hold a folder, by default a new one, and enter the run into its account; one that stays empty is removed.

        BadInput: another process holds it, or what it holds, or what is left in the account, forbids the run.
        """
        config, strategy = prepared.config, prepared.strategy
        secure = config.privacy.noise == "secure"
        path = directory or new_directory(config.run_directory, secure=secure)
        checkpoints = Checkpoints(path, config)
        with ExitStack() as stack:
            stack.callback(remove_empty, path)
            if keeps or secure:
                stack.enter_context(checkpoints.held())
            resumes = keeps or not secure
            resumed = admitted(config, strategy, path, resume=again, resumes=resumes, deployed=deployed)
            files = RunDirectory(path, resumed=resumed is not None)
            yield cls(prepared, files, checkpoints if keeps else None, resumed, again)

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.files.path

    def on_start(self, plan: Plan) -> None:
        """Write what is fixed before anybody is asked."""
        super().on_start(plan)
        self.files.text("config.toml", self.prepared.config.toml())
        self.files.json("plan.json", plan.as_dict())

    def on_round(self, record: RoundRecord) -> None:
        """Write what was released so far, with the promise of the whole plan; of a new round alone.

        A process that is killed writes nothing more, whatever it asked meanwhile.
        """
        if self.resumed is not None and record.round <= self.resumed.kept.get("round"):
            return
        strategy, model, whole = self.prepared.strategy, self.prepared.model, self.plan.guarantee
        self.files.progress(strategy.result.rounds, model, lambda: promise(strategy, whole, whole=True))

    def finish(self, result: Result) -> dict[str, Any]:
        """Write every file but the report, and return the content of result.json."""
        prepared = self.prepared
        self.files.progress(prepared.strategy.result.rounds, prepared.model, result.promise, now=True)
        self.files.json("data.json", result.data())
        content = result.content()
        if "answers" in content:
            self.files.text(ANSWERS, answers_text(content["answers"]))
        self.files.json("result.json", content)
        return content


def conclude(path: Path, config: RunConfig, *, report: bool = True) -> None:
    """Do what is left when result.json is written, also by a process that was killed: the report, no checkpoints."""
    if report and not (path / "report.html").is_file():
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
