# SPDX-License-Identifier: Apache-2.0
"""What the tests of PyTorch on a real GPU have in common. They are skipped where there is none."""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable

import pytest
import terrace
import torch

if not torch.cuda.is_available():
    pytest.skip("no GPU, or PyTorch has no CUDA", allow_module_level=True)

LIMIT_SECONDS = 60


def wait_until(holds: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < limit, f"waited {LIMIT_SECONDS} s for {what}"
        time.sleep(0.001)


def serve_gpu(hbm: str, memory: str, folder: pathlib.Path) -> contextlib.AbstractContextManager[terrace.Client]:
    """A daemon with a tier of the first GPU, and a block tier in $TERRACE_TEST_FOLDER, or the folder."""
    warm = torch.zeros(8, device="cuda")  # so that segments are pinned as they come
    warm.add_(1).mul_(2)  # the first call of a kernel loads it, and waits for the GPU
    block = f"{os.environ.get('TERRACE_TEST_FOLDER') or folder}:2GiB"
    return terrace.serve(memory, device=hbm, gpu="cuda:0", block=block, metrics=False)
