"""Who may import whom: a new arrow is a design change, and its commit says why."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import rust_source
from tests.support.borders import Use, lines_with, module_of, uses
from tests.support.repo import ROOT, project_files, read

BELOW = {"error", "faults", "fields", "label", "limits", "stages", "config", "clock", "wakes"}

# Arrows between the core's parts; each may also use itself and what is below.
ARROWS: dict[str, set[str]] = {
    "lib": {"engine", "transport", "path", "journal", "models", "proto", *BELOW},
    # wiring, and what hangs on it: changes to what is served, and the reading of it all
    "engine": {"transport", "path", "journal", "models", "proto", *BELOW}
    | {"serving", "control", "account", "identity", "life", "row", "supervise"}
    | {"records", "starting"},
    "serving": {"path", "models", "supervise", "proto", *BELOW},
    "snapshot": {"engine", "path", "account", *BELOW},
    # the way of a label
    "transport": {"path", "models", "control", "account", "row", "supervise", "proto", *BELOW},
    "path": {"journal", "models", "row", "row_record", "supervise", "proto", *BELOW},
    "journal": {"proto", *BELOW},
    "models": BELOW,
    # what stands at the journal: its progress at the start, and what it hands out
    "starting": {"journal", "supervise", *BELOW},
    "records": {"journal", "proto", *BELOW},
    "handover": {"journal", "records", "identity", "supervise", "proto", *BELOW},
    # what they share, and what they hand to each other
    "control": {"proto", *BELOW},
    "row_record": {"row", "proto", *BELOW},  # the journal's, which a remembered row is kept as
    **dict.fromkeys(("row", "account", "identity", "life", "supervise"), BELOW),
    **dict.fromkeys(BELOW - {"config"}, BELOW),
    "config": {"journal", *BELOW},  # the journal's part of the settings is the journal's struct
}

# A version of a model holds its queue, so that a batch holds one version.
STAGES_THAT_MAY_MEET = {("served", "batch")}

# Types of the path that its entry hands out: the version that answered is named in the reply.
PART_OF_THE_ENTRY = {"served"}

# Crates that only some parts may know.
GRPC = ("tonic", "tonic_health", "tonic_reflection", "tonic_types", "hyper", "hyper_util")
HTTP = ("h2", "http")
KNOWN_BY: dict[str, frozenset[str]] = {
    **dict.fromkeys(GRPC + HTTP, frozenset({"lib", "engine", "transport"})),
    "ort": frozenset({"models"}),
    "pyo3": frozenset(),
}

# Threads are started by the supervisor, so that the end of one is noticed.
STARTS_THREADS = {
    "supervise.rs",
    "models/runtime.rs",  # loads ONNX Runtime within a time limit, before there is an engine
}

# Files of the path that may not look at a clock: time is passed in.
TIMELESS = "path/"

ALL = {
    name: read(name)
    for name in project_files()
    if name.startswith("rust_core/src/") and name.endswith(".rs")
}
CORE = sorted(ALL.keys() - rust_source.test_files(ALL))

# Of the core the sender knows the messages, and it never enters the label path.
SENDER = [
    name
    for name in project_files()
    if name.startswith("rust_core/loadgen/src/") and name.endswith(".rs")
]
SENDER_MAY_KNOW = ("labeler_core", "proto")
SENDER_MAY_NOT_KNOW = {"pyo3", "ort"}

# Who may enter the bridge, by module of it.
BRIDGE = {
    "labeler._core": ("labeler.service",),
    "labeler._core.loadgen": ("labeler.fleet.drive",),
}


def part_of(module: tuple[str, ...]) -> str:
    return module[0] if module else "lib"


def wrong_arrows(found: list[Use], parts: set[str]) -> list[str]:
    """Uses that no arrow allows. `parts`: the crate's modules; a re-exported type is none."""
    wrong = []
    for use in found:
        user = part_of(use.user)
        if use.path[0] == "crate" and len(use.path) > 1 and use.path[1] in parts:
            allowed = ARROWS.get(user, set()) | {user}
            if use.path[1] not in allowed:
                wrong.append(
                    f"{use.file} uses {'::'.join(use.path)}: no arrow {user} -> {use.path[1]}"
                )
        elif user not in KNOWN_BY.get(use.path[0], frozenset({user})):
            wrong.append(f"{use.file} uses {use.path[0]}, which {user} may not know")
    return wrong


