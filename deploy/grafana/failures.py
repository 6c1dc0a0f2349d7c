# SPDX-License-Identifier: Apache-2.0
"""What both views show of failures, of the nodes that are selected."""

from panels import Number


def grew(counter: str, selected: str) -> str:
    """How much a counter grew within the dashboard's time."""
    return f"sum(increase({counter}{{{selected}}}[$__range]))"


def out_of_use(selected: str) -> tuple[Number, ...]:
    """Tiers that do not do all that they are for."""
    return (Number("Tiers that do not serve", "A lost GPU, or block files that a former daemon still holds.", "short",
                   f"sum(1 - terrace_tier_serving{{{selected}}})", bad=True),
            Number("Tiers that take no writes", "No space, a read-only file system, a device that is gone.", "short",
                   f"sum(1 - terrace_tier_writable{{{selected}}})", bad=True))


def lost(selected: str) -> tuple[Number, ...]:
    """What was lost, and what the devices failed."""
    return (Number("Chunks that came back wrong", "The tensors concerned are DATA_LOSS.", "short",
                   grew("terrace_checksum_failures_total", selected), bad=True),
            Number("Tensors lost with a GPU", "They are DATA_LOSS, too.", "short",
                   grew("terrace_lost_tensors_total", selected), bad=True),
            Number("I/O errors", "Transfers that a tier's device failed.", "short",
                   grew("terrace_io_errors_total", selected), bad=True))


def refused(selected: str) -> Number:
    """Peers; there is no series before the first."""
    return Number("Connections refused", "Peers that were turned away, within the time shown.", "short",
                  f"{grew('terrace_refused_connections_total', selected)} or vector(0)")
