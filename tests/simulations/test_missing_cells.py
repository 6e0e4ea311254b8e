"""A table with missing cells, from its declarations to predictions: what is done in training is done in scoring."""

import json

import numpy as np
import pandas as pd
import pytest
from examples import call
from scipy.special import expit

from simulations import load_model, plan, train
from userdp.errors import BadInput

DECLARED = {
    "user": "who",
    "features": ["income"],
    "ranges": {"income": [0, 10]},
    "categorical": {"team": ["red", "blue"]},
    "impute": {"income": 4, "team": "own level", "debt": 0},
    "missing_indicators": ["income"],
    "derive": {
        "burden": {"kind": "ratio", "of": ["debt", "income"], "range": [0, 2], "otherwise": 2},
        "indebted": {"kind": "count_above", "of": ["debt"], "range": [0, 1]},
        "log_debt": {"kind": "log1p", "of": ["debt"], "range": [0, 3], "otherwise": 0},
        "left": {"kind": "difference", "of": ["income", "debt"], "range": [-5, 5]},
        "squared": {"kind": "product", "of": ["income", "income"], "range": [0, 50]},
    },
    "target": "paid",
    "positive": "yes",
    "users": 120,
    "epsilon": 8.0,
    "delta": 1e-3,
    "problem": "logistic",
}


def people(users=150, rows=3):
    rng = np.random.default_rng(0)
    total = users * rows
    income, debt = rng.uniform(0, 10, total), rng.uniform(-1, 9, total)
    return pd.DataFrame(
        {
            "who": np.repeat([f"u{k}" for k in range(users)], rows),
            "income": np.where(rng.random(total) < 0.1, np.nan, income.round(2)),
            "debt": np.where(rng.random(total) < 0.1, np.nan, debt.round(2)),
            "team": rng.choice(["red", "blue", None], total),
            "paid": np.where(income - debt + rng.normal(0, 2, total) > 0, "yes", "no"),
        }
    )


def scaled(value, low, high):
    return 2 * (min(max(value, low), high) - low) / (high - low) - 1


def features_by_hand(row):
    """A row's features in the order of the model's weights, from the declarations above, and the intercept's 1."""
    gone = np.isnan(row.income)
    income, debt = 4.0 if gone else row.income, 0.0 if np.isnan(row.debt) else row.debt
    return [
        scaled(income, 0, 10),
        scaled(2 if income == 0 else debt / income, 0, 2),
        scaled(debt > 0, 0, 1),
        scaled(np.log1p(debt) if debt > -1 else 0, 0, 3),
        scaled(income - debt, -5, 5),
        scaled(income * income, 0, 50),
        float(gone),
        float(row.team == "red"),
        float(row.team == "blue"),
        float(not isinstance(row.team, str)),
        1.0,
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("missing") / "run"
    frame = people()
    return frame, train(
        frame, directory=folder, progress=False, strategy={"kind": "dp_fed_sgd", "rounds": 5}, **DECLARED
    )


def test_a_prediction_is_made_of_the_features_that_were_declared(trained):
    frame, model = trained
    assert frame["income"].isna().any()
    assert frame["debt"].isna().any()
    found = model.predict(frame)
    assert found.notna().all().all()  # no missing cell leaves a row without a prediction
    by_hand = np.array([features_by_hand(row) for row in frame.itertuples()])
    np.testing.assert_allclose(found["probability"], expit(by_hand @ model.model), atol=1e-6)


def test_a_saved_model_scores_a_file_as_it_was_trained(trained, tmp_path):
    frame, model = trained
    frame.to_csv(tmp_path / "others.csv", index=False)
    saved = load_model(model.directory)
    np.testing.assert_array_equal(saved.predict(tmp_path / "others.csv"), model.predict(frame))
    told = call("predict", model.directory, tmp_path / "others.csv", "--output", tmp_path / "p.csv", "--json")
    told = json.loads(told.stdout)
    assert told["unusable_rows"] == 0
    assert told["metrics"] == saved.evaluate(frame)["this model"].to_dict()


def test_the_holder_of_the_data_is_told_how_many_cells_were_filled(trained):
    frame, model = trained
    table = json.loads((model.directory / "data.json").read_text())["table_private"]
    assert table["imputed"] == {
        "income": int(frame["income"].isna().sum()),
        "debt": int(frame["debt"].isna().sum()),
        "team": int(frame["team"].isna().sum()),
        "burden": int((frame["income"] == 0).sum()),
        "log_debt": int((frame["debt"] <= -1).sum()),
    }
    assert not any(table["unusable"].values())
    assert "replaced by the value declared for them" in model.page


def test_a_plan_says_what_the_declarations_rest_on_and_needs_no_data():
    declared = DECLARED | {"strategy": "dp_fed_sgd"}
    assert any("what missing cells count as" in one for one in plan(**declared).guarantee.assumptions)
    plain = {key: value for key, value in declared.items() if key not in ("impute", "missing_indicators", "derive")}
    assert not any("missing cells" in one for one in plan(**plain).guarantee.assumptions)
    with pytest.raises(BadInput, match=r"impute\.income = 'mean': a value taken from the data would tell"):
        plan(**declared | {"impute": {"income": "mean"}})
