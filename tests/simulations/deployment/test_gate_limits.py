"""The gate under attack from peers without a key, on this machine's own sockets: a silo is served all the while."""

import socket
import ssl
import threading
import time
import tracemalloc
from base64 import b64decode, b64encode
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from helpers import PATIENCE

from simulations.deployment import gate as module
from simulations.deployment.door import HEADER, Door, Server, _Entrance
from simulations.deployment.gate import SMALL, gate
from simulations.deployment.keys import make_keys
from userdp.errors import BadInput

PRIVATE, PUBLIC = generate_key_pairs()
PATH = "/v1/fleet/push-object"
MIB = 2**20


def signed(private=PRIVATE, public=PUBLIC, at=None):
    """The headers of a SuperNode."""
    moment = at or datetime.now(UTC).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(public)).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(private, moment.encode())).decode(),
        TIMESTAMP_HEADER: moment,
    }


class Behind(httpx.AsyncBaseTransport):
    """The SuperLink: it knows one key, and counts what it gets."""

    def __init__(self):
        self.received, self.largest, self.requests = 0, 0, 0
        self.taken_back, self.refused, self.everybody = False, False, False

    async def handle_async_request(self, request):
        self.requests += 1
        async for piece in request.stream:
            self.received += len(piece)
            self.largest = max(self.largest, len(piece))
        known = b64decode(request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, "")) == public_key_to_bytes(PUBLIC)
        known = (known and not self.taken_back and not self.refused) or self.everybody
        return httpx.Response(200 if known else 401, stream=httpx.ByteStream(b"well"))


@contextmanager
def served(door, behind=None, keys=None, large=8 * MIB, anybody=False):
    """Serve a gate in a thread; provide its port."""
    client = httpx.AsyncClient(transport=behind or Behind(), base_url="http://superlink")
    server = Server(gate(client, door, large, anybody=anybody), door, "127.0.0.1", 0, keys)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server._entrance.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


def call(port, content=b"", headers=None, trusted=False):
    """The status of a request of its own connection."""
    address, more = (
        f"{'https' if trusted else 'http'}://localhost:{port}{PATH}",
        {"timeout": PATIENCE, "verify": trusted},
    )
    return httpx.post(address, content=content, headers=headers, trust_env=False, **more).status_code


@pytest.fixture(scope="module")
def standing():
    """A gate for many tests, at which nobody stays for long."""
    with served(Door(seconds=0.2)) as port:
        yield port


def raw(port, *parts):
    """Send bytes; return a connection on which nothing more is sent."""
    made = socket.create_connection(("127.0.0.1", port), PATIENCE)
    for part in parts:
        made.sendall(part)
    return made


def head(*lines, path=PATH):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: gate", *lines, "", ""]).encode()


def ended(connection):
    """The first line of the answer with which the other side ends a connection."""
    said = b""
    with suppress(ConnectionError):
        while piece := connection.recv(2**16):
            said += piece
    return said.partition(b"\r\n")[0]


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "in pieces"])
def test_large_bodies_of_strangers_are_neither_held_nor_passed_on(declared):
    behind, size = Behind(), 250 * MIB
    length = f"Content-Length: {size}" if declared else "Transfer-Encoding: chunked"
    with served(Door(), behind) as port:
        assert call(port, headers=signed()) == 200
        tracemalloc.start()
        answers = []
        for who in ({}, signed(*generate_key_pairs())):
            for _ in range(2):
                with closing(raw(port, head(length, *(f"{n}: {v}" for n, v in who.items())))) as connection:
                    with suppress(ConnectionError):
                        for _ in range(32 * 16):
                            connection.sendall((b"" if declared else b"10000\r\n") + b"x" * 2**16 + b"\r\n")
                    answers.append(ended(connection))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert all(said == b"" or b" 413 " in said or b" 503 " in said for said in answers)
        assert call(port, headers=signed()) == 200
    assert peak < 16 * MIB
    assert behind.received <= SMALL


def test_where_nobody_has_a_key_everybody_is_a_silo_up_to_the_limit():
    with served(Door(), large=MIB, anybody=True) as port:
        assert call(port, b"x" * MIB, {FLEET_HTTP_PUBLIC_KEY_HEADER: signed()[FLEET_HTTP_PUBLIC_KEY_HEADER]}) == 200
        assert call(port, b"x" * (MIB + 1)) == 413


