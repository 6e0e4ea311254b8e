"""User-level privacy for an existing Flower app: its clients stay unchanged, its server gets another strategy.

A node is a user, and its reply minus the model sent is that user's update, which the SERVER clips. See docs/drop-in.md.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any, ClassVar, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from strategies import drop_in_report as report
from strategies.clipping.adaptive_clipping import AdaptiveClipping
from strategies.clipping.dp_fed_avg import DPFedAvg
from strategies.clipping.recentred_clipping import RecentredClipping
from strategies.core.base import UserLevelStrategy
from strategies.core.held_out import Ranges
from strategies.core.plan import Plan
from strategies.core.public_facts import PublicFacts
from strategies.core.recipe import Recipe
from strategies.core.results import PrivateResult, RoundRecord
from strategies.drop_in_options import AROUND, BY_CLIENTS, check_kinds, check_options
from strategies.drop_in_roster import NodeRoster
from strategies.usable_replies import check_usable
from strategies.wire.model_layout import ModelLayout
from strategies.wire.protocol import read_answer
from strategies.wire.questions import common_records, train_content
from strategies.wire.replies import Request
from strategies.wire.roster import Roster
from strategies.wire.wire import Wire
from userdp.accounting import NoiseKind, Privacy
from userdp.accounting.guarantee import Trust
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer
from userdp.nodes.pipeline import RowPipeline
from userdp.problems.base import Box, Certificate, Problem

log = logging.getLogger("userdp")

ASSUMPTIONS = (
    "a node is a user: whoever runs two nodes has twice the weight and half the protection",
    "the server, which sees every user's model and clips it, is trusted",
)
"""The assumptions of the guarantee beside the sampler's own."""


