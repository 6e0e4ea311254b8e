"""The declarations of a strategy: everything that pages, listings and tests know of it."""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from userdp.errors import BadInput


class Fact(BaseModel):
    """A number among a round's facts."""

    model_config = ConfigDict(frozen=True)

    # public: no user's data enter; noised: a function of what was released under the guarantee; private: of users'
    # data, for their holder alone, under a name that ends in `_private`
    kind: Literal["public", "noised", "private"]
    meaning: str  # in words

    def __init__(self, kind: str, meaning: str) -> None:
        super().__init__(kind=kind, meaning=meaning)


class About(BaseModel):
    """The declarations of a strategy, and all that others know of it; `BadInput` if one is missing or misspelt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str  # the name in configurations
    summary_line: str  # one line
    family: str  # the group of similar strategies
    paper: str  # its source
    cost: str  # of one round, where a node has N samples of dimension d, U users take part and K nodes answer
    needs: str = "any loss"  # requirements on the loss and the data
    units: tuple[Literal["user", "sample"], ...] = ("user",)  # the supported units of privacy; the first is the default
    promise: str = "user level, against other nodes too"  # who is protected from whom, for tables; "none" for nobody
    release: Literal["round", "phase"] = "round"  # private are all iterates, or only the model released after a phase
    # who may see what, and who is trusted
    adversary: str = "against other nodes and whoever sees every iterate; the server is trusted"
    compares_users: bool = False  # whether a round compares each user with each other in every column
    without_secure_noise: str | None = None  # why ``noise = "secure"`` is refused; None where rounding is accounted for
    with_secure_noise: str = ""  # what secure noise changes about the strategy's randomness
    without_comparison: str | None = None  # why ``compare_with_initial`` is refused; None where it is supported
    pure: bool = False  # whether ``privacy.delta = 0`` is supported
    masked: bool = False  # whether ``privacy.trust = "sum"`` is supported
    server_trusted: bool = True  # whether nodes send the server exact counts of their users' data
    protocol: int = 1  # the oldest version of the wire protocol (`strategies.wire.questions`) that knows its messages
    hears_silence: bool = False  # whether a step learns how many users did not answer: no release may follow from that
    example: Mapping[str, Any] = {}  # settings with which it makes a short run for a few hundred users of two features
    example_problem: Mapping[str, Any] = {"kind": "quadratic"}  # a [problem] section that it can be run with
    meanings: Mapping[str, str] = {}  # the meanings of its plan's ``numbers``, by name, beyond `MEANINGS`
    notes: Mapping[str, Fact] = {}  # the facts of its rounds, by name, beyond `NOTES`

    def __init__(self, **declared: Any) -> None:
        try:
            super().__init__(**declared)
        except ValidationError as error:
            frame = sys._getframe(1)
            where = f"{frame.f_code.co_name} (line {frame.f_lineno} of {frame.f_code.co_filename})"
            raise BadInput(f"the About of {where} {_fault_of(error)}") from None


def _fault_of(error: ValidationError) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return f'does not say {name}: add {name}="..."'
    if first["type"] == "extra_forbidden":
        near = get_close_matches(name, About.model_fields, n=1)
        return f"says {name}, which nobody reads: {f'is {near[0]} meant?' if near else 'leave it out'}"
    return f"says {name} = {first['input']!r}: {first['msg']}"


MEANINGS: Mapping[str, str] = {
    "cohort": "users per round",
    "sampling": "how cohorts are drawn",
    "participations": "rounds that a user takes part in",
    "held_out_users": "users who train nothing and evaluate released models privately",
    "held_out_noise": "standard deviation of the noise on each of their means, between 0 and 1",
    "learning_rate": "step size (of each phase)",
    "ema_decay": "weight of a model in the released average, as a share of the weight of the next",
    "clip_norm": "l2 norm that gradients are clipped to",
    "noise_multiplier": "noise over sensitivity",
    "noise_deviation": "standard deviation of the noise per coordinate",
    "l2_sensitivity": "most that one user can move what is released (l2 norm)",
    "l1_sensitivity": "most that one user can move what is released (l1 norm)",
    "replace_one_epsilon": "what the promise means for replacing a user, to compare with other strategies",
    "replace_one_delta": "the delta that goes with it",
    "local_steps": "steps of each user on its own data",
    "local_epochs": "times that each user goes through its data",
    "local_rate": "step size of each user",
    "server_epsilon": "epsilon against a server without nodes on its side, and whoever sees every iterate, at most",
    "module_parameters": "parameters of the language model",
    "trained_parameters": "those that are trained, and sent",
    "weights_mib": "mebibytes of the model, once in each process",
    "sample_mib": "mebibytes that a sample takes while its gradient is computed",
    "samples_at_once": "samples that are computed at once, so that they take no more than problem.memory",
    "rows_at_once": "users whose gradients are computed at once",
    "message_mib": "mebibytes of a model or a sum of users' rows in a message",
    "node_noise": "most noise of all nodes together, over what is left without that of colluding and of silent nodes",
    "preparation_rounds": "rounds that find coordinates, clip and steps; the numbers here are those of a stand-in",
    "preparation_epsilon": "epsilon of these rounds",
    "preparation_delta": "delta that goes with it",
    "filled_noise": "standard deviation of the noise on the share of people and rows that can be used; the run stops "
    "where that share is below one in ten, unless this is above 0.16",
    "comparison_epsilon": "epsilon of the last comparison with the initial model",
    "comparison_margin": "share of users beyond a half whose preference noise reverses in one run of 20",
}
"""The meanings of numbers that plans of several strategies, or of extra rounds, state, by name."""

NOTES: Mapping[str, Fact] = {
    "noise_deviation": Fact("noised", "standard deviation of the noise: planned, or in proportion to a released clip"),
    "filled_share": Fact("noised", "mean of the shares of people heard and of rows that can be used, with noise"),
    "floored": Fact("noised", "directions whose second moment is below its noise"),
    "moment_size": Fact("noised", "typical norm of users' second moments in scaled columns"),
    "length": Fact("noised", "typical length of users' gradients"),
    "lost": Fact("public", "1 where no sum can be read, or a killed run may have released it: charged, not released"),
    "clip_norm": Fact("noised", "clip of the round: planned, or moved by released values"),
    "unclipped_share": Fact("noised", "share of unclipped users, with noise"),
    "radius": Fact("noised", "radius of the clip, from released values"),
    "distance": Fact("noised", "released estimate of how far users are from the centre"),
    "gain": Fact("noised", "weight of the released innovation"),
    "improved_share": Fact("noised", "share of users whom the model serves better than the initial one, with noise"),
    "held_out_loss": Fact("noised", "mean loss of held-out users, with noise; of the released model"),
    "went_back": Fact("noised", "1 where the initial model was released instead"),
}
"""The facts of rounds of several strategies, or of extra rounds, by name."""
