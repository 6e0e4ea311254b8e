"""Steps until a privacy filter ends them: accounting, lengths, descent, selection among runs, and the strategy."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import federation_of, final, gathered, make, noise_again, run, taken
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from strategies import StoppedSGD
from strategies.baselines.sparse_gradients.bias_reduction import Draw, bias_reduced_gradient
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.reference.boosting import (
    LowRisk,
    SelectionBudget,
    SmallGradient,
    boosted_sgd,
    private_select,
)
from strategies.baselines.sparse_gradients.reference.descent import ExactMean, stopped_sgd
from strategies.baselines.sparse_gradients.stopping import (
    StepBudget,
    amplified,
    convex_rate,
    stationary_rate,
    typical_length,
)
from userdp.accounting import Cost, delta_of, epsilon_of
from userdp.errors import BadInput, RunFailed
from userdp.noise import SeededNoise
from userdp.problems import Quadratic
from userdp.sampling.random_cohorts import DRAWN_TOGETHER

FALSE_ALARM = 1e-9


def generator(seed=0):
    return np.random.default_rng(seed)


# --- What steps cost -------------------------------------------------------------------------------------------------


@pytest.mark.sweep(177)
@pytest.mark.parametrize("records", [*range(2, 70), 1000, 1024, 12_345, 2**16, 2**20 - 1, 2**20])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0])
def test_the_papers_costs_are_at_least_the_exact_ones_c08(records, epsilon):
    budget = StepBudget(records, epsilon, 0.5 / records**2, "paper")
    rate = budget.levels.batches / records
    e, d = budget.oracle_epsilon, budget.oracle_delta
    assert (e, d) == (epsilon / 32, 0.5 / records**2 / 16)
    exact = amplified(3 * e, rate) + amplified(e, np.array(1 / records))
    assert np.all(exact <= budget.step_epsilons)
    np.testing.assert_allclose(budget.step_deltas, (3 * rate + 1 / records) * d)


@pytest.mark.parametrize("rate", [1e-6, 0.3, 1.0])
@pytest.mark.parametrize("epsilon", [699.0, 701.0, 5000.0, 1e300])
def test_amplified_steps_have_a_price_however_large_epsilon_is(rate, epsilon):
    found = float(amplified(epsilon, np.array(rate)))
    assert found >= epsilon + math.log(rate) - 1e-9
    assert found == pytest.approx(epsilon + math.log(rate), rel=1e-12)


@pytest.mark.parametrize("records", [2, 3, 4, 100, 1024])
def test_no_step_costs_more_than_a_quarter_and_no_run_is_longer_than_four_sevenths_c07(records):
    budget = StepBudget(records, 1.0, 0.5 / records**2, "paper")
    assert budget.step_epsilons.max() <= 3 / 16 + 1 / (16 * records) <= 1 / 4
    limit = budget.filter()  # the smallest step, again and again
    by_epsilon = limit.largest_sum_of_squares / budget.step_epsilons[0] ** 2
    longest = int(min(by_epsilon, limit.sum_delta / budget.step_deltas[0]))
    assert longest <= 4 * records // 7
    lengths = budget.simulated_lengths(500, generator())
    assert lengths.max() <= longest


def step_law(first, epsilon, records, level):
    """The exact law of one step's four answers: randomised response on whether the records asked about hold a one."""
    truth, law = 1 / (1 + math.exp(-epsilon)), np.zeros((2, 2, 2, 2))
    values = np.zeros(records, dtype=int)
    values[0] = first
    batches = list(itertools.combinations(range(records), 2 << level))
    for batch in batches:
        halves = list(itertools.combinations(batch, 1 << level))
        for half in halves:
            rest = list(set(batch) - set(half))
            for single in range(records):
                asked = [values[list(group)].max() for group in (batch, half, rest, [single])]
                answers = [np.where(np.arange(2) == answer, truth, 1 - truth) for answer in asked]
                law += np.einsum("i,j,k,l->ijkl", *answers) / (len(batches) * len(halves) * records)
    return law


