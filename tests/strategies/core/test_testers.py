"""Held-out users evaluate models within a budget of their own: who is protected, what it costs, what comes out."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers import charged_twice, federation_of, final, make, rows_of, run
from helpers_audits import epsilon_lower_bound
from hypothesis import given, settings
from hypothesis import strategies as st
from resumable import Kept
from scipy import stats

from simulations.engines.grids import LocalGrid
from strategies import AdaptiveClipping, DPFedSGD, LocalDP, PoissonSampleSGD
from strategies.core import testers as held_out
from strategies.core.held_out import ReportedMetrics, beside
from strategies.core.run_state import Resumed
from userdp.accounting import Cost, Privacy
from userdp.accounting.costs import calibrate_noise, epsilon_of
from userdp.data import Block
from userdp.errors import BadInput, RunFailed
from userdp.nodes.measured import Histogram
from userdp.noise import rounding_slack
from userdp.problems import Logistic, Quadratic, Squared

TRAIN, HELD_OUT = 60, 40


REPORTS = partial(ReportedMetrics, ranges={"loss": (0.0, 4.0), "error": (-1.0, 1.0)})


@pytest.fixture(scope="module")
def evaluation(module_of):
    return module_of("evaluation")


def people(seed=0, users=TRAIN + HELD_OUT, samples=5):
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (users, samples, 2))
    targets = rng.random((users, samples)) < 1 / (1 + np.exp(-3 * features[..., 0]))
    return features, targets.astype(float)


def federation(features, targets):
    return federation_of(features.reshape(-1, 2), [features.shape[1]] * len(features), targets.ravel())


def evaluated(epsilon=4.0, seed=0, kind=DPFedSGD, held_out=HELD_OUT, users=TRAIN, problem=None, **options):
    problem = problem or Logistic(2, 2.0, 5.0)
    return make(kind, problem, users, epsilon, 1e-3, seed=seed, held_out=held_out, rounds=6, **options)


def answered(strategy, data, **start):
    run(strategy, federation(*data), **start)
    return strategy.testers


def transcript(strategy, data):
    """The models that training releases, one after each round."""
    models = []
    run(strategy, federation(*data), evaluate_fn=lambda _, arrays: models.append(arrays["x"].numpy().copy()))
    return np.array(models)


# --- Formal guarantee ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DPFedSGD, AdaptiveClipping])
def test_training_is_the_same_to_the_bit_whoever_is_held_out_and_whatever_they_answer(kind):
    features, targets = people()
    other = features.copy(), targets.copy()
    other[0][TRAIN:], other[1][TRAIN:] = 1.0, 1 - targets[TRAIN:]
    assert np.array_equal(
        transcript(evaluated(kind=kind), (features, targets)), transcript(evaluated(kind=kind), other)
    )


def test_held_out_users_see_the_released_models_alone():
    """A training user reaches metrics through released models: with these fixed, its data change no answer."""
    features, targets = people()
    other = features.copy(), targets.copy()
    other[0][0], other[1][0] = -features[0], 1 - targets[0]
    frozen = {"clip_norm": 1e-9}  # so short that noise alone moves the model, to the same place
    answers = [answered(evaluated(**frozen), data) for data in ((features, targets), other)]
    for one, two in zip(answers[0].found.values(), answers[1].found.values(), strict=True):
        assert one.value == pytest.approx(two.value, abs=1e-5)


def test_questions_cost_the_budget_and_no_more():
    strategy = evaluated(epsilon=1.5)
    testers = answered(strategy, people())
    assert testers.charged == pytest.approx(1.0)
    assert testers.spent() == pytest.approx(1.5, rel=1e-6)
    multiplier = testers._multiplier
    parts = [(testers._share(name)) for _, name in testers._done]
    together = Cost(noise_multiplier=multiplier / math.sqrt(sum(parts)))
    assert epsilon_of(together, 1, 1e-3) <= 1.5 * (1 + 1e-6)
    with pytest.raises(RunFailed, match="more than their budget"):
        testers.charge(99, "answers")


def test_noise_is_made_for_what_a_user_moves_under_the_strategys_relation():
    by_sample = evaluated(kind=PoissonSampleSGD, unit="sample", facts={"samples": 300, "max_samples": 5})
    assert by_sample.plan.guarantee.relation == "add_or_remove"
    assert by_sample.testers.relation == "replace_one"
    for relation, factor in (("replace_one", 2.0), ("add_or_remove", 1.0)):
        testers = replace(evaluated().testers, relation=relation)
        asked = testers.request("course", np.zeros(3), constant=False).computation
        assert asked.sensitivity(relation) == factor * 0.5
        assert testers.deviation("course") == pytest.approx(
            factor * 0.5 * testers._multiplier / math.sqrt(0.25 / 6) / HELD_OUT
        )
        reported = REPORTS(testers.given, HELD_OUT, relation, 6, testers.roster, 0.2)
        row = reported.request("reports", np.zeros(3), constant=False).computation
        assert reported._mechanism.l2_sensitivity == row.sensitivity(relation)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.booleans()), min_size=2, max_size=2),
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
)
def test_all_answers_together_are_no_worse_than_the_gaussian_they_are_priced_as(pair, x):
    """The exact distance of two transcripts that differ in one held-out user, in deviations of their noise."""
    problem = Logistic(2, 2.0, 5.0)
    assert apart(problem, np.array(x), pair) <= 1 / evaluated().testers._multiplier * (1 + 1e-9)


def test_the_price_is_not_far_from_what_two_users_attain():
    """One user whom the model serves perfectly, another whom it serves as badly as can be."""
    problem = Logistic(2, 2.0, 50.0)
    attained = apart(problem, np.array([50.0, 0.0, 0.0]), [(1.0, 0.0, True), (1.0, 0.0, False)])
    assert attained >= 0.5 / evaluated().testers._multiplier


def apart(problem, x, pair):
    strategy = evaluated(problem=problem)
    testers, squares = strategy.testers, 0.0
    testers._ranking = Histogram.of(np.ones(32))
    rows = [np.array(one, dtype=float) for one in pair]
    blocks = [Block(one[None, :2].astype(np.float32), np.array([0, 1]), one[2:].astype(np.float32)) for one in rows]
    for name, times in (("course", 6), ("ranking", 1), ("answers", 1)):
        asked = testers.request(name, problem.initial(), constant=False).computation
        first, second = (rows_of(problem, x, problem.bound(block)[0], asked)[0] for block in blocks)
        multiplier = testers._multiplier / math.sqrt(testers._share(name))
        squares += times * (np.linalg.norm(first - second) / (asked.sensitivity("replace_one") * multiplier)) ** 2
    return math.sqrt(squares)


@pytest.mark.slow
@pytest.mark.parametrize(("louder", "found"), [(1.0, False), (0.1, True)])
def test_what_all_answers_tell_about_a_held_out_user(evaluation, louder, found):
    """An attack on everything that is released of two users, one served as well as can be, one as badly."""
    problem, delta, runs = Logistic(2, 2.0, 50.0), 1e-5, 800
    others = evaluation.people(np.random.default_rng(3), 9)
    asked = (*["course"] * 8, "ranking", "answers")
    sides = []
    for target in (1.0, 0.0):
        features = np.vstack([others.dense_features, [[1.0, 0.0]]]).astype(np.float32)
        sides.append(Block(features, np.append(others.offsets, len(features)), np.append(others.targets, target)))

    def transcript(block, seed, multiple):
        testers = evaluation.testers(problem, 10, 1.0)
        testers._multiplier *= multiple
        return np.concatenate(evaluation.ask(testers, problem, block, seed, asked))

    exact = [transcript(block, 0, 1e-9) for block in sides]
    rough = np.array([transcript(sides[0], seed, louder) for seed in range(40)])
    direction = (exact[0] - exact[1]) / rough.var(axis=0)
    scores = [
        [direction @ transcript(block, 1000 * (1 + side) + seed, louder) for seed in range(runs)]
        for side, block in enumerate(sides)
    ]
    assert (epsilon_lower_bound(*scores, delta) > 1.0) == found


def test_the_noise_of_every_answer_is_fresh_and_as_deep_as_charged():
    """The loss of the same model, asked under many seeds, scatters by the deviation that is stated."""
    data = people()
    problem = Logistic(2, 2.0, 5.0)
    losses = []
    for seed in range(40):
        strategy = evaluated(seed=seed, clip_norm=1e-9, problem=problem)
        losses.append(list(answered(strategy, data).losses.values()))
    deviation = strategy.testers.deviation("course") * strategy.testers.limit
    scaled = (np.array(losses) - np.mean(losses)).ravel() / deviation
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], scaled.size - 1)
    assert low < (scaled**2).sum() < high
    assert abs(np.corrcoef(np.array(losses).T)[np.triu_indices(6, 1)]).max() < 0.5


def test_an_answer_with_less_noise_than_is_charged_ends_the_run(monkeypatch):
    charged_twice(monkeypatch, held_out.Testers, "release")
    with pytest.raises(RunFailed, match="is charged"):
        answered(evaluated(), people())


def test_the_guarantee_names_the_held_out():
    strategy = evaluated()
    assert any("40 held-out users are protected alike" in one for one in strategy.plan.guarantee.assumptions)
    assert "the server is trusted with sums of held-out users' answers" in strategy.plan.guarantee.assumptions
    assert strategy.plan.numbers["held_out_users"] == 40


@pytest.mark.parametrize("more", [{"held_out": HELD_OUT}, {"compare_with_initial": True, "held_out": 0}], ids=str)
def test_secure_noise_of_sums_over_everybody_covers_their_rounding(more):
    """A cohort of three adds up fewer numbers than all who evaluate, or compare, do."""
    strategy = evaluated(noise="secure", cohort=3, **more)
    assert strategy.program.own.slack >= rounding_slack(TRAIN + more["held_out"]) > rounding_slack(3)


# --- Metrics ---------------------------------------------------------------------------------------------------------


def test_with_little_noise_metrics_are_those_of_the_held_out():
    strategy, problem = evaluated(epsilon=1e7), Logistic(2, 2.0, 5.0)
    data = people()
    result = run(strategy, federation(*data))
    block = problem.bound(federation(*data).block(TRAIN + np.arange(HELD_OUT)))[0]
    exact = problem.metrics(final(result), block)
    found = strategy.testers.found
    assert found["accuracy"].value == pytest.approx(exact["accuracy"].mean(), abs=1e-3)
    assert found["log_loss"].value == pytest.approx(exact["log_loss"].mean(), abs=1e-3)
    spread = exact["accuracy"].std() / math.sqrt(HELD_OUT)
    assert found["accuracy"].standard_error == pytest.approx(spread, rel=0.05)
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3, 4, 5, 6, 7}


def test_the_limit_of_a_loss_without_classes_is_found_from_the_initial_model():
    features, targets = people()
    problem = Squared(2, 2.0, 5.0, low=-1.0, high=1.0)
    strategy = evaluated(epsilon=1e6, problem=problem)
    testers = answered(strategy, (features, targets))
    block = problem.bound(federation(features, targets).block(TRAIN + np.arange(HELD_OUT)))[0]
    losses = problem.metrics(problem.initial(), block)["squared_error"]
    assert 2 * np.quantile(losses, 0.85) <= testers.limit <= 2 * math.sqrt(2) * np.quantile(losses, 0.95)


def test_a_run_ends_at_a_model_that_is_worse_than_the_best_by_more_than_noise_and_releases_the_best():
    """Steps that are far too long: a model gets worse."""
    data, problem = people(), Quadratic(2, 1.0, 50.0)
    grid = federation_of(data[0].reshape(-1, 2), [5] * 100)
    block = problem.bound(grid.block(TRAIN + np.arange(HELD_OUT)))[0]
    models = []
    strategy = evaluated(epsilon=1e6, problem=problem, clip_norm=50.0, learning_rate=1.99, choose_best=True)
    chosen = run(strategy, grid, evaluate_fn=lambda _, arrays: models.append(arrays["x"].numpy().copy()))
    losses, testers = strategy.testers.losses, strategy.testers
    noise = math.sqrt(2) * testers.deviation("course") * testers.limit
    assert len(chosen.rounds) == len(losses) < 6
    assert losses[len(losses)] - min(losses.values()) > 2 * noise
    exact = [problem.metrics(model, block)["test_loss"].mean() for model in models[1:]]
    released = problem.metrics(final(chosen), block)["test_loss"].mean()
    assert released == pytest.approx(min(exact), abs=5 * noise)
    assert released < exact[-1]
    assert testers.found


def test_noise_alone_ends_no_run():
    strategy = evaluated(epsilon=1.0, choose_best=True)
    assert len(run(strategy, federation(*people())).rounds) == 6


@pytest.mark.slow
@pytest.mark.parametrize("users", [500, 5000])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_cover(evaluation, users, epsilon):
    """Fresh held-out users and fresh noise; research/results/evaluation.csv has more repetitions."""
    inside = evaluation.coverage(users, epsilon, 400)
    # Three standard deviations of the count about 95 % are 3.3 %.
    assert all(0.917 <= share <= 0.983 for share in inside.values()), inside


# --- One promise for everybody ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DPFedSGD, AdaptiveClipping])
def test_a_plan_with_held_out_users_promises_what_they_meet_also_where_the_strategy_keeps_to_less(kind):
    strategy = evaluated(kind=kind)
    less = replace(strategy.scheme.price.guarantee, epsilon=1.0, delta=0.0, accountant="Laplace mechanism")
    given = strategy.testers.given
    who = TRAIN, 6, strategy.testers.roster, 0.2, False
    whole, _, made = beside(given, kind.about, less, {}, *who)
    assert (whole.epsilon, whole.delta) == (4.0, 1e-3)
    assert epsilon_of(Cost(made._multiplier), 1, whole.delta) <= whole.epsilon * (1 + 1e-9)


def test_numbers_of_a_plan_cover_held_out_users_who_are_replaced():
    """A Gaussian for adding or removing moves twice as far, which is worse than what sampled rounds may cost."""
    stated = {"replace_one_epsilon": 4.5, "replace_one_delta": 1e-3, "sample_level_epsilon": 0.5, "cohort": 3}
    strategy = evaluated()
    multiplier = calibrate_noise(4.0, 1e-3, 1)
    for relation, least in (("add_or_remove", epsilon_of(Cost(multiplier / 2), 1, 1e-3)), ("replace_one", 4.5)):
        own = replace(strategy.plan.guarantee, relation=relation)
        who = HELD_OUT, 6, strategy.testers.roster, 0.2, False
        _, numbers, _ = beside(strategy.testers.given, DPFedSGD.about, own, stated, *who)
        assert numbers["replace_one_epsilon"] == pytest.approx(least, rel=1e-9)
        assert numbers["sample_level_epsilon"] == 4.0  # one of their samples may move an answer as far as all of them
        assert (numbers["replace_one_delta"], numbers["cohort"]) == (1e-3, 3)


# --- Runs that are killed, and refusals ------------------------------------------------------------------------------


def test_a_killed_run_goes_on_to_the_same_answers():
    data, keeper = people(), Kept()
    whole = answered(evaluated(choose_best=True), data, keeper=keeper)
    for kept in (keeper.kept[0], keeper.kept[3], keeper.kept[-1]):
        again = answered(evaluated(choose_best=True), data, resumed=Resumed(kept))
        assert (again.found, again.losses, again.charged) == (whole.found, whole.losses, whole.charged)


def test_under_secure_noise_a_lost_round_asks_held_out_users_no_second_time():
    data, keeper = people(), Kept()

    def secure():
        strategy = evaluated()
        privacy = replace(strategy.privacy, noise="secure")
        return DPFedSGD(rounds=6).strategy(strategy.original, strategy.public, privacy, seed=0, held_out=HELD_OUT)

    answered(secure(), data, keeper=keeper)
    asked = {taken.get("round"): taken for taken in keeper.asked.values()}
    kept = {taken.get("round"): taken for taken in keeper.kept}
    resumed = answered(secure(), data, resumed=Resumed(kept[2], asked[3]))
    assert 3 not in resumed.losses
    assert resumed.charged == pytest.approx(1.0)
    assert resumed.found
    before_the_end = next(taken for taken in keeper.kept if taken.get("round") == 6)
    lost_end = answered(secure(), data, resumed=Resumed(before_the_end, asked[7]))
    assert not lost_end.found
    assert lost_end.charged == pytest.approx(1.0)


class Killed(Exception):
    pass


class Doomed:
    """A process that is killed at its so-manieth moment: after it stored its state, or before or after it asks."""

    def __init__(self, moment, kept=None, asked=None):
        self.moment, self.kept, self.asked, self.questions, self.trained = moment, kept, asked, [], []

    def tick(self):
        self.moment -= 1
        if self.moment < 0:
            raise Killed

    def ask(self, taken):
        self.asked = taken
        self.tick()

    def keep(self, take, *, must):
        self.kept = take()
        self.tick()

    def heard(self, monkeypatch):
        deliver, take = LocalGrid._deliver, held_out.Testers.take

        def delivered(grid, messages, timeout):
            number = messages[0].metadata.group_id if messages else ""
            if not number:  # the roster, or a lost round
                return deliver(grid, messages, timeout)
            self.tick()
            if messages[0].metadata.message_type == "train":
                self.trained.append(int(number))
            replies = deliver(grid, messages, timeout)
            self.tick()
            return replies

        def taken(testers, server_round, replies, noise):
            if testers._pending is not None:
                self.questions.append((server_round, testers._pending[0]))
            self.tick()
            return take(testers, server_round, replies, noise)

        monkeypatch.setattr(LocalGrid, "_deliver", delivered)
        monkeypatch.setattr(held_out.Testers, "take", taken)


def test_wherever_a_run_is_killed_held_out_users_answer_each_question_at_most_once():
    """Questions of both processes count, from the first about the initial model to the last; so do trainers' rounds."""
    data, problem = people(), Squared(2, 2.0, 5.0, low=-1.0, high=1.0)
    seeded = make(DPFedSGD, problem, TRAIN, 4.0, 1e-3, rounds=1)

    def process(moment, former=None):
        strategy = DPFedSGD(rounds=1).strategy(
            problem, seeded.public, replace(seeded.privacy, noise="secure"), seed=0, held_out=HELD_OUT, choose_best=True
        )
        doomed = Doomed(moment) if former is None else Doomed(moment, former.kept, former.asked)
        resumed = None if doomed.kept is None else Resumed(doomed.kept, doomed.asked)
        with pytest.MonkeyPatch.context() as patched:
            doomed.heard(patched)
            try:
                run(strategy, federation(*data), keeper=doomed, resumed=resumed)
            except Killed:
                return doomed, None
        return doomed, strategy.testers

    whole, _ = process(10**6)
    assert whole.questions[0] == (0, "scale")
    assert (2, "answers") in whole.questions
    for moment in range(10**6 - whole.moment):
        first, ended = process(moment)
        assert ended is None
        second, testers = process(10**6, first)
        for asked in (first.questions + second.questions, first.trained + second.trained):
            assert len(asked) == len(set(asked)), (moment, asked)
        assert testers.charged == pytest.approx(1.0)
        assert math.isfinite(testers.limit)
        if (0, "scale") in first.questions and first.kept.get("round") < 0:
            assert testers.limit == 2.0 * 2.0**10


