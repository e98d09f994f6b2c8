"""Every error has one class, which anyone can make from a message, and the process's exit code."""

import inspect
import pickle
import re
from pathlib import Path

import pytest

from labeler import errors

ROOT = Path(__file__).resolve().parents[2]
CLASSES = [getattr(errors, name) for name in errors.__all__]
RENAMED = {
    "Invalid": "InvalidRequestError",
    # `CancelledError` is what asyncio calls something else.
    "Cancelled": "RequestCancelledError",
}
ONLY_IN_PYTHON = {"LabelerError", "ForkedError"}
# The control side's refusal on its way out: each kind of it has the class it was made from.
ONLY_IN_THE_CORE = {"Refused"}
EXIT_CODES = {
    "ConfigError": 64,
    "DiskError": 74,
    "InUseError": 69,
    "JournalVersionError": 65,
    "ModelInvalidError": 64,
    "RuntimeLibraryError": 64,
}


def test_each_variant_of_the_core_has_one_class_and_no_class_is_left_over() -> None:
    source = (ROOT / "rust_core" / "src" / "error.rs").read_text()
    body = source[source.index("pub enum Error") :].partition("\n}\n")[0]
    variants = re.findall(r"^    ([A-Z]\w+)(?: \{|,)", body, re.MULTILINE)

    expected = [
        RENAMED.get(variant, f"{variant}Error")
        for variant in variants
        if variant not in ONLY_IN_THE_CORE
    ]

    assert sorted([*expected, *ONLY_IN_PYTHON]) == sorted(errors.__all__)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_message_alone_makes_an_error(kind: type[errors.LabelerError]) -> None:
    error = kind("what happened")

    assert (error.message, str(error), error.sequence) == ("what happened", "what happened", None)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_has_a_name_a_type_and_a_default(kind: type[errors.LabelerError]) -> None:
    parameters = list(inspect.signature(kind).parameters.values())

    assert parameters[0].name == "message"
    for field in parameters[1:]:
        assert field.kind is inspect.Parameter.KEYWORD_ONLY
        assert field.annotation is not inspect.Parameter.empty
        assert field.default is not inspect.Parameter.empty


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_crosses_a_process_border_whole(kind: type[errors.LabelerError]) -> None:
    error = kind("what happened", sequence=7)
    error.attempts = 2

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), vars(copy)) == (kind, vars(error))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_errors_that_end_the_start_have_their_exit_code(kind: type[errors.LabelerError]) -> None:
    assert kind.exit_code == EXIT_CODES.get(kind.__name__, 1)
