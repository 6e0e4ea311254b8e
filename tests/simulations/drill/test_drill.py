"""The drill: ten scheduled runs of a federation in containers, and a fault each minute; see docs/drill.md.

It takes half an hour, and writes the table of docs/drill.md, research/results/drill.csv.
"""

import csv
import time
from datetime import UTC, datetime, timedelta

import drill_checks as checks
import pytest
from drill_faults import FAULTS, Fault
from drill_federation import ROUND, USERS, Federation
from helpers_containers import NODES, ROOT, engine_answers

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not engine_answers(), reason="no container engine with Compose answers"),
]
RESULTS = ROOT / "research" / "results" / "drill.csv"
RUNS, ROUNDS = 10, 10
REFUSED = {3: "privacy.epsilon=9", 10: "privacy.epsilon=3.5"}
"""Run -> what makes it exceed the account: alone, and with all that was spent before."""


@pytest.fixture
def federation(tmp_path):
    tmp_path.chmod(0o755)
    federation = Federation.made(tmp_path)
    with federation.up():
        yield federation


def test_a_federation_keeps_its_promises_through_every_fault(federation, tmp_path):
    began = time.monotonic()
    federation.inside("userdp", "account", "create", "clinic", "--epsilon", "4", "--delta", "1e-5")
    federation.allow(RUNS)
    for number in range(1, RUNS + 1):
        due = datetime.now(UTC) + timedelta(minutes=number)
        federation.add(*([REFUSED[number]] if number in REFUSED else []), at=f"{due:%Y-%m-%d %H:%M}")
    rows = [endured(fault, federation) for fault in FAULTS]
    federation.wait(federation.ended, "runs are left", 60 * ROUND)
    federation.keep_run_logs()
    minutes = (time.monotonic() - began) / 60

    queue, entries = federation.rows("userdp_queue"), federation.rows("userdp_entries")
    results = federation.results(tmp_path / "results")
    checks.no_account_is_overdrawn(federation.rows("userdp_accounts"), entries)
    checks.every_run_has_ended(queue, RUNS, REFUSED)
    checks.each_run_left_what_it_promised(queue, entries, results, ROUNDS)
    checks.silos_were_missing(results, rounds=sum(fault.costs_users for fault in FAULTS), users=USERS // len(NODES))
    checks.nothing_private_is_in(shown(federation, results), federation.marks())
    write(rows, {row["number"]: row for row in queue}, minutes)


def endured(fault: Fault, federation: Federation) -> dict[str, object]:
    """Let a fault strike while a run trains, mend it once it shows, and wait until all is well again."""
    run, resumed = federation.under_way(), federation.resumed()
    shows, before = fault.shows(federation), [federation.rounds(node) for node in NODES]
    fault.strike(federation)
    lasted = federation.wait(shows, f"{fault.name}, and nothing shows it")
    begun = [federation.rounds(node) for node in NODES]
    well = fault.well(federation)
    fault.mend(federation)
    back = federation.wait(lambda: federation.hasten() and well(), f"{fault.name}, and it was mended in vain")
    print(f"{fault.name}: run {run['number']}, {lasted:.0f} s, well after {back:.0f} s", flush=True)
    return {
        "fault": fault.name,
        "done": fault.done,
        "run": run["number"],
        "lasted": round(lasted),
        "rounds": max(now - then for then, now in zip(before, begun, strict=True)),
        "resumed": federation.resumed() - resumed,
        "well": round(back),
    }


def shown(federation: Federation, results) -> dict[str, str]:
    """Everything that others than a run's operator may see, and all logs."""
    said = [federation.containers.call("logs", "--no-color"), federation.log(), *federation.run_logs.values()]
    logs = "\n".join(said)
    texts = {"the logs": logs, "the page": federation.ask("/"), "the metrics": federation.ask("/metrics")}
    assert "speaks version 0" in texts["the logs"]  # they are the logs
    released = [path for path in sorted((results / "released").rglob("*")) if path.is_file()]
    assert released
    return texts | {str(path.relative_to(results)): path.read_bytes().decode("latin1") for path in released}


def write(rows, queue, minutes: float) -> None:
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*rows[0], "end", "minutes"], lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow(row | {"end": queue[row["run"]]["state"], "minutes": round(minutes, 1)})
