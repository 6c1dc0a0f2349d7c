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


def check(header: pathlib.Path) -> str:
    """What the compiler says about a source that includes the header alone."""
    for root in ROOTS:
        if header.is_relative_to(root):
            name = header.relative_to(root)
            break
    else:
        return f"{header}: lies in no include root ({', '.join(ROOTS)})"
    source = made / f"{str(header).replace('/', '.')}.cc"
    source.write_text(f'#include "{name}"\n')
    result = subprocess.run(
        [*launcher, compiler, "-std=c++23", "-O0", "-MD", *WARNINGS, *arguments, "-c", source.resolve(), "-o", source.with_suffix(".o").resolve()],
        capture_output=True, text=True, check=False, cwd=build, env=environment)
    return f"{header}:\n{result.stderr}" if result.returncode else ""


made.mkdir(exist_ok=True)
headers = tree.files(".h")
tree.exit_with(tree.on_every_core(check, headers), len(headers))
