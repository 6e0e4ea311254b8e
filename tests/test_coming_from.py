"""The examples of docs/coming-from.md: what others do, where their library is installed, beside what we do."""

import re
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping
from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_stdv

from strategies import DropInAdaptiveClipping, DropInFedAvg

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "coming-from.md").read_text(encoding="utf-8")
_INTRODUCTION, *_SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
PARTS = {part.partition("\n")[0]: part for part in _SECTIONS}


def blocks(part):
    return re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.MULTILINE)


def run(*codes):
    names = {}
    for code in (*blocks(_INTRODUCTION), *codes):
        exec(compile(code, "docs/coming-from.md", "exec"), names)
    return names


def before_and_after(name, module):
    """The names that both examples of a section leave; what others left, too, if their library is installed."""
    before, after = blocks(PARTS[name])
    ours = run(after)
    try:
        return run(before), ours
    except ImportError as missing:
        pytest.skip(f"{module} is not installed, or not with these versions of its own: {missing}")


@pytest.mark.parametrize("kind", ["xgboost", "vertical", "secure aggregation", "federated analytics", "Message API"])
def test_whoever_comes_with_an_example_that_has_no_strategy_here_reads_what_takes_its_place(kind):
    assert kind in PARTS["Flower"]


def test_each_section_has_a_short_example_before_and_after():
    assert list(PARTS) == ["Flower", "pfl", "jax_privacy", "diffprivlib", "statsmodels"]
    for part in PARTS.values():
        assert len(blocks(part)) == 2
        assert max(len(code.splitlines()) for code in blocks(part)) <= 10


# Flower --------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_flowers_wrapper_and_ours_are_made():
    theirs, ours = before_and_after("Flower", "flwr")
    assert theirs["strategy"].accountant is None
    assert ours["strategy"].plan.guarantee.epsilon <= 8


def test_adaptive_clipping_takes_no_accountant_there_and_has_a_guarantee_here():
    assert "accountant" not in signature(DifferentialPrivacyServerSideAdaptiveClipping.__init__).parameters
    plan = DropInAdaptiveClipping(users=200, epsilon=8, delta=1e-4, rounds=8, clip_norm=0.5).plan
    assert plan.guarantee.holds
    assert plan.guarantee.epsilon <= 8


def test_integers_leave_without_noise_there():
    array = np.zeros(1000, dtype=np.int64)
    add_gaussian_noise_inplace([array], 0.2)  # within [-1, 1], but for 1 in 1.7 million, and cut to zero
    assert not array.any()


def test_replacing_a_client_moves_a_mean_by_twice_what_is_booked_there():
    deviation, moved = compute_stdv(noise_multiplier=1.0, clipping_norm=0.5, num_sampled_clients=200), 2 * 0.5 / 200
    assert moved / deviation == pytest.approx(2.0)
    plan = DropInFedAvg(users=200, epsilon=8, delta=1e-4, rounds=8, clip_norm=0.5).plan
    assert plan.guarantee.relation == "replace_one"
    ratio = plan.numbers["noise_deviation"] / moved
    assert ratio == pytest.approx(plan.numbers["noise_multiplier"])


# Others --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["pfl", "jax_privacy"])
def test_others_need_the_same_noise(library):
    theirs, ours = before_and_after(library, library)
    assert theirs["noise"] == pytest.approx(ours["noise"], rel=1e-3)


@pytest.mark.slow
def test_diffprivlib_finds_the_same_mean():
    theirs, ours = before_and_after("diffprivlib", "diffprivlib")
    assert theirs["dose"] == pytest.approx(ours["dose"], abs=0.3)
    assert theirs["model"].coef_[0][0] * ours["model"].coef_[0][0] > 0


@pytest.mark.slow
def test_statsmodels_finds_the_same_slope():
    """The deviations of the slopes are 0.04 and, at epsilon 1, about 0.1."""
    before, after = blocks(PARTS["statsmodels"])
    declared = 'declared = {"user": "patient", "features": ["dose"], "ranges": {"dose": [0, 10]}}'
    ours = run(declared, after)
    assert ours["slope"] == pytest.approx(-1.5, abs=0.6)
    pytest.importorskip("statsmodels", reason="statsmodels is not installed")
    assert run(before)["slope"] == pytest.approx(ours["slope"], abs=0.6)
