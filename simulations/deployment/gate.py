"""The gate: it lets silos reach Flower's Fleet API on the SuperLink, and nothing else.

Flower serves SuperNodes, run submission and the registration of SuperNodes' keys on ONE port, without authentication of
submissions or registrations. A silo that reached that port could register its own keys and run its own code at the
other silos. So silos reach only this process, which forwards the paths of the Fleet API and refuses all others.

*Formal guarantees.* *Claim.* A peer without a key that the SuperLink knows costs the gate and the SuperLink at most
`SMALL` bytes a request, and its connection as long as `Door` says. *Why.* A SuperNode signs the time of each request in
its headers. A body may be larger only if that signature is good and as fresh as Flower demands, for a key with which
the SuperLink has answered a request before. What else is larger is refused by its declared length, or once it exceeds
the limit. A known silo's body is passed on in pieces and never held as a whole. *Assumptions.* The SuperLink answers no
request well whose signature is not that of its key's owner, as Flower's does. Without TLS nobody signs, and anybody
counts as known.
"""

import binascii
import logging
import re
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    MAX_TIMESTAMP_DIFF_SECONDS,
    MIN_TIMESTAMP_DIFF_SECONDS,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from simulations.deployment.door import HEADER, Door, Server

log = logging.getLogger("userdp.gate")
FLEET = re.compile(r"/v1/fleet/[a-z0-9-]+")
HEALTH = "/healthz"
"""The only other path, which the gate itself answers, to anybody: for probes."""
SMALL = 64 * 1024
"""Bytes of a stranger's body, at most: questions for work, and the registration of a key."""
LARGE = 64 * 2**20
"""Bytes of a known silo's body, at most, by default; Flower sends arrays in pieces of 5 MiB."""
_HOP_BY_HOP = {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
_SECONDS = 60.0
_MOST_KEYS = 1000


class _TooLarge(Exception):
    pass


def gate(
    client: httpx.AsyncClient, door: Door | None = None, large: int = LARGE, *, anybody: bool = False
) -> Starlette:
    """Return the gate as an ASGI app; the base address of ``client`` is the SuperLink's.

    ``anybody`` is a silo, on a closed test bench where nobody has a key.
    """
    keys: dict[bytes, None] = {}  # with which the SuperLink has answered, the oldest first

    async def forward(request: Request) -> Response:
        path, peer = request.scope["path"], request.client.host if request.client else "somebody"
        if not FLEET.fullmatch(path):
            log.warning("refused %s: %s %s is not for silos", peer, request.method, ascii(path)[:100])
            return _refused("this path is not for silos", 403)
        raw = request.headers.raw
        long = len(path) + sum(len(name) + len(value) for name, value in raw) > HEADER  # and came at once
        if long or not all(name.isascii() and value.isascii() for name, value in raw):
            return _refused(f"headers have to be ASCII, and {HEADER} bytes at most", 400)
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_BY_HOP}
        key = _key(headers)
        known = anybody or (key in keys and _signed(headers))
        if known and door is not None and request.client is not None:
            door.trust((request.client.host, request.client.port), b"" if anybody else key)
        limit = large if known else SMALL
        body = _limited(request, limit)
        try:
            content = body if known else b"".join([part async for part in body])
            asked = client.build_request(request.method, path, content=content, headers=headers)
            reply = await client.send(asked, stream=True)
        except _TooLarge:
            log.warning("refused %s: a body of more than %d bytes", peer, limit)
            # A silo that was known before the gate restarted asks again, and is known by then.
            return _refused("the body is too large", 413 if known or not _signed(headers) else 503)
        except ClientDisconnect:
            return _refused("it left", 400)
        except httpx.TransportError as error:
            log.warning("the SuperLink does not answer (%s)", type(error).__name__)
            return _refused("the SuperLink does not answer", 503)
        if reply.is_client_error:
            log.warning("the SuperLink refused %s: %s gave %d", peer, path, reply.status_code)
        if key and reply.is_success:
            keys.pop(key, None)
            keys[key] = None
            if len(keys) > _MOST_KEYS:
                del keys[next(iter(keys))]
        elif known and reply.status_code == httpx.codes.UNAUTHORIZED:  # it was taken back
            keys.pop(key, None)
        kept = {name: value for name, value in reply.headers.items() if name not in {*_HOP_BY_HOP, "content-length"}}
        return StreamingResponse(_content(reply), reply.status_code, kept)

    async def health(_: Request) -> Response:
        return Response("ok\n")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    forwarded = Route("/{path:path}", forward, methods=["GET", "POST"])
    return Starlette(routes=[Route(HEALTH, health), forwarded], lifespan=lifespan)


def _refused(why: str, status: int) -> Response:
    return Response(why, status, {"connection": "close"})


def _key(headers: Mapping[str, str]) -> bytes:
    """Return the key that headers name, empty for none: one key has several spellings in base 64."""
    with suppress(binascii.Error):
        return b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)
    return b""


def _signed(headers: Mapping[str, str]) -> bool:
    """Return whether the time in a request's headers is now, and signed by the owner of the key that they name."""
    names = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
    try:
        key, signature = (b64decode(headers[name], validate=True) for name in names)
        moment = headers[TIMESTAMP_HEADER]
        age = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
        fresh = MIN_TIMESTAMP_DIFF_SECONDS < age < MAX_TIMESTAMP_DIFF_SECONDS
        return fresh and verify_signature(bytes_to_public_key(key), moment.encode(), signature)
    except (KeyError, ValueError, TypeError, AttributeError, binascii.Error, UnsupportedAlgorithm):
        return False


async def _limited(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the pieces of a body; `_TooLarge` before one of them would exceed the limit."""
    if int(request.headers.get("content-length", 0)) > limit:
        raise _TooLarge
    async for piece in request.stream():
        limit -= len(piece)
        if limit < 0:
            raise _TooLarge
        yield piece


async def _content(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in reply.aiter_raw():
            yield chunk
    finally:
        await reply.aclose()


def serve(superlink: str, port: int, keys: Path | None, door: Door, large: int = LARGE) -> None:
    """Serve until stopped, with ca.crt, server.crt and server.key of the folder ``keys``; without TLS if it is None.

    A known silo's body has at most ``large`` bytes.
    """
    verify = ssl.create_default_context(cafile=str(keys / "ca.crt")) if keys else False
    scheme = "https" if keys else "http"
    client = httpx.AsyncClient(base_url=f"{scheme}://{superlink}", verify=verify, timeout=_SECONDS, trust_env=False)
    Server(gate(client, door, large, anybody=keys is None), door, "0.0.0.0", port, keys).run()
