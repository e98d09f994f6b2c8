"""Tables for training: what is read, what is left out and counted, what is refused and how."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from labeler.models.data import Columns, Table, read_rows, read_table
from labeler.models.errors import TrainingError

GOOD = "t,a,b,label\n1,0.5,2,x\n2,-1e3,3,y\n3,4,5,x\n"
Read = Callable[..., Table]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a text as a table, by default with the label `label`."""

    def reading(text: str, columns: Columns | None = None, name: str = "table.csv") -> Table:
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return read_table(path, columns or Columns("label"))

    return reading


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_table_is_read_as_float32_in_its_order(read: Read, name: str) -> None:
    table = read(GOOD, Columns("label", drop=["t"]), name)

    assert table.columns == ("a", "b")
    assert table.rows.dtype == np.float32
    assert table.rows.tolist() == [[0.5, 2], [-1000, 3], [4, 5]]
    assert [table.classes[label] for label in table.labels] == ["x", "y", "x"]


def test_of_two_labels_the_rarer_one_is_the_second(read: Read) -> None:
    assert read("a,label\n1,0\n2,1\n3,1\n").classes == ("1", "0")


def test_whole_number_labels_are_ordered_by_value(read: Read) -> None:
    assert read("a,label\n1,10\n2,9\n3,2\n").classes == ("2", "9", "10")


@pytest.mark.parametrize("missing", ["", " ", "NA", "nan", "NULL"])
def test_a_row_with_a_missing_value_is_dropped_and_counted(read: Read, missing: str) -> None:
    table = read(GOOD + f"4,{missing},7,x\n5,1,7,{missing}\n")

    assert (table.dropped, len(table.rows)) == (2, 3)


def test_a_missing_value_in_a_column_left_out_drops_no_row(read: Read) -> None:
    assert read(GOOD + ",1,7,x\n", Columns("label", drop=["t"])).dropped == 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t,a,label\n1,2,x\n1,two,y\n", [":3:", "'a'", "'two'", "finite number"]),
        ("t,a,label\n1,inf,x\n1,2,y\n", [":2:", "'a'", "'inf'", "finite number"]),
        ("t,a,label\n1,1e39,x\n1,2,y\n", [":2:", "'a'", "'1e39'", "float32"]),
        ("t,a,label\n1,2,x\n\n1,2\n", [":4:", "2 values, expected 3"]),
        ("t,a,a,label\n", [":1:", "each column named once"]),
        ("", [":1:", "each column named once"]),
        ("t,a,label\n", ["no row"]),
        ("t,a,label\n1,2,x\n2,3,x\n", ["'label'", "1 labels (x)", "expected 2 to"]),
        ("t,a,other\n1,2,x\n", ["no column 'label'", "t, a, other"]),
        ('t,a,label\n1,"2,x\n', ["not CSV"]),
        (f"t,a,label\n1,2,{'x' * 200}\n1,2,y\n", ["'label'", "200 bytes", "at most 128"]),
    ],
)
def test_what_is_wrong_is_named_with_line_column_value_and_expectation(
    read: Read, text: str, parts: list[str]
) -> None:
    with pytest.raises(TrainingError) as refused:
        read(text)

    assert not [part for part in parts if part not in refused.value.message], refused.value.message


def test_a_missing_value_is_refused_where_that_is_asked_for(read: Read) -> None:
    with pytest.raises(TrainingError, match=r":5: column 'a' holds '', expected a value"):
        read(GOOD + "4,,7,x\n", Columns("label", refuse_missing=True))


def test_a_time_that_falls_is_refused_by_line(read: Read) -> None:
    with pytest.raises(TrainingError, match=r":5: column 't' holds '2', expected 3\.0 or later"):
        read(GOOD + "2,1,7,x\n", Columns("label", time="t"))


def test_runs_and_times_are_no_part_of_a_payload(read: Read) -> None:
    table = read(
        "ride,t,a,label\nr9,1,5,x\nr2,2,6,y\nr9,3,7,x\n", Columns("label", (), "ride", "t")
    )

    assert table.columns == ("a",)
    assert table.run_names == ("r9", "r2")
    assert table.runs.tolist() == [0, 1, 0]


@pytest.mark.parametrize("content", [b"\x1f\x8bnot gzip", b"a,label\n\xff,x\n"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ("t.csv.gz" if content[0] == 0x1F else "t.csv")
    path.write_bytes(content)

    with pytest.raises(TrainingError, match="UTF-8 text"):
        read_table(path, Columns("label"))


def test_rows_of_another_width_than_the_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(GOOD)

    with pytest.raises(TrainingError, match=r"3 columns are left .* \(t, a, b\), expected 2"):
        read_rows(path, 2, "label", [])
    rows, labels = read_rows(path, 2, "label", ["t"])
    assert (rows.shape, labels) == ((3, 2), ["x", "y", "x"])
