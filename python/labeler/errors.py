"""Every error of labeler, one class for each variant of the core's error enum.

The client raises them from statuses, the Rust bridge by name, the control side directly. Each is
made as `Class(message, **fields)`, with a default for every field; `message` says what happened and
what to do. Pure Python: it loads nothing, so that the client and the core can both rely on it.
"""

from typing import ClassVar

__all__ = [
    "ConfigError",
    "DeadlinePassedError",
    "DiskError",
    "ForkedError",
    "InUseError",
    "InternalError",
    "InvalidRequestError",
    "JournalVersionError",
    "KeyReusedError",
    "LabelNotFoundError",
    "LabelerError",
    "ModelInvalidError",
    "ModelNotFoundError",
    "OverloadedError",
    "RequestCancelledError",
    "RuntimeLibraryError",
    "StoppedError",
    "UnavailableError",
]


class LabelerError(Exception):
    """The base of all errors that labeler raises.

    `message`: what happened, for people. `sequence`: the request it answers, None where it answers
    none or the sender gave none. `attempts`: how often the client tried, 0 outside of calls.
    """

    exit_code: ClassVar[int] = 1
    """What `labeler` exits with when this error ends it."""

    attempts: int = 0

    def __init__(self, message: str, *, sequence: int | None = None) -> None:
        """Keep `message`, and the `sequence` of the request that failed."""
        super().__init__(message)
        self.message = message
        self.sequence = sequence


class InvalidRequestError(LabelerError):
    """A request field does not hold what it must: `field` holds `value`, `expected` was wanted."""

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        value: str = "",
        expected: str = "",
        sequence: int | None = None,
    ) -> None:
        """Keep what was wrong, as text."""
        super().__init__(message, sequence=sequence)
        self.field = field
        self.value = value
        self.expected = expected


class ModelNotFoundError(LabelerError):
    """No such model or version is loaded; the message says which are."""


class LabelNotFoundError(LabelerError):
    """No label under this key is known to the service that was asked; another pod may hold it."""


class KeyReusedError(LabelerError):
    """The same robot and sequence were used for another payload or model."""


class OverloadedError(LabelerError):
    """A bound is reached, nothing was computed; wait `retry_after_ms` at least, 0 where unsaid."""

    def __init__(
        self, message: str, *, retry_after_ms: int = 0, sequence: int | None = None
    ) -> None:
        """Keep the least time to wait, in ms."""
        super().__init__(message, sequence=sequence)
        self.retry_after_ms = retry_after_ms


class DeadlinePassedError(LabelerError):
    """The time was over. `label_exists`: a label was made all the same, and is being journaled."""

    def __init__(
        self, message: str, *, label_exists: bool = False, sequence: int | None = None
    ) -> None:
        """Keep whether a label exists under the request's key."""
        super().__init__(message, sequence=sequence)
        self.label_exists = label_exists


class RequestCancelledError(LabelerError):
    """The request was cancelled before it was answered."""


class UnavailableError(LabelerError):
    """The service can't be reached, or takes no work; it is safe to send the same request again.

    `unanswered`: after a stream's end, the sequences that were sent and got no result, in order.
    """

    def __init__(
        self, message: str, *, unanswered: tuple[int, ...] = (), sequence: int | None = None
    ) -> None:
        """Keep the sequences that a stream left without a result."""
        super().__init__(message, sequence=sequence)
        self.unanswered = unanswered


class InternalError(LabelerError):
    """A part of the service broke; the same request may be sent again."""


class ModelInvalidError(LabelerError):
    """A model version can't be loaded; the message says why and what to do."""

    exit_code = 64


class RuntimeLibraryError(LabelerError):
    """ONNX Runtime is missing, too old or not a library; the message names the path tried."""

    exit_code = 64


class InUseError(LabelerError):
    """A port or a journal is taken by another process."""

    exit_code = 69


class JournalVersionError(LabelerError):
    """The journal was written by a newer program; nothing was touched."""

    exit_code = 65


class DiskError(LabelerError):
    """A file operation failed; the message names operation, file and the system's reason."""

    exit_code = 74


class ConfigError(LabelerError):
    """Settings or client options that can't be worked with; `setting` is the first of them."""

    exit_code = 64

    def __init__(self, message: str, *, setting: str = "", sequence: int | None = None) -> None:
        """Keep the name of the first wrong setting."""
        super().__init__(message, sequence=sequence)
        self.setting = setting


class StoppedError(LabelerError):
    """The engine or the client was stopped, and does no more work."""


class ForkedError(LabelerError):
    """Used in a forked child, where the threads of the parent's engine or client do not exist."""
