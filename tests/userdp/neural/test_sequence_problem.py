"""Metrics, predictions and what was observed of sequences, against a direct computation."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from neural_cases import LEVELS, READERS, SEQUENCE, STEPS, Reader, windows
from scipy.special import log_softmax
from torch import nn

from simulations.records.held_out import held_out
from simulations.records.quality import auc, quality
from userdp.data.block import Block
from userdp.data.shape import Sequence
from userdp.errors import BadInput
from userdp.problems import TorchProblem


class Answers(nn.Module):
    """Two channels, a film and whether the answer was right, to one score a step."""

    def __init__(self):
        super().__init__()
        self.film, self.right = nn.Embedding(4, 3), nn.Embedding(4, 2)
        self.layer, self.score = nn.GRU(5, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, codes):
        values = torch.cat([self.film(codes[..., 0]), self.right(codes[..., 1])], -1)
        return self.score(self.layer(values)[0]).squeeze(-1)


def certainty(outputs, targets):
    return outputs.softmax(-1).max(-1).values


def reading(metrics=None):
    return TorchProblem(
        READERS["gru"], "cross_entropy", STEPS, sequence=SEQUENCE, precision="double", metrics=metrics, seed=3
    )


def answering():
    return TorchProblem(
        Answers, "bce_with_logits", 2 * STEPS, sequence=Sequence(STEPS, (3, 3)), precision="double", seed=1
    )


def answers():
    codes = windows(seed=4, steps=STEPS, levels=3).features
    films = np.where(codes < 0, -1, (codes + 1) % 3)
    features = np.stack([films, codes], axis=-1).reshape(len(codes), -1).astype(np.int32)
    block = Block(features, windows().offsets)
    return answering().bound(block)[0].usable_part()[1]


def outputs_of(problem, block):
    """(N, L, ...) outputs, and (N, L) targets as they stand in the block."""
    inputs, _ = problem.engine.model.samples.tensors(block, np.arange(block.samples))
    with torch.no_grad():
        found = problem.engine.model.original.module(inputs).numpy()
    return found, block.features.reshape(block.samples, STEPS, -1)[:, :, -1]


def by_user(values, block):
    """Means over all steps of a user; ``values`` is a list of arrays, one a window."""
    return np.array([np.concatenate(values[first:last]).mean() for first, last in pairwise(block.offsets)])


def test_metrics_of_classes_are_means_over_all_steps_of_a_user():
    problem, block = reading({"certainty": certainty}), windows()
    x = problem.initial()
    outputs, codes = outputs_of(problem, block)
    logs = log_softmax(outputs, -1)
    there = [codes[n] >= 0 for n in range(block.samples)]
    losses = [-logs[n, there[n], codes[n][there[n]]] for n in range(block.samples)]
    hits = [outputs[n][there[n]].argmax(-1) == codes[n][there[n]] for n in range(block.samples)]
    sure = [np.exp(logs[n][there[n]]).max(-1) for n in range(block.samples)]
    found = problem.metrics(x, block)
    assert sorted(found) == ["accuracy", "bits", "certainty", "test_loss"]
    np.testing.assert_allclose(found["test_loss"], by_user(losses, block), rtol=1e-10)
    np.testing.assert_allclose(found["bits"], by_user(losses, block) / np.log(2), rtol=1e-10)
    np.testing.assert_allclose(found["accuracy"], by_user(hits, block), rtol=1e-12)
    np.testing.assert_allclose(found["certainty"], by_user(sure, block), rtol=1e-10)
    np.testing.assert_allclose(problem.sample_losses(x, block), [each.mean() for each in losses], rtol=1e-10)


def test_predictions_and_what_was_observed_are_of_the_same_steps():
    problem, block = reading(), windows()
    outputs, codes = outputs_of(problem, block)
    there = codes >= 0
    told = problem.predict(problem.initial(), block)
    np.testing.assert_array_equal(problem.observed(block), codes[there])
    np.testing.assert_array_equal(told["prediction"], outputs[there].argmax(-1))
    shares = np.stack([told[f"probability.{code}"] for code in range(LEVELS)], -1)
    np.testing.assert_allclose(shares, np.exp(log_softmax(outputs[there], -1)), rtol=1e-10)


def test_predictions_of_a_step_do_not_read_its_code():
    problem, block = reading(), windows(sizes=[5])
    other = Block(block.features.copy(), block.offsets)
    last = (block.features >= 0).sum(1) - 1
    other.features[np.arange(5), last] = (other.features[np.arange(5), last] + 1) % LEVELS
    both = [problem.predict(problem.initial(), each) for each in (block, other)]
    for name, values in both[0].items():
        np.testing.assert_array_equal(values, both[1][name])
    assert (problem.observed(block) != problem.observed(other)).sum() == 5


def test_metrics_of_two_classes_leave_out_steps_that_are_neither():
    problem, block = answering(), answers()
    outputs, codes = outputs_of(problem, block)
    there = [(codes[n] == 0) | (codes[n] == 1) for n in range(block.samples)]
    signed = [np.where(codes[n] == 1, 1, -1)[there[n]] * outputs[n][there[n]] for n in range(block.samples)]
    found = problem.metrics(problem.initial(), block)
    losses = by_user([np.logaddexp(0, -each) for each in signed], block)
    np.testing.assert_allclose(found["test_loss"], losses, rtol=1e-10)
    np.testing.assert_allclose(found["bits"], losses / np.log(2), rtol=1e-10)
    observed = problem.observed(block)
    assert set(observed) == {0.0, 1.0}
    assert len(observed) == sum(map(np.count_nonzero, there)) < (codes >= 0).sum()


def test_the_area_under_the_curve_counts_pairs_of_steps():
    problem, block = answering(), answers()
    outputs, codes = outputs_of(problem, block)
    ones, zeros = outputs[codes == 1], outputs[codes == 0]
    pairs = np.sign(ones[:, None] - zeros)
    found = quality(problem, problem.initial(), [block])
    assert found["auc"] == pytest.approx(0.5 + 0.5 * pairs.mean(), abs=1e-12)
    probability = problem.predict(problem.initial(), block)["probability"]
    assert auc(probability, problem.observed(block) > 0.5) == found["auc"]
    parts = [block.part(user, user + 1) for user in range(block.users)]
    assert quality(problem, problem.initial(), parts)["auc"] == pytest.approx(found["auc"], abs=1e-12)


def test_a_loss_of_ones_own_has_no_bits():
    def squared(outputs, targets):
        return (outputs.softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1) - 1) ** 2

    problem = TorchProblem(READERS["gru"], squared, STEPS, sequence=SEQUENCE)
    assert list(problem.metrics(problem.initial(), windows())) == ["test_loss"]


@pytest.mark.parametrize(
    ("measure", "told"),
    [
        (lambda outputs, targets: (outputs.argmax(-1) == targets).double().mean(), r"gives shape \(\) for 10"),
        (lambda outputs, targets: outputs, r"gives shape \(10, 4\) for 10 predictions, must be \(10,\)"),
        (lambda outputs, targets: outputs.who, r"fails \(AttributeError: .*who"),
    ],
)
def test_a_measure_that_does_not_fit_is_refused_before_anything_is_trained(measure, told):
    with pytest.raises(BadInput, match=rf"problem\.metrics\.mine {told}"):
        reading({"mine": measure})


def test_a_gradient_step_lowers_the_loss():
    problem = TorchProblem(
        lambda: Reader(nn.LSTM(3, 6, batch_first=True)), "cross_entropy", STEPS, sequence=SEQUENCE, precision="double"
    )
    x, block = problem.initial(), windows()
    moved = x - 0.5 * problem.user_gradients(x, block).mean(axis=0)
    before, after = (np.add.reduceat(problem.sample_losses(at, block), block.offsets[:-1]) for at in (x, moved))
    assert (after / block.sizes).mean() < (before / block.sizes).mean()


def test_each_step_belongs_to_the_user_whose_window_it_is():
    problem, block = reading(), windows()
    seen = held_out(problem, problem.initial(), [block])
    steps = [int((codes >= 0).sum()) for codes in block.features.reshape(block.samples, -1)]
    assert seen.sizes.tolist() == [sum(steps[first:last]) for first, last in pairwise(block.offsets)]
    assert len(seen.owners) == len(seen.observed) == sum(steps) > block.samples