@pytest.mark.sweep(5)
@pytest.mark.parametrize(("records", "level"), [(2, 0), (4, 0), (4, 1), (5, 0), (5, 1), (8, 1)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_step_is_as_private_as_its_cost_by_enumeration(records, level, epsilon):
    budget = StepBudget(records, epsilon, 1e-3)
    law, other = (step_law(first, budget.oracle_epsilon, records, level) for first in (0, 1))
    loss = np.abs(np.log(law / other)).max()
    assert loss <= budget.step_epsilons[level] * (1 + 1e-12)
    assert loss > 0.5 * budget.step_epsilons[level]


@pytest.mark.parametrize("accounting", ["tight", "paper"])
def test_an_oracle_call_is_as_private_as_a_step_is_charged_for(accounting):
    budget = StepBudget(500, 1.0, 1e-6, accounting)
    assert delta_of(Cost(budget.noise_multiplier), 1, budget.oracle_epsilon) <= budget.oracle_delta
    if accounting == "tight":
        assert epsilon_of(Cost(budget.noise_multiplier * 0.999), 1, budget.oracle_delta) > budget.oracle_epsilon


@pytest.mark.parametrize(("accounting", "share"), [("tight", 0.25), ("tight", 0.05), ("paper", 0.25)])
def test_a_run_spends_at_most_the_budget_and_the_next_level_would_exceed_it(accounting, share):
    budget = StepBudget(300, 1.0, 1e-6, accounting, share)
    for seed in range(20):
        levels, limit = budget.draw_levels(generator(seed)), budget.filter()
        for level in levels:
            limit.charge(budget.step_epsilons[level], budget.step_deltas[level])
        assert budget.spent(levels) == pytest.approx(limit.epsilon, rel=1e-9)
        assert limit.epsilon <= (1.0 if accounting == "tight" else 0.5)
        assert limit.delta <= (1e-6 if accounting == "tight" else 0.5e-6)
        drawn = budget.levels.sample(generator(seed), len(levels) + 1)  # the same coins, one by one
        np.testing.assert_array_equal(drawn[:-1], levels)
        assert not limit.can_run(budget.step_epsilons[drawn[-1]], budget.step_deltas[drawn[-1]])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"records": 1}, "records = 1"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"oracle_share": 0.0}, "oracle_share = 0.0"),
        ({"accounting": "paper", "epsilon": 1.1}, r"epsilon <= 1 and delta < 1/n\^2 = 0.0001"),
        ({"accounting": "paper", "delta": 1e-4}, r"delta = 0.0001: accounting = 'paper'"),
    ],
)
def test_budgets_out_of_range_are_refused_with_the_region(changes, told):
    with pytest.raises(BadInput, match=told):
        StepBudget(**({"records": 100, "epsilon": 1.0, "delta": 1e-6} | changes))


# --- How long runs are -----------------------------------------------------------------------------------------------


def test_simulated_lengths_have_the_law_of_the_filters():
    budget, rng = StepBudget(64, 1.0, 1e-5), generator(3)
    one_by_one = [len(budget.draw_levels(rng)) for _ in range(2000)]
    assert stats.ks_2samp(one_by_one, budget.simulated_lengths(2000, rng)).pvalue > FALSE_ALARM
    assert np.mean(np.array(one_by_one) <= typical_length(budget)) < 0.4


def test_simulated_lengths_do_not_depend_on_the_block(monkeypatch):
    budget = StepBudget(64, 1.0, 1e-5)
    whole = budget.simulated_lengths(1, generator(7))
    monkeypatch.setattr("strategies.baselines.sparse_gradients.stopping._BLOCK", 3)
    np.testing.assert_array_equal(budget.simulated_lengths(1, generator(7)), whole)


def test_the_length_of_a_run_does_not_depend_on_data_c07():
    budget, start = StepBudget(64, 1.0, 1e-5), np.zeros(2)

    def steps(scale):
        gradients = lambda x, who: np.full((len(who), 2), scale)  # noqa: E731
        return stopped_sgd(gradients, start, budget, ExactMean(9.0), 0.1, generator(5), SeededNoise(generator())).steps

    assert steps(0.0) == steps(9.0) == steps(-1e6) > 0


# --- Descent ---------------------------------------------------------------------------------------------------------


