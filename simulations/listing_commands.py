"""The verbs of the `userdp` command that list strategies, problems and data."""

from typing import Annotated

import typer

from simulations.terminal import Json, Name, exit_codes

Key = Annotated[str, typer.Argument(help="Such as privacy.epsilon, strategy.clip_norm, or clip_norm alone.")]

app = typer.Typer()


@app.command()
def strategies(name: Name = None, as_json: Json = False) -> None:
    """List the strategies; with a NAME also its needs, paper, cost, guarantees and settings."""
    _list("strategies", name, as_json)


@app.command()
def problems(name: Name = None, as_json: Json = False) -> None:
    """List the problems (losses) with their certificates; with a NAME also its settings."""
    _list("problems", name, as_json)


@app.command()
def data(name: Name = None, as_json: Json = False) -> None:
    """List the data: synthetic populations, tables, public data sets; with a NAME also its settings."""
    _list("data", name, as_json)


@app.command()
def explain(key: Key, as_json: Json = False) -> None:
    """Explain one setting of a configuration: values, default, meaning, effect on privacy, and an example."""
    from simulations.explaining import explain as shown  # noqa: PLC0415

    with exit_codes(debug=False):
        shown(key, as_json)


def _list(what: str, name: str | None, as_json: bool) -> None:
    from simulations.listings import show  # noqa: PLC0415

    with exit_codes(debug=False):
        show(what, name, as_json)
