"""Every field of every message between server and nodes, with who may know what it holds.

A test records the messages of runs of every strategy and looks each field up here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Knowledge = Literal["public", "noised", "iterate", "secret", "private"]
KNOWLEDGE: Mapping[Knowledge, str] = {
    "public": "from the configuration, declarations and public randomness alone",
    "noised": "a function of what was released under the guarantee, and of public numbers",
    "iterate": "the model that a round starts from: `noised` in strategies of round release, and inside a phase of "
    "phase release NOT private, for nodes that take part alone",
    "secret": "randomness of the server that the guarantee rests on where it is amplified by who is drawn; each node "
    "gets what is about its own users",
    "private": "a function of users' data without noise: for the server, which is trusted, alone. Under local_dp it "
    "has the noise of each user already, and counts are not told",
}
"""What each kind means."""


@dataclass(frozen=True)
class MessageField:
    """A field of a message.

    Attributes:
        message: "query" (before the first round), "train" (each round) or "error".
        sender: who sends it.
        name: record and key; a name that ends in a dot stands for all that begin with it.
        kind: see `KNOWLEDGE`.
        told: what it is.
    """

    message: Literal["query", "train", "error"]
    sender: Literal["server", "node"]
    name: str
    kind: Knowledge
    told: str

    def matches(self, name: str) -> bool:
        """Whether this is the field of that record and key."""
        return name == self.name or (self.name.endswith(".") and name.startswith(self.name))


def _fields(
    message: Literal["query", "train", "error"], sender: Literal["server", "node"], *rows: tuple[str, Knowledge, str]
) -> list[MessageField]:
    return [MessageField(message, sender, *row) for row in rows]


MESSAGE_FIELDS: tuple[MessageField, ...] = (
    *_fields(
        "query",
        "server",
        ("question.salt", "public", "random bytes of this run, with which people's labels are digested"),
        ("question.counts", "public", "whether exact counts are wanted; not where the server is not trusted"),
        ("question.keys", "public", "whether public keys are wanted, where sums are masked"),
    ),
    *_fields(
        "query",
        "node",
        ("roster.users", "public", "whom the node holds, by index"),
        (
            "roster.identities",
            "private",
            "a salted digest of each user's label, of silos: the server, which knows the salt, can try labels",
        ),
        ("roster.key", "public", "the node's public key, where sums are masked"),
        ("facts.clipped_samples", "private", "how many samples had to be clipped into the declared bounds, if asked"),
    ),
    *_fields(
        "train",
        "server",
        ("model.x", "iterate", "the model"),
        ("cohort.users", "secret", "which of the node's users take part; public where the sampling needs no secrecy"),
        ("computation.name", "public", "what each user computes"),
        ("computation.reduce", "public", "whether rows of users are wanted or their sum alone"),
        ("computation.clip_norm", "noised", "l2 clip: planned, or moved by released values"),
        ("computation.l1_norm", "noised", "l1 clip, likewise"),
        ("computation.separate", "public", "whether users are computed one by one, for secure noise"),
        ("computation.lengths", "public", "whether lengths before the clip are wanted; on one machine alone"),
        ("computation.statistic", "public", "a number a user that is wanted beside the row"),
        ("computation.noise.deviation", "public", "standard deviation of the noise that each user adds itself"),
        ("computation.noise.round", "public", "number of the round, for simulated noise"),
        ("computation.noise.seed", "public", "of SIMULATED noise, which whoever knows it takes off; absent if secure"),
        ("computation.parameter.", "noised", "numbers of the computation: planned, or from released values"),
        ("centre.x", "noised", "vector that rows are clipped about, from released values"),
        ("arrays.", "noised", "arrays of the computation: planned, or from released values"),
        ("coins.rate", "public", "share of samples that are drawn"),
        ("coins.most", "public", "samples that may be drawn of a user at most"),
        ("coins.keys", "secret", "of the coins of the node's own users, which draw their samples"),
        ("partition.groups", "secret", "which group each sample of the node's own users is in"),
        ("partition.slots", "public", "samples that a user may have"),
        ("partition.count", "public", "how many groups there are"),
        ("masked.exponent", "noised", "of the grid that rows of a masked sum are put on; follows the clip"),
        (
            "masked.deviation",
            "noised",
            "standard deviation of the noise that the nodes of a masked sum add together: planned, or in proportion to "
            "a released clip",
        ),
        ("masked.weight", "noised", "of the number that each row of a masked sum ends with; follows the clip"),
        ("masked.round", "public", "number of the round, which its masks and simulated noise are for"),
        ("masked.keys", "public", "public keys of the nodes of a masked sum"),
        ("masked.seed", "public", "of SIMULATED noise, which whoever knows it takes off; absent if secure"),
    ),
    *_fields(
        "train",
        "node",
        ("answer.users", "secret", "who answers: those who were asked"),
        ("answer.values", "private", "one clipped row a user, or their sum alone"),
        ("answer.data", "private", "the same, sparse: entries that are not zero"),
        ("answer.indices", "private", "their columns: which entries of users' rows are not zero"),
        ("answer.indptr", "private", "where each row begins: how many entries of each are not zero"),
        (
            "answer.masked",
            "noised",
            "the sum of a node's users with its share of noise, under masks: alone it looks like random numbers, and "
            "with all other nodes' it gives the noisy sum of the round",
        ),
        ("answer.lengths", "private", "how long each user's row is before the clip; on one machine alone"),
        ("facts.non_finite", "private", "how many users' rows were not finite, if counts are wanted"),
        ("facts.columns", "public", "columns of a sparse answer"),
    ),
    *_fields(
        "error",
        "node",
        (
            "reason",
            "private",
            "kind of the error, such as MemoryError, never its text; nothing where counts are not told",
        ),
    ),
)
"""All of them."""


def message_field(message: str, sender: str, name: str) -> MessageField:
    """The entry of a field.

    Raises:
        LookupError: the list has none.
    """
    for field in MESSAGE_FIELDS:
        if (field.message, field.sender) == (message, sender) and field.matches(name):
            return field
    raise LookupError(
        f"{message} of the {sender}: {name} is not in strategies/wire/message_fields.py: say there who may know it"
    )
