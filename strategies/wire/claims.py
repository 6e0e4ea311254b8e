"""The claim of a server about its run, and the door of people's data: a node behind one answers no other run.

The claim travels with the question for a node's users. Nodes without a door, as in simulations, take no notice of it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, cast

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from strategies.wire.questions import counts_wanted
from userdp.errors import BadInput
from userdp.nodes.computations import Computation

_KEPT = "userdp.claim"
_LONGEST = 200  # letters of a text: a node's holder reads it, and it must not fill a disk or command a terminal


class Refused(BadInput):
    """A node does not answer this run, whatever data it holds: its door says why."""


@dataclass(frozen=True)
class Claim:
    """The promise of a run, as its server states it to every node before anything else."""

    strategy: str  # its name
    noise: str  # "seeded" or "secure"
    trust: str  # "server" or "sum"
    unit: str  # whose data are protected: "user" or "sample"
    relation: str  # of neighbours: "replace_one" or "add_or_remove"
    epsilon: float  # of the whole run; infinite if it promises nothing
    delta: float  # the same
    declarations: str  # digest of what the run's configuration declares about the data
    run: str  # names this run, also when it is resumed

    def record(self) -> ConfigRecord:
        """Return the record of a message, which `read_claim` reads."""
        return ConfigRecord(asdict(self))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the claim with these values; raise `Refused` unless they are all of them, numbers and short texts."""
        short = all(len(text) <= _LONGEST and text.isprintable() for text in values.values() if isinstance(text, str))
        right = {name: type(value) for name, value in values.items()} == {one.name: one.type for one in fields(cls)}
        if not (short and right):
            raise Refused(
                "the server does not say what its run promises, in the way that this version of userdp reads it: it is "
                "no server of a deployment, or of another version; upgrade userdp at both ends"
            )
        return cls(**values)


def read_claim(content: RecordDict, name: str = "claim") -> Claim:
    """Return the claim in a record of that name; raise `Refused` if there is none, or one of another form."""
    return Claim.of(cast(Mapping[str, Any], content[name]) if name in content else {})


def check_question(claim: Claim, asked: Computation) -> None:
    """Refuse what no run with this claim asks: seeded noise, exact lengths, a sum without a bound or without a mask.

    *Formal guarantees.* *Claim.* Every sum that passes moves by a finite amount if one user is replaced
    (`Computation.sensitivity`), users are computed one by one, as noise that is secure in floating point needs, and
    noise that the node or its users add comes from the node's own operating system. With ``trust = "sum"`` every value
    that passes has the node's own noise and mask on it (`userdp.masking.sums.MaskedSum`), and `Door.enter` lets no
    question for exact counts in. *Assumptions.* With ``trust = "server"`` the server adds the noise that it claims: no
    node can see that.
    """
    own = (asked.noise, asked.masked)
    if not asked.separate or any(each is not None and each.seed is not None for each in own):
        raise Refused("the server asks for seeded noise, or for users in one block, and claims secure noise")
    if asked.lengths:
        raise Refused("the server asks for the exact lengths of users' rows, which only simulations reveal")
    if asked.reduce == "sum" and not _bounded(asked):
        raise Refused(f"the server asks for a sum of {asked.name!r} that no clip bounds, so no noise could hide a user")
    if claim.trust == "sum" and asked.masked is None:
        raise Refused("the server claims to see masked sums alone, and asks for values without a mask")


def _bounded(asked: Computation) -> bool:
    moved = asked.sensitivity("replace_one")
    return moved is not None and math.isfinite(moved)


class Door(ABC):
    """The check that every message to a node of people's data has to pass, before the node looks at what it asks.

    *Formal guarantees.* *Claim.* A node behind a door answers a message only if an earlier or this very question for
    its users, of the same run of Flower's, had a claim that `admit` accepted; and train and evaluate messages only if
    `check_question` accepts what they ask. *Whom it protects.* The node's users, from configurations and apps that
    promise less than the node's owner accepts. *Assumptions.* The server runs what it claims.

    Attributes:
        claims: Flower's number of a run -> the claim that was accepted.
    """

    def __init__(self) -> None:
        self.claims: dict[int, Claim] = {}

    @abstractmethod
    def admit(self, claim: Claim) -> None:
        """Accept a run, and keep on disk that it was; raise `Refused` if it is not accepted."""

    def enter(self, message: Message) -> None:
        """Let a message in; raise `Refused` for one of a run that was not admitted."""
        run = message.metadata.run_id
        if message.metadata.message_type == MessageType.QUERY:
            self.claims.pop(run, None)
            claim = read_claim(message.content)
            if claim.trust == "sum" and counts_wanted(message):
                raise Refused("the server claims to see masked sums alone, and asks for exact counts")
            self.admit(claim)
            self.claims[run] = claim
        elif run not in self.claims:
            raise Refused("the server asks before it has said what its run promises: start the run again")

    def check(self, message: Message, asked: Computation) -> None:
        """Check the computation that a message asks for, which was let in; raise as `check_question`."""
        check_question(self.claims[message.metadata.run_id], asked)


@contextmanager
def kept_claim(context: Context, door: Door | None, run: int) -> Iterator[None]:
    """Let a door remember its run's claim between messages, for each of which Flower may load an app anew."""
    if door is None:
        yield
        return
    if _KEPT in context.state:
        door.claims[run] = read_claim(context.state, _KEPT)
    try:
        yield
    finally:
        context.state.pop(_KEPT, None)
        if run in door.claims:
            context.state[_KEPT] = door.claims[run].record()