def counting(budget, seed, output):
    """Steps of exactly +1: the iterates are 0, 1, ..., T."""
    gradients = lambda x, who: np.full((len(who), 1), -1.0)  # noqa: E731
    noise = SeededNoise(generator())
    return stopped_sgd(gradients, np.zeros(1), budget, ExactMean(1.0), 1.0, generator(seed), noise, output=output)


def test_the_average_is_of_the_start_and_every_iterate_c27():
    budget = StepBudget(64, 1.0, 1e-5)
    for seed in range(10):
        found = counting(budget, seed, "average")
        assert found.model[0] == pytest.approx(found.steps / 2)
        levels = budget.draw_levels(generator(seed))
        assert (found.steps, found.epsilon) == (len(levels), budget.spent(levels))


@pytest.mark.slow
def test_the_random_iterate_is_uniform_from_the_start_to_the_last_c27():
    budget = StepBudget(16, 1.0, 1e-5)
    found = [counting(budget, seed, "random") for seed in range(4000)]
    shares = np.array([(run.model[0] + 0.5) / (run.steps + 1) for run in found if run.steps == 3])
    counts = np.bincount((shares * 4).astype(int), minlength=4)
    assert counts.sum() > 100
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_step_sizes_are_those_of_the_theorems():
    assert convex_rate(2.0, 9.0, 16) == 2 / (3 * 4)
    assert stationary_rate(4.0, 1.0, 9.0, 16) == 2 / (3 * 4)
    assert stationary_rate(1e9, 2.0, 9.0, 16) == 1 / 4


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_step_size_that_is_none_is_refused(rate):
    with pytest.raises(BadInput, match="learning_rate"):
        stopped_sgd(
            lambda x, who: np.zeros((len(who), 1)),
            np.zeros(1),
            StepBudget(16, 1.0, 1e-5),
            ExactMean(1.0),
            rate,
            generator(),
            SeededNoise(generator()),
        )


# --- The best of several runs ----------------------------------------------------------------------------------------


@given(st.floats(1e-3, 10), st.floats(1e-12, 0.05), st.floats(1e-3, 0.999))
def test_the_parts_of_the_budget_add_up_to_it_c16(epsilon, share, failure):
    delta = min(share, epsilon / 10)
    budget = SelectionBudget(epsilon, delta, failure)
    e, d, most = budget.run_epsilon + budget.score_epsilon, budget.run_delta, budget.most_runs
    assert 3 * e + 3 * math.sqrt(2 * d) <= epsilon
    assert math.sqrt(2 * d) * most + delta / 2 <= delta
    assert most * budget.stop_chance >= math.log(4 / delta)
    assert most >= 1 + 1 / (math.e * budget.stop_chance)


def test_numbers_c16():
    budget = SelectionBudget(1.0, 1e-6, 0.1)
    assert (budget.stop_chance, budget.most_runs) == (0.05, 305)
    assert budget.run_delta == pytest.approx(6.7e-19, rel=0.01)
    mechanism = budget.score_mechanism(2.0 / 100)  # an interval of length 2, 100 records
    assert mechanism.scale == pytest.approx(12 * 2.0 / 100)


def test_the_cut_ends_a_run_that_no_coin_ends_c16():
    asked = []
    best = private_select(lambda index: asked.append(index) or index, lambda index: -index, 1e-9, 7, generator())
    assert (asked, best) == (list(range(7)), 6)


def test_selection_refuses_what_it_is_not_proven_for():
    with pytest.raises(BadInput, match=r"at most min\(epsilon / 10, 1/2\) = 0.1"):
        SelectionBudget(1.0, 0.2, 0.1)
    with pytest.raises(BadInput, match=r"failure = 1\.0"):
        SelectionBudget(1.0, 1e-6, 1.0)
    with pytest.raises(BadInput, match="score = nan of run 1"):
        private_select(lambda index: index, lambda index: math.nan, 0.5, 3, generator())
    with pytest.raises(BadInput, match="stop_chance = 0"):
        private_select(lambda index: index, lambda index: 0.0, 0, 3, generator())


