"""A module's work for one user does not affect its work for another: state, random numbers, batches, failures."""

import copy
import math
import pickle
import random
from functools import partial

import numpy as np
import pytest
import torch
from isolation_cases import CARRY, COLUMNS, DRAWS, HARMLESS, MIXES, NEITHER, WIDTH, Body, TableMadeOnce, dropout
from torch import nn

from userdp.data import ColumnarFederation
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.neural.chance import own_randomness
from userdp.neural.contents import Marks, described, difference
from userdp.neural.habits import PROCESSOR
from userdp.neural.model import Model
from userdp.nodes.computations import Computation
from userdp.nodes.local_training import LocalTraining
from userdp.nodes.node import Node
from userdp.problems import TorchProblem

USERS, REPLACED, CLIP = 12, 5, 0.2
SIZES = np.random.default_rng(0).integers(1, 6, USERS)
TRAINING = LocalTraining.of("momentum", "linear", step_size=0.1, epochs=1, batch_size=3, key=5)
COMPUTATIONS = {
    "gradients": Computation("user_gradient", "sum", CLIP),
    "local training": Computation("local_update", "sum", CLIP, parameters=TRAINING.parameters()),
}
UNNOTICED = [*NEITHER, "SomeSamplesMix"]
BOTH_WAYS = [(name, way) for name in HARMLESS for way in ("loop", "grouped") if name in UNNOTICED or way == "loop"]


def make(factory, execution="loop", **options):
    return TorchProblem(
        factory, getattr(factory, "loss", "mse"), COLUMNS, precision="double", execution=execution, **options
    )


def users(sizes=SIZES, seed=0):
    """A list of each user's features and targets."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(size, COLUMNS)), rng.normal(size=size)) for size in sizes]


def block_of(people):
    features, targets = (np.concatenate([person[part] for person in people]).astype(np.float32) for part in (0, 1))
    return Block(features, np.concatenate([[0], np.cumsum([len(person[1]) for person in people])]), targets)


def replacements():
    """Others in the place of one user: many samples far away, numbers that overflow, and a failure."""
    rng = np.random.default_rng(9)
    features, targets = rng.normal(size=(30, COLUMNS)), rng.normal(size=30)
    yield "more samples, far away", (20 * features, targets)
    yield "not finite", (features[:3], np.full(3, 1e38))
    yield "fails", (np.full((9, COLUMNS), 1000.0), targets[:9])


def neighbours():
    """The block of all users for each replacement of one user, after the replacement's name."""
    people = users()
    for told, other in replacements():
        yield told, block_of([*people[:REPLACED], other, *people[REPLACED + 1 :]])


def computed(problem, block, computation):
    node = Node(problem, ColumnarFederation(block), np.arange(block.users))
    return node.compute(problem.initial(), np.arange(block.users), computation).values


# No user moves another ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("what", COMPUTATIONS)
@pytest.mark.parametrize(("name", "execution"), BOTH_WAYS)
def test_replacing_one_user_moves_the_clipped_sum_by_at_most_its_sensitivity(name, execution, what):
    problem = make(HARMLESS[name], execution)
    total = computed(problem, block_of(users()), COMPUTATIONS[what])
    assert np.linalg.norm(total) > 2 * CLIP
    for told, block in neighbours():
        moved = np.linalg.norm(computed(problem, block, COMPUTATIONS[what]) - total)
        assert 0 < moved <= 2 * CLIP * (1 + 1e-9), told


@pytest.mark.parametrize(("name", "execution"), BOTH_WAYS)
def test_a_user_moves_its_own_gradient_and_losses_and_no_others(name, execution):
    problem, others = make(HARMLESS[name], execution), np.arange(USERS) != REPLACED
    x, (told, block) = problem.initial(), next(neighbours())
    for rows in (problem.user_gradients, lambda x, block: problem.metrics(x, block)["test_loss"]):
        before, after = rows(x, block_of(users())), rows(x, block)
        np.testing.assert_allclose(after[others], before[others], rtol=1e-9, atol=1e-12, err_msg=told)
        assert np.abs(after[REPLACED] - before[REPLACED]).max() > 1e-3


