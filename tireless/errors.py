"""Every error tireless raises on purpose, as one tree; a failing agent is an Outcome, never an error.

    TirelessError
    ├── ConfigError                    the operator's files or flags are wrong        exit 3
    ├── UsageError                     the command line asks for what makes no sense  exit 2
    ├── Refused                        policy says no; carries a reason code          exit 7
    ├── NotKnown                       no such job, lane, repository, issue           exit 4
    ├── ForgeError
    │   ├── ForgeUnavailable           transient: timeout, 5xx, no connection         exit 5
    │   │   └── RateLimited            429 or 503 with Retry-After
    │   ├── ForgeDenied                401, 403
    │   ├── NotFound                   404                                            exit 4
    │   ├── Moved                      301, 307, 308: resolve the repository by id
    │   ├── ForgeRejected              any other 4xx: the forge understood and said no
    │   └── ForgeGarbled               an answer that does not parse
    ├── StoreError
    │   ├── StoreUnavailable           transient: no connection, restart, deadlock    exit 5
    │   ├── SchemaMismatch             database older or newer than the code          exit 3
    │   └── LeaseLost                  the write named a claim that is no longer ours
    ├── WorkspaceError                 a git command or a directory of a run failed
    │   └── Unworkable                 the repository is at fault, and waiting mends nothing
    └── EmbeddedError                  the private PostgreSQL could not be started    exit 5

Every message says what was being done, to what, and what to do now.
"""

from __future__ import annotations


class TirelessError(Exception):
    """Base of the tree. `exit_code` is what the CLI returns when it reaches the top."""

    exit_code = 1


class ConfigError(TirelessError):
    """The configuration is wrong; the message lists every fault found."""

    exit_code = 3


class UsageError(TirelessError):
    """The arguments of a command contradict each other or name nothing."""

    exit_code = 2


class Refused(TirelessError):
    """Policy forbids the act. `code` is a stable reason code, the message names the next step."""

    exit_code = 7

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotKnown(TirelessError):
    """The database holds no such job, lane, issue or repository."""

    exit_code = 4


class ForgeError(TirelessError):
    """A call to the forge failed. `status` is the HTTP status, or None when there was no answer."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ForgeUnavailable(ForgeError):
    """Transient: no connection, timeout, 5xx. Says nothing about what exists."""

    exit_code = 5


class RateLimited(ForgeUnavailable):
    """The forge asked us to wait `retry_after_s` seconds (None: it did not say how long)."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


class ForgeDenied(ForgeError):
    """401 or 403: the token is bad, its scope or its user's rights do not reach.

    `scopes`: one of them is what the token lacks, in the forge's words and for people; empty when it did not say.
    """

    def __init__(self, message: str, *, status: int | None = None, scopes: tuple[str, ...] = ()) -> None:
        super().__init__(message, status=status)
        self.scopes = scopes


class NotFound(ForgeError):
    """404: absent, or invisible to this token; the two look the same."""

    exit_code = 4


class Moved(ForgeError):
    """The forge redirected: the repository or its owner was renamed. `to`: owner and name now, if it said so."""

    def __init__(self, message: str, *, status: int | None = None, to: tuple[str, str] | None = None) -> None:
        super().__init__(message, status=status)
        self.to = to


class ForgeRejected(ForgeError):
    """The forge understood the call and refused it (400, 409, 412, 413, 422, 423)."""


class ForgeGarbled(ForgeError):
    """The answer does not have the shape it must have; never read as "gone"."""


class StoreError(TirelessError):
    """A statement failed for a reason that repeating will not mend."""


class StoreUnavailable(StoreError):
    """Transient: the connection is gone, the server restarts, a deadlock or serialization failure was reported."""

    exit_code = 5


class SchemaMismatch(StoreError):
    """The database's migrations and this code's do not match."""

    exit_code = 3


class LeaseLost(StoreError):
    """The write named a claim token that no longer holds the job; nothing was written."""


class WorkspaceError(TirelessError):
    """Preparing, reading or removing the files of a run failed; the message is already redacted."""


class Unworkable(WorkspaceError):
    """This repository cannot be worked on until a person changes it or its access; the message says what to change.

    Never raised for a forge that is away: no connection, a timeout, 401, 429, 5xx, a redirect.
    """


class EmbeddedError(TirelessError):
    """The private PostgreSQL could not be started or reached."""

    exit_code = 5
