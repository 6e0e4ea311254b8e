"""The jobs of a deployment, one verb each; exit code 1 if a job fails, 2 for bad input."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulations.deployment import APP
from simulations.terminal import Json, answer
from userdp.errors import BadInput, UserdpError

if TYPE_CHECKING:
    from simulations.config.run_config import RunConfig

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Config = Annotated[Path, typer.Option(help="Configuration of the run.")]
Overrides = Annotated[str, typer.Option(metavar="KEY=VALUE;...", help="Overrides, separated by ';'.")]
Folder = Annotated[Path, typer.Option(help="Folder to make.")]
Silos = Annotated[int, typer.Option(min=1, help="Number of silos.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: only for a closed test bench.")]
Keys = Annotated[Path, typer.Option(help="Folder with this party's keys.")]


@app.command()
def keys(
    output: Annotated[Path, typer.Option(help="Folder in which every party gets a folder.")],
    silos: Silos = 3,
    host: Annotated[
        list[str] | None, typer.Option(help="Further name or address of the gate and the page; repeatable.")
    ] = None,
    with_serve: Annotated[bool, typer.Option("--serve", help="Also keys of userdp serve and its database.")] = False,
    authority: Annotated[
        Path | None, typer.Option(help="Folder that keeps the authority, for --renew: yours alone, offline at best.")
    ] = None,
    renew: Annotated[
        list[str] | None, typer.Option(metavar="PARTY", help="Make this party's certificate last longer; repeatable.")
    ] = None,
) -> None:
    """Make an authority, and certificates and keys for every party; valid keys stay."""
    from simulations.deployment import keys as making  # noqa: PLC0415

    if renew:
        if authority is None:
            raise BadInput("--renew needs --authority, the folder that keeps who signed: name it")
        making.renew(output, authority, renew)
        for party in renew:
            typer.echo(f"keys: {party} until {making.end_of(output / party / 'server.crt'):%Y-%m-%d %H:%M} UTC")
        return
    made = making.make_keys(output, silos, tuple(host or ()), serve=with_serve, authority=authority)
    typer.echo(f"keys: {'made for' if made else 'kept of'} {silos} silos in {output}")


@app.command()
def split(config: Config, output: Folder, silos: Silos = 3, overrides: Overrides = "") -> None:
    """Deal the users of one data set to silos, for a rehearsal."""
    from simulations.runs.silos import split as deal  # noqa: PLC0415

    counts = deal(_loaded(config, overrides), [output / f"silo-{silo + 1}" for silo in range(silos)])
    typer.echo(f"silos: {', '.join(map(str, counts))} users in {output}")


@app.command()
def prepare(
    config: Config,
    output: Folder,
    first_user: Annotated[int, typer.Option(min=0, help="Number of this silo's first user among all.")],
    overrides: Overrides = "",
) -> None:
    """Make one silo's folder from its own table."""
    from simulations.runs.silos import prepare as make  # noqa: PLC0415

    users = make(_loaded(config, overrides), output, first_user)
    typer.echo(f"silo: users {first_user} to {first_user + users - 1} in {output}")


@app.command(name="log")
def logged(
    data: Annotated[Path, typer.Option(help="The silo's folder.")] = Path("/data"), as_json: Json = False
) -> None:
    """Show what was asked of a silo of people's data, what each run promised, and what the policy said."""
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Column, Table  # noqa: PLC0415

    from simulations.runs.policy import asked  # noqa: PLC0415

    found = asked(data)
    columns = ("when", "strategy", "epsilon", "delta", "unit", "trust", "noise")
    table = Table(*columns, Column("policy", overflow="fold"), title="what was asked of this silo")
    for run in found["runs"]:
        said = f"{run['policy']}: {run['why']}" if run["why"] else run["policy"]
        table.add_row(*(escape(str(run.get(name, ""))) for name in columns), escape(said))
    spent = "{epsilon:g}, {delta:g}".format(**found["spent"])
    total = "{epsilon:g}, {delta:g}".format(**found["total"])
    answer(as_json, found, lambda: Console().print(table, f"admitted so far: {spent} of epsilon, delta = {total}"))


@app.command()
def superlink(
    keys: Keys = Path("/keys"),
    names: Annotated[Path | None, typer.Option(help="File that gets the name of each node's key, in JSON.")] = None,
    insecure: Insecure = False,
) -> None:
    """Run Flower's SuperLink, its state in memory, for the silos whose public keys are in the folder, at any time."""
    from simulations.deployment.superlink import serve  # noqa: PLC0415

    raise typer.Exit(serve(None if insecure else keys, names))


@app.command()
def gate(
    superlink: str = "superlink:8000",
    port: int = 8000,
    keys: Keys = Path("/keys"),
    body: Annotated[int, typer.Option(min=1, help="MiB of a known silo's message, at most.")] = 64,
    connections: Annotated[int, typer.Option(min=1, help="Connections, at most; of one address a quarter.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long a connection of nobody known may last.")] = 30.0,
    insecure: Insecure = False,
) -> None:
    """Forward silos' requests to the SuperLink, but only those that SuperNodes need."""
    from simulations.deployment.door import Door  # noqa: PLC0415
    from simulations.deployment.gate import serve  # noqa: PLC0415

    door = Door(connections, -(-connections // 4), seconds)
    serve(superlink, port, None if insecure else keys, door, body * 2**20)


@app.command()
def submit(
    config: Config,
    application: Annotated[Path, typer.Option("--app", help="The Flower app.")] = APP,
    superlink: str = "superlink:8000",
    results: Annotated[
        Path, typer.Option(help="Folder that the ServerApp writes; this process must see it too.")
    ] = Path("/results"),
    output: Annotated[Path, typer.Option(help="Folder for a copy of this run's results.")] = Path("/out"),
    overrides: Overrides = "",
    resume: Annotated[str, typer.Option(help="Resume the run whose files are in this folder of the results.")] = "",
    keys: Keys = Path("/keys"),
    insecure: Insecure = False,
) -> None:
    """Submit a run, show its log, wait for its end, copy its files; exit code 0 only if it succeeded."""
    import tomli_w  # noqa: PLC0415

    from simulations.config.run_config import read_absolute  # noqa: PLC0415
    from simulations.deployment import submit as submitting  # noqa: PLC0415

    link = submitting.Link(superlink, None if insecure else keys)
    text = tomli_w.dumps(read_absolute(config, separated(overrides)))
    raise typer.Exit(submitting.submit(link, application, text, results=results, output=output, resume=resume))


def _loaded(config: Path, overrides: str) -> "RunConfig":
    from simulations.config.run_config import load_config  # noqa: PLC0415

    return load_config(config, separated(overrides))


def separated(overrides: str) -> tuple[str, ...]:
    """Split overrides in one line, such as "privacy.epsilon=1; seed=3"."""
    return tuple(part.strip() for part in overrides.split(";") if part.strip())


def main() -> None:
    """Run a job; errors are sentences."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        app()
    except UserdpError as error:
        typer.secho(f"userdp: {error}", err=True)
        sys.exit(2 if isinstance(error, BadInput) else 1)


if __name__ == "__main__":
    main()
