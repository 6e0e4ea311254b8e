"""The verbs of the `userdp` command that list what there is: strategies, problems, data."""

from typing import Annotated

import typer

from simulations.terminal import Json, Name, exit_codes

Key = Annotated[str, typer.Argument(help="Such as privacy.epsilon, strategy.clip_norm, or clip_norm alone.")]

app = typer.Typer()


@app.command()
def strategies(name: Name = None, as_json: Json = False) -> None:
    """List the strategies; with a NAME also what it needs, its paper, cost, guarantees and settings."""
    _list("strategies", ("name", "unit", "summary"), name, as_json)


@app.command()
def problems(name: Name = None, as_json: Json = False) -> None:
    """List the problems (losses), with what is certified about each; with a NAME also its settings."""
    _list("problems", ("name", "family", "summary", "certificate"), name, as_json)


@app.command()
def data(name: Name = None, as_json: Json = False) -> None:
    """List the data: synthetic populations, tables, public data sets; with a NAME also its settings."""
    _list("data", ("name", "family", "users", "samples", "summary"), name, as_json)


@app.command()
def explain(key: Key, as_json: Json = False) -> None:
    """Explain one setting of a configuration: values, default, meaning, effect on privacy, and an example."""
    from simulations.explaining import explain as shown  # noqa: PLC0415

    with exit_codes(debug=False):
        shown(key, as_json)


def _list(what: str, columns: tuple[str, ...], name: str | None, as_json: bool) -> None:
    from simulations.listings import show  # noqa: PLC0415

    with exit_codes(debug=False):
        show(what, columns, name, as_json)