def test_a_known_silos_body_is_passed_on_in_pieces_up_to_the_limit():
    behind = Behind()
    with served(Door(), behind, large=8 * MIB) as port:
        large = b"x" * (8 * MIB)
        # Who is not known yet is to ask again; with another's key, or a signature of another time, nobody is known.
        assert call(port, large, signed()) == 503
        assert call(port, large) == 413
        assert call(port, headers=signed()) == 200
        assert call(port, large, signed()) == 200
        assert call(port, large, signed(generate_key_pairs()[0])) == 413
        assert call(port, large, signed() | {TIMESTAMP_HEADER: datetime.now(UTC).isoformat()}) == 413
        for minutes in (-60, 60):  # nor with a signature that was seen before, or is for later
            moment = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
            assert call(port, large, signed(at=moment)) == 413
        assert call(port, large + b"x", signed()) == 413
        assert call(port, iter([large, b"x"]), signed()) == 413
        # A stranger who is refused in a silo's name does not make the gate forget it.
        assert call(port, headers={FLEET_HTTP_PUBLIC_KEY_HEADER: signed()[FLEET_HTTP_PUBLIC_KEY_HEADER]}) == 200
        assert call(port, large, signed()) == 200
    assert behind.largest <= MIB


def test_a_key_in_another_spelling_is_the_same_key():
    """Else a silo would keep connections for each of its four spellings, which are all that there are."""
    plain = signed()[FLEET_HTTP_PUBLIC_KEY_HEADER]
    spelled = [plain.removesuffix("o=") + last + "=" for last in "opqr"]
    assert {b64decode(one, validate=True) for one in spelled} == {public_key_to_bytes(PUBLIC)}
    with served(door := Door()) as port, httpx.Client(base_url=f"http://localhost:{port}", trust_env=False) as silo:
        for one in spelled:
            assert silo.post(PATH, headers=signed() | {FLEET_HTTP_PUBLIC_KEY_HEADER: one}).status_code == 200
            assert {guest.who for guest in door._guests.values()} <= {b"", public_key_to_bytes(PUBLIC)}
        assert any(guest.trusted for guest in door._guests.values())


def test_a_key_that_was_taken_back_is_a_strangers_again():
    behind = Behind()
    with served(Door(), behind) as port:
        assert call(port, headers=signed()) == 200
        behind.taken_back = True
        assert call(port, headers=signed()) == 401
        assert call(port, b"x" * MIB, signed()) == 503
    assert behind.received == 0


def test_only_keys_that_the_superlink_answered_last_are_known(monkeypatch):
    """One that it refused is a stranger's, one that was taken back is again, and few are kept."""
    behind, large = Behind(), b"x" * (2 * SMALL)
    other = generate_key_pairs()
    with served(Door(), behind) as port:
        assert call(port, headers=signed(*other)) == 401
        assert call(port, large, signed(*other)) == 503  # not known
        assert call(port, headers=signed()) == 200
        assert call(port, large, signed()) == 200
        behind.refused = True
        assert call(port, headers=signed()) == 401
        behind.refused = False
        assert call(port, large, signed()) == 503
        monkeypatch.setattr(module, "_MOST_KEYS", 1)
        behind.everybody = True
        for who in (signed(), signed(*other)):
            assert call(port, headers=who) == 200
        assert call(port, large, signed(*other)) == 200
        assert call(port, large, signed()) == 503


@pytest.mark.parametrize(
    "line",
    [b"X: " + b"x" * 2**20, b"GET /" + b"x" * 2**24 + b" HTTP/1.1", b"x: y\r\n" * 2**16],
    ids=["a long header", "a long path", "many headers"],
)
def test_large_headers_are_refused_before_they_are_held(line, standing):
    tracemalloc.start()
    start = b"" if line.startswith(b"GET") else b"POST / HTTP/1.1\r\nHost: gate\r\n"
    with closing(raw(standing)) as connection:
        with suppress(ConnectionError):
            connection.sendall(start + line + b"\r\n\r\n")
        assert ended(connection) in (b"", b"HTTP/1.1 400 Bad Request")
    assert tracemalloc.get_traced_memory()[1] < 4 * MIB + len(line)
    tracemalloc.stop()
    assert call(standing, headers=signed()) == 200


@pytest.mark.parametrize("large", [head("X: " + "x" * HEADER), head(path=PATH + "x" * HEADER)], ids=["header", "path"])
def test_large_headers_that_come_at_once_do_not_pass(large):
    behind = Behind()
    with served(Door(), behind) as port, closing(raw(port, large)) as connection:
        assert ended(connection).startswith(b"HTTP/1.1 4")
    assert behind.requests == 0


