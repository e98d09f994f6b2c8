"""What commands share: options, the configuration of a command, JSON out, the admin port."""

from __future__ import annotations

import inspect
import json
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any

import typer

from labeler.config import Settings, Sources, load
from labeler.errors import ConfigError, UnavailableError

__all__ = [
    "AddressOption",
    "AdminOption",
    "ConfigOption",
    "JsonOption",
    "SetOption",
    "fetch_status",
    "grpc_address",
    "help_of",
    "print_json",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML.")
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


def admin_url(given: str, page: str) -> str:
    """The URL of a page of the admin port."""
    address = given or _reachable(_settings().admin.address, "--admin")
    base = address if "://" in address else f"http://{address}"
    return f"{base.rstrip('/')}{page}"


def _settings() -> Settings:
    """What the environment and the defaults say. Errors: `ConfigError`."""
    return load(Sources()).settings


def _reachable(address: str, flag: str) -> str:
    """An address that listens everywhere is reached on this machine."""
    host, _, port = address.rpartition(":")
    if port == "0":
        raise ConfigError(f"the configured port is 0 (any), say where the service is with {flag}")
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host) + f":{port}"


def fetch_status(given: str) -> dict[str, Any]:
    """`/status` of a running service, asked directly. Errors: `UnavailableError` with what to do.

    A proxy of the environment is for the world outside, and knows no address of this machine.
    """
    url = admin_url(given, "/status")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5) as reply:
            status = json.load(reply)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UnavailableError(
            f"no service answers at {url} ({reason}); start one with `labeler serve`, "
            "or give its admin port with --admin HOST:PORT"
        ) from error
    assert isinstance(status, dict)
    return status


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))
