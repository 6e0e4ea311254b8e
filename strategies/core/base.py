"""The round loop that every userdp strategy shares.

A strategy owns sampler, computation, estimator, noise and ledger together. It is a Flower `Strategy`, for any ServerApp
and `Grid`. What differs from Flower's own loop: it waits for users rather than nodes, a node that does not answer never
changes n, the ledger is charged before anything is released, and a failed run keeps what it has.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.core.around import Around, divided
from strategies.core.declarations import Declarations, check_budget
from strategies.core.forecast import Forecast, standstill
from strategies.core.options import parse_options
from strategies.core.plan import Plan, PublicFacts
from strategies.core.preparation import Preparation
from strategies.core.read_only import ReadOnly, frozen
from strategies.core.results import Evaluate, PrivateResult, RoundRecord, counts
from strategies.core.resuming import Keeper, Resumable, Resumed
from strategies.core.scheme import Scheme, Step
from strategies.core.secure_noise import SECURE_ASSUMPTIONS, separately
from strategies.core.streams import Streams
from strategies.core.ways import Way
from strategies.wire.replies import Gathered, Request, gather, with_keys
from strategies.wire.wire import Wire
from userdp.accounting import Guarantee, Privacy
from userdp.arrays.types import Vector
from userdp.errors import BadInput, RunFailed
from userdp.noise import NoiseSource, rounding_slack
from userdp.problems.base import Problem
from userdp.problems.in_coordinates import Coordinates

log = logging.getLogger("userdp")


class UserLevelStrategy(Declarations, Resumable, Strategy):
    """Base of the strategies.

    A strategy defines `_make_scheme` and `_make_plan`, before any data is seen, `_ask` and `_step` for each round.

    Args:
        problem: the loss to minimise.
        public: public facts about the users.
        privacy: the budget.
        seed: of sampling and of SIMULATED noise (``privacy.noise``); streams are split by role.
        wire: how models and answers travel; to nodes that run `client_app` if not given.
        compare_with_initial: end with a `LastComparison`, for a part of the budget.
        preparation: begin with one, for a part of the budget; a strategy whose options are `PreparedOptions` then works
            in the coordinates, and with the clip, that it finds.
        options: the fields of the strategy's `Options`.

    Attributes:
        original: the loss as nodes know it.
        problem: the same; in coordinates that a preparation found, if there is one (before it has, in a stand-in).
        scheme: what is done to users' data.
        plan: what people see of it.
        memory: what the server remembers between rounds, made by the scheme.
        result: what there is so far.
        streams: open the noise of the run's releases.
        require_identities: refuse nodes that cannot say who their users are; a deployment sets it before `start`.

    Raises:
        BadInput: an option is unknown or out of range, or the plan cannot be made; before any data is seen.
    """

    require_identities: bool = False
    scheme: Scheme
    memory: Any
    _x, _initial, _released = ReadOnly(), ReadOnly(), ReadOnly()

    def __init__(
        self,
        problem: Problem,
        public: PublicFacts,
        privacy: Privacy,
        *,
        seed: int = 0,
        wire: Wire | None = None,
        compare_with_initial: bool = False,
        preparation: type[Preparation] | None = None,
        **options: Any,
    ) -> None:
        check_budget(type(self), privacy, public.users)
        self.problem, self.public, self.seed, self.wire = problem, public, seed, wire or Wire()
        self.original = problem
        self.options = parse_options(self.Options, options)
        self._coordinates: Coordinates | None = None
        self.privacy, self._around = divided(self, privacy, preparation, compare_with_initial)
        self.streams = Streams(secure=privacy.noise == "secure")
        self._build()
        self.plan: Plan = self._make_plan()
        self.result = PrivateResult()
        self._x = self._initial = self._released = self.scheme.checked_start(problem, problem.initial())
        self._request: Request | None = None
        self._facts: dict[str, float] = {}
        self._roster = self.wire.roster(public.users, self.options.max_missing)

    def _build(self) -> None:
        """All that follows from problem and options; with a preparation, at first for a stand-in of what it finds."""
        if self._around.before is not None:
            self.problem, self._coordinates, self.options = self._around.before.settle(self.options)
        self.scheme = self._make_scheme()
        self.memory = self.scheme.new_memory()
        self._slack = self._rounding_slack() if self.privacy.noise == "secure" else 0.0
        self._ledger = self.scheme.ledger(self.privacy) if self.scheme.guarantee.holds else None

    # What a strategy defines ---------------------------------------------------------------------------------------

    @abstractmethod
    def _make_scheme(self) -> Scheme:
        """Who takes part, what is done to their data and what it costs, from public facts alone."""

    @abstractmethod
    def _make_plan(self) -> Plan:
        """The scheme in numbers, for people; made by `_planned`."""

    @abstractmethod
    def _ask(self, index: int) -> Request | None:
        """The request of round ``index`` (from 0); None skips the round."""

    @abstractmethod
    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        """The private step: what becomes of a round's replies."""

    # What a strategy is built with ---------------------------------------------------------------------------------

    def _promise(self, epsilon: float, accountant: str, assumptions: Iterable[str]) -> Guarantee:
        """That of a scheme under replace-one, for the unit asked for."""
        return Guarantee(
            unit=self.privacy.unit,
            relation="replace_one",
            epsilon=epsilon,
            delta=self.privacy.delta,
            accountant=accountant,
            adversary=self.adversary,
            assumptions=tuple(assumptions),
            holds=True,
        )

    def _planned(self, way: Way | None = None, *, rounds: int, cohort: int, users_needed: int, **more: Any) -> Plan:
        """A plan with the strategy's name, n, guarantee and forecast filled in; ``more`` are further fields of `Plan`.

        ``way`` is how the model is come to, as far as noise is concerned; None where nothing can be said.
        """
        forecast, numbers = None if way is None else Forecast.of(self.problem, way), more.pop("numbers", {})
        more["warnings"] = (
            *self._around.warnings,
            *more.get("warnings", ()),
            *standstill(self.problem, self.options, rounds, numbers),
            *(() if forecast is None else forecast.warnings()),
        )
        rounds, guarantee, numbers = self._around.plan(rounds, self.scheme.guarantee, numbers)
        relied_on = SECURE_ASSUMPTIONS[self.privacy.unit] if self.privacy.noise == "secure" else ()
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=cohort,
            users=self.public.users,
            users_needed=users_needed,
            guarantee=guarantee.assuming(*relied_on),
            forecast=forecast,
            numbers=numbers,
            **more,
        )

    def _noise(self, index: int, purpose: int = 0) -> NoiseSource:
        """The source of the noise of round ``index``, opened once; ``purpose`` separates the releases of a round."""
        return self.streams.open(self.seed, index, purpose, self._slack)

    @property
    def _default_step(self) -> float:
        """1 / curvature; half where nothing bounds it, or the loss is linear."""
        return 1 / (self.problem.curvature or 2.0)

    def _rounding_slack(self) -> float:
        """How much sensitivities grow by rounding: those of the strategy, and of sums over all users around it."""
        scheme = self.scheme
        own = rounding_slack(scheme.summands or self.public.users, scheme.spread, scheme.rounding)
        return own if self._around == Around() else max(own, rounding_slack(self.public.users))

    # Flower's five methods -----------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a node: the model, which of its users answer, and what they compute."""
        part, _ = self._around.place(server_round, self.plan.rounds)
        if part is not None and part is self._around.after:
            arrays = self.wire.record(self._released)
        self._x = self.wire.vector(arrays)
        self._request = self._asked(server_round)
        if self._request is None or server_round == self._lost:
            return []
        if self.privacy.noise == "secure":
            self._request = separately(self._request)
        request = self._request = with_keys(self._request, self._roster, self.privacy.colluding)
        asked = self._roster.assign(request.users)
        contents = self.wire.contents(arrays, config, [users for _, users in asked], request.computation)
        return [
            Message(content, node, MessageType.TRAIN, group_id=str(server_round))
            for (node, _), content in zip(asked, contents, strict=True)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The private step; returns the next iterate (which, for phase-wise strategies, is NOT released).

        Raises:
            RunFailed: more of the cohort is missing than ``max_missing`` allows.
        """
        if self._request is None:
            return None, None
        read = partial(self.wire.read, sent=self._x)
        missing = 1.0 if server_round == self._lost else self.options.max_missing
        gathered = gather(self._request, self._roster, replies, self.problem.dimension, missing, read)
        self._follow(server_round, self._request, gathered if self.hears_silence else gathered.uncounted())
        return self.wire.record(self._x), counts(gathered.missing, gathered.non_finite)

    def _asked(self, server_round: int) -> Request | None:
        """The request of a round, whosever it is."""
        part, index = self._around.place(server_round, self.plan.rounds)
        if part is not None:
            return part.request(index, self._constant)
        request = self._ask(index)
        if request is None or self._coordinates is None:
            return request
        return replace(request, computation=replace(request.computation, coordinates=self._coordinates))

    def _follow(self, server_round: int, request: Request, gathered: Gathered) -> None:
        """Charge a round, then take its step, whosever it is."""
        part, index = self._around.place(server_round, self.plan.rounds)
        with np.errstate(over="ignore", invalid="ignore"):  # see `_take`
            if part is None:
                if self._ledger is not None:
                    self._ledger.charge(request.users)
                step = self._step(index, self._x, gathered)
                if self._ledger is not None:
                    self._ledger.check_drawn(self.streams.drawn())
                self._take(step, self._coordinates)
            else:
                part.charge(request)
                # Numbers that no round of the strategy's own has.
                noise = partial(self._noise, self.plan.rounds + server_round)
                step = part.step(index, self._x, self._constant, gathered, noise)
                part.check_drawn(self.streams.drawn())
                self._take(step, None)
        self._facts = dict(step.facts)
        if part is self._around.before and part is not None and index + 1 == part.rounds:
            self._begin_prepared()

    def _begin_prepared(self) -> None:
        """Plan anew with what the preparation found, for the same promise, and begin.

        Raises:
            RunFailed: the promise would be another; no round of the strategy's own has begun.
        """
        promised = self.scheme.guarantee
        self._build()  # the ledger, too: to the one before nothing is charged, and cohorts drawn in secret are new
        if self.scheme.guarantee != promised:
            raise RunFailed(f"{self.name} would promise something else with what its preparation found: run without")
        if self._coordinates is not None:
            self._x = self.problem.initial()

    def _take(self, step: Step, coordinates: Coordinates | None) -> None:
        """Go on from the next iterate and hand out the released model, unless such a step overflows.

        A model is released here alone, within its domain. After an overflow both stay what they were: a step that
        releases a model follows from released values, and so does this. Inside a phase, where nothing is released, the
        iterate is what the step says, for it may not be looked at.
        """
        if step.constant is not None:
            self.result.constant = frozen(step.constant)
        if step.released is None:
            self._x = step.following
            return
        released = step.released if coordinates is None else coordinates.models(step.released)
        if np.isfinite(step.following).all() and np.isfinite(released).all():
            self._x, self._released = step.following, self.original.domain.project(released)
        else:
            log.warning("a step of %s overflows, and is not taken: lower its step size", self.name)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No message: metrics computed from users' data are not covered by the guarantee."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None

    def summary(self) -> None:
        """Log the plan and the guarantee."""
        self.plan.tell(log)

    # The loop ------------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        roster_timeout: float = 60,
        keeper: Keeper | None = None,
        resumed: Resumed | None = None,
    ) -> PrivateResult:
        """Run the plan.

        Args:
            grid: Flower's, or userdp's local and Ray grids.
            initial_arrays: ``model_record(x)``, which must not depend on private data; the problem's initial model by
                default. Drop-in strategies need it, in the model's own arrays.
            num_rounds: leave out; the plan fixes it, and another number is refused.
            timeout: seconds a round may take before unanswered users count as missing.
            train_config: drop-in strategies send it to the clients, with "server-round" added; not used otherwise.
            evaluate_config: not used: clients are not asked to evaluate, for their metrics would leak.
            evaluate_fn: called with (round, arrays of the RELEASED model) before the first and after every round.
            on_round: called with the record of every round.
            roster_timeout: seconds to wait until all n users have a node.
            keeper: where to keep what the run needs to go on; nothing is kept if not given.
            resumed: what a killed run with the same settings kept: go on from there.

        Returns:
            The released model, the guarantee, one record a round. ``self.result`` holds the same during the run and
            after a failure.

        Raises:
            BadInput: num_rounds disagrees with the plan, the initial model lies outside the domain (or is missing,
                for drop-in strategies, which keep nothing), the strategy has run before, or what was kept is not such
                a run's.
            RunFailed: too many users are missing.
        """
        arrays = self.wire.initial(self.original, initial_arrays)
        if num_rounds is not None and num_rounds != self.plan.rounds:
            raise BadInput(f"num_rounds = {num_rounds}, the plan has {self.plan.rounds}: leave num_rounds out")
        if self.result.rounds:
            raise BadInput("this strategy has run already: make a new one, with a budget of its own")
        if not self.wire.repeats and (keeper is not None or resumed is not None):
            raise BadInput("clients of an ordinary Flower app train at random, so no run goes on: leave keeper out")
        self._check_declared()
        self.summary()
        self._initial = self._released = self.scheme.checked_start(self.original, self.wire.vector(arrays))
        self._roster.require_identities = self.require_identities
        self._roster.keys = self.privacy.trust == "sum"
        self._roster.counts = self.server_trusted and not self._roster.keys
        self._roster.gather(grid, roster_timeout)
        result = PrivateResult(
            arrays=arrays, guarantee=self.plan.guarantee, clipped_samples=self._roster.clipped_samples
        )
        self.result, done, secure = result, 0, self.privacy.noise == "secure"
        if resumed is None:
            result.initial_metrics = result.evaluate(evaluate_fn, 0)
        else:
            done = self._resume(resumed)
            arrays, result.arrays = self.wire.record(self._x), self.wire.record(self._released)
        if keeper is not None:
            keeper.keep(partial(self._snapshot, done), must=True)
        for server_round in range(done + 1, self.plan.rounds + 1):
            started = time.perf_counter()
            config = ConfigRecord({**(train_config or {}), "server-round": server_round})
            messages = list(self.configure_train(server_round, arrays, config, grid))
            if self._request is None:
                continue
            if keeper is not None and secure:
                keeper.ask(self._question(server_round))
            replies = grid.send_and_receive(messages, timeout=timeout)
            next_arrays, metrics = self.aggregate_train(server_round, replies)
            arrays = arrays if next_arrays is None else next_arrays
            record = result.add(
                server_round,
                self.wire.record(self._released),
                metrics,
                seconds=time.perf_counter() - started,
                spent=self._spent,
                facts=self._facts,
                evaluate=evaluate_fn,
            )
            if keeper is not None:
                keeper.keep(partial(self._snapshot, server_round), must=secure)
            if on_round is not None:
                on_round(record)
        if result.rounds:
            self.plan.check_spent(result.rounds[-1].spent_epsilon)
        return result
