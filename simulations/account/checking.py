"""Results and the database of accounts, compared: what was released has its entry.

*Formal guarantees.* *Claim.* If `Compared.insist` raises nothing, every run directory inside the folder that was
entered into an account has its entry in this database. *Why.* A run's token is drawn at random and written into its
directory after it was entered (`simulations.account.entering`); an older copy of the database lacks the tokens of what
was entered since, and another database lacks all of them. *Assumptions.* The directories are those that runs wrote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulations.account.accounts import Accounts
from simulations.records.run_directory import TOKEN, token_of
from userdp.errors import BadInput

_SHOWN = 5


@dataclass(frozen=True)
class Compared:
    """A folder of results beside a database: what they have in common, and what not."""

    results: Path
    url: str
    runs: int  # directories with a token
    missing: Sequence[Path]  # those of them without an entry
    absent: Sequence[str]  # entries without a directory, in words

    def insist(self) -> None:
        """Raise `BadInput` if there is a directory without an entry."""
        if not self.missing:
            return
        names = ", ".join(str(folder.relative_to(self.results)) for folder in self.missing[:_SHOWN])
        more = len(self.missing) - _SHOWN
        raise BadInput(
            f"{self.results} holds {len(self.missing)} runs without an entry in {self.url} "
            f"({names}{f' and {more} more' if more > 0 else ''}): the database is older than the results, or another "
            "one, and what they released would not count. Restore the newer database; if it is lost, enter them with "
            f"userdp serve enter {self.results}"
        )


def compared(accounts: Accounts, results: Path) -> Compared:
    """Compare the run directories in a folder with the entries of a database; `BadInput` if it does not answer."""
    places, inside = accounts.places(), results.resolve()
    files = {*results.rglob(TOKEN), *results.glob(f"*/{TOKEN}")}  # the latter behind links, too
    tokens = {file.parent: token_of(file.parent) or "" for file in sorted(files)}  # "" if unreadable: of no entry
    absent = [
        f"information: account {account} has an entry for {place}, which holds no such run"
        for token, (account, place) in places.items()
        if place and Path(place).is_relative_to(inside) and token not in tokens.values()
    ]
    missing = [folder for folder, token in tokens.items() if token not in places]
    return Compared(results, accounts.url, len(tokens), missing, absent)