@pytest.mark.parametrize("name", ["dropout", "BatchMean", "SomeSamplesDraw"])
def test_gradients_of_samples_are_functions_of_that_sample(name):
    problem, block = make(HARMLESS[name]), block_of(users([3, 2]))
    x, features = problem.initial(), block.features.copy()
    features[1] += 30
    rows = [
        problem.sample_gradients(x, Block(each, block.offsets, block.targets)) for each in (block.features, features)
    ]
    others = np.arange(5) != 1
    np.testing.assert_allclose(rows[1][others], rows[0][others], rtol=1e-12, atol=1e-15)


def test_a_sample_that_leaves_moves_no_coins_of_others():
    problem, block = make(dropout), block_of(users([3, 2]))
    x = problem.initial()
    _, fewer = block.thinned(np.arange(5) != 0)
    np.testing.assert_allclose(problem.sample_gradients(x, fewer), problem.sample_gradients(x, block)[1:], rtol=1e-12)


# Modules that carry something -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CARRY)
def test_a_module_that_carries_something_is_refused_before_any_data_are_read(name):
    with pytest.raises(
        BadInput, match=r"problem\.module carries something from one computation to the next \(.*eval\(\)"
    ):
        make(CARRY[name])


def test_the_refusal_names_what_changes():
    with pytest.raises(BadInput, match=r"'module\.0\.held\.numbers\.sum' changes"):
        make(lambda: nn.Sequential(CARRY["InsideAnObject"]()))


@pytest.mark.parametrize("name", HARMLESS)
def test_a_module_that_carries_nothing_is_accepted(name):
    found = make(HARMLESS[name]).engine.model.original.in_training
    assert (found.draws, found.mixes) == (name in DRAWS, name in MIXES)


@pytest.mark.parametrize("name", [*DRAWS, *MIXES])
def test_a_module_that_draws_or_mixes_is_computed_user_by_user(name):
    problem = make(HARMLESS[name], "auto")
    problem.user_gradients(problem.initial(), block_of(users([3, 2, 2])))
    assert not problem.choice.grouped
    does = "draws random numbers" if name in DRAWS else "mixes the samples of a batch"
    with pytest.raises(BadInput, match=rf"problem\.execution = 'grouped': the module {does}.* use 'auto' or 'loop'"):
        make(HARMLESS[name], "grouped")


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_batch_normalisation_by_the_batch_is_refused_by_name(layer):
    def made():
        return nn.Sequential(nn.Linear(COLUMNS, WIDTH), layer(WIDTH, track_running_stats=False), nn.Linear(WIDTH, 1))

    with pytest.raises(BadInput, match=r"track_running_stats = False \(layer '1'\), which mixes .*nn\.GroupNorm"):
        make(made)


def test_a_loss_that_carries_something_is_refused_too():
    class Counting:
        calls = 0

        def __call__(self, outputs, targets):
            self.calls += 1
            return self.calls * (outputs.squeeze(-1) - targets) ** 2

    with pytest.raises(BadInput, match=r"'loss\.calls' changes"):
        TorchProblem(lambda: nn.Linear(COLUMNS, 1), Counting(), COLUMNS)


def test_a_module_that_cannot_be_copied_is_refused():
    class Keeps(Body):
        def __init__(self):
            super().__init__()
            self.product = self.first.weight * 2

    with pytest.raises(BadInput, match=r"problem\.module cannot be copied \(RuntimeError\): keep no results"):
        make(Keeps)


def unusable(kind):
    layer = nn.Linear(COLUMNS, 1)
    match kind:
        case "lazy":
            return nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
        case "compiled":
            return torch.compile(layer)
        case "within":
            return nn.Sequential(torch.compile(layer))
        case "compiled in place":
            layer.compile()
        case "nan":
            nn.init.constant_(layer.bias, math.nan)
    return layer


UNUSABLE = {
    "lazy": r"layer '0', LazyLinear\): every node makes the same model",
    "compiled": r"compiled by torch\.compile \(layer ''\)",
    "within": r"compiled by torch\.compile \(layer '0'\)",
    "compiled in place": r"compiled by torch\.compile \(layer ''\)",
    "nan": r"problem\.loss is NaN for all made-up samples",
}


@pytest.mark.filterwarnings("ignore")  # Torch's own, of what it imports to compile
@pytest.mark.parametrize(("kind", "words"), UNUSABLE.items(), ids=UNUSABLE)
def test_a_module_that_cannot_learn_from_users_one_by_one_is_refused_before_data_are_read(kind, words):
    with pytest.raises(BadInput, match=words):
        make(partial(unusable, kind))


