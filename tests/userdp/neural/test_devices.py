"""The devices of modules: the same numbers on every device, and no tensor left behind on another."""

import pickle

import numpy as np
import pytest
import torch
from problem_cases import classes
from torch import nn

from userdp.data import ColumnarFederation
from userdp.data.block import Block
from userdp.data.shape import Sequence
from userdp.errors import BadInput
from userdp.neural import devices, model
from userdp.neural.model import Model
from userdp.neural.original import Original
from userdp.nodes.computations import Computation
from userdp.nodes.local_training import LocalTraining
from userdp.nodes.node import Node
from userdp.problems import Quadratic, TorchProblem

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
SIZES = [3, 1, 8, 2]
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
STEPS, LEVELS = 5, (4, 3)
EVERYTHING = LocalTraining.of(
    "adam", "linear", step_size=0.01, steps=2, batch_size=2, weight_decay=0.1, proximal=0.1, key=3
)
TRAININGS = {
    "minibatches of adam": LocalTraining.of("adam", "cosine", step_size=0.01, epochs=2, batch_size=3, key=5),
    "momentum, pulled back": LocalTraining.of("momentum", "linear", step_size=0.1, steps=3, proximal=0.1),
}


def perceptron():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def convolution():
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 3))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.GRU, **options):
        super().__init__()
        self.codes = nn.ModuleList(nn.Embedding(levels + 1, 4) for levels in LEVELS)
        self.layer = kind(4, 5, batch_first=True, **options)
        self.head = nn.Linear(10 if options.get("bidirectional") else 5, LEVELS[-1])

    def forward(self, codes):
        embedded = sum(table(codes[..., channel]) for channel, table in enumerate(self.codes))
        return self.head(self.layer(embedded)[0])


def rows_of_numbers(seed=0):
    rng = np.random.default_rng(seed)
    return Block(rng.normal(size=(OFFSETS[-1], 4)).astype(np.float32), OFFSETS, classes(rng, OFFSETS[-1]))


def windows(seed=0):
    codes = np.random.default_rng(seed).integers(0, 3, size=(OFFSETS[-1], STEPS * len(LEVELS))).astype(np.int32)
    return Block(codes, OFFSETS)


def numbers(factory=perceptron, **options):
    return TorchProblem(factory, "cross_entropy", 4, **options), rows_of_numbers()


def sequences(factory=Recurrent, **options):
    return TorchProblem(factory, "cross_entropy", sequence=Sequence(STEPS, LEVELS), **options), windows()


CASES = {
    "perceptron": numbers,
    "convolution": lambda **options: numbers(convolution, input_shape=(1, 2, 2), **options),
    "gru": sequences,
    "lstm": lambda **options: sequences(lambda: Recurrent(nn.LSTM), **options),
}


