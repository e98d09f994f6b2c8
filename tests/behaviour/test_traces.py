"""Arrival times from CSV files: read as they stand, rearranged as said, refused with the line."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labeler.errors import DiskError, InvalidRequestError
from labeler.fleet.traces import Join, faster, overlay, read_times, side_by_side

Array = np.ndarray[Any, Any]

COMMANDS = "run,t_s,device\na,0.0,arm\na,0.25,pump\nb,0.5,arm\nb,2,arm\na,1.5,arm\n"
RUNS = "run,mode\na,remote\nb,direct\n"


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Two runs, and beside them a table of the runs."""
    path = tmp_path / "commands.csv"
    path.write_text(COMMANDS)
    (tmp_path / "runs.csv").write_text(RUNS)
    return path


def lists(traces: list[Array]) -> list[list[int]]:
    assert all(trace.dtype == np.int64 for trace in traces)
    return [trace.tolist() for trace in traces]


def test_times_are_whole_microseconds_from_the_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("n,when\n1,10.000001\n2,10.000001\n3,12.5\n")

    assert lists(read_times(path, "when")) == [[0, 0, 2_499_999]]


def test_a_gzip_file_reads_like_a_plain_one(commands: Path, tmp_path: Path) -> None:
    packed = tmp_path / "commands.csv.gz"
    packed.write_bytes(gzip.compress(COMMANDS.encode()))

    assert lists(read_times(packed, by="run")) == lists(read_times(commands, by="run"))


def test_rows_are_taken_by_the_values_of_their_columns(commands: Path) -> None:
    found = read_times(commands, where={"run": "a", "device": "arm"})

    assert lists(found) == [[0, 1_500_000]]


def test_each_value_of_a_column_can_be_a_trace_of_its_own(commands: Path) -> None:
    assert lists(read_times(commands, by="run")) == [[0, 250_000, 1_500_000], [0, 1_500_000]]


def test_another_files_columns_can_be_joined(commands: Path) -> None:
    join = Join(commands.with_name("runs.csv"), "run")

    found = read_times(commands, where={"mode": "remote"}, join=join, by="run")

    assert lists(found) == [[0, 250_000, 1_500_000]]


@pytest.mark.parametrize(
    ("text", "line", "column", "value", "expected"),
    [
        ("t_s\n0\nsoon\n", 3, "t_s", "'soon'", "seconds from 0 to 1e+09"),
        ("t_s\n0\nnan\n", 3, "t_s", "'nan'", "seconds from 0 to 1e+09"),
        ("t_s\n-1\n", 2, "t_s", "'-1'", "seconds from 0 to 1e+09"),
        ("t_s\n5\n4\n", 3, "t_s", "'4'", r"not before the arrival that precedes it \(5 s\)"),
        ("t,n\n5,1\n", 1, "t_s", "'missing'", "one of t, n"),
        ("", 1, "t_s", "'missing'", "a header line"),
        ("t_s\n", 1, "t_s", "'no arrival'", "rows"),
        ("t_s,n\n1,2\n3\n", 3, "t_s", "'1 fields'", "2 as in the header"),
    ],
)
def test_a_wrong_file_is_refused_with_line_column_and_expectation(
    tmp_path: Path, text: str, line: int, column: str, value: str, expected: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)

    message = f"trace.csv, line {line}, column {column}: {value}: expected {expected}$".replace(
        "+", r"\+"
    )
    with pytest.raises(InvalidRequestError, match=message):
        read_times(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"where": {"colour": "red"}},
            "column colour: 'missing': expected one of run, t_s, device",
        ),
        ({"by": "colour"}, "column colour: 'missing': expected one of run, t_s, device"),
        ({"where": {"run": "z"}}, "'no arrival': expected rows with run = z"),
    ],
)
def test_a_wrong_choice_of_rows_is_refused(
    commands: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_times(commands, **options)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("run,mode\na,remote\n", "commands.csv, line 4, column run: 'b': expected a value that"),
        (
            "run,mode\na,remote\na,direct\n",
            "runs.csv, line 3, column run: 'a': expected each value once",
        ),
        ("name,mode\na,remote\n", "runs.csv, line 1, column run: 'missing': expected one of name"),
    ],
)
def test_a_wrong_join_is_refused(commands: Path, runs: str, message: str) -> None:
    other = commands.with_name("runs.csv")
    other.write_text(runs)

    with pytest.raises(InvalidRequestError, match=message):
        read_times(commands, join=Join(other, "run"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"can't read .*absent\.csv: .*No such file"):
        read_times(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    "content",
    [b"t_s\n1\n", gzip.compress(b"t_s\n" + b"1\n" * 99)[:-9]],
    ids=["not gzip", "cut short"],
)
def test_a_damaged_gzip_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(content)

    with pytest.raises(DiskError, match=r"can't read .*trace\.csv\.gz: "):
        read_times(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"t_s\n\xff\xfe\n")

    with pytest.raises(InvalidRequestError, match=r"trace\.csv: .*: expected a CSV file in UTF-8"):
        read_times(path)


def test_faster_divides_all_gaps_by_one_factor() -> None:
    assert faster(np.array([0, 10, 40]), 2.5).tolist() == [0, 4, 16]


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_that_gives_no_time_is_refused(factor: float) -> None:
    with pytest.raises(InvalidRequestError, match=f"factor = {factor}: expected a number above 0"):
        faster(np.array([0, 1]), factor)


def test_an_overlay_holds_the_trace_and_turned_copies_of_it() -> None:
    times = np.array([0, 10, 40, 90])

    found = overlay(times, 3, seed=4)

    assert len(found) == 12
    assert (np.diff(found) >= 0).all()
    assert set(times.tolist()) <= set(found.tolist())
    assert 0 <= found[0] <= found[-1] < 90 + 30  # the trace, and one mean gap after it
    assert found.tolist() == overlay(times, 3, seed=4).tolist()
    assert found.tolist() != overlay(times, 3, seed=5).tolist()


def test_one_copy_is_the_trace_itself() -> None:
    assert overlay(np.array([0, 10, 40]), 1, seed=4).tolist() == [0, 10, 40]


def test_traces_side_by_side_begin_together_or_within_the_spread() -> None:
    traces = [np.array([0, 5]), np.array([0, 7])]

    assert side_by_side(traces, 0, seed=1).tolist() == [0, 0, 5, 7]
    spread = side_by_side(traces * 20, 1_000_000, seed=1)
    assert len(spread) == 80
    assert spread[0] == 0
    assert 500_000 < spread[-1] < 1_000_007
    assert spread.tolist() == side_by_side(traces * 20, 1_000_000, seed=1).tolist()
