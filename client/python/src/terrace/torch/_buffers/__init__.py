# SPDX-License-Identifier: Apache-2.0
"""Buffers that never move, and batches that are read ahead into them."""
