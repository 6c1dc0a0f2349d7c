# SPDX-License-Identifier: Apache-2.0
"""The client that a call works with: the one it was given, or one of the process that is opened when first needed."""

import os
import threading

from ..._client import Client
from ..._errors import FailedPrecondition, Unavailable

_lock = threading.Lock()
_opened: tuple[int, Client] | None = None  # by which process


def client_for(call: str, client: Client | None) -> Client:
    """The client given, or the process's own one.

    call: how the caller is named in errors. TypeError for what is no client, FailedPrecondition for one that is closed,
    Unavailable where none was given and no daemon is there.
    """
    if client is None:
        return _own(call)
    if not isinstance(client, Client):
        raise TypeError(f"{call}: client is {client!r}; it is a terrace.Client, or None for the process's own")
    if client.session == 0:
        raise FailedPrecondition(f"{call}: the client is closed; give one that is open")
    return client


def opened() -> Client | None:
    """The process's own client, if it has one already."""
    return None if _opened is None or _opened[0] != os.getpid() or _opened[1].session == 0 else _opened[1]


def _own(call: str) -> Client:
    global _opened
    with _lock:
        if _opened is None or _opened[0] != os.getpid() or _opened[1].session == 0:
            try:
                _opened = (os.getpid(), Client())
            except Unavailable as error:
                raise Unavailable(f"{call}: no client was given, and none could be opened: {error}") from error
        return _opened[1]
