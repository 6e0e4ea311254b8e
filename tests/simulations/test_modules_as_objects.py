"""Modules, losses and metrics given as objects of Python: one name by the digest of their code, for every purpose."""

import inspect
import json
import pickle
import threading
from functools import partial, wraps
from unittest.mock import Mock

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import torch
from examples import DECLARED, write_table
from helpers import Watching
from torch import nn

import simulations.api.comparing
import simulations.runs.folder
from simulations.config.run_config import parse_config
from simulations.runs.run import run
from userdp import compare, load_model, named, train
from userdp.errors import BadInput
from userdp.kinds import imported
from userdp.neural.objects import place_of
from userdp.neural.settings import Named

SETTINGS = {
    **{key: value for key, value in DECLARED.items() if key != "path"},
    "all_users": 60,
    "epsilon": 8.0,
    "delta": 1e-3,
    "strategy": {"kind": "dp_fed_sgd", "rounds": 2},
    "seed": 1,
}
ONE = {"progress": False, "output": {"reference": False, "anyway": True}}


class Net(nn.Module):
    def __init__(self, hidden: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, rows):
        return self.layers(rows)


class Other(Net):
    def forward(self, rows):
        return -self.layers(rows)


def made() -> nn.Module:
    return Net(5)


def loss(outputs, targets):
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")


def shifted(outputs, targets):
    return (outputs[:, 0] - targets).abs()


def problem(module, **more):
    return {"kind": "torch", "module": module, "loss": "bce_with_logits", **more}


def seeded():
    torch.manual_seed(3)
    return Net()


@pytest.fixture
def table(tmp_path):
    return pd.read_csv(write_table(tmp_path / "people.csv"))


@pytest.fixture
def forgotten(monkeypatch):
    """A function that leaves this process as another one is, without objects."""

    def forget():
        for name in [name for name in named.sys.modules if name.startswith(named.OBJECT)]:
            monkeypatch.delitem(named.sys.modules, name)

    return forget


@pytest.mark.parametrize("given", [Net, made, seeded(), lambda: Net(2), partial(Net, 4), partial(Net, hidden=6)])
def test_a_class_a_function_and_a_module_train_and_the_record_has_their_digest(table, tmp_path, given, forgotten):
    model = train(table, problem=problem(given), directory=tmp_path / "run", **ONE, **SETTINGS)
    place = model.config.problem.module
    digest = place.removeprefix(named.OBJECT).partition(":")[0]
    assert json.loads((tmp_path / "run/result.json").read_text())["code"] == {"module": digest}
    made_again = given if isinstance(given, nn.Module) else given()
    assert len(model.model) == sum(one.numel() for one in made_again.parameters())
    np.testing.assert_array_equal(load_model(tmp_path / "run").predict(table), model.predict(table))
    forgotten()
    with pytest.raises(BadInput, match=r"no object of the same code and shapes; load_model\(directory, objects="):
        load_model(tmp_path / "run")
    again = load_model(tmp_path / "run", objects={"module": given})
    np.testing.assert_array_equal(again.predict(table), model.predict(table))


def test_an_instance_begins_at_its_own_weights(table):
    module = seeded()
    model = train(table, problem=problem(module), **ONE, **SETTINGS)
    start = torch.cat([one.detach().double().flatten() for one in module.parameters()])
    np.testing.assert_allclose(model.problem.initial(), start)


def test_losses_and_metrics_are_objects_too(table, tmp_path, forgotten):
    given = {"module": Net, "loss": loss, "metrics": {"distance": shifted}}
    model = train(table, problem={"kind": "torch", **given}, directory=tmp_path / "run", **ONE, **SETTINGS)
    assert "distance" in model.metrics
    assert set(model.result["code"]) == {"module", "loss", "metrics.distance"}
    named_alike = train(table, problem=problem(Net), **ONE, **SETTINGS)
    np.testing.assert_allclose(model.model, named_alike.model, rtol=1e-5)
    forgotten()
    assert load_model(tmp_path / "run", objects=given).predict(table) is not None


