"""`userdp account`: make accounts, show what is spent on what, export it."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from simulations.terminal import Json, Verbs, answer, argument, option, working
from userdp.errors import BadInput

if TYPE_CHECKING:
    from simulations.account.accounts import Account, Accounts

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keep all that is released about a data set within one total.",
    epilog="Runs enter with privacy.account = NAME, or userdp run FILE --account NAME.",
)
Named = Annotated[str, argument("NAME", "Name of the account, such as that of the data set.")]
Address = Annotated[
    str | None,
    option(
        "Address of the database: sqlite:///FILE or postgresql://...; by default that of USERDP_ACCOUNTS, or "
        "~/.userdp/accounts.sqlite.",
        metavar="URL",
    ),
]


@app.command()
def create(
    name: Named,
    epsilon: Annotated[float, option("Total epsilon of everything that will ever be released.")],
    delta: Annotated[float, option("Total delta, well below 1/users.")],
    relation: Annotated[str, typer.Option(help="replace_one, or add_or_remove.")] = "replace_one",
    others: Annotated[
        float | None,
        option(
            "Share of epsilon and delta for what is no Gaussian mechanism, such as tests and secret cohorts; 0 by "
            "default, 1 for delta = 0."
        ),
    ] = None,
    accounts: Address = None,
) -> None:
    """Make an account with a total that never changes.

    Gaussian runs (auto, dp_fed_sgd, most others) compose tightly: 12 of epsilon 1 fit into 4, at one delta. Epsilons
    and deltas of everything else add up, within the share that --others sets aside.
    """
    with working():
        from simulations.config.run_config import NAME  # noqa: PLC0415
        from userdp.accounting.filter import Total  # noqa: PLC0415

        if not re.fullmatch(NAME, name):
            raise BadInput(f"NAME = {name!r}: use letters, digits, dots, dashes and underscores, at most 100")
        share = float(delta == 0) if others is None else others
        place = accounts_of(accounts)
        place.create(name, Total(epsilon, delta, relation, share))  # type: ignore[arg-type]
    typer.echo(f"{name}: epsilon = {epsilon:g}, delta = {delta:g}, {relation}; in {place.url}")


@app.command()
def show(name: Named, accounts: Address = None, as_json: Json = False) -> None:
    """Show what is spent on what, by whom and when, and what is left."""
    with working():
        account = accounts_of(accounts).read(name)
    answer(as_json, account.as_dict(), lambda: _show(account))


@app.command(name="list")
def listed(accounts: Address = None, as_json: Json = False) -> None:
    """List all accounts with what is spent."""
    with working():
        place = accounts_of(accounts)
        found = [place.read(name) for name in place.names()]
    answer(as_json, [account.as_dict() for account in found], lambda: _list(found))


@app.command()
def export(name: Named, accounts: Address = None) -> None:
    """Write all entries as JSON, for dp-accounting and Flower.

    Entries are events of dp-accounting, and what is spent is stated as Flower does.
    """
    with working():
        from simulations.account.export import exported  # noqa: PLC0415

        values = exported(accounts_of(accounts).read(name))
    typer.echo(json.dumps(values, indent=2))


@app.command()
def enter(
    name: Named,
    file: Annotated[Path, argument("FILE", "JSON of userdp account export, or RdpAccountant.state_dict() of Flower.")],
    unit: Annotated[str, option("user, which says that each client or record of the file is one whole user.")],
    accounts: Address = None,
) -> None:
    """Enter what another program has released about the same people.

    Each call is one more entry, even of the same file. It counts even beyond the total; nothing more fits then, and the
    exit code is not 0.
    """
    with working():
        from simulations.account.elsewhere import spent_elsewhere  # noqa: PLC0415
        from simulations.records.run_directory import read_json  # noqa: PLC0415

        try:
            values = read_json(file)
        except (OSError, ValueError) as error:
            raise BadInput(f"FILE = {file}: {error}: give a file of JSON") from None
        place = accounts_of(accounts)
        wanted = spent_elsewhere(values, place.read(name).total, unit, file.name)
        place.enter(name, wanted)
        account = place.read(name)
        if not account.spent.within(account.total.limits):
            raise BadInput(
                f"{file.name} was entered into {name} and exceeds the total, so that nothing more fits: the promise of "
                "this account does not hold; for a larger total, make another account and enter what this one exports"
            )
    typer.echo(f"{name}: epsilon up to {account.left_epsilon:.4g} is left at delta = {account.total.delta:g}")


@app.command()
def check(
    results: Annotated[Path, argument("RESULTS", "Folder of run directories, such as that of userdp serve.")],
    accounts: Address = None,
) -> None:
    """Compare the runs in a folder with the entries of the database.

    A run without its entry means that the database is older than the results, or another one: what that run released
    is not counted, and the exit code is not 0. An entry without its run is only told.
    """
    with working():
        from simulations.account.checking import compared  # noqa: PLC0415

        if not results.is_dir():
            raise BadInput(f"RESULTS = {results}: there is no such folder, so nothing was compared; correct the path")
        place = accounts_of(accounts)
        found = compared(place, results)
        for told in found.absent:
            typer.echo(told)
        found.insist()
        typer.echo(f"{found.runs} runs of {results} have their entries in {place.url}")


@app.command()
def backup(
    file: Annotated[Path, argument("FILE", "File to make; on another disk, and encrypted.")], accounts: Address = None
) -> None:
    """Copy the database while it is used.

    Of PostgreSQL, pg_dump makes copies.
    """
    with working():
        from simulations.account.backup import back_up  # noqa: PLC0415

        place = accounts_of(accounts)
        back_up(place, file)
    typer.echo(f"{file}: a copy of {place.url}")


@app.command()
def restore(
    file: Annotated[Path, argument("FILE", "Copy that userdp account backup made.")],
    results: Annotated[Path, argument("RESULTS", "Folder of run directories, such as that of userdp serve.")],
    accounts: Address = None,
) -> None:
    """Put a copy in the place of a database that is lost.

    It is refused if a run in RESULTS has no entry in it, and where there still is a database.
    """
    with working():
        from simulations.account.backup import restore as put_back  # noqa: PLC0415

        place = accounts_of(accounts)
        runs = put_back(place, file, results)
    typer.echo(f"{place.url}: as in {file}, with the entries of {runs} runs of {results}")


def accounts_of(address: str | None) -> "Accounts":
    """Return the accounts at an address of the command line."""
    from simulations.account.entering import accounts_at  # noqa: PLC0415

    return accounts_at(address)


def _show(account: "Account") -> None:

    from simulations.reports.explain import assumptions_of  # noqa: PLC0415
    from userdp.accounting.guarantee import rounded_up  # noqa: PLC0415

    total, limits, spent = account.total, account.total.limits, account.spent
    table = Table(
        "entry", "what", "by", Column("when (UTC)", min_width=10), title=f"{account.name}: what is spent on what"
    )
    for name in ("promised", "charged"):
        table.add_column(name, no_wrap=True)
    for one in account.entries:
        pairs = [(rounded_up(promise.epsilon, 3), rounded_up(promise.delta, 3)) for promise in one.promises]
        promised = "\n".join(f"({epsilon}, {delta})" for epsilon, delta in pairs)
        named = zip(("mu^2", "epsilon", "delta"), vars(one.price).values(), strict=True)
        charged = "\n".join(f"{name} = {rounded_up(value, 3)}" for name, value in named if value)
        when = one.entered.partition("+")[0].replace("T", " ")
        table.add_row(str(one.number), escape(one.what), escape(one.who), when, promised, charged)
    parts = Table(
        Column("part", no_wrap=True), "spent", "of", title=f"epsilon = {total.epsilon:g}, delta = {total.delta:g}"
    )
    rows = {
        "Gaussians, mu^2": (spent.mu_squared, limits.mu_squared),
        "others, epsilon": (spent.epsilon, limits.epsilon),
        "others, delta": (spent.delta, limits.delta),
    }
    for name, (used, most) in rows.items():
        if most:
            parts.add_row(name, rounded_up(used), f"{most:.4g}")
    console = Console()
    console.print(table, parts, sep="\n")
    promises = {f"entry {one.number}": promise for one in account.entries for promise in one.promises[:1]}
    for line in assumptions_of(promises):
        console.print(line, highlight=False, markup=False)
    relation = "replacing" if total.relation == "replace_one" else "adding or removing"
    console.print(
        f"For {relation} one whole user. Spent so far: epsilon = {rounded_up(account.spent_epsilon)} at delta = "
        f"{total.delta:g}, as if all prices had been fixed beforehand. One more Gaussian run fits with epsilon up to "
        f"{account.left_epsilon:.4g} at that delta; another delta allows another epsilon.",
        highlight=False,
    )


def _list(found: "list[Account]") -> None:

    from userdp.accounting.guarantee import rounded_up  # noqa: PLC0415

    table = Table("account", "relation", title="accounts")
    for name in ("epsilon", "spent", "delta", "entries"):
        table.add_column(name, justify="right")
    for one in found:
        total = one.total
        numbers = (f"{total.epsilon:.4g}", rounded_up(one.spent_epsilon), f"{total.delta:.4g}", str(len(one.entries)))
        table.add_row(one.name, total.relation, *numbers)
    Console().print(table)