HALVES = {
    "nothing": (),
    "half a line": (b"POST /v1/fl",),
    "half a header": (b"POST / HTTP/1.1\r\nHost: ga",),
    "half a body": (head("Content-Length: 100"), b"half"),
    "half a piece": (head("Transfer-Encoding: chunked"), b"ff\r\nhalf"),
    "two in a row": (head("Content-Length: 0") + head("Content-Length: 9"), b"half"),
    "a refused body": (head("Content-Length: 100", path="/docs"), b"half"),
    "another protocol": (head("Connection: Upgrade", "Upgrade: websocket", "Content-Length: 9"),),
    "expects": (head("Expect: 100-continue", "Content-Length: 9"),),
}


def test_half_requests_end_whatever_half_it_is():
    with served(Door(seconds=0.1)) as port:
        for connection in [raw(port, *parts) for parts in HALVES.values()]:
            with closing(connection):
                ended(connection)  # by the gate, or the time of this connection is over
        assert call(port, headers=signed()) == 200


@pytest.mark.parametrize("secure", [False, True])
def test_however_many_half_requests_there_are_a_silo_is_served_and_few_are_held(secure, tmp_path):
    door = Door(connections=12, each=6, seconds=PATIENCE)
    trusted = False
    if secure:
        make_keys(tmp_path, 1)
        trusted = ssl.create_default_context(cafile=str(tmp_path / "gate" / "ca.crt"))
    with served(door, keys=tmp_path / "gate" if secure else None) as port, ExitStack() as stack:
        halves = []
        for number in range(40):
            half = HALVES["half a header"][0] if number % 2 and not secure else b""
            halves.append(stack.enter_context(closing(raw(port, half))))
            if not number % 20:
                assert call(port, headers=signed(), trusted=trusted) == 200
        assert call(port, headers=signed(), trusted=trusted) == 200
        assert len(door._guests) <= 7  # six strangers, and the silo
        for connection in halves[:30]:
            ended(connection)


def pair():
    """Two ends, the first of which may be let in."""
    here, there = socket.socketpair()
    there.setblocking(False)
    return here, there


def is_open(end):
    try:
        return end.recv(1) != b""
    except BlockingIOError:
        return True


def test_a_crowd_of_one_address_takes_no_place_of_another_one_nor_of_who_is_known():
    door = Door(connections=6, each=4)
    ends = {}

    def come(address, port):
        here, there = pair()
        ends[address, port] = here, there
        return door.admit(here, (address, port))

    assert come("silo", 1)
    door.trust(("silo", 1))
    assert come("other", 1)
    assert all(come("crowd", port) for port in range(9))
    assert [port for port in range(9) if is_open(ends["crowd", port][1])] == [5, 6, 7, 8]
    assert come("new", 1)
    assert not is_open(ends["crowd", 5][1])
    assert all(is_open(ends[name, 1][1]) for name in ("silo", "other", "new"))
    for one in list(door._guests):
        door.trust(one)
    assert not come("late", 1)  # all are known
    ends["silo", 1][0].close()
    assert come("late", 2)
    for both in ends.values():
        for end in both:
            end.close()


def test_who_is_known_keeps_a_part_of_the_connections_and_no_more():
    door, ends = Door(connections=6, each=2), []
    for port in range(5):
        ends += pair()
        assert door.admit(ends[-2], ("greedy", port)) or port > 3
        door.trust(("greedy", port), b"its key")
        door.trust(("greedy", 0), b"its key")
    assert [guest.trusted for guest in door._guests.values()] == [True, True, False, False]
    ends += pair()
    assert door.admit(ends[-2], ("silo", 1))
    door.trust(("silo", 1), b"another key")
    assert door._guests["silo", 1].trusted
    for end in ends:
        end.close()


def test_whom_the_door_does_not_admit_gets_no_connection():
    entrance = _Entrance(Door(connections=1), "127.0.0.1", 0)
    with entrance, socket.create_connection(entrance.getsockname()) as first:
        here, peer = entrance.accept()
        entrance._door.trust(peer[:2])
        with here, socket.create_connection(entrance.getsockname()) as second:
            with pytest.raises(ConnectionAbortedError):
                entrance.accept()
            second.settimeout(PATIENCE)
            assert second.recv(1) == b""
            first.setblocking(False)
            assert is_open(first)


