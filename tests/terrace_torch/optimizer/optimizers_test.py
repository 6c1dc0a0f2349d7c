# SPDX-License-Identifier: Apache-2.0
"""Shows that what docs/reference/optimizers.md says of PyTorch's optimizers and of pytorch_optimizer's is so: that each class
comes to the same bits over leased memory, a batch for each parameter, or is refused, and why. tests/bench/optimizers.py makes
the page, with the libraries that are not in build/venv."""

import os
import shutil
import tempfile

import pytest
import terrace
import torch
from optimizer_table import classes, row, section
from python_fixtures import ROOT

PAGE = ROOT / "docs/reference/optimizers.md"


@pytest.fixture(scope="module")
def client():
    folder = tempfile.mkdtemp(prefix="e2e-", dir=os.environ["TERRACE_BUILD"])
    try:
        with terrace.serve("64MiB", block=f"{folder}:128MiB", metrics=False) as served:
            yield served
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("library", ["torch.optim", "pytorch_optimizer"])
def test_the_page_says_what_becomes_of_each_class(client, library):
    torch.set_num_threads(1)
    said = PAGE.read_text().split(f"\n## {library} ")[1].split("\n## ")[0].split("\n", 1)[1].strip()
    rows = [row(library, kind, client) for kind in classes(library).values()]
    assert section(rows) == said, "tests/bench/optimizers.py --write makes the page anew"
    assert not any(one.verdict == "other numbers" for one in rows)
