"""`labeler version`: what is installed."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer

from labeler.cli.common import JsonOption, help_of, print_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(version))(version)


def version(as_json: JsonOption = False) -> None:
    """Print the versions of the service, Python and ONNX Runtime.

    Examples:
      labeler version
      labeler version --json
    """
    from labeler import service

    found = {
        "labeler": service.version(),
        **{name: text for name, text in service.build_info().items() if name != "version"},
        "python": platform.python_version(),
        "onnxruntime": _installed("onnxruntime"),
    }
    if as_json:
        print_json(found)
    else:
        for name, text in found.items():
            print(f"{name:12} {text}")


def _installed(package: str) -> str:
    try:
        return installed(package)
    except PackageNotFoundError:
        return "not installed"
