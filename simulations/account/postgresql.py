"""The way to PostgreSQL: beyond this machine through TLS, and with a password that stands in a file.

*Formal guarantees.* *Claim.* No connection to a server of another machine, or to one that nobody names here, is in the
open, whatever the environment says. *Why.* The mode of TLS is read as PostgreSQL's clients read it, from the address
and then from the environment; without one, the server's certificate and name are verified, and modes that may fall back
are refused.
"""

import os
from pathlib import Path

import sqlalchemy as sql

from userdp.errors import BadInput

PASSWORD = "USERDP_ACCOUNTS_PASSWORD"
"""The variable that names the file of PostgreSQL's password."""
_VARIABLES = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "service": "PGSERVICE", "sslmode": "PGSSLMODE"}
_ENCRYPTED = ("require", "verify-ca", "verify-full")
_HOME = ("", "localhost", "127.0.0.1", "::1")


def guarded(place: sql.URL) -> sql.URL:
    """Return an address of PostgreSQL whose connections beyond this machine are encrypted, with the password's file."""
    told = {name: os.environ.get(variable) for name, variable in _VARIABLES.items()} | dict(place.query)
    named = [place.host, told["hostaddr"], told["host"] if place.host is None else place.query.get("host")]
    each = [one for name in named for one in ((name,) if isinstance(name, str) else name or ())]
    hosts = [host for one in each for host in one.split(",")]
    away = (
        told["service"]
        or "conninfo" in place.query
        or any(not host.startswith("/") and host not in _HOME for host in hosts)
    )
    if away and told["sslmode"] is None:
        place = place.update_query_dict({"sslmode": "verify-full"})
    elif away and told["sslmode"] not in _ENCRYPTED:
        raise BadInput(
            f"privacy.accounts: sslmode = {told['sslmode']} lets passwords and entries travel in the open: use "
            "verify-full, and sslrootcert=FILE with who signs the database's certificate"
        )
    if place.password is None and (file := os.environ.get(PASSWORD)):
        try:
            place = place.set(password=Path(file).read_text(encoding="utf-8").strip())
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{PASSWORD} = {file}, the file of the database's password, cannot be read ({type(error).__name__}): "
                "correct it"
            ) from None
    return place.set(drivername="postgresql+psycopg") if place.drivername == "postgresql" else place
