"""What the documents show is what happens: every console block of README.md and docs/ is run."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.console import Block, blocks, missing_line
from tests.support.docs import Reader
from tests.support.repo import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DEFAULT_PORTS = (50051, 9464)


def cases() -> Iterator[object]:
    """One case a block, so that each is reported by its document and line."""
    for document in DOCUMENTS:
        name = str(document.relative_to(ROOT))
        for block in blocks(document.read_text()):
            yield pytest.param(name, block, id=f"{name}:{block.line}")


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    """The reader of the document at hand, made when its first block is run; one at a time."""
    for port in DEFAULT_PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is taken, so that the documents' service cannot start")
    at_hand: dict[str, Reader] = {}
    yield at_hand
    for reader in at_hand.values():
        reader.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("document", "block"), list(cases()))
def test_a_console_block_shows_what_happens(
    document: str,
    block: Block,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if block.skip:
        pytest.skip(f"{document}:{block.line} says: {block.skip}")
    readers: dict[str, Reader] = request.getfixturevalue("readers")
    if document not in readers:
        for done in list(readers):
            readers.pop(done).close()
        readers[document] = Reader(tmp_path_factory.mktemp(Path(document).stem))
    problems = readers[document].follow(block)
    assert not problems, "\n".join(problems)


def test_a_block_is_read_with_its_commands_and_their_output() -> None:
    [block] = blocks("text\n```console\n$ labeler \\\n>   status\nok\n\n$ true\n```\n")
    assert [(c.text, c.expected) for c in block.commands] == [
        ("labeler status", ["ok"]),
        ("true", []),
    ]


def test_only_the_block_below_the_comment_is_skipped() -> None:
    text = "<!-- skip: needs grpcurl -->\n```console\n$ a\n```\n\n```console\n$ b\n```\n"
    assert [block.skip for block in blocks(text)] == ["needs grpcurl", ""]


def test_a_block_of_another_language_is_no_console_block() -> None:
    assert blocks("```python\n$ a\n```\n") == []


def test_output_before_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2"):
        blocks("```console\nok\n```\n")


@pytest.mark.parametrize(
    ("expected", "output"),
    [
        (["p99  1.8 ms"], "p99 20.25   ms"),
        (["a", "c"], "a\nb\nc"),
        (["stored … of 10"], "stored 9 rows of 1,000"),
        ([], "anything"),
    ],
)
def test_output_is_matched_loosely(expected: list[str], output: str) -> None:
    assert missing_line(expected, output) is None


@pytest.mark.parametrize(
    ("expected", "output"), [(["b", "a"], "a\nb"), (["p99 ms"], "p50 ms"), (["x"], "")]
)
def test_output_that_differs_in_words_or_order_is_found(expected: list[str], output: str) -> None:
    assert missing_line(expected, output) is not None
