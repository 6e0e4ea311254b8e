"""A run directory that somebody sends is data: code that it names runs only when trusted, and as the run had it."""

import hashlib
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import tomli_w
from examples import call, table_section, write_table
from helpers import Watching

import simulations
import simulations.runs.folder
from simulations import load_model, terminal
from simulations.config.run_config import parse_config
from simulations.records.named_code import NO_FILE, code_in, digests, signature
from simulations.records.run_directory import FILES
from simulations.runs.run import run
from simulations.terminal import BAD_INPUT
from userdp import named
from userdp.errors import BadInput

CODE = """
import pathlib
from torch import nn
pathlib.Path(__file__).with_name("ran").touch()
def make():
    return nn.Linear(4, 1)
def loss(outputs, targets):
    return (outputs - targets) ** 2
"""


def raw(folder, **problem):
    named = {"module": f"{folder / 'code.py'}:make"} | problem
    return {
        "name": "coded",
        "seed": 1,
        "problem": {"kind": "torch", "loss": "mse"} | named,
        "data": table_section(folder / "people.csv", max_samples=4),
        "privacy": {"epsilon": 8.0, "delta": 1e-3},
        "strategy": {"kind": "dp_fed_sgd", "rounds": 2},
        "output": {"reference": False},
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "log_warnings", lambda: None)  # it would take the log from caplog
    write_table(tmp_path / "people.csv")
    (tmp_path / "code.py").write_text(CODE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def sent(folder):
    """A finished run, whose code has not been imported since."""
    run(parse_config(raw(folder)), directory=folder / "run", report=False)
    (folder / "ran").unlink()
    return folder / "run"


def predict(sent, *options):
    return call("predict", sent, sent.parent / "people.csv", "--output", sent.parent / "found.csv", *options)


def refused(done, sent, told):
    """The command ends with this message, and no code was run."""
    assert done.exit_code == BAD_INPUT
    assert told in " ".join(done.output.split())
    assert not (sent.parent / "ran").exists()


def test_code_of_a_run_directory_runs_only_when_trusted(sent, caplog):
    digest = hashlib.sha256((sent.parent / "code.py").read_bytes()).hexdigest()
    assert json.loads((sent / "result.json").read_text())["code"] == {"module": digest}
    for told in (f"problem.module = '{sent.parent / 'code.py'}:make' (SHA-256 {digest})", "add --trust-code"):
        refused(predict(sent), sent, told)
    with pytest.raises(BadInput, match="trust_code=True"):
        load_model(sent)
    assert not (sent.parent / "ran").exists()
    done = predict(sent, "--trust-code")
    assert done.exit_code == 0, done.output
    assert digest in caplog.text
    assert (sent.parent / "ran").exists()
    assert load_model(sent, trust_code=True).problem.dimension == 5


def test_changed_code_is_refused_though_it_is_trusted(sent):
    (sent.parent / "code.py").write_text(CODE + "# another\n", encoding="utf-8")
    refused(predict(sent, "--trust-code"), sent, "is not what the run had")


@pytest.mark.parametrize(
    "problem", [{"module": "os:abort"}, {"loss": "os:abort"}, {"metrics": {"worst": "os:abort"}}], ids=str
)
def test_any_place_of_code_is_refused(sent, problem):
    changed = raw(sent.parent, **problem)
    if "module" not in problem:
        del changed["problem"]["module"]
    (sent / "config.toml").write_text(tomli_w.dumps(changed), encoding="utf-8")
    refused(predict(sent), sent, "os:abort")


def test_a_file_with_the_name_of_an_object_is_code(sent, monkeypatch):
    monkeypatch.chdir(sent.parent)
    spoofed = Path(f"{named.OBJECT}1.py")
    spoofed.write_text(CODE, encoding="utf-8")
    changed = raw(sent.parent, module=f"{spoofed}:make")
    (sent / "config.toml").write_text(tomli_w.dumps(changed), encoding="utf-8")
    refused(predict(sent), sent, "add --trust-code")
    assert digests(changed) == {"module": hashlib.sha256(CODE.encode()).hexdigest()}


@pytest.mark.parametrize(
    ("section", "key"),
    [("problem", "kind"), ("data", "kind"), ("strategy", "kind"), ("strategy", "sampling")],
)
def test_every_kind_that_a_file_may_be_is_code(section, key):
    """Registries that take files are those of losses, sources, strategies, samplers, and a query's statistics."""
    place = "theirs.py:Theirs"
    assert code_in({section: {key: place}}) == {f"{section}.{key}": place}
    assert code_in({"ask": [{"statistic": place}]}) == {"ask.1": place}
    packages = (Path(simulations.__file__).parents[1] / package for package in ("userdp", "strategies", "simulations"))
    modules = [path.read_text(encoding="utf-8") for package in packages for path in package.rglob("*.py")]
    assert sum(text.count("    files=True,") for text in modules) == 5


def test_resuming_a_directory_runs_its_code_only_when_trusted(folder):
    directory = folder / "run"
    directory.mkdir()
    (directory / "config.toml").write_text(parse_config(raw(folder)).toml(), encoding="utf-8")
    refused(call("run", "--resume", directory), directory, "add --trust-code")
    done = call("run", "--resume", directory, "--trust-code")
    assert done.exit_code == 0, done.output
    assert {"config.toml", "result.json", "model.npz"} <= {path.name for path in directory.iterdir()} & set(FILES)


class Killed(BaseException):
    """Ends a run in this process as a kill would."""


@pytest.fixture
def killed(folder, monkeypatch):
    config = parse_config(raw(folder))
    with monkeypatch.context() as patch:
        patch.setattr(simulations.runs.folder.RunFolder, "finish", lambda *_: None)
        with pytest.raises(Killed):
            run(
                config,
                directory=folder / "run",
                report=False,
                checkpoint=True,
                observers=[Watching(Mock(side_effect=Killed))],
            )
    (folder / "ran").unlink()
    return folder / "run"


def test_who_began_a_run_resumes_it_without_another_word(killed, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))
    refused(call("run", "--resume", killed), killed, "add --trust-code")
    monkeypatch.delenv("XDG_STATE_HOME")
    done = call("run", "--resume", killed)
    assert done.exit_code == 0, done.output