def stages_that_meet(found: list[Use], stages: set[str]) -> list[str]:
    """Files of the path that name another stage; only the path's entry, mod.rs, knows them all."""
    return [
        f"{use.file} uses {'::'.join(use.path)}: stages meet only in the engine"
        for use in found
        if use.user[:1] == ("path",) and len(use.user) > 1
        if use.path[:2] == ("crate", "path") and len(use.path) > 2
        if use.path[2] in stages - {use.user[1]}
        if (use.user[1], use.path[2]) not in STAGES_THAT_MAY_MEET
    ]


def entries_passed_by(found: list[Use], stages: set[str]) -> list[str]:
    """Files of the transport that name a stage instead of the path's entry."""
    return [
        f"{use.file} uses {'::'.join(use.path)}: the path's entry is crate::path"
        for use in found
        if use.user[:1] == ("transport",)
        if use.path[:2] == ("crate", "path") and len(use.path) > 2
        if use.path[2] in stages - PART_OF_THE_ENTRY
    ]


def all_uses() -> list[Use]:
    return [use for name in CORE for use in uses(name, read(name))]


def modules_below(*prefix: str) -> set[str]:
    modules = [module_of(name.removeprefix("rust_core/src/")) for name in CORE]
    depth = len(prefix)
    return {m[depth] for m in modules if m[:depth] == prefix and len(m) > depth}


def test_the_core_has_no_arrow_but_those_of_the_table() -> None:
    wrong = wrong_arrows(all_uses(), modules_below() | {"proto"})
    assert not wrong, "\n".join(wrong)


def test_every_part_of_the_core_stands_in_the_table() -> None:
    assert modules_below() <= set(ARROWS), "a new part needs its arrows in this table"


def test_stages_meet_only_in_the_engine() -> None:
    wrong = stages_that_meet(all_uses(), modules_below("path"))
    assert not wrong, "\n".join(wrong)


def test_transport_enters_the_path_by_its_entry() -> None:
    wrong = entries_passed_by(all_uses(), modules_below("path"))
    assert not wrong, "\n".join(wrong)


def test_the_path_and_the_journal_know_the_record_and_nothing_else_of_the_protos() -> None:
    wrong = [
        use
        for use in all_uses()
        if use.user[:1] in (("path",), ("journal",)) and use.path[:2] == ("crate", "proto")
        if use.path[2:3] != ("journal",)
    ]
    assert not wrong


def test_only_the_supervisor_starts_threads() -> None:
    starts = {
        name.removeprefix("rust_core/src/")
        for name in CORE
        if lines_with(read(name), r"\bthread::(spawn|Builder)\b|\bspawn_blocking\b")
    }
    assert starts <= STARTS_THREADS


def test_the_core_reads_no_environment() -> None:
    assert [name for name in CORE if lines_with(read(name), r"\benv::(var|vars|set_var)\b")] == []


def test_the_path_reads_no_wall_clock() -> None:
    path = [name for name in CORE if name.startswith(f"rust_core/src/{TIMELESS}")]
    assert [name for name in path if lines_with(read(name), r"\bSystemTime::now\b")] == []


def sender_reaches_too_far(name: str, text: str) -> list[str]:
    """Uses by which a file of the sender knows more of the core than its messages."""
    return [
        f"{use.file} uses {'::'.join(use.path)}"
        for use in uses(name, text)
        if use.path[0] in SENDER_MAY_NOT_KNOW
        or (use.path[0] == SENDER_MAY_KNOW[0] and use.path[:2] != SENDER_MAY_KNOW)
    ]


