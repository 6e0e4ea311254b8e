"""Runs that were killed go on to the same end, and never spend anything twice."""

import json
import os
import shutil
import tomllib

import numpy as np
import pandas as pd
import pytest
from examples import call, changed
from helpers_killed import killed_at, left, on_disk
from hypothesis import given, settings
from hypothesis import strategies as st

import simulations.records.checkpoints
from simulations.config.run_config import parse_config
from simulations.engines.grids import LocalGrid
from simulations.records.checkpoints import Checkpoints, in_use, remove_checkpoints
from simulations.records.released_fields import ALL_KINDS, SHARED
from simulations.records.run_directory import ASKED, CHECKPOINT, FILES
from simulations.runs import folder as folder_module
from simulations.runs.folder import conclude
from simulations.runs.run import run
from simulations.terminal import BAD_INPUT
from userdp.errors import BadInput
from userdp.sampling.allocated import AllocatedBatches
from userdp.snapshots import Snapshot

SEEDED = parse_config(changed(output={"reference": False}))
SECURE = parse_config(
    changed(privacy__noise="secure", data__test_users=0, strategy={"kind": "dp_fed_sgd", "rounds": 3, "cohort": 40})
)
SAMPLED = parse_config(
    changed(
        privacy__noise="secure",
        data__test_users=0,
        strategy={"kind": "dp_fed_sgd", "rounds": 3, "sampling": "allocation", "participations": 1},
    )
)
ROUNDS = 5
"""A preparation of two, and three of the strategy's own."""


