# SPDX-License-Identifier: Apache-2.0
"""Terrace for PyTorch scripts: what a script trains lives in the node's tiers, and is leased when it is used."""

from ._managed import is_managed

__all__ = ["is_managed"]
