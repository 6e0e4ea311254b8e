"""Rows of embeddings that train: what one user moves, what is released of other rows, and what a choice is worth."""

import math
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
import pytest
import torch
from embedding_cases import SENT, TABLES, Listed, federation, rows
from helpers import final, gathered, make, requested, run, silenced, taken
from helpers_audits import epsilon_lower_bound
from resumable import Kept, Run, measured, strays
from scipy.special import ndtri
from torch import nn

from strategies import DPFedSGD
from strategies.clipping.row_counts import Counts
from strategies.wire.replies import Gathered
from userdp.arrays.sparse_rows import dense
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.noise import SeededNoise
from userdp.problems import Quadratic, TorchProblem
from userdp.problems.embeddings import Tables


def listed(users, **options):
    chosen = {} if options.get("embedding_rows", "all") == "all" else {"false_rows": 0.2}
    return make(DPFedSGD, Listed(), users, epsilon=2.0, delta=1e-4, **{"rounds": 3, **chosen} | options)


EVERYBODY = range(len(SENT))
CHOICES = {"found": {"embedding_rows": "found"}, "each_round": {"embedding_rows": "each_round"}}
EVERY_CHOICE = CHOICES | {"projected": {"embedding_rows": "projected", "max_rows": 2}}
SAMPLINGS = {
    "replace_one": {"sampling": "disjoint"},
    "add_or_remove": {"sampling": "poisson", "cohort": 8},
    "secret, replace_one": {"sampling": "poisson", "cohort": 8, "relation": "replace_one"},
}


def moves(held, relation):
    """Every difference of sums of two neighbours, from everybody's possible row."""
    return [one - other for one, other in product(held, held)] if "replace" in relation else list(held)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_counts_and_gradient_of_any_two_neighbours_are_as_far_apart_as_one_gaussian_prices(sampling):
    method = listed(len(SENT), **CHOICES["each_round"], **SAMPLINGS[sampling])
    scheme, batch = method.scheme, method.scheme.sampler.expected_batch
    held = rows(requested(method, 0).computation)
    noise = np.full(10, scheme.mechanism.standard_deviation * batch)
    noise[7:] = scheme.counts.mechanism.standard_deviation * batch * scheme.clip
    longest = max(np.linalg.norm(move / noise) for move in moves(held, sampling))
    priced = 1 / method.plan.numbers["noise_multiplier"]
    assert longest <= priced * (1 + 1e-9)
    if "secret" not in sampling:  # the move is attained where neither part turns against itself
        assert longest > 0.9 * priced


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_finding_and_training_on_any_rows_move_by_at_most_what_is_priced(sampling):
    method = listed(len(SENT), **CHOICES["found"], **SAMPLINGS[sampling])
    scheme, batch, memory = method.scheme, method.scheme.sampler.expected_batch, method.scheme.new_memory()
    priced = 1 / method.plan.numbers["noise_multiplier"]
    counting = scheme.counts.mechanism.standard_deviation * batch
    found = max(np.linalg.norm(move) / counting for move in moves(rows(scheme.ask(0, memory).computation), sampling))
    assert found <= priced * (1 + 1e-9)
    training = scheme.training.mechanism.standard_deviation * batch
    memory.counted = 1
    for chosen in (chosen for size in range(4) for chosen in combinations(range(3), size)):
        memory.counts = np.where(np.isin(np.arange(3), chosen), 1e9, -1e9)
        asked = scheme.ask(1, memory).computation
        held = rows(asked)
        assert held.shape == (len(SENT), 1 + 2 * len(chosen))  # nothing of other rows leaves a node
        assert max(np.linalg.norm(move) / training for move in moves(held, sampling)) <= priced * (1 + 1e-9)


def test_what_is_not_finite_counts_nowhere():
    method = listed(len(SENT), **CHOICES["each_round"])
    held = rows(requested(method, 0).computation)
    assert not held[~np.isfinite(SENT).all(axis=1)].any()
    assert np.isfinite(held).all()