class Listening(SeededNoise):
    """Noise that keeps what it was added to, its size, and the noisy scores."""

    def __init__(self, seed):
        super().__init__(generator(seed))
        self.gaussians, self.exact, self.scales, self.scores = [], [], set(), []

    def gaussian(self, value, deviation):
        self.gaussians.append((np.linalg.norm(value), deviation))
        return super().gaussian(value, deviation)

    def laplace(self, value, scale):
        self.exact.append(float(value))
        self.scales.add(scale)
        self.scores.append(float(super().laplace(value, scale)))
        return self.scores[-1]


BOOSTED = SelectionBudget(6.0, 1e-5, 0.3)
CENTERS = np.linspace(-1, 1, 64)[:, None] * [1.0, 0.0]


def boosted(listening, losses, seed=0, loss_range=(1.0, 3.0), **changes):
    tried = []
    arguments = {
        "gradients": lambda x, who: 1e6 * (x - CENTERS[who]),  # far longer than the clip
        "start": np.full(2, 0.5),
        "records": len(CENTERS),
        "members": SparseVectors(1, 0.7),
        "aim": LowRisk(lambda x: tried.append(x) or losses(x), *loss_range, distance=1.0),
        "budget": BOOSTED,
    } | changes
    return boosted_sgd(**arguments, rng=generator(seed), noise=listening), tried


def test_boosted_runs_give_the_lowest_noisy_risk_and_pay_their_shares_c16():
    steps, members = StepBudget(64, BOOSTED.run_epsilon, BOOSTED.run_delta), SparseVectors(1, 0.7)
    counts = []
    for seed in range(8):
        listening = Listening(seed)
        found, tried = boosted(listening, lambda x: 1 + ((x - CENTERS) ** 2).sum(axis=1), seed)
        np.testing.assert_array_equal(found.model, tried[int(np.argmin(listening.scores))])
        assert found.epsilon <= BOOSTED.run_epsilon
        assert listening.scales == {2 / 64 / BOOSTED.score_epsilon}
        assert listening.gaussians
        for norm, deviation in listening.gaussians:
            assert norm <= members.norm * (1 + 1e-12)
            size = 2 * members.norm * steps.noise_multiplier / deviation
            assert size == pytest.approx(2 ** round(math.log2(size)))
        counts.append(len(tried))
    assert max(counts) > min(counts)


@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_no_record_moves_a_boosted_score_by_more_than_its_share_c16(wild):
    heard = []
    for first in (1.0, 3.0, wild):
        listening = Listening(0)
        boosted(listening, lambda x, first=first: np.append(np.full(63, 2.0), first))
        heard.append(listening.exact[0])
    assert heard[1] - heard[0] == pytest.approx(2 / 64)
    assert heard[2] in heard[:2]


def clipped_at(x, own=CENTERS):
    """The mean of the gradients that `boosted` asks for, each clipped to 0.7."""
    rows = 1e6 * (x - own)
    return (rows * np.minimum(1, 0.7 / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))[:, None]).mean(axis=0)


def test_boosted_runs_for_losses_that_are_not_convex_give_the_shortest_noisy_gradient_c16():
    counts = []
    for seed in range(8):
        listening, tried = Listening(seed), []

        def asked(x, who, tried=tried):
            if len(who) == len(CENTERS) and np.array_equal(who, np.arange(len(CENTERS))):
                tried.append(x)
            return 1e6 * (x - CENTERS[who])

        found, _ = boosted(listening, None, seed, gradients=asked, aim=SmallGradient(1.0, 1.0))
        np.testing.assert_array_equal(found.model, tried[int(np.argmin(listening.scores))])
        np.testing.assert_allclose(listening.exact, [np.linalg.norm(clipped_at(x)) for x in tried])
        assert list(listening.scales) == [pytest.approx(24 * 0.7 / (64 * BOOSTED.epsilon))]  # as it is printed
        counts.append(len(tried))
    assert max(counts) > min(counts)


@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_no_record_moves_a_boosted_gradient_by_more_than_its_share_c16(wild):
    heard = []
    for first in (1.0, -1.0, wild):
        listening = Listening(0)

        def asked(x, who, first=first):
            return np.where((who == 0)[:, None], np.full(2, first), np.full(2, 0.1))

        boosted(listening, None, gradients=asked, aim=SmallGradient(1.0, 1.0))
        heard.append(listening.exact[0])
    assert max(heard) - min(heard) <= 2 * 0.7 / 64 * (1 + 1e-9)
    assert heard[0] - heard[1] == pytest.approx(2 * 0.7 / 64)


