# SPDX-License-Identifier: Apache-2.0
"""What a device is asked: its current stream, waits, its allocator's cache, and whether it captures a graph."""
