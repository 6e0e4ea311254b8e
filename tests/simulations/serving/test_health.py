"""Health is progress: what does not move is told and ended, and who looks is shown the last look."""

import asyncio
import json
import os
import re
import select
import socket
import socketserver
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from errno import ENOSPC
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import httpx
import pandas as pd
import pytest
from examples import GUARANTEE
from helpers_accounts import own_postgres, promise
from helpers_browser import DESK, PHONE, check_seen, measured, needs_chromium
from helpers_serving import Federation, queue_of, text
from test_keeper import NOON, added, clinic, keeper_of, kept_to_the_end
from test_page_answers import KNOWN, Asked, nothing

from simulations.account import accounts as accounts_module
from simulations.account.accounts import Accounts, Wanted
from simulations.flower import configuration_of
from simulations.serving import health
from simulations.serving import overview as overviews
from simulations.serving import page as pages
from simulations.serving.health import DISK, LINK, SILENT, Pulse, connected
from simulations.serving.keeper import ATTEMPTS, PAUSE
from simulations.serving.overview import MOST, Budget, overview
from simulations.serving.queue import _QUEUE, STATES
from userdp.accounting import Guarantee, Total

__all__ = ["clinic"]  # a fixture


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(health, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def asked_of(keeper):
    """The page of a keeper."""
    look, nodes = (lambda: overview(keeper.queue, keeper.results)), (lambda: connected(keeper.link, keeper.names))
    return Asked(look, keeper.pulse, keeper.results, nodes)


class Told:
    """An alarm that remembers."""

    def __init__(self):
        self.alerts = []

    def __call__(self, alert, message, run=None):
        self.alerts.append((alert, message, run))


# A run that does not move -----------------------------------------------------------------------------------------


def limit_of(keeper):
    engine = configuration_of(text()).engine
    return keeper.stalled + 3 * (engine.timeout + engine.roster_timeout)


def test_a_run_in_silence_is_stopped_counted_and_given_up_with_its_reason(clinic, accounts, tmp_path, clock):
    added(accounts)
    told = Told()
    keeper = keeper_of(clinic, accounts, tmp_path, alarm=told)
    for attempt in range(1, ATTEMPTS + 1):
        keeper = replace(keeper, now=lambda attempt=attempt: NOON + attempt * PAUSE)
        assert keeper.step()
        assert keeper.step()
        clock.now += limit_of(keeper) - 1
        assert keeper.step()
        assert [run["status"] for run in clinic.runs.values()][-1] == "pending"  # it may still be waiting for a silo
        clock.now += 2
        assert keeper.step()
        assert [run["status"] for run in clinic.runs.values()][-1] == "finished:stopped"
        run = queue_of(accounts).runs()[0]
        assert (run.attempts, run.state) == (attempt, "waiting" if attempt < ATTEMPTS else "failed")
        assert re.fullmatch(r"it wrote nothing for \d+ minutes", run.reason)
    assert [alert for alert, _, _ in told.alerts] == ["stalled"] * ATTEMPTS + ["failed"]
    added(accounts, text(epsilon=0.1))
    kept_to_the_end(keeper, clinic)
    assert [run.state for run in queue_of(accounts).runs()] == ["failed", "done"]
    assert keeper.pulse.silent is None


def test_a_round_whose_questions_all_wait_as_long_as_they_may_is_no_silence(clinic, accounts, tmp_path, clock):
    """One silo is away: users' question, and that for shares of its secrets, in two waves, end by `engine.timeout`."""
    added(accounts)
    keeper, engine = keeper_of(clinic, accounts, tmp_path), configuration_of(text()).engine
    keeper.step()
    keeper.step()
    for _ in range(3):
        clock.now += engine.timeout + engine.roster_timeout
        assert keeper.step()
    assert [run["status"] for run in clinic.runs.values()] == ["pending"]


def test_a_run_that_writes_is_never_stopped_and_a_clock_that_jumps_stops_none(clinic, accounts, tmp_path, clock):
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    folder = tmp_path / "results" / "00001-monthly"
    for turn in range(5):
        assert replace(keeper, now=lambda turn=turn: NOON + timedelta(days=400 * turn)).step()
        (folder / f"round {turn}").touch()
        os.utime(folder, ns=(turn, turn))  # a file system whose times are coarse
        clock.now += limit_of(keeper)
    assert [run["status"] for run in clinic.runs.values()] == ["pending"]


def test_a_run_whose_process_still_works_is_not_begun_beside_it(clinic, accounts, tmp_path, clock, monkeypatch):
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    keeper.step()
    keeper.step()
    clock.now += 2 * limit_of(keeper)
    with monkeypatch.context() as patch:
        patch.setattr("simulations.serving.keeper.in_use", lambda folder: True)
        for _ in range(3):
            assert keeper.step()
        assert queue_of(accounts).runs()[0].state == "running"
        assert SILENT in asked_of(keeper)("/healthz").text
    keeper.step()
    assert queue_of(accounts).runs()[0].state == "waiting"


def test_health_says_how_far_the_run_under_way_is_to_whoever_has_the_token(clinic, accounts, tmp_path, clock):
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    asked = asked_of(keeper)
    keeper.step()
    keeper.step()
    folder = tmp_path / "results" / "00001-monthly"
    written = {"spent_epsilon": 1.0, **replace(GUARANTEE, epsilon=1.0).as_dict()}
    (folder / "guarantee.json").write_text(json.dumps(written), encoding="utf-8")
    pd.DataFrame({"round": [1, 2, 3]}).to_parquet(folder / "rounds.parquet")
    os.utime(folder / "rounds.parquet", (NOON.timestamp(), NOON.timestamp()))
    keeper.step()
    clock.now += 40
    keeper.pulse.beat()
    stranger, known = asked("/healthz").text, asked("/healthz", headers=KNOWN).text
    assert stranger == "ok\nThe last look was 0 s ago\n"
    assert known.startswith(stranger)
    assert "Run 1: attempt 1, 3 rounds\nIts last round was written at 2026-12-01 12:00:00 UTC\n" in known
    assert f"It has written nothing for 40 of at most {limit_of(keeper):.0f} s" in known
    assert "3 rounds so far, the last one at 12:00:00 UTC" in asked("/", headers=KNOWN).text


# What does not answer ---------------------------------------------------------------------------------------------


def test_a_superlink_that_is_stopped_is_told_between_runs_too(clinic, accounts, tmp_path):
    keeper = keeper_of(clinic, accounts, tmp_path)
    keeper.results.mkdir()
    asked = asked_of(keeper)
    assert not keeper.step()
    assert asked("/healthz").status_code == 200
    clinic.away = True
    assert not keeper.step()
    answer = asked("/healthz")
    assert (answer.status_code, LINK in answer.text) == (503, True)
    assert LINK in asked("/", headers=KNOWN).text
    clinic.away = False
    assert asked("/healthz").status_code == 200


def test_a_step_that_changes_nothing_is_not_healthy(clinic, accounts, tmp_path):
    """While a run is under way, and the SuperLink does not answer, only the keeper has asked it."""
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    asked = Asked(nothing, keeper.pulse)
    keeper.step()
    assert asked("/healthz").status_code == 200
    clinic.away = True
    keeper.step()
    assert LINK in asked("/healthz").text
    clinic.away = False
    keeper.step()
    assert asked("/healthz").status_code == 200


def test_silos_are_shown_as_they_are_now_and_a_key_that_was_taken_back_is_told(clinic, accounts, tmp_path):
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    kept_to_the_end(keeper, clinic)
    asked = asked_of(keeper)
    assert "not connected" not in asked("/", headers=KNOWN).text
    clinic.nodes |= {"11": "offline", "12": "unregistered", "13": "online"}
    shown = asked("/", headers=KNOWN).text
    rows = re.findall(r'<td class="long">(\w+)</td>\n<td class="\w+">([^<]*)</td>\n<td>([^<]*)</td>', shown)
    assert rows == [
        ("11", "not connected", "connected"),
        ("12", "its key was taken back", "connected"),
        ("13", "connected", "not known"),
    ]
    metrics = asked("/metrics", headers=KNOWN).text.splitlines()
    assert [line for line in metrics if line.startswith("userdp_silo")] == [
        *(f'userdp_silo_connected{{silo="{silo}"}} {float(silo == 13)}' for silo in (11, 12, 13)),
        *(f'userdp_silo_known{{silo="{silo}"}} {float(silo != 12)}' for silo in (11, 12, 13)),
    ]
    assert asked("/healthz").status_code == 200  # a silo may be away


@pytest.mark.parametrize("found_by", ["look", "step"])
def test_a_full_disk_is_told_by_a_look_and_by_a_step(found_by, clinic, accounts, tmp_path, monkeypatch):
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    keeper.results.mkdir()
    asked = asked_of(keeper)
    with monkeypatch.context() as patch:
        if found_by == "look":
            patch.setattr(overviews.shutil, "disk_usage", lambda _: SimpleNamespace(total=1000, free=9))
        else:
            full = OSError(ENOSPC, "No space left on device")
            patch.setattr("simulations.serving.keeper.write_text", Mock(side_effect=full))
            keeper.step()
        answer = asked("/healthz")
        assert (answer.status_code, DISK in answer.text) == (503, True)
    keeper.step()
    assert asked("/healthz").status_code == 200


def test_a_look_in_which_anything_fails_stops_no_later_one(clinic, accounts, tmp_path, monkeypatch, caplog):
    keeper = keeper_of(clinic, accounts, tmp_path)
    added(accounts)
    keeper.step()
    asked = asked_of(keeper)
    with monkeypatch.context() as patch:
        patch.setattr(overviews, "shown_of", lambda *_: 1 / 0)
        assert asked("/healthz").text.startswith("The last look failed")
    assert "a look failed (ZeroDivisionError)" in caplog.text
    assert asked("/healthz").status_code == 200


def test_a_watch_looks_for_ever_and_asks_the_superlink_at_every_fourth_look(monkeypatch):
    class Enough(BaseException):
        pass

    looks, asks, pauses = [], [], []

    def slept(seconds):
        pauses.append(seconds)
        if len(pauses) == 9:
            raise Enough

    monkeypatch.setattr(health, "sleep", slept)
    watch = health.Watch(lambda: looks.append(1) or nothing(), lambda: asks.append(1) or {}, Pulse())
    with pytest.raises(Enough):
        watch.follow(7.0)
    assert (len(looks), len(asks), set(pauses)) == (9, 3, {7.0})


@contextmanager
def relayed(folder, going):
    """Relay connections to the server in a folder, while it is ``going``; return their port.

    Others are taken, as the system does for a process that was paused, and nobody answers.
    """

    class Relay(socketserver.BaseRequestHandler):
        def handle(self):
            going.wait()
            with suppress(OSError), socket.socket(socket.AF_UNIX) as there:
                there.connect(f"{folder}/.s.PGSQL.5432")
                other = {self.request: there, there: self.request}
                while True:
                    for one in select.select(list(other), [], [])[0]:
                        if not (piece := one.recv(65536)):
                            return
                        other[one].sendall(piece)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.slow
def test_a_database_that_was_paused_is_waited_for_and_all_is_well_without_a_restart(tmp_path, monkeypatch):
    monkeypatch.setitem(accounts_module._ANSWERS, "connect_timeout", 2)
    going = threading.Event()
    going.set()
    with own_postgres() as own, relayed(parse_qs(urlsplit(own).query)["host"][0], going) as port:
        url = f"postgresql://owner@127.0.0.1:{port}/postgres"
        Accounts(url).create("clinic", Total(1.2, 1e-3))
        federation = Federation(home=tmp_path / "home")
        queue_of(url).add("monthly", text(), "clinic", NOON)
        keeper = keeper_of(federation, url, tmp_path)
        monkeypatch.setenv("USERDP_ACCOUNTS", url)
        keeper.results.mkdir()
        asked = asked_of(keeper)
        assert asked("/healthz").status_code == 200
        going.clear()
        for _ in range(2):
            assert keeper.step()
            assert keeper.pulse.trouble == "The database cannot be used"
        assert asked("/healthz").status_code == 503
        assert "Nothing is under way" not in asked("/", headers=KNOWN).text
        going.set()
        kept_to_the_end(keeper, federation)
        assert [run.state for run in queue_of(url).runs()] == ["done"]
        assert len(Accounts(url).read("clinic").entries) == 1
        assert asked("/healthz").status_code == 200


# Many looks, many entries, many runs ------------------------------------------------------------------------------


def many(accounts, runs):
    """Runs of the queue that have ended without a folder."""
    queue = queue_of(accounts)
    with queue._table() as connection:
        rows = [
            {"name": f"run-{run}", "configuration": "", "who": "me", "token": f"token-{run}", "state": "cancelled"}
            | {"first": "2026-12-01T12:00:00+00:00", "earliest": "2026-12-01T12:00:00+00:00", "attempts": 0}
            for run in range(runs)
        ]
        connection.execute(_QUEUE.insert(), rows)
    return queue


def test_many_looks_at_once_write_the_page_once_and_older_runs_are_on_further_pages(accounts, tmp_path, monkeypatch):
    queue, written = many(accounts, 2 * MOST + 7), []
    asked = Asked(lambda: overview(queue, tmp_path), results=tmp_path)
    fill = pages.fill
    monkeypatch.setattr(pages, "fill", lambda *told: written.append(1) or fill(*told))
    numbers = []
    for path in ("/", "/older/2", "/older/3"):
        shown = asked(path, headers=KNOWN)
        assert shown.status_code == 200
        numbers += map(int, re.findall(r'data-name="run" class="number">(\d+)<', shown.text))
        assert ("older runs" in shown.text, "newer runs" in shown.text) == (path != "/older/3", path != "/")
    assert numbers == list(range(2 * MOST + 7, 0, -1))
    for odd in ("0", "1", "4", "-1", "02", "9" * 5000, "x", "\N{SUPERSCRIPT TWO}"):
        assert asked(f"/older/{odd}", headers=KNOWN).status_code == 404
    assert asked("/older/2").status_code == 401
    del written[:]
    asked.watch.look()
    asked.looks = False
    answers = at_once(asked, "/", 60)
    assert {answer.status_code for answer in answers} == {200}
    assert len(written) == 1


def at_once(asked, path, times):
    async def all_of_them():
        transport = httpx.ASGITransport(pages.page(asked.watch, asked.results, KNOWN["Authorization"].split()[1]))
        async with httpx.AsyncClient(transport=transport, base_url="https://serve") as client:
            return await asyncio.gather(*(client.get(path, headers=KNOWN) for _ in range(times)))

    return asyncio.run(all_of_them())


def test_entries_are_read_and_added_up_once_for_all_looks(accounts, monkeypatch, tmp_path):
    place = Accounts(accounts)
    place.create("clinic", Total(4.0, 1e-3, others=0.5))
    for entry in range(30):
        place.enter("clinic", Wanted("a run", [promise(0.01, 1e-6, gaussian=False)], f"token {entry}"))
    asked, parsed = Asked(lambda: overview(queue_of(accounts), tmp_path)), []
    whole = Guarantee.from_dict
    monkeypatch.setattr(Guarantee, "from_dict", lambda values: parsed.append(1) or whole(values))
    accounts_module._promises.cache_clear()
    asked.watch.look()
    assert len(parsed) == 1  # all of one text
    asked.looks = False
    monkeypatch.setattr(Budget, "of", None)
    for path in ("/", "/metrics") * 10:
        assert asked(path, headers=KNOWN).status_code == 200
    assert len(parsed) == 1
    assert 'class="number">30<' in asked("/", headers=KNOWN).text


def test_reports_of_old_runs_are_still_there(clinic, accounts, tmp_path):
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    kept_to_the_end(keeper, clinic)
    many(accounts, 2 * MOST)
    asked = asked_of(keeper)
    assert asked("/runs/1/report.html", headers=KNOWN).status_code == 200
    assert asked("/runs/2/report.html", headers=KNOWN).status_code == 404
    (oldest,) = re.findall(r"data-name=\"began \(UTC\)\">([^<]+)<", asked("/older/3", headers=KNOWN).text)
    assert oldest == "2026-12-01 12:00"


def test_budgets_and_silos_come_first_with_the_time_of_the_look_and_of_each_run(clinic, accounts, tmp_path):
    added(accounts)
    keeper = keeper_of(clinic, accounts, tmp_path)
    kept_to_the_end(keeper, clinic)
    folder = tmp_path / "results" / "00001-monthly"
    ended = (NOON + timedelta(hours=2, minutes=3, seconds=4)).timestamp()
    os.utime(folder / "result.json", (ended, ended))
    asked = asked_of(keeper)
    shown = asked("/", headers=KNOWN).text
    assert re.findall(r"<h2>(\w+)", shown) == ["Budgets", "Silos", "Runs"]
    assert re.search(r"As it was at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", shown)
    assert 'data-name="began (UTC)">2026-12-01 12:00<' in shown
    assert 'data-name="took" class="number">2:03:04<' in shown


def test_a_run_that_is_resumed_began_when_it_began_first(clinic, accounts, tmp_path):
    added(accounts)
    keeper_of(clinic, accounts, tmp_path).step()
    clinic.forget()
    later = keeper_of(clinic, accounts, tmp_path, now=NOON + PAUSE)
    later.step()
    replace(later, now=lambda: NOON + 2 * PAUSE).step()
    (shown,) = overview(queue_of(accounts), tmp_path / "results").runs
    assert (shown.run.attempts, shown.began) == (2, NOON)


def test_a_run_that_failed_is_given_up_by_cancelling_it(accounts):
    queue = queue_of(accounts)
    number = queue.add("monthly", text(), "clinic", NOON)
    queue.take(NOON, "me")
    queue.finish(number, "failed", "a silo left", NOON)
    assert queue.cancel(number).state == "failed"
    assert queue.runs()[0].state == "cancelled"


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_one_long_name_breaks_nothing(width, accounts, tmp_path):
    """It names a run, an account, a silo, and stands in the reason of a refusal."""
    long = "x" * 100
    Accounts(accounts).create(long, Total(1.0, 1e-3))
    queue = queue_of(accounts)
    number = queue.add(long, "", long, NOON, "monthly")
    queue.take(NOON, "me")
    queue.begun(number, "1", {long: True})
    queue.finish(number, "refused", f"{long} exceeds {long}", NOON)
    queue.take(NOON + timedelta(days=40), "me")
    asked = Asked(lambda: overview(queue, tmp_path), results=tmp_path, nodes=lambda: {long: False, "a": True})
    (tmp_path / "page.html").write_text(asked("/", headers=KNOWN).text, encoding="utf-8")
    check_seen(measured({"page": tmp_path / "page.html"}, "light", tmp_path, width)["page"], "light", width)
    assert set(STATES) >= {run.state for run in queue.runs()}
