"""The gate: it lets silos reach Flower's Fleet API on the SuperLink, and nothing else.

Flower serves SuperNodes, run submission and the registration of SuperNodes' keys on ONE port, without authentication of
submissions or registrations. A silo that reached that port could register its own keys and run its own code at the
other silos. So silos reach only this process, which forwards the paths of the Fleet API and refuses all others.
"""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

log = logging.getLogger("userdp.gate")
FLEET = "/v1/fleet/"
_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
_SECONDS = 60.0


def gate(client: httpx.AsyncClient) -> Starlette:
    """Return the gate as an ASGI app; the base address of ``client`` is the SuperLink's."""

    async def forward(request: Request) -> Response:
        path, peer = request.url.path, request.client.host if request.client else "somebody"
        if ".." in path or not path.startswith(FLEET):
            log.warning("refused %s: %s %s is not for silos", peer, request.method, path)
            return Response("this path is not for silos", status_code=403)
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_BY_HOP}
        asked = client.build_request(request.method, path, content=await request.body(), headers=headers)
        try:
            reply = await client.send(asked, stream=True)
        except httpx.TransportError as error:
            log.warning("the SuperLink does not answer (%s)", type(error).__name__)
            return Response("the SuperLink does not answer", status_code=503)
        if reply.is_client_error:
            log.warning("the SuperLink refused %s: %s gave %d", peer, path, reply.status_code)
        kept = {name: value for name, value in reply.headers.items() if name not in _HOP_BY_HOP}
        return StreamingResponse(_content(reply), reply.status_code, kept)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST"])], lifespan=lifespan)


async def _content(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in reply.aiter_raw():
            yield chunk
    finally:
        await reply.aclose()


def serve(superlink: str, port: int, keys: Path | None) -> None:
    """Serve until stopped, with ca.crt, server.crt and server.key of the folder ``keys``; without TLS if it is None."""
    verify = ssl.create_default_context(cafile=str(keys / "ca.crt")) if keys else False
    scheme = "https" if keys else "http"
    client = httpx.AsyncClient(base_url=f"{scheme}://{superlink}", verify=verify, timeout=_SECONDS, trust_env=False)
    uvicorn.run(
        gate(client),
        host="0.0.0.0",
        port=port,
        ssl_certfile=keys / "server.crt" if keys else None,
        ssl_keyfile=str(keys / "server.key") if keys else None,
        log_level="warning",
    )