def whole(folder, module):
    """A configuration as a dict."""
    data = {"kind": "table", "path": str(write_table(folder / "people.csv")), **DECLARED, "all_users": 60}
    return {
        "name": "coded",
        "seed": 1,
        "problem": problem(module),
        "data": data,
        "privacy": {"epsilon": 8.0, "delta": 1e-3},
        "strategy": SETTINGS["strategy"],
        "output": ONE["output"],
    }


def test_a_configuration_as_a_dict_takes_objects(tmp_path):
    given = whole(tmp_path, Net)
    assert train(given, progress=False).config.problem.module.endswith(":Net")
    assert given["problem"]["module"] is Net


# Digests --------------------------------------------------------------------------------------------------------------


def closed(power):
    def closing(outputs, targets, factor=1.0):
        return factor * (outputs[:, 0] - targets) ** power

    return closing


def passing(inner):
    def outer(outputs, targets):
        return inner(outputs, targets)

    return outer


def doubled(inner):
    @wraps(inner)
    def outer(outputs, targets):
        return 2 * inner(outputs, targets)

    return outer


def tripled(inner):
    @wraps(inner)
    def outer(outputs, targets):
        return 3 * inner(outputs, targets)

    return outer


def with_factor(factor):
    def scaled(outputs, targets):
        return scaled.factor * (outputs[:, 0] - targets)

    scaled.factor = factor
    return scaled


def called(sign):
    """An object of a class that differs in its code alone."""

    class Called:
        def value(self, outputs, targets):
            return outputs[:, 0] - targets

        def __call__(self, outputs, targets):
            return self.value(outputs, targets)

    class CalledOtherwise(Called):
        def value(self, outputs, targets):
            return outputs[:, 0] + targets

    kind = Called if sign < 0 else CalledOtherwise
    kind.__qualname__ = "Called"
    return kind()


def unassigned():
    def early(outputs, targets):
        return late * (outputs[:, 0] - targets)

    place = early
    if place is None:
        late = 1.0
    return place


ON_ONE_LINE = (lambda outputs, targets: outputs[:, 0] - targets, lambda outputs, targets: outputs[:, 0] + targets)
SPREAD = [
    partial(
        lambda outputs, targets:
        outputs[:, 0] - targets
    ),
    partial(
        lambda outputs, targets:
        outputs[:, 0] + targets
    ),
]  # fmt: skip


def without_use(held):
    return seeded()


class Powers:
    def __init__(self, power):
        self.power = power

    def loss(self, outputs, targets):
        return (outputs[:, 0] - targets) ** self.power


class Slot:
    __slots__ = ("held",)


class Slotted(Slot):
    """Holds one thing in a slot, and others as attributes."""

    def __init__(self, held, **others):
        self.held = held
        vars(self).update(others)


def bent(function):
    module = seeded()
    module.bend = function
    return module


def halved():
    module = seeded()
    module.layers[0].weight.data[0, 0] /= 2
    return module


def with_attribute():
    module = seeded()
    module.layers[1].inplace = True
    return module


