"""The measurements of research/neural_table.py, and the page docs/neural.md about them."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from examples import changed
from scipy.stats import norm

from simulations.config.run_config import parse_config
from simulations.runs.build import load_datasets
from userdp.data import Block
from userdp.sampling import PoissonBatches

NAMES = ("neural_table", "neural_trivial", "neural_convention")


@pytest.fixture
def scripts(module_of):
    return *map(module_of, NAMES), module_of("making.neural")


# The committed table -----------------------------------------------------------------------------------------------


def test_every_row_of_a_private_run_says_on_what_terms(scripts):
    command, *_ = scripts
    rows = command.measured()
    assert list(rows.columns) == list(command.COLUMNS)
    assert not rows.duplicated(list(command.KEY)).any()
    private = rows[(rows["epsilon"] > 0) & rows["error"].isna()]
    assert set(private["relation"]) <= {"add_or_remove", "replace_one"}
    assert (private["spent_epsilon"] <= private["epsilon"] * (1 + 1e-6)).all()
    added = private["relation"] == "add_or_remove"
    assert (
        private[added]["replace_one_epsilon"]
        .between(*(factor * private[added]["spent_epsilon"] for factor in (1, 2.5)))
        .all()
    )
    assert (private[added]["replace_one_delta"] == private[added]["delta"]).all()
    same = private[~added]
    np.testing.assert_allclose(same["replace_one_epsilon"], same["spent_epsilon"])
    with_noise = private.dropna(subset=["noise"])
    assert (with_noise["pretended_noise"] < with_noise["noise"]).all()
    assert (with_noise["pretended_epsilon"] < with_noise["spent_epsilon"]).all()


# The command -------------------------------------------------------------------------------------------------------


def test_pieces_are_all_cells_and_what_stands_beside_them_with_what_is_promised_first(scripts):
    command, *_ = scripts
    cells = command.comparison().cells
    pieces = command.pieces(cells)
    sets, seeds = {cell.problem for cell in cells}, {cell.seed for cell in cells}
    assert len({piece.key for piece in pieces}) == len(pieces) == len(cells) + 2 * len(sets) * len(seeds)
    promised = [(piece.cell.problem, piece.epsilon) for piece in pieces if piece.epsilon]
    assert list(dict.fromkeys(promised))[:3] == [("pupils", 8.0), ("pupils", 2.0), ("roles", 8.0)]
    keys = [piece.key for piece in pieces]
    for piece in pieces:
        if piece.epsilon:
            assert keys.index((piece.cell.problem, "non_private", 0.0, piece.cell.seed)) < keys.index(piece.key)


def test_what_is_there_is_not_run_again_and_what_failed_is(scripts, tmp_path):
    command, *_ = scripts
    first, second, third = command.pieces(command.comparison().cells)[:3]
    path = tmp_path / "table.csv"
    assert command.missing(command.measured(path), [first]) == [first]
    for piece, error in ((first, None), (second, "no"), (third, None)):
        command.add(path, dict(zip(command.KEY, piece.key, strict=True)) | {"value": 0.5, "error": error})
    assert command.missing(command.measured(path), [first, second, third]) == [second]
    command.add(path, dict(zip(command.KEY, second.key, strict=True)) | {"value": 0.75})
    assert command.missing(command.measured(path), [first, second, third]) == []
    assert sorted(command.measured(path)["value"]) == [0.5, 0.5, 0.75]
    command.forget(path, [second.strategy])
    assert second in command.missing(command.measured(path), [first, second, third])


def test_a_run_is_a_row_with_its_terms_and_a_refused_one_a_row_with_the_reason(scripts):
    command, *_ = scripts
    few = {"data__users": 300, "privacy__epsilon": 2.0, "output": {"reference": False}}

    def row_of(**strategy):
        config = parse_config(changed(strategy={"kind": "dp_fed_sgd"} | strategy, **few))
        return command.trained_row(config, load_datasets(config))

    settings = {"rounds": 3, "clip_norm": 0.5, "cohort": 30, "sampling": "poisson"}
    row = row_of(**settings)
    told = {"relation": "add_or_remove", "delta": 1e-5, "cohort": 30, "rounds": 3, "users": 300}
    assert {name: row[name] for name in told} == told
    assert json.loads(row["settings"]) == settings
    assert PoissonBatches(300, 0.1, 3).epsilon(row["noise"], 1e-5) == pytest.approx(2.0, rel=1e-2)
    replaced = row_of(rounds=1, clip_norm=0.5)
    assert replaced["relation"] == "replace_one"
    assert _delta_of_gauss(2.0, 2 / replaced["noise"]) == pytest.approx(1e-5, rel=1e-2)
    assert "400" in row_of(cohort=400)["error"]


def _delta_of_gauss(epsilon, move):
    """The delta of the Gaussian mechanism for something that moves by so many deviations (Balle, Wang 2018)."""
    return norm.cdf(move / 2 - epsilon / move) - math.exp(epsilon) * norm.cdf(-move / 2 - epsilon / move)


# The convention ----------------------------------------------------------------------------------------------------


def test_one_round_of_everybody_pretended_is_the_gaussian_mechanism(scripts):
    *_, convention, _ = scripts
    epsilon = convention.printed_epsilon(1.5, convention.POPULATION, 1, 1e-5)
    assert _delta_of_gauss(epsilon, 1 / 1.5) == pytest.approx(1e-5, rel=1e-2)


def test_scaled_noise_prints_the_epsilon_for_a_cohort_of_thousands_and_is_small_for_a_small_one(scripts):
    *_, convention, _ = scripts
    small, large = (convention.scaled_noise(2.0, cohort, 40, 1e-6) for cohort in (50, 500))
    assert large == pytest.approx(10 * small)
    whole = small * convention.COHORT / 50
    assert PoissonBatches(10**6, 0.005, 40).epsilon(whole, 1e-6) == pytest.approx(2.0, rel=1e-3)
    assert small < 0.01


# Trivial models ----------------------------------------------------------------------------------------------------


def test_rates_of_skills_rank_answers_by_how_hard_their_skill_is(scripts):
    _, trivial, *_ = scripts

    def block(*users):
        """Users of one window of (skill, answer), the rest of which is nothing."""
        codes = np.full((len(users), 4, 2), -1, dtype=np.int32)
        for window, steps in zip(codes, users, strict=True):
            window[: len(steps)] = steps
        return Block(codes.reshape(len(users), -1), np.arange(len(users) + 1))

    train = block([(0, 1), (0, 1), (1, 0)], [(1, 0), (0, 1), (1, 1)])
    assert trivial.skill_rates(train, block([(0, 1), (1, 0)])) == 1.0
    assert trivial.skill_rates(train, block([(0, 0), (1, 1)])) == 0.0
    # A skill that nobody practised has the average rate, between the two.
    assert trivial.skill_rates(train, block([(7, 1), (1, 0), (0, 1)])) == 1.0


def test_rates_of_characters_take_bits_that_users_share_equally(scripts):
    _, trivial, *_ = scripts
    train = Block(np.array([[0, 0, 0, 1, -1]], dtype=np.int32), np.array([0, 1]))
    test = Block(np.array([[0, 0, 0], [0, -1, -1], [1, 1, -1]], dtype=np.int32), np.array([0, 2, 3]))
    # One is added to each of two counts: 4 / 6 and 2 / 6.
    expected = (-math.log2(4 / 6) - math.log2(2 / 6)) / 2
    assert trivial.character_rates(train, test, characters=2) == pytest.approx(expected)


def test_the_most_frequent_digit_is_right_as_often_as_each_user_writes_it(scripts):
    _, trivial, *_ = scripts
    features = np.zeros((4, 1), dtype=np.float32)
    train = Block(features, np.array([0, 4]), np.array([3, 3, 1, 2], dtype=np.float32))
    test = Block(features, np.array([0, 1, 4]), np.array([3, 3, 1, 2], dtype=np.float32))
    assert trivial.most_frequent(train, test) == pytest.approx((1 + 1 / 3) / 2)


# The page ----------------------------------------------------------------------------------------------------------


def rows(command, values, **changes):
    fixed = dict.fromkeys(command.COLUMNS) | {"userdp": "1", "python": "3", "torch": "2", "seconds": 1.0}
    fixed |= {"relation": "add_or_remove", "replace_one_epsilon": 16.0, "replace_one_delta": 0.03, "delta": 0.03}
    fixed |= {"users": 1000, "dimension": 10, "users_needed": 50}
    made = [
        fixed | dict(zip(command.KEY, (*key, seed), strict=True)) | {"value": value} | changes.get(key[1], {})
        for key, found in values.items()
        for seed, value in enumerate(found)
    ]
    return pd.DataFrame(made)


PUPILS = {
    ("pupils", "trivial", 0.0): [0.6, 0.62, 0.6],
    ("pupils", "non_private", 0.0): [0.7, 0.72, 0.71],
    ("pupils", "good", 8.0): [0.68, 0.69, 0.71],  # 0.8, 0.7, 1.0 of the way, each from its own seed's ends
    ("pupils", "bad", 8.0): [0.59, 0.60, 0.58],
    ("pupils", "good", 2.0): [0.64, 0.66, 0.65],  # 0.4, 0.4, 0.45
}


def test_shares_are_of_each_seeds_own_way(scripts, tmp_path, monkeypatch):
    command, *_, page = scripts
    monkeypatch.setattr(page, "MEASURED", tmp_path / "table.csv")
    rows(command, PUPILS).to_csv(page.MEASURED, index=False)
    found = page.table()
    own = found[(found["strategy"] == "good") & (found["epsilon"] == 8)]
    np.testing.assert_allclose(own["share"], [0.8, 0.7, 1.0], atol=1e-12)


def test_the_page_says_relation_plan_outcome_and_convention(scripts, tmp_path, monkeypatch):
    command, *_, page = scripts
    monkeypatch.setattr(page, "MEASURED", tmp_path / "table.csv")
    changes = {
        "good": {"noise": 0.6, "pretended_epsilon": 0.31, "pretended_noise": 0.05, "model_noise": 3.0, "reach": 10.0},
        "trivial": {"settings": "rate of each skill"},
        "bad": {"relation": "replace_one", "warnings": "Doing nothing may be as good."},
    }
    rows(command, PUPILS, **changes).to_csv(page.MEASURED, index=False)
    told = " ".join(page.section().split())
    assert "Trivial model (computed WITHOUT privacy: rate of each skill): 0.600 (0.600 to 0.620)." in told
    assert "| `good` | 0.690 (0.680 to 0.710), 80 % | 0.650 (0.640 to 0.660), 40 % |" in told
    assert "| `bad` | 0.590 (0.580 to 0.600), \N{MINUS SIGN}18 % | |" in told
    assert "| `good` | no guarantee at this delta; 30 % | no guarantee at this delta; 30 % |" in told
    assert "| `bad` | same | |" in told
    monkeypatch.setattr(page, "CONVENTIONAL", "good")
    assert page.convention().splitlines()[2:] == [
        "| pupils | 8 | 0.6 | 0.31 | 0.05 |",
        "| pupils | 2 | 0.6 | 0.31 | 0.05 |",
    ]
    assert "right for 3 of 3 rows. Warned, and no better than trivial: `bad` at epsilon 8." in told
    assert told.index("`good`") < told.index("`bad`")