@pytest.fixture(autouse=True)
def every_round(monkeypatch):
    monkeypatch.setattr(simulations.records.checkpoints, "SPARING", -1e9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    go(directory, checkpoint=True)
    found = left(directory)
    assert set(found["files"]) == set(FILES) - {"report.html"}
    return found


def kept_at(config, directory, name=CHECKPOINT):
    snapshot = Checkpoints(directory, config)._read(name)
    return None if snapshot is None else snapshot.get("round")


def go(directory, config=SEEDED, **how):
    return run(config, directory=directory, report=False, **how)


def refused(directory, told, config=SEEDED, **how):
    with pytest.raises(BadInput, match=told) as caught:
        go(directory, config, **{"resume": True} | how)
    return str(caught.value)


def arrays_of(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def rounds_in(directory):
    path = directory / "rounds.parquet"
    return len(pd.read_parquet(path)) if path.exists() else 0


@pytest.mark.sweep(6)
@pytest.mark.parametrize("moment", range(0, 34, 3))
def test_a_run_killed_at_any_moment_goes_on_to_the_bit(tmp_path, whole, moment):
    """Some in a folder that was moved meanwhile."""
    directory = tmp_path / "run"
    assert killed_at(SEEDED, directory, moment)
    if moment % 2:
        directory = shutil.move(directory, tmp_path / "elsewhere")
    go(directory, resume=True)
    assert left(directory) == whole


def test_a_run_killed_again_and_again_goes_on(tmp_path, whole):
    resume, moment = False, 4
    while killed_at(SEEDED, tmp_path / "run", moment, resume=resume):
        resume, moment = True, moment + 3
    assert left(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("config", "moment"),
    [
        *((SECURE, moment) for moment in (5, 13, 22, 29)),
        *(pytest.param(SECURE, moment, marks=pytest.mark.slow) for moment in range(4, 42, 3)),
        *(pytest.param(SAMPLED, moment, marks=pytest.mark.slow) for moment in range(4, 42)),
    ],
)
def test_under_secure_noise_the_charge_is_on_disk_first_and_nobody_is_asked_twice(
    tmp_path, monkeypatch, config, moment
):
    directory = tmp_path / "run"
    assert killed_at(config, directory, moment)
    kept, asked = kept_at(config, directory) or 0, kept_at(config, directory, ASKED) or 0
    assert rounds_in(directory) <= kept
    assert max(asked, kept) <= kept + 1
    questions, deliver = [], LocalGrid._deliver

    def heard(self, messages, timeout):
        questions.extend(messages)
        return deliver(self, messages, timeout)

    monkeypatch.setattr(LocalGrid, "_deliver", heard)
    outcome = go(directory, config, resume=True)
    # The roster asks without a round.
    rounds = {int(each.metadata.group_id) for each in questions if each.metadata.group_id}
    assert rounds == set(range(max(asked, kept) + 1, ROUNDS + 1))
    records = pd.read_parquet(directory / "rounds.parquet")
    assert list(records["round"]) == list(range(1, ROUNDS + 1))
    silent = records.loc[records["missing_users_private"] > 0, "round"].tolist()
    assert silent == ([asked] if asked > kept else [])
    assert np.isfinite(outcome.model).all()
    assert records["spent_epsilon"].iloc[-1] == pytest.approx(outcome.guarantee.epsilon, rel=1e-4)


def drawn_at(directory):
    return Checkpoints(directory, SAMPLED)._read(ASKED).get("drawn")


@pytest.mark.slow
def test_the_cohort_of_a_lost_round_is_the_one_that_was_asked(tmp_path, monkeypatch):
    """Under random allocation another one would let somebody take part more often than accounted."""
    folder = next(
        folder
        for each, folder in ((each, tmp_path / str(each)) for each in range(10, 40))
        if killed_at(SAMPLED, folder, each)
        and (kept_at(SAMPLED, folder, ASKED) or 0) > (kept_at(SAMPLED, folder) or 9)
        and drawn_at(folder)["index"] >= 0  # no round of the preparation, which asks everybody
    )
    asked = drawn_at(folder)
    cohorts, allocated = [], AllocatedBatches.cohort

    def heard(self, index):
        cohorts.append((index, allocated(self, index)))
        return cohorts[-1][1]

    monkeypatch.setattr(AllocatedBatches, "cohort", heard)
    go(folder, SAMPLED, resume=True)
    assert cohorts[0][0] == asked["index"]
    np.testing.assert_array_equal(cohorts[0][1], asked["cohort"])


def test_another_configuration_is_refused_field_by_field(tmp_path, killed):
    directory = shutil.copytree(killed, tmp_path / "run")
    other = parse_config(changed(output={"reference": False}, privacy__epsilon=3.0, strategy__rounds=4, seed=9))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    text = refused(directory, r"checkpoint\.npz belongs to a run with other settings \(", other)
    assert text.endswith("): use the config.toml beside it")
    for told in ("privacy.epsilon is 4.0 there and 3.0 here", "strategy.rounds is 3 there and 4 here", "seed is 3"):
        assert told in text
    assert not [word for word in ("damaged", "clip_norm") if word in text]
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_all_settings_are_compared_but_where_the_run_is_and_how_much_is_kept_in_memory():
    module = simulations.records.checkpoints
    named, compared = (
        module._flat(values) for values in (tomllib.loads(SEEDED.toml()), module._settings(SEEDED)["configuration"])
    )
    assert compared == {name: value for name, value in named.items() if name not in ("output.directory", "data.memory")}


def test_a_setting_that_is_not_there_and_other_versions_are_refused(tmp_path, monkeypatch, killed):
    directory = shutil.copytree(killed, tmp_path / "run")
    other = parse_config(changed(output={"reference": False}, strategy__learning_rate=0.5))
    refused(directory, r"strategy\.learning_rate is 'not set' there and 0.5 here", other)
    monkeypatch.setattr(simulations.records.checkpoints, "versions", lambda: {"userdp": "9", "numpy": "1"})
    refused(directory, r"versions\.numpy is '.*' there and '1' here; versions\.userdp")


def rewritten(path, **changes):
    """The file with other values in its text; whole, with the checksums that belong to it."""
    arrays = arrays_of(path)
    before = json.loads(arrays["state_private"].tobytes())
    text = json.dumps(before | changes)
    np.savez(path, **arrays | {"state_private": np.frombuffer(text.encode(), np.uint8)})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": 9}, r"has format 9; this userdp reads 3: resume with the version of userdp"),
        ({"versions": {"userdp": "0", "numpy": "0"}}, r"belongs to a run with other settings \(versions\.numpy is '0'"),
        ({"values": {"round": 2}}, r"the checkpoint holds no 'seed' that can be read: resume with the version"),
    ],
)
def test_a_whole_file_of_another_version_is_not_called_damaged(tmp_path, killed, changes, told):
    directory = shutil.copytree(killed, tmp_path / "run")
    rewritten(directory / CHECKPOINT, **changes)
    assert "damaged" not in refused(directory, told)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("killed") / "run"
    assert killed_at(SEEDED, directory, 25)
    return directory


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_checkpoint_is_refused(tmp_path, killed, share):
    directory = shutil.copytree(killed, tmp_path / "run")
    path = directory / CHECKPOINT
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refused(directory, r"checkpoint\.npz cannot be read .*damaged or cut short")


