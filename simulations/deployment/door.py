"""The door of a server that anybody reaches: how many connections, how long, how large, before anybody is known.

*Formal guarantees.* *Claim.* Strangers together hold at most `Door.connections` sockets, each for at most
`Door.seconds`, whatever they send or leave out, before TLS, too; they take no connection from a peer that is trusted,
and those of one address take none from another address that has fewer. One who is known keeps `Door.each` of them at
most. *Why.* A new connection beyond a limit ends the
oldest one of a stranger: of the same address, or of the address that has most. So who sends a whole request at once is
served beside any number of half requests. *Assumptions.* A stranger cannot open connections faster than another one's
first request arrives; the loop is asyncio's own, which accepts by `socket.accept`.
"""

import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from simulations.deployment.certificates import renewing
from userdp.errors import BadInput

HEADER = 16 * 1024
"""Bytes of a request's line and headers, at most."""
_BACKLOG = 64  # connections that are accepted in a row, and wait to be
Peer = tuple[str, int]


@dataclass
class _Guest:
    socket: socket.socket
    until: float
    trusted: bool = False
    who: bytes = b""


@dataclass
class Door:
    """A door: at most ``connections`` are in; strangers of one address have ``each`` of them, and stay ``seconds``.

    A server that knows whom a request is from calls `trust` with its peer, who may then stay for ``trusted`` seconds,
    and whose connection is not ended for others.
    """

    connections: int = 256
    each: int = 64
    seconds: float = 30.0
    trusted: float = 600.0
    _guests: dict[Peer, _Guest] = field(default_factory=dict)

    def admit(self, connection: socket.socket, peer: Peer) -> bool:
        """Let a new connection in, and end another one if there are too many; return whether there was room."""
        self._forget()
        strangers = [one for one, guest in self._guests.items() if not guest.trusted]  # the oldest first
        count = Counter(address for address, _ in strangers)
        if count[peer[0]] >= self.each:
            self._end(next(one for one in strangers if one[0] == peer[0]))
        elif len(self._guests) >= self.connections:
            if not count:
                return False
            most = count.most_common(1)[0][0]
            self._end(next(one for one in strangers if one[0] == most))
        self._guests[peer] = _Guest(connection, time.monotonic() + self.seconds)
        return True

    def trust(self, peer: Peer | None, who: bytes = b"") -> None:
        """Write down that a peer is known, and has begun a request; of ``who``, if told, at most ``each`` are."""
        self._forget()
        guest = self._guests.get(peer) if peer is not None else None
        if guest is None:
            return
        others = sum(one is not guest and one.who == who for one in self._guests.values())
        if not who or others < self.each:
            guest.until, guest.trusted, guest.who = time.monotonic() + self.trusted, True, who

    def sweep(self) -> None:
        """End the connections whose time is over."""
        self._forget()
        for peer in [peer for peer, guest in self._guests.items() if guest.until < time.monotonic()]:
            self._end(peer)

    def _forget(self) -> None:
        self._guests = {peer: guest for peer, guest in self._guests.items() if guest.socket.fileno() >= 0}

    def _end(self, peer: Peer) -> None:
        with suppress(OSError):  # it is closed already
            self._guests.pop(peer).socket.shutdown(socket.SHUT_RDWR)


class _Entrance(socket.socket):
    """A listening socket that accepts only what the door admits."""

    def __init__(self, door: Door, host: str, port: int) -> None:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(family, kind, number)
        self._door = door
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.bind(address)
            self.listen(_BACKLOG)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        connection, peer = super().accept()
        if not self._door.admit(connection, peer[:2]):
            connection.close()
            raise ConnectionAbortedError  # which the loop takes for a peer that left
        return connection, peer


class Server(uvicorn.Server):
    """Serves an ASGI app behind a door; `BadInput` if the address is not free.

    With TLS by server.crt and server.key of the folder ``keys``, also when they are renewed; without if it is None.
    """

    def __init__(self, app: Any, door: Door, host: str, port: int, keys: Path | None) -> None:
        # Only h11 limits headers, and only asyncio's own loop accepts by the entrance. Nobody may say for whom he asks.
        parts: dict[str, Any] = {"http": "h11", "ws": "none", "loop": "asyncio", "proxy_headers": False}
        parts |= {"h11_max_incomplete_event_size": HEADER, "backlog": _BACKLOG, "log_level": "warning"}
        if keys is not None:
            files = keys / "server.crt", keys / "server.key"
            parts |= {"ssl_certfile": files[0], "ssl_keyfile": str(files[1])}
            parts["ssl_context_factory"] = lambda _, made: renewing(made, *files)
        super().__init__(uvicorn.Config(app, host, port, **parts))
        self._door = door
        try:
            self._entrance = _Entrance(door, host, port)
        except OSError as error:
            raise BadInput(f"{host}:{port} cannot be served ({error.strerror}): choose another port") from None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped."""
        await super().serve([self._entrance, *(sockets or [])])

    async def on_tick(self, counter: int) -> bool:
        """End what has lasted too long, ten times a second."""
        self._door.sweep()
        return await super().on_tick(counter)
