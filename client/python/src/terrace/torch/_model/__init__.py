# SPDX-License-Identifier: Apache-2.0
"""The model: modules that lease as they run, and PyTorch's functions on what is not leased."""