@pytest.mark.parametrize(
    ("field", "one", "others"),
    [
        ("module", Net, [Other, made, partial(Net, 4), seeded()]),
        ("module", seeded(), [halved(), with_attribute(), seeded().eval(), Other()]),
        ("loss", closed(2), [closed(4), loss]),
        ("loss", passing(closed(2)), [passing(closed(4)), passing(loss), passing(Powers(2).loss)]),
        ("loss", Powers(2).loss, [Powers(4).loss]),
        (
            "loss",
            passing(lambda outputs, targets: outputs[:, 0]),
            [passing(lambda outputs, targets: targets)],
        ),
        ("loss", ON_ONE_LINE[0], ON_ONE_LINE[1:]),
        ("loss", SPREAD[0], SPREAD[1:]),
        ("loss", passing(ON_ONE_LINE[0]), [passing(ON_ONE_LINE[1])]),
        ("loss", doubled(loss), [tripled(loss), loss]),
        ("loss", with_factor(2), [with_factor(3)]),
        ("loss", passing(called(-1)), [passing(called(1))]),
        ("loss", passing(called(-1).__call__), [passing(called(1).__call__)]),
        ("loss", with_factor(memoryview(b"one")), [with_factor(memoryview(b"two")), with_factor(b"one")]),
        ("module", bent(closed(2)), [bent(closed(4)), bent(nn.functional.relu)]),
        ("module", bent(Slotted(2)), [bent(Slotted(3)), bent(Slotted(3, other=1)), bent(Slotted(2, other=1))]),
        ("loss", nn.BCEWithLogitsLoss(reduction="none"), [nn.BCEWithLogitsLoss(reduction="sum")]),
    ],
)
def test_another_code_shape_value_or_closure_has_another_name(field, one, others):
    names = [place_of(each, field) for each in (one, *others)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("kind", "make"), [("lock", threading.Lock), ("generator", lambda: (one for one in "12"))])
def test_what_has_no_value_has_no_name(kind, make):
    with pytest.raises(BadInput, match=f"problem.loss holds a {kind}, whose value cannot be read"):
        place_of(with_factor(make()), "loss")
    with pytest.raises(BadInput, match=f"problem.module holds a {kind}, whose value cannot be read"):
        place_of(partial(without_use, make()), "module")
    for others in ({}, {"other": 1}):
        with pytest.raises(BadInput, match=r"problem\.loss holds a Slotted, whose value cannot be read"):
            place_of(with_factor(Slotted(make(), **others)), "loss")


@pytest.mark.parametrize(
    ("field", "make"), [("module", lambda: Net), ("module", seeded), ("loss", lambda: closed(2)), ("loss", nn.MSELoss)]
)
def test_the_same_object_has_the_same_name_whatever_was_drawn_since(field, make):
    first = place_of(make(), field)
    torch.manual_seed(99)
    torch.rand(7)
    assert place_of(make(), field) == first


def test_naming_an_object_leaves_random_numbers_and_the_object_alone():
    before, module = torch.get_rng_state(), seeded()
    torch.set_rng_state(before)
    place_of(Net, "module")
    place_of(module, "module")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(one.requires_grad and one.dtype == torch.float32 for one in module.parameters())


def test_a_name_goes_by_the_source_and_not_by_the_file_it_stands_in(tmp_path):
    code = "from torch import nn\nclass Net(nn.Linear):\n    def forward(self, x):\n        return {}x\n"
    code += "def make():\n    return Net(4, 1)\n"

    def named_in(name, sign):
        (tmp_path / name).write_text(code.format(sign), encoding="utf-8")
        return place_of(imported(f"{tmp_path / name}:make", "it", once=True), "module")

    assert named_in("script.py", "-") == named_in("notebook.py", "-")
    assert named_in("other.py", "+") != named_in("script.py", "-")


def test_a_class_without_source_is_told_by_its_methods(monkeypatch):
    source = inspect.getsource

    def of_notebooks(thing):
        if thing in (Net, Other):
            raise TypeError("is a built-in class")
        return source(thing)

    monkeypatch.setattr(inspect, "getsource", of_notebooks)
    assert place_of(Net, "module").partition(":")[0] != place_of(Other, "module").partition(":")[0]


# Runs that stop, and other processes ----------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a run in this process as a kill would."""