def test_a_user_whose_only_row_does_not_pass_is_clipped_with_it_and_its_other_parameters_count():
    """In a round that chooses; where rows are found before, what is left out takes no part of the clip."""
    sent = Gathered(np.zeros(10), 0, 0)
    method = listed(len(SENT), **CHOICES["each_round"])
    held = rows(requested(method, 0).computation)
    user = 10  # five outside, a thousandth in a row
    np.testing.assert_allclose(held[user, :7], SENT[user] / np.linalg.norm(SENT[user]))
    quiet = silenced(method)
    values = held[user].copy()
    values[7:] = -1e9  # no row passes
    step = taken(quiet, 0, np.zeros(7), replace(sent, values=values))
    assert step.facts["rows_trained"] == 0
    assert np.flatnonzero(step.following).tolist() == [0]


@pytest.mark.parametrize("at", [-1e-12, 0.0, 1e-12])
def test_a_count_at_the_threshold_does_not_pass(at):
    counts = Counts(TABLES, 7, GaussianMechanism(0.1, 2.0), 1, 0.2)
    assert counts.threshold == pytest.approx(-0.2 * ndtri(0.2))
    assert counts.chosen(np.full(3, counts.threshold + at)).tolist() == ([0, 1, 2] if at > 0 else [])


def test_nothing_depends_on_a_row_that_does_not_pass_but_its_count():
    """The same noise and counts, whatever the sum has in the rows that do not pass: the same model to the bit."""
    told = np.array([3.0, *range(6), 50.0, -50.0, 50.0])
    other = told.copy()
    other[[3, 4]] = -1e6
    steps = []
    for values in (told, other):
        method = listed(40, **CHOICES["each_round"])
        steps.append(taken(method, 0, np.zeros(7), Gathered(values, 0, 0)).following)
    np.testing.assert_array_equal(*steps)
    assert np.flatnonzero(steps[0] == 0).tolist() == [3, 4]


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_are_chosen_by_noisy_counts_alone(choice):
    """A count at the threshold passes in about half of 300 runs, within 5 deviations: by its noise."""
    scheme, rng, passed = listed(40, **CHOICES[choice]).scheme, np.random.default_rng(0), 0
    told = [0.0] * 7 if choice == "each_round" else []
    sums = Gathered(np.array([*told, scheme.counts.threshold * 40, -1e9, -1e9]), 0, 0)
    for _ in range(300):
        memory = scheme.new_memory()
        step = scheme.take(0, np.zeros(7), sums, memory, lambda purpose: SeededNoise(rng))
        passed += step.facts["rows_trained"] if told else len(scheme.counts.chosen(memory.counts))
    assert abs(passed - 150) < 5 * math.sqrt(75)


def test_counts_of_several_rounds_are_added_up_before_the_rows_are_found():
    method = listed(40, **CHOICES["found"], finding_rounds=2, rounds=4)
    codes = [1] * 30 + [0] * 10
    single = listed(40, **CHOICES["found"], rounds=4).scheme.counts
    assert method.scheme.counts.deviation == pytest.approx(math.sqrt(2) * single.deviation)
    quiet, x = silenced(method), np.zeros(7)
    for index in range(2):
        step = taken(quiet, index, x, gathered(quiet, federation(codes), index, x))
        np.testing.assert_array_equal(step.following, x)  # no model moves
    assert quiet.memory.counts.tolist() == [1.5, 0.0, 0.0]
    step = taken(quiet, 2, x, gathered(quiet, federation(codes), 2, x))
    assert step.facts["rows_trained"] == 1
    assert np.flatnonzero(step.following).tolist() == [1]


def test_a_round_that_a_killed_run_may_have_counted_is_counted_again():
    method = listed(40, **CHOICES["found"])
    step = taken(method, 0, np.zeros(7), Gathered(np.full(3, 30.0), 0, 0, skipped=True))
    assert step.facts == {"lost": 1.0}
    assert method.memory.counted == 0
    assert requested(method, 1).computation.name == "row_weights"


