"""The keeper of a federation: it takes runs from the queue, one at a time, and follows each to its end.

*Formal guarantees.* *Claim.* A run of the queue is charged once, whatever is killed and when, and what it releases is
covered by that charge; a run that does not fit its account asks nobody; a run that ended is not run again. *Why.* Its
token and its folder are in the database before it is charged (`simulations.serving.queue`), and an account enters a
token once. The run's process takes the token from the folder. Every step may be repeated: the keeper decides by the
database and the folder, not by what it remembers. A folder belongs to the run whose token it holds, never to a number
or a name: one of another database's run is refused. If it was killed before it wrote down Flower's number, the run is
submitted twice; the run's process holds a lock on the folder, and refuses one whose run has ended, so that the two
never run side by side nor one after the other. *Assumptions.* Those of `Accounts` and `Queue`. Nobody else writes into
the folder of results, which a file system keeps whose locks hold between the keeper and the run's process.
"""

import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from simulations.account.accounts import Accounts, AccountsUnavailable
from simulations.account.checking import compared
from simulations.account.entering import enter_run, wanted
from simulations.config.run_config import RunConfig, load_config
from simulations.deployment.submit import Link, start
from simulations.flower import configuration_of
from simulations.records.checkpoints import in_use
from simulations.records.run_directory import (
    TOKEN,
    Unwritable,
    as_json,
    ended,
    private_folder,
    read_json,
    token_of,
    write_text,
    writing,
)
from simulations.reports.report import copy_released
from simulations.runs.build import Prepared, insist, server_datasets
from simulations.runs.folder import conclude
from simulations.serving.announcing import Alarm
from simulations.serving.health import DATABASE, DISK, LINK, Pulse, connected
from simulations.serving.queue import Queue, Scheduled, always_missing
from strategies.core.base import UserLevelStrategy
from userdp.errors import BadInput, RunFailed

log = logging.getLogger("userdp.serve")
RELEASED = "released"
"""The folder, among the results, of copies for others."""
ATTEMPTS = 3
"""Submissions of one run, of which all but the first resume it."""
PAUSE = timedelta(minutes=10)
_OF_ITS_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EINVAL)
_IDENTITY = ".keeper"
_WAITS = 3  # questions that a round asks one after the other, at most: its own, and two for shares or of held-out users
OWNER = ".queue.json"  # the token of the run of the queue that a folder belongs to, with an account or without one


def checked(config: RunConfig) -> UserLevelStrategy:
    """Return the strategy of a deployment, planned from declarations alone; `BadInput` if it cannot run."""
    datasets = server_datasets(config)
    if datasets.train is None and config.privacy.account is None:
        raise BadInput(
            "privacy.account is missing: a run of the queue on people's data enters an account that the operator made "
            "(userdp account create NAME --epsilon 4 --delta 1e-6); name it"
        )
    strategy = Prepared.of(config, datasets).strategy
    insist(config, strategy.plan)
    return strategy


@contextmanager
def identity(results: Path) -> Iterator[str]:
    """Hold a folder of results, and provide the identity of its keeper; `BadInput` if another process holds it."""
    with writing(f"--results {results}"):
        private_folder(results)
        file = os.open(results / _IDENTITY, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"--results {results} belongs to another userdp serve: stop that one first") from None
        known = os.read(file, 100).decode()
        if not known:
            known = secrets.token_hex(16)
            os.write(file, known.encode())
            os.fsync(file)
        yield known
    finally:
        os.close(file)


class Lost(BadInput):
    """The files of a run are gone, so that nobody knows whom it asked."""


