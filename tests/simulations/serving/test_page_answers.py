"""The page answers, whatever is asked and whatever the database does: no traceback, no lock, all headers."""

import asyncio
import sqlite3
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from helpers_accounts import own_postgres

from simulations.account import accounts as module
from simulations.account.accounts import Accounts, Wanted
from simulations.serving import page as pages
from simulations.serving.health import Pulse, Watch
from simulations.serving.overview import Overview, overview
from simulations.serving.page import page
from simulations.serving.queue import Queue
from userdp.accounting import Guarantee, Total
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.errors import BadInput

TOKEN = "t" * 43
KNOWN = {"Authorization": f"Bearer {TOKEN}"}
PATHS = ("/", "/metrics", "/runs/1/report.html")
ODD = [
    *("9" * 5000, "-1", "1.0", "1e3", "0x1", "01", "+1", " 1", "1 ", "%00", "\N{ARABIC-INDIC DIGIT ONE}"),
    *("\N{SUPERSCRIPT TWO}", str(2**31), str(2**63), str(2**64), "nan", "x", ".."),
]


@dataclass
class Asked:
    """Asks an app in this process, each time after a look of its watch, and notes what it raises beyond its answer."""

    look: object
    pulse: Pulse = field(default_factory=Pulse)
    results: Path = Path("nowhere")
    nodes: object = dict
    looks: bool = True

    def __post_init__(self):
        self.watch = Watch(self.look, self.nodes, self.pulse)

    def __call__(self, path, method="GET", raises=False, **more):
        if self.looks:
            self.watch.look()

        async def asked():
            app = page(self.watch, self.results, TOKEN)
            transport = httpx.ASGITransport(app, raise_app_exceptions=not raises)
            async with httpx.AsyncClient(transport=transport, base_url="https://serve") as client:
                return await client.request(method, path, **more)

        return asyncio.run(asked())


def nothing():
    return Overview(datetime.now(UTC), [], [], None, [], [], 50, 100)


def check_headers(answer):
    assert {name: answer.headers.get(name) for name in pages._HEADERS} == pages._HEADERS


@pytest.mark.parametrize("number", ODD, ids=lambda number: ascii(number[:12]))
def test_a_run_that_no_database_can_hold_is_not_found(number):
    path = f"/runs/{number}/report.html"
    answer = Asked(nothing)(path, headers=KNOWN)
    assert answer.status_code == 404
    check_headers(answer)
    stranger = Asked(nothing)(path)
    assert stranger.status_code == (404 if number == ".." else 401)  # a client takes ".." as a step up
    check_headers(stranger)


def broken():
    """Return what no page can show: a defect."""
    return replace(nothing(), queued=None)


def silent():
    raise BadInput("the database does not answer")


