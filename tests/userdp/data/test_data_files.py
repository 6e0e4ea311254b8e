"""Files of tables: the form of a CSV file is declared, and if it is not, proposed, never guessed."""

import gzip
import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from userdp.data import read_table
from userdp.data.tables.csv_form import CsvForm
from userdp.errors import BadInput, MissingColumn, UserdpError

FORM = {
    "user": "pid",
    "features": ["age", "dose"],
    "ranges": {"age": [0, 100], "dose": [0, 2000]},
    "categorical": {"stadt": ["Köln", "Ulm"]},
}
TEXT = "pid,age,dose,stadt\n007,1.5,1000.25,Köln\n7,20,3,Ulm\n7,30,.5,Ulm\n"
GERMAN = "pid;age;dose;stadt\n007;1,5;1.000,25;Köln\n7;20;3;Ulm\n7;30;,5;Ulm\n"
MARKS = {"separator": ";", "decimal": ",", "thousands": "."}


def bits(path, **changes):
    table = read_table(path, **FORM | changes)
    users = np.argsort(table.labels)
    block = table.federation.block(np.arange(table.federation.users))
    assert table.labels[users].tolist() == ["007", "7"]
    return [block.features[block.offsets[user] : block.offsets[user + 1]].tobytes() for user in users]


def packed(text):
    return gzip.compress(text.encode(), mtime=0)