def test_the_sender_knows_the_messages_of_the_core_and_nothing_else() -> None:
    assert SENDER
    wrong = [wrong for name in SENDER for wrong in sender_reaches_too_far(name, read(name))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("use labeler_core::proto::{self, journal::Record};", 0),
        ("use labeler_core::{proto, path::Path};", 1),
        ("fn f() -> labeler_core::Error { pyo3::todo() }", 2),
    ],
)
def test_a_sender_that_reaches_too_far_is_found(text: str, count: int) -> None:
    assert len(sender_reaches_too_far("rust_core/loadgen/src/run.rs", text)) == count


def test_the_bridge_is_entered_only_where_the_sides_are_wired() -> None:
    wrong = [
        f"{module} imports {entered}"
        for name in project_files()
        if name.startswith("python/labeler/") and name.endswith(".py")
        for module in [name.removeprefix("python/").removesuffix(".py").replace("/", ".")]
        for entered in bridge_imports(read(name))
        if not module.startswith(BRIDGE[entered])
    ]
    assert not wrong, "\n".join(wrong)


def bridge_imports(text: str) -> set[str]:
    """Which modules of the bridge a file of Python imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            # Who imports a module from the bridge does not thereby enter the bridge itself.
            if node.module == "labeler._core":
                if {f"labeler._core.{alias.name}" for alias in node.names} <= BRIDGE.keys():
                    found.discard("labeler._core")
    return found & BRIDGE.keys()


@pytest.mark.parametrize(
    ("text", "entered"),
    [
        ("from labeler._core import Engine", {"labeler._core"}),
        ("from labeler import _core", {"labeler._core"}),
        ("from labeler._core import loadgen", {"labeler._core.loadgen"}),
        ("import labeler._core.loadgen", {"labeler._core.loadgen"}),
        ("from labeler._core.loadgen import Sender", {"labeler._core.loadgen"}),
        ("from labeler._core import Engine, loadgen", {"labeler._core", "labeler._core.loadgen"}),
        ("import labeler", set()),
    ],
)
def test_an_import_of_the_bridge_is_found(text: str, entered: set[str]) -> None:
    assert bridge_imports(text) == entered


def test_the_import_contracts_of_the_package_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("journal/log.rs", "use crate::path::Path;", "no arrow journal -> path"),
        ("models/mod.rs", "fn f() -> tonic::Status { todo() }", "models may not know"),
        ("transport/unary.rs", "use super::super::journal::Log;", "no arrow transport -> journal"),
        ("path/infer.rs", "use pyo3::prelude::*;", "path may not know"),
    ],
)
def test_a_wrong_arrow_is_found(file: str, text: str, wrong: str) -> None:
    parts = {"path", "journal", "models", "transport"}
    [found] = wrong_arrows(uses(f"rust_core/src/{file}", text), parts)
    assert wrong in found


@pytest.mark.parametrize(
    "text",
    [
        "use crate::journal::{Log, Record}; use crate::error::Error;",
        "#[cfg(test)] mod tests { use crate::transport::server; }",
        "// crate::transport::server is who calls\nuse std::sync::Arc;",
    ],
)
def test_a_right_arrow_is_left_in_peace(text: str) -> None:
    parts = {"path", "journal", "error", "transport"}
    assert wrong_arrows(uses("rust_core/src/path/journal.rs", text), parts) == []


def test_two_stages_that_meet_are_found() -> None:
    found = uses("rust_core/src/path/infer.rs", "use super::batch::Batch; use super::Row;")
    assert len(stages_that_meet(found, {"batch", "infer"})) == 1


def test_a_stage_named_by_the_transport_is_found() -> None:
    found = uses("rust_core/src/transport/unary.rs", "use crate::path::{Path, batch::Batch};")
    assert len(entries_passed_by(found, {"batch", "infer"})) == 1
