# SPDX-License-Identifier: Apache-2.0
"""The table of optimizers in docs/reference/optimizers.md: every class of torch.optim, pytorch_optimizer, torchao and
bitsandbytes on a small model, in plain PyTorch and in Terrace.

  python3 tests/bench/optimizers.py [--write] [LIBRARY...]

Prints the table, or writes it to the page. The first run makes build/optimizers/venv (200 MiB) of deploy/requirements-optimizers.txt over
build/venv, which `deploy/venv test` makes. It takes about five minutes, most of them for what torchao compiles. The daemon is
build/release/terraced, or $TERRACED.
"""

import argparse
import hashlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / "build/optimizers"
PYTHON = HOME / "venv/bin/python"
LIST = ROOT / "deploy/requirements-optimizers.txt"
PAGE = ROOT / "docs/reference/optimizers.md"
FIRST = "\n## torch.optim "  # begins the table on the page


def make_venv() -> None:
    """What the table needs beside build/venv."""
    stamp, wanted = HOME / "stamp", hashlib.sha256(LIST.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    HOME.mkdir(parents=True, exist_ok=True)
    base = ROOT / "build/venv"
    subprocess.run([base / "bin/python", "-m", "venv", "--clear", HOME / "venv"], check=True)
    site = next((HOME / "venv/lib").glob("python*/site-packages"))
    (site / "base.pth").write_text(str(next((base / "lib").glob("python*/site-packages"))))
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", LIST], check=True)
    stamp.write_text(wanted)


def page(libraries: list[str]) -> str:
    """Runs within that venv."""
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import python_optimizer_table as table
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
    if pathlib.Path(sys.prefix).resolve() != (HOME / "venv").resolve():
        make_venv()
        return subprocess.run([PYTHON, "-B", __file__, *sys.argv[1:]], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode
    made = page(options.libraries)
    if options.write and not options.libraries:
        PAGE.write_text(f"{PAGE.read_text().partition(FIRST)[0]}\n{made}")
    else:
        print(made)
    return "other numbers" in made


if __name__ == "__main__":
    sys.exit(main())
