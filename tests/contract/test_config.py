"""Settings: which source wins, what the core is handed, how bytes are written.

What is wrong with settings is in `tests/invariants/test_configuration_errors.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labeler.config import (
    Sources,
    all_settings,
    core_json,
    effective,
    load,
    state_path,
    store_settings,
)
from labeler.config.units import format_bytes, parse_bytes
from labeler.errors import ConfigError, RuntimeLibraryError


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


@pytest.mark.parametrize(
    ("file", "environ", "flags"),
    [
        ('[writer]\nstore = "rows"\nstore_settings = ["path=/srv/a=b", "sync=1"]\n', {}, []),
        (
            "",
            {
                "LABELER_WRITER__STORE": "rows",
                "LABELER_WRITER__STORE_SETTINGS": "path=/srv/a=b,sync=1",
            },
            [],
        ),
        (
            "",
            {},
            ["writer.store=rows", 'writer.store_settings=["path=/srv/a=b", " sync =1"]'],
        ),
    ],
    ids=["file", "environment", "flags"],
)
def test_a_store_of_another_package_gets_its_settings_from_every_source(
    tmp_path: Path, file: str, environ: dict[str, str], flags: list[str]
) -> None:
    path = tmp_path / "labeler.toml"
    path.write_text(file)
    config = load(Sources(path, environ, [("--set", flag) for flag in flags]))
    assert store_settings(config.settings) == {"path": "/srv/a=b", "sync": "1"}


def test_a_built_in_store_gets_its_section(tmp_path: Path) -> None:
    config = load(Sources(None, {}, [("--set", f"sqlite.path={tmp_path}/rows")]))
    assert store_settings(config.settings) == {"path": f"{tmp_path}/rows"}


def test_a_store_named_like_another_section_does_not_get_that() -> None:
    config = load(Sources(None, {}, [("--set", "writer.store=drain")]))
    assert store_settings(config.settings) == {}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["writer.store=rows", "writer.store_settings=path"], "expected a list of name=value"),
        (["writer.store=rows", "writer.store_settings==x"], "expected a list of name=value"),
        (["writer.store_settings=path=x"], r"the store sqlite has a section \[sqlite\]"),
    ],
)
def test_store_settings_that_nobody_would_read_are_refused(flags: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(Sources(None, {}, [("--set", flag) for flag in flags]))
