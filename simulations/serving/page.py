"""The page of a federation, its metrics for Prometheus, and its health: for reading alone, and with a token."""

import base64
import hashlib
import hmac
import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
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
from simulations.serving.health import Watch
from simulations.serving.overview import MOST, Overview, Shown, report_of, shown_of
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


def page(watch: Watch, results: Path, token: str) -> Starlette:
    """Return the pages as an ASGI app, which shows the last look of a watch.

    Readers send the token as a bearer token, or as the password of any user. `/healthz` says whether the federation is
    well, to anybody; with the token also how far the run under way is. No answer asks the database or the SuperLink;
    older runs and reports are read from ``results``, in threads. Every answer has `_HEADERS`.
    """

    def guarded(show: Callable[[Request, Overview], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def shown(request: Request) -> Response:
            if not _allowed(request.headers.get("authorization", ""), token):
                return _plain("a token is needed", 401, {"WWW-Authenticate": "Basic"})
            if (seen := watch.seen) is None:
                return _plain(_lines(watch.problems()), 503)
            response = await show(request, seen)
            response.headers.update(_HEADERS)
            return response

        return shown

    written = lru_cache(maxsize=1)(_page)  # until the next look, for all who look meanwhile

    async def front(_: Request, seen: Overview) -> Response:
        return HTMLResponse(written(seen, watch.problems()))

    async def older(request: Request, seen: Overview) -> Response:
        found = [page for page in range(2, _pages(seen) + 1) if str(page) == request.path_params["page"]]
        if not found:
            return _plain("there is no such page", 404)
        runs = seen.queued[(found[0] - 1) * MOST : found[0] * MOST]
        shown = await run_in_threadpool(shown_of, runs, results)
        return HTMLResponse(_page(seen, watch.problems(), found[0], shown))

    async def report(request: Request, seen: Overview) -> Response:
        runs = [run for run in seen.queued if str(run.number) == request.path_params["number"]]
        file = await run_in_threadpool(report_of, runs[0], results) if runs else None
        if file is not None:
            return HTMLResponse(await run_in_threadpool(file.read_bytes))
        return _plain("there is no such report", 404)

    async def metrics(_: Request, seen: Overview) -> Response:
        return Response(_metrics(watch, seen), media_type=_METRICS_TYPE)

    async def health(request: Request) -> Response:
        problems = watch.problems()
        told = [*(problems or ["ok"]), f"The last look was {watch.age:.0f} s ago"]
        if _allowed(request.headers.get("authorization", ""), token):
            told += _under_way(watch)
        return _plain(_lines(told), 503 if problems else 200)

    app = Starlette(
        routes=[
            Route("/", guarded(front)),
            Route("/older/{page}", guarded(older)),
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


def _lines(sentences: Iterable[str]) -> str:
    return "\n".join(sentences)


def _pages(seen: Overview) -> int:
    return max(1, math.ceil(len(seen.queued) / MOST))


def _page(seen: Overview, problems: Sequence[str], page: int = 1, runs: Sequence[Shown] | None = None) -> str:
    told = {"seen": seen, "problems": problems, "states": STATES, "page": page, "pages": _pages(seen)}
    return fill("federation.html.md", told | {"runs": seen.runs if runs is None else runs})


def _under_way(watch: Watch) -> Iterator[str]:
    """Yield how far the run under way is."""
    last, silent = watch.seen and watch.seen.last, watch.pulse.silent
    if last and last.run.state == "running":
        yield f"Run {last.run.number}: attempt {last.run.attempts}, {last.rounds or 0} rounds"
        if last.last_round is not None:
            yield f"Its last round was written at {last.last_round:%Y-%m-%d %H:%M:%S} UTC"
        if silent is not None:
            yield f"It has written nothing for {silent:.0f} of at most {watch.pulse.limit:.0f} s"


def _metrics(watch: Watch, seen: Overview) -> bytes:
    """Return all metrics in the text of Prometheus; of an account's epsilon the total, what is spent, what is left."""
    registry = CollectorRegistry()

    def gauge(name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=registry)

    gauge("userdp_healthy", "1 while everything moves and answers.").set(not watch.problems())
    gauge("userdp_look_age_seconds", "Age of what these metrics tell.").set(watch.age)
    gauge("userdp_disk_bytes", "Size of the results' disk.").set(seen.disk)
    gauge("userdp_disk_free_bytes", "What is free of it.").set(seen.free)
    runs = gauge("userdp_runs", "Runs of the queue.", "state")
    for state, number in seen.counts.items():
        runs.labels(state).set(number)
    epsilon = gauge("userdp_account_epsilon", "Epsilon of accounts, at their delta.", "account", "part")
    wanted = gauge("userdp_account_runs", "Runs that wait for an account's budget, or use it.", "account")
    for account in seen.accounts:
        wanted.labels(account.name).set(account.runs)
        parts = {"total": account.total.epsilon, "spent": account.spent_epsilon, "left": account.left_epsilon}
        for part, value in parts.items():
            epsilon.labels(account.name, part).set(value)
    if (last := seen.last) is not None:
        # One alone: a label for each run would grow for ever.
        gauge("userdp_run", "Number of the last run that began.").set(last.run.number)
        gauge("userdp_run_attempts", "How often it was submitted.").set(last.run.attempts)
        if last.rounds is not None and last.epsilon is not None:
            gauge("userdp_run_rounds", "Rounds of it that ended.").set(last.rounds)
            gauge("userdp_run_spent_epsilon", "Epsilon that it has spent.").set(last.epsilon)
    if (silent := watch.pulse.silent) is not None:
        gauge("userdp_run_silent_seconds", "Since the run under way last wrote something.").set(silent)
        gauge("userdp_run_limit_seconds", "After so many it is stopped.").set(watch.pulse.limit)
    if seen.certificates:
        ends = gauge("userdp_certificate_end_seconds", "When a certificate ends, of a file or a server.", "file")
        for file, end in seen.certificates.items():
            ends.labels(file).set(end.timestamp())
    if seen.nodes is not None:
        silos = gauge("userdp_silo_connected", "1 if it is.", "silo")
        known = gauge("userdp_silo_known", "0 if the SuperLink has taken its key back.", "silo")
        for silo, (_, now) in seen.silos.items():
            silos.labels(silo).set(now or False)
            known.labels(silo).set(now is not None)
    return generate_latest(registry)