def test_what_cannot_be_promised_is_refused():
    with pytest.raises(BadInput, match="two at least"):
        evaluated(held_out=1)
    with pytest.raises(BadInput, match="does not trust a server"):
        evaluated(kind=LocalDP)
    with pytest.raises(BadInput, match="trust = 'server'"):
        DPFedSGD(rounds=6).strategy(
            Logistic(2, 2.0, 5.0), evaluated().public, Privacy(1.0, 1e-3, trust="sum"), seed=0, held_out=HELD_OUT
        )


@pytest.mark.parametrize("kind", [held_out.Testers, REPORTS], ids=["answers", "reports"])
@pytest.mark.parametrize(
    ("users", "changes", "told"),
    [(2, {}, ""), (1, {}, "two"), (2, {"delta": 0.0}, "Gaussian noise"), (2, {"trust": "sum"}, "server")],
)
def test_two_at_least_are_held_out_by_a_trusted_server_that_adds_gaussian_noise(kind, users, changes, told):
    testers = evaluated().testers
    given = replace(testers.given, privacy=replace(testers.given.privacy, **changes))
    who = given, users, "replace_one", 6, testers.roster, 0.2
    if not told:
        assert kind(*who).users == users
        return
    with pytest.raises(BadInput, match=told):
        kind(*who)
