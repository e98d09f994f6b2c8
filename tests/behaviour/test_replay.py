"""`labeler replay`: what a file says is what is sent; what it should not say is named."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from labeler.errors import InvalidRequestError
from labeler.fleet.table import Columns, Table, TableRows, read_table
from tests.support.real_data import data_file
from tests.support.service import Service, run_labeler, serve

TEXT = "t_s,a,name,b,truth,sku\n10,1,x,-2.5,go,S\n10.5,3,y,4,stop,T\n12,5,z,6,go,S\n"


def written(folder: Path, text: str = TEXT, name: str = "rows.csv") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def table_of(folder: Path, text: str, columns: Columns | None = None) -> Table:
    return read_table(written(folder, text), columns or Columns())


def test_values_are_the_columns_of_numbers_that_are_not_named(tmp_path: Path) -> None:
    table = table_of(tmp_path, TEXT, Columns(label="truth", sku="sku"))
    assert (table.columns, table.skipped) == (("a", "b"), ("name",))
    assert table.values.tolist() == [[1, -2.5], [3, 4], [5, 6]]
    assert (table.labels, table.truths.tolist()) == (("go", "stop"), [0, 1, 0])
    assert (table.skus, table.sku_indices.tolist()) == (("S", "T"), [0, 1, 0])


def test_times_count_from_the_first_row_in_microseconds(tmp_path: Path) -> None:
    assert table_of(tmp_path, TEXT).times_us == (0, 500_000, 2_000_000)
    assert table_of(tmp_path, TEXT, Columns(time="a")).times_us == (0, 2_000_000, 4_000_000)


def test_a_column_can_be_left_out(tmp_path: Path) -> None:
    assert table_of(tmp_path, TEXT, Columns(left_out=("a",))).columns == ("b",)


def test_a_gzipped_file_is_read_as_a_plain_one(tmp_path: Path) -> None:
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    assert np.array_equal(read_table(packed, Columns()).values, table_of(tmp_path, TEXT).values)


def test_rows_without_a_truth_say_that_none_is_known(tmp_path: Path) -> None:
    rows = TableRows(table_of(tmp_path, TEXT))
    batch = rows.take()
    assert batch is not None
    assert (rows.labels, batch.truths.tolist(), len(batch.skus)) == ((), [-1, -1, -1], 0)
    assert rows.take() is None


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("", Columns(), ", line 1: it is empty: expected a header line"),
        ("a,b\n", Columns(), "it has no row: expected a header line and at least one row"),
        ("a,a\n1,2\n", Columns(), ", line 1: two columns are named 'a': expected each name once"),
        ("a,b\n1,2\n3\n", Columns(), ", line 3: 1 cells: expected 2, as in the header"),
        ("a,b\n1,2\n3,x\n", Columns(), ", line 3, column b: 'x': expected a number"),
        ("a,b\n1,2\n3,\n", Columns(), ", line 3, column b: '': expected a number"),
        ("a\n1\nnan\n", Columns(), ", line 3, column a: 'nan': expected a finite number"),
        (
            "a\n1\n1e39\n",
            Columns(),
            "line 3, column a: '1e39': expected a finite number up to 3",
        ),
        ("a\nx\n", Columns(), ", line 2: no column holds numbers: expected at least one"),
        ("a\n1\n", Columns(label="b"), ", line 1: it has no column 'b': expected one of a"),
        ("a\n1\n", Columns(left_out=("b",)), "it has no column 'b': expected one of a"),
        ("a,b\n1, \n", Columns(label="b"), ", line 2, column b: ' ': expected a name"),
        (
            "t_s,a\n2,1\n1,1\n",
            Columns(),
            "line 3, column t_s: '1': expected seconds not before 2",
        ),
        ("t_s,a\n2,1\nnoon,1\n", Columns(), "line 3, column t_s: 'noon': expected a number"),
    ],
)
def test_what_a_file_should_not_say_is_named_with_its_place(
    text: str, columns: Columns, words: str, tmp_path: Path
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(InvalidRequestError) as caught:
        read_table(file, columns)
    assert caught.value.message.startswith(str(file))
    assert words in caught.value.message


def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"rows\.csv\.gz cannot be read"):
        read_table(written(tmp_path, TEXT, "rows.csv.gz"), Columns())


def test_a_file_without_times_asks_for_a_rate(tmp_path: Path) -> None:
    done = run_labeler("replay", str(written(tmp_path, "a\n1\n")))
    assert done.returncode == 1
    assert "say --time COLUMN, or --rate ROWS_PER_SECOND" in done.stderr


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of both packaged models."""
    models = ["kiva-floor", "wall-following"]
    one = serve(tmp_path_factory.mktemp("walls") / "state", models__load=models)
    try:
        yield one.wait_ready()
    finally:
        one.close()


def test_rows_of_another_width_than_the_model_s_are_refused(walls: Service, tmp_path: Path) -> None:
    file = str(written(tmp_path))
    where = ("--address", walls.address, "--admin", walls.admin_address)
    done = run_labeler("replay", file, *where, "--model", "wall-following")
    assert done.returncode == 1
    assert f"{file} gives 2 values, model wall-following takes others" in done.stderr
    assert "kiva-floor 1 (24 values)" in done.stderr


def test_a_file_is_replayed_at_its_own_times_and_every_row_is_accounted_for(
    walls: Service, tmp_path: Path
) -> None:
    header = ",".join(["t_s", *(f"v{n}" for n in range(24))])
    rows = [",".join([str(n * 10), *["2.5"] * 24]) for n in range(20)]
    file = written(tmp_path, "\n".join([header, *rows]) + "\n")
    where = ("--address", walls.address, "--admin", walls.admin_address)
    more = ("--speed", "500", "--robots", "3", "--audit", "--json", "--model", "wall-following")
    done = run_labeler("replay", str(file), *where, *more)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["planned"], found["labels"], found["errors"]) == (20, 20, 0)
    assert (found["audit"]["found"], found["lost"]) == (20, 0)
    assert found["accuracy"] is None
    assert f"{file} has no truths" in found["notes"]


def test_real_readings_are_labelled_as_their_truth_says(walls: Service, tmp_path: Path) -> None:
    lines = data_file("wall-following/readings_24.csv").read_text().splitlines()
    file = written(tmp_path, "\n".join(lines[:401]) + "\n")
    where = ("--address", walls.address, "--admin", walls.admin_address)
    more = ("--rate", "400", "--label", "label", "--model", "wall-following", "--json")
    done = run_labeler("replay", str(file), *where, *more)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["judged"], found["errors"]) == (400, 0)
    assert found["accuracy"] >= 0.95
