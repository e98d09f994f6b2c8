"""Labels for robots: the client, what it returns and what it raises.

Importing this package loads the errors only: no `_core`, no server dependency, no gRPC, no thread.
The client is loaded by the first use of its name, since the server imports this package too.
"""

from typing import TYPE_CHECKING

from labeler.errors import (
    ConfigError,
    DeadlinePassedError,
    DiskError,
    ForkedError,
    InternalError,
    InUseError,
    InvalidRequestError,
    JournalVersionError,
    KeyReusedError,
    LabelerError,
    LabelNotFoundError,
    ModelInvalidError,
    ModelNotFoundError,
    OverloadedError,
    RequestCancelledError,
    RuntimeLibraryError,
    StoppedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from labeler.client import AsyncClient, Client, Label, LabelQuery, StoredLabel

    __version__: str

__all__ = [
    "AsyncClient",
    "Client",
    "ConfigError",
    "DeadlinePassedError",
    "DiskError",
    "ForkedError",
    "InUseError",
    "InternalError",
    "InvalidRequestError",
    "JournalVersionError",
    "KeyReusedError",
    "Label",
    "LabelNotFoundError",
    "LabelQuery",
    "LabelerError",
    "ModelInvalidError",
    "ModelNotFoundError",
    "OverloadedError",
    "RequestCancelledError",
    "RuntimeLibraryError",
    "StoppedError",
    "StoredLabel",
    "UnavailableError",
    "__version__",
]

_FROM_CLIENT = frozenset({"AsyncClient", "Client", "Label", "LabelQuery", "StoredLabel"})


def __getattr__(name: str) -> object:
    """Load the client, or read the installed version, when first asked for (PEP 562)."""
    if name in _FROM_CLIENT:
        import labeler.client

        value: object = getattr(labeler.client, name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("labeler")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the promised names, loaded or not."""
    return sorted(__all__)