def test_a_directory_that_names_other_code_than_its_owner_ran_is_refused(killed):
    (killed.parent / "evil.py").write_text(CODE, encoding="utf-8")
    config = (killed / "config.toml").read_text(encoding="utf-8").replace("code.py", "evil.py")
    (killed / "config.toml").write_text(config, encoding="utf-8")
    refused(call("run", "--resume", killed), killed, "add --trust-code")


def test_a_run_is_not_resumed_with_other_code(killed):
    """Before that is imported."""
    folder, config = killed.parent, parse_config(raw(killed.parent))
    (folder / "code.py").write_text(CODE + "# another\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"belongs to a run with other settings \(code.module is "):
        run(config, directory=folder / "run", report=False, resume=True)
    assert not (folder / "ran").exists()
    (folder / "code.py").write_text(CODE, encoding="utf-8")
    # Two prepare, and one compares.
    assert run(config, directory=folder / "run", report=False, resume=True).result["rounds"] == 4


def test_code_of_a_package_has_the_digest_of_its_module_and_code_without_a_file_has_none():
    module = Path(simulations.config.places.__file__)
    wanted = {"module": hashlib.sha256(module.read_bytes()).hexdigest(), "loss": NO_FILE}
    named = {"kind": "torch", "module": "simulations.config.places:absolute_path", "loss": "no.such.package:loss"}
    assert digests({"problem": named}) == wanted


def test_a_key_that_was_cut_short_signs_nothing(monkeypatch, tmp_path):
    """Whoever can empty the file would know the key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    values = {"problem": {"kind": "torch", "module": "code.py:make"}}
    assert signature(values, {}) == signature(values, {})
    (tmp_path / "userdp" / "key").write_bytes(b"")
    assert signature(values, {}) != signature(values, {})
