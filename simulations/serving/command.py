"""`userdp serve`: keep a federation, which takes runs from a queue."""

import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulations.account.command import Address, accounts_of
from simulations.deployment import APP
from simulations.terminal import (
    File,
    Json,
    Overrides,
    Verbs,
    answer,
    argument,
    exit_codes,
    log_to,
    option,
    working,
)
from userdp.errors import BadInput

if TYPE_CHECKING:
    from simulations.serving.keeper import Keeper
    from simulations.serving.queue import Queue, Scheduled

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keep a federation: runs wait in a queue and are taken in turn.",
    epilog="The queue is in the database of the accounts: USERDP_ACCOUNTS, or --accounts.",
)
Number = Annotated[int, argument("NUMBER", "Number of the run in the queue.")]
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@app.command()
def add(
    file: File,
    at: Annotated[
        str | None, option("Earliest time, such as '2026-12-01 03:00', in UTC; now by default.", metavar="TIME")
    ] = None,
    every: Annotated[
        str | None, option("Repeat it: daily, weekly, monthly, or 'every 12 hours'.", metavar="PERIOD")
    ] = None,
    overrides: Overrides = None,
    accounts: Address = None,
    as_json: Json = False,
) -> None:
    """Add a run: it is checked now, and charged when it begins.

    The text of FILE is kept as it is now. Files that it names, such as modules, must be part of userdp. Of repetitions
    that were missed while nobody served, one is made up for.
    """
    with working():
        import tomli_w  # noqa: PLC0415

        from simulations.config.run_config import read_toml  # noqa: PLC0415
        from simulations.flower import configuration_of  # noqa: PLC0415
        from simulations.serving.keeper import checked  # noqa: PLC0415
        from simulations.serving.queue import moment  # noqa: PLC0415

        text = tomli_w.dumps(read_toml(file, overrides or []))
        config = configuration_of(text)
        checked(config)
        earliest = datetime.now(UTC) if at is None else moment(at)
        number = _queue(accounts).add(config.name, text, config.privacy.account, earliest, every)
    when = f"due {earliest:%Y-%m-%d %H:%M} UTC" + (f", {every}" if every else "")
    answer(as_json, {"number": number}, lambda: typer.echo(f"run {number}: {config.name}, {when}"))


@app.command(name="list")
def listed(accounts: Address = None, as_json: Json = False) -> None:
    """List all runs, and why one is refused, failed or waits."""
    with working():
        runs = _queue(accounts).runs()
    answer(as_json, [run.as_dict() for run in runs], lambda: _list(runs))


@app.command()
def cancel(number: Number, accounts: Address = None) -> None:
    """Take a run and its repetitions out of the queue.

    What it asked already stays charged.
    """
    with working():
        run = _queue(accounts).cancel(number)
    typer.echo(f"run {number}, {run.name}, is cancelled")
    if run.run is not None:
        typer.echo("it is under way: userdp serve start stops it at Flower with its next step")


@app.command()
def retry(number: Number, accounts: Address = None) -> None:
    """Let a run that failed go on, in its folder and entry.

    It begins at its checkpoint, or else anew. It costs nothing further. It is not repeated, for its repetition is
    scheduled already.
    """
    with working():
        run = _queue(accounts).retry(number, datetime.now(UTC))
    typer.echo(f"run {number}, {run.name}, waits again")


@app.command()
def enter(
    results: Annotated[Path, argument("RESULTS", "Folder of results of userdp serve start.")],
    accounts: Address = None,
) -> None:
    """Enter runs that the database lacks, each at its whole price.

    It lacks them if it was lost, or if an older one took its place.
    """
    with working():
        from simulations.serving.keeper import enter_missing  # noqa: PLC0415

        entered = enter_missing(accounts_of(accounts), results)
    for folder in entered:
        typer.echo(f"entered: {folder}")