ANSWERS = {
    "not there": (404, nothing, "/nowhere", "GET", {}),
    "a slash more": (404, nothing, "/metrics/", "GET", {}),
    "not to be written": (405, nothing, "/", "POST", {}),
    "health not to be written": (405, nothing, "/healthz", "POST", {}),
    "a stranger": (401, nothing, "/", "GET", {}),
    "letters beyond ASCII": (401, nothing, "/", "GET", {"Authorization": "Basic é".encode("latin-1")}),
    "a defect": (500, broken, "/", "GET", KNOWN),
    "no database": (503, silent, "/metrics", "GET", KNOWN),
    "healthy": (200, nothing, "/healthz", "GET", {}),
    "not healthy": (503, silent, "/healthz", "GET", {}),
    "seen": (200, nothing, "/", "GET", KNOWN),
    "no report": (404, nothing, "/runs/7/report.html", "GET", KNOWN),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_every_answer_has_the_headers(case):
    status, look, path, method, headers = ANSWERS[case]
    answer = Asked(look)(path, method, raises=True, headers=headers)
    assert answer.status_code == status
    assert "Traceback" not in answer.text
    check_headers(answer)


@pytest.mark.parametrize("hung", ["look", "nodes"])
def test_no_answer_waits_for_the_database_or_the_superlink(hung):
    """The watch's own thread hangs in one of them, and whoever asks is answered meanwhile, from the look before."""
    released, begun, again = threading.Event(), threading.Event(), []

    def hangs(which, answer):
        if which == hung and not asked.looks:
            again.append(begun.is_set())
            begun.set()
            released.wait(0 if again[-1] else None)
        return answer

    asked = Asked(lambda: hangs("look", nothing()), nodes=lambda: hangs("nodes", {"node-1": True}))
    assert asked("/healthz").status_code == 200
    asked.looks = False
    thread = threading.Thread(target=asked.watch.look)
    thread.start()
    begun.wait()
    answers = [asked(path, headers=KNOWN) for path in ("/healthz", "/", "/metrics", "/nowhere") for _ in range(60)]
    assert (thread.is_alive(), again) == (True, [False])
    assert [answer.status_code for answer in answers] == [200] * 180 + [404] * 60
    asked.pulse.seconds = 0.0  # time passes
    for path in ("/healthz", "/"):
        assert "The last look is too old" in asked(path, headers=KNOWN).text
    released.set()
    thread.join()


def promise():
    return Guarantee("user", "replace_one", 1.0, 1e-6, ONE_GAUSSIAN, "anybody", (), True)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_READERS_WAIT", 0.0)
    queue = Queue(Accounts(f"sqlite:///{tmp_path / 'accounts.sqlite'}"))
    fill(queue)
    return queue


def fill(queue):
    queue.accounts.create("clinic", Total(4.0, 1e-6))
    queue.accounts.enter("clinic", Wanted("a run", [promise()], "token"))
    queue.add("monthly", "", "clinic", datetime(2026, 12, 1, tzinfo=UTC))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_pages_are_read_while_another_process_writes(kind, kept, tmp_path):
    """A transaction of a writer is open, and readers neither wait for it nor see what it has not committed."""
    with own_postgres() if kind == "postgresql" else nullcontext() as url:
        queue = kept
        if url is not None:
            fill(queue := Queue(Accounts(url)))
        check_readers(queue, Asked(lambda: overview(queue, tmp_path)))


def check_readers(queue, asked):
    with queue.accounts.transaction() as connection:
        connection.exec_driver_sql("UPDATE userdp_queue SET name = 'not yet'")
        for path in ("/", "/metrics"):
            answer = asked(path, headers=KNOWN)
            assert answer.status_code == 200
            assert "not yet" not in answer.text
        assert asked("/runs/1/report.html", headers=KNOWN).status_code == 404
    assert "not yet" in asked("/", headers=KNOWN).text


def test_a_writer_is_not_kept_waiting_by_a_reader(kept):
    with kept.accounts.transaction(reads=True) as reader:
        before = reader.exec_driver_sql("SELECT count(*) FROM userdp_queue").scalar_one()
        with sqlite3.connect(kept.accounts._file, timeout=0.0, isolation_level=None) as writer:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("ROLLBACK")
        assert before == 1


@pytest.mark.parametrize("fault", ["locked", "gone", "damaged"])
def test_pages_say_that_the_database_cannot_be_used(kept, tmp_path, fault):
    asked = Asked(lambda: overview(kept, tmp_path))
    other = sqlite3.connect(kept.accounts._file, isolation_level=None)
    try:
        if fault == "locked":  # while a transaction goes to the disk, nobody reads
            other.execute("BEGIN EXCLUSIVE")
        elif fault == "gone":
            kept.accounts._file.unlink()
            kept.accounts._file.mkdir()
        else:
            kept.accounts._file.write_bytes(b"x" * 5000)
        for path in PATHS:
            answer = asked(path, headers=KNOWN)
            assert answer.status_code == 503
            assert "The database cannot be used" in answer.text
            check_headers(answer)
        assert "The database cannot be used" in asked("/healthz").text
    finally:
        other.close()
