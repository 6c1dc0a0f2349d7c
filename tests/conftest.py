# SPDX-License-Identifier: Apache-2.0
"""What every suite of pytest's has in common: the fixtures' folders, for the processes that a test starts too; and the garbage
of a test is looked for among what the tests made."""

import gc
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
FIXTURES = [str(HERE / name) for name in ("e2e", "terrace_torch", "terrace_torch/optimizer")]
sys.path[:0] = FIXTURES
os.environ["TERRACE_WHAT"] = "all"  # small models have room where they are, and are to be offloaded all the same
os.environ["PYTHONPATH"] = os.pathsep.join([*FIXTURES, *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_collection_finish():
    """PyTorch brings hundreds of thousands of objects that stay: gc.collect(), which tests call often, passes them over."""
    gc.collect()
    gc.freeze()
