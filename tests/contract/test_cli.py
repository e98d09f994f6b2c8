"""The command line: help with examples, JSON shapes, one-line errors with their exit codes.

Nothing here needs a running service; commands that do are tested with one elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labeler.cli.app import COMMANDS as FILES
from labeler.cli.app import app_of
from labeler.cli.journal import _show_stat
from labeler.cli.label import _show as _show_label
from labeler.cli.label import parse_values
from labeler.cli.tables import bytes_text, duration, out, table
from labeler.client import Label, Timing
from labeler.config import all_settings
from labeler.errors import InvalidRequestError


def repr_of(text: str) -> str:
    """A short name of a parameter."""
    return repr(text[:10])


APP = app_of(FILES)
COMMANDS = [
    ["serve"],
    ["label"],
    ["status"],
    ["fleet"],
    ["replay"],
    ["report"],
    ["matrix"],
    ["demo"],
    ["version"],
    ["journal", "verify"],
    ["journal", "stat"],
    ["journal", "dump"],
    ["dlq", "list"],
    ["dlq", "show"],
    ["dlq", "redrive"],
    ["dlq", "purge"],
    ["dlq", "export"],
    ["models", "list"],
    ["models", "load"],
    ["models", "unload"],
    ["models", "verify"],
    ["models", "compare"],
    ["train"],
    ["config", "show"],
    ["store", "ensure"],
    ["store", "check"],
]


def labeler(*arguments: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, without our variables but those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LABELER_")}
    return subprocess.run(
        [sys.executable, "-m", "labeler.cli", *arguments],
        env=kept | variables | {"COLUMNS": "100"},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def help_of(*command: str) -> str:
    """What `--help` prints, without a process for each."""
    done = CliRunner().invoke(APP, [*command, "--help"], terminal_width=100)
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples_one_a_line(command: list[str]) -> None:
    lines = [line.strip() for line in help_of(*command).splitlines()]
    after = lines[lines.index("Examples:") + 1 :]
    assert f"labeler {' '.join(command)}" in after[0]


def test_help_lists_every_command() -> None:
    words = help_of().split()
    assert {command[0] for command in COMMANDS} <= set(words)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_that_prints_offers_json(command: list[str]) -> None:
    if command != ["serve"]:
        assert "--json" in help_of(*command)


def test_config_show_gives_every_setting_with_value_and_origin() -> None:
    done = labeler("config", "show", "--json", "--set", "path.deadline_ms=100")
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert list(shown) == list(all_settings())
    assert shown["path.deadline_ms"] == {"value": 100, "origin": "--set"}
    assert shown["state_dir"] == {"value": "./labeler-state", "origin": "default"}


def test_config_show_reads_for_people_too() -> None:
    done = labeler("config", "show", LABELER_MODELS__LOAD='["kiva-floor@1"]')
    [line] = [line for line in done.stdout.splitlines() if line.startswith("models.load ")]
    assert line.split() == ["models.load", '["kiva-floor@1"]', "LABELER_MODELS__LOAD"]


@pytest.mark.parametrize("command", [["serve"], ["config", "show"]], ids=" ".join)
def test_wrong_settings_are_told_at_once_with_exit_code_64(command: list[str]) -> None:
    done = labeler(*command, "--set", "path.batch_rows_max=0", LABELER_PATH__DEADLIN_MS="1")
    assert done.returncode == 64
    assert done.stderr.startswith("configuration: 2 errors, nothing was started\n")
    assert "did you mean `LABELER_PATH__DEADLINE_MS`?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["serve"], ["config", "show"]], ids=" ".join)
def test_a_store_that_is_not_installed_is_a_wrong_setting(command: list[str]) -> None:
    done = labeler(*command, "--set", "writer.store=dynamo")
    assert done.returncode == 64
    assert 'writer.store = "dynamo"' in done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["status", "--admin", "127.0.0.1:1"], "labeler serve"),
        (["label", "no-such-file"], "no-such-file"),
        (["status", "--admin", "not a host"], "no service answers"),
        (["fleet", "--fault", "rust"], "--fault rust, expected one of bias, dust"),
        (["fleet", "--fault", "dust:much"], "--fault dust:much, expected a share"),
        (["fleet", "--for", "soon"], "--for 'soon', expected a time"),
        (["fleet", "--rate", "0"], "rate_per_s = 0.0: expected labels per second"),
        (["fleet", "--factor", "3"], "--factor with --schedule constant, expected flash-crowd"),
        (["fleet", "--fault", "burst", "--schedule", "ramp"], "expected constant"),
        (["report", "--for", "soon"], "--for 'soon', expected a time"),
        (["matrix", "--calls", "1,many"], "--calls '1,many', expected numbers from 1 to 10,000"),
        (["matrix", "--warm-up", "a bit"], "--warm-up 'a bit', expected a time"),
        (["demo", "--for", "0s"], "--for '0s', expected a time"),
        (["replay", "no-such-file.csv"], "no-such-file.csv cannot be read"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(command: list[str], words: str) -> None:
    done = labeler(*command)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("labeler: ")
    assert words in done.stderr


def test_a_payload_that_is_no_number_is_named() -> None:
    done = labeler("label", text="1.0, x, 2.0")
    assert done.returncode == 1
    assert "'x' in the payload is no number" in done.stderr


@pytest.mark.parametrize(
    "text", ["[1, 2.5, 3e0]", "1,2.5,3", "1 2.5\n3\n", "1;2.5; 3", " [1,2.5,3]\n"]
)
def test_a_payload_may_be_json_or_separated_numbers(text: str) -> None:
    assert parse_values(text) == [1.0, 2.5, 3.0]


NO_PAYLOADS = ["", "[]", "[1, [2]]", "[true]", "nan", "[1e999]", "[1,", '["1"]']


@pytest.mark.parametrize("text", [*NO_PAYLOADS, f"[{'9' * 400}]", "[" * 100_000], ids=repr_of)
def test_a_payload_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_values(text)


def test_serve_imports_neither_grpcio_nor_a_training_library() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1].split(':')\n"
        "import labeler.cli, labeler.config, labeler.control, labeler.writer\n"
        "import labeler.stores.sqlite, labeler.telemetry.admin\n"
        "heavy = {'grpc', 'sklearn', 'onnxruntime', 'numpy', 'labeler._core'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    arguments = [sys.executable, "-c", program, ":".join(sys.path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_command_whose_library_is_missing_says_what_to_install() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1].split(':'); sys.argv = ['labeler', 'serve']\n"
        "sys.modules['pydantic'] = None\n"
        "from labeler.cli import main; main()\n"
    )
    arguments = [sys.executable, "-c", program, ":".join(sys.path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    hint = "the command line needs more than the client: pip install 'labeler[serve]'"
    assert done.stderr == f"labeler: pydantic is not installed; {hint}\n"


def test_journal_of_a_folder_that_is_none_has_the_disk_s_exit_code(tmp_path: Path) -> None:
    pytest.importorskip("labeler._core")
    done = labeler("journal", "stat", str(tmp_path / "none"))
    assert done.returncode == 74
    assert str(tmp_path / "none") in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--from", "-1"], ["--rows", "-5"], ["--from", "1" + "0" * 30]], ids=" ".join
)
def test_a_dump_of_records_that_cannot_be_is_a_wrong_use(
    arguments: list[str], tmp_path: Path
) -> None:
    done = CliRunner().invoke(APP, ["journal", "dump", str(tmp_path), *arguments])
    assert done.exit_code == 2
    assert arguments[0] in done.output


def test_what_a_journal_holds_reads_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    segment = {"file": "segment-1.log", "bytes": 16 << 20, "live_records": 2}
    _show_stat({"disk_bytes": 32 << 20, "oldest_pending": None, "segments": [segment] * 2})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == ["disk_bytes 32.0 MiB", "oldest_pending none", "segments 2"]
    assert lines.count("segment-1.log 16.0 MiB 2") == 2


def test_a_label_that_looks_like_markup_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    timing = Timing(1, 1, 1, 1, 1, 1, 1, 7)
    _show_label(Label(1, "[/]stop", 0, 1.0, None, "[m]", "[1]", "MODEL", "STORED", timing, 9, 2))
    out().print(table("[t]", ["name"], [["[bold]x"]]))
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[/]stop", "[m] [1]", "[t]", "[bold]x"))


def test_units_read_well() -> None:
    spans = [12, 999, 1500, 2_500_000, 600_000_000, 36_000_000_000]
    assert [duration(us) for us in spans] == [
        "12 µs",
        "999 µs",
        "1.5 ms",
        "2.5 s",
        "10 min",
        "10.0 h",
    ]
    assert [bytes_text(n) for n in (10, 2048, 5 << 30)] == ["10 B", "2.0 KiB", "5.0 GiB"]
