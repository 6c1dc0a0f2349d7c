# SPDX-License-Identifier: Apache-2.0
"""What of PyTorch no page of its documentation promises, and what its modes do to a tensor. Knows nothing of Terrace."""
