"""Sentences of README.md and docs that a command can check: they say of all strategies what their classes declare."""

import math
import re
from pathlib import Path

import pytest

from strategies import STRATEGIES, PublicFacts
from strategies.core.descriptions import example_problem
from userdp.accounting import Privacy
from userdp.data.shape import Shape

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
TYPED = {
    "averaged-clipping": {"0.05", "0.21", "0.001"},
    "heavy-tailed-optimal": {"0.05"},
    "high-dimensional-heavy-tailed": {"0.418", "0.09"},
    "robust-user-level": set[str](),
    "sparse-gradients": set[str](),
}
"""Page of docs/papers -> its settings and constants of proofs with two decimals or more; nothing measured is typed."""
SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=1.0, target_range=(-1.0, 1.0))
BY_PAPER = [name for name, one in STRATEGIES.items() if "calibration" in one.model_fields]
FALSE = (
    "same guarantee",  # replacing one and adding or removing one stand side by side
    "one guarantee",
    "most strategies",
    "others release every iterate",
)


def sentence(page: str, begin: str, end: str) -> str:
    """What stands from one word to another, once, on one line."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert text.count(begin) == 1
    return text.partition(begin)[2].partition(end)[0]


def named(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text)) & set(STRATEGIES)


def test_the_readme_names_who_can_have_secure_noise():
    told = sentence("README.md", '`privacy.noise = "secure"`:', "[docs/guarantees.md]")
    families = {name for name, one in STRATEGIES.items() if one.about.family in {"clipping", "robust"}}
    assert "of the families of clipping and robust means" in told
    can = {name for name, one in STRATEGIES.items() if one.about.without_secure_noise is None}
    assert families | named(told) == can


def test_the_page_on_deployment_names_who_does_not_protect_every_iterate_from_other_silos():
    told = sentence("docs/deployment.md", "**Other silos** see every model", "All other private strategies")
    late = {name for name, one in STRATEGIES.items() if one.about.release == "phase"}
    assert named(told) == late | {name for name, one in STRATEGIES.items() if "unless" in one.about.promise}


@pytest.mark.parametrize("name", BY_PAPER)
def test_where_a_calibration_proves_nothing_no_epsilon_is_promised(name):
    strategy = STRATEGIES[name]
    options = dict(strategy.about.example) | {"calibration": "paper", "noise_constant": 100.0}
    problem = example_problem(strategy, SHAPE)
    public = PublicFacts(500, max_samples=2, samples=1000)
    guarantee = strategy(problem, public, Privacy(0.1, 1e-5, "sample"), **options).plan.guarantee
    assert not guarantee.holds
    assert guarantee.epsilon == math.inf
    assert guarantee.sentence().startswith("no privacy guarantee: ")


@pytest.mark.parametrize("verb", ["reports/console.py", "api/plans.py", "api/scoring.py"])
def test_run_plan_and_predict_print_guarantees_in_no_other_way(verb):
    text = (ROOT / "simulations" / verb).read_text(encoding="utf-8")
    assert len(re.findall(r"^ +show_promise\(", text, re.MULTILINE)) == text.count("sentence") == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_says_of_all_what_some_strategies_are_not(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert not [false for false in FALSE if false in text]


def test_every_page_of_a_paper_is_looked_at():
    assert set(TYPED) == {path.stem for path in ROOT.glob("docs/papers/*.md")} - {"README"}


@pytest.mark.parametrize("name", TYPED)
def test_no_measured_number_of_a_papers_page_is_typed_by_hand(name):
    """Formulas of code stand between backticks."""
    text = (ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8")
    for made in (r"<!-- [^:>]+: made by docs/make\.py -->.*?<!-- end -->", r"`[^`]*`"):
        text = re.sub(made, "", text, flags=re.DOTALL)
    assert set(re.findall(r"\d+\.\d\d+", text)) <= TYPED[name]


def test_wherever_masked_sums_are_told_of_by_name_every_strategy_that_has_them_is_named():
    named = {name for name, one in STRATEGIES.items() if one.about.masked} - {"non_private"}
    told = [
        paragraph
        for page in PAGES
        for paragraph in page.read_text(encoding="utf-8").split("\n\n")
        if 'trust = "sum"' in paragraph and {"`dp_fed_sgd`", "`dp_fed_avg`"} & set(re.findall(r"`\w+`", paragraph))
    ]
    assert len(told) > 2
    for paragraph in told:
        assert named <= set(re.findall(r"\w+", paragraph)), paragraph
