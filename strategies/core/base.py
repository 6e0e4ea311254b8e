"""The one round loop: it runs any recipe, as a Flower `Strategy` for any ServerApp and `Grid`.

Unlike Flower's own loop it waits for users rather than nodes, a silent node never changes n, the ledger is charged
before anybody is asked, and a failed run keeps its result so far.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.core.held_out import beside
from strategies.core.plan import check_budget, divided, planned
from strategies.core.program import HELD_OUT, Preparation, Program
from strategies.core.public_facts import Given, PublicFacts
from strategies.core.results import Evaluate, Noise, PrivateResult, RoundRecord, counts
from strategies.core.run_state import BEGUN, Keeper, Resumed, RunState, check_resumable
from strategies.core.scheme import AnyRecipe, Scheme
from strategies.core.scheme_rounds import SchemeRounds
from strategies.core.testers import Testers
from strategies.wire.claims import Claim
from strategies.wire.replies import Gathered, Request, gather, with_keys
from strategies.wire.wire import Wire
from userdp.accounting import Privacy
from userdp.errors import BadInput
from userdp.noise import NoiseSource
from userdp.problems.base import Problem
from userdp.streams import Streams, seeded

log = logging.getLogger("userdp")


@final
class UserLevelStrategy(Strategy):
    """Runs a recipe; `strategies.core.recipe.Recipe.strategy` makes one, and describes the arguments.

    Attributes:
        original: the loss as nodes know it.
        privacy: the budget of the strategy's own rounds.
        noise_seed: of simulated noise; the run's seed if one was given, unless an audit sets another before it starts.
        require_identities: refuse nodes that cannot say who their users are; a deployment sets it before `start`.
        claim: what nodes are told that this run promises; a deployment sets it, too.
    """

    require_identities: bool = False
    claim: Claim | None = None

    def __init__(
        self,
        recipe: AnyRecipe,
        problem: Problem,
        public: PublicFacts,
        privacy: Privacy,
        *,
        seed: int | None,
        wire: Wire,
        compare_with_initial: bool,
        preparation: type[Preparation] | None,
        held_out: int,
        choose_best: bool,
    ) -> None:
        check_budget(recipe, privacy, public.users, seed)
        about = self.about = recipe.about
        self._drawn, seeds = seed is None, [secrets.randbits(128) if seed is None else seed for _ in range(2)]
        self.name, self.public, (self.seed, self.noise_seed) = about.name, public, seeds
        self.original, self.wire = problem, wire
        given = Given(about.name, about.adversary, problem, public, privacy, self.seed, self.wire)
        left, before, after = divided(recipe, given, preparation, compare=compare_with_initial)
        self.privacy, self.streams = left, Streams(secure=left.noise == "secure", once=self._drawn)
        everybody = public.users + held_out
        others = everybody if held_out or before or after else None
        self._own = SchemeRounds(recipe, replace(given, privacy=left), before, drawn=self._drawn, others=others)
        self.program = Program(self._own, before, after)
        self.plan = planned(self._own.given, recipe, self.program, self.scheme.outline)
        start = self.scheme.checked_start(self.problem, self.problem.initial())
        self.state = RunState(self.program, left.noise, self.seed, start, self.streams)
        self._request: Request | None = None
        self._facts = dict[str, float]()
        self._roster = self.wire.roster(everybody, recipe.max_missing)
        self._roster.places = self.plan.guarantee.users_come_and_go
        if held_out and self.plan.guarantee.holds:
            asked = self.plan.rounds, self._roster, recipe.max_missing, choose_best
            promise, numbers, made = beside(given, about, self.plan.guarantee, self.plan.numbers, held_out, *asked)
            self.plan = replace(self.plan, guarantee=promise, numbers=numbers)
            self.state.testers = made

    def _noise(self, number: int, purpose: int = 0) -> NoiseSource:
        """Open the noise of that number, once; ``purpose`` separates the releases of a round."""
        return self.streams.open(self.noise_seed, number, purpose, self._own.slack)

    def noise_of(self, name: str, index: int) -> Noise:
        """Return what opens the noise of round ``index`` of the rounds of that name; see `Program.stream`."""
        return partial(self._noise, self.program.stream(name, index))

    # Facts of a run -------------------------------------------------------------------------------------------------

    @property
    def scheme(self) -> Scheme:
        """The private part of the strategy, as one value."""
        return self._own.scheme

    @property
    def recipe(self) -> AnyRecipe:
        """The recipe, with the settings that a preparation found."""
        return self._own.recipe

    @property
    def problem(self) -> Problem:
        """The loss that the strategy sees, in the coordinates of a preparation (at first of a stand-in)."""
        return self._own.given.problem

    @property
    def memory(self) -> Any:
        """The server's memory between rounds, made by the scheme."""
        return self._own.memory

    @property
    def testers(self) -> Testers | None:
        """The held-out users; None for none."""
        return self.state.testers

    @property
    def result(self) -> PrivateResult:
        """The result so far, also during a run and after a failure."""
        return self.state.result

    @property
    def spent_epsilon(self) -> float | None:
        """The epsilon charged so far to whoever was charged most, recorded rounds or not; None without a guarantee."""
        return None if self.state.spent is None else self.state.spent()

    # Flower's five methods -----------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message per node: the model, the users that answer, and what they compute."""
        part, _ = self.program.place(server_round)
        if part is self.program.after:
            arrays = self.wire.record(self.state.released)
        self.state.x = self.wire.vector(arrays)
        self._request = self.request_of(server_round)
        if self._request is None:
            return []
        self._roster.renew(grid)
        self.state.check_newest(server_round)
        # Before anybody answers: who adds up masked or noisy values has seen them even if the run stops here.
        if part.ledger is not None:
            part.ledger.charge(self._request.users)
        if server_round == self.state.lost:
            return []
        if self.privacy.noise == "secure":
            self._request = replace(self._request, computation=replace(self._request.computation, separate=True))
        request = self._request = with_keys(self._request, self._roster, self.privacy, self.state.x)
        return self.wire.messages(MessageType.TRAIN, server_round, arrays, config, self._roster, request)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next iterate, released or not; `RunFailed` if more than ``max_missing`` are missing."""
        if self._request is None:
            return None, None
        read = partial(self.wire.read, sent=self.state.x)
        lost = server_round == self.state.lost
        missing = 1.0 if lost else self.recipe.max_missing
        gathered = gather(self._request, self._roster, replies, self.problem.dimension, missing, read)
        gathered = replace(gathered, skipped=lost)
        self._follow(server_round, gathered if self.about.hears_silence else gathered.uncounted())
        return self.wire.record(self.state.x), counts(gathered.missing, gathered.non_finite)

    def request_of(self, server_round: int) -> Request | None:
        """Return the request of a round; None skips it."""
        part, index = self.program.place(server_round)
        request = part.ask(index, self.state.constant)
        if request is None or part is not self._own:
            return request
        # Nodes are asked for users' exact lengths in simulations with a trusted server alone: a deployment has secure
        # noise, or requires identities. Nodes check again: see `strategies.wire.protocol.answer_message`.
        simulated = self.privacy.noise == "seeded" and not self.require_identities
        trusted = self.about.server_trusted and self.privacy.trust == "server" and self.wire.asks_more
        lengths = request.computation.lengths and simulated and trusted
        counted = self.wire.counts and request.computation.masked is not None
        asked = replace(request.computation, lengths=lengths, counted=counted, coordinates=self._own.coordinates)
        noise_seed = self.noise_seed if self.privacy.noise == "seeded" and not self._drawn else None
        return replace(request, computation=seeded(asked, index, self.seed, noise_seed))

    def _follow(self, server_round: int, gathered: Gathered) -> None:
        (part, index), state = self.program.place(server_round), self.state
        with np.errstate(over="ignore", invalid="ignore"):  # see `RunState.take`
            step = part.take(index, state.x, state.constant, gathered, self.noise_of(part.name, index))
            if part.ledger is not None:
                part.ledger.check_drawn(self.streams.drawn())
            state.take(step, self._own.coordinates if part is self._own else None, self.original)
        self._facts = dict(step.facts)
        if part is self.program.before and index + 1 == part.rounds:
            self._own.begin()
            if self._own.coordinates is not None:
                state.x = self.problem.initial()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the next question to held-out users about the released model; training users are asked nothing."""
        if self.testers is None:
            return []
        self._roster.renew(grid)
        constant = self.result.constant is not None
        return self.testers.ask(server_round, self.state.released, self.state.constant, config, constant=constant)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Release the answer of held-out users, and return the metrics that follow from it."""
        if self.testers is None:
            return None
        metrics = self.testers.take(server_round, replies, self.noise_of(HELD_OUT, self.testers.asked))
        self.streams.drawn()  # charged to held-out users
        return MetricRecord(metrics)  # type: ignore[arg-type]

    def _evaluate(self, server_round: int, grid: Grid, timeout: float) -> None:
        """Ask held-out users about the released model, question after question; store what they release."""
        if self.testers is None:
            return
        if server_round == self.state.lost:
            self.testers.skip(server_round)
        config = ConfigRecord({**self._evaluate_config, "server-round": server_round})
        while messages := list(self.configure_evaluate(server_round, self.result.arrays, config, grid)):
            replies = grid.send_and_receive(messages, timeout=timeout)
            if metrics := self.aggregate_evaluate(server_round, replies):
                self.result.evaluate_metrics_clientapp[server_round] = metrics
        if server_round in self.testers.losses:
            self._facts["held_out_loss"] = self.testers.losses[server_round]

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
        nodes: int = 0,
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
            train_config: sent to the clients by drop-in strategies, with "server-round" added; else not used.
            evaluate_config: the same for held-out clients, who alone evaluate.
            evaluate_fn: called with (round, arrays of the RELEASED model) before the first and after every round.
            on_round: called with the record of every round.
            roster_timeout: seconds to wait until all n users have a node.
            nodes: that have to say whom they hold, or the run ends; where users come and go, nothing else misses one.
            keeper: stores the state from which a killed run can be resumed; no state is stored if not given.
            resumed: the stored state of a killed run with the same settings.

        Returns:
            The released model, the guarantee, one record per round. ``self.result`` holds it at all times.

        Raises `BadInput`: num_rounds disagrees with the plan, the initial model lies outside the domain (or is missing,
        for drop-in strategies, which cannot resume), the strategy has run before, or the stored state does not fit this
        run. Raises `RunFailed`: too many users are missing.
        """
        arrays = self.wire.initial(self.original, initial_arrays)
        if num_rounds is not None and num_rounds != self.plan.rounds:
            raise BadInput(f"num_rounds = {num_rounds}, the plan has {self.plan.rounds}: leave num_rounds out")
        if self.result.rounds:
            raise BadInput("this strategy has run already: make a new one, with a budget of its own")
        if keeper is not None or resumed is not None:
            check_resumable(repeats=self.wire.repeats, drawn=self._drawn)
        state = self.state
        state.check_declared()
        self.summary()
        state.initial = state.released = self.scheme.checked_start(self.original, self.wire.vector(arrays))
        self._roster.require_identities, self._roster.claim = self.require_identities, self.claim
        self._roster.expect(self.privacy, self.about.protocol, trusted=self.about.server_trusted, nodes=nodes)
        self._roster.gather(grid, roster_timeout)
        self._roster.share_secrets(grid, timeout, self.privacy, self.plan.rounds)
        self._evaluate_config, clipped = dict(evaluate_config or {}), self._roster.clipped_samples
        result = PrivateResult(arrays=arrays, guarantee=self.plan.guarantee, clipped_samples=clipped)
        state.result, state.keeper, done = result, keeper, BEGUN
        if resumed is None:
            result.initial_metrics = result.evaluate(evaluate_fn, 0)
            state.ask(BEGUN)
        else:
            done = state.resume(resumed, self.noise_of(self._own.name, 0))
            arrays, result.arrays = self.wire.record(state.x), self.wire.record(state.released)
        if done == BEGUN and self.testers is not None:
            state.keep(BEGUN, must=True)
            state.ask(0)
            self._evaluate(0, grid, timeout)
        done = max(done, 0)
        state.keep(done, must=True)
        left = range(done + 1, self.plan.rounds + 1)
        for server_round in takewhile(lambda _: self.testers is None or not self.testers.worse, left):
            started = time.perf_counter()
            config = ConfigRecord({**(train_config or {}), "server-round": server_round})
            messages = list(self.configure_train(server_round, arrays, config, grid))
            if self._request is None:
                continue
            state.ask(server_round)
            replies = grid.send_and_receive(messages, timeout=timeout)
            next_arrays, metrics = self.aggregate_train(server_round, replies)
            arrays = arrays if next_arrays is None else next_arrays
            self._evaluate(server_round, grid, timeout)
            record = result.add(
                server_round,
                self.wire.record(state.released),
                metrics,
                seconds=time.perf_counter() - started,
                spent=state.spent,
                facts=self._facts,
                evaluate=evaluate_fn,
            )
            state.keep(server_round, must=self.privacy.noise == "secure")
            if on_round is not None:
                on_round(record)
        if result.rounds:
            self.plan.check_spent(result.rounds[-1].spent_epsilon)
        self._evaluate_last(grid, timeout)
        result.report = self.scheme.report(state.released, self.memory)
        return result

    def _evaluate_last(self, grid: Grid, timeout: float) -> None:
        """Choose the model to release, and ask held-out users everything about it."""
        if self.testers is None:
            return
        state, last = self.state, self.plan.rounds + 1
        state.released = self.testers.chosen(state.released)
        self.result.arrays = self.wire.record(state.released)
        state.ask(last)
        self._evaluate(last, grid, timeout)
        state.keep(self.plan.rounds, must=True)
