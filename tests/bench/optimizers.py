# SPDX-License-Identifier: Apache-2.0
"""The table of optimizers in docs/reference/optimizers.md: every class of torch.optim, pytorch_optimizer, torchao and
bitsandbytes on a small model, in plain PyTorch and in Terrace.

  build/venv/bin/python -B tests/bench/optimizers.py [--write] [LIBRARY...]

Prints the table, or writes it to the page. `deploy/venv test` makes build/venv. It takes about five minutes, most of them for
what torchao compiles. The daemon is build/release/terraced, or $TERRACED.
"""

import argparse
import importlib.metadata
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/optimizers.md"
FIRST = "\n## torch.optim "  # begins the table on the page


def page(libraries: list[str]) -> str:
    """The table."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is there
    sys.path[:0] = [str(ROOT / "tests/terrace_torch"), str(ROOT / "tests/terrace_torch/optimizer")]
    import optimizer_table as table
    import terrace
    import torch

    torch.set_num_threads(1)
    text = []
    with terrace.serve("64MiB", metrics=False) as client:
        for library in libraries or table.LIBRARIES:
            version = importlib.metadata.version(table.DISTRIBUTIONS[library]).partition("+")[0]
            rows = [table.row(library, kind, client) for kind in table.classes(library).values()]
            text.append(f"## {library} {version}\n\n{table.section(rows)}\n")
    return "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("libraries", nargs="*")
    options = parser.parse_args()
    made = page(options.libraries)
    if options.write and not options.libraries:
        PAGE.write_text(f"{PAGE.read_text().partition(FIRST)[0]}\n{made}")
    else:
        print(made)
    return "other numbers" in made


if __name__ == "__main__":
    sys.exit(main())
