"""Files that people's data went into are for their owner alone, whatever the umask; folders as well."""

import json
import os
import re
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from examples import COMPARISON, DECLARED, call, changed, write_table
from helpers import Watching
from helpers_accounts import promise

import simulations.records.run_directory as directory
from simulations.account.accounts import Accounts, Wanted
from simulations.comparison.config import parse_comparison
from simulations.comparison.jobs import compare
from simulations.config.run_config import parse_config
from simulations.deployment.keys import make_keys
from simulations.deployment.submit import bring
from simulations.records.run_directory import RunDirectory, private_folder, write_whole
from simulations.reports import report
from simulations.reports.card import render_card
from simulations.runs.run import run
from simulations.runs.silos import prepare, split
from simulations.runs.trackers import TensorBoardTracker
from simulations.serving.keeper import identity
from simulations.serving.queue import Queue
from userdp.accounting import Guarantee, Total

TOP = "0o700", "0o600"
ROUNDS = {"strategy": {"kind": "dp_fed_sgd", "clip_norm": 1.0, "learning_rate": 0.5, "rounds": 2}}


def rights(path):
    return oct(stat.S_IMODE(path.stat().st_mode))


def open_to_others(folder):
    """The paths in a folder, itself included, that others may read, with their rights; the folder is not empty."""
    found = [folder, *folder.rglob("*")]
    assert len(found) > 1
    return {str(path.relative_to(folder)): rights(path) for path in found if rights(path) != TOP[path.is_file()]}


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@contextmanager
def watched(folder):
    """Notes the rights of every file between being made and being moved to its place."""
    seen, replace = set(), os.replace

    def replaced(one, other):
        seen.add(rights(Path(one)))
        replace(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory.os, "replace", replaced)
        yield seen


def table_run(tmp_path, **more):
    data = {"kind": "table", "path": str(write_table(tmp_path / "people.csv")), **DECLARED, "users": 48}
    return parse_config(changed(data=data, problem={"kind": "logistic"}, **ROUNDS, **more))


def test_a_run_and_its_checkpoints_and_reports(tmp_path, umask, monkeypatch):
    config, kept = table_run(tmp_path, output={"anyway": True, "private_figures": True}), []

    def progress(*_):
        kept.append({path.name for path in folder.iterdir()})
        assert not open_to_others(folder)

    folder = tmp_path / "runs" / "mine"
    with watched(folder) as seen:
        run(config, directory=folder, report=False, checkpoint=True, observers=[Watching(progress)])
        monkeypatch.setattr(report, "page", lambda *_: "a page")
        report.render(folder)
        render_card(folder)
    assert {"checkpoint.npz", "asked.npz"} & set.union(*kept)
    assert not open_to_others(tmp_path / "runs")
    assert {"result.json", "rounds.parquet", "report.html", "model.npz", "card.json"} <= set(os.listdir(folder))
    assert seen == {"0o600"}