class ClientSideLoss(Problem):
    """A loss that only the clients know: any model is allowed, nothing is certified."""

    name = "client_side"
    summary = "whatever the clients train on"
    has_targets = False
    columns = 0

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.domain = Box(np.zeros(dimension), np.inf)
        self.certificate = Certificate(reason="the clients' loss is not known to the server")

    def _unknown(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `BadInput`: the server knows neither the loss nor the data of ordinary clients."""
        raise BadInput(self.certificate.reason)

    bound = user_gradients = sample_gradients = sample_losses = _unknown


class ClientWire(Wire):
    """The wire to ordinary Flower clients, which train a whole model and reply with it; see `DropIn`.

    Args:
        layout: the model's arrays; None before a run, when they are not known.
        metrics: of held-out clients.
        asks: called with the number and the computation of every round, before its messages are made.
    """

    clipping = ASSUMPTIONS
    who = ASSUMPTIONS[:1]
    asks_more = False
    counts = True
    repeats = False

    def __init__(
        self,
        layout: ModelLayout | None = None,
        metrics: Ranges | None = None,
        asks: Callable[[int, Computation], None] = lambda number, computation: None,
    ) -> None:
        self._layout, self.metrics, self._asks = layout, metrics or {}, asks

    def roster(self, users: int, max_missing: float) -> NodeRoster:
        """See `Wire`; each node is a user."""
        return NodeRoster(users, max_missing)

    def record(self, x: Vector) -> ArrayRecord:
        return self._known.record(x)

    def vector(self, arrays: ArrayRecord) -> Vector:
        return self._known.vector(arrays)

    @property
    def _known(self) -> ModelLayout:
        if self._layout is None:
            raise BadInput("the model's arrays are not known yet: call start with initial_arrays")
        return self._layout

    def messages(
        self, kind: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, roster: Roster, request: Request
    ) -> list[Message]:
        """See `Wire`; the beginning of a round is told."""
        if kind == MessageType.TRAIN:
            self._asks(server_round, request.computation)
        return super().messages(kind, server_round, arrays, config, roster, request)

    def contents(
        self, arrays: ArrayRecord, config: ConfigRecord, parts: Sequence[NDArray[np.int64]], computation: Computation
    ) -> list[RecordDict]:
        """See `Wire`; each client gets the content of Flower's own FedAvg, and its mod what it needs for a mask."""
        if computation.masked is None:
            return [RecordDict({"arrays": arrays, "config": config}) for _ in parts]
        asked = common_records(arrays, computation)
        asked |= {"arrays": asked.pop("model"), "config": config}
        asked["layout"] = ConfigRecord({"frozen": "\n".join(self._known.frozen)})
        return [train_content(asked, users, computation.part(users)) for users in parts]

    def read(
        self, reply: Message, users: NDArray[np.int64], computation: Computation, dimension: int, sent: Vector
    ) -> Answer:
        """See `Wire`; clips a user's update here, on the server, unless its node masked it."""
        if computation.masked is not None:
            return read_answer(reply, users, computation, dimension)
        pipeline = RowPipeline(computation, users, dimension)
        rows, non_finite = pipeline.finite(self._known.update(reply, sent, computation.name))
        return Answer(users, pipeline.clipped(rows), non_finite)


def _of_inner(method: str) -> Any:
    def called(self: "DropIn", *arguments: Any, **named: Any) -> Any:
        return getattr(self.inner, method)(*arguments, **named)

    called.__doc__ = f"See `UserLevelStrategy.{method}`."
    return called


class DropIn(Strategy):
    """A userdp strategy for ordinary Flower clients.

    A client gets ``{"arrays": model, "config": train_config}`` with "server-round" in the config, as from Flower's
    FedAvg, and replies with one ArrayRecord of the same names and shapes. Its metrics, "num-examples" among them, are
    not read: all users weigh the same, and values computed from private data without noise would leak.

    *Formal guarantees.* Those of the strategy within, with the update ``reply - model sent`` in the place of the nodes'
    vectors. Unit: one whole user, who is one node, with any number of examples. The update is a function of the
    released model and of that user's data alone, whatever the client's code does, and it is clipped here, by the
    server: sensitivities do not rest on honest nodes. An update that is not finite is zero, and so is that of a reply
    near zero against the model sent (less than a quarter as long), which is an update in the place of a model; if most
    are, the run ends, by a count with noise (`check_count`). A reply of other names or shapes counts as missing and
    adds nothing; the divisor is public. Floating statistics of batch normalisation are
    parts of the model, clipped and noised like weights. Rounding to the model's types and raising negative variances to
    zero come after the noise. Counts of missing and non-finite users are exact and for the operator only. A drop-in
    enters no account by itself: `simulations.enter` does, before `start`.

    Args:
        users: n, the public number of users, each with one node.
        epsilon: > 0.
        delta: below 1 / users.
        frozen: patterns of arrays that keep their initial value.
        nonnegative: patterns of arrays whose entries are raised to zero after the noise; running variances by default.
        seed: of cohorts and seeded noise; see `Recipe.strategy`. Give one in tests only.
        noise: "seeded": fast, and neither safe in floating point nor from a generator for cryptography; or "secure":
            both, and takes about 15 microseconds a parameter in each round. The former by default, the latter where
            nodes add the noise.
        trust: "server": clients stay as they are, and the server sees their models; or "sum": their ``train`` has the
            mod `private_updates`, and the server sees the noisy sum of a round alone.
        colluding: with "sum", the largest share of nodes that may tell each other what they know.
        lost_nodes: with "sum", how many nodes may fall silent in a round without losing it.
        held_out: further nodes, which train nothing and evaluate the released models after up to eight rounds.
        metrics: names of their metrics, each with the public range that every client's value is clipped into.
        options: of the strategy within: rounds, clip_norm, cohort, ...

    Raises `BadInput`: an option is unknown or out of range, or the clients' to choose.
    """

    strategy: ClassVar[type[Recipe]]
    settings: ClassVar[dict[str, Any]] = {}
    """Defaults that differ from those of the strategy within."""
    by_size: ClassVar[frozenset[str]] = frozenset()
    """Numbers of the plan that depend on the number of the model's parameters."""
    # the strategy within. Before the run starts it is one for a single parameter, with the final guarantee, as the
    # model's size is not known; the plan does not state its noise
    inner: UserLevelStrategy
    _clip: float | None = None  # of the round that was asked last

    def __init__(
        self,
        *wrapped: Any,
        users: int,
        epsilon: float,
        delta: float,
        frozen: Sequence[str] = (),
        nonnegative: Sequence[str] = ("*running_var",),
        seed: int | None = None,
        noise: NoiseKind | None = None,
        trust: Trust = "server",
        colluding: float = 0.0,
        lost_nodes: int = 0,
        held_out: int = 0,
        metrics: Ranges | None = None,
        **options: Any,
    ) -> None:
        check_options(type(self).__name__, self.strategy, wrapped, options)
        check_kinds(held_out, metrics, frozen=frozen, nonnegative=nonnegative)
        self._patterns = frozen, nonnegative
        self._around = {name: options.pop(name) for name in AROUND if name in options}
        self._recipe = self.strategy(**self.settings | options)
        noise = noise or ("secure" if trust == "sum" else "seeded")
        if metrics and not held_out:
            raise BadInput("metrics without held_out: nodes that train evaluate nothing; give held_out further nodes")
        self._public, self._held_out, self._metrics = PublicFacts(users), held_out, metrics
        self._privacy = Privacy(epsilon, delta, noise=noise, trust=trust, colluding=colluding, lost_nodes=lost_nodes)
        self._seed = seed
        self.inner = self._within(None)

    def _within(self, layout: ModelLayout | None) -> UserLevelStrategy:
        problem = ClientSideLoss(1 if layout is None else layout.dimension)
        wire = ClientWire(layout, self._metrics, self._round_begins)
        given = (problem, self._public, self._privacy)
        inner = self._recipe.strategy(*given, seed=self._seed, wire=wire, held_out=self._held_out, **self._around)
        inner.plan = report.shown(inner.plan, BY_CLIENTS, self.by_size, known=layout is not None)
        return inner

    @property
    def plan(self) -> Plan:
        """The plan of the strategy within, without the clients' options; see `plan_for` for its noise."""
        return self.inner.plan

    def plan_for(self, initial_arrays: ArrayRecord) -> Plan:
        """Return the plan for a model, with the noise, which depends on the number of its parameters."""
        return self._within(ModelLayout(initial_arrays, *self._patterns)).plan

    @property
    def result(self) -> PrivateResult:
        """The result so far."""
        return self.inner.result

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, *arguments: Any, **more: Any
    ) -> PrivateResult:
        """Run the plan for this model; the further arguments are those of `UserLevelStrategy.start`.

        Raises `BadInput`: there is no initial model, num_rounds disagrees with the plan, or the strategy has run
        before. Raises `RunFailed`: too many users are missing.
        """
        if initial_arrays is None:
            raise BadInput("initial_arrays is missing: give the model, ArrayRecord(model.state_dict())")
        if not self.inner.result.rounds:
            self.inner = self._within(ModelLayout(initial_arrays, *self._patterns))
        call = signature(self.inner.start).bind(grid, initial_arrays, *arguments, **more).arguments
        if call.get("evaluate_config") and not self._held_out:
            log.warning("evaluate_config is not sent: held-out clients alone evaluate; give held_out and metrics")
        call["on_round"] = partial(self._round_ends, call.get("on_round"))
        report.run_begins(type(self).__name__, self.plan)
        started = time.perf_counter()
        result = self.inner.start(**call)
        report.run_ends(result, time.perf_counter() - started)
        return result

    def _round_begins(self, server_round: int, computation: Computation) -> None:
        report.round_begins(server_round, self.plan)
        self._clip = computation.clip_norm

    def _round_ends(self, on_round: Callable[[RoundRecord], None] | None, record: RoundRecord) -> None:
        report.round_ends(record, self.plan, self.result.evaluate_metrics_clientapp.get(record.round))
        if on_round is not None:
            on_round(record)
        if self._privacy.trust == "server":  # a masked sum has the count
            assert self._clip is not None
            check_usable(self.inner, record, self._clip)

    # Flower's methods are those of the strategy within.
    configure_train = _of_inner("configure_train")
    aggregate_train = _of_inner("aggregate_train")
    configure_evaluate = _of_inner("configure_evaluate")
    aggregate_evaluate = _of_inner("aggregate_evaluate")
    summary = _of_inner("summary")


