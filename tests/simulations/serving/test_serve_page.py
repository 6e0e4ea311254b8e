"""docs/serve.md and docker-compose.serve.yml: commands run as written, and what is listed is what there is."""

import inspect
import re
import shlex

import pytest
import yaml
from cryptography import x509
from examples import call
from helpers_flower import ROOT

from simulations.account.postgresql import PASSWORD
from simulations.deployment.keys import ACCOUNTS, make_keys
from simulations.serving.command import start
from simulations.serving.health import Pulse
from simulations.serving.keeper import ATTEMPTS, PAUSE, Keeper
from simulations.serving.queue import STATES

PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("accounts")
def test_the_commands_of_the_page_run_as_written(monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = PAGE.replace("\\\n", "")  # a command may go on in the next one
    commands = [shlex.split(command) for command in re.findall(r"^userdp (.+)$", lines, re.MULTILINE)]
    *others, serve = commands
    for words in others:
        done = call(*words)
        assert done.exit_code == 0, done.output
    assert {words[0] for words in others} == {"account", "serve"}
    helped = call("serve", "start", "--help").output
    assert [word for word in serve if word.startswith("--") and word not in helped] == []


def test_states_metrics_and_numbers_of_the_page_are_those_of_the_code():
    rows = re.findall(r"^\| (\w+) \| ", PAGE.partition("## What happens")[0], re.MULTILINE)
    assert [row for row in rows if row != "state"] == list(STATES)
    source = (ROOT / "simulations/serving/page.py").read_text(encoding="utf-8")
    assert set(re.findall(r"`(userdp_\w+)`", PAGE)) == set(re.findall(r'"(userdp_\w+)"', source))
    assert (ATTEMPTS, PAUSE.total_seconds(), Pulse().seconds) == (3, 600, 300)
    assert "`--stalled` (30 minutes)" in PAGE
    assert inspect.signature(start).parameters["stalled"].default == 30 == Keeper.stalled / 60
    for words in ("after three attempts", "ten minutes later", "after five minutes"):
        assert words in PAGE


# The compose file ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def composed():
    return yaml.safe_load((ROOT / "docker-compose.serve.yml").read_text(encoding="utf-8"))


def test_new_services_give_up_what_they_do_not_need(composed):
    base = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = composed["services"]
    new = services.keys() - base["services"].keys()
    assert new == {"accounts", "serve"}
    for name in new:
        wanted = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
        assert {key: services[name][key] for key in wanted} == wanted
        assert services[name]["mem_limit"]
    assert [name for name, service in services.items() if "ports" in service] == ["serve"]
    assert all(port.startswith("127.0.0.1:") for port in services["serve"]["ports"])


def test_silos_the_gate_and_the_database_are_on_no_network_that_leads_outside(composed):
    assert composed["networks"] == {"accounts": {"internal": True}, "page": {}}
    on = {name: set(service.get("networks", [])) for name, service in composed["services"].items()}
    assert {name for name, networks in on.items() if "page" in networks} == {"serve"}
    assert {name for name, networks in on.items() if "accounts" in networks} == {"accounts", "coordinator-app", "serve"}
    assert on["accounts"] == {"accounts"}


def test_files_that_services_read_are_those_that_keys_makes(composed, tmp_path):
    assert make_keys(tmp_path, 1, serve=True)
    assert not make_keys(tmp_path, 1, serve=True)
    coordinator, accounts = tmp_path / "coordinator", tmp_path / "accounts"
    named = set(re.findall(r"/keys/([\w.]+)", str(composed["services"]["serve"])))
    assert named | {"server.crt", "server.key"} <= {path.name for path in coordinator.iterdir()}
    assert {path.name for path in accounts.iterdir()} == {"ca.crt", "password", "server.crt", "server.key"}
    assert (accounts / "password").read_text() == (coordinator / "accounts.password").read_text()
    for name in ("ssl_cert_file", "ssl_key_file"):
        (file,) = re.findall(rf"{name}=/keys/(\S+)", composed["services"]["accounts"]["command"])
        assert (accounts / file).is_file()
    user = composed["services"]["accounts"]["environment"]["POSTGRES_USER"]
    environment = composed["services"]["serve"]["environment"]
    assert f"{user}@{ACCOUNTS}/" in environment["USERDP_ACCOUNTS"]
    assert environment[PASSWORD] == "/keys/accounts.password"
    certificate = x509.load_pem_x509_certificate((accounts / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ACCOUNTS in names.get_values_for_type(x509.DNSName)
    assert len((coordinator / "page.token").read_text()) >= 32
    assert make_keys(tmp_path / "others", 1)
    assert not (tmp_path / "others" / "accounts").exists()
