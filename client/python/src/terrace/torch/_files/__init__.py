# SPDX-License-Identifier: Apache-2.0
"""Files: a job that is saved and loaded a tensor at a time."""