@settings(max_examples=25, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_checkpoint_with_a_wrong_byte_is_refused_or_the_same(killed, place, flip):
    content = bytearray((killed / CHECKPOINT).read_bytes())
    content[int(place * len(content))] ^= flip
    path = killed.parent / "wrong" / CHECKPOINT
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    try:
        taken = Checkpoints(path.parent, SEEDED)._read(CHECKPOINT)
    except BadInput:
        return
    expected = Checkpoints(killed, SEEDED)._read(CHECKPOINT)
    assert taken.values == expected.values
    assert {name: array.tobytes() for name, array in taken.arrays.items()} == {
        name: array.tobytes() for name, array in expected.arrays.items()
    }


def test_a_checkpoint_of_pickled_objects_is_refused_without_reading_them(tmp_path, killed):
    directory = shutil.copytree(killed, tmp_path / "run")
    trap = {"state_private.array0": np.array([Trap()], dtype=object)}
    np.savez(directory / CHECKPOINT, **arrays_of(directory / CHECKPOINT) | trap)
    refused(directory, "cannot be read")
    assert not Trap.sprung


class Trap:
    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def test_a_run_that_failed_goes_on(tmp_path, monkeypatch, whole):
    deliver, calls = LocalGrid._deliver, []

    def failing(self, messages, timeout):
        calls.append(messages)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return deliver(self, messages, timeout)

    monkeypatch.setattr(LocalGrid, "_deliver", failing)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "run", checkpoint=True)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["error"] == "interrupted"
    go(tmp_path / "run", resume=True)
    assert left(tmp_path / "run") == whole


def test_two_processes_do_not_run_in_one_directory(tmp_path, killed):
    directory = shutil.copytree(killed, tmp_path / "run")
    with Checkpoints(directory, SEEDED).held():
        refused(directory, "has not ended")


@pytest.mark.parametrize("lost", ["configuration", "versions", "format", "code"])
def test_a_checkpoint_that_does_not_say_what_it_is_of_is_refused(tmp_path, lost):
    """A missing entry skips no comparison."""
    keeper = Checkpoints(tmp_path, SEEDED)
    kept = {"format": 3, **keeper._settings}
    keeper._check(tmp_path, kept)
    del kept[lost]
    with pytest.raises((BadInput, LookupError)):  # of both `_read` makes a refusal
        keeper._check(tmp_path, kept)


def test_the_lock_of_a_run_that_ended_meanwhile_is_none(tmp_path):
    """Whoever opened it before holds a file that is there no more, or another one is."""
    keeper, lock = Checkpoints(tmp_path, SEEDED), tmp_path / ".running"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    lock.unlink()
    assert not keeper._locked(handle)
    with keeper.held():
        assert not keeper._locked(handle)
    os.close(handle)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("how", ["run", "conclude"])
def test_a_report_shows_private_figures_where_they_are_asked_for_alone(tmp_path, monkeypatch, how, private):
    """A run that was killed before it had a report gets such a report, too."""
    shown = []
    monkeypatch.setattr(folder_module, "_render", lambda path, kinds: shown.append(kinds))
    config = parse_config(
        changed(strategy={"kind": "dp_fed_sgd", "rounds": 1}, output={"reference": False, "private_figures": private})
    )
    if how == "run":
        run(config, directory=tmp_path / "run")
    else:
        tmp_path.joinpath("run").mkdir()
        conclude(tmp_path / "run", config)
    assert shown == [ALL_KINDS if private else SHARED]