def parquet():
    file = io.BytesIO()
    pq.write_table(pa.table({"pid": ["007"], "age": [1], "dose": [1], "stadt": ["Ulm"]}), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "csv"),
    [
        ("a.csv", TEXT, None),
        ("a.CSV", "\ufeff" + TEXT, None),
        ("a.csv", GERMAN, MARKS),
        ("a.csv", GERMAN.encode("cp1252"), MARKS | {"encoding": "cp1252"}),
        ("a.csv", TEXT.encode("utf-16"), {"encoding": "utf-16"}),
        ("a.csv.gz", packed(TEXT), None),
        ("a.csv.gz", packed(GERMAN), CsvForm(**MARKS)),
        ("a.tsv", TEXT.replace(",", "\t"), None),
        ("a.tsv.gz", packed(TEXT.replace(",", "\t")), None),
        ("a.tsv", GERMAN, MARKS),
        ("a.csv", TEXT.replace(",", "|").replace("\n", "\r\n"), {"separator": "|"}),
        ("a.csv", TEXT.replace("1000.25", '"1,000.25"'), {"thousands": ","}),
        ("a.csv", TEXT.replace("1000.25", "1'000.25"), {"thousands": "'"}),
    ],
)
def test_a_file_is_read_as_it_is_declared(tmp_path, name, content, csv):
    (tmp_path / "plain.csv").write_text(TEXT, encoding="utf-8")
    (path := tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert bits(path, csv=csv) == bits(tmp_path / "plain.csv")


@pytest.mark.parametrize(
    ("name", "content", "csv", "told"),
    [
        *[
            ("a.csv", TEXT.replace(",", mark), csv, told)
            for mark, csv, told in [
                (
                    ";",
                    {},
                    "it has the one column pid;age;dose;stadt: it seems to be separated by ';': write csv = .*\";\"",
                ),
                ("\t", {}, r'separated by .\\t.: write csv = \{ separator = "\\t" \}'),
                (",", {"separator": ";"}, 'separated by .,.: write csv = { separator = "," }'),
            ]
        ],
        ("a.tsv", TEXT, {}, 'separated by .,.: write csv = { separator = "," }'),
        (
            "a.csv",
            TEXT.replace("stadt", "Städte").encode("cp1252"),
            {},
            r"declare its encoding, such as csv = \{ encoding",
        ),
        (
            "a.csv",
            TEXT.encode("utf-16"),
            {},
            r"NUL bytes: if its encoding is UTF-16, write csv = \{ encoding = 'utf-16'",
        ),
        ("a.csv", TEXT.encode("utf-16"), {"encoding": "cp1252"}, "NUL bytes: .* cp1252 is another"),
        ("a.csv", TEXT.replace("age", "dose", 1), {}, "has no column 'age'"),
        ("a.csv", TEXT.replace("stadt", "stadt,age", 1), {}, "has column 'age' more than once"),
        ("a.csv", parquet(), {}, "is no text, but a Parquet file: name it .parquet"),
        ("a.tsv", b"PK\x03\x04", {}, "is no text, but a zip archive, as Excel's files are: name it .xlsx"),
        ("a.csv", packed(TEXT), {}, "is no text, but compressed by gzip: name it .csv.gz"),
        ("a.csv.gz", TEXT, {}, "cannot be read as csv"),
        ("a.xls", b"x", {}, r"ends with '\.xls'; use \.csv, \.tsv \(both also with \.gz\), \.xlsx or \.parquet"),
        ("a.parquet.gz", b"x", {}, r"ends with '\.gz'; use \.csv"),
        (
            "a.csv",
            TEXT,
            {"decimal": ",", "thousands": ","},
            "must have two marks, one for decimal and one for thousands",
        ),
        *[
            ("a.csv", TEXT, {"encoding": name}, "csv.encoding = .*: must be an encoding")
            for name in ("utf-99", "rot13")
        ],
        ("a.csv", TEXT, {"seperator": ";"}, "there is no argument 'csv.seperator'"),
        *[
            ("a.csv", TEXT, {key: "x"}, f"csv.{key} = 'x': must be")
            for key in ("separator", "decimal", "thousands", "encoding")
        ],
    ],
)
def test_what_does_not_fit_is_refused_with_a_proposal_and_without_a_cell(tmp_path, name, content, csv, told):
    (path := tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserdpError, match=told) as caught:
        read_table(path, **FORM, csv=csv)
    assert not any(cell in str(caught.value) for cell in ("1000", "Köln", "Ulm"))


@pytest.mark.parametrize("rows", [3, 3000])
@pytest.mark.parametrize("at", [0, 1, -1])
@pytest.mark.parametrize("surplus", ["", "x", "x,,"])
def test_a_row_with_more_cells_than_the_header_is_refused_wherever_it_is(tmp_path, rows, at, surplus):
    """A decimal comma moves the cells after it, and among them may be the id: the row would be another person's."""
    lines = [f"7,{row},1,Ulm" for row in range(rows)]
    lines[at] += f",{surplus}"
    (path := tmp_path / "a.csv").write_text("\n".join(["pid,age,dose,stadt", *lines]) + "\n")
    line, cells = at % rows + 2, 5 + surplus.count(",")
    with pytest.raises(BadInput, match=f"has {cells} cells in line {line}, and 4 in its header: quote cells"):
        read_table(path, **FORM)


@pytest.mark.parametrize(
    ("marks", "cell", "number"),
    [
        ({}, "1.5", 1.5),
        ({}, "1,5", np.nan),
        ({"decimal": ","}, " 1,5e2\t", 150),
        ({"decimal": ","}, "True", 1),
        *[({"decimal": ","}, cell, np.nan) for cell in ("1.5", "1.500", "1,5,5", ",", "nan", "1.500,5")],
        ({"decimal": ",", "thousands": "."}, "-1.234.567,5", -1234567.5),
        ({"decimal": ",", "thousands": "."}, "1234,5", 1234.5),
        *[
            ({"decimal": ",", "thousands": "."}, cell, np.nan)
            for cell in ("1.5", "1.2345", "1234.567", ".500", "1,000.5")
        ],
        ({"thousands": "\u202f"}, "12\u202f345.6", 12345.6),
        ({"thousands": " "}, "12 345", 12345),
        ({"decimal": ","}, None, np.nan),
    ],
)
def test_a_number_has_the_declared_marks_and_no_others(marks, cell, number):
    np.testing.assert_equal(CsvForm(**marks).number(cell), number)


def test_numbers_with_other_marks_are_told_to_the_holder_alone(tmp_path):
    (tmp_path / "b.csv").write_text(GERMAN.replace("20", "").replace("30", ""))
    told = read_table(tmp_path / "b.csv", **FORM, csv={"separator": ";"}).report.nothing_usable
    assert "its cells are numbers with commas; declare a CSV file's, such as csv = { decimal = ',' }" in told[0]
    (tmp_path / "c.csv").write_text(TEXT.replace("20", "2.0").replace("30", "3.0"))
    told = read_table(tmp_path / "c.csv", **FORM, csv={"decimal": ","}).report.nothing_usable
    assert "its cells are numbers; check the marks that csv declares" in told[0]


CELLS = [["pid", "age", "dose", "stadt"], ["007", 1.5, 1000.25, "Köln"], [7, 20, 3, "Ulm"], [7, 30, 0.5, "Ulm"]]


def test_a_sheet_of_excel_is_read_cell_by_cell(tmp_path, monkeypatch):
    (tmp_path / "plain.csv").write_text(TEXT, encoding="utf-8")
    (path := tmp_path / "a.xlsx").write_bytes(b"PK")
    with monkeypatch.context() as patched:
        patched.setattr("userdp.extras.find_spec", lambda _: None)
        with pytest.raises(BadInput, match=r"needs openpyxl: pip install 'userdp\[excel\]'"):
            read_table(path, **FORM)
    monkeypatch.setattr("userdp.data.tables.reading.check_extra", lambda *_: None)
    monkeypatch.setattr(pd, "read_excel", lambda *_, **__: pd.DataFrame(CELLS, dtype=object))
    assert bits(path, csv={"decimal": ","}) == bits(tmp_path / "plain.csv")  # which says nothing of Excel's numbers
    monkeypatch.setattr(pd, "read_excel", lambda *_, **__: pd.DataFrame([CELLS[0], [2**54, 1, 1, "Ulm"]], dtype=object))
    with pytest.raises(BadInput, match="floats are rounded"):
        read_table(path, **FORM)
    with pytest.raises(MissingColumn, match="has no column 'agee'; did you mean 'age'"):
        read_table(path, **FORM | {"features": ["agee"], "ranges": {"agee": [0, 1]}})


def test_a_file_of_excel_is_read_like_its_csv(tmp_path):
    pytest.importorskip("openpyxl")
    (tmp_path / "plain.csv").write_text(TEXT, encoding="utf-8")
    pd.DataFrame(CELLS[1:], columns=CELLS[0]).to_excel(tmp_path / "a.xlsx", index=False)
    assert bits(tmp_path / "a.xlsx") == bits(tmp_path / "plain.csv")


def test_ids_in_the_index_of_a_frame_are_told():
    frame = pd.DataFrame({"pid": ["a"], "age": [1], "dose": [1], "stadt": ["Ulm"]}).set_index("pid")
    with pytest.raises(MissingColumn, match=r"has no column 'pid', but an index: give frame\.reset_index\(\)"):
        read_table(frame, **FORM)
