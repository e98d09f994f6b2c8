"""Reads `console` blocks of Markdown and runs them: lines with `$` are commands, others output.

Output is matched loosely: every expected line must appear, in order; numbers are open, blanks count
as one, `…` and `...` stand for anything. A command is a shell line, continued by a final backslash.
"""

import re
from dataclasses import dataclass, field

_SKIP = re.compile(r"<!--\s*skip:\s*(?P<reason>.*?)\s*-->")
_NUMBER = re.compile(r"(?<![A-Za-z_])\d+(?:[.,]\d+)*")
_ANYTHING = re.compile(r"…|\.\.\.")


@dataclass
class Command:
    """A command with the lines that are expected of it."""

    line: int
    text: str
    expected: list[str] = field(default_factory=list)

    @property
    def serves(self) -> bool:
        """Whether it starts the service, and so never ends by itself."""
        return bool(re.search(r"(^|/)labeler serve\b", self.text))


@dataclass
class Block:
    """A block with its place in the document, and why it is not run (empty: it is)."""

    line: int
    commands: list[Command]
    skip: str


def blocks(markdown: str) -> list[Block]:
    """All console blocks of a document. Errors: `ValueError` for output before a command."""
    found: list[Block] = []
    skip, inside = "", False
    for number, line in enumerate(markdown.splitlines(), 1):
        if inside and line.strip() == "```":
            inside = False
        elif inside:
            _add_line(found[-1], number, line)
        elif line.strip() == "```console":
            found.append(Block(number, [], skip))
            skip, inside = "", True
        elif mark := _SKIP.search(line):
            skip = mark["reason"]
        elif line.strip():
            skip = ""
    return found


def _add_line(block: Block, number: int, line: str) -> None:
    last = block.commands[-1] if block.commands else None
    if last and not last.expected and last.text.endswith("\\"):
        last.text = f"{last.text[:-1].rstrip()} {line.removeprefix('> ').strip()}"
    elif line.startswith("$ "):
        block.commands.append(Command(number, line[2:].strip()))
    elif last is None:
        raise ValueError(f"line {number}: a console block begins with a command (`$ …`)")
    elif line.strip():
        last.expected.append(line)


def missing_line(expected: list[str], output: str) -> str | None:
    """The first expected line that the output has not, in order; None where it has all."""
    lines = iter([_loose(line) for line in output.splitlines()])
    for line in expected:
        pattern = re.compile(".*".join(re.escape(part) for part in _ANYTHING.split(_loose(line))))
        if not any(pattern.search(candidate) for candidate in lines):
            return line
    return None


def _loose(line: str) -> str:
    return " ".join(_NUMBER.sub("0", line).split())
