"""The policy of a holder of people's data: a file of its own beside the data, and a record of the runs let through.

`prepare` and `split` write `POLICY` with strict numbers, once: the holder's own changes stay. `RUNS` gets one line for
each run that was admitted, `REFUSALS` one for each that was not, or whose question was not, as far as they fit.

*Formal guarantees.* *Claim.* Let a folder hold people's data. Everything that its node answers in all runs together is
then (epsilon, delta)-DP for each of its people, with the numbers of ``[total]`` at the time of the last admission, and
no run exceeds ``[run]``. *Unit and relation.* A person of one folder, under the relation that the lines of `RUNS` have:
replacing a person costs up to twice the epsilon of a line for adding or removing one.

*Why.* A node behind its door answers messages of admitted runs alone (`strategies.wire.claims.Door`).
`PolicyDoor.admit` has a run's line on the disk before the first answer, holds a lock while it adds up what was
admitted, and refuses what the sums of all epsilons and of all deltas would exceed. Sums bound what mechanisms chosen
one after the other cost together (Rogers, Roth, Ullman, Vadhan 2016). A resumed run is what it was: its line must be
equal, and it is charged once. A missing or unreadable policy, or record, admits nothing.

*Who is protected from whom.* The folder's people from configurations, wherever they come from: of made-up users, with
other declarations, with seeded noise, for single samples, without a promise, or too expensive. *Assumptions.* The
server runs what it claims. A server with another program can claim secure noise and add none: with
``trust = ["sum"]`` the node need not believe it, because it adds its own share of the noise, refuses to answer without,
and refuses a sum with less noise than ``[sum] least_noise`` demands; of that, its own share alone hides its people from
a server that also invents the other nodes. Nobody restores an older record. The app that runs at the node is userdp's:
Flower runs what is submitted, which its ``--trusted-entities`` restricts.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from flwr.app import Message
from pydantic import Field, ValidationError

from simulations.config.errors import sentences
from simulations.config.run_config import REFERENCE, RunConfig
from simulations.records.run_directory import TOKEN, read_json, to_disk, write_text, writing
from strategies.wire.claims import Claim, Door, Refused, read_claim
from userdp.accounting.filter import Price
from userdp.accounting.guarantee import Guarantee
from userdp.nodes.computations import Computation
from userdp.settings import Section

POLICY, RUNS, REFUSALS = "policy.toml", "runs.jsonl", "refusals.jsonl"
_MOST = 1 << 18  # bytes of refusals, of which the newest stay
_WEAKEST = 10.0  # The largest epsilon that a policy accepts before its owner has changed it.
_NOT_ABOUT_ROWS = {
    *("path", "cache", "user", "users", "all_users", "samples", "min_samples", "max_samples"),
    *("test_fraction", "split_column", "split_test", "memory", "csv"),
}
"""Declarations of whose rows there are, how many, and where they lie: those of one silo differ from those of a run."""
_TEXT = """\
# What this silo accepts of a run. A run that does not fit gets no answer, not even how many users there are. This file
# is yours: userdp writes it once and never changes it. Without it, no run is accepted.
#
# In any case a run must belong to a deployment, protect whole users, have privacy.noise = "secure", and declare the
# columns, ranges and levels that users.npz was made with; nothing is trained without privacy.

[run]                     # the most that one run may cost
epsilon = {epsilon!r}
delta = {delta!r}

[total]                   # the most that all runs together may cost: sums over the lines of runs.jsonl
epsilon = {epsilon!r}
delta = {delta!r}

# trust = ["sum"]         # refuse servers that see more than noisy sums over several silos
# strategies = ["auto"]   # refuse all other strategies

# [sum]                   # of runs with privacy.trust = "sum", where this silo adds noise itself
# least_noise = 1.0       # of each sum, in units of how far replacing one person moves it
"""


class Budget(Section):
    """The most that one run, or all runs together, may cost."""

    epsilon: float = Field(gt=0)
    delta: float = Field(ge=0, lt=1)


class Sums(Section):
    """The sums to which a silo adds its own noise."""

    least_noise: float = Field(0.0, ge=0)


class Policy(Section):
    """The runs that the holder of people's data accepts; see the module."""

    run: Budget
    total: Budget
    trust: list[Literal["server", "sum"]] = Field(["server", "sum"])
    strategies: list[str] | None = None
    sum: Sums = Sums.model_validate({})

    def check(self, claim: Claim, declarations: str) -> None:
        """Raise `Refused` unless data with this digest of their declarations may answer a run with this claim."""
        for fits, told in (
            (
                claim.declarations == declarations,
                "it declares other columns, ranges or levels than these data were made with, or made-up users: run it "
                "with the [data] that prepare had, or make the folder again",
            ),
            (claim.noise == "secure", f"privacy.noise = {claim.noise!r}, and people's data need 'secure'"),
            (claim.unit == "user", f"it protects a {claim.unit}, and people's data need privacy.unit = 'user'"),
            (0 <= claim.epsilon < math.inf and claim.delta >= 0, f"{claim.strategy} promises no privacy"),
            (claim.trust in self.trust, f"privacy.trust = {claim.trust!r}, and {POLICY} accepts {self.trust}"),
            (
                self.strategies is None or claim.strategy in self.strategies,
                f"strategy.kind = {claim.strategy!r}, and {POLICY} accepts {self.strategies}",
            ),
            (
                Price.sum([_price(claim)]).within(_limits(self.run)),
                f"epsilon = {claim.epsilon:g}, delta = {claim.delta:g}, and [run] in {POLICY} accepts "
                f"{self.run.epsilon:g}, {self.run.delta:g} at most",
            ),
        ):
            if not fits:
                raise Refused(f"this run is refused: {told}")


