"""The inputs of a module: never what it is to predict; padding weighs nothing; what cannot be used is set aside."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neural_cases import READERS, SEQUENCE, STEPS, Reader, windows
from torch import nn

from userdp.data.block import Block
from userdp.data.shape import Sequence
from userdp.errors import BadInput
from userdp.neural.samples import Rows, Windows, shape_of
from userdp.problems import TorchProblem

CHANNELS = Windows(4, (3, 2), "cross_entropy")


def block_of(*codes):
    """One user's windows."""
    features = np.array(codes, dtype=np.int32).reshape(len(codes), -1)
    return Block(features, np.array([0, len(codes)]))


def tensors(samples, block):
    return samples.tensors(block, np.arange(block.samples))


# Windows --------------------------------------------------------------------------------------------------------------


def test_codes_arrive_one_higher_and_the_predicted_channel_one_step_late():
    inputs, targets = tensors(CHANNELS, block_of([[0, 1], [2, 0], [1, 1], [-1, -1]]))
    assert inputs[0].tolist() == [[1, 0], [3, 2], [2, 1], [0, 2]]
    assert targets[0].tolist() == [1, 0, 1, -1]
    inputs, targets = tensors(Windows(3, (5,), "cross_entropy"), block_of([[4], [0], [-1]]))
    assert inputs[0].tolist() == [0, 5, 1]
    assert targets[0].tolist() == [4, 0, -1]


@settings(max_examples=60)
@given(st.integers(1, 6), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_inputs_up_to_a_step_say_nothing_of_what_is_predicted_there(steps, levels, data):
    samples, step = Windows(steps, tuple(levels)), data.draw(st.integers(0, steps - 1))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    codes = draw.integers(-1, levels, (steps, len(levels))).astype(np.int32)
    other = codes.copy()
    other[step, -1] = draw.integers(-1, levels[-1])
    other[step + 1 :] = draw.integers(-1, levels, (steps - step - 1, len(levels)))
    inputs, _ = tensors(samples, block_of(codes, other))
    assert torch.equal(inputs[0, : step + 1], inputs[1, : step + 1])


@pytest.mark.parametrize("name", READERS)
def test_outputs_up_to_a_step_do_not_move_with_its_code_and_later_ones(name):
    problem = TorchProblem(READERS[name], "cross_entropy", STEPS, sequence=SEQUENCE, precision="double")
    model = problem.engine.model.tensor(problem.initial())
    block = windows(sizes=[6])
    for step in range(STEPS):
        other = Block(block.features.copy(), block.offsets)
        other.features[:, step:] = windows(seed=1, sizes=[6]).features[:, step:]
        both = [problem.engine.model.outputs_of(model, each)[0] for each in (block, other)]
        torch.testing.assert_close(both[0][:, : step + 1], both[1][:, : step + 1], rtol=1e-12, atol=1e-12)


BLIND = {
    "both ways": lambda: Reader(nn.GRU(3, 3, batch_first=True, bidirectional=True)),
    "without a mask": lambda: Reader(
        nn.Sequential(nn.Linear(3, 6), nn.TransformerEncoderLayer(6, 2, 8, batch_first=True))
    ),
    "samples for steps": lambda: Reader(nn.GRU(3, 6)),
}


@pytest.mark.parametrize("make", BLIND.values(), ids=BLIND.keys())
def test_a_module_that_looks_ahead_is_refused(make):
    with pytest.raises(BadInput, match=r"problem\.module looks ahead: .*a causal mask"):
        TorchProblem(make, "cross_entropy", STEPS, sequence=SEQUENCE)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, STEPS), st.integers(0, 100))
