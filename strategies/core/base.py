"""The round loop that every userdp strategy shares.

A strategy owns sampler, computation, estimator, noise and ledger together. It is a Flower `Strategy`: put it in any
ServerApp, on any `Grid`. What differs from Flower's own loop: it waits for users rather than nodes, a node that does
not answer never changes n, the ledger is charged before anything is released, and a failed run keeps what it has.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.core.declarations import Declarations
from strategies.core.forecast import Forecast, standstill
from strategies.core.last_comparison import WHOLE_RUN, LastComparison, check_comparison
from strategies.core.options import parse_options
from strategies.core.plan import Plan, PublicFacts
from strategies.core.results import Evaluate, PrivateResult, RoundRecord
from strategies.core.scheme import Scheme, Step
from strategies.core.secure_noise import NOISE_SOURCES, SECURE_ASSUMPTIONS, check_noise, separately
from strategies.core.ways import Way
from strategies.wire.replies import Gathered, Request, gather
from strategies.wire.wire import Wire
from userdp.accounting import AnyLedger, Guarantee, Privacy
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.noise import NoiseSource, SecureNoise, SeededNoise, rounding_slack
from userdp.problems.base import Problem
from userdp.randomness import stream

log = logging.getLogger("userdp")


class UserLevelStrategy(Declarations, Strategy):
    """Base of the strategies.

    A strategy defines four methods: `_make_scheme` and `_make_plan`, before any data is seen, and `_ask` and `_step`
    for each round. Everything else here is final.

    Args:
        problem: the loss to minimise.
        public: public facts about the users.
        privacy: the budget.
        seed: of sampling and of SIMULATED noise (``privacy.noise``); streams are split by role.
        wire: how models and answers travel; to nodes that run `client_app` if not given.
        compare_with_initial: end with a `LastComparison`, for a part of the budget.
        options: the fields of the strategy's `Options`.

    Attributes:
        scheme: what is done to users' data.
        plan: what people see of it.
        memory: what the server remembers between rounds, made by the scheme.
        result: what there is so far.
        require_identities: refuse nodes that cannot say who their users are, so that one person in two silos is found;
            a deployment sets it before `start`.

    Raises:
        BadInput: an option is unknown or out of range, or the plan cannot be made; before any data is seen.
    """

    require_identities: bool = False
    scheme: Scheme
    memory: Any

    def __init__(
        self,
        problem: Problem,
        public: PublicFacts,
        privacy: Privacy,
        *,
        seed: int = 0,
        wire: Wire | None = None,
        compare_with_initial: bool = False,
        **options: Any,
    ) -> None:
        privacy.check_population(public.users)
        if privacy.unit not in self.units:
            raise BadInput(
                f"privacy.unit = {privacy.unit!r}: {self.name} protects {' or '.join(self.units)} level; "
                f"set privacy.unit = {self.units[0]!r}, which is the stronger promise, or use sample_clipped_sgd"
            )
        if privacy.delta == 0 and not self.pure:
            raise BadInput(
                f"privacy.delta = 0: {self.name} cannot promise pure privacy; set a delta well below "
                f"1/n = {1 / public.users:g}"
            )
        check_noise(privacy, self.name, self.without_secure_noise)
        self._comparison: LastComparison | None = None
        if compare_with_initial:
            check_comparison(self.name, self.without_comparison)
            privacy, self._comparison = LastComparison.within(privacy, public.users)
        self.problem, self.public, self.privacy, self.seed = problem, public, privacy, seed
        self.wire = wire or Wire()
        self.options = parse_options(self.Options, options)
        self.scheme = self._make_scheme()
        self.memory = self.scheme.new_memory()
        self.plan: Plan = self._make_plan()
        self._slack = self._rounding_slack() if privacy.noise == "secure" else 0.0
        self._ledger: AnyLedger | None = self.scheme.ledger(privacy) if self.plan.guarantee.holds else None
        self.result = PrivateResult()
        self._x: Vector = problem.initial()
        self._initial: Vector = self._x
        self._released: Vector = self._x
        self._request: Request | None = None
        self._facts: dict[str, float] = {}
        self._roster = self.wire.roster(public.users, self.options.max_missing)

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
            *more.get("warnings", ()),
            *standstill(self.problem, self.options, rounds, numbers),
            *(() if forecast is None else forecast.warnings()),
        )
        guarantee, own = self.scheme.guarantee, self._comparison
        if own is not None:
            rounds, guarantee = rounds + 1, own.guarantee(guarantee)
            priced = {name: numbers[name] + own.epsilon for name in WHOLE_RUN if name in numbers}
            numbers = {**numbers, **priced, **own.numbers()}
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
        """Where the noise of round ``index`` comes from; ``purpose`` separates several seeded draws of one round."""
        if self.privacy.noise == "secure":
            return SecureNoise(self._slack)
        return SeededNoise(stream(self.seed, "noise", index, purpose))

    @property
    def _default_step(self) -> float:
        """1 / smoothness; half where the loss certifies none, or is linear."""
        return 1 / (self.problem.certificate.smoothness or 2.0)

    def _rounding_slack(self) -> float:
        """How much sensitivities grow by rounding."""
        return rounding_slack(self.scheme.summands or self.public.users, self.scheme.spread)

    # Flower's five methods -----------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a node: the model, which of its users answer, and what they compute."""
        self._x = self.wire.vector(arrays)
        compared = self._compared_in(server_round)
        self._request = self._ask(server_round - 1) if compared is None else compared.request(self._initial)
        if self._request is None:
            return []
        if self.privacy.noise == "secure":
            self._request = separately(self._request)
        request = self._request
        return [
            Message(
                self.wire.content(arrays, config, users, request.computation),
                node,
                MessageType.TRAIN,
                group_id=str(server_round),
            )
            for node, users in self._roster.assign(request.users)
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
        missing = self.options.max_missing
        gathered = gather(self._request, self._roster, replies, self.problem.dimension, missing, read)
        compared = self._compared_in(server_round)
        if compared is not None:
            compared.charged = True
        elif self._ledger is not None:
            self._ledger.charge(self._request.users)
        with np.errstate(over="ignore", invalid="ignore"):  # see `_take`
            step = (
                self._step(server_round - 1, self._x, gathered)
                if compared is None
                else compared.step(self._x, self._initial, gathered, self._noise(server_round - 1))
            )
        self._facts = dict(step.facts)
        self._take(step)
        metrics = {"missing_users_private": gathered.missing, "non_finite_users_private": gathered.non_finite}
        return self.wire.record(self._x), MetricRecord(metrics)  # type: ignore[arg-type]

    def _compared_in(self, server_round: int) -> LastComparison | None:
        """The last comparison, if that round is its."""
        return self._comparison if server_round == self.plan.rounds else None

    def _take(self, step: Step) -> None:
        """Go on from the next iterate and hand out the released model, unless such a step overflows.

        Then both stay what they were: a step that releases a model follows from released values, and so does this.
        Inside a phase, where nothing is released, the iterate is what the step says, for it may not be looked at.
        """
        if step.released is None:
            self._x = step.following
        elif np.isfinite(step.following).all() and np.isfinite(step.released).all():
            self._x, self._released = step.following, step.released
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
        plan = self.plan
        log.info("%s: %d rounds of %d of %d users", self.name, plan.rounds, plan.cohort, plan.users)
        log.info("%s", plan.guarantee.sentence())
        for warning in plan.warnings:
            log.warning("%s", warning)

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

        Returns:
            The released model, the guarantee, one record a round. ``self.result`` holds the same during the run and
            after a failure.

        Raises:
            BadInput: num_rounds disagrees with the plan, the initial model lies outside the domain (or is missing,
                for drop-in strategies), or the strategy has run before.
            RunFailed: too many users are missing.
        """
        arrays = self.wire.initial(self.problem, initial_arrays)
        if num_rounds is not None and num_rounds != self.plan.rounds:
            raise BadInput(f"num_rounds = {num_rounds}, the plan has {self.plan.rounds}: leave num_rounds out")
        if self.result.rounds:
            raise BadInput("this strategy has run already: make a new one, with a budget of its own")
        self.summary()
        self._initial = self._released = self._checked_initial(arrays)
        self._roster.require_identities = self.require_identities
        self._roster.counts = self.server_trusted
        self._roster.gather(grid, roster_timeout)
        result = PrivateResult(
            arrays=arrays, guarantee=self.plan.guarantee, clipped_samples=self._roster.clipped_samples
        )
        result.initial_metrics = result.evaluate(evaluate_fn, 0)
        self.result = result
        for server_round in range(1, self.plan.rounds + 1):
            started = time.perf_counter()
            config = ConfigRecord({**(train_config or {}), "server-round": server_round})
            if self._compared_in(server_round) is not None:
                arrays = self.wire.record(self._released)
            messages = list(self.configure_train(server_round, arrays, config, grid))
            if self._request is None:
                continue
            replies = grid.send_and_receive(messages, timeout=timeout)
            next_arrays, metrics = self.aggregate_train(server_round, replies)
            arrays = arrays if next_arrays is None else next_arrays
            self._record(server_round, metrics, time.perf_counter() - started, evaluate_fn, on_round)
        return result

    def _checked_initial(self, arrays: ArrayRecord) -> Vector:
        x = self.wire.vector(arrays)
        if x.shape != (self.problem.dimension,) or not np.array_equal(self.problem.domain.project(x), x):
            raise BadInput(
                f"initial_arrays must hold {self.problem.dimension} finite numbers within the problem's domain, on "
                "which its certificate was computed"
            )
        if self.scheme.check_start is not None:
            self.scheme.check_start(x)
        return x

    def _record(
        self,
        server_round: int,
        metrics: MetricRecord | None,
        seconds: float,
        evaluate_fn: Evaluate | None,
        on_round: Callable[[RoundRecord], None] | None,
    ) -> None:
        result = self.result
        result.arrays = self.wire.record(self._released)
        counts: dict[str, Any] = dict(metrics or {})
        record = RoundRecord(
            round=server_round,
            seconds=seconds,
            missing_users=int(counts.get("missing_users_private", 0)),
            non_finite_users=int(counts.get("non_finite_users_private", 0)),
            spent=self._spent,
            facts=self._facts,
            metrics=result.evaluate(evaluate_fn, server_round),
        )
        result.rounds.append(record)
        if metrics is not None:
            result.train_metrics_clientapp[server_round] = metrics
        if on_round is not None:
            on_round(record)

    @property
    def spent_epsilon(self) -> float | None:
        """What the ledger has been charged so far, recorded rounds or not; None when nothing is promised."""
        return None if self._spent is None else self._spent()

    @property
    def _spent(self) -> Callable[[], float] | None:
        own = None if self._ledger is None else self._ledger.spent()
        return own if own is None or self._comparison is None else self._comparison.spent(own)

    @property
    def noise_source(self) -> str:
        """Where the noise comes from, for people."""
        return NOISE_SOURCES[self.privacy.noise]