def _price(claim: Claim) -> Price:
    return Price(epsilon=claim.epsilon, delta=claim.delta)


def _limits(budget: Budget) -> Price:
    return Price(epsilon=budget.epsilon, delta=budget.delta)


def write_policy(config: RunConfig, folder: Path) -> None:
    """Write the policy of a folder of people's data, unless it has one: one run with the budget of this configuration.

    Epsilon is at most 10, whatever the configuration says.
    """
    if not (folder / POLICY).exists():
        text = _TEXT.format(epsilon=min(config.privacy.epsilon, _WEAKEST), delta=config.privacy.delta)
        write_text(folder / POLICY, text)


def read_policy(folder: Path) -> Policy:
    """Read a folder's policy; raise `Refused` if it is missing or not valid."""
    path = folder / POLICY
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        return Policy.model_validate(raw, strict=True)
    except ValidationError as error:
        told = "; ".join(sentences(error, raw, Policy))
    except (OSError, ValueError) as error:  # tomllib's is one
        told = f"it is missing or cannot be read ({type(error).__name__}); prepare writes one where there is none"
    raise Refused(f"no run is accepted while {path} is not valid: {told}")


def digest(config: RunConfig) -> str:
    """Return the digest of the declarations in [data] by which rows are made and read, in their order.

    The loss is not among them: a silo holds rows, and every loss clips them into the declared bounds.
    """
    declared = config.data.model_dump(exclude=_NOT_ABOUT_ROWS, exclude_none=True)
    text = json.dumps(declared, default=str)  # the order of categorical columns is that of a row's entries
    text = re.sub(r'"hf:/[^"]*/', '"hf:', text)  # a tokenizer's folder lies elsewhere on every machine
    return hashlib.sha256(text.encode()).hexdigest()


def claim_of(config: RunConfig, promise: Guarantee | None = None, folder: Path | None = None) -> Claim:
    """Return what a run claims: its ``promise``, or before it is planned the budget that it asks for.

    ``folder`` holds the token of the run's entry in an account, from which its name follows; without one it has a new
    name, so a silo charges it anew.
    """
    if promise is None:
        epsilon = math.inf if config.strategy_name == REFERENCE else config.privacy.epsilon
        unit, relation, delta = config.privacy.unit, "", config.privacy.delta
    else:
        epsilon = promise.epsilon if promise.holds else math.inf
        unit, relation, delta = promise.unit, promise.relation, promise.delta
    token = secrets.token_hex(16)
    if folder is not None and (folder / TOKEN).is_file():
        token = str(read_json(folder / TOKEN)["token"])
    return Claim(
        strategy=config.strategy_name,
        noise=config.privacy.noise,
        trust=config.privacy.trust,
        unit=unit,
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        declarations=digest(config),
        run=hashlib.sha256(token.encode()).hexdigest()[:32],
    )