def test_a_loss_that_takes_some_targets_only_is_no_loss_of_nothing_but_nan():
    def of_logarithm(outputs, targets):
        return (outputs.squeeze(-1) - torch.log(targets - 0.2)) ** 2  # NaN for the made-up targets of zero

    assert TorchProblem(lambda: nn.Linear(COLUMNS, 1), of_logarithm, COLUMNS).dimension == COLUMNS + 1


# State ----------------------------------------------------------------------------------------------------------------


def test_the_modules_own_buffers_and_parameters_are_never_touched():
    mine = nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))
    before, modes = described(mine), [layer.training for layer in mine.modules()]
    problem = make(lambda: mine)
    problem.local_updates(problem.initial(), block_of(users([3, 2])), TRAINING)
    assert difference(before, described(mine)) is None
    assert [layer.training for layer in mine.modules()] == modes
    with torch.no_grad():
        mine[1].running_mean += 5
    assert torch.equal(problem.engine.model.original.module[1].running_mean, torch.zeros(WIDTH, dtype=torch.float64))


@pytest.mark.parametrize(
    "name", ["SomeSamplesCarry", "SomeLossesCarry", "WhileItRuns", "TableThatGrows", "fixed_batch_norm"]
)
def test_before_each_user_the_module_is_what_it_was_before_the_first(name, monkeypatch):
    problem, seen, begin = make(HARMLESS[name], "loop"), [], Model.begin

    def noted(self, key, **named):
        begin(self, key, **named)
        seen.append(described(self.copy_in_use))

    monkeypatch.setattr(Model, "begin", noted)
    computed(problem, next(block for told, block in neighbours() if told == "fails"), COMPUTATIONS["gradients"])
    assert len(seen) >= USERS
    assert all(difference(seen[0], each) is None for each in seen)


def test_a_module_may_write_to_its_parameters_for_no_other_user():
    class Held(Body):
        def between(self, values, x):
            with torch.no_grad():
                self.first.weight.data.clamp_(-0.1, 0.1)
            return torch.tanh(self.first(x))

    problem, block = make(Held, "loop"), block_of(users([3, 2, 4]))
    x = problem.initial()
    kept = x.copy()
    together = problem.local_updates(x, block, TRAINING)
    np.testing.assert_array_equal(x, kept)
    for user in range(3):
        alone = problem.local_updates(x, block.part(user, user + 1), TRAINING)
        np.testing.assert_allclose(together[user], alone[0], rtol=1e-12, atol=1e-15)


