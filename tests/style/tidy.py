# SPDX-License-Identifier: Apache-2.0
"""Shows that clang-tidy-19 finds nothing in any source that is built: tidy.py BUILD_FOLDER [SOURCE...]

What is read at a time is what the compiler is given, in a unity build several sources: headers of the system, which are
most of the work, are then read once for all of them. What passed is not looked at again until one of its sources, a
header that it includes, its command or .clang-tidy changes: it is remembered in BUILD_FOLDER/tidy by a hash of the
preprocessed sources. The tests' own sources are formatted and compiled with all warnings, but not read by clang-tidy:
GoogleTest's macros trip too many of its checks.
"""

import hashlib
import pathlib
import re
import shlex
import subprocess
import sys
import time

import tree

build = pathlib.Path(sys.argv[1])
passed = build / "tidy"
passed.mkdir(exist_ok=True)
settings = (tree.ROOT / ".clang-tidy").read_bytes()


INCLUDED = re.compile(r'^#include "(/.*)"', re.MULTILINE)
READ = ("daemon", "client", "proto")


def sources_of(unit: pathlib.Path) -> list[pathlib.Path]:
    """The project's sources in what one command compiles, relative to the root."""
    paths = [unit] if not unit.parent.name == "Unity" else map(pathlib.Path, INCLUDED.findall(unit.read_text()))
    inside = [path.resolve() for path in paths if path.resolve().is_relative_to(tree.ROOT)]
    return [path.relative_to(tree.ROOT) for path in inside
            if not path.is_relative_to(build.resolve()) and path.relative_to(tree.ROOT).parts[0] in READ]


def units() -> dict[pathlib.Path, dict]:
    """The build's commands by what they compile, with the names of the project's sources in it."""
    found, seen = {}, set()
    for entry in tree.commands(build):
        unit = pathlib.Path(entry["directory"], entry["file"])
        sources = set(sources_of(unit)) - seen  # what is compiled twice, with other definitions, is read once
        if sources:
            found[unit] = {**entry, "sources": sources}
            seen |= sources
    return found


def fingerprint(entry: dict) -> str:
    """A hash of all that clang-tidy's answer depends on: what the compiler sees, its command, the settings."""
    words = shlex.split(entry["command"])
    if words[0].endswith("ccache"):
        words = words[1:]
    output = words.index("-o")
    del words[output : output + 2]
    seen = subprocess.run([*words, "-E", "-C"], cwd=entry["directory"], capture_output=True, check=False).stdout
    return hashlib.sha256(settings + entry["command"].encode() + seen).hexdigest()


all_units = units()
wanted = {pathlib.Path(name).resolve().relative_to(tree.ROOT) for name in sys.argv[2:]}
unknown = wanted - set().union(*(entry["sources"] for entry in all_units.values()))
for name in sorted(unknown):
    print(f"{name}: not in compile_commands.json")


def check(unit: pathlib.Path) -> str:
    """What clang-tidy says about what is compiled there."""
    entry = all_units[unit]
    mark = passed / fingerprint(entry)
    if mark.exists():
        return ""
    folder = entry["directory"]  # CMake writes compile_commands.json where its commands run
    begin = time.monotonic()
    result = subprocess.run(["clang-tidy-19", "-p", folder, "--quiet", f"--config-file={tree.ROOT / '.clang-tidy'}", unit],
                            cwd=tree.ROOT, capture_output=True, text=True, check=False)
    names = ", ".join(map(str, sorted(entry["sources"])))
    print(f"{time.monotonic() - begin:5.1f} s  {names}", flush=True)
    if result.returncode:
        return f"{names}:\n{result.stdout}\n{result.stderr}"
    mark.touch()
    return ""


# The largest first: the last one is then a small one.
chosen = sorted((unit for unit, entry in all_units.items() if not sys.argv[2:] or entry["sources"] & wanted),
                key=lambda unit: -len(all_units[unit]["sources"]))
tree.exit_with(tree.on_every_core(check, chosen) + len(unknown), len(chosen))
