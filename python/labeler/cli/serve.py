"""`labeler serve`: checks the configuration and becomes the service."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from labeler import open_files
from labeler.cli.common import ConfigOption, SetOption, flags_of, help_of
from labeler.cli.served import become
from labeler.config import Facts, Sources, load, service_plan
from labeler.stores import registry

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(help=help_of(serve))(serve)


def serve(
    config: ConfigOption = None,
    sets: SetOption = None,
    state_dir: Annotated[
        str | None, typer.Option("--state-dir", help="Journal, store, id; one a process.")
    ] = None,
    grpc_address: Annotated[
        str | None, typer.Option("--grpc-address", metavar="IP:PORT", help="Where gRPC listens.")
    ] = None,
    admin_address: Annotated[
        str | None, typer.Option("--admin-address", metavar="IP:PORT", help="Metrics and status.")
    ] = None,
    adopt: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="A removed service's, delivered too; may be repeated."),
    ] = None,
) -> None:
    """Serve labels until SIGTERM.

    Settings come from defaults, the file, LABELER_SECTION__NAME variables and flags; the later
    wins. `labeler config show` prints what is in force, and from where.

    Examples:
      labeler serve
      labeler serve --state-dir /var/lib/labeler --grpc-address 0.0.0.0:50051
      labeler serve --config labeler.toml --set path.deadline_ms=100
      labeler serve --adopt /mnt/labeler-2 --adopt /mnt/labeler-3
      LABELER_LOG__LEVEL=debug labeler serve

    Exit codes: 0 after SIGTERM, 64 configuration, 65 journal of a newer program,
    69 port or journal in use, 74 disk.
    """
    flags = flags_of(
        sets,
        state_dir=state_dir,
        transport__grpc_address=grpc_address,
        admin__address=admin_address,
    )
    if adopt:
        flags.append(("--adopt", f"writer.adopt={json.dumps(adopt)}"))
    facts = Facts(open_files.raise_limit(), registry.names())
    become(service_plan(load(Sources(config, None, flags), facts)))
