"""Everything that the page and the metrics show of a federation.

*Formal guarantees.* *Claim.* It is a function of released values, of public numbers, of the queue, of the connections
of SuperNodes, of certificates, of the disk's size and of the times and ends of runs and rounds: no field that
`simulations.records.released_fields` lists as private enters. *Why.* Of a run's files it reads the guarantee, the spent
epsilon and the number of rounds, which are public or noised, of runs that hold a promise, and when files were written;
reports come from `copy_released`. SuperNodes hold no data. Why a run failed stays with the operator's command, because
the reason may depend on who answered. *Assumptions.* Those of the runs' guarantees; whether a run failed, and how long
a round took, is not covered by any.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import pandas as pd

from simulations.account.accounts import Account
from simulations.deployment.keys import certificate_ends
from simulations.records.run_directory import read_json
from simulations.serving.keeper import RELEASED, began
from simulations.serving.queue import OPEN, STATES, Queue, Scheduled, always_missing
from userdp.accounting import Total
from userdp.accounting.guarantee import Guarantee

MOST = 50
"""Runs on a page."""


@dataclass(frozen=True)
class Shown:
    """A run, as far as it is shown."""

    run: Scheduled
    rounds: int | None  # that ended; None before the first
    epsilon: float | None  # spent; what is promised, until it has ended
    guarantee: Guarantee | None  # for that
    report: Path | None  # for others
    reason: str | None  # of a refusal, which is public
    began: datetime | None = None  # for the first time
    took: timedelta | None = None  # until it ended
    last_round: datetime | None = None  # when that was written


@dataclass(frozen=True)
class Budget:
    """An account's numbers."""

    name: str
    total: Total
    spent_epsilon: float
    left_epsilon: float
    entries: int
    runs: int  # that wait for it, or use it

    @classmethod
    def of(cls, account: Account, runs: Sequence[Scheduled]) -> "Budget":
        """Add up what is spent, once for all who look."""
        users = sum(run.account == account.name and run.state in OPEN for run in runs)
        return cls(
            account.name, account.total, account.spent_epsilon, account.left_epsilon, len(account.entries), users
        )


@dataclass(frozen=True, eq=False)
class Overview:
    """The state of a federation at one time."""

    at: datetime
    queued: Sequence[Scheduled]  # all runs, the last first
    runs: Sequence[Shown]  # the first `MOST` of these
    last: Shown | None  # the run under way, else the last one that began
    accounts: Sequence[Budget]
    missing: Sequence[str]  # silos that never were connected when one of the last runs began
    free: int  # bytes of the results' disk
    disk: int  # bytes of it
    certificates: Mapping[str, datetime] = field(default_factory=dict)  # file or server -> when it ends
    nodes: Mapping[str, bool] | None = None  # silo -> whether it is connected; None if nobody was asked yet

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of runs in each state."""
        return {state: sum(run.state == state for run in self.queued) for state in STATES}

    @cached_property
    def silos(self) -> dict[str, tuple[bool | None, bool | None]]:
        """Return of each silo whether it was connected when the last run began, and is now; None if it was not known.

        A silo that is known no more has lost its key.
        """
        before, now = next((run.silos for run in self.queued if run.silos), {}), self.nodes or {}
        return {silo: (before.get(silo), now.get(silo)) for silo in sorted({*before, *now})}


def overview(queue: Queue, results: Path, keys: Path | None = None, servers: Sequence[str] = ()) -> Overview:
    """Read the state of a federation, with the certificates in ``keys`` and of ``servers``.

    Raises `BadInput`: the database does not answer.
    """
    runs, accounts, disk = queue.runs(), queue.accounts, shutil.disk_usage(results)
    started = [run for run in runs if run.state == "running"] or [run for run in runs if run.silos]
    return Overview(
        datetime.now(UTC),
        runs[::-1],
        shown_of(runs[::-1][:MOST], results),
        shown_of(started[-1:], results)[0] if started else None,
        [Budget.of(accounts.read(name), runs) for name in accounts.names()],
        always_missing(runs),
        disk.free,
        disk.total,
        {} if keys is None else certificate_ends(keys, servers),
    )


def shown_of(runs: Sequence[Scheduled], results: Path) -> list[Shown]:
    """Read of runs what is shown of them."""
    return [_shown(run, results) for run in runs]


def report_of(run: Scheduled, results: Path) -> Path | None:
    """Return the report of a run for others, if it left one."""
    if run.folder is None or run.state == "refused":  # before it wrote anything there
        return None
    report = results / RELEASED / run.folder / "report.html"
    return report if os.path.isfile(report) else None


def _shown(run: Scheduled, results: Path) -> Shown:
    reason = run.reason if run.state == "refused" else None
    if run.folder is None or run.state == "refused":
        return Shown(run, None, None, None, None, reason)
    folder = results / run.folder
    rounds, epsilon, guarantee = _progress(folder)
    first, end = began(folder), _written(folder / "result.json")
    took = end - first if first and end and run.state in ("done", "failed") else None
    last = _written(folder / "rounds.parquet") if rounds else None
    return Shown(run, rounds, epsilon, guarantee, report_of(run, results), reason, first, took, last)


def _written(file: Path) -> datetime | None:
    with suppress(OSError, ValueError):
        return datetime.fromtimestamp(os.stat(file).st_mtime, UTC)
    return None


def _progress(folder: Path) -> tuple[int | None, float | None, Guarantee | None]:
    """Return the rounds, the epsilon and the guarantee of a run that promises something.

    Of a run that has not ended guarantee.json states everything that is promised: it may have been killed after it
    asked more than its last written round tells.
    """
    try:
        promise = read_json(folder / "guarantee.json")
        rounds = len(pd.read_parquet(folder / "rounds.parquet", columns=["round"]))
        if not promise["holds"]:
            return None, None, None
        return rounds, promise["spent_epsilon"], Guarantee.from_dict(promise)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None, None, None
