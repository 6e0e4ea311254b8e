"""Silos of people answer what their holders accept, and nothing else: who asks, what is asked, and how often."""

import fcntl
import json
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w
from examples import columns_section
from flwr.app import ConfigRecord, Message, MessageType
from helpers import content_of
from helpers_flower import ClientGrid
from helpers_silos import Patient, altered_file

from simulations import flower
from simulations.account.accounts import Accounts
from simulations.config.run_config import parse_config
from simulations.engines.grids import LocalGrid
from simulations.runs.build import build_problem, make_strategy, public_facts
from simulations.runs.policy import POLICY, REFUSALS, RUNS, PolicyDoor, claim_of, digest, read_policy
from simulations.runs.run import run
from simulations.runs.silos import FILE, prepare, silo_node
from strategies import client_app
from strategies.core.results import PrivateResult
from strategies.wire.claims import Claim, Refused
from strategies.wire.protocol import answer_message, roster_question
from strategies.wire.shares import sharing_question
from userdp.accounting import Total
from userdp.errors import BadInput, UserdpError
from userdp.masking.grid import IntegerGrid
from userdp.masking.shares import Sharing
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import Computation

PEOPLE, SILOS = 12, 3
MADE_UP = {"kind": "synthetic", "population": "gaussian", "dimension": 1, "users": PEOPLE, "test_users": 0}
RAW = {
    "name": "clinic",
    "problem": {"kind": "quadratic", "radius": 1.0, "bound": 1.0},
    "data": columns_section("nowhere.csv", {"x": [0.0, 10.0]}, user="person", test_fraction=0.0, users=PEOPLE),
    "privacy": {"epsilon": 1.0, "delta": 1e-3, "noise": "secure", "account": "clinic"},
    "strategy": {"kind": "dp_fed_sgd", "rounds": 2, "clip_norm": 1.0, "max_missing": 0.0},
    "output": {"anyway": True},
    "engine": {"roster_timeout": 0.01},
}


def raw(**sections):
    return {name: {**RAW[name], **sections[name]} if name in sections else RAW[name] for name in RAW}


def config_of(**sections):
    return parse_config(raw(**sections))


def seeded(**sections):
    return raw(**sections) | {"privacy": {"epsilon": 50.0, "delta": 1e-3}}


