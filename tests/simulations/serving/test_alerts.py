"""The alerts and the board of deploy/monitoring: of metrics that there are, with a page, and each fires and clears."""

import functools
import json
import operator
import re
import shutil
import subprocess
from collections import namedtuple

import pytest
import yaml
from helpers_flower import ROOT
from helpers_serving import queue_of, text
from prometheus_client.parser import text_string_to_metric_families
from test_health import KNOWN, Clock, asked_of, limit_of
from test_keeper import NOON, added, clinic, keeper_of, kept_to_the_end

from simulations.account.accounts import Accounts
from simulations.serving import keeper as keeper_module
from simulations.serving import overview as overviews
from userdp.accounting import Total

__all__ = ["clinic"]  # a fixture
FOLDER = ROOT / "deploy" / "monitoring"
RULES = {rule["alert"]: rule for rule in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]}
ELSEWHERE = {"up": "Prometheus writes it", "userdp_certificate_end_seconds": "its tests are those of certificates"}
"""Metrics that no look at a federation without certificates shows, and why."""
METRIC = r"(?:userdp_\w+|\bup\b)"
COMPARED = {"==": operator.eq, "<": operator.lt, ">": operator.gt}


def values_of(shown):
    return [
        (one.name, one.labels, one.value) for family in text_string_to_metric_families(shown) for one in family.samples
    ]


def chosen(selector, values, ignored=()):
    """The values of a selector such as a{b="c"}, by their other labels."""
    name, wanted = re.fullmatch(r"(\w+)(?:\{(.*)\})?", selector).groups()
    wanted = dict(re.findall(r'(\w+)="(\w+)"', wanted or ""))
    return {
        frozenset((key, value) for key, value in labels.items() if key not in ignored): value
        for one, labels, value in values
        if one == name and wanted.items() <= labels.items()
    }


def fires(expression, values):
    """Evaluate as much of Prometheus's language as the alerts use."""
    holds = []
    for part in expression.replace("\n", " ").split(" and on(account) "):
        side, compared, number = re.fullmatch(r"(.+) (==|<|>) ([\d.]+)", part).groups()
        first, _, second = side.partition(" / ")
        ignored = re.match(r"ignoring\((\w+)\) ", second)
        labels = {ignored[1]} if ignored else ()
        found = chosen(first, values, labels)
        if second:
            below = chosen(second[ignored.end() if ignored else 0 :], values, labels)
            found = {key: value / below[key] for key, value in found.items() if key in below}
        holds.append({key for key, value in found.items() if COMPARED[compared](value, float(number))})
    return bool(set.intersection(*holds))


@pytest.fixture
def moments(clinic, accounts, tmp_path, monkeypatch):
    """Alert -> the metrics before its trouble, in it, and after it; each trouble befalls a real keeper and its page."""
    clock = Clock(monkeypatch)
    Accounts(accounts).create("nearly", Total(1.0, 1e-3))
    keeper = keeper_of(clinic, accounts, tmp_path)
    asked, seen = asked_of(keeper), {}

    def note(alert):
        seen.setdefault(alert, []).append(values_of(asked("/metrics", headers=KNOWN).text))

    keeper.results.mkdir()
    keeper.step()
    note("UserdpNotWell")
    clinic.away = True
    note("UserdpNotWell")
    clinic.away = False
    note("UserdpNotWell")

    note("UserdpSiloAway")
    clinic.nodes["12"] = "offline"
    note("UserdpSiloAway")
    clinic.nodes["12"] = "online"
    note("UserdpSiloAway")

    note("UserdpDiskFull")
    with monkeypatch.context() as patch:
        patch.setattr(overviews.shutil, "disk_usage", lambda _: namedtuple("Disk", "total free")(1000, 99))
        note("UserdpDiskFull")
    note("UserdpDiskFull")

    added(accounts)
    keeper.step()
    keeper.step()
    note("UserdpRunSilent")
    clock.now += 0.6 * limit_of(keeper)
    keeper.step()
    note("UserdpRunSilent")
    clinic.advance()
    keeper.step()
    keeper.step()
    note("UserdpRunSilent")

    note("UserdpBudgetLow")
    queue = queue_of(accounts)
    for epsilon in (0.999, 0.5):
        queue.add("monthly", text(epsilon=epsilon, account="nearly"), "nearly", NOON)
    keeper.step()
    clinic.advance()
    keeper.step()
    note("UserdpBudgetLow")
    keeper.step()
    assert queue.runs()[-1].state == "refused"
    note("UserdpBudgetLow")

    note("UserdpRunFailed")
    failing = queue.add("monthly", text(epsilon=0.01), "clinic", NOON)
    with monkeypatch.context() as patch:
        patch.setattr(keeper_module, "conclude", lambda *_: 1 / 0)
        kept_to_the_end(keeper, clinic)
    note("UserdpRunFailed")
    queue.cancel(failing)
    note("UserdpRunFailed")
    return seen