class DropInFedAvg(DropIn):
    """DP-FedAvg of ordinary Flower clients: the mean of clipped model updates, plus Gaussian noise, every round.

    Options: those of `DPFedAvg`, without users' training.

    *Formal guarantees.* Those of `DPFedAvg` as `DropIn` says: replacing a user, one node, moves a round's sum of
    clipped updates by at most 2C (adding or removing one, for poisson, by C), and the noise is calibrated to that.
    """

    strategy: ClassVar[type[Recipe]] = DPFedAvg
    settings: ClassVar[dict[str, Any]] = {"local_steps": 1}


class DropInAdaptiveClipping(DropIn):
    """Adaptive clipping of ordinary Flower clients: the clip follows a private quantile of their updates' norms.

    Options: those of `AdaptiveClipping`, without users' training.

    *Formal guarantees.* Those of `AdaptiveClipping` as `DropIn` says; the server also counts the unclipped users.
    """

    strategy: ClassVar[type[Recipe]] = AdaptiveClipping
    settings: ClassVar[dict[str, Any]] = {"local_steps": 1}


class DropInAuto(DropIn):
    """The mean of ordinary Flower clients' updates without a clip to choose: the first round finds it, privately.

    Updates may be from a millionth to a million long: whatever clients' learning rates are, the clip follows a private
    quantile of the lengths, and the server's step, which is the mean of clipped updates, follows the clip. If most are
    longer or shorter, the first round ends the run, unless its noise hides that.

    Options: those of `AdaptiveClipping`, without users' training and a clip.

    *Formal guarantees.* Those of `AdaptiveClipping` with ``find_clip`` as `DropIn` says: every round, the first
    included, is one Gaussian mechanism of the same multiplier, so that the search is within epsilon.
    """

    strategy: ClassVar[type[Recipe]] = AdaptiveClipping
    settings: ClassVar[dict[str, Any]] = {"local_steps": 1, "find_clip": True}


class DropInRecentredClipping(DropIn):
    """Recentred clipping of ordinary Flower clients: about the update as released so far.

    Options: those of `RecentredClipping`, without users' training. The negative update stands for the gradient, as
    where `RecentredClipping` has users train; steps of length 1 go to the private mean of their models.

    *Formal guarantees.* Those of `RecentredClipping` as `DropIn` says.
    """

    strategy: ClassVar[type[Recipe]] = RecentredClipping
    settings: ClassVar[dict[str, Any]] = {"learning_rate": 1.0}
    by_size: ClassVar[frozenset[str]] = frozenset({"radius_factor"})