def test_boosted_runs_refuse_ranges_and_losses_that_prove_nothing():
    for loss_range in ((1.0, 1.0), (0.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(BadInput, match="low = "):
            boosted(Listening(0), lambda x: np.ones(64), loss_range=loss_range)
    with pytest.raises(BadInput, match="one for each of 64 records"):
        boosted(Listening(0), lambda x: np.ones(63))
    for numbers, told in (
        ((0.0, 1.0), "gap"),
        ((-1.0, 1.0), "gap"),
        ((1.0, 0.0), "smoothness"),
        ((1.0, math.nan), "sm"),
    ):
        with pytest.raises(BadInput, match=told):
            SmallGradient(*numbers)


# --- The strategy ----------------------------------------------------------------------------------------------------

USERS = 40


def method_for(problem=None, users=USERS, epsilon=4.0, delta=1e-4, seed=0, **options):
    return make(StoppedSGD, problem or Quadratic(2, 1.0, 2.0), users, epsilon, delta, seed=seed, **options)


def means_of(method, gathered_round, index):
    """The four exact means that a round's noise is added to."""
    seen = []

    class Recorder:
        largest_norm = method.scheme.members.norm

        def __call__(self, mean, size, noise):
            seen.append((size, mean))
            return mean

    scheme = replace(method.scheme, oracle=Recorder())
    scheme.estimate(scheme.rounds.draw(index), gathered_round.values, noise_again(method, index))
    return seen


def test_rows_are_clipped_again_by_the_server():
    method = method_for(clip_norm=0.5)
    answers = gathered(method, federation_of(np.full((USERS, 2), 0.5)), 0, np.zeros(2))
    answers.values[:] = 1e6
    assert all(np.linalg.norm(mean) <= 0.5 * (1 + 1e-12) for _, mean in means_of(method, answers, 0))


def test_a_round_is_the_estimate_of_its_draw():
    method, values = method_for(clip_norm=10.0, learning_rate=0.01), generator(1).uniform(-1, 1, (USERS, 2))
    answers, x = gathered(method, federation_of(values), 1, np.zeros(2)), np.zeros(2)
    taken(method, 0, x, gathered(method, federation_of(values), 0, x))
    following = taken(method, 1, x, answers).following
    scheme, rows = method.scheme, -values.astype(np.float32).astype(np.float64)
    draw = scheme.rounds.draw(1)
    chance = scheme.rounds.budget.levels.chances[draw.level]
    estimate = bias_reduced_gradient(rows[draw.batch], rows[draw.single], chance, scheme.oracle, noise_again(method, 1))
    np.testing.assert_allclose(following, np.clip(x - 0.01 * estimate, -2, 2))


def test_records_of_rounds_do_not_tell_whether_the_single_user_is_in_the_batch():
    method = method_for(clip_norm=10.0, learning_rate=0.01, seed=1)
    draws = [method.scheme.rounds.draw(index) for index in range(method.plan.rounds)]
    assert {bool(np.isin(draw.single, draw.batch)[0]) for draw in draws} == {True, False}
    for record, draw in zip(run(method, federation_of(np.zeros((USERS, 2)))).rounds, draws, strict=True):
        assert record.facts == {"level": draw.level}


def test_cohorts_are_those_of_the_levels_and_the_ledger_takes_no_others():
    method = method_for()
    scheme = method.scheme.rounds
    assert method.plan.rounds == scheme.rounds == len(scheme.levels) > 3
    for index in range(scheme.rounds):
        draw = scheme.draw(index)
        assert isinstance(draw, Draw)
        assert len(draw.batch) == 2 << scheme.levels[index]
        np.testing.assert_array_equal(scheme.cohort(index), np.unique([*draw.batch, *draw.single]))
    with pytest.raises(RunFailed, match="not those that the sampler drew"):
        method.program.own.ledger.charge(np.arange(USERS - 1))
    with pytest.raises(BadInput, match="round 99999 was asked for"):
        scheme.cohort(99999)
    for noise, delta in ((0.99, 1.0), (1.0, 0.99)):
        with pytest.raises(BadInput, match="the rounds are accounted for at least"):
            scheme.epsilon(noise * scheme.budget.noise_multiplier, delta * 1e-4)


def test_rounds_of_one_level_draw_cohorts_of_their_own():
    scheme = method_for(users=4000, delta=1e-6).scheme.rounds
    alike = [scheme.draw(index) for index in np.flatnonzero(scheme.levels == 0)[:20]]
    assert len(alike) == 20
    assert len({tuple(draw.batch) for draw in alike}) == len({int(draw.single[0]) for draw in alike}) == 20


def test_the_plan_knows_the_rounds_the_spend_and_that_secrecy_is_assumed():
    method = method_for(delta=1e-6)
    plan, budget = method.plan, method.scheme.rounds.budget
    assert plan.guarantee.epsilon == budget.spent(method.scheme.rounds.levels) <= 4.0
    assert any("stays secret" in assumption for assumption in plan.guarantee.assumptions)
    assert plan.guarantee.adversary == DRAWN_TOGETHER
    assert plan.cohort == 2 ** (method.scheme.rounds.levels.max() + 1) + 1
    assert plan.as_dict()["drowned"]
    assert any("no better than the L D" in warning for warning in plan.warnings)
    assert plan.noise == pytest.approx(plan.numbers["estimate_norm"] / math.sqrt(plan.numbers["typical_rounds"]))


def test_very_many_users_need_no_warning():
    plan = method_for(users=400_000, delta=1e-9, oracle_share=0.5).plan
    assert plan.noise < plan.signal
    assert not any("no better than" in warning for warning in plan.warnings)


def test_a_run_that_ends_before_it_began_says_so_and_spends_nothing():
    seed = next(seed for seed in range(200) if method_for(epsilon=1.0, delta=1e-6, seed=seed).plan.rounds == 0)
    method = method_for(epsilon=1.0, delta=1e-6, seed=seed)
    assert any("large cohorts end this run after 0 rounds" in warning for warning in method.plan.warnings)
    result = run(method, federation_of(np.full((USERS, 2), 0.5)))
    assert (result.rounds, result.guarantee.epsilon) == ([], 0.0)
    np.testing.assert_array_equal(final(result), np.zeros(2))


@pytest.mark.parametrize("output", ["average", "random"])
def test_the_output_of_a_run_is_of_its_iterates(output):
    method, federation = method_for(output=output, gap=2.0, seed=1), federation_of(np.full((USERS, 2), 0.5))
    steps, iterates = [], [np.zeros(2)]
    for index in range(method.plan.rounds):
        steps.append(taken(method, index, iterates[-1], gathered(method, federation, index, iterates[-1])))
        iterates.append(steps[-1].following)
    expected = np.mean(iterates, axis=0) if output == "average" else iterates[method.memory.kept_at[0]]
    np.testing.assert_allclose(steps[-1].released, expected)
    assert any("unbounded domains" in warning for warning in method.plan.warnings) == (output == "random")


def test_missing_users_count_as_zero_and_the_divisor_stays():
    method = method_for(clip_norm=10.0)
    answers = gathered(method, federation_of(np.full((USERS, 2), 0.5)), 0, np.zeros(2))
    draw, cohort = method.scheme.rounds.draw(0), method.scheme.rounds.cohort(0)
    answers.values[np.searchsorted(cohort, draw.batch[0])] = 0.0
    size, mean = means_of(method, answers, 0)[0]
    np.testing.assert_allclose(mean, -0.5 * (size - 1) / size)


@pytest.mark.parametrize(
    ("problem", "options", "told"),
    [
        (Quadratic(2, 1.0, math.inf), {"clip_norm": 1.0}, "strategy.radius must be declared"),
        (Quadratic(2, 1.0, math.inf), {"radius": 1.0}, "strategy.clip_norm must be declared"),
        (None, {"output": "random"}, "strategy.gap and a smooth loss"),
        (None, {"accounting": "paper"}, "accounting = 'paper' is analysed for epsilon <= 1"),
    ],
)
def test_what_a_plan_cannot_do_without_is_asked_for(problem, options, told):
    with pytest.raises(BadInput, match=told):
        method_for(problem, **options)
