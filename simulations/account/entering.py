"""Runs and audits enter an account before they ask anybody anything.

A run is charged for its whole plan, once: it resumes under the token in its folder, and nothing is given back when it
fails or stops early.
"""

import logging
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.config.run_config import RunConfig
from simulations.records.run_directory import TOKEN, as_json, read_json, write_whole, writing
from strategies.core.base import UserLevelStrategy
from strategies.core.testers import for_everybody
from userdp.accounting.filter import Total
from userdp.accounting.guarantee import Guarantee
from userdp.accounting.ledger import Ledger
from userdp.data.synthetic.source import SyntheticData
from userdp.errors import BadInput

if TYPE_CHECKING:
    from simulations.account.accounts import Accounts, Wanted

log = logging.getLogger("userdp")
VARIABLE = "USERDP_ACCOUNTS"
"""The environment variable with the address of the accounts."""


def accounts_at(url: str | None) -> "Accounts":
    """Return the accounts at an address; by default those of `VARIABLE`, or in ~/.userdp/accounts.sqlite."""
    from simulations.account.accounts import Accounts  # noqa: PLC0415 -- needs SQLAlchemy, which few runs do

    return Accounts(url or os.environ.get(VARIABLE) or f"sqlite:///{Path.home() / '.userdp' / 'accounts.sqlite'}")


def enter_run(
    config: RunConfig,
    strategy: UserLevelStrategy,
    folder: Path,
    *,
    resumed: bool = False,
    deployed: bool = False,
    token: str | None = None,
) -> None:
    """Enter a run into its account, before its first message; a resumed run is entered already.

    A ``token`` that was written down before makes entering safe to repeat; by default a new run has a new one.

    A deployment that names no account gets one that is named after its data; its first run fixes the total.

    Raises `BadInput`: the run does not fit into what is left, the accounts cannot be used, or ``folder`` not be
    written.
    """
    name, file = config.privacy.account, folder / TOKEN
    if name is None and deployed and not isinstance(config.data, SyntheticData):
        name = _opened(config, promises_of(strategy))
    with writing(f"output.directory: {folder}"):  # which would be a pity to find out once the run is charged
        folder.mkdir(parents=True, exist_ok=True)
        if name is None and not resumed:
            file.unlink(missing_ok=True)  # of another run
    if name is None:
        return
    token = str(read_json(file)["token"]) if resumed and file.is_file() else token or secrets.token_hex(16)
    enter(config, name, f"{config.name}: {config.strategy_name}", strategy, token=token, place=str(folder.resolve()))
    content = as_json({"account": name, "token": token})
    with writing(f"output.directory: {folder}"):
        write_whole(file, lambda partial: partial.write_text(content, encoding="utf-8"))


def enter(
    config: RunConfig,
    name: str,
    what: str,
    strategy: UserLevelStrategy,
    *,
    token: str | None = None,
    place: str = "",
    times: int = 1,
) -> None:
    """Enter ``times`` runs of a strategy; `BadInput` if they do not fit, or the accounts cannot be used."""
    wanted = replace(_wanted(strategy, what), token=token or secrets.token_hex(16), place=place, times=times)
    accounts_at(config.privacy.accounts).enter(name, wanted)


def refusal(config: RunConfig, strategy: UserLevelStrategy) -> str | None:
    """Return why the account would refuse this run as things stand; None if it would not, or the run names none."""
    name = config.privacy.account
    if name is None:
        return None
    try:
        accounts_at(config.privacy.accounts).read(name).price(_wanted(strategy, config.name))
    except BadInput as error:
        return str(error)
    return None


def _wanted(strategy: UserLevelStrategy, what: str) -> "Wanted":
    """Return a run of a strategy, still without a token."""
    from simulations.account.accounts import Wanted  # noqa: PLC0415 -- as above

    ledger = strategy.state.ledger
    # Those of other classes count what a `Cost` does not describe.
    cost = ledger.planned if strategy.testers is None and type(ledger) is Ledger else None
    return Wanted(what, promises_of(strategy), token="", cost=cost)


def promises_of(strategy: UserLevelStrategy) -> tuple[Guarantee, ...]:
    """Return the guarantees of a run's parts, which compose; one for all of them if users are held out."""
    parts = strategy.around.promises(strategy.scheme.guarantee)
    return parts if strategy.testers is None else (for_everybody(parts, strategy.testers.given.privacy),)


def _opened(config: RunConfig, promises: tuple[Guarantee, ...]) -> str | None:
    """Return the account of a deployment's data, made with this run's budget as its total if there is none."""
    if not all(promise.holds and promise.unit == "user" for promise in promises):
        log.warning("this deployment enters no account: it promises nothing to whole users")
        return None
    data = config.data
    called = Path(data.path).stem if data.kind == "table" else data.name
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", called).lstrip("-._") or "data"
    epsilon, delta = (sum(getattr(promise, part) for promise in promises) for part in ("epsilon", "delta"))
    others = 0.0 if all(promise.is_one_gaussian for promise in promises) else 1.0
    accounts_at(config.privacy.accounts).create(name, Total(epsilon, delta, promises[0].relation, others), anew=False)
    return name