# --- A projection -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_projection_asks_and_adds_what_all_rows_do_and_follows_that_alone(sampling):
    everything, method = (listed(40, **options, **SAMPLINGS[sampling]) for options in ({}, EVERY_CHOICE["projected"]))
    assert requested(method, 0).computation == requested(everything, 0).computation
    assert method.scheme.mechanism == everything.scheme.mechanism
    sent = Gathered(np.array([3.0, 40.0, 0.0, -30.0, 5.0, 0.0, 0.0]), 0, 0)
    followed, released = (-taken(each, 0, np.zeros(7), sent).following for each in (method, everything))
    radius = method.scheme.outline.numbers["clip_norm"] * math.sqrt(2)
    np.testing.assert_allclose(followed, TABLES.shrunk(released, radius), rtol=1e-12)
    assert np.abs(followed - released).max() > 0.01


@pytest.mark.parametrize("max_rows", [1, 2])
def test_no_user_of_few_rows_is_moved_and_the_mean_of_such_users_is_not(max_rows):
    """The sum of row norms of any of these users, clipped, is within the radius; so is that of every mean."""
    method = listed(40, embedding_rows="projected", max_rows=max_rows)
    held = rows(requested(method, 0).computation)
    few = held[(np.abs(held[:, 1:]).reshape(-1, 3, 2).max(axis=2) > 0).sum(axis=1) <= max_rows]
    radius = method.scheme.outline.numbers["clip_norm"] * math.sqrt(max_rows)
    for row in [*few, few.mean(axis=0)]:
        np.testing.assert_allclose(TABLES.shrunk(row, radius), row, atol=1e-15)


@pytest.mark.parametrize("width", [1, 8])
def test_what_is_followed_is_as_near_to_the_mean_as_the_plan_says(width):
    """400 draws at 500 rows, of which the mean has one, or all alike; their mean errs by 5 deviations at most."""
    tables, rng, radius, deviation = Tables(((0, 500, width),)), np.random.default_rng(4), 2.0, 0.2
    longest = math.sqrt(width) + math.sqrt(2 * math.log(500))
    for rows_held in (1, 500):
        mean = np.zeros((500, width))
        mean[:rows_held, 0] = radius / rows_held
        released = mean.ravel() + rng.normal(0, deviation, (400, 500 * width))
        errors = np.array([((tables.shrunk(each, radius) - mean.ravel()) ** 2).sum() for each in released])
        assert errors.mean() - 5 * errors.std() / 20 <= 4 * radius * deviation * longest
        assert (errors <= ((released - mean.ravel()) ** 2).sum(axis=1)).all()


def test_masked_sums_can_be_projected():
    """All rows are asked for."""
    masked = make(DPFedSGD, Listed(), 40, epsilon=2.0, delta=1e-4, rounds=3, trust="sum", **EVERY_CHOICE["projected"])
    assert requested(masked, 0).computation.masked is not None


# --- Price and plan ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_choice_costs_what_all_rows_cost(sampling):
    wanted = listed(60, **SAMPLINGS[sampling]).plan.guarantee
    for options in EVERY_CHOICE.values():
        assert listed(60, **options, **SAMPLINGS[sampling]).plan.guarantee == wanted


@pytest.mark.parametrize("choice", EVERY_CHOICE)
@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_releases_are_charged_whatever_is_chosen(choice, noise):
    """The run compares the cost of what it draws with that of its plan; nothing may pass, or everything."""
    for false_rows in (1e-12, 0.49):
        method = listed(12, **EVERY_CHOICE[choice], noise=noise, false_rows=false_rows)
        run(method, federation([0] * 6 + [8] * 6))
        assert method.spent_epsilon == pytest.approx(method.plan.guarantee.epsilon)