@app.command()
def start(
    superlink: Annotated[str, option("Address of the SuperLink.", metavar="HOST:PORT")] = "superlink:8000",
    keys: Annotated[
        Path, option("Folder of ca.crt; for a page beyond this machine also of server.crt and server.key.")
    ] = Path("/keys"),
    insecure: Annotated[bool, option("No TLS: only for a closed test bench.", "--insecure")] = False,
    application: Annotated[Path, option("The Flower app.", "--app", metavar="FOLDER")] = APP,
    results: Annotated[
        Path, option("Folder that runs write, under the same path for their own process.", metavar="FOLDER")
    ] = Path("/results"),
    names: Annotated[
        Path | None, option("Names of the silos' nodes, as the SuperLink's job writes them.", metavar="FILE")
    ] = None,
    port: Annotated[int | None, option("Port of the page, of /metrics and /healthz; none by default.")] = None,
    host: Annotated[str, option("Address of the page; this machine by default.")] = "127.0.0.1",
    token_file: Annotated[Path, option("File with the page's token; made if it is missing.", metavar="FILE")] = Path(
        "page.token"
    ),
    alert: Annotated[
        str | None,
        option("Command for alerts, which gets JSON: silos that always miss, runs refused, stalled or failed."),
    ] = None,
    log: Annotated[Literal["text", "json"], option("Form of the log, on standard output.")] = "text",
    pause: Annotated[float, option("Seconds between looks at queue and SuperLink.")] = 15.0,
    keep_runs: Annotated[
        int | None, option("Remove the files of done runs but the newest, and what accounts need.", min=1, metavar="N")
    ] = None,
    keep_days: Annotated[
        float | None, option("The same of runs that ended longer ago; with both, either keeps.", min=0, metavar="DAYS")
    ] = None,
    gate: Annotated[str | None, option("The gate, whose certificate is watched, too.", metavar="HOST:PORT")] = None,
    stalled: Annotated[
        float, option("Minutes that a run may write nothing, beyond engine.timeout; then it is stopped.", min=1)
    ] = 30.0,
    once: Annotated[bool, option("Do what is due, and end.", "--once")] = False,
    accounts: Address = None,
) -> None:
    """Take runs from the queue, one at a time.

    Each stays within the budget of its account. It may be stopped or killed at any moment, and started again: no run is
    lost, made twice or charged twice.
    """
    with exit_codes():
        from simulations.account.checking import compared  # noqa: PLC0415
        from simulations.deployment.submit import Link  # noqa: PLC0415
        from simulations.serving.announcing import FORMS, Alarm  # noqa: PLC0415
        from simulations.serving.keeper import identity  # noqa: PLC0415
        from simulations.serving.retention import Tidying  # noqa: PLC0415

        log_to(sys.stdout, logging.INFO, FORMS[log])
        queue, link = _queue(accounts), Link(superlink, None if insecure else keys)
        with identity(results.resolve()) as mine:
            compared(queue.accounts, results.resolve()).insist()
            given = queue, link, application, results.resolve(), mine, Alarm(alert), names, stalled * 60
            keeper = Tidying(*given, keep_runs=keep_runs, keep_days=keep_days)
            if once or port is None:
                while keeper.step() or not once:
                    time.sleep(pause)
            else:
                _keep_and_show(keeper, host, port, token_file, None if insecure else keys, pause, gate)


def _keep_and_show(
    keeper: "Keeper", host: str, port: int, token_file: Path, keys: Path | None, pause: float, gate: str | None = None
) -> None:
    """Step and serve the page in one loop, until either ends; what the page shows is looked at in a thread."""
    import asyncio  # noqa: PLC0415
    from threading import Thread  # noqa: PLC0415

    from simulations.deployment.door import Door, Server  # noqa: PLC0415
    from simulations.serving.health import Watch, connected  # noqa: PLC0415
    from simulations.serving.overview import overview  # noqa: PLC0415
    from simulations.serving.page import page, token_in  # noqa: PLC0415

    if keys is not None and not (keys / "server.crt").is_file():
        if host not in _LOOPBACK:
            raise BadInput(
                f"--host {host}: the token would travel without TLS; put server.crt and server.key into --keys {keys}, "
                "or leave --host out"
            )
        keys = None
    results = keeper.results
    gates = [gate] if gate else []
    watch = Watch(
        lambda: overview(keeper.queue, results, keeper.link.keys, [keeper.link.address, *gates]),
        lambda: connected(keeper.link, keeper.names),
        keeper.pulse,
    )
    server = Server(page(watch, results, token_in(token_file)), Door(), host, port, keys)
    Thread(target=watch.follow, args=(pause,), daemon=True).start()

    async def both() -> None:
        stepping = asyncio.create_task(_step(keeper, pause))
        serving = asyncio.create_task(server.serve())
        await asyncio.wait({stepping, serving}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        if stepping.done():
            stepping.result()
        stepping.cancel()

    asyncio.run(both())


async def _step(keeper: "Keeper", pause: float) -> None:
    import asyncio  # noqa: PLC0415

    while True:
        await asyncio.to_thread(keeper.step)  # it waits for Flower's commands, and pages should not
        await asyncio.sleep(pause)


def _queue(accounts: str | None) -> "Queue":
    from simulations.serving.queue import Queue  # noqa: PLC0415

    return Queue(accounts_of(accounts))


def _list(runs: "list[Scheduled]") -> None:

    table = Table("run", "name", "account", "due (UTC)", "state", "why", title="queue")
    for run in runs:
        when = f"{run.earliest:%Y-%m-%d %H:%M}" + (f"\n{run.every}" if run.every else "")
        table.add_row(str(run.number), escape(run.name), run.account or "", when, run.state, escape(run.reason or ""))
    Console().print(table)
