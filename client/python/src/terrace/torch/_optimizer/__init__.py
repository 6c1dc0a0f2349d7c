# SPDX-License-Identifier: Apache-2.0
"""The optimizer: its states in Terrace, and its steps over leased memory, batch by batch."""