@pytest.mark.parametrize("held", [[0.0], [0.3], [0.05] * 40, [1.0, 0.2, 0.1, *[0.01] * 20]])
def test_no_more_rows_pass_on_average_than_the_plan_says(held):
    """1,000 rows; 400 draws, so their mean errs by less than 5 of its own deviations."""
    counts = Counts(Tables(((0, 1000, 4),)), 4000, GaussianMechanism(0.05, 1.0), 1, 0.01)
    told, rng = np.zeros(1000), np.random.default_rng(3)
    told[: len(held)] = held
    passed = [len(counts.chosen(told + rng.normal(scale=counts.deviation, size=1000))) for _ in range(400)]
    per_user = max(1, math.ceil(sum(held) ** 2))  # of a user, all counts are the root of its rows at most
    assert np.mean(passed) - 5 * np.std(passed) / 20 <= counts.expected_rows(per_user)


def test_a_plan_tells_the_noise_of_each_choice_and_names_the_least():
    def told(**options):
        return problem_plan(max_rows=5, rounds=5, **options)

    many, few = told(users=2000), told(users=20)
    assert many["table_rows"] == 3000
    assert many["noise_of_all"] == pytest.approx(many["noise_deviation"] * math.sqrt(3001))
    assert many["least_noise"] != "all"
    least = min(("all", "found", "each_round", "projected"), key=lambda which: few[f"noise_of_{which}"])
    assert few["least_noise"] == least
    deviation, radius = few["noise_deviation"], few["clip_norm"] * math.sqrt(5)
    entries = 4 * radius * (1 + math.sqrt(2 * math.log(3000))) / deviation
    assert few["noise_of_projected"] == pytest.approx(deviation * math.sqrt(1 + min(3000, entries)))
    assert few["noise_of_projected"] < few["noise_of_all"]
    chosen = told(users=2000, embedding_rows="found")
    assert chosen["noise_of_found"] == many["noise_of_found"]
    assert "row_threshold" in chosen


def problem_plan(users, **options):
    return make(DPFedSGD, Votes(), users, epsilon=4.0, delta=1e-5, **options).plan.numbers


def test_without_a_declaration_a_plan_says_nothing_of_rows():
    assert "least_noise" not in problem_plan(users=100)


