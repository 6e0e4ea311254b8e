"""Tables of polars, DuckDB and pyarrow in every call that takes a DataFrame: the same results, to the bit."""

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from examples import ASKED, DECLARED, write_table

from simulations import compare, find, plan, query, train
from userdp.errors import BadInput

MADE = {
    "polars": pl.DataFrame,
    "duckdb": lambda frame: duckdb.from_arrow(pa.Table.from_pandas(frame)),
    "stream": lambda frame: pa.Table.from_pandas(frame).to_reader(max_chunksize=100),
}

FACTS = {"user": "who", "all_users": 60, "words": ["team"], "epsilon": 8.0, "delta": 1e-3}


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    return pd.read_csv(write_table(tmp_path_factory.mktemp("arrow") / "people.csv"))


@pytest.fixture(scope="module")
def model(frame):
    return train(frame, **ASKED, progress=False)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", MADE)
def test_one_model_and_its_predictions(frame, model, kind):
    trained = train(MADE[kind](frame), **ASKED, progress=False)
    np.testing.assert_array_equal(trained.model, model.model)
    assert trained.metrics == model.metrics
    pd.testing.assert_frame_equal(model.predict(MADE[kind](frame)), model.predict(frame))
    pd.testing.assert_frame_equal(model.evaluate(MADE[kind](frame)), model.evaluate(frame))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", MADE)
def test_one_plan_description_search_and_comparison(frame, kind):
    stream = MADE[kind](frame)
    assert plan(stream, **ASKED) == plan(frame, **ASKED)  # which reads nothing: the stream is still whole
    asked = {"user": "who", "features": ["height"], "ranges": {"height": [150, 200]}, "epsilon": 2.0, "delta": 1e-3}
    found = [query(one, **asked, progress=False).table for one in (stream, frame)]
    pd.testing.assert_frame_equal(*found)
    assert find(MADE[kind](frame), **FACTS).settings == find(frame, **FACTS).settings
    settings = {**DECLARED, "problem": "logistic", "users": 48, "epsilon": [4.0, 8.0], "delta": 1e-3}
    settings |= {"strategies": [ASKED["strategy"]], "seeds": 1, "progress": False}
    tables = [compare(one, **settings).table["value"].tolist() for one in (MADE[kind](frame), frame)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 2


def test_no_table_is_refused_by_its_type(model):
    for call in (model.predict, model.evaluate, lambda data: find(data, **FACTS)):
        with pytest.raises(BadInput, match=r"the dict is no table: make one by pandas"):
            call({"height": [1.0]})
