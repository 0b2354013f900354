"""Everything PRIMS raises.

    PrimsError
    ├── ConfigError             a setting that is unknown, malformed or out of range
    ├── Refused                 a request that cannot be taken as it is; nothing ran
    │   ├── UnknownSession      the session id is not (or no longer) one of ours
    │   ├── NoSuchFile          the workspace has no file of that name
    │   └── Busy                the queue in front of the machine's capacity is full
    ├── InstallError            packages could not be had; `reason` says of which kind
    ├── IsolationUnavailable    the walls cannot be built here; the message says what to install
    ├── KernelStartError        a kernel did not come up; carries what it wrote to stderr
    ├── TransferError           a file could not be brought in or taken out; `reason` says of which kind
    └── ShuttingDown            the server is on its way out

User code that fails is not in this tree: that is a result. Every message is a sentence that says what to do.
"""

from __future__ import annotations

from typing import Literal

InstallReason = Literal["conflict", "unknown", "no-wheel", "network", "timeout", "other"]
TransferReason = Literal["unknown-host", "unreachable", "untrusted", "stalled", "timeout", "cut", "status", "local"]


class PrimsError(Exception):
    """Base of all errors that PRIMS raises on purpose."""


class ConfigError(PrimsError):
    """A setting is unknown, malformed or out of range."""


class Refused(PrimsError):
    """The request cannot be taken as it is; nothing was run and nothing was changed."""


class UnknownSession(Refused):
    """The session id is not, or no longer, one of this server's."""


class NoSuchFile(Refused):
    """There is no file of that name in the session's workspace."""


class Busy(Refused):
    """As many runs are waiting as the operator allows."""


class InstallError(PrimsError):
    """Packages could not be resolved or installed; the code was not run.

    `reason` is one of `InstallReason`; `log` holds the installer's own words (may be long).
    """

    def __init__(self, message: str, *, reason: InstallReason, log: str = "") -> None:
        super().__init__(message)
        self.reason: InstallReason = reason
        self.log = log


class IsolationUnavailable(PrimsError):
    """No wall that this machine can build was allowed; the message says what to install or do."""


class KernelStartError(PrimsError):
    """A kernel did not come up; `stderr` holds what it wrote."""

    def __init__(self, message: str, *, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr


class TransferError(PrimsError):
    """A file could not be brought in or taken out; nothing was kept, and nothing is claimed to be stored.

    `host` is the other side (never its path or query), `status` and `code` are what it answered, when it did.
    """

    def __init__(
        self, message: str, *, reason: TransferReason, host: str = "", status: int | None = None, code: str = ""
    ) -> None:
        super().__init__(message)
        self.reason: TransferReason = reason
        self.host = host
        self.status = status
        self.code = code


class ShuttingDown(PrimsError):
    """The server is shutting down and takes no new work."""
