# SPDX-License-Identifier: Apache-2.0
"""Shows that losses are those of plain PyTorch, bit for bit, in every combination of what is offloaded (parameters,
gradients, optimizer states, activations; each alone and all), precision, checkpointing and accumulation: the
matrix of tests/bench/train_peers --quick."""

import dataclasses
import os
import sys
import tempfile

import pytest
import torch
from python_fixtures import MIB, ROOT

sys.path[:0] = [str(ROOT / "tests/bench/train"), str(ROOT / "client/python/examples")]

from sizes import QUICK
from worker_matrix import Matrix, combinations

STEPS = QUICK.matrix_steps


@pytest.fixture(scope="module")
def matrix():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="e2e-", dir=os.environ["TERRACE_BUILD"]) as folder, Matrix({
            "shape": dataclasses.asdict(QUICK.matrix), "memory": 4 * MIB, "block": 256 * MIB, "folder": folder,
            "steps": STEPS}) as made:
        yield made


@pytest.mark.parametrize("index", range(len(combinations())))
def test_losses_are_those_without_terrace(matrix, index):
    said = matrix.run(index)
    assert said["differs"] is None, f"{said['words']}: from step {said['differs']} on"
    assert said["steps"] >= STEPS
    assert matrix.client.leased_bytes == 0
