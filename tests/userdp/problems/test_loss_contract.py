"""The contract of losses: those of the house keep to it, and faults of others are noticed."""

from dataclasses import replace

import numpy as np
import pytest

from userdp.data.shape import Shape
from userdp.errors import ContractBroken
from userdp.problems import Quadratic, Squared
from userdp.problems.registry import PROBLEMS
from userdp.problems.separable import QuadraticSettings
from userdp.testing import check_loss

BINARY = Shape(3, has_target=True, bound=1.0, feature_norm=3.0)
NO_TARGET = Shape(3, has_target=False, bound=1.0)
SETTINGS = {
    "linear": {"shape": NO_TARGET},
    "quadratic": {"shape": NO_TARGET},
    "huber": {"shape": NO_TARGET, "threshold": 0.7},
    "bernoulli": {"shape": NO_TARGET},
    "logistic": {"shape": BINARY},
    "cloglog": {"shape": BINARY, "radius": 1.0},
    "squared": {"ridge": 3.0},
    "poisson": {"shape": BINARY, "count_bound": 3.0, "radius": 1.0},
    "softmax": {"shape": Shape(3, has_target=True, bound=1.0, feature_norm=3.0, classes=3)},
    "huber_regression": {"threshold": 0.6},
    "biweight_regression": {"threshold": 0.8},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loss_of_the_house_keeps_to_the_contract(name):
    check_loss(PROBLEMS[name], kind=name, **SETTINGS[name])


class SettingsOf(QuadraticSettings):
    """Makes the class that a test plants."""

    kind: str
    planted: type = Quadratic

    def _make(self, shape, seed):
        return self.planted(shape.columns, 1.0, 2.0)


class WrongSlope(Quadratic):
    def sample_gradients(self, x, block):
        return 2 * super().sample_gradients(x, block)

    def user_gradients(self, x, block):
        return 2 * super().user_gradients(x, block)


class OfOthers(Quadratic):
    def user_gradients(self, x, block):
        rows = super().user_gradients(x, block)
        return rows + 0 * rows + 1e-4 * (block.users > 1)


class Summed(Quadratic):
    def user_gradients(self, x, block):
        return super().user_gradients(x, block) * block.sizes[:, None]


class OfSizes(Quadratic):
    mean_sufficient = True

    def user_gradients(self, x, block):
        return super().user_gradients(x, block) + 1e-9 * (block.sizes[:, None] > 1)


class TooSmooth(Quadratic):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.certificate = replace(self.certificate, smoothness=0.5)


class TooShort(Quadratic):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.certificate = replace(self.certificate, gradient_norm=1.0)


class NotBounded(Quadratic):
    def bound(self, block):
        return block, 0


class BoundsTwice(Quadratic):
    def bound(self, block):
        bounded, changed = super().bound(block)
        return replace(bounded, features=bounded.features / 2), changed


class CountsTwice(Quadratic):
    def bound(self, block):
        return super().bound(block)[0], 1


class TooStrong(Quadratic):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.certificate = replace(self.certificate, strong_convexity=2.0)


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        (WrongSlope, "not the slopes"),
        (OfOthers, "changes with other users|no averages"),
        (Summed, "no averages"),
        (OfSizes, "read more than users' means"),
        (TooSmooth, "certifies smoothness = 0.5"),
        (TooShort, "certifies gradient_norm = 1.0"),
        (NotBounded, "set the sample aside|occurs"),
        (TooStrong, "do not rise"),
        (BoundsTwice, "bounds samples a second time"),
        (CountsTwice, "bounds samples a second time"),
    ],
)
def test_a_loss_that_breaks_the_contract_is_noticed(planted, told):
    with pytest.raises(ContractBroken, match=f"{planted.__name__} .*({told})"):
        check_loss(SettingsOf, shape=NO_TARGET, planted=planted, bound=1.0)


def test_a_kept_certificate_passes_with_all_its_constants():
    assert np.isfinite(Squared(3, 3.0, 2.0, low=-1.0, high=1.0, ridge=3.0).certificate.smoothness)
    check_loss(SettingsOf, shape=NO_TARGET, bound=1.0)
