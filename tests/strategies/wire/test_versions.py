"""Servers and nodes of different versions: they work together, or the run is refused before anybody is asked."""

import os
import subprocess
import sys
from contextlib import contextmanager
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np
import pytest
import version_peer
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord
from helpers import content_of, federation_of, local_grid
from helpers_flower import ROOT

from docs.making.message_fields import MESSAGE_FIELDS
from simulations.engines.grids import InMachineGrid
from strategies import DPFedSGD, PublicFacts
from strategies.wire import asking as asking_module
from strategies.wire.protocol import answer_message, read_roster, roster_content, roster_question
from strategies.wire.questions import FIRST, PROTOCOL, Reader
from strategies.wire.roster import Roster
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Quadratic

FIRST_VERSION = "5d22771d"
"""The commit whose nodes and servers name no version."""


# One federation of two versions ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first_version(tmp_path_factory):
    """The folder of the three packages as they were."""
    folder = tmp_path_factory.mktemp("first")
    archive = folder / "packages.tar"
    command = ["git", "archive", "-o", str(archive), FIRST_VERSION, "userdp", "strategies", "simulations"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the history of this checkout does not reach back to {FIRST_VERSION}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder


@contextmanager
def peer(packages, part, kind):
    """The other process, which plays its part with the userdp of a folder; yields the connection to it."""
    with Listener(family="AF_UNIX") as listener:
        script = str(Path(version_peer.__file__))
        environment = os.environ | {"PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"}
        process = subprocess.Popen([sys.executable, script, part, listener.address, kind], env=environment)
        try:
            with listener.accept() as connection:
                yield connection
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", version_peer.KINDS)
def test_a_federation_of_two_versions_trains_the_model_of_one(first_version, kind):
    """Both ways round: the former version's silo here, and its server there."""
    with peer(ROOT, "node", kind) as connection:
        alone = version_peer.serve(connection, kind)
    with peer(first_version, "node", kind) as connection:
        assert version_peer.serve(connection, kind) == alone
    with peer(first_version, "server", kind) as connection:
        version_peer.answer(connection)
        assert connection.recv() == alone


# Who speaks which version -------------------------------------------------------------------------------------------


class Versions(InMachineGrid):
    """Node i holds user i - 1 and names the i-th of these versions, or none; counts who is asked what."""

    def __init__(self, *versions):
        super().__init__(len(versions))
        self.versions, self.asked = versions, []

    def _deliver(self, messages, timeout):
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(message.metadata.message_type)
            content = roster_content(np.array([node - 1]), 0, versioned=False)
            if (version := self.versions[node - 1]) is not None:
                content["facts"]["protocol"] = version
            yield Message(content, reply_to=message)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(asking_module, "_POLL_SECONDS", 0.001)


@pytest.mark.parametrize("versions", [(None, FIRST, PROTOCOL, PROTOCOL + 7)], ids=repr)
def test_nodes_of_all_versions_are_in_one_run_that_needs_nothing_newer(versions):
    roster = Roster(len(versions))
    roster.gather(Versions(*versions), timeout=0)
    assert roster.absent == 0


@pytest.mark.parametrize("old", [None, FIRST, 2])
def test_an_older_node_ends_a_run_that_needs_a_newer_one_before_any_training(monkeypatch, old):
    strategy = DPFedSGD(rounds=1, clip_norm=1.0).strategy(
        Quadratic(1, 1.0, 1.0), PublicFacts(3), Privacy(1.0, 1e-3), seed=0
    )
    monkeypatch.setattr(strategy, "about", strategy.about.model_copy(update={"protocol": 3}), raising=False)
    grid = Versions(3, old, 4)
    with pytest.raises(RunFailed, match=rf"node 2 speaks version {old or 1} .* needs 3: upgrade userdp"):
        strategy.start(grid, roster_timeout=0.0)
    assert set(grid.asked) == {MessageType.QUERY}


@pytest.mark.parametrize("version", [-1, 1.5, 2**40, [1]], ids=repr)
def test_a_node_with_an_impossible_version_counts_as_silent(version):
    roster = Roster(2)
    roster.gather(Versions(PROTOCOL, version), timeout=0)
    assert roster.absent == 1


def test_a_node_names_its_version_to_servers_that_name_theirs_and_to_no_others():
    node, ask = Node(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((2, 1))), np.arange(2)), MessageType.QUERY
    local_grid(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((1, 1)))).close()  # messages need an identity
    new, old = roster_question(b"s" * 16, counts=True), roster_question(b"s" * 16, counts=True)
    old["question"] = ConfigRecord({name: value for name, value in new["question"].items() if name != "protocol"})
    assert read_roster(answer_message(node, Message(new, 1, ask)), counts=True).protocol == PROTOCOL
    reply = answer_message(node, Message(old, 1, ask))
    assert reply.content["facts"] == MetricRecord({"clipped_samples": 0})
    assert read_roster(reply, counts=True).protocol == FIRST


# What a newer server asks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["record", "computation"])
def test_a_node_refuses_what_it_does_not_know(place):
    """It would compute something else than the server accounts for: without a clip, for example."""
    local_grid(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((1, 1)))).close()
    content = content_of(np.zeros(1), np.arange(1), Computation("user_gradient", "sum", 1.0))
    assert Reader().request(Message(content, 1, MessageType.TRAIN))[0].tolist() == [0]
    if place == "record":
        content["smooth_clip"] = ConfigRecord({"width": 1.0})
    else:
        content["computation"]["smooth_clip"] = 1.0
    with pytest.raises(BadInput, match=r"asks for smooth_clip, which version \d+ .* upgrade userdp at this node"):
        Reader().request(Message(content, 1, MessageType.TRAIN))


FIRST_FIELDS = """
    arrays. centre.x cohort.users coins.keys coins.most coins.rate computation.clip_norm computation.l1_norm
    computation.lengths computation.name computation.noise.deviation computation.noise.round computation.noise.seed
    computation.parameter. computation.reduce computation.separate computation.statistic masked.deviation
    masked.exponent masked.keys masked.round masked.seed masked.weight model.x partition.count partition.groups
    partition.slots
"""


SHARING_FIELDS = """
    sharing.keys sharing.lost sharing.rounds sharing.threshold survivors.keys survivors.round survivors.sealed
    survivors.silent
"""


def test_requests_have_the_fields_that_the_first_version_knows_and_those_of_secrets():
    """A new field needs a new `PROTOCOL`, which the strategies that send it name in their `About`."""
    sent = {one.name for one in MESSAGE_FIELDS if (one.message, one.sender) == ("train", "server")}
    # Drop-ins alone have users counted, whose clients refuse a question that they do not know by its name.
    assert sent == {*FIRST_FIELDS.split(), *SHARING_FIELDS.split(), "computation.counted"}
