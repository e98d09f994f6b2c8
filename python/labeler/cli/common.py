"""What commands share: options, the configuration of a command, JSON out, the admin port."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from labeler.config import Settings, Sources, load, packaged_models
from labeler.errors import ConfigError, InvalidRequestError

__all__ = [
    "AddressOption",
    "AdminOption",
    "ConfigOption",
    "JsonOption",
    "SetOption",
    "admin_address",
    "columns_of",
    "grpc_address",
    "help_of",
    "model_roots",
    "print_json",
    "seconds_of",
    "target_addresses",
]

_SECONDS_MAX = 168 * 3600

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
# `readable` would make a file without permission a wrong call (exit code 2), unlike a missing one.
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in TOML.", readable=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.NAME=VALUE", help="A setting; may be repeated."),
]
AddressOption = Annotated[
    str,
    typer.Option(
        "--address", metavar="HOST:PORT", help="The service; else `transport.grpc_address`."
    ),
]
AdminOption = Annotated[
    str,
    typer.Option("--admin", metavar="HOST:PORT", help="Its admin port; else `admin.address`."),
]


def help_of(command: Callable[..., None]) -> str:
    """A command's help: its docstring, whose examples and exit codes keep their lines."""
    text = inspect.getdoc(command) or ""
    # `\\b` tells the help formatter to leave a paragraph as it stands.
    return text.replace("\n\nExamples:", "\n\n\b\nExamples:").replace(
        "\n\nExit codes:", "\n\n\b\nExit codes:"
    )


def flags_of(sets: Sequence[str] | None, **settings: str | None) -> list[tuple[str, str]]:
    """Flags in the form of `labeler.config.Sources`; a command's own flags win over --set.

    `settings` are its own flags, `state_dir` for --state-dir; a dot is two underscores here.
    """
    flags = [("--set", text) for text in sets or ()]
    for name, value in settings.items():
        if value is not None:
            setting = name.replace("__", ".")
            shown = {"transport.grpc_address": "grpc-address", "admin.address": "admin-address"}
            flag = "--" + shown.get(setting, setting.replace("_", "-"))
            flags.append((flag, f"{setting}={value}"))
    return flags


def grpc_address(given: str) -> str:
    """Where the service is: as given, else where the configuration says that it listens."""
    return given or _reachable(_settings().transport.grpc_address, "--address")


def admin_address(given: str) -> str:
    """Its admin port: as given, else where the configuration says that it listens."""
    return given or _reachable(_settings().admin.address, "--admin")


def target_addresses(address: str, admin: str) -> tuple[str, str]:
    """GRPC and admin port of one service.

    Of a service that is named by its gRPC port alone no admin port is known: the configured one
    may be another's, and its figures would be taken for this one's.
    """
    return grpc_address(address), "" if address and not admin else admin_address(admin)


def seconds_of(text: str, flag: str) -> float:
    """`5s`, `500ms` or `2m`. Errors: `InvalidRequestError` names the flag."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdigit():
            seconds = float(number) * factor
            if 0 < seconds <= _SECONDS_MAX:
                return seconds
    raise InvalidRequestError(f"{flag} {text!r}, expected a time up to 168h, such as 5s or 2m")


def columns_of(text: str) -> list[str]:
    """Names of columns, separated by commas."""
    return [column.strip() for column in text.split(",") if column.strip()]


def model_roots() -> list[Path]:
    """The configured repositories of models, then the packaged one. Errors: `ConfigError`."""
    return [*map(Path, _settings().models.repositories), packaged_models()]


def _settings() -> Settings:
    """What the environment and the defaults say. Errors: `ConfigError`."""
    return load(Sources()).settings


def _reachable(address: str, flag: str) -> str:
    """An address that listens everywhere is reached on this machine."""
    host, _, port = address.rpartition(":")
    if port == "0":
        raise ConfigError(f"the configured port is 0 (any), say where the service is with {flag}")
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host) + f":{port}"


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))
