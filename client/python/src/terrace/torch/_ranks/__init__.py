# SPDX-License-Identifier: Apache-2.0
"""Several ranks: what all of them do or none, what FSDP2 has split, and what they have in common."""
