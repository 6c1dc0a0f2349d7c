# SPDX-License-Identifier: Apache-2.0
"""Which parts of what is trained go to Terrace."""

import os
from typing import Any

from ..._errors import InvalidArgument

PARTS = ("parameters", "gradients", "states")
ALL, AUTO = "all", "auto"
_VARIABLE = "TERRACE_WHAT"
_NAMED = "'parameters', 'gradients' and 'states'"
_OFFERED = f"'{AUTO}', '{ALL}', or a set of {_NAMED}"


def asked_parts(call: str, what: Any) -> str | list[str] | None:
    """What a caller gives as `what`, to be compared and looked at more than once. TypeError for what is no such thing."""
    if what is None or isinstance(what, str):
        return what
    try:
        if isinstance(what, bytes):
            raise TypeError
        return sorted(map(str, what))
    except TypeError:
        raise TypeError(f"{call}: what is {what!r}; it is {_OFFERED}") from None


def what_by_default(call: str) -> str | list[str]:
    """What goes where the caller does not say: what the environment says, separated by commas, or "auto"."""
    said = os.environ.get(_VARIABLE, AUTO).strip()
    named = [one.strip() for one in said.split(",")]
    if said not in (ALL, AUTO) and any(one not in PARTS for one in named):
        raise InvalidArgument(f"{call}: {_VARIABLE} is {said!r}; it is '{AUTO}', '{ALL}', or some of {_NAMED}, separated by "
                              "commas")
    return said if said in (ALL, AUTO) else named


def by_environment(error: InvalidArgument) -> InvalidArgument:
    """The same, where no caller has given what is wrong."""
    if _VARIABLE not in os.environ:
        return error
    return InvalidArgument(f"{error} (what is {os.environ[_VARIABLE]!r} by the environment's {_VARIABLE})")


def wanted_parts(call: str, what: str | list[str], optimizer: object, in_backward: bool) -> frozenset[str]:
    """The parts that a caller asked for. InvalidArgument for what cannot be had."""
    if what == ALL:
        return frozenset(PARTS if optimizer is not None else PARTS[:2])
    named = [what] if isinstance(what, str) else what
    for one in named:
        if one in (ALL, AUTO):
            raise InvalidArgument(f"{call}: what has {one!r} in a set: give what={one!r} by itself")
        if one not in PARTS:
            raise InvalidArgument(f"{call}: what has {one!r}; it is {_OFFERED}")
    if not named:
        raise InvalidArgument(f"{call}: what is empty; it is {_OFFERED}")
    if "states" in named and optimizer is None:
        raise InvalidArgument(f"{call}: what has 'states', and no optimizer is given whose they are: "
                              "offload(model, optimizer, what=...)")
    if in_backward and "parameters" not in named:
        raise InvalidArgument(f"{call}: step_in_backward=True steps parameters that are in Terrace: give what= "
                              "'parameters' as well, or offload without it")
    return frozenset(named)
