"""A run that stops at any moment states what whoever met most has met, whether they train or are held out."""

from collections import Counter

import any_strategy
import numpy as np
import pytest
from any_strategy import USERS
from flwr.app import MessageType
from helpers import federation_of, local_grid

from strategies import STRATEGIES
from strategies.auto.preparation import LearnCoordinates
from userdp.accounting import Ledger, RoundLedger
from userdp.accounting.costs import epsilon_of, together
from userdp.errors import BadInput
from userdp.problems import Logistic, Squared

HELD_OUT, EPSILON, DELTA = 40, 4.0, 1e-4
MORE = {
    "prepared": ("dp_fed_sgd", {"rounds": 3, "preparation": LearnCoordinates}),
    "compared": ("dp_fed_sgd", {"rounds": 3, "clip_norm": 1.0, "compare_with_initial": True}),
    "chosen": ("dp_fed_sgd", {"rounds": 3, "clip_norm": 1.0, "choose_best": True}),
    "sampled": ("dp_fed_sgd", {"rounds": 3, "clip_norm": 1.0, "sampling": "poisson", "cohort": 100}),
    "classes": ("auto", {}),
}
REFUSED = {"local_dp"}  # nobody is trusted with what held-out users answer
FAST = {"dp_fed_sgd", "adaptive_clipping", "recentred_clipping", "localized_clipping", "vote_descent", "local_dp"}
FAST |= {"sample_clipped_sgd", "output_perturbation", "non_private", "prepared", "compared", "chosen"}
EVERY = [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in [*STRATEGIES, *MORE]]


def method_of(name, **more):
    if name in MORE:
        name, options = MORE[name]
        problem = Logistic(2, np.inf, 5.0, ridge=0.1) if name == "auto" else None
        problem = problem or Squared(2, np.inf, 5.0, low=-2.0, high=2.0, intercept=True, feature_bound=1.0)
    else:
        problem, options = None, {"unit": STRATEGIES[name].about.units[0]}
    return any_strategy.method_of(name, problem, EPSILON, DELTA, held_out=HELD_OUT, **options, **more)


def people(problem):
    rng = np.random.default_rng(3)
    everybody = USERS + HELD_OUT
    features = rng.uniform(-1, 1, (everybody, problem.columns if hasattr(problem, "columns") else 2))
    return federation_of(features, targets=rng.integers(0, 2, everybody) if problem.has_targets else None)


class Watched:
    """A whole run: what it states before each exchange of messages is answered, and what people have met by then.

    Whoever stops it there finds this stated: nothing that is stated changes afterwards.
    """

    def __init__(self, method):
        self.method, self.asked, self.rounds, self.costs = method, Counter(), [], []
        self.train, self.held_out, self.stated = [], [], []  # one entry for each exchange
        self._release, method.testers.release = method.testers.release, self._released

    def whole(self):
        data, self.records = people(self.method.original), []
        with local_grid(self.method.original, data) as grid:
            self._send, grid.send_and_receive = grid.send_and_receive, self._looked_at
            self.result = self.method.start(
                grid, on_round=lambda record: self.records.append((len(self.train), record))
            )
        return self

    def _looked_at(self, messages, *, timeout=None):
        messages = list(messages)
        kinds = {message.metadata.message_type for message in messages}
        if kinds == {MessageType.TRAIN}:
            self._count(self.method._request.users)
        self.train.append(self._training())
        self.held_out.append(kinds == {MessageType.EVALUATE})
        self.stated.append((self.method.spent_epsilon, self.method.result.guarantee.epsilon))
        return self._send(messages, timeout=timeout)

    def _count(self, users):
        part, _ = self.method.program.place(len(self.rounds) + 1)
        self.rounds.append(part)
        self.asked.update((part, int(user)) for user in users)

    def _released(self, *given):
        made = self._release(*given)
        self.costs.append(given[-1].spent)
        return made

    def _training(self):
        """Epsilon that each part of a run cost, by our own count of who was asked how often, added up."""
        return sum(self._cost(part, part.ledger) for part in {*self.rounds})

    def _cost(self, part, ledger):
        if type(ledger) is Ledger:
            most = max((times for (of, _), times in self.asked.items() if of is part), default=0)
            return epsilon_of(ledger.cost, most, ledger.privacy.delta)
        times = self.rounds.count(part)
        if not isinstance(ledger, RoundLedger):  # pays for everything when it asks first
            return ledger.privacy.epsilon * (1 - 1e-6)
        return ledger._scheme.epsilon(ledger._noise_multiplier, ledger.privacy.delta, times)

    @property
    def met(self):
        """The epsilon that held-out users met before each exchange ended, from the noise that each answer got later."""
        answered = [sum(self.held_out[: number + 1]) for number in range(len(self.held_out))]
        return [epsilon_of(together(*self.costs[:count]), 1, DELTA) if count else 0.0 for count in answered]


@pytest.mark.parametrize("name", EVERY)
def test_whatever_moment_a_run_stops_at_it_states_what_anybody_met(name):
    if name in REFUSED:
        with pytest.raises(BadInput, match="does not trust a server"):
            method_of(name)
        return
    if name == "non_private":
        assert method_of(name).testers is None
        return
    seen = Watched(method_of(name)).whole()
    held_out = seen.met
    assert len(seen.costs) == sum(seen.held_out)
    assert sum(seen.held_out) >= 2
    assert held_out[-1] == pytest.approx(EPSILON, rel=1e-6) or held_out[-1] < EPSILON
    slack = 1 - 1e-9
    for trained, met, (spent, promised) in zip(seen.train, held_out, seen.stated, strict=True):
        assert spent >= max(trained, met) * slack
        assert promised >= spent * slack
    for exchanges, record in seen.records:
        assert record.spent_epsilon >= max(seen.train[exchanges - 1], held_out[exchanges - 1]) * slack
    assert seen.result.guarantee.epsilon >= max(seen.train[-1], held_out[-1]) * slack
    assert seen.result.guarantee.delta >= DELTA * slack