REFUSED = {
    "without tables": ({"embedding_rows": "found"}, {}, "has no nn.Embedding"),
    "without tables, compared": ({"max_rows": 3}, {}, "has no nn.Embedding"),
    "masked, found": ({"embedding_rows": "found"}, {"trust": "sum"}, "masked sums have all rows"),
    "masked, chosen": ({"embedding_rows": "each_round"}, {"trust": "sum"}, "masked sums have all rows"),
    "masked, compared": ({"max_rows": 3}, {"trust": "sum"}, "max_rows = 3: all rows of embeddings train"),
    "nothing found": ({"finding_rounds": 2}, {}, "finding_rounds = 2: all rows of embeddings train"),
    "nothing counted": ({"count_share": 0.5}, {}, "count_share = 0.5: all rows of embeddings train"),
    "no number of rows": ({"embedding_rows": "projected"}, {}, "'projected' needs strategy.max_rows"),
    "all rounds find": ({"embedding_rows": "found", "finding_rounds": 3}, {}, "leaves none of strategy.rounds = 3"),
    "corrected": (
        {"embedding_rows": "each_round", "server_optimiser": "adam", "noise_corrected": True},
        {},
        "leave noise_corrected out",
    ),
    "projected, corrected": (
        {"embedding_rows": "projected", "max_rows": 1, "server_optimiser": "adam", "noise_corrected": True},
        {},
        "leave noise_corrected out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_chosen_is_refused(case):
    options, more, told = REFUSED[case]
    problem = Quadratic(7, 100.0, 200.0) if "without" in case else Listed()
    with pytest.raises(BadInput, match=told):
        make(DPFedSGD, problem, 40, epsilon=2.0, delta=1e-4, rounds=3, **more, **options)


# --- One answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", EVERY_CHOICE)
def test_one_seed_gives_one_model_however_users_are_spread(choice):
    codes = [*EVERYBODY] * 4
    models = [
        final(run(listed(len(codes), **EVERY_CHOICE[choice]), federation(codes), nodes)) for nodes in (None, 7, 60)
    ]
    for model in models[1:]:
        np.testing.assert_allclose(model, models[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(models[0], final(run(listed(len(codes), **EVERY_CHOICE[choice]), federation(codes))))


@dataclass(frozen=True)
class RowsRun(Run):
    """A run of `Listed` users."""

    def _problem(self):
        return Listed()

    def _data(self, problem):
        return federation(np.arange(400) % len(SENT))


@pytest.mark.parametrize("choice", EVERY_CHOICE)
def test_a_run_goes_on_to_the_bit_from_every_round(choice):
    options = EVERY_CHOICE[choice] | {"rounds": 5, "server_optimiser": "adam"}
    options |= {"finding_rounds": 2} if choice == "found" else {}
    one, keeper = RowsRun("dp_fed_sgd", options), Kept()
    one.trained(evaluate_fn=measured, keeper=keeper)
    assert len(keeper.kept) == 6
    assert strays(one, keeper.kept) == []


# --- A canary: an item that one user alone has ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_no_attack_on_the_row_of_one_user_exceeds_the_promise(choice):
    """The attacker sees whether the row passes, and its value; bounds hold 99 times in 100."""
    options = CHOICES[choice] | {"rounds": 1 if choice == "each_round" else 2, "count_share": 0.5, "false_rows": 0.3}
    method = listed(8, sampling="poisson", cohort=8, **options)
    scheme, x, scores = method.scheme, np.zeros(7), {}
    for code in (1, 0):
        node, rng = Node(method.problem, federation([0] * 7 + [code]), np.arange(8)), np.random.default_rng(code)
        answers = {}
        for _ in range(20_000):
            memory = scheme.new_memory()
            for index in range(method.plan.rounds):
                asked = replace(scheme.ask(index, memory).computation, lengths=False)
                key = asked.name, *asked.arrays.get("rows", ())
                if key not in answers:
                    answers[key] = Gathered(node.compute(x, np.arange(8), asked).values[0], 0, 0)
                step = scheme.take(index, x, answers[key], memory, lambda purpose, rng=rng: SeededNoise(rng))
            scores.setdefault(code, []).append(-step.following[1] if step.following[1] else -1e3)
    promise = method.plan.guarantee
    assert 0.1 < epsilon_lower_bound(scores[1], scores[0], promise.delta, confidence=0.99) <= promise.epsilon


# --- Modules ----------------------------------------------------------------------------------------------------------

LEVELS, COLUMNS = 12, 3
OFFSETS = np.array([0, 2, 3, 7])
CODES = np.random.default_rng(0).integers(0, LEVELS - 1, (7, COLUMNS)).astype(np.int32)


class Bag(nn.Module):
    """Scores of two classes from the sum of items' rows; the last item pads."""

    def __init__(self, layer, frozen=False, tied=False):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))
        self.items, self.scores = layer, nn.Linear(4, 2, bias=False)
        self.other = nn.Linear(4, LEVELS, bias=False)
        self.other.weight = self.items.weight if tied else self.other.weight
        self.items.weight.requires_grad_(not frozen)

    def forward(self, codes):
        found = self.items(codes)
        return self.scores(found if found.ndim == 2 else found.sum(1)) + self.bias


LAYERS = {
    "embedding": lambda: nn.Embedding(LEVELS, 4, padding_idx=LEVELS - 1),
    "sparse": lambda: nn.Embedding(LEVELS, 4, sparse=True),
    "bag": lambda: nn.EmbeddingBag(LEVELS, 4, mode="sum"),
    "sparse bag": lambda: nn.EmbeddingBag(LEVELS, 4, mode="mean", sparse=True),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", LAYERS)
def test_the_rows_that_a_module_reads_are_those_of_the_users_items(kind):
    problem = TorchProblem(lambda: Bag(LAYERS[kind]()), "cross_entropy", COLUMNS, levels=(LEVELS,) * COLUMNS)
    assert problem.tables == Tables(((2, LEVELS, 4),))
    block = Block(CODES, OFFSETS, np.array([0, 1, 1, 0, 1, 0, 1], dtype=np.float32))
    asked = Computation("row_weights", "rows", 1.0, arrays={"tables": problem.tables.described}, separate=True)
    counted = dense(
        Node(problem, ColumnarFederation(block), np.arange(3)).compute(problem.initial(), np.arange(3), asked).values
    )
    for user in range(3):
        items = np.unique(CODES[OFFSETS[user] : OFFSETS[user + 1]])
        assert np.flatnonzero(counted[user]).tolist() == items.tolist()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_tables_are_those_that_train_also_where_another_layer_has_the_same_weights():
    def tables(**how):
        return TorchProblem(
            lambda: Bag(LAYERS["embedding"](), **how), "cross_entropy", COLUMNS, levels=(LEVELS,) * COLUMNS
        ).tables

    assert tables(frozen=True) is None
    assert tables(tied=True) == tables() == Tables(((2, LEVELS, 4),))


# --- What it is worth -------------------------------------------------------------------------------------------------

ITEMS, HELD = 3000, 20


class Votes(Quadratic):
    """The logistic loss of the sum of a user's items' weights, and of one for all: a bag of words, by hand."""

    def __init__(self):
        super().__init__(ITEMS + 1, 1e6, 200.0)
        self.columns, self.has_targets, self.tables = HELD, True, Tables(((1, ITEMS, 1),))

    def bound(self, block):
        return block, 0

    def user_gradients(self, x, block):
        items = block.features.astype(np.int64)
        wrong = 1 / (1 + np.exp(-x[0] - x[1 + items].sum(axis=1))) - block.targets
        found = np.zeros((block.users, self.dimension))
        found[:, 0] = wrong
        np.add.at(found, (np.arange(block.users)[:, None], 1 + items), wrong[:, None])
        return found


def zipf(seed, users, weights):
    rng, chances = np.random.default_rng(seed), 1 / np.arange(1, ITEMS + 1) ** 1.1
    items = rng.choice(ITEMS, (users, HELD), p=chances / chances.sum())
    likes = rng.random(users) < 1 / (1 + np.exp(-weights[items].sum(axis=1)))
    return Block(items.astype(np.float32), np.arange(users + 1), likes.astype(np.float32))


def log_loss(x, block):
    scores = x[0] + x[1 + block.features.astype(np.int64)].sum(axis=1)
    return np.mean(np.logaddexp(0, scores) - block.targets * scores)


def test_on_items_of_a_zipf_law_rows_that_are_found_do_better_than_all_rows_at_the_step_that_suits_all():
    """2,000 users of 20 of 3,000 items, epsilon 4, the mean over three seeds; the step is the best of 2, 4, 8."""
    losses = {"all": [], "found": []}
    for seed, which in product(range(3), losses):
        weights = np.random.default_rng(100 + seed).normal(0, 0.7, ITEMS)
        options = {"rounds": 12, "learning_rate": 4.0, "finding_rounds": 2 if which == "found" else 1}
        method = make(DPFedSGD, Votes(), 2000, epsilon=4.0, delta=1e-5, seed=seed, embedding_rows=which, **options)
        model = final(run(method, ColumnarFederation(zipf(seed, 2000, weights))))
        losses[which].append(log_loss(model, zipf(seed + 50, 20_000, weights)))
    assert np.mean(losses["found"]) < np.mean(losses["all"])
    assert np.mean(losses["found"]) < math.log(2)
