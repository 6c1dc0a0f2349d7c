# SPDX-License-Identifier: Apache-2.0
"""What is leased: tensors of a job in Terrace, the PyTorch tensors that show them, and the order of their use."""
