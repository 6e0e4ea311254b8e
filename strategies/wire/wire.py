"""The path of models and answers between a strategy and its nodes."""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from strategies.wire.protocol import read_answer
from strategies.wire.questions import common_records, model_record, model_vector, train_content
from strategies.wire.replies import Request
from strategies.wire.roster import Roster
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer
from userdp.problems.base import Problem


class Wire:
    """The wire to nodes that run `client_app`; `strategies.drop_in` has another, to ordinary Flower clients."""

    # Of what held-out clients report, name -> range; None where they answer questions about any model.
    metrics: Mapping[str, tuple[float, float]] | None = None
    # The assumptions of a guarantee that rests on clipped users.
    clipping: tuple[str, ...] = ("nodes clip each user as requested, and the server is trusted",)
    who: tuple[str, ...] = ()  # the assumptions about who a user is, which a guarantee has in any case
    asks_more: bool = True  # nodes answer more questions than training, such as users' lengths before the clip
    counts: bool = False  # masked sums count users whose row is not finite: see `Computation.counted`
    repeats: bool = True  # nodes give the same answer to a repeated question, as resuming after a kill requires

    def roster(self, users: int, max_missing: float) -> Roster:
        """Return the roster that finds the node of each of n users, of whom that share may lack one."""
        return Roster(users, max_missing)

    def initial(self, problem: Problem, given: ArrayRecord | None) -> ArrayRecord:
        """Return the model that a run starts at."""
        return self.record(problem.initial()) if given is None else given

    def record(self, x: Vector) -> ArrayRecord:
        """Return a model as Flower's arrays."""
        return model_record(x)

    def vector(self, arrays: ArrayRecord) -> Vector:
        """Return the model in a record; raises `BadInput` if it holds none."""
        return model_vector(arrays)

    def messages(
        self, kind: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, roster: Roster, request: Request
    ) -> list[Message]:
        """Return the messages of a request to the nodes that hold its users."""
        asked = roster.assign(request.users)
        contents = self.contents(arrays, config, [users for _, users in asked], request.computation)
        places = zip(asked, contents, strict=True)
        return [Message(content, node, kind, group_id=str(server_round)) for (node, _), content in places]

    def contents(
        self, arrays: ArrayRecord, config: ConfigRecord, parts: Sequence[NDArray[np.int64]], computation: Computation
    ) -> list[RecordDict]:
        """Return the messages to the nodes that hold these users, each with the secrets of its own users alone."""
        common = common_records(arrays, computation)
        return [train_content(common, users, computation.part(users)) for users in parts]

    def read(
        self, reply: Message, users: NDArray[np.int64], computation: Computation, dimension: int, sent: Vector
    ) -> Answer:
        """Return the answer in a reply to model ``sent``; see `strategies.wire.replies.Read`."""
        return read_answer(reply, users, computation, dimension)