@pytest.mark.parametrize(("config", "checkpoint"), [(SECURE, True), (SECURE, False), (SEEDED, True)])
def test_a_run_holds_its_folder_wherever_another_one_there_would_be_a_second_release(tmp_path, config, checkpoint):
    """It stops at once: what matters is what holds while it asks."""
    seen = []

    class Asking(LocalGrid):
        def get_node_ids(self):
            seen.append(in_use(tmp_path / "run"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, grid=Asking([]), directory=tmp_path / "run", checkpoint=checkpoint, report=False)
    assert seen == [True]
    assert not in_use(tmp_path / "run")


def test_what_was_asked_in_secret_is_not_run_anew(tmp_path):
    directory = next(
        folder
        for each, folder in ((each, tmp_path / str(each)) for each in range(3, 20))
        if killed_at(SECURE, folder, each) and kept_at(SECURE, folder, ASKED) == 1
    )
    assert not rounds_in(directory)
    refused(directory, "resume a run that was killed with --resume", SECURE, resume=False)
    (directory / CHECKPOINT).unlink()
    refused(directory, r"checkpoint\.npz is missing, though users were asked", SECURE)


def test_what_must_be_kept_is_on_the_disk_however_soon_after_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(simulations.records.checkpoints, "SPARING", 1e9)
    keeper = Checkpoints(tmp_path, SEEDED)
    for number in range(3):
        taken = Snapshot()
        taken.add("round", number)
        keeper.ask(taken)
        keeper.keep(lambda taken=taken: taken, must=True)
        found = keeper.read()
        assert found.kept.get("round") == found.asked.get("round") == number
    keeper.keep(Snapshot, must=False)
    assert keeper.read().kept.get("round") == 2


def test_a_kill_amid_a_write_leaves_the_checkpoint_before_and_nothing_when_the_run_has_ended(tmp_path, monkeypatch):
    keeper, taken = Checkpoints(tmp_path, SEEDED), Snapshot()
    taken.add("round", 1)
    keeper.keep(lambda: taken, must=True)

    def dying(file, **parts):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", dying)
    with pytest.raises(KeyboardInterrupt):
        keeper.keep(lambda: taken, must=True)
    assert keeper.read().kept.get("round") == 1
    remove_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_on_the_disk_before_it_is_moved_and_so_is_the_move_after(tmp_path, monkeypatch):
    """Else a machine that fails could come back with an empty file, or with the one before: as if nobody was asked."""
    events = on_disk(monkeypatch)
    keeper, taken = Checkpoints(tmp_path, SEEDED), Snapshot()
    taken.add("round", 1)
    for name in (CHECKPOINT, ASKED):
        events.clear()
        keeper._write(name, taken)
        file = ((tmp_path / name).stat().st_ino, (tmp_path / name).stat().st_size)
        assert events == [file, (name, *file), "folder"]


def test_only_the_owner_reads_a_checkpoint(killed):
    assert (killed / CHECKPOINT).stat().st_mode & 0o077 == 0


def test_the_command_resumes_without_a_file_and_with_the_same(tmp_path, whole):
    assert killed_at(SEEDED, tmp_path / "run", 20)
    assert call("run", "--resume", tmp_path / "run", "--seed", "9").exit_code == BAD_INPUT
    done = call("run", "--resume", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    (tmp_path / "run" / "report.html").unlink()
    assert left(tmp_path / "run") == whole
    refused(tmp_path / "run", "has ended: there is nothing to resume")
    for arguments in (["--resume", tmp_path / "run"], ["--resume", tmp_path / "absent"], []):
        assert call("run", *arguments).exit_code == BAD_INPUT
    assert not (tmp_path / "absent").exists()


def test_checkpoints_take_a_twentieth_of_the_time_where_they_may_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(simulations.records.checkpoints, "SPARING", 20.0)
    clock = iter([0.0, 1.0, 20.9, 21.0, 23.0])
    monkeypatch.setattr(simulations.records.checkpoints.time, "monotonic", lambda: next(clock))
    keeper, written = Checkpoints(tmp_path, SEEDED), []
    monkeypatch.setattr(Checkpoints, "_write", lambda self, name, taken: written.append(taken))
    for taken in "abc":
        keeper.keep(lambda taken=taken: taken, must=False)
    assert written == ["a", "c"]
