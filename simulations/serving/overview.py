"""Everything that the page and the metrics show of a federation.

*Formal guarantees.* *Claim.* It is a function of released values, of public numbers, of the queue, of the connections
of SuperNodes and of the ends of runs: no field that `simulations.records.released_fields` lists as private enters.
*Why.* Of a run's files it reads the guarantee, the spent epsilon and the number of rounds, which are public or noised,
of runs that hold a promise; reports come from `copy_released`. SuperNodes hold no data. Why a run failed stays with the
operator's command, because the reason may depend on who answered. *Assumptions.* Those of the runs' guarantees; whether
a run failed is not covered by any.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from simulations.account.accounts import Account
from simulations.records.run_directory import read_json
from simulations.serving.keeper import RELEASED
from simulations.serving.queue import STATES, Queue, Scheduled, always_missing
from userdp.accounting.guarantee import Guarantee

MOST = 200
"""Runs that are shown."""


@dataclass(frozen=True)
class Shown:
    """A run, as far as it is shown."""

    run: Scheduled
    rounds: int | None  # that ended; None before the first
    epsilon: float | None  # spent; what is promised, until it has ended
    guarantee: Guarantee | None  # for that
    report: Path | None  # for others
    reason: str | None  # of a refusal, which is public


@dataclass(frozen=True)
class Overview:
    """The state of a federation."""

    runs: Sequence[Shown]  # the newest `MOST`, the last first
    counts: dict[str, int]  # state -> its runs
    accounts: Sequence[Account]
    silos: dict[str, bool]  # whether each was connected when the last run began
    missing: Sequence[str]  # silos that never were when one of the last runs began


def overview(queue: Queue, results: Path) -> Overview:
    """Read the state of a federation; `BadInput` if the database does not answer."""
    runs, accounts = queue.runs(), queue.accounts
    began = [run.silos for run in runs if run.silos]
    return Overview(
        [_shown(run, results) for run in reversed(runs[-MOST:])],
        {state: sum(run.state == state for run in runs) for state in STATES},
        [accounts.read(name) for name in accounts.names()],
        began[-1] if began else {},
        always_missing(runs),
    )


def _shown(run: Scheduled, results: Path) -> Shown:
    reason = run.reason if run.state == "refused" else None
    if run.folder is None or run.state == "refused":  # before it wrote anything there
        return Shown(run, None, None, None, None, reason)
    report = results / RELEASED / run.folder / "report.html"
    rounds, epsilon, guarantee = _progress(results / run.folder)
    return Shown(run, rounds, epsilon, guarantee, report if os.path.isfile(report) else None, reason)


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
