"""`labeler label`: one payload from a file or stdin, one label."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from labeler.cli.common import AddressOption, JsonOption, grpc_address, help_of, print_json
from labeler.cli.tables import duration, out
from labeler.errors import InvalidRequestError

if TYPE_CHECKING:
    from labeler.client import Label

__all__ = ["register"]

_PAYLOAD_BYTES_MAX = 4 << 20


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(label))(label)


def label(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="The payload; - is stdin.")] = "-",
    robot: Annotated[str, typer.Option("--robot", help="Who asks.")] = "cli",
    sequence: Annotated[
        int, typer.Option("--sequence", help="Which of its requests; 0 takes the time in µs.")
    ] = 0,
    model: Annotated[str, typer.Option("--model", help="Else the server's default.")] = "",
    timeout_ms: Annotated[int, typer.Option("--timeout-ms", help="Deadline of the call.")] = 2000,
    address: AddressOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a running service for the label of one payload.

    The payload is a JSON array, or numbers separated by commas, spaces or lines.

    Examples:
      labeler label payload.json
      echo 0.438,0.498,3.625,3.645,5.0 | labeler label --model my-model
      labeler label payload.json --robot robot-17 --sequence 42 --json
    """
    values = parse_values(_read(file))
    from labeler.client import Client

    with Client(grpc_address(address), timeout_ms=timeout_ms) as client:
        key = robot, sequence or time.time_ns() // 1000
        answer = client.label(*key, values, model=model or None)
    if as_json:
        print_json(_as_json(answer, robot))
    else:
        _show(answer)


def parse_values(text: str) -> list[float]:
    """The numbers of a payload. Errors: `InvalidRequestError` that names the first that is none."""
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidRequestError(f"the payload is no JSON: {error}") from error
        except RecursionError:
            raise InvalidRequestError("the payload is no flat JSON array of numbers") from None
        flat = all(isinstance(item, int | float) and not isinstance(item, bool) for item in found)
        if not flat:
            raise InvalidRequestError("the payload is no flat JSON array of numbers")
        values = [_finite(item) for item in found]
    else:
        values = [_number(word) for word in re.split(r"[\s,;]+", text.strip()) if word]
    if not values:
        raise InvalidRequestError("the payload is empty, expected the model's number of values")
    if not all(map(math.isfinite, values)):
        raise InvalidRequestError("the payload holds a value that is not finite, or is too large")
    return values


def _finite(item: float) -> float:
    """As a float; an integer that is too large becomes infinite, as its text would."""
    try:
        return float(item)
    except OverflowError:
        return math.inf


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InvalidRequestError(f"{word[:40]!r} in the payload is no number") from None


def _read(file: str) -> str:
    try:
        if file == "-":
            text = sys.stdin.read(_PAYLOAD_BYTES_MAX + 1)
        else:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(_PAYLOAD_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidRequestError(f"the payload {file} cannot be read: {reason}") from error
    if len(text) > _PAYLOAD_BYTES_MAX:
        raise InvalidRequestError(f"the payload is over {_PAYLOAD_BYTES_MAX} bytes")
    return text


def _as_json(answer: Label, robot: str) -> dict[str, Any]:
    fields = asdict(answer)
    scores = fields.pop("scores")
    if scores is not None:
        fields["scores"] = [float(score) for score in scores]
    return {"robot_id": robot, **fields}


def _show(answer: Label) -> None:
    console = out()
    console.print(f"[bold]{escape(answer.label)}[/]  confidence {answer.confidence:.4f}")
    model = escape(f"{answer.model} {answer.version}")
    console.print(f"model      {model}, {answer.source.lower()}")
    console.print(f"kept       {answer.durability.lower()}, sequence {answer.sequence}")
    timing = asdict(answer.timing)
    total = timing.pop("total_us")
    stages = "  ".join(f"{name.removesuffix('_us')} {duration(us)}" for name, us in timing.items())
    console.print(f"server     {duration(total)}: {stages}")
    network = duration(answer.network_us)
    console.print(f"round trip {duration(answer.round_trip_us)}, of it network {network}")