def test_the_time_of_strangers_ends_and_that_of_the_known_is_longer():
    door = Door(seconds=0.0, trusted=PATIENCE)
    (stranger, other), (silo, end) = pair(), pair()
    door.admit(stranger, ("a", 1))
    door.admit(silo, ("a", 2))
    door.trust(("a", 2))
    door.trust(("b", 9))
    door.trust(None)
    time.sleep(0.001)
    door.sweep()
    assert (is_open(other), is_open(end)) == (False, True)
    door.trusted = -1.0
    door.trust(("a", 2))
    door.sweep()
    assert not is_open(end)
    for one in (stranger, other, silo, end):
        one.close()


@pytest.mark.parametrize(
    "request_",
    [
        head("X-Name: é").replace("é".encode(), b"\xe9"),
        head("é: x"),
        head(path="/v1/fleet/\xe9"),
        head(path="/v1/fleet/%C3%A9"),
        head(path="/v1/fleet/%FF"),
        head(path="/v1/fleet/a%0ab"),
        head(path="/v1/fleet/%00"),
        head(path="/v1/fleet/a?%0a=\xe9"),
        head(f"{TIMESTAMP_HEADER}: é", f"{FLEET_HTTP_PUBLIC_KEY_HEADER}: é"),
        head("Content-Length: " + "9" * 5000),
        head("Content-Length: -1"),
        head("Content-Length: 1", "Transfer-Encoding: chunked"),
        b"\xff\xfe\xfd\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_no_byte_leads_to_a_traceback(request_, standing, caplog):
    with closing(raw(standing, request_)) as connection:
        said = ended(connection)
        assert said == b"" or said.split()[1] in (b"400", b"403", b"404", b"413"), said
        assert call(standing, headers=signed()) == 200
    assert not [record for record in caplog.records if record.exc_info or "Traceback" in record.getMessage()]


@pytest.mark.parametrize("of", ["MCowBQYDKgMEAyEA", "MFQwDgYHKoZIzj0CAQYDKgMEA0IABHh4"])
def test_a_key_of_no_known_kind_is_nobodys(of, standing, caplog):
    inner = b64encode(b64decode(of) + b"x" * (32 if len(of) == 16 else 62)).decode()
    key = b64encode(f"-----BEGIN PUBLIC KEY-----\n{inner}\n-----END PUBLIC KEY-----\n".encode()).decode()
    assert call(standing, b"x" * (SMALL + 1), signed() | {FLEET_HTTP_PUBLIC_KEY_HEADER: key}) == 413
    assert not [record for record in caplog.records if record.exc_info]


def test_nobody_says_for_whom_he_asks(standing, caplog):
    """A peer is the other end of its connection: else a stranger's connections would count as other addresses'."""
    told = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9", "X-Real-IP": "203.0.113.9"}
    httpx.post(f"http://127.0.0.1:{standing}/docs", headers=told, trust_env=False, timeout=PATIENCE)
    assert "refused 127.0.0.1: POST '/docs' is not for silos" in caplog.text
    assert "203.0.113.9" not in caplog.text


@pytest.mark.parametrize("keys", [True, False])
def test_the_gate_that_is_served_knows_its_superlink_and_nobody_else(tmp_path, monkeypatch, keys):
    """A gate with keys has TLS on both sides and trusts its authority alone; `anybody` is for gates without keys."""
    made, given = {}, {}
    make_keys(tmp_path, 1)
    folder = tmp_path / "gate" if keys else None

    class Served:
        def __init__(self, app, door, host, port, keys):
            made.update(door=door, keys=keys)

        def run(self):
            made["run"] = True

    monkeypatch.setattr(module, "Server", Served)
    monkeypatch.setattr(module.httpx, "AsyncClient", lambda **more: given.update(more))
    monkeypatch.setattr(module, "gate", lambda client, door, large, *, anybody: made.update(anybody=anybody))
    module.serve("superlink:8000", 8000, folder, Door())
    assert made["run"]
    assert made["anybody"] != keys
    assert made["keys"] == folder
    assert given["trust_env"] is False  # no proxy of the environment reads what silos send
    if keys:
        assert given["base_url"] == "https://superlink:8000"
        assert (given["verify"].verify_mode, given["verify"].check_hostname) == (ssl.CERT_REQUIRED, True)
        assert len(given["verify"].get_ca_certs()) == 1
    else:
        assert given["base_url"] == "http://superlink:8000"


def test_a_port_that_is_taken_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"127.0.0.1:{port} cannot be served .* choose another port"):
            Server(None, Door(), "127.0.0.1", port, None)
