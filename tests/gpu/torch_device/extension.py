# SPDX-License-Identifier: Apache-2.0
"""Builds the test device's extension with the headers of the PyTorch that runs this, where it is not there already:
extension.py FAKE_CUDA FOLDER. One translation unit, since PyTorch's headers are most of the work. Gives its path."""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import torch
from torch.utils import cpp_extension

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[1]
PROTO = TESTS.parent / "proto"
NAME = "_fakegpu"
COMPILER = os.environ.get("CXX", "g++")


def _sources() -> list[pathlib.Path]:
    return sorted(HERE.glob("*.cc"))


def _command(folder: pathlib.Path) -> list[str]:
    ccache = shutil.which("ccache")
    includes = [f"-isystem{path}" for path in (*cpp_extension.include_paths(), sysconfig.get_paths()["include"])]
    return [*([ccache] if ccache else []), COMPILER, "-std=c++23", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wshadow", "-Werror",
            f"-I{TESTS}", f"-I{PROTO}", *includes, f"-DTORCH_EXTENSION_NAME={NAME}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            "-c", str(folder / "all.cc"), "-o", str(folder / "all.o")]


def _link(fake: pathlib.Path, folder: pathlib.Path, made: pathlib.Path) -> list[str]:
    libraries = cpp_extension.library_paths()
    return [COMPILER, "-shared", str(folder / "all.o"), "-o", str(made), str(fake), f"-Wl,-rpath,{fake.parent}",
            *(f"-L{path}" for path in libraries), *(f"-Wl,-rpath,{path}" for path in libraries),
            "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]


def _fingerprint(command: list[str]) -> str:
    seen = hashlib.sha256(" ".join(command).encode() + torch.__version__.encode())
    for path in sorted([*HERE.glob("*.cc"), *HERE.glob("*.h"), *(TESTS / "gpu/fake_cuda").glob("*.h"),
                        *(PROTO / "cuda").glob("*.h")]):
        seen.update(path.read_bytes())
    return seen.hexdigest()


def build(fake: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The extension, linked to a fake driver. Thread-safe, and between processes."""
    folder.mkdir(parents=True, exist_ok=True)
    made, stamp = folder / f"{NAME}.so", folder / "stamp"
    command = _command(folder)
    fingerprint = _fingerprint([*command, *_link(fake, folder, made)])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists() and stamp.exists() and stamp.read_text() == fingerprint:
            return made
        (folder / "all.cc").write_text("".join(f'#include "{path}"\n' for path in _sources()))
        for each in (command, _link(fake, folder, made)):
            done = subprocess.run(each, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"the test device's extension is not built:\n{done.stderr}")
        stamp.write_text(fingerprint)
    return made


if __name__ == "__main__":
    print(build(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