# What is asked for -------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_refused_and_auto_goes_without(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=r"engine\.device = 'cuda': torch finds no GPU .* 'auto' or 'cpu'"):
        devices.found("cuda")
    assert devices.found("auto") == devices.found("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.found("cpu") == torch.device("cpu")
    assert devices.found("auto") == devices.found("cuda") == torch.device("cuda")


def test_losses_of_numpy_refuse_a_gpu_and_leave_auto_aside():
    problem = Quadratic(3, 5.0, 2.0)
    with pytest.raises(
        BadInput, match=r"engine\.device = 'cuda': problem\.kind = 'quadratic' is computed on the processor"
    ):
        problem.use_device("cuda")
    for device in ("auto", "cpu"):
        problem.use_device(device)
    problem.settle_device()


def test_the_device_is_looked_for_in_the_process_that_computes_and_not_before(monkeypatch):
    asked = []
    monkeypatch.setattr(model, "found", lambda device: asked.append(device) or torch.device("cpu"))
    problem, block = numbers(device="cuda", execution="grouped")
    problem.initial()
    problem.bound(block)
    assert asked == []
    problem.user_gradients(problem.initial(), block)
    problem.settle_device()
    assert asked == ["cuda"]
    pickle.loads(pickle.dumps(problem)).user_gradients(problem.initial(), block)
    assert asked == ["cuda", "cuda"]  # another process looks for itself
    problem.use_device("auto")
    problem.sample_losses(problem.initial(), block)
    assert asked == ["cuda", "cuda", "auto"]


def test_what_was_measured_on_one_machine_is_not_sent_to_another():
    problem, block = numbers(device="auto")
    problem.user_gradients(problem.initial(), block)
    assert problem.choice.seconds is not None
    assert pickle.loads(pickle.dumps(problem)).choice.seconds is None


def test_a_node_whose_gpu_is_missing_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    problem, block = numbers(device="cuda")
    node = Node(problem, ColumnarFederation(block), np.arange(len(SIZES)))
    with pytest.raises(BadInput, match="torch finds no GPU"):
        node.compute(problem.initial(), np.arange(len(SIZES)), Computation())
    with pytest.raises(BadInput, match="torch finds no GPU"):
        problem.settle_device()


def test_an_unknown_device_is_refused():
    with pytest.raises(BadInput, match=r"engine\.device = 'tpu': must be 'auto', 'cpu' or 'cuda'"):
        numbers(device="tpu")


# Nothing stays behind ----------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """Another device: tensors without numbers, which torch refuses to put together with the processor's."""
    monkeypatch.setattr(model, "found", lambda device: torch.device("meta"))


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("execution", ["loop", "grouped"])
@pytest.mark.parametrize("case", CASES)
def test_a_whole_local_training_is_on_the_device(case, execution, monkeypatch):
    monkeypatch.setattr(Original, "probe", lambda *_: LEVELS[-1])
    problem, block = CASES[case](execution=execution)
    brought = []
    monkeypatch.setattr(
        Model, "rows", lambda self, models: brought.append(models.device.type) or np.zeros(models.shape)
    )
    problem.local_updates(problem.initial(), block, EVERYTHING)
    problem.user_gradients(problem.initial(), block)
    assert set(brought) == {"meta"}
    assert len(brought) == 2 * len(list(problem.engine.tuner.groups(block.sizes)))  # one transfer a group


class Stuck(nn.Module):
    """Adds a tensor that it makes where torch makes them by default."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) + torch.ones(3)


@pytest.mark.usefixtures("elsewhere")
def test_a_module_that_does_not_follow_to_the_device_is_refused_before_there_are_users():
    problem, block = numbers(Stuck)
    with pytest.raises(BadInput, match=r"on meta, where it must make all its tensors on the device of its inputs"):
        problem.user_gradients(problem.initial(), block)


def test_recurrent_layers_of_torch_have_a_way_back_in_evaluation_mode_on_every_device():
    seen = []

    class Watched(nn.LSTM):
        def forward(self, *arguments):
            seen.append(torch.backends.cudnn.enabled)
            return super().forward(*arguments)

    problem, block = sequences(lambda: Recurrent(Watched), execution="loop")
    seen.clear()
    problem.user_gradients(problem.initial(), block)
    assert seen
    assert not any(seen)
    assert torch.backends.cudnn.enabled


def test_a_gpu_computes_in_full_precision_and_leaves_settings_as_they_were():
    before = (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic, torch.get_num_threads())
    with devices.computing(torch.device("cuda")):
        flags = torch.backends.cudnn
        assert flags.enabled
        assert flags.deterministic
        assert not flags.allow_tf32
        assert torch.get_num_threads() == 1
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic, torch.get_num_threads()) == before


def test_outputs_are_counted_by_things_predicted_whatever_the_last_code():
    binary = TorchProblem(
        lambda: nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 1)), "bce_with_logits", sequence=Sequence(4, (5,))
    )
    assert binary.engine.model.outputs == 1


# The same numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("training", TRAININGS)
def test_samples_held_on_the_device_give_the_numbers_of_samples_brought_each_time(case, training, monkeypatch):
    problem, block = CASES[case](execution="grouped")
    x = problem.initial()
    rows = problem.local_updates(x, block, TRAININGS[training])
    monkeypatch.setattr(Model, "held", lambda self, block, users, most=0: held(self, block, users))
    np.testing.assert_array_equal(problem.local_updates(x, block, TRAININGS[training]), rows)


held = Model.held


@GPU
@pytest.mark.parametrize("execution", ["loop", "grouped", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_gives_the_processors_numbers(case, execution):
    (near, block), (far, _) = (CASES[case](execution=execution, device=device) for device in ("cpu", "cuda"))
    x = near.initial()
    np.testing.assert_array_equal(far.initial(), x)
    np.testing.assert_allclose(far.user_gradients(x, block), near.user_gradients(x, block), atol=1e-5)
    for training in TRAININGS.values():
        np.testing.assert_allclose(
            far.local_updates(x, block, training), near.local_updates(x, block, training), atol=1e-4
        )
    for name, values in near.metrics(x, block).items():
        np.testing.assert_allclose(far.metrics(x, block)[name], values, atol=1e-4)


@GPU
def test_a_problem_that_was_on_a_gpu_can_be_sent_to_a_process_without_one():
    problem, block = numbers(device="cuda")
    problem.user_gradients(problem.initial(), block)
    copy = pickle.loads(pickle.dumps(problem))
    copy.use_device("cpu")
    assert copy.user_gradients(problem.initial(), block).shape == (len(SIZES), problem.dimension)