STRANGERS = {
    "made-up users, seeded": seeded() | {"data": MADE_UP},
    "made-up users, secure": raw() | {"data": MADE_UP},
    "made-up users, without privacy": seeded() | {"data": MADE_UP, "strategy": {"kind": "non_private"}},
    "made-up held-out users": seeded(data={}) | {"data": MADE_UP | {"test_users": 6}},
    "seeded": seeded(),
    "seeded and cheap": raw(privacy={"noise": "seeded", "epsilon": 0.1}),
    "reference": seeded(output={"reference": True}),
    "without privacy": seeded() | {"strategy": {"kind": "non_private"}},
    "other ranges": raw(data={"ranges": {"x": [0.0, 1e6]}}),
    "another scale": raw(data={"scale": "unit"}),
    "other columns": raw(data={"features": ["y"], "ranges": {"y": [0.0, 10.0]}}),
    "more columns": raw(data={"categorical": {"y": ["anna"]}}),
    "too large an epsilon": raw(privacy={"epsilon": 1.01}),
    "too large a delta": raw(privacy={"delta": 2e-3}),
    "samples": raw(privacy={"unit": "sample"}, data={"samples": 3 * PEOPLE})
    | {"strategy": {"kind": "sample_clipped_sgd", "rounds": 2}},
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Three folders, as `prepare` makes them from three tables."""
    folder = tmp_path_factory.mktemp("prepared")
    for silo in range(SILOS):
        people = [f"p{silo}-{number}" for number in range(PEOPLE // SILOS)]
        rows = [f"{person},{(3 * at + row) % 11}" for at, person in enumerate(people) for row in range(3)]
        (folder / "table.csv").write_text("\n".join(["person,x", *rows]) + "\n")
        own = config_of(data={"path": str(folder / "table.csv"), "users": len(people)})
        assert prepare(own, folder / f"silo-{silo}", silo * len(people)) == len(people)
    return folder


@pytest.fixture
def folders(prepared, tmp_path):
    return [shutil.copytree(prepared / f"silo-{silo}", tmp_path / f"silo-{silo}") for silo in range(SILOS)]


class Deployed(ClientGrid):
    """The client app of a deployment at three silos, each loaded anew for every message."""

    def __init__(self, folders, settings, **more):
        asked = {"settings": tomli_w.dumps(settings), "deployed": True} | more
        super().__init__(client_app(flower.node_of), SILOS, asked, [{"silo": str(folder)} for folder in folders])
        self.replies, self.folders, self.killed = [], folders, None

    def _deliver(self, messages, timeout):
        for reply in super()._deliver(messages, timeout):
            self.replies.append(reply)
            if not reply.has_error() and reply.metadata.message_type == MessageType.QUERY:
                assert (self.folders[reply.metadata.src_node_id - 1] / RUNS).read_text().endswith("}\n")
            yield reply
        if self.killed in {message.metadata.message_type for message in messages}:
            raise KeyboardInterrupt


class Together(Patient):
    """Nodes made for the configuration that the silos accept, whatever the server runs."""

    def __init__(self, folders):
        config = config_of()
        super().__init__([silo_node(config, build_problem(config), folder) for folder in folders])
        self.replies = []

    def _deliver(self, messages, timeout):
        for reply in super()._deliver(messages, timeout):
            self.replies.append(reply)
            yield reply


def lax(config, grid, claimed=True):
    """A server that checks nothing, and claims what it runs."""
    held_out = 6 if config.privacy.evaluate else 0
    strategy = make_strategy(config, build_problem(config), public_facts(config), held_out=held_out)
    if claimed:
        strategy.claim = claim_of(config, strategy.plan.guarantee)
    with suppress(UserdpError):
        strategy.start(grid, roster_timeout=0.0)
    return strategy.result


def entries(folder):
    return [json.loads(line) for line in (folder / RUNS).read_text().splitlines()] if (folder / RUNS).exists() else []


def nothing_left(folders, grid):
    assert grid.replies
    assert all(reply.has_error() for reply in grid.replies)
    assert not any((folder / RUNS).exists() for folder in folders)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", STRANGERS.values(), ids=STRANGERS)
def test_a_silo_of_people_refuses_a_run_that_is_not_what_its_holder_accepts(folders, settings):
    """Twice: by the configuration that the silo is given, and by what the server says of its run."""
    config = parse_config(settings)
    for grid in (Deployed(folders, settings), Together(folders)):
        lax(config, grid)
        nothing_left(folders, grid)
    with pytest.raises(BadInput, match="this run is refused: "):
        silo_node(config, build_problem(config), folders[0])


@pytest.mark.parametrize("name", ["made-up users, seeded", "made-up users, without privacy"])
def test_a_deployment_of_made_up_users_trains_on_nobody_and_charges_nobody(folders, tmp_path, name, accounts):
    """The whole of it, by the server app: it used to train on real people with noise that anybody can remove."""
    grid = Deployed(folders, STRANGERS[name])
    context = SimpleNamespace(run_config=grid._run_config | {"output": str(tmp_path / "run")})
    with pytest.raises(UserdpError):
        flower.main(grid, context)
    nothing_left(folders, grid)


@pytest.mark.parametrize("grid_of", [lambda folders: Deployed(folders, RAW), Together], ids=["apps", "together"])
def test_a_server_that_claims_nothing_is_refused(folders, grid_of):
    grid = grid_of(folders)
    assert lax(config_of(), grid, claimed=False).rounds == []
    nothing_left(folders, grid)


def test_a_simulations_server_and_its_reference_get_nothing(folders, tmp_path):
    """Without `deployed` a server claims nothing, and trains the reference as well."""
    grid = Together(folders)
    with pytest.raises(UserdpError):
        lax_run(config_of(privacy={"account": None}), grid, tmp_path)
    nothing_left(folders, grid)


def lax_run(config, grid, tmp_path, **how):
    facts = SimpleNamespace(users=PEOPLE)
    datasets = SimpleNamespace(train=None, test=None, report=None, users=facts)
    return run(config, grid=grid, datasets=datasets, directory=tmp_path / "run", report=False, **how)


CLAIM = Claim("dp_fed_sgd", "secure", "server", "user", "replace_one", 1.0, 1e-3, digest(config_of()), "a" * 32)


def door_of(folder):
    return PolicyDoor(folder, CLAIM.declarations)


@pytest.mark.parametrize(
    "changes",
    [
        {"declarations": "other"},
        {"declarations": ""},
        {"noise": "seeded"},
        {"noise": "none"},
        {"unit": "sample"},
        {"unit": "window"},
        {"trust": "anybody"},
        {"epsilon": 1.001},
        {"epsilon": float("inf")},
        {"epsilon": float("nan")},
        {"epsilon": -1.0},
        {"delta": 1.1e-3},
        {"delta": float("nan")},
        {"delta": -1e-3},
    ],
    ids=str,
)
def test_each_part_of_a_claim_is_checked(folders, changes):
    with pytest.raises(Refused):
        door_of(folders[0]).admit(replace(CLAIM, **changes))
    assert not (folders[0] / RUNS).exists()
    door_of(folders[0]).admit(CLAIM)


@pytest.mark.usefixtures("flower_identity")
def test_a_claim_of_another_form_is_none(folders):
    (node, *_) = nodes(folders)
    whole = dict(CLAIM.record())
    for broken in (
        {name: value for name, value in whole.items() if name != "unit"},
        whole | {"further": 1.0},
        whole | {"epsilon": "1.0"},
        whole | {"epsilon": True},
        whole | {"run": b"a"},
        whole | {"strategy": "a" * 201},
        whole | {"strategy": "\x1b[2Jdp_fed_sgd"},
        whole | {"run": "a\nb"},
    ):
        content = roster_question(b"s" * 16, counts=True)
        content["claim"] = ConfigRecord(broken)
        with pytest.raises(Refused, match="does not say what its run promises"):
            answer_message(node, Message(content, 1, MessageType.QUERY))
    assert not (folders[0] / RUNS).exists()
    assert "strategy" not in (folders[0] / REFUSALS).read_text()


def nodes(folders):
    config = config_of()
    return [silo_node(config, build_problem(config), folder) for folder in folders]


# Messages of an admitted run ------------------------------------------------------------------------------------------


def question(computation, users=(0, 1, 2, 3), kind=MessageType.TRAIN):
    return Message(content_of(np.zeros(1), np.array(users), computation), 1, kind)


def admitted(folder, claim=CLAIM):
    config = config_of()
    node = silo_node(config, build_problem(config), folder)
    asked = roster_question(b"s" * 16, counts=claim.trust == "server", claim=claim)
    reply = answer_message(node, Message(asked, 1, MessageType.QUERY))
    assert len(reply.content["roster"]["users"].numpy()) == PEOPLE // SILOS
    return node


GOOD = Computation("user_gradient", "sum", 1.0, separate=True)
MASKED = replace(GOOD, masked=MaskedSum(IntegerGrid(-40), 1.0, keys=(bytes(32), bytes(32))))


@pytest.mark.usefixtures("flower_identity")
def test_where_only_sums_are_seen_every_value_is_masked_and_loud_enough(folders):
    masked = replace(CLAIM, trust="sum")
    node = admitted(folders[0], masked)
    with pytest.raises(Refused, match="asks for values without a mask"):
        answer_message(node, question(GOOD))
    (folders[1] / POLICY).write_text((folders[1] / POLICY).read_text() + "[sum]\nleast_noise = 0.6\n")
    node = admitted(folders[1], masked)
    for deviation in (1.19, float("nan")):  # one person moves the sum by 2
        faint = replace(MASKED, masked=replace(MASKED.masked, deviation=deviation))
        with pytest.raises(Refused, match=r"below \[sum\] least_noise = 0.6"):
            answer_message(node, question(faint, users=(4, 5, 6, 7)))
    for weight, deviation in ((1.0, 12.0), (0.5, 6.0), (-0.5, 6.0)):  # the number moves by 20, times its weight
        weighted = replace(MASKED.masked, weight=weight, deviation=deviation)
        faint = replace(GOOD, statistic="log_size", masked=weighted)
        with pytest.raises(Refused, match=r"below \[sum\] least_noise = 0.6"):
            answer_message(node, question(faint, users=(4, 5, 6, 7)))
    loud = replace(MASKED, masked=replace(MASKED.masked, deviation=1.21))
    with pytest.raises(BadInput, match="key") as error:  # past the door: its key is not among those of the sum
        answer_message(node, question(loud, users=(4, 5, 6, 7)))
    assert not isinstance(error.value, Refused)


@pytest.mark.usefixtures("flower_identity")
def test_noise_is_measured_by_all_that_a_person_moves(folders):
    """The number beside the vector, too, at its weight within the sum."""
    (folders[0] / POLICY).write_text((folders[0] / POLICY).read_text() + "[sum]\nleast_noise = 0.6\n")
    node = admitted(folders[0], replace(CLAIM, trust="sum"))
    for weight in (0.5, 10.0):
        beside = replace(MASKED, statistic="unclipped", masked=replace(MASKED.masked, weight=weight))
        moved = beside.sensitivity("replace_one", weight=weight)
        for share, error in ((0.59, Refused), (0.61, BadInput)):
            asked = replace(beside, masked=replace(beside.masked, deviation=share * moved))
            with pytest.raises(BadInput) as told:
                answer_message(node, question(asked))
            assert type(told.value) is error


@pytest.mark.usefixtures("flower_identity")
def test_a_folder_that_is_made_again_answers_no_run_that_was_admitted_before(folders):
    """Flower loads the app anew for every message, and hands on the claim that was admitted."""
    node = admitted(folders[0])
    node.door.declarations = "of other columns"
    with pytest.raises(Refused, match="declares other columns"):
        answer_message(node, question(GOOD))


# The record -----------------------------------------------------------------------------------------------------------


def deployed(grid, directory, **how):
    return run(config_of(), grid=grid, directory=directory, report=False, deployed=True, **how)


def test_a_run_is_entered_once_before_its_first_answer_and_stays_one_when_it_is_resumed(folders, tmp_path, accounts):
    """`Deployed` looks for the line at the first answer. A run of another folder is another one, beyond the total."""
    Accounts(accounts).create("clinic", Total(10.0, 1e-2))
    grid = Deployed(folders, RAW)
    grid.killed = MessageType.TRAIN
    with pytest.raises(KeyboardInterrupt):
        deployed(grid, tmp_path / "first", checkpoint=True)
    once = [entries(folder) for folder in folders]
    assert [len(found) for found in once] == [1, 1, 1]
    done = deployed(Deployed(folders, RAW), tmp_path / "first", checkpoint=True, resume=True)
    assert [entries(folder) for folder in folders] == once
    (entry,) = once[0]
    assert (entry["strategy"], entry["noise"], entry["unit"]) == ("dp_fed_sgd", "secure", "user")
    assert entry["epsilon"] == done.guarantee.epsilon == pytest.approx(1.0)
    assert (
        (entry["delta"], entry["relation"]) == (done.guarantee.delta, done.guarantee.relation) == (1e-3, "replace_one")
    )
    grid = Deployed(folders, RAW)
    with pytest.raises(UserdpError):
        deployed(grid, tmp_path / "second")
    assert all(reply.has_error() for reply in grid.replies)
    assert [entries(folder) for folder in folders] == once


def test_what_a_server_claims_is_all_that_its_run_promises():
    """A run that promises nothing claims an infinite epsilon: otherwise it would be free."""
    free = parse_config(seeded() | {"strategy": {"kind": "non_private"}})
    for promise in (None, make_strategy(free, build_problem(free), public_facts(free)).plan.guarantee):
        assert claim_of(free, promise).epsilon == float("inf")
    config = config_of(output={"compare_with_initial": True, "anyway": True})
    promise = make_strategy(config, build_problem(config), public_facts(config)).plan.guarantee
    asked, claimed = claim_of(config), claim_of(config, promise)
    assert (claimed.epsilon, claimed.delta) == (promise.epsilon, promise.delta)
    assert claimed.epsilon == pytest.approx(1.0)
    assert claimed.delta == pytest.approx(1e-3)
    for one in (asked, claimed):
        assert (one.noise, one.trust, one.unit, one.strategy) == ("secure", "server", "user", "dp_fed_sgd")
    assert (asked.epsilon, asked.delta) == (1.0, 1e-3)
    assert claimed.relation == promise.relation


def test_a_total_of_three_runs_holds_three(folders):
    for folder in folders:
        (folder / POLICY).write_text("[run]\nepsilon = 1.0\ndelta = 1e-3\n[total]\nepsilon = 3.0\ndelta = 3e-3\n")
    grid = Together(folders)
    for number in range(3):
        assert len(lax(config_of(), grid).rounds) == 2
        assert [len(entries(folder)) for folder in folders] == [number + 1] * 3
    assert lax(config_of(), grid).rounds == []
    assert [len(entries(folder)) for folder in folders] == [3] * 3
    with pytest.raises(Refused, match=r"on top of 3, 0.003 in runs.jsonl exceeds \[total\] in policy.toml: 3, 0.003"):
        door_of(folders[0]).admit(CLAIM)


@pytest.mark.parametrize("part", ["epsilon", "delta"])
def test_one_run_is_held_to_what_one_run_may_cost_however_much_is_left(folders, part):
    (folders[0] / POLICY).write_text("[run]\nepsilon = 1.0\ndelta = 1e-3\n[total]\nepsilon = 9.0\ndelta = 9e-3\n")
    with pytest.raises(Refused, match=r"\[run\] in policy.toml accepts 1, 0.001 at most"):
        door_of(folders[0]).admit(replace(CLAIM, **{part: 1.1 * getattr(CLAIM, part)}))
    assert entries(folders[0]) == []
    door_of(folders[0]).admit(CLAIM)


def test_deltas_add_up_as_epsilons_do(folders):
    (folders[0] / POLICY).write_text("[run]\nepsilon = 1.0\ndelta = 1e-3\n[total]\nepsilon = 9.0\ndelta = 2e-3\n")
    door = door_of(folders[0])
    for name in "ab":
        door.admit(replace(CLAIM, run=name))
    with pytest.raises(Refused, match=r"exceeds \[total\]"):
        door.admit(replace(CLAIM, run="c"))
    door.admit(replace(CLAIM, run="c", delta=0.0))


def test_what_has_the_name_of_another_run_is_refused(folders):
    door = door_of(folders[0])
    half = replace(CLAIM, epsilon=0.5)
    door.admit(half)
    for other in (replace(half, epsilon=0.4), replace(half, strategy="auto"), CLAIM):
        with pytest.raises(Refused, match="name of another one"):
            door.admit(other)
    door.admit(half)
    assert len(entries(folders[0])) == 1


def test_a_line_that_was_cut_off_admitted_nothing_and_a_broken_one_admits_nothing_more(folders):
    path, door = folders[0] / RUNS, door_of(folders[0])
    (folders[0] / POLICY).write_text("[run]\nepsilon = 1.0\ndelta = 1e-3\n[total]\nepsilon = 2.0\ndelta = 1e-2\n")
    path.write_text('{"strategy": "dp_fe')
    door.admit(CLAIM)
    assert [entry["run"] for entry in entries(folders[0])] == [CLAIM.run]
    whole = path.read_text()
    path.write_text(whole + whole[:40])
    door.admit(replace(CLAIM, run="b"))
    assert [entry["run"] for entry in entries(folders[0])] == [CLAIM.run, "b"]
    for broken in ("\n", "{}\n", "[]\n", "3\n", whole.replace("1.0", '"1.0"'), "\x00\n"):
        path.write_text(broken + whole)
        with pytest.raises(Refused, match="has a line that is no run"):
            door.admit(replace(CLAIM, run="c", epsilon=0.1))


def test_a_record_is_read_under_a_lock_and_on_the_disk_before_a_run_is_admitted(folders, monkeypatch):
    """Nobody else may read it before the line is there, nor may the power end between the line and an answer."""
    events, path = [], folders[0] / RUNS

    def noted(owner, name, told):
        real = getattr(owner, name)

        def called(*given):
            events.append(told(*given))
            return real(*given)

        monkeypatch.setattr(owner, name, called)

    noted(fcntl, "flock", lambda file, kind: ("locked", kind))
    noted(os, "pread", lambda *given: "read")
    noted(os, "write", lambda *given: "written")
    noted(os, "fsync", lambda handle: "file" if os.path.samestat(os.fstat(handle), path.stat()) else "folder")
    noted(os, "close", lambda handle: "closed")
    door_of(folders[0]).admit(CLAIM)
    assert events == [("locked", fcntl.LOCK_EX), "read", "written", "file", "folder", "closed", "closed"]
    assert oct(path.stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_record_that_did_not_reach_the_disk_admits_nothing(folders, monkeypatch, failing):
    def full(handle, content=b""):
        if failing == "write" and content:
            return len(content) - 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, full)
        with pytest.raises(BadInput, match="no run is accepted without a record of it"):
            door_of(folders[0]).admit(CLAIM)


def test_a_record_that_cannot_be_kept_admits_nothing(folders):
    (folders[0] / RUNS).mkdir()
    with pytest.raises(BadInput, match="no run is accepted without a record of it"):
        door_of(folders[0]).admit(CLAIM)


def test_a_run_waits_while_another_one_is_added_up(folders):
    """Both fit alone, and not together: the second one sees what the first one wrote under the lock."""
    path, refused = folders[0] / RUNS, []

    def second():
        try:
            door_of(folders[0]).admit(replace(CLAIM, run="second"))
        except Refused as error:
            refused.append(str(error))

    door_of(folders[0]).admit(replace(CLAIM, epsilon=0.0, delta=0.0, run="none"))
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        late = threading.Thread(target=second)
        late.start()
        late.join(0.2)
        assert late.is_alive()
        with path.open("ab") as first:
            first.write(path.read_bytes().replace(b'"epsilon": 0.0', b'"epsilon": 1.0').replace(b'"none"', b'"first"'))
    late.join()
    assert len(refused) == 1
    assert [entry["run"] for entry in entries(folders[0])] == ["none", "first"]


# The policy -----------------------------------------------------------------------------------------------------------


def test_prepare_writes_what_the_file_asks_for_once_and_never_again(prepared, tmp_path):
    policy = read_policy(prepared / "silo-0")
    assert policy.run == policy.total
    assert (policy.run.epsilon, policy.run.delta) == (1.0, 1e-3)
    assert (policy.trust, policy.strategies, policy.sum.least_noise) == (["server", "sum"], None, 0.0)
    path = prepared / "table.csv"
    own = config_of(data={"path": str(path), "users": 4}, privacy={"epsilon": 50.0})
    prepare(own, tmp_path / "silo", 0)
    assert read_policy(tmp_path / "silo").run.epsilon == 10.0
    (tmp_path / "silo" / POLICY).write_text("mine")
    (tmp_path / "silo" / RUNS).write_text("spent")
    prepare(own, tmp_path / "silo", 0)
    assert ((tmp_path / "silo" / POLICY).read_text(), (tmp_path / "silo" / RUNS).read_text()) == ("mine", "spent")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "is missing or cannot be read"),
        ("epsilon = ", "cannot be read"),
        ("", "run"),
        ("[run]\nepsilon = 1\ndelta = 1e-3\n[total]\nepsilon = 1\ndelta = 1e-3\n[totals]\nepsilon = 9", "totals"),
        ("[run]\nepsilon = inf\ndelta = 1e-3\n[total]\nepsilon = 1\ndelta = 1e-3", "run.epsilon"),
        ("[run]\nepsilon = 1\ndelta = 1\n[total]\nepsilon = 1\ndelta = 1e-3", "run.delta"),
        ("noise = 'seeded'\n[run]\nepsilon = 1\ndelta = 1e-3\n[total]\nepsilon = 1\ndelta = 1e-3", "noise"),
    ],
)
def test_a_policy_that_cannot_be_read_accepts_nothing(folders, text, told):
    if text is None:
        (folders[0] / POLICY).unlink()
    else:
        (folders[0] / POLICY).write_text(text)
    for refused in (lambda: door_of(folders[0]).admit(CLAIM), lambda: nodes(folders[:1])):
        with pytest.raises(Refused, match=told):
            refused()


def test_a_holder_may_accept_some_strategies_and_one_trust_and_change_that_while_a_run_is_under_way(folders):
    text = (folders[0] / POLICY).read_text()
    node = admitted(folders[0])
    for line, told in (('strategies = ["auto"]', "accepts .'auto'."), ('trust = ["sum"]', "accepts .'sum'.")):
        (folders[0] / POLICY).write_text(f"{line}\n{text}")
        for refused in (lambda: door_of(folders[0]).admit(CLAIM), lambda: answer_message(node, question(GOOD))):
            with pytest.raises(Refused, match=told):
                refused()


def test_without_a_policy_a_run_under_way_gets_no_share_of_a_secret_either(folders):
    node = admitted(folders[0])
    (folders[0] / POLICY).unlink()
    keys = tuple(bytes([number] * 32) for number in range(3))
    for asked in (sharing_question(Sharing(keys, 2, 1, 2)), question(GOOD).content):
        with pytest.raises(Refused, match="is missing or cannot be read"):
            answer_message(node, Message(asked, 1, MessageType.TRAIN))


NOT_ABOUT_ROWS = {"path", "user", "users", "all_users", "samples", "min_samples", "max_samples", "memory"} | {
    *("test_fraction", "split_column", "split_test", "csv")
}


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
def test_every_declaration_about_rows_is_one_that_a_folder_was_made_with():
    config = config_of()
    for name in type(config.data).model_fields:
        changed = config.model_copy(update={"data": config.data.model_copy(update={name: ["another"]})})
        assert (digest(changed) == digest(config)) == (name in NOT_ABOUT_ROWS), name
    levels = {"y": ["a", "b"], "z": ["p", "q", "r"]}
    rows = [config_of(data={"categorical": {name: levels[name] for name in names}}) for names in ("yz", "zy")]
    assert digest(rows[0]) != digest(rows[1])  # a row's entries have that order


# What a folder was made for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [{"made_for": None}, {"declarations": None}, {"made_for": np.array("anybody")}])
def test_a_folder_that_does_not_say_what_it_was_made_for_is_of_nobody(folders, lost):
    altered_file(folders[0], **lost)
    with pytest.raises(BadInput, match=r"does not say whether it holds people.* make it again"):
        nodes(folders[:1])


def test_a_folder_of_made_up_users_has_no_door_and_keeps_no_record(tmp_path):
    config = parse_config(seeded() | {"data": MADE_UP})
    prepare(config, tmp_path / "silo", 0)
    node = silo_node(config, build_problem(config), tmp_path / "silo")
    assert node.door is None
    assert isinstance(lax(config, LocalGrid([node])), PrivateResult)
    assert [path.name for path in (tmp_path / "silo").iterdir()] == [FILE]


def test_a_node_of_a_deployment_has_a_silo(prepared):
    """A partition's node would read the table that the configuration names."""
    settings = tomli_w.dumps(raw(data={"path": str(prepared / "table.csv"), "users": 4}))
    for deployed, silent in ((True, True), (False, False)):
        grid = ClientGrid(client_app(flower.node_of), 1, {"settings": settings, "deployed": deployed})
        asked = Message(roster_question(b"s" * 16, counts=True), 1, MessageType.QUERY)
        (reply,) = grid.send_and_receive([asked])
        assert reply.has_error() == silent
