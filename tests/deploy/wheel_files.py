# SPDX-License-Identifier: Apache-2.0
"""What tests/deploy/wheel asks of a wheel's file: its name, its size, and what is in it. Each check raises AssertionError,
which says what is wrong."""

import json
import pathlib
import re
import subprocess
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYTES_MAX = 25_000_000
GLIBC_MAX = (2, 34)
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}
NAME = re.compile(r"terrace-[\d.]+-(cp311-cp311|cp312-abi3)-manylinux_(\d+)_(\d+)_x86_64\.whl")
PROGRAMS = ("terraced", "terracectl", "terrace-bench", "terrace-sim")


def version_of(text):
    return tuple(map(int, text.split(".")))


def objdump(option, path):
    return subprocess.run(["objdump", option, path], capture_output=True, text=True, check=True).stdout


class Unpacked:
    """A wheel's files, in a folder that goes when the `with` ends."""

    def __init__(self, wheel):
        self.wheel = wheel

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self._folder.name)
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(self.path)
        self.files = [path for path in self.path.rglob("*") if path.is_file()]
        self.binaries = [path for path in self.files if path.open("rb").read(4) == b"\x7fELF"]
        self.extension = next(path for path in self.binaries if path.suffix == ".so")
        return self

    def __exit__(self, *_):
        self._folder.cleanup()


def name(unpacked):
    """One of CPython 3.11, or of the stable ABI from 3.12 on, for glibc 2.34 or older."""
    found = NAME.fullmatch(unpacked.wheel.name)
    assert found, f"{unpacked.wheel.name} is none of the names that pip is to see"
    assert (int(found[2]), int(found[3])) <= GLIBC_MAX, f"{unpacked.wheel.name} asks for a newer glibc than 2.34"


def size(unpacked):
    """No more than 25 MB."""
    found = unpacked.wheel.stat().st_size
    assert found <= BYTES_MAX, f"{found} bytes, of {BYTES_MAX}"


def contents(unpacked):
    """The four programs, and one extension."""
    names = sorted(path.name for path in unpacked.binaries)
    assert names == sorted([*PROGRAMS, unpacked.extension.name]), f"its binaries are {names}"


def needs(unpacked):
    """No library but glibc's, and nothing of glibc's that is newer than 2.34."""
    for binary in unpacked.binaries:
        foreign = set(re.findall(r"NEEDED +(\S+)", objdump("-p", binary))) - GLIBC
        assert not foreign, f"{binary.name} needs {', '.join(sorted(foreign))}"
        newest = max(map(version_of, re.findall(r"GLIBC_([\d.]+)", objdump("-T", binary))))
        assert newest <= GLIBC_MAX, f"{binary.name} needs glibc {newest}"


def exports(unpacked):
    """The extension shows nothing to the process but what Python calls: no gRPC, no protobuf, no Abseil, no C++."""
    symbols = [line.split() for line in objdump("-T", unpacked.extension).splitlines() if re.match(r"[0-9a-f]{16} ", line)]
    shown = [words[-1] for words in symbols if "*UND*" not in words]
    assert shown == ["PyInit__terrace"], f"it exports {', '.join(shown)}"
    carried = [word for word in (b"grpc", b"absl", b"protobuf") if word in unpacked.extension.read_bytes()]
    assert not carried, f"the extension carries {carried}"


def origin(unpacked):
    """Nothing says where it was built."""
    for path in unpacked.files:
        assert bytes(ROOT) not in path.read_bytes(), f"{path.name} names {ROOT}"


def parts(unpacked):
    """A bill of materials, and the notice of each part in it."""
    metadata = next(unpacked.path.glob("*.dist-info"))
    bill = json.loads((metadata / "sboms/terrace.cdx.json").read_text())
    notices = (metadata / "licenses/THIRD-PARTY").read_text()
    names = {part["name"] for part in bill["components"]}
    missing = {"grpc", "protobuf", "abseil", "hwloc", "liburing", "nanobind"} - names
    assert not missing, f"the bill of materials has no {', '.join(sorted(missing))}"
    unsaid = [part["name"] for part in bill["components"] if f"\n{part['name']} {part['version']}\n" not in f"\n{notices}"]
    assert not unsaid, f"no notice of {', '.join(unsaid)}"


CHECKS = (name, size, contents, needs, exports, origin, parts)