@dataclass(frozen=True)
class Keeper:
    """Takes one step at a time; see `step`."""

    queue: Queue
    link: Link
    app: Path  # the Flower app that runs
    results: Path  # where runs write, under this very path for the keeper and for the run's process
    identity: str
    alarm: Alarm
    names: Path | None = None  # the file with the names of silos' nodes, which the SuperLink's job writes
    stalled: float = 1800.0  # seconds that a run may write nothing, beyond what a round's questions may wait
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    pulse: Pulse = field(default_factory=Pulse)

    def step(self) -> bool:
        """Bring the run under way, or the next one that is due, a step further; return whether there is one.

        Raises `BadInput`: the queue belongs to another keeper. While the database or the SuperLink does not answer, or
        the disk is full, nothing changes.
        """
        try:
            self._stop_cancelled()
            run = self.queue.take(self.now(), self.identity)
            if run is None:
                self.pulse.follow(None)
            else:
                self._survive(run, self.results / str(run.folder))
        except (AccountsUnavailable, Unwritable, RunFailed) as error:
            log.warning("nothing moves: %s", error)
            database, disk = isinstance(error, AccountsUnavailable), isinstance(error, Unwritable)
            self.pulse.beat(DATABASE if database else DISK if disk else LINK)
            return True
        self.pulse.beat()
        return run is not None

    def _survive(self, run: Scheduled, folder: Path) -> None:
        """Bring a run a step further; one in which anything at all is wrong fails alone."""
        try:
            self._further(run, folder)
        except (AccountsUnavailable, RunFailed):
            raise
        except Exception as error:
            if isinstance(error, OSError | Unwritable) and _passes(error):
                raise Unwritable(str(error)) from None
            why = str(error) if isinstance(error, BadInput) else f"unexpected {type(error).__name__}"
            self.queue.finish(run.number, "failed", why, self.now())
            self.alarm("failed", f"run {run.number}, {run.name}, failed: {why}", run.number)

    def _stop_cancelled(self) -> None:
        """Stop at Flower what was cancelled while it was under way, or failed here and goes on there."""
        for run in self.queue.runs():
            if run.state in ("cancelled", "failed") and run.run is not None and run.keeper == self.identity:
                try:
                    if self._stopped(run.run) is None:
                        self.link.ask("stop", run.run, "LINK")
                        log.info("run %d, %s, is stopped: it is %s", run.number, run.name, run.state)
                    self.queue.stopped(run.number)
                except RunFailed as error:
                    log.warning("run %d, %s, is %s and not stopped yet: %s", run.number, run.name, run.state, error)

    def _further(self, run: Scheduled, folder: Path) -> None:
        if folder.parent != self.results or folder.name in ("", "..", RELEASED):
            raise BadInput(f"{run.folder!r} is no name of a folder in {self.results}: add the run anew")
        if not _belongs(folder, run.token):
            self._refuse(
                run,
                f"{folder} holds another run, of a database that was replaced or restored: restore that database, or "
                "serve with another --results",
            )
        elif ended(folder) and not in_use(folder):
            self._done(run, folder)
        elif run.run is None:
            self._begin(run, folder)
        else:
            self._follow(run, run.run, folder)

    def _follow(self, run: Scheduled, number: str, folder: Path) -> None:
        """Look after a run that was submitted: one that shows nothing for too long is stopped, as if it had failed.

        It shows something whenever a file in its folder is written, at least before and after each round, which may
        wait for the ends of `_WAITS` questions.
        """
        engine = configuration_of(run.configuration).engine
        limit = self.stalled + _WAITS * (engine.timeout + engine.roster_timeout)
        sign = number, folder.stat().st_mtime_ns if folder.is_dir() else 0
        silent = f"it wrote nothing for {limit / 60:.0f} minutes" if self.pulse.follow(sign, limit) > limit else None
        status = self._stopped(number)
        if silent and status is None:
            self.link.ask("stop", number, "LINK")
            self.alarm("stalled", f"run {run.number}, {run.name}, is stopped: {silent}", run.number)
            status = silent
        if status is not None and not in_use(folder) and not ended(folder):
            self._resume_or_give_up(run, silent or _error(folder) or status)

    def _begin(self, run: Scheduled, folder: Path) -> None:
        """Enter a run into its account, unless it is entered, and submit it."""
        try:
            compared(self.queue.accounts, self.results).insist()
        except BadInput as error:  # of what was released before
            raise AccountsUnavailable(str(error)) from None
        try:
            with writing(f"--results: {folder}"):
                private_folder(folder)
                first = began(folder) or self.now()
                write_text(folder / OWNER, as_json({"token": run.token, "began": first.isoformat()}))
            if not (folder / TOKEN).is_file():
                self._check_not_asked(run, folder)
                config = configuration_of(run.configuration)
                enter_run(config, checked(config), folder, deployed=True, token=run.token, accounts=self.queue.accounts)
        except (AccountsUnavailable, Unwritable, Lost):
            raise
        except BadInput as error:
            self._refuse(run, str(error))
            return
        silos = connected(self.link, self.names)
        try:
            number = start(self.link, self.app, run.configuration, folder)
        except RunFailed as error:  # though the SuperLink has just answered
            self.queue.begun(run.number, "not submitted", silos)
            self._resume_or_give_up(replace(run, attempts=run.attempts + 1), _error(folder) or str(error))
            return
        self.queue.begun(run.number, number, silos)
        log.info("run %d, %s, is submitted as %s", run.number, run.name, number)
        if missing := always_missing(self.queue.runs()):
            told = f"not connected at the start of the last runs: {', '.join(missing)}"
            self.alarm("missing", told, run.number)

    def _check_not_asked(self, run: Scheduled, folder: Path) -> None:
        """Refuse (`Lost`) to begin a run anew, under its entry, that was submitted and may have asked."""
        if run.attempts and run.token in self.queue.accounts.places():
            raise Lost(
                f"{folder} has lost what the run left there: its entry pays for that, and beginning again would be a "
                "second release; put the folder back, and userdp serve retry, or add a new run"
            )

    def _refuse(self, run: Scheduled, why: str) -> None:
        self.queue.finish(run.number, "refused", why, self.now())
        self.alarm("refused", f"run {run.number}, {run.name}, is refused: {why}", run.number)

    def _stopped(self, number: str) -> str | None:
        """Return how a run ended, as Flower says; None while it has not ended."""
        found = {str(run["run-id"]): str(run["status"]) for run in self.link.ask("ls", "LINK")["runs"]}
        status = found.get(number, "lost: the SuperLink has restarted")
        return status if status.startswith(("finished", "lost")) else None

    def _done(self, run: Scheduled, folder: Path) -> None:
        conclude(folder, configuration_of(run.configuration))
        self._publish(folder)
        self.queue.finish(run.number, "done", None, self.now())
        log.info("run %d, %s, is done", run.number, run.name)

    def _publish(self, folder: Path) -> None:
        """Copy what others may see of a run; a run without a promise for others leaves no copy."""
        target = self.results / RELEASED / folder.name
        partial = target.with_name(f".{folder.name}.partial")
        if target.exists():
            return
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with writing(f"the copy for others, {target},"):
                copy_released(folder, partial)
                partial.rename(target)
        except Unwritable:
            raise
        except BadInput as error:
            log.warning("no report for others: %s", error)

    def _resume_or_give_up(self, run: Scheduled, why: str) -> None:
        if run.attempts < ATTEMPTS:
            self.queue.put_back(run.number, self.now() + PAUSE, why)
            log.warning("run %d, %s, stopped and is resumed: %s", run.number, run.name, why)
        else:
            self.queue.finish(run.number, "failed", why, self.now())
            self.alarm("failed", f"run {run.number}, {run.name}, failed {run.attempts} times: {why}", run.number)


