"""Every field of every message between server and nodes, with who may know it; a test looks up messages of all runs."""

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
    "already has the noise of each user, and exact counts are left out",
}


@dataclass(frozen=True)
class MessageField:
    """A field of a message; a name that ends in a dot stands for all that begin with it."""

    message: str  # "query" (before the first round), "train" (each round) or "error"
    sender: str  # "server" or "node"
    name: str  # record and key
    kind: Knowledge
    told: str  # what it is


_TABLE: Mapping[tuple[str, str], Mapping[str, tuple[Knowledge, str]]] = {
    ("query", "server"): {
        "question.salt": ("public", "random bytes of this run, with which people's labels are digested"),
        "question.counts": ("public", "whether exact counts are wanted; false where the server is not trusted"),
        "question.keys": ("public", "whether public keys are wanted, where sums are masked"),
        "question.protocol": ("public", "version of the protocol that the server speaks"),
        "claim.strategy": ("public", "of a deployment, for silos with people's data: the strategy's name"),
        "claim.noise": ("public", "whether noise is secure or seeded"),
        "claim.trust": ("public", "whether the server sees more than masked sums"),
        "claim.unit": ("public", "whose data are protected: a user's or a sample's"),
        "claim.relation": ("public", "the neighbouring relation of the run's guarantee"),
        "claim.epsilon": ("public", "the run's planned epsilon"),
        "claim.delta": ("public", "the run's planned delta"),
        "claim.declarations": ("public", "digest of what the configuration declares about the data"),
        "claim.run": ("public", "digest that names the run, also when it is resumed"),
    },
    ("query", "node"): {
        "roster.users": ("public", "indices of the node's users"),
        "roster.identities": ("private", "salted digests of users' labels, of silos; the server can try labels"),
        "roster.key": ("public", "the node's public key, where sums are masked"),
        "facts.clipped_samples": ("private", "samples clipped into the declared bounds, if counts are wanted"),
        "facts.protocol": ("public", "version of the protocol that the node speaks"),
    },
    ("train", "server"): {
        "model.x": ("iterate", "the model"),
        "cohort.users": ("secret", "the node's users who take part; public where the sampling needs no secrecy"),
        "computation.name": ("public", "what each user computes"),
        "computation.reduce": ("public", "whether rows of users are wanted or their sum alone"),
        "computation.clip_norm": ("noised", "l2 clip: planned, or moved by released values"),
        "computation.l1_norm": ("noised", "l1 clip of the same"),
        "computation.separate": ("public", "whether users are computed one by one, for secure noise"),
        "computation.counted": ("public", "whether a masked sum counts users whose row is not finite"),
        "computation.lengths": ("public", "whether lengths before the clip are wanted; on one machine alone"),
        "computation.statistic": ("public", "a number of each user that is wanted beside the row"),
        "computation.noise.deviation": ("public", "standard deviation of the noise that each user adds itself"),
        "computation.noise.round": ("public", "number of the round, for simulated noise"),
        "computation.noise.seed": ("public", "of SIMULATED noise, which it lets anybody remove; absent if secure"),
        "computation.parameter.": ("noised", "numbers of the computation: planned, or from released values"),
        "centre.x": ("noised", "centre of the clip, from released values"),
        "arrays.": ("noised", "arrays of the computation: planned, or from released values"),
        "coins.rate": ("public", "share of samples that are drawn"),
        "coins.most": ("public", "most samples that may be drawn of a user"),
        "coins.keys": ("secret", "of the coins of the node's own users, which draw their samples"),
        "partition.groups": ("secret", "the group of each sample of the node's own users"),
        "partition.slots": ("public", "samples that a user may have"),
        "partition.count": ("public", "number of groups"),
        "masked.exponent": ("noised", "of the grid for rows of a masked sum; follows the clip"),
        "masked.deviation": ("noised", "standard deviation of the noise of a masked sum; follows the clip"),
        "masked.weight": ("noised", "of the number that ends each row of a masked sum; follows the clip"),
        "masked.round": ("public", "number of the round, for its masks and simulated noise"),
        "masked.keys": ("public", "public keys of the nodes of the sum; of the round, if sums survive silent nodes"),
        "masked.seed": ("public", "of SIMULATED noise, which it lets anybody remove; absent if secure"),
        "sharing.keys": ("public", "before the first round, if sums survive silent nodes: all nodes' public keys"),
        "sharing.threshold": ("public", "shares that rebuild a secret"),
        "sharing.lost": ("public", "most nodes of a round that may fall silent"),
        "sharing.rounds": ("public", "number of rounds for which secrets are shared"),
        "survivors.round": ("public", "after the parts of a round, if sums survive silent nodes: its number"),
        "survivors.keys": ("public", "public keys of the nodes of the sum"),
        "survivors.silent": ("public", "a byte for each of them: 1 if its part has not come"),
        "survivors.sealed": ("public", "the shares that each of them dealt to the node, sealed for it"),
    },
    ("train", "node"): {
        "answer.users": ("secret", "the users who answer: those of the request"),
        "answer.values": ("private", "one clipped row per user, or their sum alone"),
        "answer.data": ("private", "the same, sparse: entries that are not zero"),
        "answer.indices": ("private", "their columns: which entries of users' rows are not zero"),
        "answer.indptr": ("private", "starts of the rows: how many entries of each are not zero"),
        "answer.masked": ("noised", "masked sum of the node's users and its noise: random without the others'"),
        "shares.public": ("public", "before the first round, if sums survive silent nodes: a key for each round"),
        "shares.sealed": ("public", "shares of the secrets of each round, sealed for each node: random to all others"),
        "revealed.shares": ("noised", "shares of secrets that take masks off: with the parts, they give the noisy sum"),
        "answer.lengths": ("private", "length of each user's row before the clip; on one machine alone"),
        "facts.non_finite": ("private", "users whose rows were not finite, if counts are wanted"),
        "facts.columns": ("public", "columns of a sparse answer"),
    },
    ("error", "node"): {"reason": ("private", "kind of the error, never its text; absent unless counts are wanted")},
}
MESSAGE_FIELDS: tuple[MessageField, ...] = tuple(
    MessageField(*ends, name, kind, told) for ends, fields in _TABLE.items() for name, (kind, told) in fields.items()
)
