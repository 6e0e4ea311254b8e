"""`userdp.testing.check_strategy`: every strategy of the registry keeps to it, and each kind of fault is named."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from any_strategy import as_read
from helpers import make
from test_releases import FACTS, MORE, SLOW, USERS

from simulations.testing.strategy_contract import CHECKS, NOBODY, Small, insist_on_what_moves_together, neighbours
from strategies import STRATEGIES
from strategies.auto.stages import Gradient
from userdp.data import Block, ColumnarFederation
from userdp.testing import ContractBroken, check_strategy

ROOT = Path(__file__).resolve().parents[2]
TEXT = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(encoding="utf-8"), re.DOTALL)[0]


@pytest.mark.sweep(8)
@pytest.mark.parametrize("check", [check for check in CHECKS if check != "neighbours"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_keeps_to_the_contract(name, check):
    CHECKS[check](Small(STRATEGIES[name]))


def cases(names):
    """Return the strategies as cases, those that take seconds marked as slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


@pytest.mark.parametrize("name", cases(STRATEGIES))
def test_neighbours_of_every_release(name):
    CHECKS["neighbours"](Small(STRATEGIES[name]))


def made(text, name="example"):
    """The class of a strategy's text."""
    module = ModuleType(name)
    module.Leaking = Leaking
    exec(compile(text, name, "exec"), module.__dict__)
    return module.SignDescent


class Leaking:
    """A mechanism whose noise grows with what it should hide, by a hair."""

    def __init__(self, inner):
        self.inner, self.standard_deviation = inner, inner.standard_deviation
        self.l2_sensitivity = inner.l2_sensitivity

    def release(self, value, noise):
        return np.abs(self.inner.release(value, noise)) * np.where(np.abs(value) > 0.4985, 1.0, -1.0)


FAULTS = {
    "a clip wider than what the noise is made for": (
        "clip_norm=clip)",
        "clip_norm=1.5 * clip)",
        "a user can move the mean of user_gradient by 0.0075, and its noise is made for 0.005",
    ),
    "a divisor smaller than the cohort": (
        "divisor=n,",
        "divisor=n - 40,",
        "a user can move the mean of user_gradient by 0.00555556, and its noise is made for 0.005",
    ),
    "a step by what has no noise": (
        "mechanism=mechanism,",
        "mechanism=Leaking(mechanism),",
        "shows more of a user than it released",
    ),
    "a fact of users' data that is not marked": (
        "mechanism=mechanism,",
        'mechanism=mechanism, noted=lambda gathered, mean, deviation: {"size": float(np.linalg.norm(mean))},',
        "shows more of a user than it released",
    ),
    "a fact that is not declared": (
        "mechanism=mechanism,",
        'mechanism=mechanism, noted=lambda gathered, mean, deviation: {"size": 1.0},',
        "notes size, which `notes` does not declare",
    ),
    "a number that is not explained": (
        "noise=noise, signal=clip",
        'noise=noise, signal=clip, numbers={"steepness": 1.0}',
        "plans steepness, which `meanings` does not explain",
    ),
    "randomness of its own": (
        "np.sign(gradient)",
        "(np.sign(gradient) + np.random.default_rng().normal(size=len(gradient)))",
        "shows more of a user|gives another model when it is run again",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_kind_of_fault_is_named(fault):
    old, new, told = FAULTS[fault]
    assert TEXT.count(old) == 1
    with pytest.raises(ContractBroken, match=told) as broken:
        check_strategy(made(TEXT.replace(old, new)))
    assert str(broken.value).startswith("SignDescent")
    assert "\n" not in str(broken.value)


@pytest.mark.parametrize(
    "name", ["dp_fed_sgd", "dp_fed_avg", "adaptive_clipping", "recentred_clipping", "vote_descent", "projected_sgd"]
)
def test_the_sensitivity_of_a_clipped_mean_is_attained(name):
    """Else a check of neighbours would say nothing: the users that it replaces lie at opposite ends."""
    small = Small(STRATEGIES[name])
    first, second = neighbours(small, 0.5, 7, [(1.0, 1.0), (-1.0, -1.0)])
    ratios = [one.distance(two) / one.sensitivity for one, two in zip(first.draws, second.draws, strict=True)]
    assert max(ratios) == pytest.approx(1.0, abs=1e-6)


@dataclass(frozen=True)
class Several(Small):
    """Users of several samples each, who are protected as a whole; all samples take part wherever that can be set."""

    samples: int = 4

    def strategy(self, **options):
        facts = {"min_samples": self.samples, "max_samples": self.samples, "samples": self.samples * self.users}
        whole = {"batch": facts["samples"]} if "batch" in self.kind.model_fields else {}
        given = {"facts": facts, "unit": "user", **self.kind.about.example, **whole, **options}
        return make(self.kind, self.problem(), self.users, 8.0, 1e-4, **given)

    def people(self, features):
        samples = np.repeat(features, self.samples, axis=0)
        targets = samples[:, 0].astype(np.float32) if self.problem().has_targets else None
        ends = self.samples * np.arange(self.users + 1)
        return ColumnarFederation(Block(samples.astype(np.float32), ends, targets))


BY_SAMPLES = [name for name in STRATEGIES if set(STRATEGIES[name].about.units) > {"user"} and name != "non_private"]


@pytest.mark.parametrize("name", BY_SAMPLES)
def test_all_samples_of_a_user_together_move_no_more_than_is_promised(name):
    small = Several(STRATEGIES[name], 200)
    strategy = small.strategy()
    other = NOBODY if strategy.plan.guarantee.relation == "add_or_remove" else (-1.0, -1.0)
    insist_on_what_moves_together(small, strategy, *neighbours(small, 0.5, 7, [(1.0, 1.0), other]))


# --- The default strategy on other losses, and what comes around strategies ------------------------------------------


@dataclass(frozen=True)
class Case(Small):
    """A run of the tests of releases.

    Attributes:
        options: of the strategy.
        loss: that it is run with.
    """

    options: dict = field(default_factory=dict)
    loss: object = None

    def problem(self):
        return self.loss

    def strategy(self, **options):
        return make(self.kind, self.loss, self.users, 8.0, 1e-4, facts=FACTS, **self.options, **options)

    def people(self, features):
        return as_read(self.loss, features[:, : self.loss.columns], targets=(features[:, 0] > 0.5).astype(float))


def case(name):
    kind, problem, options = MORE[name]
    return Case(kind, USERS, options, problem)


@pytest.mark.parametrize("name", cases(MORE))
def test_neighbours_of_every_release_of_the_default_strategy_and_of_what_is_around_others(name):
    CHECKS["neighbours"](case(name))


def test_the_neighbours_of_the_default_strategy_move_each_of_its_measures():
    """Else the check of its neighbours would say nothing of them."""
    small = case("auto, linear model")
    stages = small.strategy().scheme.stages
    first, second = neighbours(small, 0.5, 3, [(1.0, 1.0), (-1.0, 0.0)])
    used = dict.fromkeys((type(stage).__name__ for stage in stages), 0.0)
    of_draw = [name for stage in stages for name in [type(stage).__name__] * (2 if isinstance(stage, Gradient) else 1)]
    for name, one, two in zip(of_draw, first.draws, second.draws, strict=True):
        used[name] = max(used[name], one.distance(two) / one.sensitivity)
    unmoved = {name for name, share in used.items() if share < 0.01}
    assert unmoved <= {"Filled", "Choice"}  # yes or no: these two say the same