class PolicyDoor(Door):
    """The door of a folder of people's data, whose rows were made by declarations with this digest."""

    def __init__(self, folder: Path, declarations: str) -> None:
        super().__init__()
        self.folder, self.declarations = folder, declarations

    def admit(self, claim: Claim) -> None:
        """See `Door` and the module."""
        policy, path = read_policy(self.folder), self.folder / RUNS
        policy.check(claim, self.declarations)
        with writing(f"no run is accepted without a record of it: {path}", "let the silo's app write there"):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                _record(file, path, policy.total, claim)
            finally:
                os.close(file)

    def enter(self, message: Message) -> None:
        """See `Door`; the policy may have changed since the run was admitted, also for questions about shares."""
        with self._noted(message):
            super().enter(message)
            read_policy(self.folder).check(self.claims[message.metadata.run_id], self.declarations)

    def check(self, message: Message, asked: Computation) -> None:
        """See `Door`; a masked sum has to be as loud as the policy demands."""
        with self._noted(message):
            super().check(message, asked)
            policy, masked = read_policy(self.folder), asked.masked
            if masked is None:
                return
            least = policy.sum.least_noise
            moved = asked.sensitivity("replace_one", weight=masked.weight or 1.0)
            if moved is None or not masked.deviation >= least * moved:
                raise Refused(f"this sum is refused: its noise is below [sum] least_noise = {least:g} in {POLICY}")

    def consider(self, config: RunConfig) -> None:
        """Raise `Refused` if no run of this configuration can be accepted."""
        claim = claim_of(config)
        with self._noted(replace(claim, run="")):
            read_policy(self.folder).check(claim, self.declarations)

    @contextmanager
    def _noted(self, asked: Message | Claim) -> Iterator[None]:
        """Write down what is refused, for the holder; where that cannot be written, it is refused all the same."""
        try:
            yield
        except Refused as error:
            claim: dict[str, Any] = {}
            with suppress(ValueError):  # `Refused` is one; so is that a message has no content
                known = asked
                if not isinstance(known, Claim):
                    known = self.claims.get(known.metadata.run_id) or read_claim(known.content)
                claim = vars(known)
            plain = {
                name: value if isinstance(value, str) or math.isfinite(value) else str(value)
                for name, value in claim.items()
            }
            with suppress(OSError, ValueError):
                _note(self.folder / REFUSALS, plain, str(error))
            raise


def _note(path: Path, claim: dict[str, Any], why: str) -> None:
    """Add a refusal to a file, once for each run and reason; the oldest ones leave it when it is full."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = os.pread(file, os.fstat(file).st_size, 0).splitlines()
        told = json.dumps(claim | {"why": why})
        if any(line.startswith(told[:-1].encode()) for line in lines):
            return
        line = json.dumps(claim | {"why": why, "refused": datetime.now(UTC).isoformat(timespec="seconds")}).encode()
        while lines and len(line) + sum(map(len, lines)) > _MOST:
            del lines[: len(lines) // 2 + 1]
        os.ftruncate(file, 0)
        os.write(file, b"".join(each + b"\n" for each in (*lines, line)))
    finally:
        os.close(file)


def asked(folder: Path) -> dict[str, Any]:
    """Return what was asked of a folder of people's data: each run's claim and what the policy said, and the totals.

    Raises `Refused`, which is bad input: the policy or a line cannot be read, so that no run is accepted either.
    """
    policy, runs, spent = read_policy(folder), [], Price()
    for path, said in ((folder / RUNS, "admitted"), (folder / REFUSALS, "refused")):
        for line in path.read_bytes().rpartition(b"\n")[0].splitlines() if path.is_file() else []:
            if said == "admitted":
                spent = Price.sum([spent, _price(_read_line(line, path))])
            with suppress(ValueError, TypeError, AttributeError):  # of a refusal, which nothing depends on
                values = json.loads(line)
                runs.append({"when": values.pop(said, ""), "policy": said, "why": values.pop("why", ""), **values})
    return {
        "runs": sorted(runs, key=lambda run: str(run["when"])),
        "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
        "run": policy.run.model_dump(),
        "total": policy.total.model_dump(),
    }


def _record(file: int, path: Path, total: Budget, claim: Claim) -> None:
    """Add a run to a locked record, unless it is there; raise `Refused` if it does not fit into the total."""
    text = os.pread(file, os.fstat(file).st_size, 0)
    whole = text.rpartition(b"\n")[0] + b"\n" if b"\n" in text else b""
    admitted = [_read_line(line, path) for line in whole.splitlines()]
    for known in admitted:
        if known.run == claim.run:
            if known != claim:
                raise Refused("this run is refused: it has the name of another one, and is not what that was")
            return
    spent = Price.sum([Price(), *map(_price, admitted)])
    if not Price.sum([spent, _price(claim)]).within(_limits(total)):
        raise Refused(
            f"this run is refused: epsilon = {claim.epsilon:g}, delta = {claim.delta:g} on top of {spent.epsilon:g}, "
            f"{spent.delta:g} in {RUNS} exceeds [total] in {POLICY}: {total.epsilon:g}, {total.delta:g}"
        )
    os.ftruncate(file, len(whole))  # a line without an end was never admitted: nothing was answered
    line = json.dumps(vars(claim) | {"admitted": datetime.now(UTC).isoformat(timespec="seconds")}) + "\n"
    if os.write(file, line.encode()) < len(line):
        raise OSError("the disk is full")
    os.fsync(file)
    to_disk(path.parent)


def _read_line(line: bytes, path: Path) -> Claim:
    try:
        values: dict[str, Any] = json.loads(line)
        return Claim.of({name: value for name, value in values.items() if name != "admitted"})
    except (ValueError, AttributeError):  # `Refused` is one
        raise Refused(f"no run is accepted while {path} has a line that is no run: restore it as it was") from None
