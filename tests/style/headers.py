# SPDX-License-Identifier: Apache-2.0
"""Shows that every header compiles alone, with the warnings of the build: headers.py BUILD_FOLDER

ccache, where it is installed, remembers which did.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import tree

build = pathlib.Path(sys.argv[1])
made = build / "headers"  # a source for each, and what it compiles to
launcher = [ccache] if (ccache := shutil.which("ccache")) else []
environment = os.environ | {"CCACHE_BASEDIR": str(tree.ROOT), "CCACHE_NOHASHDIR": "1", "CCACHE_DEPEND": "1"}
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wnon-virtual-dtor", "-Werror"]
COMPILER = re.compile(r"\+\+(-\d+)?$")
# The roots that our own includes start from; a header is included by its path below the one that holds it.
ROOTS = ["daemon", "client/include", "client/src", "client/ctl", "client/python/native", "proto/include", "proto", "tests"]


def compiler_and_arguments() -> tuple[str, list[str]]:
    """The compiler of the build, and every include folder and definition that any of its commands names."""
    compiler, arguments, definitions = "c++", {}, {}
    for entry in tree.commands(build):
        words = shlex.split(entry["command"])
        compiler = next(word for word in words if COMPILER.search(word))  # a launcher may come before it
        for i, word in enumerate(words):
            if word.startswith("-I") and len(word) > 2:
                folder = pathlib.Path(entry["directory"], word[2:])
                kind = "-isystem" if "site-packages" in folder.parts else "-I"  # not ours to warn of
                arguments[f"{kind}{folder}"] = None
            elif word == "-isystem":
                arguments[f"-isystem{words[i + 1]}"] = None
            elif word.startswith("-D"):
                definitions[word.split("=")[0]] = word  # of a name that has several values one will do
    return compiler, [*arguments, *definitions.values()]


def of_pytorch() -> list[str]:
    """PyTorch's own headers, and Python's, behind the system's: PyTorch brings a protobuf of its own."""
    torch = next((tree.ROOT / "build/venv").glob("lib/python*/site-packages/torch"), None)
    return [] if torch is None else [f"-idirafter{torch / name}" for name in ("include", "include/torch/csrc/api/include")]


compiler, arguments = compiler_and_arguments()
arguments += of_pytorch()
for root in ROOTS:
    arguments.append(f"-I{tree.ROOT / root}")


INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)', re.MULTILINE)


def included_in(header: pathlib.Path) -> list[pathlib.Path]:
    """The tree's headers that a header names, wherever it does so."""
    found = []
    for name in INCLUDE.findall(header.read_text()):
        paths = (pathlib.Path(root, name) for root in (header.parent, *ROOTS))
        found += [path for path in paths if path in headers][:1]
    return found


def chains() -> list[list[pathlib.Path]]:
    """Headers that one source may include, in order, and each still be compiled as if alone: each includes the one before,
    directly or not, and so everything that is there already. As few as there can be, by the augmenting paths of a bipartite
    matching (Dilworth)."""
    below: dict[pathlib.Path, set[pathlib.Path]] = {}

    def all_below(header):
        if header not in below:
            below[header] = set()
            for inner in included_in(header):
                below[header] |= {inner} | all_below(inner)
        return below[header]

    after: dict[pathlib.Path, pathlib.Path] = {}  # what a header comes right before

    def takes_one(header, asked):
        for inner in sorted(all_below(header) - {header} - asked):
            asked.add(inner)
            if inner not in after or takes_one(after[inner], asked):
                after[inner] = header
                return True
        return False

    for header in sorted(headers):
        takes_one(header, set())
    found = []
    for header in sorted(headers - set(after.values())):
        found.append([header])
        while header := after.get(header):
            found[-1].append(header)
    return found


def check(chain: list[pathlib.Path]) -> str:
    """What the compiler says about a source that includes the headers of a chain alone."""
    lines = []
    for header in chain:
        root = next((root for root in ROOTS if header.is_relative_to(root)), None)
        if root is None:
            return f"{header}: lies in no include root ({', '.join(ROOTS)})"
        lines.append(f'#include "{header.relative_to(root)}"\n')
    source = made / f"{str(chain[-1]).replace('/', '.')}.cc"
    source.write_text("".join(lines))
    result = subprocess.run(
        [*launcher, compiler, "-std=c++23", "-O0", "-MD", *WARNINGS, *arguments, "-c", source.resolve(), "-o", source.with_suffix(".o").resolve()],
        capture_output=True, text=True, check=False, cwd=build, env=environment)
    return f"{', '.join(map(str, chain))}:\n{result.stderr}" if result.returncode else ""


made.mkdir(exist_ok=True)
headers = set(tree.files(".h"))
tree.exit_with(tree.on_every_core(check, chains()), len(headers))