def test_the_events_of_a_tracker(tmp_path, umask, monkeypatch):
    """TensorBoard makes its files itself: nobody else gets into their folder."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", Mock())
    TensorBoardTracker(tmp_path / "run", {})
    assert rights(tmp_path / "run" / "tensorboard") == "0o700"


def test_released_copies_are_ordinary_files(tmp_path, umask, monkeypatch):
    run(parse_config(changed(**ROUNDS)), directory=tmp_path / "run", report=False)
    monkeypatch.setattr(report, "page", lambda *_: "a page")
    page = report.copy_released(tmp_path / "run", tmp_path / "released")
    assert {rights(path) for path in page.parent.iterdir()} == {oct(0o666 & ~umask)}
    assert rights(page.parent) == oct(0o777 & ~umask)


SILOS = {
    "prepare": lambda config, folder: prepare(config, folder / "one", 0),
    "split": lambda config, folder: split(config, [folder / "one", folder / "two"]),
}


@pytest.mark.parametrize("make", SILOS.values(), ids=SILOS)
def test_silos(tmp_path, umask, make):
    config = table_run(tmp_path)
    data = config.data.model_copy(update={"test_fraction": 0.0, "users": 60})
    make(config.model_copy(update={"data": data}), tmp_path / "silos")
    assert not open_to_others(tmp_path / "silos")


def test_a_file_that_others_could_read_is_replaced(tmp_path, umask):
    (tmp_path / ".old.json.partial").write_text("x")
    (tmp_path / "old.json").write_text("x")
    RunDirectory(tmp_path / "run").json("result.json", {})
    write_whole(tmp_path / "old.json", lambda partial: partial.write_text("y"))
    assert rights(tmp_path / "old.json") == "0o600"
    private_folder(tmp_path)  # somebody else's stays as it is
    private_folder(tmp_path / "a" / "b")
    assert not open_to_others(tmp_path / "a")


def test_a_database_of_accounts_and_its_queue(tmp_path, umask, monkeypatch):
    seen = {}

    def looked(*_):
        seen.update({path.name: rights(path) for path in file.parent.iterdir()})
        return 1.0

    file = tmp_path / "kept" / "accounts.sqlite"
    accounts = Accounts(f"sqlite:///{file}")
    Queue(accounts).runs()
    accounts.create("clinic", Total(4.0, 1e-6))
    with accounts.transaction(making=True) as connection:
        connection.connection.driver_connection.create_function("looked", 0, looked)
        connection.exec_driver_sql("UPDATE userdp_accounts SET epsilon = 3.0 * looked()")
        looked()
    accounts.enter("clinic", Wanted("a run", [promise()], "token"))
    assert seen == {"accounts.sqlite": "0o600", "accounts.sqlite-journal": "0o600"}
    assert not open_to_others(tmp_path / "kept")


def test_accounts_by_the_command(tmp_path, umask):
    url = f"sqlite:///{tmp_path / 'kept' / 'accounts.sqlite'}"
    done = call("account", "create", "clinic", "--epsilon", 4, "--delta", 1e-6, "--accounts", url)
    assert done.exit_code == 0, done.output
    assert not open_to_others(tmp_path / "kept")


def test_a_comparison(tmp_path, umask):
    raw = COMPARISON | {"seeds": 1, "strategy": COMPARISON["strategy"][:1], "grid": {"privacy.epsilon": [1.0]}}
    compare(parse_comparison(raw), workers=0, directory=tmp_path / "compared")
    assert not open_to_others(tmp_path / "compared")


def test_what_commands_write(tmp_path, umask, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = write_table(Path("people.csv"))
    Path("facts.toml").write_text(
        f'[data]\npath = "{table}"\nuser = "who"\nall_users = 60\n[find]\nnumbers = ["height"]\n'
        "[privacy]\nepsilon = 50.0\ndelta = 1e-3\n"
    )
    done = call("find", "facts.toml")
    assert done.exit_code == 0, done.output
    assert rights(Path("declared.toml")) == "0o600"


def test_keys_and_the_folder_of_a_keeper(tmp_path, umask):
    make_keys(tmp_path / "keys", 1, serve=True)
    with identity(tmp_path / "results"):
        pass
    assert not open_to_others(tmp_path / "keys")
    assert not open_to_others(tmp_path / "results")


def test_results_of_a_deployment_belong_to_the_owner_of_their_folder(tmp_path, umask, monkeypatch):
    (out := tmp_path / "out").mkdir(mode=0o777)
    (there := tmp_path / "there").mkdir()
    for name in ("result.json", "guarantee.json", "model.npz", "report.html"):
        (there / name).write_text(json.dumps(Guarantee.none("a test").as_dict()))
    given = []
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, *owner: given.append((Path(path).name, owner)))
    assert bring(there, out, "finished:completed") == 0
    assert not open_to_others(out)
    owner = out.stat().st_uid, out.stat().st_gid
    assert sorted(given) == sorted((name, owner) for name in os.listdir(out))


RELEASED = {
    *("strategies/core/results.py", "userdp/data/tables/fetching.py", "simulations/api/language.py"),
    *("simulations/deployment/superlink.py", "simulations/reports/report.py"),
}
"""These make files of what was released or is public."""


def test_whoever_makes_a_file_or_a_folder_says_that_it_is_for_its_owner():
    root = Path(__file__).resolve().parents[3]
    for path in (
        path for package in ("userdp", "strategies", "simulations") for path in (root / package).rglob("*.py")
    ):
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.search(r"O_CREAT|\.mkdir\(|\.touch\(", line) and path.relative_to(root).as_posix() not in RELEASED:
                assert re.search(r"\b0o[67]00\b", line), f"{path}: {line}"