def enter_missing(accounts: Accounts, results: Path) -> list[Path]:
    """Enter the runs of a deployment that have no entry, each at the price of its whole plan; return their folders.

    Raises `BadInput`: there is no account of that name, or a run does not fit into what is left.
    """
    missing = compared(accounts, results).missing
    for folder in missing:
        account, token = _entered(folder)
        named = [f"privacy.account={json.dumps(account)}"]
        config = load_config(folder / "config.toml", named)
        apart = config.privacy.model_copy(update={"accounts": None})  # former versions let a configuration name them
        strategy = checked(config.model_copy(update={"privacy": apart}))
        what = f"{config.name}: {config.strategy_name}"
        # Its token stays as it is, so that it pays for the settings that it was entered with, by any version.
        accounts.enter(account, replace(wanted(strategy, what), token=token, place=str(folder.resolve())))
    return list(missing)


def _entered(folder: Path) -> tuple[str, str]:
    """Return the account and the token of a run directory; `BadInput` if they cannot be read."""
    try:
        kept = read_json(folder / TOKEN)
        return str(kept["account"]), str(kept["token"])
    except (OSError, ValueError, LookupError, TypeError):
        raise BadInput(
            f"{folder / TOKEN}, which names the entry of this folder's run, cannot be read: put it back, or move the "
            "folder away, and count what it released on top"
        ) from None


def began(folder: Path) -> datetime | None:
    """Return when the run of a folder was begun for the first time; None if that cannot be read."""
    try:
        return datetime.fromisoformat(read_json(folder / OWNER)["began"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _belongs(folder: Path, token: str) -> bool:
    """Return whether a folder is that of the run of the queue with this token, or of none yet, nor its copy."""
    if (folder / OWNER).is_file():
        return bool(read_json(folder / OWNER)["token"] == token)
    if (entered := token_of(folder)) is not None:
        return entered == token
    return not (folder.parent / RELEASED / folder.name).exists() and not (folder.is_dir() and any(folder.iterdir()))


def _passes(error: BaseException) -> bool:
    """Return whether an error of a file may be over later, such as a full disk; not one of this file's name."""
    cause = error if isinstance(error, OSError) else error.__context__
    return not isinstance(cause, OSError) or cause.errno not in _OF_ITS_NAME


def _error(folder: Path) -> str | None:
    try:
        return str(read_json(folder / "result.json")["error"])
    except (OSError, LookupError, json.JSONDecodeError):
        return None
