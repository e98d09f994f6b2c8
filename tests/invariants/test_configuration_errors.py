"""Invariant 10: configuration errors stop the start, all reported at once, exit code 64.

Each with its setting, value, origin and expectation, or the nearest name; nothing falls back in
silence and nothing is created. First through `load`, then through the real command. Cases S62, W68.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from labeler.config import Facts, Sources, all_settings, load
from labeler.config.checks import NOTHING_KNOWN
from labeler.errors import ConfigError
from tests.support.service import StartService, run_labeler


def problems(
    file: str | None = None,
    environ: dict[str, str] | None = None,
    flags: tuple[str, ...] = (),
    facts: Facts = NOTHING_KNOWN,
    *,
    folder: Path | None = None,
) -> list[str]:
    """The lines that a wrong configuration is answered with; the first is the headline."""
    path = None
    if file is not None:
        assert folder is not None
        path = folder / "labeler.toml"
        path.write_text(file)
    sets = tuple(("--set", flag) for flag in flags)
    with pytest.raises(ConfigError) as caught:
        load(Sources(path, environ or {}, sets), facts)
    assert caught.value.exit_code == 64
    return caught.value.message.splitlines()


def test_all_errors_come_at_once_with_value_origin_and_expectation(tmp_path: Path) -> None:
    lines = problems(
        "[path]\nbatch_rows_max = 0\n\n[journl]\nsegment_bytes = 1\n",
        {"LABELER_JOURNAL__DISK_BYTES_MAX": "8 gig"},
        ("stores.dynamodb.tabel=x", "path.queue_row_max=5"),
        folder=tmp_path,
    )
    assert lines[0] == "configuration: 5 errors, nothing was started"
    text = [" ".join(line.split()) for line in lines[1:]]
    file = tmp_path / "labeler.toml"
    assert sorted(text) == sorted(
        [
            f"path.batch_rows_max = 0 {file}:2 expected 1 to 4096",
            'journal.disk_bytes_max = "8 gig" LABELER_JOURNAL__DISK_BYTES_MAX '
            "expected bytes, such as 4GiB, from 8MiB to 16TiB",
            "stores.dynamodb.tabel --set unknown; did you mean `dynamodb.table`?",
            "path.queue_row_max --set unknown; did you mean `path.queue_rows_max`?",
            f"journl.segment_bytes {file}:5 unknown; did you mean `journal.segment_bytes`?",
        ]
    )


def test_columns_are_aligned(tmp_path: Path) -> None:
    lines = problems("[path]\nbatch_rows_max = 0\ndeadline_ms = -1\n", folder=tmp_path)
    assert len({line.index(" expected") for line in lines[1:]}) == 1


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("path.deadline_ms", "5s", "expected 1 to 600000"),
        ("path.deadline_ms", "-1", "expected 1 to 600000"),
        ("path.deadline_ms", "1.5", "expected 1 to 600000"),
        ("path.deadline_ms", "true", "expected 1 to 600000"),
        ("path.durability", "journaled", "expected one of BUFFERED, JOURNALED, STORED"),
        ("transport.grpc_address", "localhost:1", "expected IP:port"),
        ("transport.grpc_address", "127.0.0.1:65536", "expected IP:port"),
        ("transport.grpc_address", "300.0.0.1:1", "expected IP:port"),
        ("transport.threads", "0", 'expected "auto", or 1 to 256'),
        ("transport.message_bytes_max", "4MB", "expected bytes, such as 4MiB"),
        ("models.load", "a b", 'expected a list of models, such as ["kiva-floor@1"]'),
        ("models.load", "[1]", "expected a list of models"),
        ("log.level", "INFO", "expected one of trace, debug, info, warn, error"),
        ("state_dir", "", "expected a path"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(
    setting: str, value: str, expected: str
) -> None:
    lines = problems(flags=(f"{setting}={value}",))
    assert lines[0] == "configuration: 1 error, nothing was started"
    assert lines[1].startswith(f"  {setting} = ")
    assert expected in lines[1]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[path]\ndeadline_ms = "150"\n', "path.deadline_ms"),
        ("[path]\ndeadline_ms = true\n", "path.deadline_ms"),
        ("[path]\ndeadline_ms = 150.0\n", "path.deadline_ms"),
        ('[models]\nload = "kiva-floor"\n', "models.load"),
        ("[journal]\nsegment_bytes = 16.5\n", "journal.segment_bytes"),
        ("path = 5\n", "path"),
        ("[state_dir]\nx = 1\n", "state_dir"),
    ],
)
def test_a_value_of_the_wrong_type_in_the_file_is_an_error(
    tmp_path: Path, text: str, name: str
) -> None:
    lines = problems(text, folder=tmp_path)
    assert len(lines) == 2
    assert lines[1].startswith(f"  {name} = ")


def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path: Path) -> None:
    lines = problems("[path\n", folder=tmp_path)
    assert "line 1" in lines[1]


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(Sources(tmp_path / "none.toml", {}))


def test_a_misspelt_variable_is_an_error_with_the_nearest_name() -> None:
    lines = problems(environ={"LABELER_PATH__DEADLIN_MS": "5", "LABELER_PATH_DEADLINE_MS": "5"})
    assert len(lines) == 3
    assert all("did you mean `LABELER_PATH__DEADLINE_MS`?" in line for line in lines[1:])


def test_variables_that_a_cluster_adds_for_a_service_are_none_of_ours() -> None:
    environ = {
        "LABELER_SERVICE_HOST": "10.0.0.11",
        "LABELER_SERVICE_PORT": "50051",
        "LABELER_SERVICE_PORT_GRPC": "50051",
        "LABELER_PORT": "tcp://10.0.0.11:50051",
        "LABELER_PORT_50051_TCP": "tcp://10.0.0.11:50051",
        "LABELER_PORT_50051_TCP_ADDR": "10.0.0.11",
        "LABELER_PORT_50051_TCP_PORT": "50051",
        "LABELER_GRPC_PORT_50051_TCP_PROTO": "tcp",
        "LABELER_GRPC_PORT": "udp://10.0.0.11:50051",
    }
    assert load(Sources(None, environ)).origins == {}


def test_variables_of_the_test_suite_are_none_of_ours() -> None:
    names = ["REQUIRE_DATA", "REQUIRE_ORT", "DATA_DIR", "TEST_SEED", "TEST_ORT_LIBRARY"]
    environ = {f"LABELER_{name}": "x" for name in names}
    assert load(Sources(None, environ)).origins == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LABELER_PORT", "50052"),
        ("LABELER_GRPC_PORT", "6000"),
        ("LABELER_SERVICE_PORT", "tcp"),
        ("LABELER_PORT_50051_TCP_PROTO", "6"),
        ("LABELER_DATA", "/data"),
    ],
)
def test_a_variable_that_only_looks_like_a_clusters_is_told_to_set_nothing(
    name: str, value: str
) -> None:
    [_, line] = problems(environ={name: value})
    assert line.startswith(f"  {name} ")
    assert "unknown" in line


@pytest.mark.parametrize(
    ("flags", "blamed", "relation"),
    [
        (("path.queue_rows_max=100",), "path.queue_rows_max", "path.batch_rows_max = 256"),
        (("path.bulk_queue_rows_max=100",), "path.bulk_queue_rows_max", "batch_rows_max"),
        (("journal.disk_bytes_max=32MiB",), "journal.disk_bytes_max", "journal.segment_bytes"),
        (("journal.segment_bytes=1GiB", "journal.disk_bytes_max=2GiB"), "segment_bytes", "512MiB"),
        (("path.deadline_margin_us=150000",), "path.deadline_margin_us", "path.deadline_ms"),
        (("path.delay_us_max=145000",), "path.delay_us_max", "145000 us"),
        (("path.dedupe_window_ms=100",), "path.dedupe_window_ms", "at least path.deadline_ms"),
        (("transport.stream_window_bytes=1MiB",), "stream_window_bytes", "200MiB"),
        (("transport.streams_per_connection_max=300",), "streams_per_connection_max", "16MiB"),
        (("models.default=other",), "models.default", "a model of models.load (kiva-floor)"),
        (("models.load=kiva-floor,kiva-floor@2",), "models.load", "twice"),
        (("writer.retry_ms_min=6000",), "writer.retry_ms_min", "writer.retry_ms_max (5000)"),
        (("drain.lame_duck_ms=10001",), "drain.lame_duck_ms", "half of drain.budget_ms (10000)"),
        (("admin.address=127.0.0.1:50051",), "admin.address", "another port"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(
    flags: tuple[str, ...], blamed: str, relation: str
) -> None:
    lines = problems(flags=flags)
    assert any(blamed in line.split(" = ")[0] and relation in line for line in lines[1:]), lines


def test_relations_are_reported_beside_wrong_values() -> None:
    lines = problems(
        flags=("path.deadline_ms=x", "path.batch_rows_max=4096", "writer.store=sqlit"),
        facts=Facts(stores=["sqlite"]),
    )
    assert lines[0] == "configuration: 2 errors, nothing was started"
    assert "did you mean `sqlite`?" in lines[2]


def test_the_connection_limit_must_fit_the_limit_on_open_files() -> None:
    lines = problems(facts=Facts(open_files_max=1024))
    assert "transport.connections_max = 4096" in lines[1]
    assert "768" in lines[1]
    assert "ulimit -n" in lines[1]


ODD_FILES = {
    "nested too deeply": ("x = " + "[" * 5000, "TOML: maximum recursion depth"),
    "a number of 5,000 digits": ("x = " + "1" * 5000, "TOML: Exceeds the limit"),
    "a key twice": ("[path]\ndeadline_ms = 5\ndeadline_ms = 6\n", "at line 3"),
    "a table twice": ("[path]\n[path]\n", "at line 2"),
    "an array of tables": ("[[path]]\ndeadline_ms = 5\n", "expected a table [path]"),
    "a NUL": ("[path]\n\0\n", "at line 2"),
    "a date": ("[path]\ndeadline_ms = 2020-01-01\n", "expected 1 to 600000"),
    "not a number": ("[path]\ndeadline_ms = nan\n", "expected 1 to 600000"),
    "beyond 64 bits": ("[path]\ndeadline_ms = 99999999999999999999\n", "expected 1 to 600000"),
}


@pytest.mark.parametrize("case", ODD_FILES.values(), ids=ODD_FILES.keys())
def test_an_odd_file_is_one_error_and_never_a_traceback(
    tmp_path: Path, case: tuple[str, str]
) -> None:
    text, expected = case
    [_, line] = problems(text, folder=tmp_path)
    assert str(tmp_path / "labeler.toml") in line
    assert expected in line


@pytest.mark.parametrize("value", ["[" * 100_000, "{}", '{"a": 1}', "[1]", "[[]]", "a b"])
def test_a_list_that_is_none_is_refused(value: str) -> None:
    [_, line] = problems(environ={"LABELER_MODELS__LOAD": value})
    assert line.startswith("  models.load = ")
    assert "expected a list of models" in line


def test_a_variable_in_lower_case_is_told_its_name() -> None:
    [_, line] = problems(environ={"labeler_path__deadline_ms": "5"})
    assert "did you mean `LABELER_PATH__DEADLINE_MS`?" in line
    assert load(Sources(None, {"labeler_version": "1.0"})).origins == {}


@pytest.mark.parametrize("flag", ["", "=5", "path.deadline_ms", "  = 5"])
def test_a_flag_that_sets_nothing_is_refused(flag: str) -> None:
    [_, line] = problems(flags=(flag,))
    assert line.startswith("  --set = ")
    assert "expected section.name=value" in line


def test_three_errors_of_a_file_are_told_at_once_and_nothing_is_created(tmp_path: Path) -> None:
    file = tmp_path / "labeler.toml"
    file.write_text(
        '[path]\ndeadline_ms = "5s"\nqueue_rows_max = -1\n\n[jurnal]\nsegment_bytes = 1\n'
    )
    state = tmp_path / "state"

    done = run_labeler("serve", "--config", str(file), state_dir=str(state))

    assert done.returncode == 64
    lines = [" ".join(line.split()) for line in done.stderr.splitlines()]
    assert "configuration: 3 errors, nothing was started" in lines[0]
    assert lines[1:4] == [
        f"jurnal.segment_bytes {file}:6 unknown; did you mean `journal.segment_bytes`?",
        f'path.deadline_ms = "5s" {file}:2 expected 1 to 600000',
        f"path.queue_rows_max = -1 {file}:3 expected 1 to 1000000",
    ]
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == [file]


UNREADABLE = {
    "missing": ("none.toml", "No such file or directory"),
    "a folder": (".", "Is a directory"),
    "below a file": ("binary.toml/x.toml", "Not a directory"),
    "no text": ("binary.toml", "it is not UTF-8"),
}


@pytest.mark.parametrize("case", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, case: tuple[str, str]
) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    name, reason = case
    path = tmp_path / name
    with pytest.raises(ConfigError) as refused:
        load(Sources(path, {}))
    [_, line] = refused.value.message.splitlines()
    assert line == f"  --config = {path}  flag  expected a readable file: {reason}"


def test_a_file_without_permission_is_named_with_the_reason_and_nothing_is_created(
    start_service: StartService, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.toml"
    locked.write_text("")
    locked.chmod(0)
    # Root reads everything while it has its capabilities; without them it is an ordinary user.
    prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    service = start_service(ready=False, prefix=prefix, args=("--config", str(locked)))
    assert service.wait() == 64
    [line] = [line for line in service.stderr if "--config" in line]
    assert line == f"  --config = {locked}  flag  expected a readable file: Permission denied"
    assert not service.state_dir.exists()


FOREIGN = {
    "PORT": "9",
    "HOST": "0.0.0.0",
    "REGION": "nowhere",
    "GRPC_ADDRESS": "0.0.0.0:9",
    "STATE_DIR": "/nonexistent",
    "TRANSPORT__GRPC_ADDRESS": "0.0.0.0:9",
    "LOG_LEVEL": "trace",
    "DEADLINE_MS": "1",
    "PATH__DEADLINE_MS": "1",
}


def test_variables_without_our_prefix_set_nothing(tmp_path: Path) -> None:
    file = tmp_path / "labeler.toml"
    file.write_text("[path]\ndeadline_ms = 100\n")
    config = load(Sources(file, FOREIGN))
    assert config.origins == {"path.deadline_ms": f"{file}:2"}
    assert config == load(Sources(file, {}))


def test_every_setting_may_come_from_each_source_and_the_stronger_wins(tmp_path: Path) -> None:
    """Defaults, file, environment, flags: for each setting, by its own default as the value."""
    known = all_settings()
    for name, setting in known.items():
        text = _toml(setting.default)
        section, _, inner = name.rpartition(".")
        file = tmp_path / "labeler.toml"
        file.write_text(f"[{section}]\n{inner} = {text}\n" if section else f"{inner} = {text}\n")
        variable = "LABELER_" + name.replace(".", "__").upper()
        plain = text.strip('"') if isinstance(setting.default, str) else text
        origins = []
        for environ, flags in (
            ({}, ()),
            ({variable: plain}, ()),
            ({variable: plain}, (("--set", f"{name}={plain}"),)),
        ):
            origins.append(load(Sources(file, environ, flags)).origins[name])
        line = 2 if section else 1
        assert origins == [f"{file}:{line}", variable, "--set"], name


def _toml(value: object) -> str:
    return json.dumps(value)
