# SPDX-License-Identifier: Apache-2.0
"""One exception class for each of the daemon's error codes; the class says what the caller should do."""


class Error(Exception):
    """A call failed; the message says what was wrong and what would be right.

    code: the name of the error's code, as gRPC prints it.
    system_error: the errno at the root of it; 0 where there was none.
    """

    code = "INTERNAL"
    system_error = 0


class Cancelled(Error):
    """The caller gave up; nothing happened."""

    code = "CANCELLED"


class InvalidArgument(Error, ValueError):
    """Never valid: mend the call."""

    code = "INVALID_ARGUMENT"


class DeadlineExceeded(Error, TimeoutError):
    """Waited as long as it was told to: try again, or wait longer."""

    code = "DEADLINE_EXCEEDED"


class NotFound(Error):
    """No such tensor, session or place for this caller."""

    code = "NOT_FOUND"


class AlreadyExists(Error):
    """The name is taken: use another, or delete that one first."""

    code = "ALREADY_EXISTS"


class PermissionDenied(Error):
    """This caller may not: ask the operator."""

    code = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    """Over a quota, or full: release something, or ask for less."""

    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error):
    """Not in the present state: do what the message names first."""

    code = "FAILED_PRECONDITION"


class Aborted(Error):
    """The tensor was deleted: create it again."""

    code = "ABORTED"


class Unimplemented(Error):
    """This daemon has no such operation."""

    code = "UNIMPLEMENTED"


class Internal(Error):
    """A defect of Terrace, or of the system under it: see the daemon's log."""

    code = "INTERNAL"


class Unavailable(Error):
    """The daemon is draining, or not there: try another time."""

    code = "UNAVAILABLE"


class DataLoss(Error):
    """The tensor's bytes are gone: this tensor alone must be written again."""

    code = "DATA_LOSS"


class Unauthenticated(Error):
    """The token is not of an open session: open one."""

    code = "UNAUTHENTICATED"


# By the codes' numbers, which are gRPC's.
_CLASSES: dict[int, type[Error]] = {
    1: Cancelled,
    3: InvalidArgument,
    4: DeadlineExceeded,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: ResourceExhausted,
    9: FailedPrecondition,
    10: Aborted,
    12: Unimplemented,
    13: Internal,
    14: Unavailable,
    15: DataLoss,
    16: Unauthenticated,
}


def from_code(code: int, message: str, system_error: int) -> Error:
    """The exception for an error of the C++ client."""
    error = _CLASSES.get(code, Internal)(message)
    error.system_error = system_error
    return error
