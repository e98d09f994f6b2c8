"""Configuration errors come all at once: setting, value, origin, expectation, nearest name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labeler.config import Facts, Sources, all_settings, core_json, effective, load, state_path
from labeler.config.checks import NOTHING_KNOWN
from labeler.config.units import format_bytes, parse_bytes
from labeler.errors import ConfigError, RuntimeLibraryError


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
            "stores.dynamodb.tabel --set unknown",
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


def test_a_stronger_source_wins_and_its_origin_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "labeler.toml"
    file.write_text("[path]\ndeadline_ms = 100\nqueue_rows_max = 500\nbulk_queue_rows_max = 600\n")
    environ = {"LABELER_PATH__DEADLINE_MS": "200", "LABELER_PATH__QUEUE_ROWS_MAX": "700"}
    flags = (("--set", "path.deadline_ms=250"), ("--grpc-address", "transport.grpc_address=[::]:0"))
    config = load(Sources(file, environ, flags))
    shown = {item.setting: (item.value, item.origin) for item in effective(config)}
    assert shown["path.deadline_ms"] == (250, "--set")
    assert shown["path.queue_rows_max"] == (700, "LABELER_PATH__QUEUE_ROWS_MAX")
    assert shown["path.bulk_queue_rows_max"] == (600, f"{file}:4")
    assert shown["transport.grpc_address"] == ("[::]:0", "--grpc-address")
    assert shown["path.dedupe_window_ms"] == (60_000, "default")
    assert list(shown) == list(all_settings())


def test_threads_that_are_auto_say_from_where_their_number_is() -> None:
    config = load(Sources(environ={}))
    threads = next(i for i in effective(config) if i.setting == "transport.threads")
    assert threads.text == f"auto ({config.threads().count})"
    assert "affinity" in threads.origin


def test_the_core_gets_every_value_resolved_under_the_schema_s_names(tmp_path: Path) -> None:
    library = tmp_path / "libonnxruntime.so.1"
    library.write_bytes(b"")
    flags = [
        ("--set", f"models.runtime_library={library}"),
        ("--set", f"state_dir={tmp_path}/state"),
        ("--set", "models.repositories=/srv/models"),
        ("--set", "journal.segment_bytes=32MiB"),
    ]
    config = load(Sources(None, {}, flags))
    values = json.loads(core_json(config))
    sections = {"transport", "path", "journal", "models", "control", "drain"}
    assert set(values) == {"state_dir", *sections}
    names = {name.split(".")[1] for name in all_settings() if name.startswith("path.")}
    assert set(values["path"]) == names
    assert values["journal"]["directory"] == str(state_path(config) / "journal")
    assert values["journal"]["segment_bytes"] == 32 << 20
    assert isinstance(values["transport"]["threads"], int)
    assert values["models"]["runtime_library"] == str(library)
    assert values["models"]["repositories"][0] == "/srv/models"
    assert values["models"]["repositories"][-1].endswith("models/packaged")


def test_a_runtime_library_that_is_no_file_is_named(tmp_path: Path) -> None:
    config = load(Sources(None, {}, [("--set", f"models.runtime_library={tmp_path}/none.so")]))
    with pytest.raises(RuntimeLibraryError, match=r"none\.so"):
        core_json(config)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("17", 17), ("64MiB", 64 << 20), ("1 GiB", 1 << 30), ("2TiB", 2 << 40), ("5B", 5)],
)
def test_bytes_are_whole_numbers_with_binary_units(text: str, count: int) -> None:
    assert parse_bytes(text) == count
    assert parse_bytes(format_bytes(count)) == count


@pytest.mark.parametrize("text", ["64MB", "8 gig", "1.5GiB", "-1", "", "MiB", "1e9"])
def test_other_forms_of_bytes_are_left_for_the_type_check_to_refuse(text: str) -> None:
    assert parse_bytes(text) == text
