# SPDX-License-Identifier: Apache-2.0
"""Entry: offload() and init(), and what they refuse."""
