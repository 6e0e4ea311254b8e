"""Runs and audits enter an account before they ask anybody anything.

A run is charged for its whole plan, once: it resumes under the token in its folder, and nothing is given back when it
fails or stops early.

*Formal guarantees.* *Claim.* Under one token one run releases, wherever it is killed and however often it resumes.
*Why.* The entry is on the disk before the token is in the folder, and the token before anybody is asked. A run that
finds no token makes a new entry. One that finds a token goes on under it only with the settings, code and versions
that it was entered with (`digest_of`). With seeded noise it then releases the same numbers, to the bit, for the data
are the same, too. With secure noise it resumes from a state that `simulations.records.checkpoints` kept, or asks for
the first time, which the token says before anybody is asked; a run that keeps no state has a token that resumes
nothing. What cannot be read is refused. *Assumptions.* Those of
`strategies.core.run_state.RunState`. Nobody writes into the folder meanwhile.
"""

import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.config.run_config import RunConfig
from simulations.records.checkpoints import Checkpoints, digest_of, remove_checkpoints
from simulations.records.run_directory import (
    TOKEN,
    as_json,
    check_no_release,
    private_folder,
    read_json,
    write_text,
    writing,
)
from strategies.core.base import UserLevelStrategy
from strategies.core.run_state import Resumed
from strategies.drop_in import DropIn
from userdp.accounting.filter import Total
from userdp.accounting.guarantee import Guarantee, for_everybody
from userdp.accounting.ledger import Ledger
from userdp.errors import BadInput
from userdp.tracebacks import without_internals

if TYPE_CHECKING:
    from simulations.account.accounts import Accounts, Wanted

VARIABLE = "USERDP_ACCOUNTS"
"""The environment variable with the address of the accounts."""


def accounts_at(place: "str | Accounts | None") -> "Accounts":
    """Return the accounts at an address; by default those of `VARIABLE`, or in ~/.userdp/accounts.sqlite."""
    if not isinstance(place, str | None):
        return place
    from simulations.account.accounts import Accounts  # noqa: PLC0415 -- needs SQLAlchemy, which few runs do

    return Accounts(place or os.environ.get(VARIABLE) or f"sqlite:///{Path.home() / '.userdp' / 'accounts.sqlite'}")


def admitted(
    config: RunConfig, strategy: UserLevelStrategy, path: Path, *, resume: bool, resumes: bool, deployed: bool = False
) -> Resumed | None:
    """Let a run begin or ``resume`` in a folder, enter it into its account, and return the state to resume from.

    ``resumes``: its process can be killed, and another one resume it under this entry. BadInput: what the folder holds,
    or what is left in the account, forbids it.
    """
    resumed = Checkpoints(path, config).read() if resume else None
    if resume and resumed is None:  # nobody was asked
        remove_checkpoints(path)
    if resumed is None:
        check_no_release(path, secure=resume and config.privacy.noise == "secure")
    enter_run(config, strategy, path, resumed=resume, resumes=resumes, deployed=deployed)
    return resumed


def enter_run(
    config: RunConfig,
    strategy: UserLevelStrategy,
    folder: Path,
    *,
    resumed: bool = False,
    resumes: bool = True,
    deployed: bool = False,
    token: str | None = None,
    accounts: "Accounts | None" = None,
) -> None:
    """Enter a run into its account, before its first message; a resumed run is entered already.

    The account is in these ``accounts``, by default in those of the configuration.

    A ``token`` that was written down before makes entering safe to repeat; by default a new run has a new one. It pays
    for a run that is killed and ``resumes`` with the same settings.

    A deployment that names no account gets one that is named after its data; its first run fixes the total.

    Raises `BadInput`: the run does not fit into what is left, the accounts cannot be used, ``folder`` cannot be
    written, or its token is another run's.
    """
    name, file = config.privacy.account, folder / TOKEN
    settings = digest_of(config) if name is not None or deployed or resumed else ""
    place = config.privacy.accounts if accounts is None else accounts
    token = (_kept(file, settings) if resumed else None) or token or secrets.token_hex(16)
    if name is None and deployed and not config.data.simulated:
        name = _opened(config, place, promises_of(strategy))
    with writing(f"output.directory: {folder}"):  # which would be a pity to find out once the run is charged
        private_folder(folder)
        if file.is_dir():
            raise IsADirectoryError
        if name is None and not resumed:
            file.unlink(missing_ok=True)  # of another run
    if name is None:
        return
    what, where = f"{config.name}: {config.strategy_name}", str(folder.resolve())
    entry = replace(wanted(strategy, what), token=token, place=where)
    accounts_at(place).enter(name, entry)
    if resumed and file.is_file():  # its own, which says more than at its beginning
        return
    content = as_json({"account": name, "token": token, "settings": settings, "resumes": resumes})
    with writing(f"output.directory: {folder}"):
        write_text(file, content)


