"""Modules, losses and measures named in a configuration, and what is said of those that cannot be used."""

import itertools
import pickle

import numpy as np
import pytest
import tomli_w
from examples import changed
from torch import nn

from simulations.config.run_config import load_config
from simulations.runs.build import build_problem
from userdp.data.shape import Sequence, Shape
from userdp.errors import BadInput
from userdp.neural.settings import Named, TorchSettings
from userdp.problems import TorchProblem

ROWS = Shape(3, has_target=True)
CODES = Shape(4, has_target=False, sequence=Sequence(4, (3,)))
FILE = '''
"""Somebody's own."""
from torch import nn

imported = []

def make():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

def reader():
    return nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 3))

def absolute(outputs, targets):
    return (outputs.squeeze(-1) - targets).abs()

def size(outputs, targets):
    return outputs.squeeze(-1).abs()

def nothing():
    return "a module"

def many(width):
    return nn.Linear(3, width)

number = 7
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(FILE)
    return path


def build(shape=ROWS, **settings):
    return TorchSettings(kind="torch", **{"loss": "mse"} | settings).build(shape, seed=0)


def test_module_loss_and_measures_come_from_a_file(file):
    problem = build(module=f"{file}:make", loss=f"{file}:absolute", metrics={"size": f"{file}:size"})
    assert isinstance(problem, TorchProblem)
    assert problem.dimension == 3 * 4 + 4 + 4 + 1
    assert build(CODES, module=f"{file}:reader", loss="cross_entropy").dimension == 4 * 2 + 2 * 3 + 3


def test_a_file_lies_beside_its_configuration(file):
    problem = {"kind": "torch", "module": "model.py:make", "loss": "model.py:absolute"}
    problem["metrics"] = {"size": "model.py:size"}
    path = file.with_name("run.toml")
    path.write_text(tomli_w.dumps(changed(problem=problem, data__population="linear_regression")))
    config = load_config(path)
    assert config.problem.module == f"{file}:make"
    assert config.problem.metrics == {"size": f"{file}:size"}
    assert build_problem(config).dimension == 21


def test_a_function_of_a_file_is_read_once_and_travels_as_text(file):
    named = Named("loss", f"{file}:absolute")
    assert named.found is named.found
    copy = pickle.loads(pickle.dumps(named))
    assert copy == named
    assert "found" not in vars(copy)
    assert Named("module", f"{file}:make")()[0].in_features == 3


def test_a_problem_with_a_file_of_ones_own_travels(file):
    problem = build(module=f"{file}:make", loss=f"{file}:absolute", metrics={"size": f"{file}:size"})
    copy = pickle.loads(pickle.dumps(problem))
    np.testing.assert_array_equal(copy.initial(), problem.initial())


def test_installed_modules_are_named_with_dots():
    assert build(module="neural_cases:perceptron", loss="cross_entropy", shape=Shape(16, True)).dimension == 16 * 5 + 23


REFUSED = {
    "no file": ("nowhere.py:make", r"cannot be imported \(FileNotFoundError: there is no file .*nowhere\.py\)"),
    "no function": ("model.py:made", r"cannot be imported \(AttributeError: .*'made'\)"),
    "fails on import": ("broken.py:make", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
    "no module": ("not_there.at_all:make", r"cannot be imported \(ModuleNotFoundError: .*\)"),
    "no place": ("make", r"cannot be imported \(ValueError: .*\)"),
    "no code": ("text.py:make", r"cannot be imported \(SyntaxError: .*\)"),
}


@pytest.mark.parametrize("field", ["module", "loss", "metrics"])
@pytest.mark.parametrize(("place", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_imported_is_refused_by_field_value_and_remedy(file, field, place, told):
    file.with_name("broken.py").write_text("1 / 0\n")
    file.with_name("text.py").write_text("this is no code\n")
    whole = f"{file.parent}/{place}" if ".py:" in place else place
    with pytest.raises(BadInput, match=rf"problem\.{field} = '.*{place}' {told}: give 'file\.py:function'"):
        build(**{field: {"mine": whole} if field == "metrics" else whole})


def test_what_is_no_function_or_makes_no_module_is_refused(file):
    with pytest.raises(BadInput, match=r"problem\.module = '.*:number' is of type int: name a function or a class"):
        build(module=f"{file}:number")
    with pytest.raises(BadInput, match=r"problem\.module makes a str, no torch module"):
        build(module=f"{file}:nothing")
    with pytest.raises(BadInput, match=r"problem\.module fails \(TypeError: .*'width'\)"):
        build(module=f"{file}:many")


@pytest.mark.parametrize(
    "shape", [CODES, Shape(1, has_target=True, levels=5), Shape(2, has_target=True, code_levels=(2, 3))]
)
def test_a_perceptron_reads_no_codes(shape):
    with pytest.raises(BadInput, match=r"problem\.module is missing: samples are codes, .* torch\.nn\.Embedding"):
        build(shape, loss="cross_entropy")


@pytest.mark.parametrize("hidden", [[], [4], [4, 2]])
def test_a_perceptron_has_the_layers_it_is_asked_for(hidden):
    widths = [3, *hidden, 2]
    expected = sum((before + 1) * after for before, after in itertools.pairwise(widths))
    problem = build(hidden=hidden, outputs=2, loss="cross_entropy")
    assert problem.dimension == expected
    module = problem.engine.model.original.module
    assert [type(part) for part in module][1::2] == [nn.ReLU] * len(hidden)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"execution": "fast"}, "execution"),
        ({"kernels": "mine"}, "kernels"),
        ({"memory": 0}, "memory"),
        ({"precision": "half"}, "precision"),
        ({"outputs": 0}, "outputs"),
        ({"input_shape": [2, 2]}, r"problem\.input_shape = \[2, 2\] holds 4 numbers"),
    ],
)
def test_settings_out_of_range_are_refused(settings, told):
    with pytest.raises(ValueError, match=told):
        build(**settings)
