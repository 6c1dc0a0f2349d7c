# SPDX-License-Identifier: Apache-2.0
"""A parameter in Terrace: when it is shown, where its gradient goes, and what autograd saves of it."""
