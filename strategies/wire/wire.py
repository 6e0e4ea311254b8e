"""How models and answers travel between a strategy and its nodes."""

from collections.abc import Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from strategies.wire.protocol import read_answer
from strategies.wire.questions import common_records, model_record, model_vector, train_content
from strategies.wire.roster import Roster
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer
from userdp.problems.base import Problem


class Wire:
    """To nodes that run `client_app`; `strategies.drop_in` has another, to ordinary Flower clients.

    Attributes:
        clipping: what a guarantee rests on where each user's vector is clipped.
        asks_more: whether nodes can be asked for more than a step of training, such as users' lengths before the clip.
        repeats: whether nodes that are asked the same again answer the same, which going on after a kill rests on.
    """

    clipping: tuple[str, ...] = ("nodes clip each user as told, and the server is trusted",)
    asks_more: bool = True
    repeats: bool = True

    def roster(self, users: int, max_missing: float) -> Roster:
        """Finds out which node holds which of n users."""
        return Roster(users)

    def initial(self, problem: Problem, given: ArrayRecord | None) -> ArrayRecord:
        """The model that a run starts at."""
        return self.record(problem.initial()) if given is None else given

    def record(self, x: Vector) -> ArrayRecord:
        """A model as it travels."""
        return model_record(x)

    def vector(self, arrays: ArrayRecord) -> Vector:
        """The model in a record.

        Raises:
            BadInput: it holds none.
        """
        return model_vector(arrays)

    def contents(
        self, arrays: ArrayRecord, config: ConfigRecord, parts: Sequence[NDArray[np.int64]], computation: Computation
    ) -> list[RecordDict]:
        """What the nodes that hold these users are sent: of what was drawn for single users, only what they need."""
        common = common_records(arrays, computation)
        return [train_content(common, users, computation.part(users)) for users in parts]

    def read(
        self, reply: Message, users: NDArray[np.int64], computation: Computation, dimension: int, sent: Vector
    ) -> Answer:
        """The answer in a reply to model ``sent``; see `strategies.wire.replies.Read`."""
        return read_answer(reply, users, computation, dimension)