def _kept(file: Path, settings: str) -> str | None:
    """Return the token in a folder, None without one; `BadInput` if it is not that of the run with these settings."""
    anew = "to run anew, choose another folder, which is a new entry"
    if not os.path.lexists(file):
        return None
    try:
        kept = read_json(file)
        token, same, resumes = str(kept["token"]), kept.get("settings") == settings, kept.get("resumes", False)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise BadInput(
            f"{file}, which names the entry of this folder's run, cannot be read: put it back; {anew}"
        ) from None
    if not same:
        raise BadInput(
            f"{file} names the entry of a run with other settings, code or versions, and pays for that run alone: "
            f"resume it with the config.toml that it began with; {anew}"
        )
    if not resumes:
        raise BadInput(
            f"{file} names the entry of a run with privacy.noise = 'secure' and output.checkpoint = false, which "
            f"kept nothing to resume from, and drawing its noise again would be a second release; {anew}"
        )
    return token


@without_internals
def enter(
    strategy: UserLevelStrategy | DropIn,
    account: str,
    what: str = "",
    *,
    accounts: "str | Accounts | None" = None,
    times: int = 1,
) -> None:
    """Enter the run of a strategy into an account before its ``start``; runs of `train` and the command do so alone.

    Each call is an entry of its own, so that a program that starts again pays again: nobody knows what it had released.

    >>> enter(DropInFedAvg(users=200, epsilon=1.0, delta=1e-6), "registry")  # doctest: +SKIP

    Args:
        strategy: a strategy of this project, or a drop-in, which has not started.
        account: the name of the account.
        what: what the entry is for, for people; the strategy's name by default.
        accounts: the address of the accounts' database, or the accounts; by default as for `accounts_at`.
        times: how many such runs there will be.

    Raises `BadInput`: the run does not fit into what is left or promises nothing to users, the accounts cannot be used,
    or the strategy has started.
    """
    inner = strategy.inner if isinstance(strategy, DropIn) else strategy
    if inner.result.rounds or inner.spent_epsilon:
        raise BadInput("the strategy has started, and its users were asked: enter it before start")
    entry = wanted(strategy, what or strategy.plan.strategy)
    accounts_at(accounts).enter(account, replace(entry, token=secrets.token_hex(16), times=times))


def refusal(accounts: str | None, account: str, entry: "Wanted") -> str | None:
    """Return why an account would refuse this as things stand; None if it would not."""
    try:
        accounts_at(accounts).read(account).price(entry)
    except BadInput as error:
        return str(error)
    return None


def wanted(strategy: UserLevelStrategy | DropIn, what: str) -> "Wanted":
    """Return a run of a strategy, still without a token."""
    from simulations.account.accounts import Wanted  # noqa: PLC0415 -- as above

    inner = strategy.inner if isinstance(strategy, DropIn) else strategy
    ledger = inner.program.own.ledger
    # Those of other classes count what a `Cost` does not describe; a drop-in's does not know its model's size yet.
    cost = ledger.planned if inner.testers is None and type(ledger) is Ledger and inner is strategy else None
    return Wanted(what, promises_of(inner), token="", cost=cost)


def promises_of(strategy: UserLevelStrategy) -> tuple[Guarantee, ...]:
    """Return the guarantees of a run's parts, which compose; one for all of them if users are held out."""
    parts = strategy.program.promises
    return parts if strategy.testers is None else (for_everybody(parts, strategy.testers.given.privacy),)


def _opened(config: RunConfig, place: "str | Accounts | None", promises: tuple[Guarantee, ...]) -> str:
    """Return the account of a deployment's data, made with this run's budget as its total if there is none."""
    if not all(promise.holds and promise.unit == "user" for promise in promises):
        raise BadInput(
            f"strategy.kind = {config.strategy.kind!r}, privacy.unit = {config.privacy.unit!r}: this deployment would "
            "promise nothing to whole users, and no account could hold it; choose a strategy such as auto, and unit = "
            "'user'"
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.data.called).lstrip("-._") or "data"
    epsilon, delta = (sum(getattr(promise, part) for promise in promises) for part in ("epsilon", "delta"))
    others = 0.0 if all(promise.is_one_gaussian for promise in promises) else 1.0
    accounts_at(place).create(name, Total(epsilon, delta, promises[0].relation, others), anew=False)
    return name
