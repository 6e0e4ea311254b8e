"""The page of a federation, its metrics for Prometheus, and its health: for reading alone, and with a token."""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from simulations.records.run_directory import writing
from simulations.reports.report import fill
from simulations.serving.overview import Overview
from simulations.serving.queue import STATES
from userdp.errors import BadInput

_SHORTEST = 32  # characters of a token
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Pulse:
    """Healthy while the keeper took a step within the last ``seconds``."""

    seconds: float = 300.0
    last: float = field(default_factory=time.monotonic)

    def beat(self) -> None:
        """Write down that a step ended."""
        self.last = time.monotonic()

    @property
    def healthy(self) -> bool:
        """True while the keeper moves."""
        return time.monotonic() - self.last < self.seconds


def token_in(file: Path) -> str:
    """Return the token of a file, which is made if it is missing; `BadInput` for one that could be guessed."""
    if not file.exists():
        with writing(f"--token-file {file}"):
            file.touch(mode=0o600)
            file.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
    token = file.read_text(encoding="utf-8").strip()
    if len(token) < _SHORTEST:
        raise BadInput(
            f"--token-file {file}: a token has at least {_SHORTEST} characters; remove the file for a new one"
        )
    return token


def page(look: Callable[[], Overview], token: str, pulse: Pulse) -> Starlette:
    """Return the pages as an ASGI app. ``look`` makes the `Overview` of each request.

    Readers send the token as a bearer token, or as the password of any user. `/healthz` says whether the keeper moves,
    to anybody, and nothing else; neither it nor a refusal waits for the database. Every answer has `_HEADERS`.
    """

    def guarded(show: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def shown(request: Request) -> Response:
            if not _allowed(request.headers.get("authorization", ""), token):
                return _plain("a token is needed", 401, {"WWW-Authenticate": "Basic"})
            try:
                response = await run_in_threadpool(show, request)  # which may wait for the database
            except BadInput:
                response = _plain("the database does not answer", 503)
            response.headers.update(_HEADERS)
            return response

        return shown

    def front(_: Request) -> Response:
        return HTMLResponse(fill("federation.html.md", {"seen": look(), "states": STATES, "healthy": pulse.healthy}))

    def report(request: Request) -> Response:
        for shown in look().runs:
            if str(shown.run.number) == request.path_params["number"] and shown.report is not None:
                return HTMLResponse(shown.report.read_bytes())
        return _plain("there is no such report", 404)

    def metrics(_: Request) -> Response:
        return Response(_metrics(look(), healthy=pulse.healthy), media_type=_METRICS_TYPE)

    async def health(_: Request) -> Response:
        return _plain("ok") if pulse.healthy else _plain("the keeper does not move", 503)

    app = Starlette(
        routes=[
            Route("/", guarded(front)),
            Route("/runs/{number}/report.html", guarded(report)),
            Route("/metrics", guarded(metrics)),
            Route("/healthz", health),
        ],
        exception_handlers={HTTPException: _refused, Exception: _refused},
    )
    app.router.redirect_slashes = False
    return app


def _plain(text: str, status: int = 200, more: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, _HEADERS | dict(more or {}))


async def _refused(_: Request, error: Exception) -> Response:
    """Answer for a path or a method that there is not, and for a defect."""
    if isinstance(error, HTTPException):
        return _plain(error.detail, error.status_code, error.headers)
    return _plain("this page failed: the log of userdp serve says why", 500)


def _allowed(header: str, token: str) -> bool:
    kind, _, given = header.partition(" ")
    if kind.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:  # no base64, no ASCII, or no text
            return False
    elif kind.lower() != "bearer":
        return False
    # Digests are of one length, so that the time of the comparison tells nothing about the token.
    there, here = (hashlib.sha256(text.encode()).digest() for text in (given, token))
    return hmac.compare_digest(there, here)


def _metrics(seen: Overview, *, healthy: bool) -> bytes:
    """Return all metrics in the text of Prometheus; of an account's epsilon the total, what is spent, what is left."""
    registry = CollectorRegistry()

    def gauge(name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=registry)

    gauge("userdp_healthy", "1 while the keeper moves.").set(healthy)
    runs = gauge("userdp_runs", "Runs of the queue.", "state")
    for state, number in seen.counts.items():
        runs.labels(state).set(number)
    epsilon = gauge("userdp_account_epsilon", "Epsilon of accounts, at their delta.", "account", "part")
    for account in seen.accounts:
        parts = {"total": account.total.epsilon, "spent": account.spent_epsilon, "left": account.left_epsilon}
        for part, value in parts.items():
            epsilon.labels(account.name, part).set(value)
    last = next((shown for shown in seen.runs if shown.rounds is not None), None)
    if last is not None and last.rounds is not None and last.epsilon is not None:
        # One alone: a label for each run would grow for ever.
        gauge("userdp_run", "Number of the last run that began.").set(last.run.number)
        gauge("userdp_run_rounds", "Rounds of it that ended.").set(last.rounds)
        gauge("userdp_run_spent_epsilon", "Epsilon that it has spent.").set(last.epsilon)
    silos = gauge("userdp_silo_connected", "1 if it was when the last run began.", "silo")
    for silo, connected in seen.silos.items():
        silos.labels(silo).set(connected)
    return generate_latest(registry)
