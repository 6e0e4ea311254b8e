"""Coefficients in columns' own units: the score from them is the score of the model."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data import read_table
from userdp.data.coefficients import CoefficientMap
from userdp.data.tables.columns import Columns
from userdp.errors import BadInput

DECLARED = {
    "user": "person",
    "features": ["age", "dose"],
    "ranges": {"age": [18, 90], "dose": [-2, 3]},
    "categorical": {"sex": ["m", "f"], "ward": ["a", "b", "c"]},
    "dates": {"born": ["1950-01-01", "2000-01-01"]},
    "target": "y",
}


@settings(max_examples=30)
@given(
    st.sampled_from(["symmetric", "unit"]),
    st.sampled_from([None, (-50.0, 250.0)]),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_scores_from_coefficients_are_those_of_the_model(tmp_path_factory, scale, target_range, intercept, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "person": np.arange(12),
            "age": rng.uniform(18, 90, 12),
            "dose": rng.uniform(-2, 3, 12),
            "sex": rng.choice(["m", "f"], 12),
            "ward": rng.choice(["a", "b", "c"], 12),
            "born": pd.to_datetime("1950-01-01") + pd.to_timedelta(rng.integers(0, 18000, 12), unit="D"),
            "y": rng.uniform(0, 200, 12),
        }
    )
    path = tmp_path_factory.mktemp("table") / "table.parquet"
    table.to_parquet(path)
    declared = DECLARED | {"scale": scale} | ({} if target_range is None else {"target_range": target_range})
    columns, read = Columns(**declared), read_table(path, **declared)
    reading = columns.samples.coefficients(intercept)
    order = np.array([int(label) for label in read.labels])
    features = read.federation.block(np.arange(12)).dense_features.astype(float)
    rows = np.column_stack([features, np.ones(12)]) if intercept else features
    model = rng.normal(size=rows.shape[1])
    found = dict(zip(reading.names, reading.of_model @ model + reading.offset, strict=True))
    own = table.iloc[order]
    score = own.age * found["age"] + own.dose * found["dose"]
    score += (own.born - pd.Timestamp("1950-01-01")).dt.days * found["born"]
    for column in ("sex", "ward"):
        for level in declared["categorical"][column]:
            score += (own[column] == level) * found.get(f"{column}={level}", 0.0)
    score += found.get("intercept", 0.0)
    expected = rows @ model
    if target_range is not None:
        expected = expected * (target_range[1] - target_range[0]) / 2
        expected += (target_range[0] + target_range[1]) / 2 if intercept else 0.0
    if not intercept:  # starts of numbers are part of the score, and only an intercept could hold them
        score += (expected - score).mean()
    np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        rows @ (reading.model_of @ (reading.of_model @ model)), rows @ model, rtol=1e-6, atol=1e-6
    )


def test_names_units_and_spans_are_those_of_the_columns():
    reading = Columns(**DECLARED).samples.coefficients(intercept=True)
    assert dict(zip(reading.names, reading.units, strict=True)) == {
        "age": "per 1 of age",
        "dose": "per 1 of dose",
        "born": "per day of born",
        "sex=f": "against sex=m",
        "ward=b": "against ward=a",
        "ward=c": "against ward=a",
        "intercept": "at 0 of all numbers",
    }
    assert reading.spans[:2].tolist() == [72.0, 5.0]
    assert reading.spans[-1] == 0.0
    assert (reading.kept > 0).all() or reading.kept[0] == 0
    assert len(reading.kept) == len(reading.names)


def test_without_an_intercept_every_level_keeps_its_own_coefficient():
    reading = Columns(**DECLARED).samples.coefficients(intercept=False)
    assert [name for name in reading.names if "=" in name] == ["sex=m", "sex=f", "ward=a", "ward=b", "ward=c"]


def test_columns_without_features_of_their_own_are_refused():
    with pytest.raises(BadInput, match=r"declare data\.features or data\.categorical"):
        Columns(user="person", codes="film", levels=7, target="y").samples.coefficients(intercept=True)


def test_a_map_whose_halves_disagree_is_refused():
    one = np.eye(2)
    with pytest.raises(BadInput, match="their product must be the identity"):
        CoefficientMap(("a", "b"), ("", ""), np.ones(2), one, 2 * one, np.zeros(2))
