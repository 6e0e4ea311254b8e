"""Sentences of README.md and docs that a command can check: they say of all strategies what their classes declare."""

import math
import re
import tomllib
from pathlib import Path

import made_pages
import pytest
from scipy.stats import norm

from strategies import STRATEGIES, PublicFacts
from strategies.core.recipe import example_problem
from userdp.accounting import Privacy
from userdp.data.shape import Shape

ROOT = Path(__file__).resolve().parents[1]
made_pages.made()
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("strategies/**/*.md")])
SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=1.0, target_range=(-1.0, 1.0))
BY_PAPER = [name for name, one in STRATEGIES.items() if "calibration" in one.model_fields]
FALSE = (
    "same guarantee",  # replacing one and adding or removing one stand side by side
    "one guarantee",
    "most strategies",
    "others release every iterate",
)


@pytest.mark.parametrize("name", BY_PAPER)
def test_where_a_calibration_proves_nothing_no_epsilon_is_promised(name):
    strategy = STRATEGIES[name]
    options = dict(strategy.about.example) | {"calibration": "paper", "noise_constant": 100.0}
    problem = example_problem(strategy, SHAPE)
    public = PublicFacts(500, max_samples=2, samples=1000)
    guarantee = strategy(**options).strategy(problem, public, Privacy(0.1, 1e-5, "sample"), seed=0).plan.guarantee
    assert not guarantee.holds
    assert guarantee.epsilon == math.inf
    assert guarantee.sentence().startswith("no privacy guarantee: ")


@pytest.mark.parametrize(("verb", "many"), [("api/console.py", 2), ("api/scoring.py", 1)])
def test_run_plan_and_predict_print_guarantees_in_no_other_way(verb, many):
    text = (ROOT / "simulations" / verb).read_text(encoding="utf-8")
    assert len(re.findall(r"^ +show_promise\(", text, re.MULTILINE)) == many
    assert not re.findall(r'\["sentence"\]|\.sentence\(\)|guarantee\}', text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_says_of_all_what_some_strategies_are_not(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert not [false for false in FALSE if false in text]


@pytest.mark.parametrize("declared", sorted(ROOT.glob("strategies/**/paper.toml")), ids=lambda file: file.parent.name)
def test_no_measured_number_of_a_papers_page_is_typed_by_hand(declared):
    """Formulas of code stand between backticks."""
    text = declared.with_name("README.md").read_text(encoding="utf-8")
    for made in (r"<!-- [^:>]+: made by docs/make\.py -->.*?<!-- end -->", r"`[^`]*`"):
        text = re.sub(made, "", text, flags=re.DOTALL)
    assert set(re.findall(r"\d+\.\d\d+", text)) <= set(tomllib.loads(declared.read_text(encoding="utf-8"))["typed"])


def test_wherever_masked_sums_are_told_of_by_name_every_strategy_that_has_them_is_named():
    named = {name for name, one in STRATEGIES.items() if one.about.masked} - {"non_private"}
    told = [
        paragraph
        for page in PAGES
        for paragraph in page.read_text(encoding="utf-8").split("\n\n")
        if not paragraph.startswith("|")  # a table tells what each of its rows uses
        and 'trust = "sum"' in paragraph
        and {"`dp_fed_sgd`", "`dp_fed_avg`"} & set(re.findall(r"`\w+`", paragraph))
    ]
    assert len(told) > 2
    for paragraph in told:
        assert named <= set(re.findall(r"\w+", paragraph)), paragraph


# Numbers of the page of concepts, computed anew from the formula of the Gaussian mechanism alone ---------------------


@pytest.fixture(scope="module")
def concepts(module_of):
    return module_of("making.concepts")


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The delta of the Gaussian mechanism that one user moves by mu deviations (Balle, Wang 2018, Theorem 8)."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_who_holds_many_samples_is_promised_as_much_less(concepts):
    one, *others = rows(concepts.groups())
    assert [float(cell) for cell in one] == [1, concepts.EPSILON, concepts.DELTA]
    for held, epsilon, delta in others:
        chained = sum(math.exp(step * concepts.EPSILON) for step in range(int(held))) * concepts.DELTA
        assert float(epsilon) == int(held) * concepts.EPSILON
        assert float(delta) == pytest.approx(min(1, chained), rel=0.01)


def test_epsilons_bound_likelihoods_and_guesses(concepts):
    for epsilon, times, right in rows(concepts.epsilons()):
        likely = math.exp(float(epsilon))
        assert float(times.replace(",", "")) == pytest.approx(likely, abs=0.005)
        assert float(right.rstrip("%")) / 100 == pytest.approx(likely / (1 + likely), abs=1e-4)


def test_replacing_moves_a_sum_twice_as_far_as_adding(concepts):
    text = concepts.relations()
    noise = float(re.search(r"Noise (\S+) times", text)[1])
    for (*_, epsilon), moved in zip(rows(text), (1, 2), strict=True):
        assert gaussian_delta(moved / noise, float(epsilon)) == pytest.approx(concepts.DELTA, rel=0.15)


def test_rounds_cost_less_than_the_sum_of_what_each_costs(concepts):
    for rounds, added, _, exact in rows(concepts.composition()):
        mu = math.sqrt(int(rounds)) / concepts.NOISE
        assert gaussian_delta(mu, float(exact)) == pytest.approx(concepts.DELTA, rel=0.15)
        assert float(exact) <= float(added)


def test_noise_of_cohorts_is_that_of_their_rounds_and_users(concepts):
    told = {name: float(noise) / 1e3 for name, _, _, noise in rows(concepts.cohorts())}
    everybody, dealt, in_turn, coins = told.values()
    mu = math.sqrt(concepts.DRAWN) * 2 / (everybody * concepts.USERS)
    assert gaussian_delta(mu, concepts.EPSILON) == pytest.approx(concepts.DELTA, rel=0.15)
    epochs = concepts.DRAWN * concepts.COHORT / concepts.USERS
    assert (
        dealt
        == in_turn
        == pytest.approx(everybody * concepts.USERS / concepts.COHORT * math.sqrt(epochs / concepts.DRAWN), rel=0.01)
    )
    assert coins < everybody
