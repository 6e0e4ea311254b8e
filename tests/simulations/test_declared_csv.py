"""The form of a CSV file is declared once, and every door reads it by the same function."""

import numpy as np
import pandas as pd
import pytest
import tomli_w
from examples import call
from test_quoted_cells import PEOPLE, RUN, configured, row

from simulations.config.run_config import parse_config
from simulations.runs.policy import digest
from simulations.runs.silos import FILE, prepare
from userdp import find, load_model, query, train
from userdp.errors import BadInput

CSV = {"separator": ";", "decimal": ",", "thousands": ".", "encoding": "cp1252"}
ROWS = [
    row(at % PEOPLE, pid=f"Zoë {at % PEOPLE}", age=f"{at}.5", dose="0.25", team="red", born="2000-01-02", ill="yes")
    for at in range(16)
]


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["pid", "slot", "age", "dose", "team", "born", "ill"]
    plain, german = tmp_path / "plain.csv", tmp_path / "german.csv"
    plain.write_text("\n".join(map(",".join, [names, *ROWS])) + "\n", encoding="utf-8")
    german.write_text("\n".join(map(";".join, [names, *ROWS])).replace(".", ",") + "\n", encoding="cp1252")
    return plain, german


def test_a_model_and_its_predictions_are_those_of_the_plain_file(paths):
    plain, german = paths
    one, two = train(plain, **RUN), train(german, **RUN, csv=CSV)
    np.testing.assert_array_equal(one.model, two.model)
    pd.testing.assert_frame_equal(one.predict(plain), two.predict(german))
    pd.testing.assert_frame_equal(one.evaluate(plain), two.evaluate(german))
    saved = two.save("saved")
    assert load_model(saved).config.data.csv.separator == ";"
    new = one.save("new")  # and a file of another form than that of the run
    pd.testing.assert_frame_equal(one.predict(plain), load_model(new).predict(german, csv=CSV))
    pd.testing.assert_frame_equal(one.evaluate(plain), one.evaluate(german, csv=CSV))
    how = [word for key, value in CSV.items() for word in ("--csv", f"{key}={value}")]
    assert call("predict", new, german, "--output", "new.csv", *how).exit_code == 0
    pd.testing.assert_frame_equal(pd.read_csv("new.csv"), one.predict(plain))
    with pytest.raises(BadInput, match=r"csv\.decimal = ';': must be"):
        one.predict(german, csv={"decimal": ";"})
    assert "--csv 'decimal': write it as key=value" in call("predict", new, german, "--csv", "decimal").stderr
    assert call("predict", saved, german, "--output", "p.csv", "--keep", "age", "--keep", "pid").exit_code == 0
    assert pd.read_csv("p.csv")["age"].tolist() == [f"{at},5" for at in range(16)]  # as the table has it


def test_facts_and_statistics_are_those_of_the_plain_file(paths):
    plain, german = paths
    asked = {"user": "pid", "all_users": PEOPLE, "numbers": ["age"], "epsilon": 5000.0, "delta": 1e-3}
    facts = find(german, csv=CSV, **asked).settings
    assert {key: value for key, value in facts.items() if key != "csv"} == find(plain, **asked).settings
    assert facts["csv"] == CSV
    asked = {"user": "pid", "all_users": PEOPLE, "features": ["age"], "ranges": {"age": [0, 100]}}
    asked |= {"epsilon": 8.0, "delta": 1e-3, "test_fraction": 0.0}
    assert str(query(german, csv=CSV, **asked)) == str(query(plain, **asked))


def test_a_silo_declares_its_own_file_and_answers_the_same_runs(paths):
    samples = []
    configs = [parse_config(configured(path)) for path in paths]
    csv = configured(paths[1])
    csv["data"]["csv"] = CSV
    configs[1] = parse_config(csv)
    assert digest(configs[0]) == digest(configs[1])
    for config, folder in zip(configs, ("one", "two"), strict=True):
        prepare(config, paths[0].parent / folder, 0)
        with np.load(paths[0].parent / folder / FILE) as stored:
            samples.append({name: stored[name].tobytes() for name in ("features", "targets", "labels", "declarations")})
    assert samples[0] == samples[1]


def test_people_written_in_two_ways_are_no_reason_to_declare_more(paths):
    path = paths[0]
    path.write_text(path.read_text(encoding="utf-8").replace("Zoë 1,1,9", "zoë 1,1,9"), encoding="utf-8")
    with pytest.raises(BadInput, match="the same people may be written in two ways: 1 of the 9 ids") as caught:
        find(path, user="pid", all_users=PEOPLE, numbers=["age"], epsilon=5000.0, delta=1e-3)
    assert "correct data.all_users" not in str(caught.value)


def test_a_file_declares_it_by_its_keys(paths):
    raw = configured(paths[1])
    raw["data"]["csv"] = CSV | {"seperator": ";"}
    (paths[0].parent / "file.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
    done = call("plan", "file.toml")
    assert "unknown key data.csv.seperator; did you mean data.csv.separator?" in " ".join(done.output.split())
