"""The faults of the drill: what strikes, a sign that it has, what mends it, and a sign that all is well again."""

from collections.abc import Callable
from dataclasses import dataclass

from drill_federation import RESUMED, Federation
from helpers_containers import PROJECT

Sign = Callable[[Federation], Callable[[], bool]]
"""Looks at the federation now, and returns whether something has happened since."""
HOUR = "3600"
KILL = "kill --signal KILL"
FILL = "cat /dev/zero > /results/.full"
NEW_KEY = """
from pathlib import Path
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec
key, form = ec.generate_private_key(ec.SECP384R1()), s.PrivateFormat.OpenSSH
Path("/keys/node-3/node.key").write_bytes(key.private_bytes(s.Encoding.PEM, form, s.NoEncryption()))
public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
Path("/keys/superlink/node-3.pub").write_bytes(public)
"""


def rounds(number: int, node: str = "node-1") -> Sign:
    """So many rounds begin at a silo that the fault leaves alone: of two, one is whole."""

    def look(federation: Federation) -> Callable[[], bool]:
        before = federation.rounds(node)
        return lambda: federation.rounds(node) >= before + number

    return look


def answers(node: str) -> Sign:
    def look(federation: Federation) -> Callable[[], bool]:
        before = federation.answers(node)
        return lambda: federation.answers(node) > before

    return look


def says(service: str, words: str) -> Sign:
    def look(federation: Federation) -> Callable[[], bool]:
        before = federation.log(service).count(words)
        return lambda: federation.log(service).count(words) > before

    return look


def page_answers(federation: Federation) -> Callable[[], bool]:
    return lambda: "<h1>Federation</h1>" in federation.ask("/", check=False)


@dataclass(frozen=True)
class Fault:
    name: str
    done: str  # for the table
    strike: Callable[[Federation], object]
    shows: Sign
    mend: Callable[[Federation], object]
    well: Sign
    costs_users: bool = False  # a silo is missing in rounds of the run


def _tell(kind: str) -> Callable[[Federation], object]:
    return lambda federation: (federation.home / "lies" / "kind").write_text(kind)


def _be_honest(federation: Federation) -> None:
    (federation.home / "lies" / "kind").unlink()


def _set(clock: str, offset: str) -> Callable[[Federation], object]:
    return lambda federation: (federation.home / "clocks" / clock).write_text(offset)


def _network(verb: str) -> Callable[[Federation], object]:
    return lambda federation: federation.engine(f"network {verb} {PROJECT}_link-2", "node-2")


def _new_key(federation: Federation) -> None:
    federation.inside("python", "-c", NEW_KEY, service="keys")
    federation.engine("restart --time 2", "node-3")


def _forget_everything(federation: Federation) -> None:
    federation.keep_run_logs()
    federation.engine(KILL, "superlink")


STOPS_THE_RUN = says("serve", RESUMED)
FAULTS = (
    Fault(
        "a silo is killed",
        "`kill -9` of its SuperNode and its app",
        lambda federation: federation.engine(KILL, "node-1", "app-1"),
        rounds(2, "node-2"),
        lambda federation: federation.engine("start", "node-1", "app-1"),
        answers("node-1"),
        costs_users=True,
    ),
    Fault(
        "a silo's network is cut",
        "its SuperNode is disconnected from the gate's network",
        _network("disconnect"),
        rounds(2),
        _network("connect"),
        answers("node-2"),
        costs_users=True,
    ),
    Fault(
        "`userdp serve` is killed",
        "`kill -9`, and nobody serves for two rounds",
        lambda federation: federation.engine(KILL, "serve"),
        rounds(2),
        lambda federation: federation.engine("start", "serve"),
        page_answers,
    ),
    Fault(
        "the disk is full",
        "the results' disk is filled to the last byte",
        lambda federation: federation.inside("sh", "-c", FILL, check=False),
        STOPS_THE_RUN,
        lambda federation: federation.inside("rm", "/results/.full"),
        answers("node-1"),
    ),
    Fault(
        "a silo's clock is an hour ahead",
        "the clocks of its SuperNode and its app are set",
        _set("silo", HOUR),
        rounds(2),
        _set("silo", "0"),
        answers("node-2"),
    ),
    Fault(
        "the coordinator's process is killed",
        "`kill -9` of the ServerApp, amid a round",
        lambda federation: federation.engine(KILL, "coordinator-app"),
        STOPS_THE_RUN,
        lambda federation: federation.engine("start", "coordinator-app"),
        answers("node-1"),
    ),
    Fault(
        "a silo sends rubbish",
        "its app answers NaN, wrong shapes, and for other users",
        _tell("nan,shape,more"),
        rounds(3),
        _be_honest,
        answers("node-3"),
        costs_users=True,
    ),
    Fault(
        "a silo's key is revoked",
        "`node-3.pub` leaves the SuperLink's folder; the silo returns with a new key",
        lambda federation: federation.inside("rm", "/keys/superlink/node-3.pub", service="keys"),
        rounds(2),
        _new_key,
        answers("node-3"),
        costs_users=True,
    ),
    Fault(
        "the coordinator's clock is an hour ahead",
        "the clocks of `userdp serve` and of the ServerApp are set",
        _set("coordinator", HOUR),
        says("superlink", "SuperExec authentication failed"),
        _set("coordinator", "0"),
        answers("node-1"),
    ),
    Fault(
        "the database is killed",
        "`kill -9` of PostgreSQL",
        lambda federation: federation.engine(KILL, "accounts"),
        says("serve", "nothing moves"),
        lambda federation: federation.engine("start", "accounts"),
        answers("node-1"),
    ),
    Fault(
        "the SuperLink is killed",
        "`kill -9`: its memory, with all messages, is gone",
        _forget_everything,
        says("serve", "nothing moves"),
        lambda federation: federation.engine("start", "superlink"),
        answers("node-1"),
    ),
    Fault(
        "a silo has an older version",
        "its app speaks a version of the protocol that runs do not understand",
        _tell("version"),
        says("serve", "speaks version 0"),
        _be_honest,
        answers("node-3"),
    ),
)
