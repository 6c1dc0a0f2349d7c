# SPDX-License-Identifier: Apache-2.0
"""What stands for a tensor in Terrace in a script's hands, and leases when an operation uses it."""