def test_padding_weighs_nothing(length, seed):
    """A window's loss and gradient are those of the same codes in a window without padding."""
    codes = np.random.default_rng(seed).integers(0, 4, length).astype(np.int32)
    padded = np.full(STEPS, -1, dtype=np.int32)
    padded[:length] = codes
    found = []
    for steps, window in ((STEPS, padded), (length, codes)):
        form = Sequence(steps, (4,))
        problem = TorchProblem(
            READERS["gru"], "cross_entropy", steps, sequence=form, precision="double", execution="loop"
        )
        block, x = block_of(window), problem.initial()
        found.append([problem.sample_losses(x, block), problem.user_gradients(x, block)[0]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)


def test_losses_are_means_over_steps_that_are_there_whatever_the_others_give():
    samples = Windows(3, (4,), "cross_entropy")
    targets = torch.tensor([[1, 2, -1], [-1, -1, -1]])
    given = torch.tensor([[1.0, 3.0, torch.inf], [torch.nan, 5.0, 7.0]])
    assert samples.losses(lambda outputs, targets: outputs, given, targets).tolist() == [2.0, 0.0]


def test_another_code_is_read_and_predicted_by_classes_but_not_by_two():
    """The last code stands for every cell that is no level."""
    block = block_of([[0], [2], [1]])
    _, targets = tensors(Windows(3, (3,), "cross_entropy"), block)
    assert targets[0].tolist() == [0, 2, 1]
    two = Windows(3, (3,), "bce_with_logits")
    inputs, targets = tensors(two, block)
    assert inputs[0].tolist() == [0, 1, 3]
    assert targets[0].tolist() == [0, -1, 1]
    assert two.per_sample(block).tolist() == [2]
    assert two.bound(block_of([[2], [2], [-1]]), 1)[0].usable.tolist() == [False]


@pytest.mark.parametrize("code", [-2, 4, 1_000_000, -(2**31)])
def test_a_code_out_of_range_sets_its_window_aside_and_no_other(code):
    samples, block = Windows(STEPS, (4,)), windows(sizes=[3, 2])
    assert samples.bound(block, 4) == (block, 0)
    features = block.features.copy()
    features[3, 0] = code
    bounded, changed = samples.bound(Block(features, block.offsets), 4)
    assert changed == 0
    assert bounded.usable.tolist() == [True, True, True, False, True]
    np.testing.assert_array_equal(bounded.features[3], 0)


def test_a_window_of_padding_alone_is_set_aside():
    bounded, _ = CHANNELS.bound(block_of([[0, 1]] * 4, [[-1, -1]] * 4, [[2, -1]] * 4), 2)
    assert bounded.usable.tolist() == [True, False, False]


def test_windows_of_numbers_or_of_another_length_are_refused():
    numbers = Block(np.zeros((1, 8), dtype=np.float32), np.array([0, 1]))
    with pytest.raises(BadInput, match="needs integer codes"):
        CHANNELS.bound(numbers, 2)
    with pytest.raises(BadInput, match="have 3 feature columns, the problem needs 8"):
        CHANNELS.bound(block_of([0, 0, 0]), 2)


# Rows -----------------------------------------------------------------------------------------------------------------


def test_rows_are_shaped_and_codes_stay_whole_numbers():
    block = Block(np.arange(12, dtype=np.float32).reshape(2, 6), np.array([0, 2]), np.ones(2, dtype=np.float32))
    inputs, targets = tensors(Rows(6, torch.float64, (1, 2, 3)), block)
    assert inputs.shape == (2, 1, 2, 3)
    assert (inputs.dtype, targets.dtype) == (torch.float64, torch.float64)
    assert inputs[1, 0].tolist() == [[6, 7, 8], [9, 10, 11]]
    codes = Block(np.array([[0, 3], [1, 2]], dtype=np.int32), np.array([0, 2]), np.ones(2, dtype=np.float32))
    inputs, _ = tensors(Rows(2, torch.float32, levels=(2, 4)), codes)
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == [[0, 3], [1, 2]]
    many, _ = Rows(6, torch.float32, (2, 3)).tensors(block, np.array([[0, 1], [1, 0], [0, 0]]))
    assert many.shape == (3, 2, 2, 3)


@pytest.mark.parametrize("codes", [[-1, 0], [2, 0], [0, 4], [0, -7]])
def test_codes_of_columns_out_of_range_set_their_row_aside(codes):
    samples = Rows(2, torch.float32, levels=(2, 4))
    good = Block(np.array([[1, 3], [0, 0]], dtype=np.int32), np.array([0, 1, 2]), np.zeros(2, dtype=np.float32))
    assert samples.bound(good, 1) == (good, 0)
    features = good.features.copy()
    features[1] = codes
    bounded, _ = samples.bound(Block(features, good.offsets, good.targets), 1)
    assert bounded.usable.tolist() == [True, False]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Rows(6, torch.float32, (2, 2)), r"problem\.input_shape = \[2, 2\] holds 4 numbers, and .* 6 columns"),
        (lambda: Rows(3, torch.float32, levels=(2, 2)), "2 columns of codes are declared, and samples have 3"),
        (lambda: Rows(1, torch.float32, levels=(2,), has_targets=False), "codes cannot be their own targets"),
        (lambda: shape_of([2, 0]), r"problem\.input_shape = \[2, 0\]: must be whole numbers"),
        (lambda: shape_of([]), r"problem\.input_shape = \[\]"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(make, told):
    with pytest.raises(BadInput, match=told):
        make()


class Answers(nn.Module):
    """Reads the second of two channels, without a place for the code of neither class."""

    def __init__(self):
        super().__init__()
        self.right, self.score = nn.Embedding(3, 2), nn.Linear(2, 1)

    def forward(self, codes):
        return self.score(self.right(codes[..., 1])).squeeze(-1)


LACKING = {
    "a reader": (lambda: Reader(nn.GRU(3, 6, batch_first=True), levels=3), "cross_entropy", {"sequence": SEQUENCE}),
    "no place for padding": (lambda: nn.Embedding(4, 4), "cross_entropy", {"sequence": SEQUENCE}),
    "columns": (lambda: nn.Sequential(nn.Embedding(3, 2), nn.Flatten()), "cross_entropy", {"levels": (4,) * 5}),
    "the last of two columns": (lambda: nn.Sequential(nn.Embedding(2, 3), nn.Flatten()), "mse", {"levels": (2, 3)}),
    "the code of neither class": (Answers, "bce_with_logits", {"sequence": Sequence(STEPS, (3, 3))}),
}


@pytest.mark.parametrize(("make", "loss", "options"), LACKING.values(), ids=LACKING)
def test_a_module_that_lacks_a_code_is_refused_before_it_meets_one(make, loss, options):
    with pytest.raises(BadInput, match=rf"problem\.module does not fit \d+ columns and {loss}: IndexError"):
        TorchProblem(make, loss, len(options.get("levels", "12345")), **options)


def test_codes_are_no_numbers_to_come_close_to():
    with pytest.raises(BadInput, match=r"problem\.loss = 'mse': steps of a sequence are codes"):
        TorchProblem(READERS["gru"], "mse", STEPS, sequence=SEQUENCE)
