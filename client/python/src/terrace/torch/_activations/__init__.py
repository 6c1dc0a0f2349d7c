# SPDX-License-Identifier: Apache-2.0
"""Activations: what autograd saves, laid away until backward uses it."""
