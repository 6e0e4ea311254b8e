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

ENDED = """
from pathlib import Path
from simulations.deployment import keys
keys.DAYS = 0
keys.renew(Path("/keys"), Path("/keys/authority"), ["gate"])
"""
CROWD = """
import socket, time
from pathlib import Path
while not Path("/tmp/enough").exists():
    crowd = []
    for _ in range(300):
        try:
            crowd.append(socket.create_connection(("gate", 8000), timeout=5))
            crowd[-1].sendall(b"half a request")
        except OSError:
            pass
    time.sleep(0.2)
"""
STRICT = "cp -p /data/policy.toml /data/.policy && sed -i 's/^epsilon = .*/epsilon = 0.1/' /data/policy.toml"
LOG = ("python", "-m", "simulations.deployment", "log", "--json")


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


def officer_sees(node: str, words: str) -> Sign:
    """The hospital's own log of what was asked of it."""
    return lambda federation: lambda: words in federation.inside(*LOG, service=node, check=False)


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


def _end_certificate(federation: Federation) -> None:
    federation.inside("python", "-c", ENDED, service="keys")
    federation.engine("restart --time 2", "node-1")  # which asks for it anew


def _renew_certificate(federation: Federation) -> None:
    renewed = ("keys", "--output", "/keys", "--authority", "/keys/authority", "--renew", "gate")
    federation.inside("python", "-m", "simulations.deployment", *renewed, service="keys")


def _crowd(federation: Federation) -> None:
    federation.containers.engine("exec", "--detach", federation.containers.container("node-1"), "python", "-c", CROWD)


def _restore_older(federation: Federation) -> None:
    """Make the database what a copy from before the last entry holds; the newest copy is kept beside it."""
    federation.inside("pg_dump", "-U", "userdp", "-Fc", "-f", "/tmp/newest", "userdp", service="accounts")
    federation.sql("delete from userdp_entries where number = (select max(number) from userdp_entries)")
    federation.engine("restart --time 2", "serve")


def _restore_newest(federation: Federation) -> None:
    again = ("pg_restore", "-U", "userdp", "-d", "userdp", "--clean", "--if-exists", "/tmp/newest")
    federation.engine("stop --time 2", "serve")
    federation.inside(*again, service="accounts")
    federation.engine("start", "serve")


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
    Fault(
        "the gate's certificate ends",
        "it is renewed beside the running gate, which nobody restarts",
        _end_certificate,
        says("gate", "server.crt ends at"),
        _renew_certificate,
        answers("node-1"),
    ),
    Fault(
        "an older copy of the database is restored",
        "the last entry is taken out of PostgreSQL, and `userdp serve` restarted; then the newest copy returns",
        _restore_older,
        says("serve", "runs without an entry"),
        _restore_newest,
        page_answers,
    ),
    Fault(
        "a crowd is at the gate",
        "300 half requests again and again, by a silo's neighbour",
        _crowd,
        rounds(2, "node-2"),
        lambda federation: federation.inside("touch", "/tmp/enough", service="node-1"),
        answers("node-1"),
    ),
    Fault(
        "a run hangs",
        "the ServerApp's container is paused",
        lambda federation: federation.engine("pause", "coordinator-app"),
        says("serve", "is stopped: it wrote nothing"),
        lambda federation: federation.engine("unpause", "coordinator-app"),
        answers("node-1"),
    ),
    Fault(
        "a hospital refuses the run",
        "its policy allows less, and its own log says so",
        lambda federation: federation.inside("sh", "-c", STRICT, service="app-2"),
        officer_sees("app-2", "[run] in policy.toml accepts 0.1"),
        lambda federation: federation.inside("mv", "/data/.policy", "/data/policy.toml", service="app-2"),
        answers("node-2"),
        costs_users=True,
    ),
)