def names_in(expression):
    return set(re.findall(METRIC, re.sub(r"\{[^}]*\}", "", expression)))


def board():
    return json.loads((FOLDER / "board.json").read_text())


def test_each_alert_fires_and_clears_with_what_happens_and_every_metric_is_there(moments, tmp_path):
    shown = {name for three in moments.values() for values in three for name, _, _ in values}
    assert RULES.keys() - moments.keys() == {"UserdpAway", "UserdpCertificateEnds"}  # those of `ELSEWHERE`
    for alert, three in moments.items():
        assert [fires(RULES[alert]["expr"], values) for values in three] == [False, True, False], alert
    asked = {name for rule in RULES.values() for name in names_in(rule["expr"])}
    drawn = {name for panel in board()["panels"] for one in panel["targets"] for name in names_in(one["expr"])}
    assert (asked | drawn) - shown == set(ELSEWHERE)
    assert shown - {"userdp_run"} <= asked | drawn, "a metric that nobody looks at"


def test_each_alert_has_a_place_in_the_runbook_and_in_its_own_tests():
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    anchors = {title.lower() for title in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    tests = yaml.safe_load((FOLDER / "alerts.test.yml").read_text())["tests"]
    tested = {}
    for test in tests:
        for one in test["alert_rule_test"]:
            tested.setdefault(one["alertname"], []).append(bool(one.get("exp_alerts")))
    assert tested == {alert: [False, True, False] for alert in RULES}
    for alert, rule in RULES.items():
        place, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (place, anchor) == ("docs/serve.md", alert.lower())
        assert anchor in anchors
    assert anchors == {alert.lower() for alert in RULES}


def test_the_board_is_one_that_grafana_reads():
    """Its schema, as far as a board of this kind uses it; no two panels lie over one another."""
    found = board()
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= found.keys()
    (source,) = [one["name"] for one in found["templating"]["list"] if one["type"] == "datasource"]
    taken = set()
    for panel in found["panels"]:
        assert {"id", "title", "type", "datasource", "gridPos", "targets", "fieldConfig", "options"} <= panel.keys()
        assert panel["type"] in ("stat", "timeseries", "bargauge")
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        taken |= cells
        for target in panel["targets"]:
            assert target["expr"]
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": f"${{{source}}}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])


def promtool(*words):
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool, of Prometheus, is not installed")
    done = subprocess.run([tool, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules_and_their_tests():
    promtool("check", "rules", "--lint=all", "--lint-fatal", FOLDER / "alerts.yml")
    promtool("test", "rules", FOLDER / "alerts.test.yml")


def test_prometheus_fires_and_clears_each_alert_on_what_the_page_showed(moments, tmp_path):
    """The metrics of a real keeper, each held for half an hour, as Prometheus would have scraped them."""
    tests = []
    for alert, three in moments.items():
        series, hours = {}, functools.partial("{}+0x29".format)
        for at, values in enumerate(three):
            for name, labels, value in values:
                if name in names_in(RULES[alert]["expr"]):
                    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
                    series.setdefault(f"{name}{{{inner}}}", ["stale _x29"] * 3)[at] = hours(value)
        inputs = [{"series": name, "values": " ".join(values)} for name, values in series.items()]
        query = f'sum(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
        times = [
            {"expr": query, "eval_time": time, "exp_samples": [{"labels": "{}", "value": number}]}
            for time, number in (("29m", 0), ("59m", 1), ("89m", 0))
        ]
        tests.append({"interval": "1m", "input_series": inputs, "promql_expr_test": times})
    file = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "seen.test.yml").write_text(yaml.safe_dump(file))
    promtool("test", "rules", tmp_path / "seen.test.yml")
