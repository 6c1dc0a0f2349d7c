# SPDX-License-Identifier: Apache-2.0
"""Which parts of what is trained go to Terrace."""

from typing import Any

from ..._errors import InvalidArgument

PARTS = ("parameters", "gradients", "states")
_NAMED = "'parameters', 'gradients' and 'states'"


def wanted_parts(call: str, what: Any, optimizer: object, in_backward: bool) -> frozenset[str]:
    """What a caller asked for by `what`; None: all that there is. InvalidArgument for what cannot be had."""
    if what is None:
        return frozenset(PARTS if optimizer is not None else PARTS[:2])
    try:
        named = [what] if isinstance(what, str) else list(what)
    except TypeError:
        raise TypeError(f"{call}: what is {what!r}; it is a set of {_NAMED}") from None
    for one in named:
        if one not in PARTS:
            raise InvalidArgument(f"{call}: what has {one!r}; it is a set of {_NAMED}")
    if not named:
        raise InvalidArgument(f"{call}: what is empty; it is a set of {_NAMED}, at least one of them")
    if "states" in named and optimizer is None:
        raise InvalidArgument(f"{call}: what has 'states', and no optimizer is given whose they are: "
                              "offload(model, optimizer, what=...)")
    if in_backward and "parameters" not in named:
        raise InvalidArgument(f"{call}: step_in_backward=True steps parameters that are in Terrace: give what= "
                              "'parameters' as well, or offload without it")
    return frozenset(named)
