# SPDX-License-Identifier: Apache-2.0
"""The environment that the contenders run in: build/peers, on top of build/venv's packages, so that PyTorch is the same
for all; and what could not be installed there."""

import json
import os
import pathlib
import subprocess
import sys

PACKAGES = {  # in this order
    "build tools": ["wheel", "setuptools", "packaging", "psutil", "py-cpuinfo", "ninja"],
    "deepspeed": ["deepspeed==0.19.8"],
    "accelerate": ["accelerate==1.15.0"],
    "torchtune": ["torchtune==0.6.1", "torchao==0.14.1"],
}
OPTIONS = {"deepspeed": ["--no-build-isolation"]}
FREE_BYTES_MIN = 3 << 30
WARM_UP = {
    # What it compiles when it is first used: contenders must find it made, who have not the memory to compile.
    "deepspeed": "from deepspeed.ops.op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder\n"
                 "AsyncIOBuilder().load(); CPUAdamBuilder().load(); ShareMemCommBuilder().load()",
    "accelerate": "import accelerate",
    "torchtune": "from torchtune.training import OffloadActivations",
}
_LAST = 400  # characters of an error


class Peers:
    """The environment: its interpreter, and, of each peer that is not there, why."""

    def __init__(self, folder: pathlib.Path, missing: dict[str, str]):
        self.python = str(folder / "bin/python")
        self.missing = missing


def _environment(folder: pathlib.Path) -> dict[str, str]:
    return os.environ | {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                         "MAX_JOBS": str(len(os.sched_getaffinity(0))),  # a compiler of these takes a GiB
                         "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
                         "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def prepare(folder: pathlib.Path, say) -> Peers:
    """Makes the environment, or finds it made: then this takes a second. PyTorch and NumPy stay build/venv's."""
    stamp = folder / "peers.json"
    wanted = {"packages": PACKAGES, "tried": WARM_UP, "base": sys.prefix}
    os.environ |= _environment(folder)
    if stamp.exists():
        made = json.loads(stamp.read_text())
        if made["wanted"] == wanted:
            return Peers(folder, made["missing"])
    say(f"making {folder}: peers are installed with pip, once (some minutes)")
    _make(folder)
    missing = {}
    for peer, packages in PACKAGES.items():
        why = _install(folder, peer, packages)
        if why is not None:
            say(f"{peer} cannot be had: {why}")
            missing[peer] = why
    stamp.write_text(json.dumps({"wanted": wanted, "missing": missing}, indent=1) + "\n")
    return Peers(folder, missing)


def _make(folder: pathlib.Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    packages = next(pathlib.Path(path) for path in sys.path if path.startswith(sys.prefix) and
                    path.endswith("site-packages"))
    here = next((folder / "lib").glob("python*/site-packages"))
    (here / "base.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    pinned = subprocess.run([sys.executable, "-c", "import numpy, torch; print(f'torch=={torch.__version__}\\n"
                             "numpy=={numpy.__version__}')"], capture_output=True, text=True, check=True).stdout
    (folder / "constraints.txt").write_text(pinned)


def _install(folder: pathlib.Path, peer: str, packages: list[str]) -> str | None:
    """Installs a peer and tries it; why that failed."""
    python = folder / "bin/python"
    for command in ([python, "-m", "pip", "install", "-q", "-c", folder / "constraints.txt", *OPTIONS.get(peer, []),
                     *packages], [python, "-c", WARM_UP.get(peer, "")]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            return (lines[-1] if lines else f"status {done.returncode}")[-_LAST:]
    return None