def test_a_run_is_resumed_with_its_own_module_alone(tmp_path, monkeypatch):
    def begun(module, **how):
        config = parse_config(whole(tmp_path, place_of(module, "module")))
        return run(config, directory=tmp_path / "run", report=False, **how)

    with monkeypatch.context() as patch:
        patch.setattr(simulations.runs.folder.RunFolder, "finish", lambda *_: None)
        with pytest.raises(Killed):
            begun(seeded(), checkpoint=True, observers=[Watching(Mock(side_effect=Killed))])
    for other in (halved(), Net, Other()):
        with pytest.raises(BadInput, match=r"belongs to a run with other settings \(.*module"):
            begun(other, resume=True)
    assert begun(seeded(), resume=True).result["rounds"] == 4  # two prepare, and one compares


def test_comparisons_take_objects_and_run_again_what_has_another_module(table, tmp_path):
    def compared(module):
        output = {"directory": str(tmp_path)}
        asked = {key: value for key, value in SETTINGS.items() if key not in ("strategy", "seed")}
        strategies = ["dp_fed_sgd", {"kind": "dp_fed_avg", "rounds": 2}]
        given = {"problem": problem(module), "strategies": strategies, "directory": tmp_path / "out"}
        return compare(table, **given, seeds=1, progress=False, output=output, **asked)

    found = compared(Net).table
    assert found["error_private"].isna().all() if "error_private" in found else len(found) == 2
    cells = {path.name for path in tmp_path.glob("out/cells/*")}
    compared(made)
    assert len({path.name for path in tmp_path.glob("out/cells/*")} - cells) == 2


def test_objects_do_not_go_to_processes_of_ray_as_text(table, monkeypatch):
    monkeypatch.setattr(simulations.api.comparing, "run_all", None)
    asked = {key: value for key, value in SETTINGS.items() if key not in ("strategy", "seed")}
    with pytest.raises(BadInput, match=r"workers = 2: .*name them as 'file.py:name', or set workers = 0"):
        compare(table, problem=problem(Net), strategies=["dp_fed_sgd"], workers=2, **asked)


def test_a_loss_travels_with_the_problem_that_uses_it(forgotten):
    sent = cloudpickle.dumps(Named("loss", place_of(closed(2), "loss")))
    forgotten()
    there = pickle.loads(sent)
    assert there(torch.ones(2, 1), torch.zeros(2)).tolist() == [1.0, 1.0]
    assert there.place.startswith(named.OBJECT)
    assert there.found is Named("loss", there.place).found


# Sentences ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"problem": seeded()}, r"a Net is given alone, and a module needs its loss: write problem=\{'kind': 'torch'"),
        ({"problem": Net}, "a Net is given alone, and a module needs its loss"),
        (
            {"problem": problem(torch.compile(seeded(), backend="eager"))},
            r"is compiled by torch\.compile .* the module itself",
        ),
        ({"problem": problem(nn.LazyLinear(1))}, r"layer without shapes .* such as nn\.Linear\(3, 8\)"),
        ({"problem": problem(seeded().to("meta"))}, r"is on meta: .* module\.cpu\(\), and set engine\.device = 'cuda'"),
        ({"problem": problem(dict)}, "makes a dict, no torch module"),
        ({"problem": problem(loss)}, "it takes no arguments"),
        ({"problem": problem(seeded().requires_grad_(False))}, "no trainable parameter"),
        ({"problem": problem(nn.BatchNorm1d(4, track_running_stats=False))}, "mixes the samples of a batch"),
        ({"problem": problem(Net, loss=nn.CrossEntropyLoss())}, r"one loss a sample \(reduction='none'\)"),
        ({"problem": problem(Net, loss=eval("lambda o, t: o[:, 0]"))}, "its source cannot be read, .* 'file.py:"),
        ({"problem": problem(Net, loss=eval("lambda o, t: o[:, 0]", {}))}, "its source cannot be read, .* 'file.py:"),
        ({"problem": problem(Net, loss=unassigned())}, "early uses late from around it, and one has no value yet"),
        ({"problem": problem(7)}, "must be a valid string"),
    ],
)
def test_what_cannot_be_trained_is_a_sentence(table, given, told):
    with pytest.raises(BadInput, match=told):
        train(table, **given, **ONE, **SETTINGS)
