# SPDX-License-Identifier: Apache-2.0
"""What every suite of pytest's has in common: the garbage of a test is looked for among what the tests made."""

import gc


def pytest_collection_finish():
    """PyTorch brings hundreds of thousands of objects that stay: gc.collect(), which tests call often, passes them over."""
    gc.collect()
    gc.freeze()
