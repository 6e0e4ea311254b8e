"""The author of a configuration chooses neither where a deployment's accounts are, nor whether it enters one."""

import tomllib
from types import SimpleNamespace

import pytest
import tomli_w
from examples import call, table_section
from flwr.app import Context, RecordDict
from helpers_serving import SETTINGS, Federation, logging_of_this_process, queue_of
from test_keeper import NOON, keeper_of, kept_to_the_end

from simulations import flower
from simulations.account.accounts import Accounts
from simulations.engines.grids import InMachineGrid
from simulations.flower import configuration_of
from simulations.terminal import BAD_INPUT
from userdp.accounting import Total
from userdp.errors import BadInput
from userdp.kinds import registering
from userdp.named import module_name

TOLD = r"privacy.accounts = .* never where a configuration does; leave it out"


class Silent(InMachineGrid):
    """Nobody may be asked."""

    def __init__(self):
        super().__init__(1)

    def _deliver(self, messages, timeout):
        pytest.fail("somebody was asked")


def people(tmp_path, **privacy):
    asked = {"epsilon": 1.0, "delta": 1e-3, "noise": "secure", "account": "clinic"} | privacy
    data = table_section(tmp_path / "t.csv", users=60, samples=240, test_fraction=0.0)
    return SETTINGS | {"data": data, "privacy": {name: value for name, value in asked.items() if value is not None}}


def made_up(tmp_path, **privacy):
    return SETTINGS | {"privacy": SETTINGS["privacy"] | privacy}


@pytest.fixture
def own(tmp_path, accounts):
    """The address of a database that whoever writes the file has made, with plenty in it."""
    Accounts(accounts).create("clinic", Total(1.2, 1e-3))
    url = f"sqlite:///{tmp_path / 'own.sqlite'}"
    Accounts(url).create("clinic", Total(900.0, 0.5))
    return url


def untouched(accounts, own):
    return not any(Accounts(url).read("clinic").entries for url in (accounts, own))


SOURCES = pytest.mark.parametrize("source", [people, made_up])


@SOURCES
@pytest.mark.parametrize("by", ["file", "key", "section"])
def test_the_queue_takes_no_file_that_names_its_own_accounts(tmp_path, accounts, own, source, by):
    settings = source(tmp_path, **({"accounts": own} if by == "file" else {}))
    (tmp_path / "run.toml").write_text(tomli_w.dumps(settings))
    section = ", ".join(f"{name} = {value!r}" for name, value in (settings["privacy"] | {"accounts": own}).items())
    more = {"file": (), "key": ("--set", f"privacy.accounts={own}"), "section": ("--set", f"privacy={{{section}}}")}
    done = call("serve", "add", tmp_path / "run.toml", *more[by], "--every", "monthly")
    assert done.exit_code == BAD_INPUT
    assert "privacy.accounts = " in done.stderr
    assert queue_of(accounts).runs() == []


@SOURCES
def test_the_keeper_begins_no_run_that_names_its_own_accounts(tmp_path, accounts, own, source):
    """It may have been added by an older version, or straight into the database."""
    federation = Federation(home=tmp_path / "home")
    queue_of(accounts).add("a", tomli_w.dumps(source(tmp_path, accounts=own)), "clinic", NOON, "monthly")
    kept_to_the_end(keeper_of(federation, accounts, tmp_path), federation)
    (queued,) = queue_of(accounts).runs()
    assert queued.state == "refused"
    assert "privacy.accounts = " in queued.reason
    assert federation.runs == {}
    assert untouched(accounts, own)


@SOURCES
@pytest.mark.parametrize("by", ["settings", "config", "set"])
def test_the_server_of_a_deployment_runs_nothing_that_names_its_own_accounts(tmp_path, accounts, own, source, by):
    settings = source(tmp_path, **({} if by == "set" else {"accounts": own}))
    (tmp_path / "run.toml").write_text(tomli_w.dumps(settings))
    asked = {"config": str(tmp_path / "run.toml")} if by != "settings" else {"settings": tomli_w.dumps(settings)}
    if by == "set":
        asked |= {"seed": "4", "set.privacy.accounts": own}
    context = SimpleNamespace(run_config=asked | {"deployed": True, "output": str(tmp_path / "run")})
    with logging_of_this_process(), pytest.raises(BadInput, match=TOLD):
        flower.main(Silent(), context)
    assert untouched(accounts, own)