CHANGES = {
    "an attribute": lambda module: setattr(module, "table", 3),
    "a new attribute": lambda module: setattr(module, "other", None),
    "a buffer in place": lambda module: module.kept.add_(1),
    "a buffer": lambda module: setattr(module, "kept", torch.ones(2)),
    "a list": lambda module: module.things[0].append(1),
    "a key of a dictionary": lambda module: module.things[1].update(b=module.things[1].pop("a")),
    "a set": lambda module: module.things[2].add(1),
    "an array": lambda module: module.things[3].fill(1),
    "a generator": lambda module: module.things[4].random(),
    "an attribute of an object": lambda module: setattr(module.things[5], "numbers", 1),
    "the mode": lambda module: module.last.eval(),
    "a frozen parameter": lambda module: module.first.weight.data.copy_(torch.zeros(WIDTH, COLUMNS)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_a_module_keeps_is_seen_to_change(what):
    module = TableMadeOnce()
    module.register_buffer("kept", torch.zeros(2))
    thing = type("Thing", (), {})()
    thing.numbers = 0
    module.things = [[], {"a": 1}, set(), np.zeros(2), np.random.default_rng(0), thing]
    marks, before = Marks(module), described(module)
    assert marks.hold()
    assert difference(before, described(copy.deepcopy(module))) is None
    CHANGES[what](module)
    assert difference(before, described(module)) is not None
    if what != "a frozen parameter":  # written to behind torch's back, which made-up samples show
        assert not marks.hold()


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrent_layer_is_what_it_was_after_it_computed(layer):
    module = layer(COLUMNS, 3, batch_first=True)
    marks, weights = Marks(module), {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    torch.func.functional_call(module, weights, (torch.zeros(2, 5, COLUMNS),))
    assert marks.hold()


# Chance ---------------------------------------------------------------------------------------------------------------


def states():
    return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()[1]), random.getstate()  # noqa: NPY002


@pytest.mark.parametrize("name", [*DRAWS, "SomeSamplesDraw"])
def test_random_numbers_come_from_nobody_elses_generators_and_leave_them_as_they_were(name):
    block, found = next(neighbours())[1].part(REPLACED - 2, REPLACED + 3), []
    for start in (1, 2):
        torch.manual_seed(start)
        np.random.seed(start)  # noqa: NPY002
        random.seed(start)
        before = states()
        problem = make(HARMLESS[name])
        x = problem.initial()
        found.append((problem.user_gradients(x, block), problem.local_updates(x, block, TRAINING)))
        problem.metrics(x, block)
        pickle.dumps(problem.engine.model.original.module)
        assert states() == before
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [*DRAWS, "fixed_batch_norm"])
def test_coins_are_the_same_for_any_grouping_and_order_of_users(name):
    problem, block = make(HARMLESS[name]), block_of(users([3, 2, 7, 2]))
    x = problem.initial()
    for compute in (problem.user_gradients, lambda x, block: problem.local_updates(x, block, TRAINING)):
        together = compute(x, block)
        apart = [compute(x, block.part(user, user + 1))[0] for user in (3, 1, 0, 2)]
        np.testing.assert_allclose(together[[3, 1, 0, 2]], apart, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("what", ["user_gradients", "sample_losses"])
def test_coins_differ_by_seed_model_features_and_targets(what):
    people, made = block_of(users([4])), {seed: make(DRAWS["AlwaysDropout"], seed=seed) for seed in (0, 1)}
    x = made[0].initial()

    def found(seed=0, shift=0.0, features=0.0, targets=0.0):
        block = Block(people.features + np.float32(features), people.offsets, people.targets + np.float32(targets))
        return getattr(made[seed], what)(x + shift, block)

    same = found()
    np.testing.assert_array_equal(found(), same)
    for other in ({"seed": 1}, {"shift": 1e-9}, {"features": 1e-6}, {"targets": 1e-6}):
        assert np.abs(found(**other) - same).max() > 1e-3, other


def test_dropout_is_on_in_training_and_off_where_the_module_is_measured_or_the_factory_turned_it_off():
    block = block_of(users([4, 3]))
    drops, still = make(dropout), make(lambda: dropout().eval())
    x = drops.initial()
    np.testing.assert_array_equal(still.initial(), x)
    assert np.abs(drops.user_gradients(x, block) - still.user_gradients(x, block)).max() > 1e-3
    np.testing.assert_array_equal(drops.sample_losses(x, block), still.sample_losses(x, block))
    assert not still.engine.model.original.draws


def test_the_mean_over_coins_is_the_gradient_without_dropout_of_a_linear_module():
    """300 models so near that only coins differ: each mean lies within 6 standard errors, all but 1e-6 of the time."""

    def linear():
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(COLUMNS, 1, bias=False))

    problem = TorchProblem(linear, lambda outputs, targets: outputs.squeeze(-1), COLUMNS, precision="double")
    block = block_of(users([1]))
    models = np.arange(1, 301)[:, None] * 1e-9 + problem.initial()
    many = Block(np.repeat(block.features, 300, axis=0), np.arange(301), np.repeat(block.targets, 300))
    rows = problem.user_gradients_at(models, many)
    errors = rows.std(axis=0) / np.sqrt(300)
    assert (np.abs(rows.mean(axis=0) - block.features[0]) <= 6 * errors).all()
    assert (rows.std(axis=0) > 0.9 * np.abs(block.features[0])).all()


def test_the_factory_draws_from_the_seed_alone():
    def factory():
        module = nn.Linear(COLUMNS, 1)
        with torch.no_grad():
            module.weight[0, 0], module.weight[0, 1] = random.random(), float(np.random.random())  # noqa: NPY002
        return module

    before = states()
    np.testing.assert_array_equal(make(factory).initial(), make(factory).initial())
    assert states() == before


def test_generators_are_put_back_after_a_failure():
    before = states()

    def fail():
        with own_randomness(PROCESSOR, b"key"):
            raise ValueError(f"it fails {torch.rand(3)} {np.random.random()} {random.random()}")  # noqa: NPY002

    with pytest.raises(ValueError, match="it fails"):
        fail()
    assert states() == before
