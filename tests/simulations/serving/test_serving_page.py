"""The page, its metrics and its health: for those with the token alone, and nothing private on them."""

import base64
import json
import logging
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pandas as pd
import pytest
from examples import GUARANTEE
from helpers_browser import DESK, PHONE, SCHEMES, check_seen, measured, needs_chromium
from helpers_serving import Federation, queue_of, text
from prometheus_client.parser import text_string_to_metric_families
from test_page_answers import PATHS, TOKEN, Asked, check_headers, nothing

from simulations.account.accounts import Accounts
from simulations.records.released_fields import is_private
from simulations.serving.announcing import FORMS, Alarm, JsonLines
from simulations.serving.health import Pulse, connected
from simulations.serving.keeper import Keeper
from simulations.serving.overview import Budget, Shown, _progress, overview
from simulations.serving.page import _page, token_in
from simulations.terminal import log_to
from userdp.accounting import Guarantee, Total
from userdp.errors import BadInput

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A federation in which one run is done, one refused, one stopped and one under way.

    Returns (queue, results, SuperLink).
    """
    folder = tmp_path_factory.mktemp("kept")
    url = f"sqlite:///{folder / 'accounts.sqlite'}"
    federation, queue = Federation(home=folder / "home"), queue_of(url)
    Accounts(url).create("clinic", Total(1.2, 1e-3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("USERDP_ACCOUNTS", url)
        federation.nodes["12"] = "offline"
        keeper = Keeper(queue, federation, folder, folder / "results", "me", Alarm(), now=lambda: NOON)
        for epsilon in (1.0, 1.1):
            queue.add("monthly", text(epsilon=epsilon), "clinic", NOON)
            while keeper.step():
                federation.advance()
        queue.add("mark", text(epsilon=0.1), "clinic", NOON)
        keeper.step()
        queue.put_back(3, NOON + timedelta(days=1), "a silo of 4711 people left")
        queue.add("weekly", text(epsilon=0.1), "clinic", NOON, "weekly")
        keeper.step()
    return queue, folder / "results", federation


@pytest.fixture
def pulse():
    return Pulse()


@pytest.fixture
def client(kept, pulse):
    queue, results, federation = kept
    return Asked(lambda: overview(queue, results), pulse, results, lambda: connected(federation, None))


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_whoever_has_the_token_sees_runs_budgets_silos_and_reports(client):
    shown = client("/", headers=bearer(TOKEN)).text
    for word in ("weekly is under way", "done", "refused", "exceeds what is left", "clinic", "not connected"):
        assert word in shown
    assert client("/", auth=("anybody", TOKEN)).status_code == 200
    report = client("/runs/1/report.html", headers=bearer(TOKEN))
    assert "epsilon = 1, delta = 0.001" in report.text
    for number in (2, 3, 99):
        assert client(f"/runs/{number}/report.html", headers=bearer(TOKEN)).status_code == 404


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_page_can_be_read_on_a_telephone_and_at_a_desk(client, tmp_path, scheme, width):
    (tmp_path / "page.html").write_text(client("/", headers=bearer(TOKEN)).text, encoding="utf-8")
    check_seen(measured({"page": tmp_path / "page.html"}, scheme, tmp_path, width)["page"], scheme, width)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}t",
        f"Token {TOKEN}",
        TOKEN,
        "Basic !",
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),
        "Basic " + base64.b64encode(f"{TOKEN}:".encode()).decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:").decode(),
    ],
)
def test_nobody_else_sees_anything(client, path, header):
    reply = client(path, headers={} if header is None else {"Authorization": header})
    assert (reply.status_code, reply.text) == (401, "a token is needed\n")


def test_nothing_private_is_on_a_page_and_none_asks_another_server(kept, client):
    """Neither names nor values of private fields, of any file of any run; nor why a run stopped."""
    _, results, _ = kept
    pages = [client(path, headers=bearer(TOKEN)) for path in PATHS]
    for one in pages:
        assert "_private" not in one.text
        assert "4711" not in one.text
        assert not re.search(r"(src|href)=[\"'](https?:)?//", one.text)
        assert "<script" not in one.text
        assert "default-src 'none'" in one.headers["content-security-policy"]
        assert one.headers["cache-control"] == "no-store"
    named = {name for file in results.rglob("*.json") for name in json.loads(file.read_text()) if is_private(name)}
    assert named
    assert "width=device-width" in pages[0].text


def test_metrics_are_those_of_prometheus_and_tell_the_budget(client, pulse):
    def values():
        found = client("/metrics", headers=bearer(TOKEN))
        assert found.headers["content-type"].startswith("text/plain")
        families = text_string_to_metric_families(found.text)
        return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}

    seen = values()
    assert {state: seen["userdp_runs", state] for state in ("done", "refused", "waiting", "running")} == {
        "done": 1,
        "refused": 1,
        "waiting": 1,
        "running": 1,
    }
    assert seen["userdp_account_epsilon", "clinic", "total"] == pytest.approx(1.2)
    assert 1.0 < seen["userdp_account_epsilon", "clinic", "spent"] < 1.2
    assert (seen["userdp_run",], seen["userdp_run_attempts",]) == (4, 1)
    assert (seen["userdp_silo_connected", "11"], seen["userdp_silo_connected", "12"]) == (1, 0)
    assert seen["userdp_account_runs", "clinic"] == 2
    assert 0 < seen["userdp_disk_free_bytes",] < seen["userdp_disk_bytes",]
    assert 0 <= seen["userdp_look_age_seconds",] < 3600
    assert seen["userdp_healthy",] == 1
    pulse.seconds = 0.0
    assert values()["userdp_healthy",] == 0


def test_health_is_for_everybody_and_says_whether_the_keeper_moves(client, pulse):
    assert re.fullmatch(r"ok\nThe last look was \d+ s ago\n", client("/healthz").text)
    pulse.seconds = 0.0
    stuck = client("/healthz")
    assert stuck.status_code == 503
    check_headers(stuck)
    assert "The keeper does not move" in client("/", headers=bearer(TOKEN)).text
    pulse.seconds = 60.0
    pulse.beat()
    assert client("/healthz").status_code == 200


def test_a_token_is_made_kept_and_too_long_to_guess(tmp_path):
    file = tmp_path / "page.token"
    token = token_in(file)
    assert len(token) >= 43
    assert token_in(file) == token
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("s" * 32 + "\n")
    assert token_in(file) == "s" * 32
    for short in ("secret\n", "s" * 31 + "\n\n", ""):
        file.write_text(short)
        with pytest.raises(BadInput, match="a token has at least 32 characters"):
            token_in(file)


def test_a_line_of_the_log_in_json_has_its_text_and_values_apart(capsys):
    top = logging.getLogger("userdp")
    before = top.handlers, top.propagate, top.level
    try:
        log_to(sys.stdout, logging.INFO, FORMS["json"])
        Alarm()("refused", "run 7 is refused", 7)
    finally:
        top.handlers, top.propagate = before[:2]
        top.setLevel(before[2])
    line = json.loads(capsys.readouterr().out)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "WARNING",
        "logger": "userdp.serve",
        "message": "alert (refused): run 7 is refused",
        "text": "alert (%s): %s",
        "values": ["refused", "run 7 is refused"],
    }
    fault = OSError("gone")
    record = logging.LogRecord("userdp", logging.ERROR, "", 0, "broken", (), (OSError, fault, None))
    assert "OSError: gone" in json.loads(JsonLines().format(record))["error"]


def test_a_run_that_has_not_ended_shows_all_that_is_promised_and_no_less_than_was_asked(tmp_path):
    """Until it has ended its guarantee.json states the whole plan, for the case that it is killed."""
    promise = {"spent_epsilon": 4.0, **replace(GUARANTEE, epsilon=4.0).as_dict()}
    (tmp_path / "guarantee.json").write_text(json.dumps(promise), encoding="utf-8")
    pd.DataFrame({"round": [1, 2], "spent_epsilon": [0.5, 0.75]}).to_parquet(tmp_path / "rounds.parquet")
    assert _progress(tmp_path) == (2, 4.0, replace(GUARANTEE, epsilon=4.0))
    (tmp_path / "result.json").write_text("{}", encoding="utf-8")
    assert _progress(tmp_path) == (2, 4.0, replace(GUARANTEE, epsilon=4.0))
    nothing = {"spent_epsilon": None, **Guarantee.none("noise is off").as_dict()}
    for content in (nothing, {"holds": True, "spent_epsilon": 4.0}, {}, [], "holds", 7):
        (tmp_path / "guarantee.json").write_text(json.dumps(content), encoding="utf-8")
        assert _progress(tmp_path) == (None, None, None)  # one that cannot be read hides no other run


def test_no_epsilon_on_the_page_is_rounded_down_and_a_name_is_no_markup():
    spent = 1.00049
    account = Budget("clinic", Total(4.0, 1e-3), 2.00004, 1.0, 0, 0)
    queued = SimpleNamespace(number=1, name="<i>mark", account=None, earliest=NOON, every=None, state="done")
    shown = Shown(queued, 2, spent, replace(GUARANTEE, epsilon=spent), None, None)
    written = _page(replace(nothing(), runs=[shown], accounts=[account]), [])
    assert "<i>mark" not in written
    budgets, _, runs = written.partition("<h2>Runs")
    for part, name, least in ((runs, "epsilon", spent), (budgets, "spent", 2.00004)):
        figure = re.search(rf'data-name="{name}" class="number">([0-9.]+)<', part)[1]
        assert least <= float(figure) < least * 1.001