def test_a_run_of_the_queue_on_people_enters_an_account_that_there_is(tmp_path, accounts):
    """Else a file would open an account of its own, named after whatever table it names."""
    settings = people(tmp_path, account=None)
    (tmp_path / "run.toml").write_text(tomli_w.dumps(settings))
    done = call("serve", "add", tmp_path / "run.toml")
    assert done.exit_code == BAD_INPUT
    assert "privacy.account is missing" in done.stderr
    federation = Federation(home=tmp_path / "home")
    queue_of(accounts).add("a", tomli_w.dumps(settings), None, NOON)
    kept_to_the_end(keeper_of(federation, accounts, tmp_path), federation)
    (queued,) = queue_of(accounts).runs()
    assert queued.state == "refused"
    assert Accounts(accounts).names() == []


@pytest.mark.parametrize(
    "where", ["{folder}/evil.py", "{folder}/.py", "../../../../../..{folder}/evil.py", "~/evil.py"]
)
@pytest.mark.parametrize(
    "named",
    [
        {"strategy": {"kind": "{file}:Free"}},
        {"problem": {"kind": "torch", "module": "{file}:make", "loss": "squared"}},
        {"problem": {"kind": "torch", "module": "{file}:make", "loss": "{file}:loss"}},
        {"problem": {"kind": "torch", "module": "configs/own_model.py:make", "metrics": {"a": "{file}:metric"}}},
    ],
    ids=["strategy", "module", "loss", "metric"],
)
def test_a_text_names_no_code_beside_the_app(tmp_path, monkeypatch, named, where):
    """Such as a strategy that promises what it likes; it is not even imported."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("evil.py", ".py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    text = tomli_w.dumps(made_up(tmp_path) | named).replace("{file}", where.format(folder=tmp_path))
    assert tomllib.loads(text)
    with pytest.raises(BadInput, match=r"\.py:[A-Za-z]+': this code is no part of userdp"):
        configuration_of(text)


@pytest.mark.parametrize(
    "named",
    [
        {"strategy": {"kind": "os:abort"}},
        {"problem": {"kind": "torch", "module": "os:abort", "loss": "squared"}},
        {"problem": {"kind": "torch", "loss": "builtins:print"}},
        {"problem": {"kind": "torch", "loss": "squared", "metrics": {"a": "http.server:test"}}},
    ],
    ids=["strategy", "module", "loss", "metric"],
)
def test_a_text_calls_nothing_of_python_itself(tmp_path, named):
    """A silo would end, or print what its people have."""
    with pytest.raises(BadInput, match="this code is no part of userdp"):
        configuration_of(tomli_w.dumps(made_up(tmp_path) | named))


@pytest.mark.parametrize(
    "place",
    [
        "{name}:make",
        "{name}.inner:make",
        "os:abort",
        "userdp.named.{digest}:{quoted}:make",
        "simulations.cli:app",
        "{file}:make",
    ],
)
@pytest.mark.parametrize("key", ["module", "loss", "kind", "strategy", "statistic"])
def test_a_text_names_no_code_of_a_package_that_registers_nothing(tmp_path, monkeypatch, place, key):
    """Whatever else is installed at a silo, also where userdp is; importing it would run it."""
    file = tmp_path / "evil_package.py"
    file.write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(flower, "_ROOT", tmp_path)
    names = {"name": "evil_package", "file": file, "digest": module_name(file).split(".")[2].split(":")[0]}
    place = place.format(**names, quoted=str(file).replace(".", "%2E"))
    torch = {"kind": "torch", "module": "configs/own_model.py:make", "loss": "squared"}
    named = {"problem": torch | {key: place}}
    named = {"strategy": {"kind": place}} if key == "strategy" else named
    named = {"problem": {"kind": "queries", "ask": [{"statistic": place}]}} if key == "statistic" else named
    with pytest.raises(BadInput, match="this code is no part of userdp, and of no package that registers kinds"):
        flower._with_own_code(made_up(tmp_path) | named)


def test_packages_that_register_kinds_are_those_of_entry_points():
    assert "strategies" in registering()
    assert not {"os", "numpy", "torch", "userdp", "pytest"} & registering()


@pytest.mark.parametrize("config", ["simulations/configs/demo.toml", "{folder}/run.toml"])
@pytest.mark.parametrize(
    ("deployed", "node_config"), [({"deployed": True}, {}), ({}, {"silo": "nowhere"})], ids=["server", "silo"]
)
def test_a_deployment_names_no_code_beside_userdp(tmp_path, config, deployed, node_config):
    """Whoever submits a run names a file of the silo's machine, or changes keys of one of userdp's own."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    (tmp_path / "run.toml").write_text(tomli_w.dumps(made_up(tmp_path)))
    changes = {"config": config.format(folder=tmp_path), "set.strategy.kind": f"{tmp_path}/evil.py:Free"}
    context = Context(1, 0, node_config, RecordDict(), changes | deployed)
    with pytest.raises(BadInput, match=r"evil\.py:Free': this code is no part of userdp"):
        flower.run_configuration(context)
