"""One token, one release: whatever a folder holds, and whichever settings a run resumes with."""

import itertools
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from examples import altered, changed
from helpers import Watching
from helpers_killed import on_disk

import simulations.account.entering
import simulations.records.checkpoints
import simulations.runs.folder
from simulations.account.accounts import Accounts
from simulations.account.entering import admitted, enter_run
from simulations.config.run_config import parse_config
from simulations.records.checkpoints import digest_of
from simulations.records.run_directory import (
    ASKED,
    CARD,
    CHECKPOINT,
    FILES,
    TOKEN,
    check_no_release,
    write_whole,
)
from simulations.runs.run import run
from simulations.serving.keeper import checked
from strategies import UserLevelStrategy
from strategies.core.results import ANSWERS
from userdp.accounting import Total
from userdp.errors import BadInput, RunFailed

SETTINGS = {
    "privacy__account": "registry",
    "privacy__epsilon": 1.0,
    "data__users": 60,
    "data__test_users": 0,
    "strategy": {"kind": "dp_fed_sgd", "rounds": 2},
    "output": {"reference": False, "anyway": True},
}
CONFIGS = {noise: parse_config(changed(**SETTINGS | {"privacy__noise": noise})) for noise in ("secure", "seeded")}
RESUMED = {"resume": True, "resumes": True}
LEFT = (TOKEN, CHECKPOINT, ASKED, "config.toml", "plan.json", "guarantee.json", "rounds.parquet", "model.npz")
STRATEGIES = {noise: checked(config) for noise, config in CONFIGS.items()}
FAULTS = {
    "missing": lambda path, whole: None,
    "empty": lambda path, whole: path.write_bytes(b""),
    "truncated": lambda path, whole: path.write_bytes(whole[: len(whole) // 2]),
    "foreign": lambda path, whole: path.write_bytes(bytes(range(256)) * 9),
    "of another kind": lambda path, whole: path.write_text("[]"),
    "deep": lambda path, whole: path.write_text("privacy = " * path.name.endswith("toml") + "[" * 100_000),
    "a folder": lambda path, whole: path.mkdir(),
    "sealed": lambda path, whole: (path.write_bytes(whole), path.chmod(0)),
}
"""Functions that damage a removed file, given its path and former content."""


class Tokens:
    """The accounts, in memory: which tokens were entered."""

    def __init__(self):
        self.entered = []

    def enter(self, name, wanted):
        if wanted.token not in self.entered:
            self.entered.append(wanted.token)


@pytest.fixture
def tokens(monkeypatch):
    found = Tokens()
    monkeypatch.setattr(simulations.account.entering, "accounts_at", lambda url: found)
    return found.entered


def left_by(config, folder, *, keeps):
    """Return what a run leaves that is killed after its first round: file -> content."""
    whole = {}

    def killed(record, plan):
        whole.update({path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".running"})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, directory=folder, checkpoint=keeps, report=False, observers=[Watching(killed)])
    return whole


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """(noise, whether it kept its state) -> what a killed run left."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simulations.account.entering, "accounts_at", lambda url: Tokens())
        patched.setattr(simulations.records.checkpoints, "SPARING", -1e9)  # a state after every round
        return {
            (noise, keeps): left_by(config, tmp_path_factory.mktemp(noise) / "run", keeps=keeps)
            for noise, config in CONFIGS.items()
            for keeps in (True, False)
        }


def test_a_killed_run_leaves_these_files(left):
    for (noise, keeps), whole in left.items():
        kept = {CHECKPOINT, ASKED} if noise == "secure" else {CHECKPOINT}
        assert set(whole) == set(LEFT) - {CHECKPOINT, ASKED} | (kept if keeps else set())


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("noise", list(CONFIGS))
def test_whatever_became_of_a_file_one_token_pays_for_one_release(
    left, tokens, tmp_path, monkeypatch, noise, keeps, name
):
    """A killed run whose file is lost or damaged is resumed, or begun again in its folder."""
    config, strategy, folder, whole = CONFIGS[noise], STRATEGIES[noise], tmp_path / "run", left[noise, keeps]
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    resumes, first = keeps or noise == "seeded", json.loads(whole[TOKEN])["token"]
    for (fault, become), resume in itertools.product(FAULTS.items(), (True, False)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for one, content in whole.items():
            (folder / one).write_bytes(content)
        (folder / name).unlink(missing_ok=True)
        become(folder / name, whole.get(name, b"not there"))
        before, told = len(tokens), (fault, resume)
        try:
            resumed = admitted(config, strategy, folder, resume=resume, resumes=resumes)
        except BadInput:
            assert len(tokens) == before, told  # refused, it costs nothing
            continue
        token = json.loads((folder / TOKEN).read_text())["token"]
        assert tokens[before:] == ([] if token in tokens[:before] else [token]), told
        if token == first:
            assert resume, told
            assert resumes, told
            if noise == "secure":  # with seeded noise it is the same release, to the bit
                assert resumed is not None, told
                assert all((folder / one).read_bytes() == whole[one] for one in (ASKED, CHECKPOINT)), told
        else:
            assert token not in tokens[:before], told


def test_a_killed_run_resumes_under_its_token_where_nothing_became_of_its_files(left, tokens, tmp_path):
    for (noise, keeps), whole in left.items():
        folder = tmp_path / f"{noise} {keeps}"
        folder.mkdir()
        for one, content in whole.items():
            (folder / one).write_bytes(content)
        if noise == "secure" and not keeps:
            with pytest.raises(BadInput, match="cannot be drawn again"):
                admitted(CONFIGS[noise], STRATEGIES[noise], folder, **RESUMED)
            (folder / "rounds.parquet").unlink()
            (folder / "model.npz").unlink()
            (folder / "guarantee.json").unlink()
            with pytest.raises(BadInput, match="kept nothing to resume from"):
                admitted(CONFIGS[noise], STRATEGIES[noise], folder, **RESUMED)
            continue
        resumed = admitted(CONFIGS[noise], STRATEGIES[noise], folder, **RESUMED)
        assert (resumed is not None) == keeps
        assert tokens[-1] == json.loads(whole[TOKEN])["token"]


@pytest.mark.parametrize("noise", list(CONFIGS))
@pytest.mark.parametrize(
    "other",
    [
        {"seed": 4},
        {"privacy__epsilon": 0.5},
        {"privacy__account": "second"},
        {"privacy__evaluate": True, "data__test_users": 20},
        {"strategy__rounds": 1},
        {"strategy__kind": "dp_fed_avg"},
        {"data__users": 61},
        {"problem__bound": 6.0},
        {"output__compare_with_initial": True},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_token_pays_for_the_settings_that_it_was_entered_with_alone(tokens, tmp_path, noise, other):
    """Nobody was asked yet, and no state was kept, which would be compared, too."""
    config, strategy = CONFIGS[noise], STRATEGIES[noise]
    enter_run(config, strategy, tmp_path)
    with pytest.raises(BadInput, match=r"pays for that run alone: resume it .*, which is a new entry"):
        admitted(parse_config(changed(**SETTINGS | {"privacy__noise": noise} | other)), strategy, tmp_path, **RESUMED)
    assert len(tokens) == 1
    assert admitted(config, strategy, tmp_path, **RESUMED) is None
    assert len(tokens) == 1


def test_a_run_that_kept_no_state_resumes_under_its_token_with_the_same_seed_alone(accounts, tmp_path):
    """Killed runs whose output.checkpoint is false: the other seed would be a second release, the same seed is none."""
    Accounts(accounts).create("registry", Total(8.0, 1e-4))
    left_by(CONFIGS["seeded"], tmp_path / "run", keeps=False)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(BadInput, match="pays for that run alone"):
        run(CONFIGS["seeded"].model_copy(update={"seed": 9}), directory=tmp_path / "run", resume=True, report=False)
    run(CONFIGS["seeded"], directory=tmp_path / "run", resume=True, report=False)
    run(CONFIGS["seeded"], directory=tmp_path / "unbroken", report=False)
    models = [(tmp_path / name / "model.npz").read_bytes() for name in ("run", "unbroken")]
    assert models[0] == models[1]
    assert len(Accounts(accounts).read("registry").entries) == 2


@pytest.mark.parametrize("names", [(TOKEN,), (TOKEN, "config.toml", "plan.json")], ids=len)
def test_a_token_under_which_users_were_asked_resumes_nothing_without_a_state(names, left, tokens, tmp_path):
    """All else was moved away, of a killed run as of one that has ended: drawing noise again is a second release."""
    killed, over = left["secure", True], tmp_path / "over"
    run(CONFIGS["secure"], directory=over, checkpoint=True, report=False)
    for of, whole in (("killed", killed), ("ended", {path.name: path.read_bytes() for path in over.iterdir()})):
        folder, before = tmp_path / of, len(tokens)
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(whole[name])
        with pytest.raises(BadInput, match="though users were asked under the entry"):
            admitted(CONFIGS["secure"], STRATEGIES["secure"], folder, **RESUMED)
        assert len(tokens) == before


def test_a_run_that_was_killed_before_it_asked_anybody_begins_under_its_token(tokens, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(simulations.records.checkpoints.Checkpoints, "keep", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(CONFIGS["secure"], directory=tmp_path, checkpoint=True, report=False)
    assert (tmp_path / ASKED).is_file()
    assert "asked" not in json.loads((tmp_path / TOKEN).read_text())
    assert admitted(CONFIGS["secure"], STRATEGIES["secure"], tmp_path, **RESUMED) is None
    assert len(tokens) == 1


@pytest.mark.parametrize("kept", [(CHECKPOINT, ASKED), (CHECKPOINT,), ()], ids=len)
def test_a_run_that_was_killed_while_it_removed_its_state_has_ended(kept, left, tokens, tmp_path, monkeypatch):
    """Two, one or none of the last two files are left; no private file stays."""
    removed = list[str]()
    with monkeypatch.context() as patched:
        patched.setattr(simulations.runs.folder, "remove_checkpoints", removed.append)
        run(CONFIGS["secure"], directory=tmp_path, checkpoint=True, report=False)
    assert removed == [tmp_path]
    for name in {CHECKPOINT, ASKED} - {*kept}:
        (tmp_path / name).unlink()
    model = (tmp_path / "model.npz").read_bytes()
    if len(kept) == 2:
        run(CONFIGS["secure"], directory=tmp_path, resume=True, report=False)
    else:
        with pytest.raises(BadInput, match="there is nothing to resume"):
            run(CONFIGS["secure"], directory=tmp_path, resume=True, report=False)
    assert (tmp_path / "model.npz").read_bytes() == model
    assert not {CHECKPOINT, ASKED} & {path.name for path in tmp_path.iterdir()}
    assert len(tokens) == 1


@pytest.mark.parametrize("noise", list(CONFIGS))
def test_a_state_goes_on_under_its_own_token_alone(noise, left, tokens, tmp_path):
    """Beside another's token it would be a release that only the other run paid for."""
    for name, content in left[noise, True].items():
        (tmp_path / name).write_bytes(content)
    kept = json.loads((tmp_path / TOKEN).read_text())
    (tmp_path / TOKEN).write_text(json.dumps(kept | {"token": "another"}))
    with pytest.raises(BadInput, match=r"checkpoint.npz is not of the run whose entry account.json names"):
        admitted(CONFIGS[noise], STRATEGIES[noise], tmp_path, **RESUMED)
    assert tokens == []
    (tmp_path / TOKEN).unlink()  # then it pays again
    assert admitted(CONFIGS[noise], STRATEGIES[noise], tmp_path, **RESUMED) is not None
    assert len(tokens) == 1


def test_a_run_that_resumes_says_still_under_its_token_that_users_were_asked(left, tokens, tmp_path):
    whole = left["secure", True]
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
    admitted(CONFIGS["secure"], STRATEGIES["secure"], tmp_path, **RESUMED)
    assert json.loads((tmp_path / TOKEN).read_text())["asked"] is True


@pytest.mark.parametrize("named", ["data__path", "problem__initial_model"])
@pytest.mark.parametrize("noise", list(CONFIGS))
def test_with_seeded_noise_a_token_pays_for_the_bytes_that_it_was_entered_with(
    named, noise, tokens, tmp_path, monkeypatch
):
    """The same noise on other people's data, or at another model, would be a second release."""
    file = tmp_path / "people.csv"
    table = {
        "kind": "table",
        "path": str(file),
        "user": "u",
        "features": ["x"],
        "ranges": {"x": [0.0, 1.0]},
        "users": 60,
    }
    table |= {"target": "y", "target_range": [0.0, 1.0]}
    settings = SETTINGS | {"privacy__noise": noise, "problem": {"kind": "linear"}}
    del settings["data__users"], settings["data__test_users"]
    raw = changed(**settings, data=table)
    if named == "problem__initial_model":
        raw["problem"]["initial_model"] = str(tmp_path / "model.npz")
        file = tmp_path / "model.npz"
    config = parse_config(raw)
    file.write_bytes(b"u,x,y\n1,.5,.5\n")
    enter_run(config, STRATEGIES[noise], tmp_path / "run")
    enter_run(config, STRATEGIES[noise], tmp_path / "run", resumed=True)
    file.write_bytes(b"u,x,y\n1,.5,.4\n")
    if noise == "secure":  # nobody was asked yet, or a state says who was
        enter_run(config, STRATEGIES[noise], tmp_path / "run", resumed=True)
    else:
        with pytest.raises(BadInput, match="pays for that run alone"):
            enter_run(config, STRATEGIES[noise], tmp_path / "run", resumed=True)


@pytest.mark.parametrize("changed_file", ["base/model.safetensors", "words/tokenizer.json", "words/added/more.json"])
def test_with_seeded_noise_a_token_pays_for_the_folders_of_its_language_model(changed_file, tmp_path, monkeypatch):
    sequence = {"text": "text", "tokenizer": f"hf:{tmp_path / 'words'}", "window": 8}
    data = {"kind": "table", "path": str(tmp_path / "t.csv"), "user": "u", "users": 60, "sequence": sequence}
    problem = {"kind": "torch", "model": f"hf:{tmp_path / 'base'}", "loss": "cross_entropy"}
    settings = {name: value for name, value in SETTINGS.items() if not name.startswith("data__")}
    config = parse_config(changed(**settings, data=data, problem=problem))
    for name in ("base/model.safetensors", "words/tokenizer.json", "words/added/more.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    before = digest_of(config)
    for name in ("base/pytorch_model.bin", "base/README.md", "words/model.safetensors"):  # of which nothing is made
        (tmp_path / name).write_text("one")
    with monkeypatch.context() as again:
        again.setattr("simulations.records.checkpoints._SETTLED_NS", -(10**18))
        assert digest_of(config) == before
        again.setattr("simulations.records.checkpoints.hashlib.file_digest", Mock(side_effect=AssertionError))
        assert digest_of(config) == before
    (tmp_path / changed_file).write_text("another")
    assert digest_of(config) != before


def test_a_file_of_a_language_model_that_changes_at_one_moment_or_in_its_place_is_another(tmp_path, monkeypatch):
    sequence = {"text": "text", "tokenizer": f"hf:{tmp_path / 'words'}", "window": 8}
    data = {"kind": "table", "path": "t.csv", "user": "u", "users": 60, "sequence": sequence}
    problem = {"kind": "torch", "model": f"hf:{tmp_path / 'base'}", "loss": "cross_entropy"}
    settings = {name: value for name, value in SETTINGS.items() if not name.startswith("data__")}
    config, told = parse_config(changed(**settings, data=data, problem=problem)), []
    for folder in ("base", "words"):
        (tmp_path / folder).mkdir()
    base, words = tmp_path / "base" / "added.json", tmp_path / "words" / "added.json"
    moment = {"st_size": 3, "st_mtime_ns": time.time_ns(), "st_ctime_ns": time.time_ns()}
    with monkeypatch.context() as coarse:
        coarse.setattr(Path, "stat", lambda self, **_: SimpleNamespace(st_mode=os.stat(self).st_mode, **moment))
        for text in ("one", "two"):
            base.write_text(text)
            told.append(digest_of(config))
    told.append(digest_of(config) if base.rename(words) else "")
    words.rename(tmp_path / "words" / "other.json")
    assert len({*told, digest_of(config)}) == 4


@pytest.mark.parametrize("lost", ["token", "settings", "resumes"])
def test_a_file_of_a_token_that_lacks_what_older_versions_did_not_write_pays_for_nothing(tokens, tmp_path, lost):
    config, strategy = CONFIGS["seeded"], STRATEGIES["seeded"]
    enter_run(config, strategy, tmp_path)
    kept = json.loads((tmp_path / TOKEN).read_text())
    assert lost in kept
    for other in ({}, {lost: None}):
        without = {name: value for name, value in kept.items() if name != lost} | other
        if without.get("token", "") is None:
            continue
        (tmp_path / TOKEN).write_text(json.dumps(without))
        with pytest.raises(BadInput, match=str(tmp_path / TOKEN)):
            admitted(config, strategy, tmp_path, **RESUMED)
    assert len(tokens) == 1


def test_a_run_is_entered_into_the_accounts_that_it_is_given_and_no_others(tmp_path):
    config, strategy = CONFIGS["seeded"], STRATEGIES["seeded"]
    named, given = (Accounts(f"sqlite:///{tmp_path / name}.sqlite") for name in ("named", "given"))
    for accounts in (named, given):
        accounts.create("registry", Total(4.0, 1e-4))
    config = parse_config(changed(**SETTINGS | {"privacy__noise": "seeded", "privacy__accounts": named.url}))
    enter_run(config, strategy, tmp_path / "one", accounts=given)
    assert [len(one.read("registry").entries) for one in (named, given)] == [0, 1]
    enter_run(config, strategy, tmp_path / "other")
    assert [len(one.read("registry").entries) for one in (named, given)] == [1, 1]


@pytest.mark.parametrize("what", ["code", "versions"])
def test_a_token_pays_for_the_code_and_the_versions_that_it_was_entered_with(tokens, tmp_path, monkeypatch, what):
    config, strategy = CONFIGS["seeded"], STRATEGIES["seeded"]
    enter_run(config, strategy, tmp_path)
    checkpoints = simulations.records.checkpoints
    monkeypatch.setattr(checkpoints, "digests", lambda config: {"module": "another"} if what == "code" else {})
    if what == "versions":
        monkeypatch.setattr(checkpoints, "versions", lambda: {"userdp": "9", "numpy": "1"})
    with pytest.raises(BadInput, match="with other settings, code or versions"):
        admitted(config, strategy, tmp_path, **RESUMED)


def test_a_token_is_the_same_where_the_app_and_its_results_are_elsewhere(monkeypatch):
    """A keeper enters the run of an app that Flower unpacks in another folder."""
    checkpoints = simulations.records.checkpoints
    found = set()
    for root in ("/app", "/home/flower/.flwr/apps/userdp"):
        monkeypatch.setattr(checkpoints, "_APP_ROOT", root)
        config = CONFIGS["seeded"].model_copy(update={"name": f"{root}/simulations/configs/people.csv"})
        found.add(digest_of(altered(config, output__directory=f"{root}/runs")))
    assert len(found) == 1


# What may be a release ----------------------------------------------------------------------------------------------


ENDED = ("rounds.parquet", "model.npz", "guarantee.json", "result.json", "data.json", "report.html")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The files of a finished run with secure noise: file -> content."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    run(altered(CONFIGS["secure"], privacy__account=None), directory=folder, report=False)
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"report.html": b"page"}


@pytest.mark.parametrize("name", [*ENDED, "config.toml", ASKED])
def test_a_file_that_cannot_be_read_beside_secure_noise_is_a_release(tmp_path, ended, name):
    """Beside all others, and alone: nothing says then that nothing was released."""
    for alone, (fault, become) in itertools.product((False, True), FAULTS.items()):
        folder = tmp_path / f"{fault} {alone}"
        folder.mkdir()
        for one, content in ended.items():
            if one == "config.toml" or not alone:
                (folder / one).write_bytes(content)
        (folder / name).unlink(missing_ok=True)
        become(folder / name, ended.get(name, b"asked"))
        gone = fault == "missing" and (alone or name == "config.toml")  # nothing is left, or says whose it is
        if gone or (name == "config.toml" and alone):
            check_no_release(folder)
        else:
            with pytest.raises(BadInput, match="cannot be drawn again"):
                check_no_release(folder)
        if not alone:  # a run with secure noise that is resumed knows its noise
            with pytest.raises(BadInput, match="cannot be drawn again"):
                check_no_release(folder, secure=True)


@pytest.mark.parametrize(
    "name", [name for name in (*FILES, ANSWERS, *CARD) if name not in ("config.toml", "plan.json")]
)
def test_each_file_that_a_run_leaves_may_be_a_release(tmp_path, name):
    """Alone beside secure noise: an answer to a query, a card or a page releases as much as a model."""
    (tmp_path / "config.toml").write_text('[privacy]\nnoise = "secure"\n')
    check_no_release(tmp_path)
    (tmp_path / name).write_text("{}")
    with pytest.raises(BadInput, match="cannot be drawn again"):
        check_no_release(tmp_path)


@pytest.mark.parametrize("fault", ["missing", "empty", "foreign"])
def test_a_run_without_an_account_is_not_resumed_over_its_release_whatever_its_folder_says(left, tmp_path, fault):
    """It knows that its noise is secure; nothing was kept to resume from."""
    for name, content in left["secure", False].items():
        if name not in (TOKEN, "config.toml"):
            (tmp_path / name).write_bytes(content)
    FAULTS[fault](tmp_path / "config.toml", b"")
    config = altered(CONFIGS["secure"], privacy__account=None)
    with pytest.raises(BadInput, match="cannot be drawn again"):
        admitted(config, STRATEGIES["secure"], tmp_path, resume=True, resumes=False)


def test_a_run_that_failed_before_it_asked_anybody_released_nothing(tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise RunFailed("too few nodes are registered")

    monkeypatch.setattr(UserLevelStrategy, "start", unreachable)
    config = altered(CONFIGS["secure"], privacy__account=None)
    with pytest.raises(RunFailed):
        run(config, directory=tmp_path, report=False)
    check_no_release(tmp_path)
    check_no_release(tmp_path, secure=True)


# To the disk before names -------------------------------------------------------------------------------------------


def test_the_token_and_every_file_of_a_run_is_on_the_disk_before_it_has_its_name(tokens, tmp_path, monkeypatch):
    events = on_disk(monkeypatch)
    run(CONFIGS["secure"], directory=tmp_path / "run", checkpoint=True, report=False)
    moved = [number for number, event in enumerate(events) if isinstance(event, tuple) and len(event) == 3]
    names = {events[number][0] for number in moved}
    assert names >= {TOKEN, CHECKPOINT, ASKED, *FILES} - {"report.html"}
    for number in moved:
        assert events[number - 1] == events[number][1:], events[number]
        assert events[number + 1] == "folder", events[number]


def test_a_file_that_cannot_be_flushed_keeps_its_former_content(tmp_path, monkeypatch):
    """A full disk, for example, leaves no half of a file under its name."""
    (tmp_path / "file").write_text("former")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "file", lambda partial: partial.write_text("newer"))
    assert (tmp_path / "file").read_text() == "former"
