"""A state_dict as the model to start from: the same module's, names, shapes and all that is not trained."""

import numpy as np
import pytest
import torch
from torch import nn

from userdp.errors import BadInput
from userdp.problems import Quadratic, TorchProblem
from userdp.problems.initial_model import public_model


def factory():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    nn.init.constant_(module[0].weight, 0.5)
    nn.init.constant_(module[0].bias, 0.5)
    return module


def problem():
    return TorchProblem(factory, "mse", 4)


def state_of(seed=1):
    torch.manual_seed(seed)
    return factory().state_dict()


def saved(path, values):
    torch.save(values, path)
    return path


def test_a_state_dict_gives_its_trained_parameters_in_the_modules_order(tmp_path):
    state = state_of()
    started = problem().starting_at(public_model(problem(), saved(tmp_path / "model.pt", state)))
    trained = [name for name, tensor in factory().named_parameters() if tensor.requires_grad]
    expected = np.concatenate([state[name].numpy().ravel() for name in trained])
    np.testing.assert_array_equal(started.initial(), expected)
    assert not np.array_equal(problem().initial(), expected)


def test_what_a_run_wrote_is_taken_too(tmp_path):
    x = np.arange(float(problem().dimension))
    np.savez(tmp_path / "model.npz", x=x)
    np.testing.assert_array_equal(public_model(problem(), tmp_path / "model.npz"), x)


BAD_STATES = {
    r"lacks 3\.bias: name the factory": lambda: {key: value for key, value in state_of().items() if key != "3.bias"},
    r"lacks 0\.bias, 0\.weight, 1\.bias and \d+ more": lambda: {},
    r"holds, and the module lacks, 4\.weight": lambda: {**state_of(), "4.weight": torch.zeros(1)},
    r"shapes that do not fit, 2\.weight \(3, 2\) in place of \(2, 3\)": lambda: {
        **state_of(),
        "2.weight": torch.zeros(3, 2),
    },
    r"other values of untrained tensors, 1\.running_mean": lambda: {**state_of(), "1.running_mean": torch.ones(3)},
    r"other values of untrained tensors, 0\.weight": lambda: {**state_of(), "0.weight": torch.zeros(3, 4)},
    r"numbers that are not finite": lambda: {**state_of(), "3.bias": torch.full((1,), torch.nan)},
    r"holds a dict that is no state_dict": lambda: {"state_dict": state_of()},
    r"holds a list that is no state_dict": lambda: [1, 2],
    r"cannot be read by torch\.load\(weights_only=True\) \(UnpicklingError\)": factory,
}


@pytest.mark.parametrize(("told", "make"), BAD_STATES.items(), ids=BAD_STATES)
def test_other_states_are_refused_by_name(told, make, tmp_path):
    with pytest.raises(BadInput, match=r"problem\.initial_model = '.*model\.pt'.*" + told):
        public_model(problem(), saved(tmp_path / "model.pt", make()))


def test_a_file_that_torch_did_not_write_is_refused(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"")
    with pytest.raises(BadInput, match=r"cannot be read by torch\.load"):
        public_model(problem(), tmp_path / "model.pt")


def test_other_losses_have_no_state_dict(tmp_path):
    with pytest.raises(BadInput, match=r"holds no model .* give the model\.npz of a run"):
        public_model(Quadratic(3, 5.0, 2.0), saved(tmp_path / "model.pt", state_of()))
